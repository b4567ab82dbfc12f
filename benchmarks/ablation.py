"""Vary the options that the objectives leave open, on the embedded world.

    python benchmarks/ablation.py            # -> benchmarks/results/ablation.json, docs/results/ablation.md
    python benchmarks/ablation.py --table    # only write the page from that file
    python benchmarks/ablation.py --quick    # the small world and two steps: only shows that it runs

All runs start from one SFT adapter and are measured on the people of the dev split, so the test split stays unseen.
GRPO takes a fixed number of steps, since it is slow; expected reward takes its epoch. Finished runs are not repeated.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from common import ROOT, provenance, read_json, seeds_of, versions_text, write_json

from lovec.cli.sweep import VariedOption, plan, sweep

RESULTS = ROOT / "benchmarks" / "results" / "ablation.json"
PAGE = ROOT / "docs" / "results" / "ablation.md"
REWARDS = VariedOption("model.reward", tuple(f"lovec.rewards.{name}Reward" for name in ("Log", "Quadratic", "Linear")))
GRPO = (
    REWARDS,
    VariedOption("model.group_size", ("4", "8", "16")),
    VariedOption("model.temperature", ("0.4", "0.7", "1.0")),
    VariedOption("model.credit", ("answer", "sentence")),
    VariedOption("model.normalisation", ("sequence", "token", "constant")),
)
EXPECTED = (REWARDS, VariedOption("model.context", ("own", "true")), VariedOption("model.text_weight", ("1", "0")))
QUICK_STEPS = 2


def run(flags: argparse.Namespace) -> dict[str, Any]:
    """Train SFT unless its adapter exists, then everything that starts from it."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch: on matrices this small more threads mostly wait
    from lovec.cli.training import execute

    origin = provenance()
    world = ["--config", "world-small.yaml"] if flags.quick else []
    cut = ["--trainer.max_steps", str(QUICK_STEPS)] if flags.quick else []
    adapter = flags.sft or flags.out / "sft" / "adapter"
    if not adapter.exists():
        folder = ["--trainer.default_root_dir", str(adapter.parent), "--trainer.limit_val_batches", "0"]
        execute("fit", ["--config", "sft.yaml", *world, *cut, *folder])
    start = ["--model.policy.adapter", str(adapter)]
    steps = QUICK_STEPS if flags.quick else flags.steps
    parts = {
        "GRPO": (["--config", "grpo.yaml", *world, *start, "--trainer.max_steps", str(steps)], GRPO),
        "Expected reward": (["--config", "expected.yaml", *world, *start, *cut], EXPECTED),
    }
    rows = []
    for name, (words, varied) in parts.items():
        results = sweep(plan(words, varied, flags.out, flags.seeds), flags.jobs)
        rows += [replace(row, method=f"{name}: {row.method}") for row in results.rows]
    return origin | {"variant": "world-small" if flags.quick else "world", "steps": steps, "rows": rows}


def page(results: Mapping[str, Any]) -> str:
    """Return docs/results/ablation.md: the table, and what it was made of."""
    from lovec.reports.diagnostic_tables import sweep_table
    from lovec.reports.table import markdown

    rows = results["rows"]
    return "\n".join(
        [
            "# Options of the objectives, compared",
            "",
            "Written by `benchmarks/ablation.py`; all rows are in `benchmarks/results/ablation.json`. Each line "
            "changes one option of a recipe, `grpo.yaml` or `expected.yaml`, whose own values are the line `base`; a "
            "line that names the same value again repeats its metrics. All runs start from one SFT adapter. GRPO runs "
            f"take {results['steps']} steps (an epoch is 60).",
            "",
            markdown(sweep_table(rows, "Sentences of the dev people, stated scores"), intervals=True),
            f"Seeds: {', '.join(map(str, seeds_of(rows)))}. {versions_text(results)}.",
            "",
        ]
    )


def main() -> None:
    """Run the benchmark as the command line says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--seeds", type=int, nargs="+", default=[0], help="seeds of the runs; their start stays the same"
    )
    parser.add_argument("--steps", type=int, default=60, help="optimiser steps of a GRPO run")
    parser.add_argument("--sft", type=Path, help="adapter to start from; without it one is trained in --out")
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time")
    parser.add_argument("--out", type=Path, default=ROOT / "runs" / "ablation", help="folder of the runs")
    parser.add_argument("--table", action="store_true", help="only write the page from the results")
    parser.add_argument("--quick", action="store_true", help="try it out; results and page go to --out")
    flags = parser.parse_args()
    results, written = (flags.out / RESULTS.name, flags.out / PAGE.name) if flags.quick else (RESULTS, PAGE)
    if not flags.table:
        write_json(results, run(flags))
    written.write_text(page(read_json(results)), encoding="utf-8")


if __name__ == "__main__":
    main()
