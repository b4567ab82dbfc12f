"""How figures look and how they are written: shared by all of them."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lovec.types import LovecError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BLUE, ORANGE, GREEN, PURPLE, SKY, AMBER = "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00"
"""Okabe and Ito's: told apart by everyone."""

COLOURS = (BLUE, ORANGE, GREEN, PURPLE, SKY, AMBER)
"""In the order in which they are used."""

INK, FAINT = "#222222", "#8a8a8a"
"""Letters and axes; lines that help the eye."""

GROUND = "#ffffff"
"""What figures are drawn on."""

SIDE = 2.6
"""Inches of a panel."""

COLUMNS = 4
"""Most panels in a row."""

_LONGEST = 28  # characters of a name above a panel
_LEFT, _RIGHT, _TOP, _BOTTOM = 0.66, 0.16, 0.42, 0.52  # inches around all panels
_ABOVE, _BELOW, _BETWEEN, _ASIDE = 0.52, 0.34, 0.12, 0.34  # of a panel: its title, its ticks, its parts, its neighbour

# What would make two runs differ is left out.
_METADATA: dict[str, dict[str, Any]] = {".svg": {"Date": None, "Creator": None}, ".png": {"Software": None}}


def write_figure(draw: Callable[[], Figure], path: str | os.PathLike[str], title: str) -> Path:
    """Draws a figure and writes it, whole or not at all; the same figure gives the same bytes.

    The ground is white whatever the page, so it can be read on light and dark ones.

    Args:
        draw: makes the figure.
        path: the file to write, .svg or .png.
        title: what the file says it shows.

    Returns:
        The path written to.

    Raises:
        LovecError: the file has another ending.
    """
    from matplotlib import rc_context

    path = Path(path)
    if path.suffix not in _METADATA:
        raise LovecError(f"a figure was to be written to {path}, expected a name that ends in .svg or .png")
    # Letters as text keep an SVG small and can be searched; the salt makes the ids of shapes repeat.
    # A dollar in the name of a method or in a token is a dollar, not a formula.
    font = ["DejaVu Sans", "sans-serif"]
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": "lovec", "text.parse_math": False, "font.family": font}):
        figure = draw()
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_name(f".{path.name}.{os.getpid()}.part")
        metadata = {**_METADATA[path.suffix], "Title": title}
        figure.savefig(part, format=path.suffix[1:], dpi=160, facecolor=GROUND, metadata=metadata)
    os.replace(part, path)
    return path


def tiles(
    count: int,
    heights: Sequence[float],
    title: str,
    xlabel: str,
    width: float = SIDE,
    columns: int = COLUMNS,
    below: float = _BELOW,
) -> tuple[Figure, list[list[Any]]]:
    """A figure of equal panels, row by row.

    Args:
        count: panels, one for every method.
        heights: inches of the axes that a panel has, from top to bottom.
        title: a line above all.
        xlabel: a line below all.
        width: inches of a panel.
        columns: most panels in a row.
        below: inches that a panel's ticks take.

    Returns:
        The figure, and the axes of every panel from top to bottom. Scales are named by the leftmost panels alone.

    Raises:
        LovecError: there is no panel.
    """
    from matplotlib.figure import Figure

    if not count:
        raise LovecError("there is no method to draw; give the tagged records of at least one")
    columns = min(columns, count)
    rows = -(-count // columns)
    tall = sum(heights) + _BETWEEN * (len(heights) - 1)
    full = (
        _LEFT + columns * width + (columns - 1) * _ASIDE + _RIGHT,
        _TOP + rows * (_ABOVE + tall + below) + _BOTTOM,
    )
    figure = Figure(figsize=full)
    found = []
    for place in range(count):
        row, column = divmod(place, columns)
        left = _LEFT + column * (width + _ASIDE)
        above = full[1] - _TOP - row * (_ABOVE + tall + below) - _ABOVE
        parts = []
        for height in heights:
            ax = figure.add_axes((left / full[0], (above - height) / full[1], width / full[0], height / full[1]))
            finish(ax)
            if column:
                ax.tick_params(labelleft=False)
            parts.append(ax)
            above -= height + _BETWEEN
        found.append(parts)
    headline(figure, short(title, 34 * columns))
    figure.text(0.5, 0.1 / full[1], xlabel, fontsize=10, color=INK, ha="center", va="bottom")
    return figure, found


def headline(figure: Figure, title: str) -> None:
    """A line above everything, which pages that say it themselves can leave out by its id."""
    top = 1 - 0.1 / figure.get_figheight()
    figure.text(0.5, top, title, fontsize=11, color=INK, ha="center", va="top", gid="title")


def short(text: str, longest: int = _LONGEST) -> str:
    """A name as one line that fits: white space and unprintable characters are spaces, its end is cut."""
    text = " ".join("".join(char if char.isprintable() else " " for char in text).split())
    return text if len(text) <= longest else text[: longest - 1] + "…"


def finish(ax: Any) -> None:
    """Small ticks, and no line above and to the right of what an axes object shows."""
    ax.tick_params(labelsize=9, colors=INK, length=3)
    ax.spines[["top", "right"]].set_visible(False)
