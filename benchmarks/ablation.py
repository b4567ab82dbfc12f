"""Vary the options that the objectives leave open, on the embedded world.

    python benchmarks/ablation.py            # -> benchmarks/results/ablation.json, docs/results/ablation.md
    python benchmarks/ablation.py --page     # only write the page from that file, and from that of diagnosis.py
    python benchmarks/ablation.py --quick    # the small world and two steps: only shows that it runs

All runs start from one SFT adapter, or from one of a second epoch of SFT. They are compared on the things of the dev
split, where options are chosen; with --test all of them are then measured on the things of the test split. GRPO takes a
fixed number of steps, since it is slow; the other objectives take their epoch. Finished runs are not repeated.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from common import ROOT, provenance, read_json, results_and_page, results_file, seeds_of, test_folder
from page_parts import run_or_try, world_text

from lovec.cli.sweep import SweepRun, VariedOption, plan, sweep
from lovec.metrics.results import read_results
from lovec.types import ResultRow

RESULTS, PAGE = results_and_page("ablation")
DIAGNOSIS = results_file("diagnosis")
REWARDS = VariedOption("model.reward", tuple(f"lovec.rewards.{name}Reward" for name in ("Log", "Quadratic", "Linear")))
GRPO = (
    REWARDS,
    VariedOption("model.credit", ("answer", "sentence", "tag")),
    VariedOption("model.loss_temperature", ("null", "1.0")),
    VariedOption("model.scale_rewards", ("group", "batch")),
)
SAMPLING = (
    VariedOption("model.group_size", ("4", "8", "16")),
    VariedOption("model.temperature", ("0.4", "0.7", "1.0")),
    VariedOption("model.normalisation", ("sequence", "token", "constant")),
)
DPO = (
    VariedOption("data.wrong_scores", ("uniform", "near")),
    VariedOption("model.beta", ("0.1", "1.0")),
    VariedOption("model.sft_weight", ("1", "0.1")),
)
EXPECTED = (
    REWARDS,
    VariedOption("model.context", ("own", "true")),
    VariedOption("model.text_weight", ("1", "0")),
    VariedOption("model.score_weight", ("1", "3", "10")),
    VariedOption("model.variance_weight", ("1", "0.3", "0.1", "0")),
    VariedOption("model.entropy_weight", ("0", "0.02", "0.05")),
    VariedOption("model.optimizer.init_args.lr", ("2.0e-3", "6.0e-3")),
)
FINDINGS = """\
One seed, on the things on which options are chosen: differences of a point of BS may be chance. The seconds are those
of runs beside others.

- **Expected reward gains most from a weight on the entropy** of its distribution over the scores. With 0.05 the stated
  BS falls from 8.5 to 6.2 on given texts and from 8.1 to 5.8 free-form, and the ranks improve. `expected.yaml` has a
  weight of 0, which all other tables are about. A larger weight of the scores lowers ECE-M on given texts, with 10 at
  the cost of the ranks of free-form answers; less weight of the variance hardly matters.
- **Free-form answers need the term on the text.** Without it every answer of expected reward is malformed, and with a
  tenth of it a third of DPO's sentences are, while given texts show nothing of that.
- **GRPO learns more from the quadratic and the linear reward** than from the paper's, and with credit on the tag alone.
  The loss should use the sampling temperature: with a loss at temperature 1, a fifth of the tags break. Dividing
  advantages by the deviation of the batch instead of the group is worse.
- **DPO needs wrong scores from the whole scale**, as the paper draws them: with wrong scores near the true ones it is
  no better than a second epoch of SFT.
