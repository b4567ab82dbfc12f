"""Measure `lovec tag` on texts far longer than the model's context: processor seconds and memory by length.

python benchmarks/long_text.py    # 1,000 and 10,000 sentences, small world -> benchmarks/results/long_text.json
"""

from __future__ import annotations

import argparse
import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from common import publish, results_file

from lovec.datasets.jsonl import read_records
from lovec.datasets.world import ensure_world
from lovec.datasets.world.text import FORMS, draw_sentence

RESULTS = results_file("long_text")
MODEL = "world-small"


def sentences(count: int) -> list[str]:
    """Return sentences about the things of the world, in random order."""
    world, rng = ensure_world(MODEL), random.Random(0)
    pool = [(entity, form) for entity in world.entities for form in FORMS[entity.kind]["life"]]
    return [draw_sentence(*drawn, world.spec, rng) for drawn in rng.choices(pool, k=count)]


def measure(texts: Sequence[str]) -> dict[str, Any]:
    """Tag a text in a process of its own with one thread, and return what it took.

    Seconds are those of the processor, since others may use the machine. The peak of the memory counts from that of
    this process, which loads no model and stays below.
    """
    with tempfile.TemporaryDirectory() as folder:
        book, out = Path(folder, "book.txt"), Path(folder, "tags.jsonl")
        book.write_text(" ".join(texts), encoding="utf-8")
        command = [sys.executable, "-c", "import sys; from lovec.cli import main; sys.exit(main())"]
        words = ["tag", str(book), "--model", MODEL, "--device", "cpu", "--out", str(out)]
        process = subprocess.Popen([*command, *words], env={**os.environ, "OMP_NUM_THREADS": "1"})
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            raise SystemExit("lovec tag failed")
        [record] = read_records(out)
        size = book.stat().st_size
    return {
        "sentences": len(record.sentences),
        "bytes": size,
        "scored": sum(sentence.score is not None for sentence in record.sentences),
        "cpu_seconds": round(usage.ru_utime + usage.ru_stime, 1),
        "peak_mib": round(usage.ru_maxrss / 2**10),
    }


def main() -> None:
    """Run the benchmark as the command line says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--sentences", type=int, default=1000, help="of the shorter text; the longer has 10 times as many"
    )
    parser.add_argument("--print", action="store_true", help="print the results instead of writing them")
    flags = parser.parse_args()
    lengths = (1, flags.sentences, 10 * flags.sentences)  # the first one is the start of the program
    texts = sentences(lengths[-1])
    rows = [measure(texts[:length]) for length in lengths]
    start, shorter, longer = (row["cpu_seconds"] for row in rows)
    results = {"model": MODEL, "ratio": round((longer - start) / (shorter - start), 2), "texts": rows}
    publish(RESULTS, results, flags.print)


if __name__ == "__main__":
    main()
