"""The look of plots, and the one function that writes them."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lovec.files import atomic_file
from lovec.types import LovecError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BLUE, ORANGE, GREEN, PURPLE, SKY, AMBER = "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00"
"""Colours of Okabe and Ito, which readers with colour blindness can tell apart."""

COLOURS = (BLUE, ORANGE, GREEN, PURPLE, SKY, AMBER)
"""The same colours in the order in which plots use them."""

INK, FAINT = "#222222", "#8a8a8a"
"""Colour of text and axes, and of guide lines."""

GROUND = "#ffffff"
"""Background of plots."""

SIDE = 2.6
"""Default width of a panel, in inches."""

_LONGEST = 28  # characters of a name above a panel

# The date and the version of matplotlib would make two runs differ, so they are left out.
_METADATA: dict[str, dict[str, Any]] = {".svg": {"Date": None, "Creator": None}, ".png": {"Software": None}}


def write_plot(draw: Callable[[], Figure], path: str | os.PathLike[str], title: str) -> Path:
    """Draw a plot and write it, whole or not at all; the same plot gives the same bytes.

    The background is white, so that the file can be read on light and dark pages.

    Args:
        draw: returns the matplotlib figure to write.
        path: file to write, .svg or .png.
        title: title in the metadata of the file.

    Returns:
        The path written to.

    Raises:
        LovecError: the name of the file does not end in .svg or .png.
    """
    from matplotlib import rc_context

    path = Path(path)
    if path.suffix not in _METADATA:
        raise LovecError(f"cannot write a plot to {path}, expected a name that ends in .svg or .png")
    # Text that is not converted to outlines keeps an SVG small and searchable; a fixed salt makes its ids repeatable.
    # A dollar sign in the name of a method or in a token is plain text, not the start of a formula.
    font = ["DejaVu Sans", "sans-serif"]
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": "lovec", "text.parse_math": False, "font.family": font}):
        figure = draw()
        metadata = {**_METADATA[path.suffix], "Title": title}
        with atomic_file(path) as temporary:
            figure.savefig(temporary, format=path.suffix[1:], dpi=160, facecolor=GROUND, metadata=metadata)
    return path


def add_title(figure: Figure, title: str) -> None:
    """Write a title at the top of a plot, under the id "title", so that a page which repeats it can crop it."""
    top = 1 - 0.1 / figure.get_figheight()
    figure.text(0.5, top, title, fontsize=11, color=INK, ha="center", va="top", gid="title")


def short(text: str, longest: int = _LONGEST) -> str:
    """Return a name as one line of at most ``longest`` characters.

    White space and unprintable characters become single spaces; what is too long is cut and ends in "…".
    """
    text = " ".join("".join(char if char.isprintable() else " " for char in text).split())
    return text if len(text) <= longest else text[: longest - 1] + "…"


def style_axes(ax: Any) -> None:
    """Give matplotlib axes small ticks, and hide their top and right borders."""
    ax.tick_params(labelsize=9, colors=INK, length=3)
    ax.spines[["top", "right"]].set_visible(False)
