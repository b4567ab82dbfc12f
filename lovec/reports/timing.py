"""Running times of a run's methods, an answer each, so that methods measured on different numbers can be compared."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from lovec.reports.cells import MODES
from lovec.reports.runs import Run

_UNUSED = {"free-form": ("scoring",)}  # distributions over the scores, which an answer with its tags does not need


@dataclass(frozen=True, slots=True)
class Timing:
    """What an answer took a method.

    Attributes:
        method: what rows call it.
        mode: evaluation mode.
        kind: of its rows, or "answers" for plain answers without tags.
        seconds: wall seconds an answer, by phase.
        records: answers that were timed.
        prefill_tokens: tokens an answer that went through the model as context.
        runs: how many times it was timed; figures are the medians.
    """

    method: str
    mode: str
    kind: str
    seconds: Mapping[str, float]
    records: int
    prefill_tokens: float
    runs: int

    @property
    def needed(self) -> dict[str, float]:
        """The seconds that tagging an answer needs; free-form tagging does not need its distributions."""
        return {phase: spent for phase, spent in self.seconds.items() if phase not in _UNUSED.get(self.mode, ())}

    @property
    def total(self) -> float:
        """Wall seconds that tagging an answer needs."""
        return sum(self.needed.values())


def timings(run: Run) -> list[Timing]:
    """What an answer took every method and mode, in the order measured; empty entries are left out."""
    places: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for entry in run.times:
        if entry["records"] and entry["mode"] in MODES and sum(entry["seconds"].values()) > 0:
            places.setdefault((entry["method"], entry["mode"]), []).append(entry)
    return [_timing(method, mode, entries) for (method, mode), entries in places.items()]


def plain_answer(found: list[Timing]) -> float | None:
    """Seconds of a plain answer, which iterative tagging and baselines need before they begin; None where not timed."""
    return next((timing.total for timing in found if timing.kind == "answers"), None)


def free_form(found: list[Timing]) -> float | None:
    """Seconds of an answer by free-form tagging, the mean over trained methods; None where there is none."""
    own = [timing.total for timing in found if timing.mode == "free-form" and timing.kind == "method"]
    return statistics.mean(own) if own and statistics.mean(own) > 0 else None


def _timing(method: str, mode: str, entries: list[dict[str, Any]]) -> Timing:
    phases = dict.fromkeys(phase for entry in entries for phase in entry["seconds"])
    seconds = {
        phase: statistics.median(entry["seconds"].get(phase, 0.0) / entry["records"] for entry in entries)
        for phase in phases
    }
    return Timing(
        method,
        mode,
        str(entries[0].get("kind", "method")),
        seconds,
        round(statistics.median(entry["records"] for entry in entries)),
        statistics.median(entry.get("prefill_tokens", 0) / entry["records"] for entry in entries),
        len(entries),
    )
