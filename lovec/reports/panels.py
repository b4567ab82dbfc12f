"""Plots with one panel per method, row by row.

Reliability diagrams, histograms, risk-coverage curves and next tokens differ in what a panel shows; the arrangement of
the panels, their titles and the file are made here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from lovec.metrics.grouped import GroupedPairs, grouped_pairs
from lovec.reports.style import SIDE, FilePath, add_title, short, write_plot
from lovec.types import LovecError, Record

if TYPE_CHECKING:
    from matplotlib.figure import Figure

T = TypeVar("T")

Groups: TypeAlias = Mapping[str, Sequence[Record]]
"""Tagged records of every method, by its name."""

PairGroups: TypeAlias = Mapping[str, Sequence[Record] | GroupedPairs]
"""Tagged records of every method, or their pairs of confidence and factuality, by its name."""

COLUMNS = 4
"""Default number of panels in a full row."""

_LEFT, _RIGHT, _TOP, _BOTTOM = 0.66, 0.16, 0.42, 0.52  # inches around all panels
_ABOVE, _BETWEEN, _ASIDE = 0.52, 0.12, 0.34  # inches for a panel's title, between its axes, and beside it
_PER_COLUMN = 46  # characters of the title above one column


@dataclass(frozen=True, slots=True)
class PanelLayout:
    """Sizes and labels that all panels of a plot share.

    Attributes:
        xlabel: label of the horizontal axis, written once, below all panels.
        ylabels: label of each axes of a panel, from top to bottom, written beside the leftmost panels.
        heights: height of each axes of a panel, from top to bottom, in inches.
        width: width of a panel, in inches.
        columns: number of panels in a full row.
        below: height of a panel's tick labels, in inches.
        pad: distance between a panel and its title, in points.
    """

    xlabel: str
    ylabels: tuple[str, ...]
    heights: tuple[float, ...]
    width: float = SIDE
    columns: int = COLUMNS
    below: float = 0.34
    pad: float = 6.0


def write_panels(
    panels: Sequence[tuple[str, T]],
    draw: Callable[[Sequence[Any], T], str],
    layout: PanelLayout,
    path: FilePath,
    title: str,
) -> Path:
    """Draw one panel per method and write the plot; the same input gives the same bytes.

    Args:
        panels: title and data of each panel, in the order in which they are drawn.
        draw: draws the data into the axes of a panel (from top to bottom), and returns the second line of the panel's
            title, "" for none.
        layout: sizes and labels.
        path: file to write, .svg or .png.
        title: title of the plot.

    Returns:
        The path written to.

    Raises:
        LovecError: there is no panel, or the name of the file does not end in .svg or .png.
    """

    def drawn() -> Figure:
        figure, axes = panel_axes(len(panels), layout, title)
        for place, (panel, (name, data)) in enumerate(zip(axes, panels, strict=True)):
            lines = name, draw(panel, data)
            panel[0].set_title("\n".join(filter(None, lines)), pad=layout.pad)
            if place % layout.columns == 0:
                for number, (ax, label) in enumerate(zip(panel, layout.ylabels, strict=True)):
                    ax.set_ylabel(label, fontsize=9 if number else 10)
        return figure

    return write_plot(drawn, path, title)


def labelled_pairs(given: Sequence[Record] | GroupedPairs, readout: str) -> GroupedPairs:
    """Return the confidence and the factuality of every sentence that has both.

    Args:
        given: tagged and labelled records, or their pairs.
        readout: "stated" or "mean", see ``lovec.metrics.records.confidence_of``; not used for pairs.

    Raises:
        LovecError: no sentence has both.
    """
    pairs = given if isinstance(given, GroupedPairs) else grouped_pairs(given, readout)
    if not pairs.confidence.numel():
        size = given.groups if isinstance(given, GroupedPairs) else len(given)
        raise LovecError(
            f"none of {size} records has a sentence with a confidence and a factuality; "
            "give the tagged records that `lovec test` writes"
        )
    return pairs


def panel_axes(count: int, layout: PanelLayout, title: str) -> tuple[Figure, list[list[Any]]]:
    """Create a matplotlib figure with empty panels, row by row.

    Only the leftmost panels show the labels of their vertical ticks.

    Args:
        count: number of panels.
        layout: sizes and labels.
        title: title of the plot.

    Returns:
        The figure, and the axes of every panel from top to bottom.

    Raises:
        LovecError: ``count`` is 0.
    """
    from matplotlib.figure import Figure

    if not count:
        raise LovecError("there is no method to draw; give the tagged records of at least one")
    columns = min(layout.columns, count)
    rows = -(-count // columns)
    panel_height = _ABOVE + sum(layout.heights) + _BETWEEN * (len(layout.heights) - 1) + layout.below
    width = _LEFT + columns * layout.width + (columns - 1) * _ASIDE + _RIGHT
    height = _TOP + rows * panel_height + _BOTTOM
    figure = Figure(figsize=(width, height))
    panels = []
    for place in range(count):
        row, column = divmod(place, columns)
        left = _LEFT + column * (layout.width + _ASIDE)
        top = height - _TOP - row * panel_height - _ABOVE
        panel = []
        for inches in layout.heights:
            ax = figure.add_axes((left / width, (top - inches) / height, layout.width / width, inches / height))
            if column:
                ax.tick_params(labelleft=False)
            panel.append(ax)
            top -= inches + _BETWEEN
        panels.append(panel)
    add_title(figure, short(title, _PER_COLUMN * columns))
    figure.text(0.5, 0.1 / height, layout.xlabel, ha="center", va="bottom")
    return figure, panels
