"""Running times of a run's methods per answer, so that those timed on different numbers of answers compare."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, median
from typing import TYPE_CHECKING, Any, TypeAlias

from lovec.reports.runs import RunResults
from lovec.reports.style import (
    COLOURS,
    GROUND,
    INK,
    FilePath,
    add_title,
    fitting,
    legend_columns,
    short,
    text_inches,
    write_plot,
)
from lovec.reports.texts import MODE_TITLES
from lovec.types import LovecError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Seconds: TypeAlias = Mapping[str, Mapping[str, float]]
"""Wall seconds per answer by phase, of each method by its name."""

_NOT_NEEDED = {"free-form": ("scoring",)}  # phases that only fill in the distributions over scores
_HATCHES = ("", "///", "...", "xxx", "\\\\\\", "++")  # so that phases can be told apart without colour, too
_WIDTH, _BAR = 6.8, 0.28  # inches of the plot, and of a bar with its gap
_RIGHT, _TOP, _BOTTOM = 0.3, 0.85, 0.6  # inches around the bars
_LEFT, _NAME = 0.2, 2.9  # inches around the names, and of the longest one
_HINTED = 1.06  # letters of a PNG are whole pixels wide, and so a little wider than those of an SVG
_EDGE = 0.05  # inches at the edges of the plot that stay free
_LINE = 0.18  # inches of a line of the legend; the space above the bars has room for two
_OTHER = "other"  # the phases that have no colour of their own


@dataclass(frozen=True, slots=True)
class Timing:
    """How long a method took per answer; medians where it was timed several times.

    The median of sums is not the sum of medians, so phases need not add up to ``total``; those of ``needed`` do.

    Attributes:
        method: name in the rows.
        mode: evaluation mode.
        data: the data set that it was timed on; "" where the run was tested on one only.
        kind: kind of its rows, or "answers" for plain answers without tags.
        seconds: wall seconds per answer, by phase.
        total: wall seconds that a tagged answer needs; free-form tagging does not need the distributions.
        records: number of answers that were timed.
        prefill_tokens: tokens per answer that went through the model as context.
        runs: how many times it was timed.
        spread: lowest and highest ``total`` over these times.
        processes: how many processes of the same command shared the machine meanwhile, at most.
    """

    method: str
    mode: str
    data: str
    kind: str
    seconds: Mapping[str, float]
    total: float
    records: int
    prefill_tokens: float
    runs: int
    spread: tuple[float, float]
    processes: int = 1

    @property
    def needed(self) -> dict[str, float]:
        """The parts of ``total``, by phase: those of ``seconds``, scaled by one factor so that they add up to it."""
        medians = {phase: self.seconds[phase] for phase in _needed(self.seconds, self.mode)}
        factor = self.total / (sum(medians.values()) or 1.0)
        return {phase: factor * spent for phase, spent in medians.items()}


def timings(run: RunResults) -> list[Timing]:
    """Return the timing of every method, mode and data set in the order in which they were measured, no empty ones.

    Data sets are kept apart, since their answers are not equally long.
    """
    places: dict[tuple[str, str, str], list[dict[str, Any]]] = {}
    several = len({entry["data"] for entry in run.times}) > 1
    for entry in run.times:
        if entry["records"] and entry["mode"] in MODE_TITLES and sum(entry["seconds"].values()) > 0:
            place = entry["method"], entry["mode"], entry["data"] if several else ""
            places.setdefault(place, []).append(entry)
    return [_timing(*place, entries) for place, entries in places.items()]


def plain_answer_seconds(all_timings: Iterable[Timing]) -> dict[str, float]:
    """Return the seconds of a plain answer, which iterative tagging and baselines wait for, by data, where timed."""
    return {timing.data: timing.total for timing in all_timings if timing.kind == "answers"}


def free_form_seconds(all_timings: Iterable[Timing]) -> dict[str, float]:
    """Return the seconds of an answer in free-form tagging, the mean over trained methods, by the data, where timed."""
    totals: dict[str, list[float]] = {}
    for timing in all_timings:
        if (timing.mode, timing.kind) == ("free-form", "method"):
            totals.setdefault(timing.data, []).append(timing.total)
    return {data: mean(found) for data, found in totals.items() if any(found)}


def conditions(all_timings: Iterable[Timing]) -> str:
    """Return a sentence on what else ran while times were taken; "" where nothing of the same command did."""
    processes = max((timing.processes for timing in all_timings), default=1)
    if processes < 2:
        return ""
    return f"Taken while up to {processes} processes of one command shared the machine: alone, each may be faster."


def running_times(
    seconds: Seconds,
    path: FilePath,
    title: str = "Running time of an answer",
    base: float | None = None,
    spreads: Mapping[str, tuple[float, float]] | None = None,
) -> Path:
    """Write a plot with one bar per method, divided into phases; the same times give the same bytes.

    The axis is linear, because the parts of a bar add up.

    Args:
        seconds: wall seconds per answer by phase, of each method by its name; one method or more.
        path: file to write, .svg or .png.
        title: title of the plot.
        base: seconds that free-form tagging takes per answer; each bar says how many times as long it is. None leaves
            that out.
        spreads: lowest and highest seconds per answer over several runs, by method; drawn as a line at the end of a
            bar where they differ. None draws no line.

    Returns:
        The path written to.

    Raises:
        LovecError: there is no method, there are more phases than can be told apart, or the name of the file does not
            end in .svg or .png. See ``few_phases`` for many phases.
    """
    phases = list(dict.fromkeys(phase for by_phase in seconds.values() for phase in by_phase))
    if not seconds or len(phases) > len(COLOURS):
        raise LovecError(
            f"got {len(seconds)} running times with {len(phases)} phases, expected 1 or more, with up to "
            f"{len(COLOURS)} phases"
        )
    return write_plot(lambda: _figure(seconds, phases, title, base, spreads or {}), path, title)


def few_phases(seconds: Seconds) -> Seconds:
    """Return running times with as many phases as ``running_times`` can tell apart, whose totals stay.

    The phases that take most of the time are kept; the others are added up as "other", at the end of each bar.

    Args:
        seconds: see ``running_times``.
    """
    totals: dict[str, float] = {}
    for by_phase in seconds.values():
        for phase, spent in by_phase.items():
            totals[phase] = totals.get(phase, 0.0) + spent
    if len(totals) <= len(COLOURS):
        return seconds
    named = [phase for phase in totals if phase != _OTHER]
    kept = set(sorted(named, key=lambda phase: -totals[phase])[: len(COLOURS) - 1])
    fewer: dict[str, dict[str, float]] = {}
    for name, by_phase in seconds.items():
        fewer[name] = {phase: spent for phase, spent in by_phase.items() if phase in kept}
        if rest := [spent for phase, spent in by_phase.items() if phase not in kept]:
            fewer[name][_OTHER] = sum(rest)
    return fewer


def _figure(
    seconds: Seconds,
    phases: Sequence[str],
    title: str,
    base: float | None,
    spreads: Mapping[str, tuple[float, float]],
) -> Figure:
    """Draw the bars, with a colour and a hatch for each phase."""
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

    styles = dict(zip(phases, zip(COLOURS, _HATCHES, strict=True), strict=False))
    labels = [short(phase) for phase in phases]
    columns = legend_columns(labels, _WIDTH, len(COLOURS))
    top = _TOP + _LINE * max(0, -(-len(labels) // columns) - 2)
    height = top + _BAR * len(seconds) + _BOTTOM
    figure = Figure(figsize=(_WIDTH, height))
    names = [fitting(name, _NAME, 9) for name in seconds]
    left = _LEFT + _HINTED * max(text_inches(name, 9) for name in names)
    width = _WIDTH - left - _RIGHT
    ax = figure.add_axes((left / _WIDTH, _BOTTOM / height, width / _WIDTH, _BAR * len(names) / height))
    ends = [sum(by_phase.values()) for by_phase in seconds.values()]
    longest = max(*ends, *(high for _, high in spreads.values()), 0.0) or 1.0
    last = 1.3 * longest  # the axis ends where the numbers behind all bars have room
    for row, (name, by_phase) in enumerate(seconds.items()):
        end = 0.0
        for phase, spent in by_phase.items():
            colour, hatch = styles[phase]
            ax.barh(row, spent, left=end, height=0.7, color=colour, hatch=hatch, edgecolor=GROUND, linewidth=0.4)
            end += spent
        text = f"{_two_digits(end)} s" + (f", {_two_digits(end / base)} times" if base else "")
        low, high = spreads.get(name, (end, end))
        if low < high:
            ax.plot([low, high], [row, row], color=INK, marker="|", markersize=6, linewidth=1.2)
            text += f" ({_two_digits(low)} to {_two_digits(high)})"
        begin = max(end, high) + 0.01 * longest
        ax.text(begin, row, text, fontsize=8, va="center")
        last = max(last, begin * width / (width + _RIGHT - _EDGE - text_inches(text, 8)))
    ax.set(xlim=(0, last), ylim=(len(names) - 0.5, -0.5), yticks=range(len(names)), yticklabels=names)
    xlabel = "seconds, and how many times as many as free-form tagging" if base else "seconds"
    rightmost = (width + _RIGHT - _EDGE - text_inches(xlabel, 10) / 2) / width  # where it ends inside the plot
    ax.set_xlabel(xlabel, x=min(0.5, rightmost))
    ax.grid(axis="x")
    ax.set_axisbelow(True)
    handles = [
        Patch(facecolor=c, hatch=h, edgecolor=GROUND, label=name)
        for name, (c, h) in zip(labels, styles.values(), strict=True)
    ]
    figure.legend(handles=handles, loc="upper center", bbox_to_anchor=(0.5, 1 - 0.32 / height), ncols=columns)
    add_title(figure, short(title, 90))
    return figure


def _two_digits(value: float) -> str:
    """Return a number with two significant digits, or with all digits before the point if there are more."""
    return f"{value:.0f}" if value >= 9.95 else f"{value:#.2g}"


def _needed(phases: Iterable[str], mode: str) -> list[str]:
    """Return those of some phases that a tagged answer needs."""
    return [phase for phase in phases if phase not in _NOT_NEEDED.get(mode, ())]


def _timing(method: str, mode: str, data: str, entries: Sequence[Mapping[str, Any]]) -> Timing:
    """Return the medians of what was measured for one method and mode on one data set."""
    phases = dict.fromkeys(phase for entry in entries for phase in entry["seconds"])
    runs = [{phase: entry["seconds"].get(phase, 0.0) / entry["records"] for phase in phases} for entry in entries]
    seconds = {phase: median(spent[phase] for spent in runs) for phase in phases}
    totals = [sum(spent[phase] for phase in _needed(phases, mode)) for spent in runs]
    records = round(median(entry["records"] for entry in entries))
    prefill_tokens = median(entry["prefill_tokens"] / entry["records"] for entry in entries)
    spread = min(totals), max(totals)
    kind, processes = entries[0]["kind"], max(entry.get("processes", 1) for entry in entries)
    total, number = median(totals), len(entries)
    return Timing(method, mode, data, kind, seconds, total, records, prefill_tokens, number, spread, processes)
