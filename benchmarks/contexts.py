"""Compare expected reward whose contexts have its own scores with that whose contexts have those of the last epoch.

    python benchmarks/contexts.py --runs RUNS   # -> benchmarks/results/contexts.json, docs/results/contexts.md
    python benchmarks/contexts.py --page        # only write the page from that file

RUNS is a folder of benchmarks/world.py with finished runs of SFT, from whose adapter both start; a seed draws the same
data for both. They learn for two epochs on the embedded world, since the first one is the same for both.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from common import ROOT, provenance, run_lovec, select, test_folder, versions_text, write_json
from first_tokens import NAMES, READOUTS, cell

from lovec.metrics.table import METRICS
from lovec.results import read_results

RESULTS = ROOT / "benchmarks" / "results" / "contexts.json"
PAGE = ROOT / "docs" / "results" / "contexts.md"
OWN, LAST = "own", "last"
EPOCHS = 2


def run(seed: int, context: str, adapter: Path, folder: Path) -> tuple[float, list[dict[str, Any]]]:
    """Train expected reward and test it in domain, unless that is done.

    Returns:
        CPU-seconds of the training, and a row for every mode and readout, at sentence level.
    """
    note = folder / "contexts.json"
    recipe = ["--config", "expected.yaml", "--model.context", context, "--model.policy.adapter", str(adapter)]
    recipe += ["--trainer.default_root_dir", str(folder), "--seed_everything", str(seed)]
    name = f"seed {seed}, context {context}"
    if not note.exists():
        words = ["--trainer.max_epochs", str(EPOCHS), "--trainer.limit_val_batches", "0"]
        spent = run_lovec(["fit", *recipe, *words], folder / "fit.log", f"{name}: fit")
        words = ["--model.evaluation.vanilla", "false", "--data.test_sets", "[test]"]
        run_lovec(["test", *recipe, *words], folder / "test.log", f"{name}: test")
        write_json(note, spent)
    rows = select(read_results(test_folder(folder) / "results.json").rows, level="sentence", domain="in-domain")
    found = [
        {"mode": row.mode, "readout": row.readout, **{metric: row.metrics[metric] for metric in NAMES}}
        for row in rows
        if row.kind == "method" and row.method == "ExpectedReward" and row.readout in READOUTS
    ]
    return float(json.loads(note.read_text(encoding="utf-8"))["cpu_seconds"]), found


def measure(runs: Path, out: Path) -> dict[str, Any]:
    """Return the rows of both contexts for every seed that has a run of SFT.

    Raises:
        SystemExit: there is none.
    """
    seeds = sorted(int(path.parents[1].name.partition("-")[2]) for path in runs.glob("seed-*/sft/adapter"))
    if not seeds:
        raise SystemExit(f"{runs} holds no run of SFT of benchmarks/world.py")
    rows, seconds = [], []
    for seed in seeds:
        for context in (OWN, LAST):
            folder = out / f"seed-{seed}" / context
            spent, found = run(seed, context, (runs / f"seed-{seed}" / "sft" / "adapter").resolve(), folder)
            seconds.append({"seed": seed, "context": context, "cpu_seconds": round(spent, 1)})
            rows += [{"seed": seed, "context": context, **row} for row in found]
    return provenance() | {"epochs": EPOCHS, "seconds": seconds, "rows": rows}


def page(results: Mapping[str, Any]) -> str:
    """Return the page of the results in Markdown."""
    return "\n".join(_lines(results)) + "\n"


def _lines(results: Mapping[str, Any]) -> Iterator[str]:
    yield "# Contexts of expected reward on the embedded world"
    yield ""
    ratios = [a / b for a, b in zip(_seconds(results, LAST), _seconds(results, OWN), strict=True)]
    yield (
        "Written by `benchmarks/contexts.py` from `benchmarks/results/contexts.json`. Expected reward learns a score "
        "in a context with earlier scores: those that the policy would draw now (`context: own`), which takes a second "
        "pass over the text, or those of the distributions that it had when it last learned from the answer (`last`). "
        f"Both learn for {results['epochs']} epochs from the same data and the same start; the first epoch is the "
        "same. "
        f"In domain, sentence level, percent; {len(ratios)} seeds, in brackets their range. The training with `last` "
        f"took {statistics.fmean(ratios):.2f} of the CPU time of `own`, its first epoch included. "
        f"{versions_text(results)}."
    )
    headings = " | ".join(METRICS[name].heading for name in NAMES)
    yield from ["", f"| Mode | Readout | Context | {headings} |", "|---|---|---|" + "---|" * len(NAMES)]
    for mode, readout in dict.fromkeys((row["mode"], row["readout"]) for row in results["rows"]):
        sides = {context: _values(results, mode, readout, context) for context in (OWN, LAST)}
        for context, values in sides.items():
            yield f"| {mode} | {readout} | {context} | {' | '.join(cell(v, signed=False) for v in values)} |"
        apart = [[b - a for a, b in zip(*pair, strict=True)] for pair in zip(sides[OWN], sides[LAST], strict=True)]
        yield f"| {mode} | {readout} | difference | {' | '.join(cell(v) for v in apart)} |"


def _values(results: Mapping[str, Any], mode: str, readout: str, context: str) -> list[list[float]]:
    """Return the values of each metric by seed."""
    wanted = {"mode": mode, "readout": readout, "context": context}
    rows = [row for row in results["rows"] if wanted.items() <= row.items()]
    return [[row[name] for row in sorted(rows, key=lambda row: row["seed"])] for name in NAMES]


def _seconds(results: Mapping[str, Any], context: str) -> list[float]:
    return [entry["cpu_seconds"] for entry in results["seconds"] if entry["context"] == context]


def main() -> None:
    """Run the benchmark as the command line says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=Path, help="folder of benchmarks/world.py")
    parser.add_argument("--out", type=Path, default=ROOT / "runs" / "contexts", help="folder of the runs")
    parser.add_argument("--page", action="store_true", help="only write the page from the file")
    options = parser.parse_args()
    if not options.page:
        if options.runs is None:
            parser.error("give --runs FOLDER, or --page")
        write_json(RESULTS, measure(options.runs, options.out.resolve()))
    PAGE.write_text(page(json.loads(RESULTS.read_text(encoding="utf-8"))), encoding="utf-8")


if __name__ == "__main__":
    main()
