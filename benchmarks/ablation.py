"""Vary the options that the objectives leave open, on the embedded world, and keep the figures.

    python benchmarks/ablation.py                  # -> benchmarks/results/ablation.json, docs/ablation.md
    python benchmarks/ablation.py --table          # write the page again from that file
    python benchmarks/ablation.py --quick          # the small world, two steps: shows that it runs, and nothing else

All runs start from one SFT adapter and are measured on the people of the dev split, so the test split stays unseen.
GRPO takes a fixed number of steps, since it is slow; expected reward takes its epoch. What is done is not repeated.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from common import ROOT, provenance, write_json

from lovec.cli.sweep import Varied, sweep

RESULTS = ROOT / "benchmarks" / "results" / "ablation.json"
PAGE = ROOT / "docs" / "ablation.md"
REWARDS = Varied("model.reward", tuple(f"lovec.rewards.{name}Reward" for name in ("Log", "Quadratic", "Linear")))
GRPO = (
    REWARDS,
    Varied("model.group_size", ("4", "8", "16")),
    Varied("model.temperature", ("0.4", "0.7", "1.0")),
    Varied("model.credit", ("answer", "sentence")),
    Varied("model.normalisation", ("sequence", "token", "constant")),
)
EXPECTED = (REWARDS, Varied("model.context", ("own", "true")), Varied("model.text_weight", ("1", "0")))
QUICK_STEPS = 2


def run(flags: argparse.Namespace) -> dict[str, Any]:
    """Train SFT unless its adapter is there, then everything that starts from it."""
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
        found = sweep(words, varied, flags.out, flags.seeds, jobs=flags.jobs)
        rows += [{**row, "method": f"{name}: {row['method']}"} for row in found]
    return origin | {"variant": "world-small" if flags.quick else "world", "steps": steps, "rows": rows}


def page(results: Mapping[str, Any]) -> str:
    """docs/ablation.md: the table, and what it was made of."""
    from lovec.reports.variations import legend, markdown_variations

    rows: Sequence[Mapping[str, Any]] = results["rows"]
    versions = ", ".join(f"{name} {number}" for name, number in results["versions"].items() if name != "lovec")
    return "\n".join(
        [
            "# Options of the objectives, compared",
            "",
            "Written by `benchmarks/ablation.py`; all rows are in `benchmarks/results/ablation.json`. Each line "
            "changes one option of a recipe, `grpo.yaml` or `expected.yaml`, whose own values are the line `base`; a "
            "line that names the same value again repeats its figures. All runs start from one SFT adapter. GRPO runs "
            f"take {results['steps']} steps (an epoch is 60).",
            "",
            markdown_variations(rows),
            f"{legend(rows)}. Sentences of the dev people, stated scores, seeds "
            f"{', '.join(str(seed) for seed in sorted({row['seed'] for row in rows}))}. {results['date']}, commit "
            f"{results['commit']}, {versions}; {results['machine']}.",
            "",
        ]
    )


def main() -> None:
    """Read the flags and do as they say."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0], help="of the runs; their start stays the same")
    parser.add_argument("--steps", type=int, default=60, help="optimiser steps of a GRPO run")
    parser.add_argument("--sft", type=Path, help="adapter to start from; without it one is trained in --out")
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time")
    parser.add_argument("--out", type=Path, default=ROOT / "runs" / "ablation", help="folder of the runs")
    parser.add_argument("--table", action="store_true", help="only write the page again from the results")
    parser.add_argument("--quick", action="store_true", help="try it out; results and page go to --out")
    flags = parser.parse_args()
    results, written = (flags.out / RESULTS.name, flags.out / PAGE.name) if flags.quick else (RESULTS, PAGE)
    if not flags.table:
        write_json(results, run(flags))
    written.write_text(page(json.loads(results.read_text(encoding="utf-8"))), encoding="utf-8")


if __name__ == "__main__":
    main()
