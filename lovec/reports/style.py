"""The look of plots, and the one function that writes them."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from lovec.core.files import atomic_file
from lovec.reports.texts import HERE
from lovec.types import LovecError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FilePath: TypeAlias = str | os.PathLike[str]
"""Path of a file."""

BLUE, ORANGE, GREEN, PURPLE, SKY, AMBER = "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00"
"""Colours of Okabe and Ito, which readers with colour blindness can tell apart."""

COLOURS = (BLUE, ORANGE, GREEN, PURPLE, SKY, AMBER)
"""The same colours in the order in which plots use them."""

INK, FAINT = "#222222", "#8a8a8a"
"""Colour of text and axes, and of guide lines."""

GROUND = "#ffffff"
"""Background of plots."""

HALVES: dict[str, Any] = {"yticks": [0, 0.5, 1], "yticklabels": ["0", "0.5", "1"]}
"""Ticks of a vertical axis from 0 to 1, for matplotlib's ``Axes.set``."""

SIDE = 2.6
"""Default width of a panel, in inches."""

_LETTER = 0.62  # width of a letter of the plots' font, in sizes of the font
_LONGEST = 28  # characters of a name above a panel
_MOST_FITTING = 120  # characters that any plot has room for

# The date and the version of matplotlib would make two runs differ, so they are left out.
_METADATA: dict[str, dict[str, Any]] = {
    ".svg": {"Date": None, "Creator": None},
    ".png": {"Software": None},
    ".pdf": {"CreationDate": None, "Creator": None, "Producer": None},
}


COLUMN = 3.3
"""Width of a plot that fits a column of a paper in two columns, in inches."""


def write_plot(draw: Callable[[], Figure], path: FilePath, title: str) -> Path:
    """Draw a plot and write it, whole or not at all; the same plot gives the same bytes.

    The background is white, so that the file can be read on light and dark pages.

    Args:
        draw: returns the matplotlib figure to write.
        path: file to write, .svg, .pdf or .png.
        title: title in the metadata of the file.

    Returns:
        The path written to.

    Raises:
        LovecError: the name of the file does not end in .svg, .pdf or .png.
    """
    from matplotlib import rc_context

    path = Path(path)
    if path.suffix not in _METADATA:
        raise LovecError(f"cannot write a plot to {path}, expected a name that ends in .svg, .pdf or .png")
    with rc_context(fname=HERE / "plots.mplstyle"):
        figure = draw()
        metadata = {**_METADATA[path.suffix], "Title": title}
        with atomic_file(path) as temporary:
            figure.savefig(temporary, format=path.suffix[1:], metadata=metadata)
    return path


def write_both(write: Callable[[Path], Path], path: Path) -> Path:
    """Write a plot as SVG, for the page, and as PDF, for a paper.

    Args:
        write: writes the plot to a path.
        path: the path, .svg.

    Returns:
        The path of the SVG.
    """
    write(path.with_suffix(".pdf"))
    return write(path)


def add_title(figure: Figure, title: str) -> None:
    """Write a title at the top of a plot, under the id "title", so that a page which repeats it can crop it.

    A title that is too long for the plot gets smaller letters, down to eight points.
    """
    room = (figure.get_figwidth() - 0.2) * 72 / (_LETTER * max(len(title), 1))  # the size at which it just fits
    size = max(8.0, min(11.0, room))
    figure.text(0.5, 1 - 0.1 / figure.get_figheight(), title, fontsize=size, ha="center", va="top", gid="title")


def text_inches(text: str, size: float) -> float:
    """Return how wide a text of this size in points is in the font of the plots."""
    from matplotlib.font_manager import FontProperties
    from matplotlib.textpath import text_to_path

    points, _, _ = text_to_path.get_text_width_height_descent(text, FontProperties(size=size), ismath=False)
    return float(points) / 72


def fitting(text: str, inches: float, size: float) -> str:
    """Return a name as one line that is at most so wide; what is too wide is cut in its middle.

    Both ends stay, since they tell names apart: METHOD (seed-1), runs/seed-1/METHOD.

    Args:
        text: the name.
        inches: the room that there is.
        size: size of the letters, in points.
    """
    text = short(text, max(len(text), 1))

    def cut(kept: int) -> str:
        return text if kept >= len(text) else f"{text[: kept - kept // 2]}…{text[len(text) - kept // 2 :]}"

    sizes = range(min(len(text), _MOST_FITTING), 0, -1)
    return next((name for name in map(cut, sizes) if text_inches(name, size) <= inches), cut(0))


def legend_columns(labels: Sequence[str], inches: float, most: int, size: float = 9.0) -> int:
    """Return in how many columns a legend above a plot is at most so wide; at least 1.

    Args:
        labels: what it says, each behind a line or a box of its own.
        inches: the room that there is.
        most: most columns.
        size: size of the letters, in points.
    """
    em = size / 72
    column = max(text_inches(label, size) for label in labels) + 4.8 * em  # with matplotlib's handle and gaps
    return max(1, min(most, int((inches - em) / column)))


def short(text: str, longest: int = _LONGEST) -> str:
    """Return a name as one line of at most ``longest`` characters.

    White space and unprintable characters become single spaces; what is too long is cut and ends in "…".
    """
    text = " ".join("".join(char if char.isprintable() else " " for char in text).split())
    return text if len(text) <= longest else text[: longest - 1] + "…"
