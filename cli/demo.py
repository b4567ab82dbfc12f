"""``lovec demo``: the whole method on the embedded world, by the same recipes and commands that users run."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path

from lovec.types import check_seed

from .console import locked, quiet, say
from .errors import unknown
from .parser import OneLineParser


@dataclass(frozen=True, slots=True)
class Method:
    """One run of the demo.

    Attributes:
        name: name of its recipe, of its folder, and for ``--methods``.
        rows: the rows of its test that the demo shows, by their method.
        description: what it does, for the line that announces it.
        slow: whether it takes long and runs only if it is asked for.
    """

    name: str
    rows: tuple[str, ...]
    description: str
    slow: bool = False


METHODS = (
    Method(
        "sft",
        ("Vanilla", "Best constant", "SFT", "SFT + isotonic"),
        "SFT: learn to write tags, on true scores; test it, the untrained model and the best constant",
    ),
    Method("sft2", ("SFT-2",), "SFT, a second epoch: what the others must beat"),
    Method("orpo", ("ORPO",), "ORPO: prefer true scores to wrong ones, without a reference"),
    Method("dpo", ("DPO",), "DPO: prefer true scores to wrong ones"),
    Method("grpo", ("GRPO",), "GRPO: write answers, learn from what their scores were worth", slow=True),
    Method("expected", ("ExpectedReward",), "Expected reward: learn from what every score would be worth"),
)
"""Runs in their order; the first writes the adapter that all others start from."""

FIRST = METHODS[0].name
ORDER = tuple(row for method in METHODS for row in method.rows)


def run(words: list[str]) -> None:
    """Train SFT, then every other method on top of it, test them, and print one table with what they must beat.

    Args:
        words: the command line after ``demo``.
    """
    parser = OneLineParser("demo", "Train and compare on the embedded world, offline, on a CPU.")
    parser.add_argument("--quick", action="store_true", help="a smaller world: half as long, and worse results")
    parser.add_argument("--full", action="store_true", help="also GRPO, which takes longest")
    names = ", ".join(method.name for method in METHODS)
    parser.add_argument("--methods", help=f"comma list of {names}; {FIRST} always runs; null is all but grpo")
    parser.add_argument("--seed", type=int, default=0, help="seed of training; the world itself stays the same")
    parser.add_argument("--out", type=Path, default=Path("runs/demo"), help="folder for what the runs write")
    options = parser.read(words)
    check_seed("--seed", options.seed)
    methods = chosen(options.methods, options.full)
    begin = time.monotonic()
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch: on matrices this small more threads mostly wait
    from lovec.datasets.world import ensure_world
    from lovec.files import check_writable
    from lovec.reports import print_results
    from lovec.results import write_results
    from lovec.types import ResultRow

    from .training import execute

    variant = "world-small" if options.quick else "world"
    overlay = ["--config", "world-small.yaml"] if options.quick else []

    def stage(command: str, name: str, *flags: str) -> list[ResultRow]:
        flags = ("--trainer.enable_model_summary", "false", *flags)
        folder = ["--trainer.default_root_dir", str(options.out / name), "--seed_everything", str(options.seed)]
        cli = execute(command, ["--config", f"{name}.yaml", *overlay, *folder, *flags])
        return list(cli.model.results)

    rows: list[ResultRow] = []
    with locked(options.out, folder=True), quiet():
        check_writable(options.out)
        say(f"1/{len(methods) + 1}  the world and its model ({variant}; built once, then cached)")
        ensure_world(variant)
        for number, method in enumerate(methods, start=2):
            say(f"{number}/{len(methods) + 1}  {method.description}")
            first = method.name == FIRST
            start = [] if first else ["--model.policy.adapter", str(options.out / FIRST / "adapter")]
            stage("fit", method.name, "--trainer.limit_val_batches", "0", *start)
            tested = stage("test", method.name, "--model.evaluation.vanilla", str(first).lower())
            rows += [row for row in tested if row.method in method.rows]

    rows.sort(key=lambda row: ORDER.index(row.method))
    sentences = [row for row in rows if row.level == "sentence"]
    print_results(sentences, title=f"\nlovec demo: {variant}, seed {options.seed}, {time.monotonic() - begin:.0f} s")
    path = write_results(options.out / "results.json", rows)
    print(f"all rows are in {path}; adapters, logs and tagged answers are in {options.out}")
    print(f"`lovec report {options.out}` writes tables, plots and a page of them")


def chosen(names: str | None, full: bool) -> list[Method]:
    """Return the methods to run, in their order: those named, or all but the slow ones, or all.

    Raises:
        UsageError: there is no such method.
    """
    if names is None:
        return [method for method in METHODS if full or not method.slow]
    selected = {FIRST, *names.split(",")}
    known = [method.name for method in METHODS]
    for name in sorted(selected - set(known)):
        raise unknown("method", name, known, listed=True)
    return [method for method in METHODS if method.name in selected]
