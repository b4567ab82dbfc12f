"""``lovec demo``: the whole method on the embedded world, by the same recipes and commands that users run."""

from __future__ import annotations

import contextlib
import io
import json
import os
import shutil
import sys
import textwrap
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lovec.types import ITERATIVE, LovecError, check_seed

from .console import locked, quiet, say, say_next
from .errors import unknown
from .parser import OneLineParser

if TYPE_CHECKING:
    from lovec.types import ResultRow


@dataclass(frozen=True, slots=True)
class Method:
    """One run of the demo.

    Attributes:
        name: name of its recipe, of its folder, and for ``--methods``.
        rows: the rows of its test that the demo shows, by their method.
        description: what it does, for the line that announces it.
        extra: whether it runs only if it is asked for.
    """

    name: str
    rows: tuple[str, ...]
    description: str
    extra: bool = False


METHODS = (
    Method(
        "sft",
        ("Vanilla", "Best constant", "SFT", "SFT + isotonic"),
        "SFT: learn to write tags, on true scores; test it, the untrained model and the best constant",
    ),
    Method("sft2", ("SFT-2",), "SFT, a second epoch: what the others must beat", extra=True),
    Method("orpo", ("ORPO",), "ORPO: prefer true scores to wrong ones, without a reference", extra=True),
    Method("dpo", ("DPO",), "DPO: prefer true scores to wrong ones"),
    Method("grpo", ("GRPO",), "GRPO: write answers, learn from what their scores were worth", extra=True),
    Method("expected", ("ExpectedReward",), "Expected reward: learn from what every score would be worth"),
    Method("distil", ("Distil",), "Distil: learn to state a calibrated blend of estimates of the training answers"),
)
"""Runs in their order; the first writes the adapter that all others start from."""

FIRST = METHODS[0].name
ORDER = tuple(row for method in METHODS for row in method.rows)
TRAINED = {method.rows[0] if method.name != FIRST else "SFT": method.name for method in METHODS}
"""The run of every trained method, by the method of its rows."""

_STATE = "demo.json"


@dataclass
class State:
    """What a demo has done so far, kept in a file of its folder, so that a second call goes on from there.

    Attributes:
        folder: folder of the demo.
        settings: what all its stages depend on; a demo with other settings cannot go on.
        done: stages that are finished, such as "fit sft".
        begun: trainings that were started.
    """

    folder: Path
    settings: dict[str, Any]
    done: list[str] = field(default_factory=list)
    begun: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, folder: Path, settings: dict[str, Any], redo: bool) -> State:
        """Return the state of the demo in a folder.

        Args:
            folder: folder of the demo.
            settings: what all its stages depend on.
            redo: whether to remove what an earlier demo has left there, and begin anew.

        Raises:
            LovecError: the folder holds a demo with other settings, or runs that no demo has recorded.
        """
        ours = [folder / method.name for method in METHODS] + [folder / _STATE, folder / "results.json"]
        path = folder / _STATE
        state = cls(folder, settings)
        if redo:
            for one in ours:
                shutil.rmtree(one) if one.is_dir() else one.unlink(missing_ok=True)
        elif path.exists():
            try:
                saved = json.loads(path.read_text(encoding="utf-8"))
                found, state.done, state.begun = dict(saved["settings"]), list(saved["done"]), list(saved["begun"])
            except (ValueError, KeyError, TypeError):
                raise LovecError(f"{path} cannot be read; give --redo to begin anew, or another --out") from None
            if changed := [name for name in settings if settings[name] != found.get(name)]:
                was = ", ".join(f"{name} {found.get(name)}" for name in changed)
                now = ", ".join(f"{name} {settings[name]}" for name in changed)
                raise LovecError(
                    f"{folder} holds a demo with {was}, and this one has {now}; give another --out, or --redo to "
                    "replace it"
                )
        elif taken := [one for one in ours if one.exists()]:
            raise LovecError(
                f"{taken[0]} is there, and no demo has recorded how it was made; give another --out, or --redo to "
                "replace it"
            )
        return state

    def holds(self, stage: str, file: Path) -> bool:
        """Return whether a stage is finished, and the file that it makes is still there."""
        return stage in self.done and file.exists()

    def forget(self, name: str) -> None:
        """Forget the test of a method that is trained anew; after the first one, all others, which start from it."""
        self.done = [] if name == FIRST else [stage for stage in self.done if stage != f"test {name}"]

    def add(self, done: str | None = None, begun: str | None = None) -> None:
        """Record a stage."""
        from lovec.files import write_text

        self.done += [done] if done and done not in self.done else []
        self.begun += [begun] if begun and begun not in self.begun else []
        saved = {"settings": self.settings, "done": self.done, "begun": self.begun}
        write_text(self.folder / _STATE, json.dumps(saved, indent=1) + "\n")


