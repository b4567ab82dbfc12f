"""Labelling by the exact oracle: records a second, and whether memory grows with their number.

python benchmarks/label.py    # 10,000 answers about the small world -> benchmarks/results/label.json
"""

from __future__ import annotations

import argparse
import json
import resource
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import Any

from common import ROOT, provenance, write_json

from lovec.cli import main as lovec
from lovec.datasets.jsonl import read_objects, write_records
from lovec.datasets.world import World
from lovec.datasets.world.text import TEMPLATES, write
from lovec.types import Record

RESULTS = ROOT / "benchmarks" / "results" / "label.json"
WARM = 1000  # records of a first run, after which everything is imported and every buffer in use


def answers(count: int) -> Iterator[Record]:
    """Answers about the people of the small world, a sentence of every kind."""
    people = [entity for entity in World("world-small").entities if entity.kind == "person"]
    for i in range(count):
        one = people[i % len(people)]
        texts = [write(one, group[i % len(group)]) for group in TEMPLATES["person"]]
        yield Record(f"{i:06}", f"Who is {one.name}?", answer=" ".join(texts), meta={"entity": one.name})


def measure(count: int) -> dict[str, Any]:
    """Label ``count`` answers after a small first run: seconds, and how far memory rose above its end, in MiB."""
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        for name, number in (("warm", WARM), ("all", count)):
            write_records(home / f"{name}.jsonl", answers(number))
            before, begin = _resident(), time.perf_counter()
            words = ["--answers", str(home / f"{name}.jsonl"), "--out", str(home / name), "--oracle", "WorldOracle"]
            splitter = ["--splitter", "lovec.datasets.world.grading.split_sentences", "--oracle.world", "world-small"]
            with redirect_stdout(sys.stderr), watched() as peak:
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


@contextmanager
def watched() -> Iterator[list[float]]:
    """Inside: the most memory that was resident, in MiB, in the one place of the list, looked at 50 times a second.

    Not getrusage: its peak begins with that of the process that started this one.
    """
    peak, done = [_resident()], threading.Event()

    def watch() -> None:
        while not done.wait(0.02):
            peak[0] = max(peak[0], _resident())

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield peak
    finally:
        done.set()
        thread.join()


def _resident() -> float:
    """Memory of this process that is resident, in MiB."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * resource.getpagesize() / 2**20


def main() -> None:
    """Read the flags and do as they say."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=10_000)
    parser.add_argument("--print", action="store_true", help="print the figures instead of writing them")
    flags = parser.parse_args()
    figures = measure(flags.records)
    if flags.print:
        print(json.dumps(figures))
    else:
        write_json(RESULTS, provenance() | figures)


if __name__ == "__main__":
    main()
