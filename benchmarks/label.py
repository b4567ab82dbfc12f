"""Measure labelling by the exact oracle: records per second, and whether memory grows with their number.

python benchmarks/label.py    # 10,000 answers about the small world -> benchmarks/results/label.json
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

from common import publish, results_file
from usage import peak_memory, resident_memory

from lovec.cli import main as lovec
from lovec.datasets.jsonl import read_objects, write_records
from lovec.datasets.world import EmbeddedWorld
from lovec.datasets.world.text import FORMS, draw_sentence
from lovec.types import Record

RESULTS = results_file("label")
WARM_UP = 1000  # records of a first run, after which everything is imported and every buffer is in use


def answers(count: int) -> Iterator[Record]:
    """Yield answers about the people of the small world, with a sentence of every kind."""
    world = EmbeddedWorld("world-small")
    people = [entity for entity in world.entities if entity.kind == "person"]
    for i in range(count):
        person, rng = people[i % len(people)], random.Random(i)
        texts = [draw_sentence(person, form, world.spec, rng) for form in FORMS["person"]["life"]]
        yield Record(f"{i:06}", f"Who is {person.name}?", answer=" ".join(texts), meta={"entity": person.name})


def measure(count: int) -> dict[str, Any]:
    """Label ``count`` answers after a small first run, and return seconds and the growth of memory since it, in MiB."""
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        for name, number in (("warm-up", WARM_UP), ("all", count)):
            write_records(home / f"{name}.jsonl", answers(number))
            before, begin = resident_memory(), time.perf_counter()
            words = ["--answers", str(home / f"{name}.jsonl"), "--out", str(home / name), "--oracle", "WorldOracle"]
            splitter = ["--splitter", "lovec.datasets.world.grading.split_sentences", "--oracle.world", "world-small"]
            with redirect_stdout(sys.stderr), peak_memory() as peak:
                if lovec(["label", *words, *splitter]):
                    raise SystemExit("lovec label failed")
            seconds = time.perf_counter() - begin
        pairs = sum(1 for _ in read_objects(home / "all" / "pairs.jsonl"))
        size = sum(path.stat().st_size for path in (home / "all").iterdir())
    return {
        "records": count,
        "pairs": pairs,
        "seconds": round(seconds, 2),
        "records_per_second": round(count / seconds),
        "peak_mib": round(peak[0], 1),
        "growth_mib": round(peak[0] - before, 1),
        "files_mib": round(size / 2**20, 1),
    }


def main() -> None:
    """Run the benchmark as the command line says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=10_000)
    parser.add_argument("--print", action="store_true", help="print the results instead of writing them")
    flags = parser.parse_args()
    results = measure(flags.records)
    publish(RESULTS, results, flags.print)


if __name__ == "__main__":
    main()
