"""Train and test the methods on the embedded world, on several seeds.

    python benchmarks/world.py                # five seeds -> benchmarks/results/world.json, docs
    python benchmarks/world.py --jobs 2       # two seeds at a time
    python benchmarks/world.py --from-runs    # only collect what finished runs have written
    python benchmarks/world.py --page         # only write docs/results/world.md from that file

A seed changes the answers sampled for training and their order, the wrong scores of the pairs and the start of the
adapters; the base model of the world is the same for all of them.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

from common import (
    CALIBRATION,
    LOVEC,
    ROOT,
    commits_of,
    provenance,
    read_json,
    results_and_page,
    test_folder,
    write_json,
)
from page_parts import collect_options
from world_intervals import interval_entries, records_in, tagged_path
from world_tables import DOMAINS, full_tables

from lovec.cli.demo_methods import METHODS as RUNS
from lovec.metrics.results import read_results
from lovec.types import Record, ResultRow

RESULTS, PAGE = results_and_page("world")
FURTHER = RESULTS.with_name("world-further.json")
"""Rows and intervals of the further test sets: with them the file would be larger than a file of results may be."""
DIAGRAM = ROOT / "docs" / "reliability.svg"
MIXED = 0.6
"""Least range of factuality over the sentences of the answer that the page shows."""
DRAWN = ("SFT", "DPO", "ExpectedReward", "Distil")
"""Methods of the reliability diagram."""
SHOWN = (*CALIBRATION, "malformed", "mean_confidence", "mean_factuality", "distinct")
"""Metrics that are kept."""
NOTE = "benchmark.json"
"""File in the folder of a seed that says when, where and how it was run."""


def run(seed: int, variant: str, folder: Path, methods: Sequence[str], alone: bool) -> None:
    """Run ``lovec demo`` for a seed and note how; unless it runs alone, its output goes to a log."""
    folder.mkdir(parents=True, exist_ok=True)
    note, begin = provenance() | {"variant": variant}, time.monotonic()
    command = [*LOVEC, "demo", "--seed", str(seed), "--out", str(folder)]
    command += ["--full", "--jobs", "1", "--methods", ",".join(methods), "--world", variant]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with (folder / "demo.log").open("w") as log:
        output = None if alone else log
        done = subprocess.run(command, cwd=ROOT, env=environment, stdout=output, stderr=output)
    if done.returncode:
        raise SystemExit(f"seed {seed} failed" + ("" if alone else f"; see {folder / 'demo.log'}"))
    write_json(folder / NOTE, note | {"seconds": round(time.monotonic() - begin, 1)})


def collect(seeds: Sequence[int], out: Path) -> dict[str, Any]:
    """Return the rows and the intervals of all runs, with what is needed to judge them."""
    folders = [out / f"seed-{seed}" for seed in seeds]
    for folder in folders:
        if not (folder / NOTE).exists():
            raise SystemExit(f"{folder} holds no finished run of this benchmark ({NOTE} is missing)")
    notes = [json.loads((folder / NOTE).read_text(encoding="utf-8")) for folder in folders]
    return notes[0] | {
        "commit": commits_of(notes),
        "seconds": {str(seed): note["seconds"] for seed, note in zip(seeds, notes, strict=True)},
        "example": example(_in_domain(tagged_path(folders[0], "Distil", "free-form"))),
        "rows": list(_rows(folders)),
        "intervals": interval_entries(folders),
    }


def _rows(folders: Sequence[Path]) -> Iterator[ResultRow]:
    """Yield the rows of every run of the demo that are its own; each test measures the best constant again."""
    for folder in folders:
        for demo_run in RUNS:
            path = test_folder(folder / demo_run.name) / "results.json"
            if path.exists():
                rows = [row for row in read_results(path).rows if row.method in demo_run.rows]
                yield from (_brief(row) for row in rows if (row.level, row.readout) != ("passage", "mean"))


def write_results(results: Mapping[str, Any], path: Path) -> None:
    """Write the results; those that are committed in two files."""
    if path != RESULTS:
        return write_json(path, results)
    for file, domains in ((RESULTS, DOMAINS[::3]), (FURTHER, DOMAINS[1:3])):
        part = {"rows": [row for row in results["rows"] if row.domain in domains]}
        part["intervals"] = [entry for entry in results["intervals"] if entry["domain"] in domains]
        write_json(file, {**results, **part})
    return None


def read_committed() -> dict[str, Any]:
    """Return the results that are committed."""
    results, further = read_json(RESULTS), read_json(FURTHER)
    return {**results, **{name: results[name] + further[name] for name in ("rows", "intervals")}}


def _brief(row: ResultRow) -> ResultRow:
    """Return a row with the metrics that the pages show, so that the file stays small."""
    return replace(row, file=None, metrics={name: value for name, value in row.metrics.items() if name in SHOWN})


def draw(folder: Path, path: Path) -> None:
    """Draw the reliability diagram of one seed: in domain, iterative tagging, stated score."""
    from lovec.reports import reliability_diagram

    files = {method: tagged_path(folder, method, "iterative") for method in DRAWN}
    groups = {method: _in_domain(file) for method, file in files.items() if file.exists()}
    reliability_diagram(groups, path, title="The embedded world: in domain, iterative tagging")


def example(records: Iterable[Record]) -> dict[str, Any]:
    """Return the answer that the page shows: a typical one among those that mix true and false sentences.

    Of the answers whose sentences' factualities range over at least ``MIXED``, it is the one with the median Brier
    score.
    """
    mixed = sorted((r for r in records if r.labelled and _range(r) >= MIXED), key=lambda r: (_brier(r), r.id))
    chosen = mixed[len(mixed) // 2]
    sentences = [{"text": s.text, "score": s.score, "factuality": s.factuality} for s in chosen.sentences]
    return {"id": chosen.id, "question": chosen.question, "sentences": sentences}


def _in_domain(path: Path) -> list[Record]:
    """Return the tagged answers about things of the kinds that training is about."""
    return [record for record in records_in(path) if record.domain == "in-domain"]


def _brier(record: Record) -> float:
    """Return the Brier score of an answer; a sentence without a score counts as completely wrong."""
    return statistics.mean(
        1.0 if s.stated is None else (s.stated - (s.factuality or 0.0)) ** 2 for s in record.sentences
    )


def _range(record: Record) -> float:
    """Return the difference between the highest and the lowest factuality of an answer's sentences."""
    factualities = [s.factuality for s in record.sentences if s.factuality is not None]
    return round(max(factualities) - min(factualities), 9)


def main() -> None:
    """Run the benchmark as the command line says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--variant", choices=("world", "world-small"), default="world")
    parser.add_argument("--methods", nargs="+", default=[demo_run.name for demo_run in RUNS], help="runs of lovec demo")
    parser.add_argument("--out", type=Path, default=ROOT / "runs" / "benchmark", help="folder of the runs")
    parser.add_argument("--jobs", type=int, default=1, help="seeds that run at the same time, one thread each")
    collect_options(parser, RESULTS)
    flags = parser.parse_args()
    if not flags.page:
        if not flags.from_runs:
            with ThreadPoolExecutor(flags.jobs) as pool:
                jobs = [
                    pool.submit(
                        run, seed, flags.variant, flags.out / f"seed-{seed}", flags.methods, alone=flags.jobs == 1
                    )
                    for seed in flags.seeds
                ]
            for job in jobs:
                job.result()
        write_results(collect(flags.seeds, flags.out), flags.results)
        if flags.results == RESULTS:
            draw(flags.out / f"seed-{flags.seeds[0]}", DIAGRAM)
    if flags.results == RESULTS:
        PAGE.write_text(full_tables(read_committed()), encoding="utf-8")


if __name__ == "__main__":
    main()
