"""Risk-coverage curves: how much of what is kept is wrong, by how much is kept."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from lovec.metrics.grouped import GroupedPairs
from lovec.metrics.risk import aurc, risk_coverage
from lovec.reports.panels import PairGroups, PanelLayout, labelled_pairs, write_panels
from lovec.reports.style import BLUE, FAINT, FilePath, short
from lovec.types import Record

_LAYOUT = PanelLayout("share of the sentences kept, % (grey: the others)", ("risk, %",), (2.0,))
_POINTS = 72  # least number of points that a curve is drawn with
_BACKGROUND_POINTS = 40  # most points of another method's curve in the background
_MOST_THRESHOLDS = 500  # that a curve is drawn with; a plot shows no more
_MOST_DOTS = 20  # a curve with more dots than these is drawn without them


@dataclass(frozen=True, slots=True)
class RiskCurve:
    """The risk-coverage curve of one method.

    Attributes:
        coverage: shares of the sentences that a threshold on the confidence can keep, ascending, in (0, 1].
        risk: mean of 1 - factuality of the sentences kept, for each coverage.
        aurc: area under the curve, see ``lovec.metrics.risk.aurc``.
    """

    coverage: tuple[float, ...]
    risk: tuple[float, ...]
    aurc: float

    def points(self) -> tuple[list[float], list[float]]:
        """Return coverages and risks to draw the curve with.

        Between two coverages that a threshold can reach, sentences of equal confidence are kept in random order: the
        risk there is the exact expectation.
        """
        ends = np.array([0.0, *self.coverage])
        wrong = ends * [0.0, *self.risk]  # its share of all sentences grows linearly between two coverages
        steps = max(1, _POINTS // len(self.risk))
        xs = np.interp(np.arange(1, steps * len(self.risk) + 1) / steps, np.arange(len(ends)), ends)
        return [0.0, *xs.tolist()], [self.risk[0], *(np.interp(xs, ends, wrong) / xs).tolist()]


def risk_curve(records: Sequence[Record] | GroupedPairs, readout: str = "stated") -> RiskCurve:
    """Compute the risk-coverage curve over all sentences with a confidence and a factuality.

    Args:
        records: tagged and labelled records, or their pairs.
        readout: "stated" or "mean", see ``lovec.metrics.records.confidence_of``.

    Raises:
        LovecError: no sentence has both a confidence and a factuality.
    """
    pairs = labelled_pairs(records, readout)
    confidence, factuality = pairs.confidence, pairs.factuality
    coverage, risk = risk_coverage(confidence, factuality)
    if len(coverage) > _MOST_THRESHOLDS:
        kept = torch.linspace(0, len(coverage) - 1, _MOST_THRESHOLDS).round().long()
        coverage, risk = coverage[kept], risk[kept]
    return RiskCurve(tuple(coverage.tolist()), tuple(risk.tolist()), float(aurc(confidence, factuality)))


def risk_coverage_curves(
    groups: PairGroups, path: FilePath, readout: str = "stated", title: str = "How much is wrong in what is kept"
) -> Path:
    """Write a plot with one risk-coverage curve per method; the same records give the same bytes.

    The most confident sentences are kept first. A dot is what a threshold on the confidence keeps; between dots,
    sentences of equal confidence are kept in random order. The curves of the other methods are grey in the background
    of each panel. The curve of a method that knows nothing is flat; a good one falls steeply towards low coverage.

    Args:
        groups: tagged and labelled records of every method, or their pairs, by its name.
        path: as for ``write_panels``, also for what is returned.
        readout: "stated" or "mean".
        title: of the plot.

    Raises:
        LovecError: as for ``write_panels``, or a method has no sentence with a confidence and a factuality.
    """
    panels = [(short(name), risk_curve(records, readout)) for name, records in groups.items()]
    curves = [curve for _, curve in panels]
    return write_panels(panels, partial(_draw, curves=curves), _LAYOUT, path, title)


def _draw(axes: Sequence[Any], panel: RiskCurve, curves: Sequence[RiskCurve]) -> str:
    (ax,) = axes
    for other in curves:
        if other is not panel:
            _draw_line(ax, other, _BACKGROUND_POINTS, color=FAINT, alpha=0.5, linewidth=0.9)
    _draw_line(ax, panel, color=BLUE, linewidth=1.8, zorder=3)
    dots = [100 * share for share in panel.coverage], [100 * risk for risk in panel.risk]
    ax.plot(*dots, "o", color=BLUE, markersize=4 if len(panel.risk) <= _MOST_DOTS else 0, clip_on=False, zorder=4)
    highest = max(max(curve.points()[1]) for curve in curves) or 1.0
    ax.set(xlim=(0, 102), ylim=(0, 108 * highest), xticks=[0, 50, 100])
    return f"AURC {100 * panel.aurc:.1f} %"


def _draw_line(ax: Any, curve: RiskCurve, most: int | None = None, **style: Any) -> None:
    """Draw a curve in percent, with about ``most`` of its points and always with the last one; None draws all."""
    points = [*zip(*curve.points(), strict=True)]
    every = 1 if most is None else -(-len(points) // most)
    xs, ys = zip(*points[:-1:every], points[-1], strict=True)
    ax.plot([100 * x for x in xs], [100 * y for y in ys], **style)