"""
"""What the tables show; to be read again whenever the benchmark is run again."""
ALONE = "base"
"""Label of a part that varies nothing."""


@dataclass(frozen=True)
class Part:
    """A recipe, and what is varied of it.

    Attributes:
        recipe: its file.
        varied: options that are varied, one at a time.
        flags: options that all runs of the part have.
        start: the stage whose adapter the runs start from.
        epochs: for GRPO, the number of times that its steps are taken.
    """

    recipe: str
    varied: tuple[VariedOption, ...] = ()
    flags: tuple[str, ...] = ()
    start: str = "sft"
    epochs: int = 1


def _scores(*weights: str) -> tuple[str, ...]:
    return tuple(f"--model.{weight}" for weight in weights)


PARTS = {
    "SFT-2": Part("sft2.yaml"),
    "DPO": Part("dpo.yaml", DPO),
    "GRPO": Part("grpo.yaml", GRPO),
    "GRPO, samples": Part("grpo.yaml", SAMPLING),
    "GRPO, 3 times the steps": Part("grpo.yaml", epochs=3),
    "GRPO, 3 times the steps, quadratic reward, credit on tags, scaled by the batch, loss at temperature 1": Part(
        "grpo.yaml",
        flags=(
            *("--model.reward", "lovec.rewards.QuadraticReward"),
            *("--model.credit=tag", "--model.scale_rewards=batch", "--model.loss_temperature=1.0"),
        ),
        epochs=3,
    ),
    "Expected reward": Part("expected.yaml", EXPECTED),
    "Expected reward, 3 epochs": Part("expected.yaml", flags=("--trainer.max_epochs=3",)),
    "Expected reward, score_weight 3, variance_weight 0.1": Part(
        "expected.yaml", flags=_scores("score_weight=3", "variance_weight=0.1")
    ),
    "Expected reward, score_weight 10, variance_weight 0.3": Part(
        "expected.yaml", flags=_scores("score_weight=10", "variance_weight=0.3")
    ),
    "Expected reward, score_weight 3, entropy_weight 0.02": Part(
        "expected.yaml", flags=_scores("score_weight=3", "entropy_weight=0.02")
    ),
    "Expected reward, score_weight 10, entropy_weight 0.02": Part(
        "expected.yaml", flags=_scores("score_weight=10", "entropy_weight=0.02")
    ),
    "Expected reward from SFT-2": Part("expected.yaml", flags=("--data.first_epoch=2",), start="sft2"),
    "Expected reward from SFT-2, score_weight 10, variance_weight 0.3": Part(
        "expected.yaml",
        flags=(*_scores("score_weight=10", "variance_weight=0.3"), "--data.first_epoch=2"),
        start="sft2",
    ),
}
"""Parts of the table by name."""

QUICK_STEPS = 2


def run(flags: argparse.Namespace) -> dict[str, Any]:
    """Train the adapters that runs start from unless they exist, then everything that starts from them."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch: on matrices this small more threads mostly wait
    from lovec.cli.training import execute

    origin = provenance()
    world = ["--config", "world-small.yaml"] if flags.quick else []
    adapters = {"sft": flags.sft or flags.out / "sft" / "adapter", "sft2": flags.sft2 or flags.out / "sft2" / "adapter"}
    steps = QUICK_STEPS if flags.quick else flags.steps
    needed = {PARTS[name].start for name in flags.parts}
    for stage, adapter in adapters.items():
        if not adapter.exists() and (stage in needed or stage == "sft"):
            folder = ["--trainer.default_root_dir", str(adapter.parent), "--trainer.limit_val_batches", "0"]
            start = [] if stage == "sft" else ["--model.policy.adapter", str(adapters["sft"])]
            cut = ["--trainer.max_steps", str(QUICK_STEPS)] if flags.quick else []
            execute("fit", ["--config", f"{stage}.yaml", *world, *start, *cut, *folder])
    rows = []
    for name in flags.parts:
        part = PARTS[name]
        words = ["--config", part.recipe, *world, *part.flags, "--model.policy.adapter", str(adapters[part.start])]
        if part.recipe == "grpo.yaml":
            length = ["--trainer.max_steps", str(steps * part.epochs), "--trainer.max_epochs", str(part.epochs)]
        else:
            length = ["--trainer.max_steps", str(QUICK_STEPS)] if flags.quick else []
        runs = plan([*words, *length], part.varied, flags.out, flags.seeds, jobs=flags.jobs)
        results = sweep(runs, flags.jobs)
        rows += [replace(row, method=label(name, row.method)) for row in results.rows]
        if flags.test:
            rows += tested(name, runs)
    return origin | {"variant": "world-small" if flags.quick else "world", "steps": steps, "rows": rows}


