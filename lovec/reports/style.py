"""How figures look and how they are written: shared by all of them."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lovec.types import LovecError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BLUE, ORANGE = "#0072B2", "#D55E00"
"""Okabe and Ito's: told apart by everyone."""

INK, FAINT = "#222222", "#8a8a8a"
"""Letters and axes; lines that help the eye."""

SIDE = 2.6
"""Inches of a panel."""

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
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": "lovec", "font.family": ["DejaVu Sans", "sans-serif"]}):
        figure = draw()
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_name(f".{path.name}.{os.getpid()}.part")
        metadata = {**_METADATA[path.suffix], "Title": title}
        figure.savefig(part, format=path.suffix[1:], dpi=160, facecolor="white", metadata=metadata)
    os.replace(part, path)
    return path


def finish(ax: Any) -> None:
    """Small ticks, and no line above and to the right of what an axes object shows."""
    ax.tick_params(labelsize=9, colors=INK, length=3)
    ax.spines[["top", "right"]].set_visible(False)
