"""The methods that ``lovec demo`` trains and compares, and the data sets that it does this on."""

from __future__ import annotations

from dataclasses import dataclass

from .errors import unknown

ATLAS = "atlas"
"""Name of the demo's data set of real things."""

TABLES = "GeoNames"
"""Whose tables say what is true of Atlas."""


@dataclass(frozen=True, slots=True)
class Method:
    """One run of the demo.

    Attributes:
        name: name of its recipe, of its folder, and for ``--methods``.
        rows: the rows of its test that the demo shows, by their method.
        description: what it does, for the line that announces it.
        seconds: processor time of its training on the world, roughly; where several run at a time, the longest begin
            first.
        step: processor time of one step on Atlas, roughly, in seconds.
        steps: steps of its training on Atlas.
        extra: whether it runs on the world only if it is asked for.
        real: whether it runs on Atlas without being asked for.
    """

    name: str
    rows: tuple[str, ...]
    description: str
    seconds: int
    step: int
    steps: int
    extra: bool = False
    real: bool = False

    def in_demo(self, data: str) -> bool:
        """Return whether the demo on a data set runs it without being asked for it."""
        return self.real if data == ATLAS else not self.extra


METHODS = (
    Method(
        "sft",
        ("Vanilla", "Best constant", "SFT", "SFT + isotonic"),
        "SFT: learn to write tags, on true scores",
        seconds=40,
        step=12,
        steps=16,
        real=True,
    ),
    Method(
        "sft2",
        ("SFT-2",),
        "SFT, a second epoch: what the others must beat",
        seconds=40,
        step=12,
        steps=16,
        extra=True,
    ),
    Method(
        "orpo",
        ("ORPO",),
        "ORPO: prefer true scores to wrong ones, without a reference",
        seconds=70,
        step=25,
        steps=16,
        extra=True,
    ),
    Method("dpo", ("DPO",), "DPO: prefer true scores to wrong ones", seconds=90, step=30, steps=16),
    Method(
        "grpo",
        ("GRPO",),
        "GRPO: write answers, learn from what their scores were worth",
        seconds=120,
        step=200,
        steps=8,
    ),
    Method(
        "expected",
        ("ExpectedReward",),
        "Expected reward: learn from what each score would be worth",
        seconds=100,
        step=20,
        steps=24,
        extra=True,
    ),
    Method(
        "distil",
        ("Distil",),
        "Distil: learn to state estimates of how true the training answers are",
        seconds=110,
        step=12,
        steps=40,
        real=True,
    ),
)
"""Runs in their order; the first writes the adapter that all others start from."""

FIRST = METHODS[0].name
ORDER = tuple(row for method in METHODS for row in method.rows)
TRAINED = {method.rows[0] if method.name != FIRST else "SFT": method.name for method in METHODS}
"""The run of every trained method, by the method of its rows."""


# Probes write answers: minutes with a real model; of SFT they warn, rightly, that it is too sure, as its test shows.
_UNPROBED = ("--trainer.callbacks+", "lovec.callbacks.Probe", "--trainer.callbacks.every", "0")
_ATLAS_FIT = ("--trainer.log_every_n_steps", "1")
_ATLAS_TEST = (  # a fifth of the test cities, from large to small, and given texts only
    *("--model.evaluation.modes", "[iterative]", "--model.evaluation.recalibrated", "false"),
    *("--data.test_every", "5", "--data.eval_batch_size", "12"),
    *("--model.evaluation.scoring_check", "0"),  # trainings as short close tags less surely than those of the tables
)
_TEST = 70  # processor time of a test of one model on Atlas, roughly, in seconds
_ATLAS_OF = {
    "expected": ("--model.score_weight", "5.0"),
    "distil": (  # the teachers of the recipe compare several answers to a question, of which Atlas has one
        *("--model.teacher", "lovec.teachers.BaselineTeacher"),
        *("--model.teacher.baseline", "lovec.baselines.LinearProbe"),
        *("--model.teacher.baseline.layers", "[12,16,20]"),
        *("--model.score_weight", "5.0", "--model.text_weight", "1.0"),
    ),
}


def overlay(data: str, method: Method, fit: bool) -> list[str]:
    """Return the options of a stage that its data set needs.

    Args:
        data: name of the data set: ``ATLAS``, or that of a world.
        method: the method.
        fit: whether it is trained, and not tested.
    """
    unprobed = [*_UNPROBED] if fit and (data == ATLAS or method.name == FIRST) else []
    if data == ATLAS:
        words = ["--config", "atlas.yaml", *(_ATLAS_FIT if fit else _ATLAS_TEST), *unprobed]
        return words + [*_ATLAS_OF.get(method.name, ()), "--trainer.max_steps", str(method.steps)] * fit
    if data == "world-small":
        return ["--config", "world-small.yaml", *unprobed]
    return unprobed if data == "world" else ["--model.policy.model", data, "--data.variant", data, *unprobed]


def announced(method: Method, data: str, processors: int) -> str:
    """Return the line that announces a training, on Atlas with how long it takes."""
    if data != ATLAS:
        return method.description
    return f"{method.description} ({method.steps} steps, about {_minutes(method.step * method.steps, processors)})"


def announced_test(method: Method, data: str, processors: int) -> str:
    """Return the line that announces a test, on Atlas with how long it takes."""
    first = method.name == FIRST
    line = f"test of {method.name}{', the untrained model and the best constant' * first}"
    return line if data != ATLAS else f"{line} (about {_minutes(_TEST * (1 + first), processors)})"


def _minutes(seconds: int, processors: int) -> str:
    """Return processor time as the minutes that it takes, at least one."""
    count = max(1, round(seconds / processors / 60))
    return f"{count} minute{'s' * (count > 1)}"


def chosen(names: str | None, full: bool, data: str) -> list[Method]:
    """Return the methods to run, in their order: those named, or the main ones of a data set, or all.

    Raises:
        UsageError: there is no such method.
    """
    if names is None:
        return [method for method in METHODS if full or method.in_demo(data)]
    selected = {FIRST, *names.split(",")}
    known = [method.name for method in METHODS]
    for name in sorted(selected - set(known)):
        raise unknown("method", name, known, listed=True)
    return [method for method in METHODS if method.name in selected]