def run(words: list[str]) -> None:
    """Train SFT, then every other method on top of it, test them, and say what they show.

    Args:
        words: the command line after ``demo``.

    Raises:
        LovecError: the folder holds something else, or a stage failed.
    """
    parser = OneLineParser("demo", "Train and compare on the embedded world, offline, on a CPU.")
    parser.add_argument("--world", default="world", metavar="NAME", help="the embedded world: world, world-1, world-2")
    parser.add_argument(
        "--quick",
        action="store_const",
        const="world-small",
        dest="world",
        help="a smaller world: half as long, and worse results",
    )
    parser.add_argument("--full", action="store_true", help="all methods; without it, those that show most")
    names = ", ".join(method.name for method in METHODS)
    parser.add_argument("--methods", help=f"comma list of {names}; {FIRST} always runs")
    parser.add_argument("--seed", type=int, default=0, help="seed of training; the world itself stays the same")
    parser.add_argument("--out", type=Path, default=Path("runs/demo"), help="folder for what the runs write")
    parser.add_argument("--redo", action="store_true", help="begin anew, in place of what an earlier demo has left")
    options = parser.read(words)
    check_seed("--seed", options.seed)
    methods = chosen(options.methods, options.full)
    begin = time.monotonic()
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch: on matrices this small more threads mostly wait
    from lovec.datasets.world import ensure_world
    from lovec.datasets.world.variants import spec_of
    from lovec.files import check_writable
    from lovec.reports import print_results
    from lovec.results import read_results, write_results

    variant = options.world
    spec_of(variant)
    last = len(methods) + 2
    rows: list[ResultRow] = []
    with locked(options.out, folder=True), quiet():
        check_writable(options.out)
        state = State.of(options.out, {"world": variant, "seed": options.seed}, options.redo)
        say(f"1/{last}  the world and its model ({variant})")
        ensure_world(variant)
        for number, method in enumerate(methods, start=2):
            say(f"{number}/{last}  {method.description}")
            folder = options.out / method.name
            results = folder / "test" / variant / "results.json"
            if not state.holds(f"fit {method.name}", folder / "adapter" / "adapter_model.safetensors"):
                _fit(method.name, state, variant)
            elif state.holds(f"test {method.name}", results):
                _note("done by an earlier call")
            if not state.holds(f"test {method.name}", results):  # nor after another training
                _execute("test", method.name, state, variant)
                state.add(done=f"test {method.name}")
            rows += [row for row in read_results(results).rows if row.method in method.rows]
        say(f"{last}/{last}  the report")
        rows.sort(key=lambda row: ORDER.index(row.method))
        write_results(options.out / "results.json", rows)
        report = _report(options.out)

    shown = [row for row in main_rows(rows) if row.level == "sentence" and row.readout == "stated"]
    print_results(shown, title=f"\nlovec demo: {variant}, seed {options.seed}, {time.monotonic() - begin:.0f} s")
    print("\n" + textwrap.fill(story(shown), 80) + "\n")
    print(f"the report, with every table, plot and tagged answer: {report}")
    print(f"adapters, logs and tagged answers: {options.out}")
    best = options.out / TRAINED.get(best_method(shown) or "SFT", FIRST)
    say_next(
        (f"lovec serve --adapter {best}", "a page to try it, and an endpoint"),
        (f"lovec tag page.txt --adapter {best}", "a confidence for each sentence of a text"),
        (f"lovec calibrate {best}", "fit confidences to how often sentences are true"),
    )