def label(part: str, variation: str) -> str:
    """Return the name of a line."""
    return part if variation == ALONE else f"{part}: {variation}"


def tested(part: str, runs: Sequence[SweepRun]) -> list[ResultRow]:
    """Measure the runs of a part on the things of the test split, unless that is done; rows have the kind "method"."""
    from lovec.cli.training import execute

    rows, first = [], {run.folder: run.label for run in reversed(runs)}
    for run in runs:
        if not (test_folder(run.folder) / "results.json").exists():
            plain = ["--model.evaluation.recalibrated", "false", "--model.evaluation.vanilla", "false"]
            where = ["--trainer.default_root_dir", str(run.folder), "--seed_everything", str(run.seed)]
            execute("test", [*run.words, *where, *plain])
        name = run.label if run.label == first[run.folder] else f"{run.label} (= {first[run.folder]})"
        found = read_results(test_folder(run.folder) / "results.json").rows
        measured = [row for row in found if row.kind == "method" and row.domain == "in-domain"]
        seconds = read_results(run.result).rows[0].metrics["seconds"]
        for row in measured:
            metrics = {**row.metrics, "seconds": seconds}
            rows.append(replace(row, method=label(part, name), seed=run.seed, options=run.flags, metrics=metrics))
    return rows


def page(results: Mapping[str, Any], diagnosis: Mapping[str, Any] | None = None) -> str:
    """Return docs/results/ablation.md: the tables, why they are so, and what they were made of.

    Args:
        results: what this benchmark wrote.
        diagnosis: what ``diagnosis.py`` wrote; None where it has not run.
    """
    from diagnosis_page import section

    from lovec.reports.diagnostic_tables import sweep_table
    from lovec.reports.table import markdown

    rows = results["rows"]
    dev = [row for row in rows if row.kind == "variation"]
    test = [row for row in rows if row.kind == "method"]
    lines = [
        "# Options of the objectives, compared",
        "",
        "Written by `benchmarks/ablation.py`; all rows are in `benchmarks/results/ablation.json`. Each line "
        "changes one option of a recipe, such as `grpo.yaml` or `expected.yaml`, whose own values are the line "
        "`base`; a line that names the same value again repeats its metrics. Unless a line says otherwise, all runs "
        f"start from one SFT adapter, and GRPO runs take {results['steps']} steps.",
        "",
        markdown(sweep_table(dev, "Sentences of the dev things, stated scores"), intervals=True),
    ]
    if test:
        table = sweep_table(test, "Sentences of the test things, stated scores")
        notes = (table.notes[0].replace("Validation records", "Test records"), *table.notes[1:])
        lines += ["Options were chosen on the dev things alone.", "", markdown(replace(table, notes=notes), True)]
    lines += [FINDINGS] if results["variant"] == "world" else []
    lines += [f"Seeds: {', '.join(map(str, seeds_of(rows)))}. {world_text(results)}.", ""]
    if diagnosis is not None:
        lines.append(section(diagnosis))
    return "\n".join(lines)


def diagnosed_page(results: Mapping[str, Any]) -> str:
    """Return the page with the diagnosis, where that has run; a trial, on the small world, has none."""
    known = DIAGNOSIS.exists() and results["variant"] == "world"
    return page(results, read_json(DIAGNOSIS) if known else None)


def main() -> None:
    """Run the benchmark as the command line says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--seeds", type=int, nargs="+", default=[0], help="seeds of the runs; their start stays the same"
    )
    parser.add_argument("--steps", type=int, default=60, help="optimiser steps of a GRPO run")
    parser.add_argument("--sft", type=Path, help="adapter to start from; without it one is trained in --out")
    parser.add_argument("--sft2", type=Path, help="the same after a second epoch of SFT")
    parser.add_argument("--parts", nargs="+", default=list(PARTS), choices=list(PARTS), help="parts of the table")
    parser.add_argument("--test", action="store_true", help="measure all runs on the test things as well")
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time")
    parser.add_argument("--out", type=Path, default=ROOT / "runs" / "ablation", help="folder of the runs")
    run_or_try(parser, run, diagnosed_page, RESULTS, PAGE)


if __name__ == "__main__":
    main()
