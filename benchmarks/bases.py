"""Test the main methods on several base models of the embedded world, which differ in the seed of their pre-training.

    python benchmarks/bases.py                # trains what is missing -> benchmarks/results/bases.json and a page
    python benchmarks/bases.py --from-runs    # only collect what finished runs have written
    python benchmarks/bases.py --page         # only write the page from the file

The base that comes with the package is that of benchmarks/world.py, whose runs are used again; the others are
pre-trained once, in ten minutes of processor time each. Intervals are over questions, training seeds and base models.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

from common import CALIBRATION, ROOT, commits_of, read_json, results_and_page, select, write_json
from page_parts import (
    HEADINGS,
    collect_options,
    interval_cell,
    mean_text,
    page_of_lines,
    percent,
    versions_text,
)
from world import NOTE, read_committed, run
from world_intervals import records_in, tagged_path

from lovec.evaluation.evaluator import MODES
from lovec.metrics.bootstrap import Resampled, by_question, intervals, resample
from lovec.types import Record

RESULTS, PAGE = results_and_page("bases")
BASES = ("world", "world-1", "world-2")
METHODS = {"SFT": "sft", "DPO": "dpo", "ExpectedReward": "expected", "Distil": "distil"}
CLAIMS = (
    ("DPO", "SFT"),
    ("ExpectedReward", "SFT"),
    ("ExpectedReward", "DPO"),
    ("Distil", "SFT"),
    ("Distil", "DPO"),
    ("Distil", "ExpectedReward"),
)
"""Pairs of methods of which the first is claimed to be better."""
DOMAIN = "in-domain"


def folder_of(out: Path, base: str, seed: int) -> Path:
    """Return the folder of the demo on a base model; those on the first one are the runs of benchmarks/world.py."""
    return (out if base == BASES[0] else out / base) / f"seed-{seed}"


def collect(out: Path, seeds: Sequence[int]) -> dict[str, Any]:
    """Return the metrics of every method on every base model, and intervals over all of them."""
    pairs = [(base, seed) for base in BASES for seed in seeds]
    notes = [json.loads((folder_of(out, *pair) / NOTE).read_text(encoding="utf-8")) for pair in pairs]
    entries = []
    for mode in MODES:
        drawn = {method: _drawn(out, method, mode, pairs) for method in METHODS}
        for base, method in product(BASES, METHODS):
            own = [pair for pair in pairs if pair[0] == base]
            values = {name: float(v[0]) for name, v in _drawn(out, method, mode, own, draws=1).metrics.items()}
            entries.append({"base": base, "method": method, "against": None, "mode": mode, **values})
        for method, against in [*((method, None) for method in METHODS), *CLAIMS]:
            ends = intervals(drawn[method], None if against is None else drawn[against])
            entries.append({"base": None, "method": method, "against": against, "mode": mode} | {
                name: None if i is None else [i.value, i.low, i.high] for name, i in ends.items()
            })  # fmt: skip
    kept = {name: notes[0][name] for name in ("date", "commit", "versions", "machine", "world")}
    kept["commit"] = commits_of(notes)
    return kept | {"seeds": list(seeds), "bases": list(BASES), "entries": entries}


def _drawn(out: Path, method: str, mode: str, pairs: Sequence[tuple[str, int]], draws: int = 2000) -> Resampled:
    paths = [tagged_path(folder_of(out, base, seed), method, mode) for base, seed in pairs]
    runs = [by_question([_anywhere(r) for r in records_in(path) if r.domain == DOMAIN], "stated") for path in paths]
    return resample(runs, draws, bases=[base for base, _ in pairs])


def _anywhere(record: Record) -> Record:
    """Return a record with the id that its question has on every base model: without the model's name."""
    return replace(record, id=record.id.partition("/")[2])


