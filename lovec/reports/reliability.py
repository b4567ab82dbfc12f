"""Reliability diagrams: mean factuality against mean confidence, bin by bin, one panel a method."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from lovec.metrics.functional import brier_score, checked_pair, ece_from_sums, group_sums
from lovec.metrics.records import sentence_pairs
from lovec.reports.style import BLUE, FAINT, INK, ORANGE, SIDE, finish, write_figure
from lovec.types import LovecError, Record

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BINS = 10
"""Equal bins of the confidence, those of ECE-M."""

_SMALLEST, _LARGEST = 16.0, 260.0  # area in square points of a dot; the largest holds every sentence
_RANGE = (-0.04, 1.04)  # axes from 0 to 1, with room for dots on the edge


@dataclass(frozen=True, slots=True)
class Bin:
    """A bin that is not empty.

    Attributes:
        count: sentences in it.
        confidence: their mean confidence, in [0, 1].
        factuality: their mean factuality, in [0, 1].
    """

    count: int
    confidence: float
    factuality: float


@dataclass(frozen=True, slots=True)
class Reliability:
    """What a panel shows.

    Attributes:
        bins: non-empty bins, least confident first.
        brier: mean (c - f)^2 of the sentences.
        ece_m: sum over bins of count / n times |mean factuality - mean confidence|.
    """

    bins: tuple[Bin, ...]
    brier: float
    ece_m: float

    @property
    def n(self) -> int:
        """Sentences with a confidence and a factuality."""
        return sum(bin_.count for bin_ in self.bins)


def reliability(records: Sequence[Record], readout: str = "argmax") -> Reliability:
    """Bins and figures of tagged and labelled records, sentence by sentence.

    Args:
        records: tagged and labelled.
        readout: "argmax" or "mean", see ``lovec.metrics.records.confidence_of``.

    Raises:
        LovecError: no sentence has both a confidence and a factuality.
    """
    stated, true, _ = sentence_pairs(records, readout)
    if not stated:
        raise LovecError(
            f"none of {len(records)} records has a sentence with a confidence and a factuality; "
            "give the tagged records that `lovec test` writes"
        )
    confidence, factuality = checked_pair(
        torch.tensor(stated, dtype=torch.float64), torch.tensor(true, dtype=torch.float64)
    )
    sums = group_sums(confidence, factuality, "bins", BINS)
    bins = tuple(Bin(int(n), c / n, f / n) for n, c, f in sums.T.tolist() if n)
    return Reliability(bins, float(brier_score(confidence, factuality)), float(ece_from_sums(sums)))


def reliability_diagram(
    groups: Mapping[str, Sequence[Record]],
    path: str | os.PathLike[str],
    readout: str = "argmax",
    title: str = "Sentences: how true against how sure",
) -> Path:
    """Write a figure with one panel a method; the same records give the same bytes.

    A dot is a bin: its mean factuality over its mean confidence, its area the share of sentences in it. The dashed
    diagonal is perfect calibration, the line from it to a dot the bin's part of ECE-M.

    Args:
        groups: tagged and labelled records of every method, by its name.
        path: the file to write, .svg or .png.
        readout: "argmax" or "mean".
        title: a line above the panels.

    Returns:
        The path written to.

    Raises:
        LovecError: there is no method, or one without a sentence to show, or the file has another ending.
    """
    panels = {name: reliability(records, readout) for name, records in groups.items()}
    return write_figure(lambda: draw(panels, title), path, title)


def draw(panels: Mapping[str, Reliability], title: str) -> Figure:
    """The figure, panels from left to right.

    Raises:
        LovecError: there is no panel.
    """
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    if not panels:
        raise LovecError("there is no method to draw; give the tagged records of at least one")
    figure = Figure(figsize=(SIDE * len(panels) + 0.7, SIDE + 0.85), layout=ConstrainedLayoutEngine(wspace=0.06))
    axes = figure.subplots(1, len(panels), squeeze=False, sharey=True)[0]
    for ax, (name, panel) in zip(axes, panels.items(), strict=True):
        _panel(ax, name, panel)
    axes[0].set_ylabel("mean factuality", color=INK)
    figure.suptitle(title, fontsize=11, color=INK)
    figure.supxlabel("mean confidence in the bin (area of a dot: share of the sentences)", fontsize=10, color=INK)
    return figure


def _panel(ax: Any, name: str, panel: Reliability) -> None:
    confidence = [bin_.confidence for bin_ in panel.bins]
    factuality = [bin_.factuality for bin_ in panel.bins]
    ax.plot([0, 1], [0, 1], color=FAINT, linewidth=1, linestyle=(0, (4, 3)), zorder=1)
    ax.vlines(confidence, confidence, factuality, color=ORANGE, linewidth=1.6, zorder=2)
    area = [max(_SMALLEST, _LARGEST * bin_.count / panel.n) for bin_ in panel.bins]
    ax.scatter(confidence, factuality, s=area, color=BLUE, edgecolors="white", linewidths=0.6, zorder=3, clip_on=False)
    ax.set(xlim=_RANGE, ylim=_RANGE, aspect="equal", xticks=[0, 0.5, 1], yticks=[0, 0.5, 1])
    ax.set_xticklabels(["0", "0.5", "1"])
    ax.set_yticklabels(["0", "0.5", "1"])
    finish(ax)
    ax.spines[["bottom", "left"]].set_bounds(0, 1)
    ax.set_title(f"{name}\nBS {100 * panel.brier:.1f}, ECE-M {100 * panel.ece_m:.1f} %", fontsize=10, color=INK)
