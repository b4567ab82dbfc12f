"""Running times of a run's methods per answer, so that methods timed on different numbers of answers compare."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import mean, median
from typing import Any

from lovec.reports.runs import RunResults
from lovec.reports.texts import MODE_TITLES

_NOT_NEEDED = {"free-form": ("scoring",)}  # phases that only fill in the distributions over scores


@dataclass(frozen=True, slots=True)
class Timing:
    """How long a method took per answer; medians where it was timed several times.

    Attributes:
        method: name in the rows.
        mode: evaluation mode.
        kind: kind of its rows, or "answers" for plain answers without tags.
        seconds: wall seconds per answer, by phase.
        records: number of answers that were timed.
        prefill_tokens: tokens per answer that went through the model as context.
        runs: how many times it was timed.
        spread: lowest and highest total over these times, see ``total``.
        processes: how many processes of the same command shared the machine meanwhile, at most.
    """

    method: str
    mode: str
    kind: str
    seconds: Mapping[str, float]
    records: int
    prefill_tokens: float
    runs: int
    spread: tuple[float, float]
    processes: int = 1

    @property
    def needed(self) -> dict[str, float]:
        """The seconds that a tagged answer needs, by phase; free-form tagging does not need the distributions."""
        return {phase: spent for phase, spent in self.seconds.items() if phase not in _NOT_NEEDED.get(self.mode, ())}

    @property
    def total(self) -> float:
        """Wall seconds that a tagged answer needs."""
        return sum(self.needed.values())


def timings(run: RunResults) -> list[Timing]:
    """Return the timing of every method and mode in the order in which they were measured, without empty ones."""
    places: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for entry in run.times:
        if entry["records"] and entry["mode"] in MODE_TITLES and sum(entry["seconds"].values()) > 0:
            places.setdefault((entry["method"], entry["mode"]), []).append(entry)
    return [_timing(*place, entries) for place, entries in places.items()]


def plain_answer_seconds(all_timings: Iterable[Timing]) -> float | None:
    """Return the seconds of a plain answer, which iterative tagging and baselines wait for; None if not timed."""
    return next((timing.total for timing in all_timings if timing.kind == "answers"), None)


def free_form_seconds(all_timings: Iterable[Timing]) -> float | None:
    """Return the seconds of an answer in free-form tagging, the mean over trained methods; None without any."""
    totals = [timing.total for timing in all_timings if (timing.mode, timing.kind) == ("free-form", "method")]
    return mean(totals) if any(totals) else None


def conditions(all_timings: Iterable[Timing]) -> str:
    """Return a sentence on what else ran while times were taken; "" where nothing of the same command did."""
    processes = max((timing.processes for timing in all_timings), default=1)
    if processes < 2:
        return ""
    return f"Taken while up to {processes} processes of one command shared the machine: alone, each may be faster."


def _timing(method: str, mode: str, entries: Sequence[Mapping[str, Any]]) -> Timing:
    """Return the medians of what was measured for one method and mode."""
    phases = dict.fromkeys(phase for entry in entries for phase in entry["seconds"])
    seconds = {p: median(entry["seconds"].get(p, 0.0) / entry["records"] for entry in entries) for p in phases}
    records = round(median(entry["records"] for entry in entries))
    prefill_tokens = median(entry["prefill_tokens"] / entry["records"] for entry in entries)
    needed = [phase for phase in phases if phase not in _NOT_NEEDED.get(mode, ())]
    totals = [sum(entry["seconds"].get(p, 0.0) for p in needed) / entry["records"] for entry in entries]
    spread = min(totals), max(totals)
    kind, processes = entries[0]["kind"], max(entry.get("processes", 1) for entry in entries)
    return Timing(method, mode, kind, seconds, records, prefill_tokens, len(entries), spread, processes)
