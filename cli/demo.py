"""``lovec demo``: the whole method on the embedded world, by the same recipes and commands that users run."""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from .plain import PlainParser

ORDER = ("Vanilla", "Best constant", "SFT", "DPO")


def run(words: list[str]) -> None:
    """Trains SFT, then DPO on top of it, tests both, and prints one table with what they must beat.

    Args:
        words: the command line after ``demo``.
    """
    parser = PlainParser("demo", "Train and compare on the embedded world, offline, on a CPU.")
    parser.add_argument("--quick", action="store_true", help="a smaller world: under three minutes, and worse figures")
    parser.add_argument("--seed", type=int, default=0, help="of training; the world itself stays the same")
    parser.add_argument("--out", type=Path, default=Path("runs/demo"), help="folder for what the runs write")
    options = parser.read(words)
    begin = time.monotonic()
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch: on matrices this small more threads mostly wait
    from lovec.datasets.world import ensure_world
    from lovec.reports import print_table, write_results

    from .training import execute

    variant = "world-small" if options.quick else "world"
    overlay = ["--config", "world-small.yaml"] if options.quick else []

    def stage(command: str, name: str, *flags: str) -> list[dict[str, Any]]:
        flags = ("--trainer.enable_model_summary", "false", *flags)
        folder = ["--trainer.default_root_dir", str(options.out / name), "--seed_everything", str(options.seed)]
        cli = execute(command, ["--config", f"{name}.yaml", *overlay, *folder, *flags])
        return list(cli.model.results)

    with _quiet():
        _say(f"1/5  the world and its model ({variant}; built once, then cached)")
        ensure_world(variant)
        _say("2/5  SFT: learn to write tags, on true scores")
        stage("fit", "sft", "--trainer.limit_val_batches", "0")
        _say("3/5  DPO: prefer true scores to wrong ones")
        start = ["--model.policy.adapter", str(options.out / "sft" / "adapter")]
        stage("fit", "dpo", "--trainer.limit_val_batches", "0", *start)
        _say("4/5  test: SFT, the untrained model, the best constant")
        rows = stage("test", "sft")
        _say("5/5  test: DPO")
        rows += stage("test", "dpo", "--model.evaluation.vanilla", "false")

    found = {(row["method"], row["domain"], row["mode"], row["level"], row["readout"]): row for row in rows}
    rows = sorted(found.values(), key=lambda row: ORDER.index(row["method"]))
    path = write_results(rows, options.out / "results.json")
    sentences = sorted((row for row in rows if row["level"] == "sentence"), key=lambda row: str(row["readout"]))
    print_table(sentences, title=f"\nlovec demo: {variant}, seed {options.seed}, {time.monotonic() - begin:.0f} s")
    print(f"all rows are in {path}; adapters, logs and tagged answers are in {options.out}")


@contextmanager
def _quiet() -> Iterator[None]:
    """Inside: no bars for loading a tiny model, and not the same lines about the machine at every stage."""
    from transformers.utils.logging import disable_progress_bar, enable_progress_bar

    logger = logging.getLogger("lightning.pytorch")
    before = logger.level
    logger.setLevel(logging.WARNING)
    disable_progress_bar()
    try:
        yield
    finally:
        logger.setLevel(before)
        enable_progress_bar()


def _say(line: str) -> None:
    print(f"\n{line}", file=sys.stderr, flush=True)
