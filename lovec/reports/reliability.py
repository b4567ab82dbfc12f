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
from lovec.reports.style import BLUE, COLUMNS, FAINT, GROUND, INK, ORANGE, SIDE, short, tiles, write_figure
from lovec.types import LovecError, Record

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BINS = 10
"""Equal bins of the confidence, those of ECE-M."""

DRAWS, LEVEL = 1000, 0.95
"""Draws of the questions behind an interval, and the share of them inside it."""

_FEWEST = 5  # questions that a bin needs for an interval: draws of fewer hardly differ
_STRIP = 0.6  # inches of the strip that shows the shares
_RANGE = (-0.04, 1.04)  # axes from 0 to 1, with room for dots on the edge


@dataclass(frozen=True, slots=True)
class Bin:
    """A bin that is not empty.

    Attributes:
        count: sentences in it.
        confidence: their mean confidence, in [0, 1].
        factuality: their mean factuality, in [0, 1].
        low: lower end of its bootstrap interval over questions; None where the bin holds sentences of few questions.
        high: upper end.
    """

    count: int
    confidence: float
    factuality: float
    low: float | None = None
    high: float | None = None


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


def reliability(records: Sequence[Record], readout: str = "stated") -> Reliability:
    """Bins and figures of tagged and labelled records, sentence by sentence.

    Args:
        records: tagged and labelled.
        readout: "stated" or "mean", see ``lovec.metrics.records.confidence_of``.

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
    spans = _spans(records, readout)
    bins = tuple(Bin(int(n), c / n, f / n, *span) for (n, c, f), span in zip(sums.T.tolist(), spans, strict=True) if n)
    return Reliability(bins, float(brier_score(confidence, factuality)), float(ece_from_sums(sums)))


def reliability_diagram(
    groups: Mapping[str, Sequence[Record]],
    path: str | os.PathLike[str],
    readout: str = "stated",
    title: str = "Sentences: how true against how sure",
) -> Path:
    """Write a figure with one panel a method; the same records give the same bytes.

    A dot is a bin: its mean factuality over its mean confidence. The dashed diagonal is perfect calibration, the thick
    line from it to a dot the gap that ECE-M counts. The thin line is a 95 % bootstrap interval over the questions; a
    hollow dot has none, since its bin holds sentences of fewer than five questions. The strip below shows which share
    of the sentences each bin holds.

    Args:
        groups: tagged and labelled records of every method, by its name.
        path: the file to write, .svg or .png.
        readout: "stated" or "mean".
        title: a line above the panels.

    Returns:
        The path written to.

    Raises:
        LovecError: there is no method, or one without a sentence to show, or the file has another ending.
    """
    panels = {name: reliability(records, readout) for name, records in groups.items()}
    return write_figure(lambda: draw(panels, title), path, title)


def draw(panels: Mapping[str, Reliability], title: str) -> Figure:
    """The figure, panels row by row.

    Raises:
        LovecError: there is no panel.
    """
    figure, axes = tiles(len(panels), (SIDE, _STRIP), title, "mean confidence in the bin")
    for place, ((upper, strip), (name, panel)) in enumerate(zip(axes, panels.items(), strict=True)):
        _panel(upper, panel)
        _strip(strip, panel)
        upper.set_title(
            f"{short(name)}\nBS {100 * panel.brier:.1f}, ECE-M {100 * panel.ece_m:.1f} %", fontsize=10, color=INK
        )
        if place % COLUMNS == 0:
            upper.set_ylabel("mean factuality", color=INK)
            strip.set_ylabel("share, %", fontsize=9, color=INK)
    return figure


def _panel(ax: Any, panel: Reliability) -> None:
    """Dots, gaps and intervals."""
    ax.plot([0, 1], [0, 1], color=FAINT, linewidth=1, linestyle=(0, (4, 3)), zorder=1)
    for bin_ in panel.bins:
        ax.vlines(bin_.confidence, bin_.confidence, bin_.factuality, color=ORANGE, alpha=0.45, linewidth=5, zorder=2)
        if bin_.low is not None:
            ax.vlines(bin_.confidence, bin_.low, bin_.high, color=INK, linewidth=1.1, zorder=3)
        inside = GROUND if bin_.low is None else BLUE
        ax.scatter(bin_.confidence, bin_.factuality, s=30, color=inside, edgecolors=BLUE, zorder=4, clip_on=False)
    ax.set(xlim=_RANGE, ylim=_RANGE, xticks=[0, 0.5, 1], yticks=[0, 0.5, 1])
    ax.set_yticklabels(["0", "0.5", "1"])
    ax.tick_params(labelbottom=False)
    ax.spines[["bottom", "left"]].set_bounds(0, 1)


def _strip(ax: Any, panel: Reliability) -> None:
    """The share of every bin, and how many sentences there are."""
    place = [min(int(BINS * bin_.confidence + 1e-6), BINS - 1) / BINS + 0.5 / BINS for bin_ in panel.bins]
    share = [100 * bin_.count / panel.n for bin_ in panel.bins]
    ax.bar(place, share, width=0.9 / BINS, color=BLUE, alpha=0.75)
    ax.set(xlim=_RANGE, ylim=(0, 100), xticks=[0, 0.5, 1], yticks=[0, 100])
    ax.set_xticklabels(["0", "0.5", "1"])
    ax.spines["bottom"].set_bounds(0, 1)
    left = sum(bin_.count for bin_ in panel.bins if bin_.confidence < 0.5) <= panel.n / 2
    ax.text(0.0 if left else 1.0, 92, f"n = {panel.n}", fontsize=8, color=INK, ha="left" if left else "right", va="top")


def _spans(records: Sequence[Record], readout: str) -> list[tuple[float, float] | tuple[None, None]]:
    """Percentile interval of every bin's mean factuality, over draws of the records with replacement."""
    pairs = [sentence_pairs([record], readout) for record in records]
    double = torch.float64
    sums = torch.stack(
        [group_sums(torch.tensor(c, dtype=double), torch.tensor(f, dtype=double), "bins", BINS) for c, f, _ in pairs]
    )
    n = len(pairs)
    generator = torch.Generator().manual_seed(0)
    drawn = (torch.randint(n, (n,), generator=generator) for _ in range(DRAWS))
    counts = torch.stack([torch.bincount(questions, minlength=n) for questions in drawn]).double()
    total = counts @ sums[:, 0], counts @ sums[:, 2]
    ends = torch.tensor([(1 - LEVEL) / 2, (1 + LEVEL) / 2], dtype=double)
    low, high = torch.nanquantile(total[1] / total[0], ends, dim=0).clamp(0.0, 1.0).tolist()
    many = ((sums[:, 0] > 0).sum(0) >= _FEWEST).tolist()
    return [(a, b) if enough else (None, None) for a, b, enough in zip(low, high, many, strict=True)]
