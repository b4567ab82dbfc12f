"""Running times: how long every method took, by phase."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from lovec.reports.style import COLOURS, FAINT, GROUND, INK, finish, headline, short, write_figure
from lovec.types import LovecError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_HATCHES = ("", "///", "...", "xxx", "\\\\\\", "++")  # phases can be told apart without colour, too
_WIDTH, _BAR = 8.4, 0.34  # inches of the figure, and of a bar with its gap
_RIGHT, _TOP, _BOTTOM = 0.3, 0.85, 0.6  # inches around the bars
_LEFT, _LETTER = 0.2, 0.085  # inches before the names, and of a letter of them
_LONGEST = 34  # letters of a name


@dataclass(frozen=True, slots=True)
class Duration:
    """What a bar shows.

    Attributes:
        name: the method, and how it tagged.
        seconds: wall seconds an answer, by phase.
    """

    name: str
    seconds: Mapping[str, float]

    @property
    def total(self) -> float:
        """Wall seconds an answer."""
        return sum(self.seconds.values())


def running_times(
    durations: Sequence[Duration],
    path: str | os.PathLike[str],
    title: str = "Running time of an answer",
    base: float | None = None,
) -> Path:
    """Write a figure with one bar a method, cut by phase; the same times give the same bytes.

    Args:
        durations: in the order in which they are shown, at least one.
        path: the file to write, .svg or .png.
        title: a line above the bars.
        base: seconds that free-form tagging takes, which the bars are held against; None holds them against nothing.

    Returns:
        The path written to.

    Raises:
        LovecError: there is no bar, there are more phases than can be told apart, or the file has another ending.
    """
    return write_figure(lambda: draw(durations, title, base), path, title)


def draw(durations: Sequence[Duration], title: str, base: float | None = None) -> Figure:
    """The figure; the axis is linear, since parts of a bar add up.

    Raises:
        LovecError: see ``running_times``.
    """
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

    phases = list(dict.fromkeys(phase for one in durations for phase in one.seconds))
    if not durations or len(phases) > len(COLOURS):
        raise LovecError(
            f"got {len(durations)} running times with {len(phases)} phases, expected 1 or more, with up to "
            f"{len(COLOURS)} phases"
        )
    height = _TOP + _BAR * len(durations) + _BOTTOM
    figure = Figure(figsize=(_WIDTH, height))
    names = [short(one.name, _LONGEST) for one in durations]
    left = _LEFT + _LETTER * max(map(len, names))
    ax = figure.add_axes(
        (left / _WIDTH, _BOTTOM / height, 1 - (left + _RIGHT) / _WIDTH, _BAR * len(durations) / height)
    )
    longest = max(one.total for one in durations) or 1.0
    styles = dict(zip(phases, zip(COLOURS, _HATCHES, strict=True), strict=False))
    for row, one in enumerate(durations):
        begin = 0.0
        for phase, spent in one.seconds.items():
            colour, hatch = styles[phase]
            ax.barh(row, spent, left=begin, height=0.7, color=colour, hatch=hatch, edgecolor=GROUND, linewidth=0.4)
            begin += spent
        times = f", {_digits(one.total / base)} times" if base else ""
        ax.text(begin + 0.01 * longest, row, f"{_digits(one.total)} s{times}", fontsize=9, color=INK, va="center")
    ax.set(xlim=(0, 1.25 * longest), ylim=(len(durations) - 0.5, -0.5), yticks=range(len(durations)))
    ax.set_yticklabels(names)
    ax.set_xlabel("seconds, and how many times as many as free-form tagging" if base else "seconds", color=INK)
    ax.grid(axis="x", color=FAINT, alpha=0.25, linewidth=0.6)
    ax.set_axisbelow(True)
    finish(ax)
    handles = [Patch(facecolor=c, hatch=h, edgecolor=GROUND, label=short(phase)) for phase, (c, h) in styles.items()]
    figure.legend(
        handles=handles, loc="upper center", bbox_to_anchor=(0.5, 1 - 0.32 / height), ncols=6, fontsize=9,
        frameon=False, labelcolor=INK,
    )  # fmt: skip
    headline(figure, short(title, 90))
    return figure


def _digits(value: float) -> str:
    """A number with the two digits that say something."""
    return f"{value:.0f}" if value >= 9.95 else f"{value:#.2g}"