@page_of_lines
def page(results: Mapping[str, Any]) -> Iterator[str]:
    """Yield the page of the results in Markdown, line by line."""
    bases, seeds = results["bases"], results["seeds"]
    yield from ("# Three base models", "")
    yield (
        f"Written by `benchmarks/bases.py` from `benchmarks/results/bases.json`. The models of {', '.join(bases)} know "
        "the same things; the documents that they have read about them, their initial weights and their order differ. "
        f"Each method was trained on each with seeds {', '.join(map(str, seeds))}, with the recipe that was chosen on "
        f"validation things with the first model. Things of the trained kinds, stated score, percent. "
        f"{versions_text(results)}."
    )
    for mode in MODES:
        yield from ("", f"## {mode.capitalize()}", "", f"| BS / ECE-M / SC | {' | '.join(bases)} |")
        yield f"|---|{'---|' * len(bases)}"
        for method in METHODS:
            own = [e for e in results["entries"] if (e["method"], e["mode"]) == (method, mode) and e["base"]]
            yield f"| {method} | {' | '.join(' / '.join(percent(e[name]) for name in CALIBRATION) for e in own)} |"
    yield from ("", "## Intervals", "")
    yield (
        "Means over all models and seeds. In brackets 95 % intervals: questions, base models and training seeds are "
        "drawn again (a hierarchical bootstrap). A difference is bold where its interval leaves out 0."
    )
    yield from ("", f"| Method | Mode | {HEADINGS} |", "|---|---|---|---|---|")
    for entry in results["entries"]:
        if entry["base"] is None:
            difference = entry["against"] is not None
            name = f"{entry['method']} minus {entry['against']}" if difference else entry["method"]
            cells = [interval_cell(entry[metric], difference) for metric in CALIBRATION]
            yield f"| {name} | {entry['mode']} | {' | '.join(cells)} |"
    yield from _elsewhere(results, read_committed())


def _elsewhere(results: Mapping[str, Any], committed: Mapping[str, Any]) -> Iterator[str]:
    """Yield what the same seeds gave in the runs of benchmarks/world.py, if those were made on another machine."""
    base, seeds, machines = results["bases"][0], results["seeds"], (results["machine"], committed["machine"])
    if machines[0] == machines[1]:
        return
    yield from ("", "## Another processor", "")
    yield (
        f"Sums of floating-point numbers differ a little between processors, and training enlarges that. Means over "
        f"the same seeds ({', '.join(map(str, seeds))}) with the model `{base}`; the second column is part of "
        "[the main results](world.md)."
    )
    yield from ("", f"| BS / ECE-M / SC | {' | '.join(machines)} |", "|---|---|---|")
    for mode, method in product(MODES, METHODS):
        own = {"base": base, "method": method, "mode": mode}
        here = next(entry for entry in results["entries"] if own.items() <= entry.items())
        rows = select(committed["rows"], method=method, mode=mode)
        there = [row for row in rows if row.seed in seeds]
        cells = [percent(here[name]) for name in CALIBRATION], [mean_text(there, name) for name in CALIBRATION]
        yield f"| {method}, {mode} | {' | '.join(' / '.join(c) for c in cells)} |"


def main() -> None:
    """Run the benchmark as the command line says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--out", type=Path, default=ROOT / "runs" / "benchmark", help="folder of the runs")
    parser.add_argument("--jobs", type=int, default=1, help="runs at the same time, one thread each")
    collect_options(parser)
    flags = parser.parse_args()
    if not flags.page:
        if not flags.from_runs:
            missing = [(b, s) for b in BASES for s in flags.seeds if not (folder_of(flags.out, b, s) / NOTE).exists()]
            with ThreadPoolExecutor(flags.jobs) as pool:
                jobs = [
                    pool.submit(run, seed, base, folder_of(flags.out, base, seed), list(METHODS.values()), alone=False)
                    for base, seed in missing
                ]
            for job in jobs:
                job.result()
        write_json(RESULTS, collect(flags.out, flags.seeds))
    PAGE.write_text(page(read_json(RESULTS)), encoding="utf-8")


if __name__ == "__main__":
    main()
