"""The methods that ``lovec demo`` trains and compares."""

from __future__ import annotations

from dataclasses import dataclass

from .errors import unknown


@dataclass(frozen=True, slots=True)
class Method:
    """One run of the demo.

    Attributes:
        name: name of its recipe, of its folder, and for ``--methods``.
        rows: the rows of its test that the demo shows, by their method.
        description: what it does, for the line that announces it.
        seconds: processor time of its training, roughly; where several run at a time, the longest begin first.
        extra: whether it runs only if it is asked for.
    """

    name: str
    rows: tuple[str, ...]
    description: str
    seconds: int
    extra: bool = False


METHODS = (
    Method(
        "sft",
        ("Vanilla", "Best constant", "SFT", "SFT + isotonic"),
        "SFT: learn to write tags, on true scores",
        40,
    ),
    Method("sft2", ("SFT-2",), "SFT, a second epoch: what the others must beat", 40, extra=True),
    Method("orpo", ("ORPO",), "ORPO: prefer true scores to wrong ones, without a reference", 70, extra=True),
    Method("dpo", ("DPO",), "DPO: prefer true scores to wrong ones", 90),
    Method("grpo", ("GRPO",), "GRPO: write answers, learn from what their scores were worth", 120),
    Method(
        "expected", ("ExpectedReward",), "Expected reward: learn from what each score would be worth", 100, extra=True
    ),
    Method(
        "distil", ("Distil",), "Distil: learn to state a calibrated blend of estimates of the training answers", 110
    ),
)
"""Runs in their order; the first writes the adapter that all others start from."""

FIRST = METHODS[0].name
ORDER = tuple(row for method in METHODS for row in method.rows)
TRAINED = {method.rows[0] if method.name != FIRST else "SFT": method.name for method in METHODS}
"""The run of every trained method, by the method of its rows."""


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