def _execute(command: str, name: str, state: State, variant: str, *flags: str) -> None:
    """Run a command of the trainer with a recipe."""
    from .training import execute

    overlay = ["--config", "world-small.yaml"] if variant == "world-small" else []
    if not overlay and variant != "world":
        flags = ("--model.policy.model", variant, "--data.variant", variant, *flags)
    if command == "test":
        flags = (*flags, "--model.evaluation.vanilla", str(name == FIRST).lower())
    home = ["--trainer.default_root_dir", str(state.folder / name), "--seed_everything", str(state.settings["seed"])]
    execute(command, ["--config", f"{name}.yaml", *overlay, *home, *flags])


def _fit(name: str, state: State, variant: str) -> None:
    """Train a method; a training that was stopped goes on from its last checkpoint, or begins again without one."""
    from .resume import checkpoints_in

    stage, folder = f"fit {name}", state.folder / name
    flags = ["--trainer.limit_val_batches", "0"]
    if name != FIRST:
        flags += ["--model.policy.adapter", str(state.folder / FIRST / "adapter")]
    if stage in state.begun:
        if found := checkpoints_in(folder):
            path, checkpoint = found[-1]
            _note(f"goes on from step {checkpoint['global_step']}, where an earlier call was stopped")
            flags += ["--ckpt_path", str(path)]
        else:
            _note("begins again: an earlier call was stopped before its first checkpoint")
    state.forget(name)
    state.add(begun=stage)
    _execute("fit", name, state, variant, *flags)
    state.add(done=stage)


def _note(line: str) -> None:
    print(f"     {line}", file=sys.stderr, flush=True)


def _report(folder: Path) -> Path:
    """Write the report of all runs and return its page; its table is not printed, for the demo prints its own."""
    from . import report

    with contextlib.redirect_stdout(io.StringIO()):
        report.run([str(folder)], last=False)
    return folder / "report" / "index.html"


def main_rows(rows: Sequence[ResultRow]) -> list[ResultRow]:
    """Return the rows of the first domain: the things of the kinds that training is about."""
    return [row for row in rows if row.domain == rows[0].domain]


def best_method(rows: Sequence[ResultRow]) -> str | None:
    """Return the trained method with the lowest Brier score on given texts; None if there is none."""
    found = [row for row in rows if row.mode == ITERATIVE and row.method in TRAINED]
    found = [row for row in found if row.metrics.get("brier") is not None]
    return min(found, key=lambda row: row.metrics["brier"] or 0.0).method if found else None


def story(rows: Sequence[ResultRow]) -> str:
    """Return in two sentences what results show: of the untrained model and the best method, on given texts.

    Args:
        rows: one per method and mode, of the same records, level and readout.
    """
    given = {row.method: row.metrics for row in rows if row.mode == ITERATIVE}
    name = best_method(rows)
    if name is None or "Vanilla" not in given:
        return "Nothing to tell: no trained method and untrained model were measured on the same texts."
    before, after, constant = given["Vanilla"], given[name], given.get("Best constant")
    first = (
        f"The untrained model states a confidence of {_percent(before['mean_confidence'])} on average where "
        f"{_percent(before['mean_factuality'])} is true: a mean squared error (Brier score, BS) of "
        f"{_percent(before['brier'])}"
    )
    if constant:
        first += f", while one fixed number for every sentence would have {_percent(constant['brier'])}"
    second = f"Trained with {name}, it states {_percent(after['mean_confidence'])}, has {_percent(after['brier'])}"
    if (order := after.get("spearman")) is not None:
        ranks = (
            "puts true sentences above wrong ones" if order >= 0.3 else "hardly tells true sentences from wrong ones"
        )
        second += f", and {ranks} (rank correlation with the truth, SC: {100 * order:.0f} of 100)"
    if constant and (constant["brier"] or 0.0) <= (after["brier"] or 0.0):
        second += ", yet that is no better than the fixed number"
    return f"{first}. {second}."


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.1f} %"


def chosen(names: str | None, full: bool) -> list[Method]:
    """Return the methods to run, in their order: those named, or the main ones, or all.

    Raises:
        UsageError: there is no such method.
    """
    if names is None:
        return [method for method in METHODS if full or not method.extra]
    selected = {FIRST, *names.split(",")}
    known = [method.name for method in METHODS]
    for name in sorted(selected - set(known)):
        raise unknown("method", name, known, listed=True)
    return [method for method in METHODS if method.name in selected]
