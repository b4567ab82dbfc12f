"""Histograms of confidence: which scores a method gives, and how often."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from lovec.metrics.functional import group_of
from lovec.metrics.records import confidence_of
from lovec.reports.panels import Groups, PanelLayout, write_panels
from lovec.reports.style import BLUE, INK, ORANGE, FilePath, short
from lovec.types import LovecError, Record

_LAYOUT = PanelLayout("score (▼ mean confidence, ┆ mean factuality)", ("share, %",), (1.5,), pad=10)
_MOST_TICKS = 6


@dataclass(frozen=True, slots=True)
class Histogram:
    """How often a method gives each score.

    Attributes:
        shares: share of the sentences whose confidence is nearest to each level of the scale (halves go up), lowest
            level first; only sentences with a confidence count.
        n: number of sentences with a confidence, labelled or not.
        missing: share of all sentences without a confidence.
        confidence: mean confidence, in [0, 1].
        factuality: mean factuality of the labelled sentences, in [0, 1]; None if no sentence is labelled.
    """

    shares: tuple[float, ...]
    n: int
    missing: float
    confidence: float
    factuality: float | None


def histogram(records: Sequence[Record], readout: str = "stated") -> Histogram:
    """Count how often each score is given, over all sentences of tagged records.

    Args:
        records: tagged records.
        readout: "stated" or "mean", see ``lovec.metrics.records.confidence_of``.

    Raises:
        LovecError: no sentence has a confidence.
    """
    sentences = [sentence for record in records for sentence in record.sentences]
    confidences = [confidence for s in sentences if (confidence := confidence_of(s, readout)) is not None]
    if not confidences:
        raise LovecError(
            f"none of {len(records)} records has a sentence with a confidence; give records that a method has tagged"
        )
    levels = max(sentence.levels for sentence in sentences)
    nearest = group_of(torch.tensor(confidences, dtype=torch.float64), "levels", levels=levels)
    counts = torch.bincount(nearest, minlength=levels).double()
    factualities = [s.factuality for s in sentences if s.factuality is not None]
    return Histogram(
        shares=tuple((counts / len(confidences)).tolist()),
        n=len(confidences),
        missing=1 - len(confidences) / len(sentences),
        confidence=sum(confidences) / len(confidences),
        factuality=sum(factualities) / len(factualities) if factualities else None,
    )


def confidence_histogram(
    groups: Groups, path: FilePath, readout: str = "stated", title: str = "Which scores are given"
) -> Path:
    """Write a plot with one histogram per method; the same records give the same bytes.

    A bar is the share of the sentences that got the score. The dashed line is the mean factuality, the triangle above
    the bars the mean confidence: the farther they lie apart, the more over-confident or under-confident the method is.

    Args:
        groups: tagged records of every method, by its name.
        path: as for ``write_panels``, also for what is returned.
        readout: "stated" or "mean".
        title: of the plot.

    Raises:
        LovecError: as for ``write_panels``, or a method has no sentence with a confidence.
    """
    panels = [(short(name), histogram(records, readout)) for name, records in groups.items()]
    return write_panels(panels, _draw, _LAYOUT, path, title)


def _draw(axes: Sequence[Any], panel: Histogram) -> str:
    (ax,) = axes
    top = len(panel.shares) - 1
    ax.bar(range(top + 1), [100 * share for share in panel.shares], width=0.8, color=BLUE)
    if panel.factuality is not None:
        ax.axvline(top * panel.factuality, color=ORANGE, linewidth=1.4, linestyle=(0, (4, 2)), zorder=3)
    ax.plot(top * panel.confidence, 106, marker="v", color=INK, markersize=6, clip_on=False, zorder=4)
    ticks = range(0, top + 1, -(-top // (_MOST_TICKS - 1)))
    ax.set(xlim=(-0.6, top + 0.6), ylim=(0, 100), xticks=ticks, yticks=[0, 50, 100])
    without = f", {100 * panel.missing:.1f} % without" if panel.missing else ""
    return f"n = {panel.n}{without}"
