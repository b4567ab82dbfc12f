"""Compare two contexts of expected reward on the embedded world: the policy's scores of now, and of an epoch ago.

    python benchmarks/contexts.py              # three seeds -> benchmarks/results/contexts.json, docs/speed.md
    python benchmarks/contexts.py --seeds 0 1
    python benchmarks/contexts.py --page       # only write the page from that file

With ``model.context: own`` every step reads its texts sentence by sentence; with ``last`` only those of the first epoch
do, so runs of three epochs are compared. All start from one SFT adapter; a seed changes the order of the answers and
the scores that are drawn. They are measured on the things of the test split. Finished runs are not repeated.
"""

from __future__ import annotations

import argparse
import os
import statistics
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

from ablation import tested
from common import ROOT, provenance, read_json, results_and_page, seeds_of, write_json
from page_parts import replace_between, versions_text

from lovec.cli.sweep import VariedOption, plan, sweep
from lovec.core.notices import counted, listed
from lovec.metrics.table import METRICS
from lovec.types import FREE_FORM, ITERATIVE, ResultRow

RESULTS, PAGE = results_and_page("contexts", "docs/speed.md")
BEGIN, END = "<!-- contexts: written by benchmarks/contexts.py -->", "<!-- end of the contexts -->"
EPOCHS = 3
NAMES = ("brier", "ece_m", "spearman")
PART = "Expected reward"
OWN, LAST = PART, f"{PART}: context=last"


def run(flags: argparse.Namespace) -> dict[str, Any]:
    """Train the adapter that all start from unless it exists, then train and test the runs."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch: on matrices this small more threads mostly wait
    from lovec.cli.training import execute

    origin, start = provenance(), flags.out / "sft" / "adapter"
    unmeasured = ["--trainer.limit_val_batches", "0"]
    if not start.exists():
        execute("fit", ["--config", "sft.yaml", "--trainer.default_root_dir", str(start.parent), *unmeasured])
    words = ["--config", "expected.yaml", "--model.policy.adapter", str(start), "--trainer.max_epochs", str(EPOCHS)]
    runs = plan(words, [VariedOption("model.context", ("last",))], flags.out, flags.seeds)
    sweep(runs, flags.jobs)
    return origin | {"epochs": EPOCHS, "rows": list(map(_brief, tested(PART, runs)))}


def _brief(row: ResultRow) -> ResultRow:
    """Return a row with what the table shows: its metrics, and the seconds of its training and validation."""
    return replace(row, file=None, options=(), metrics={name: row.metrics[name] for name in (*NAMES, "seconds")})


def table(results: Mapping[str, Any]) -> str:
    """Return the means of both contexts over seeds, and the differences, as a Markdown table."""
    rows = results["rows"]
    columns = [f"{METRICS[name].heading} {what}" for name in NAMES for what in ("own", "last", "difference")]
    lines = [f"| Mode | Readout | {' | '.join(columns)} |", "|---|---|" + "--:|" * len(columns)]
    for mode, readout in product((ITERATIVE, FREE_FORM), ("stated", "mean")):
        found = [row for row in rows if (row.mode, row.readout, row.level) == (mode, readout, "sentence")]
        lines.append(f"| {mode} | {readout} | {' | '.join(_cells(found))} |")
    own, last = (statistics.fmean(row.metrics["seconds"] for row in rows if row.method == name) for name in (OWN, LAST))
    apart = listed([f"{_spread(rows, name):.1f} points of {METRICS[name].heading}" for name in NAMES])
    lines += [
        "",
        f"Points, in domain, per sentence; means over {counted(len(seeds_of(rows)), 'seed')}, and of the differences "
        f"their range. Runs of one context that differ in the seed alone lie up to {apart} apart. {EPOCHS} epochs with "
        f"a validation took {own:.0f} seconds with `own` and {last:.0f} with `last`. {versions_text(results)}.",
    ]
    return "\n".join(lines)


def _cells(rows: Sequence[ResultRow]) -> Iterator[str]:
    """Yield for every metric the means of both contexts over the seeds that both have, and their differences."""
    of = {method: {row.seed: row.metrics for row in rows if row.method == method} for method in (OWN, LAST)}
    seeds = sorted(of[OWN].keys() & of[LAST].keys())
    for name in NAMES:
        own, last = ([100 * of[method][seed][name] for seed in seeds] for method in (OWN, LAST))
        changes = [b - a for a, b in zip(own, last, strict=True)]
        yield f"{statistics.fmean(own):.1f}"
        yield f"{statistics.fmean(last):.1f}"
        mean, low, high = (round(value, 1) + 0.0 for value in (statistics.fmean(changes), min(changes), max(changes)))
        yield f"{mean:+.1f} ({low:+.1f} to {high:+.1f})"


def _spread(rows: Sequence[ResultRow], name: str) -> float:
    """Return how far the seeds of a context lie apart at most, in points of a metric."""
    values: dict[tuple[str, str, str], list[float]] = defaultdict(list)
    for row in rows:
        if row.level == "sentence":
            values[row.method, row.mode, row.readout].append(100 * row.metrics[name])
    return max(max(found) - min(found) for found in values.values())


def main() -> None:
    """Run the benchmark as the command line says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2], help="seeds of the runs")
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time")
    parser.add_argument("--out", type=Path, default=ROOT / "runs" / "contexts", help="folder of the runs")
    parser.add_argument("--results", type=Path, default=RESULTS, help="file to write")
    parser.add_argument("--page", action="store_true", help="only write the page from the file")
    flags = parser.parse_args()
    if not flags.page:
        write_json(flags.results, run(flags))
    if flags.results == RESULTS:
        text = PAGE.read_text(encoding="utf-8")
        PAGE.write_text(replace_between(text, BEGIN, END, table(read_json(RESULTS))), encoding="utf-8")


if __name__ == "__main__":
    main()
