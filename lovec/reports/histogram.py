"""Histograms of confidence: which scores a method gives, and how often."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from lovec.metrics.functional import group_of
from lovec.metrics.records import confidence_of
from lovec.reports.style import BLUE, COLUMNS, INK, ORANGE, short, tiles, write_figure
from lovec.types import N_SCORES, LovecError, Record

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_HEIGHT = 1.5  # inches of a panel


@dataclass(frozen=True, slots=True)
class Histogram:
    """What a panel shows.

    Attributes:
        shares: of the sentences with a confidence, those nearest to each of 0, 0.1, ..., 1 (halves go up); 11 numbers.
        n: sentences with a confidence, with a label or not.
        missing: share of all sentences that have none.
        confidence: mean confidence, in [0, 1].
        factuality: mean factuality of the labelled sentences, in [0, 1]; None without any.
    """

    shares: tuple[float, ...]
    n: int
    missing: float
    confidence: float
    factuality: float | None


def histogram(records: Sequence[Record], readout: str = "stated") -> Histogram:
    """How often each score is given, over all sentences of tagged records.

    Args:
        records: tagged.
        readout: "stated" or "mean", see ``lovec.metrics.records.confidence_of``.

    Raises:
        LovecError: no sentence has a confidence.
    """
    sentences = [sentence for record in records for sentence in record.sentences]
    found = [confidence for s in sentences if (confidence := confidence_of(s, readout)) is not None]
    if not found:
        raise LovecError(
            f"none of {len(records)} records has a sentence with a confidence; give records that a method has tagged"
        )
    counts = torch.bincount(group_of(torch.tensor(found, dtype=torch.float64), "levels", N_SCORES), minlength=N_SCORES)
    true = [s.factuality for s in sentences if s.factuality is not None]
    return Histogram(
        tuple((counts.double() / len(found)).tolist()),
        len(found),
        1 - len(found) / len(sentences),
        sum(found) / len(found),
        sum(true) / len(true) if true else None,
    )


def confidence_histogram(
    groups: Mapping[str, Sequence[Record]],
    path: str | os.PathLike[str],
    readout: str = "stated",
    title: str = "Which scores are given",
) -> Path:
    """Write a figure with one panel a method; the same records give the same bytes.

    A bar is the share of the sentences that got the score. The dashed line is the mean factuality, the triangle above
    the bars the mean confidence: where they part, a method is too sure or not sure enough.

    Args:
        groups: tagged records of every method, by its name.
        path: the file to write, .svg or .png.
        readout: "stated" or "mean".
        title: a line above the panels.

    Returns:
        The path written to.

    Raises:
        LovecError: there is no method, or one without a confidence, or the file has another ending.
    """
    panels = {name: histogram(records, readout) for name, records in groups.items()}
    return write_figure(lambda: draw(panels, title), path, title)


def draw(panels: Mapping[str, Histogram], title: str) -> Figure:
    """The figure, panels row by row.

    Raises:
        LovecError: there is no panel.
    """
    figure, axes = tiles(len(panels), (_HEIGHT,), title, "score (▼ mean confidence, ┆ mean factuality)")
    for place, ((ax,), (name, panel)) in enumerate(zip(axes, panels.items(), strict=True)):
        _panel(ax, panel)
        without = f", {100 * panel.missing:.1f} % without" if panel.missing else ""
        ax.set_title(f"{short(name)}\nn = {panel.n}{without}", fontsize=10, color=INK, pad=10)
        if place % COLUMNS == 0:
            ax.set_ylabel("share, %", color=INK)
    return figure


def _panel(ax: Any, panel: Histogram) -> None:
    ax.bar(range(N_SCORES), [100 * share for share in panel.shares], width=0.8, color=BLUE)
    if panel.factuality is not None:
        ax.axvline(10 * panel.factuality, color=ORANGE, linewidth=1.4, linestyle=(0, (4, 2)), zorder=3)
    ax.plot(10 * panel.confidence, 106, marker="v", color=INK, markersize=6, clip_on=False, zorder=4)
    ax.set(xlim=(-0.6, N_SCORES - 0.4), ylim=(0, 100), xticks=range(0, N_SCORES, 2), yticks=[0, 50, 100])
