"""Risk-coverage curves: how much is wrong in what is kept, the more is kept, one panel a method."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from lovec.metrics.records import sentence_pairs
from lovec.metrics.risk import aurc, risk_coverage
from lovec.reports.style import BLUE, COLUMNS, FAINT, INK, short, tiles, write_figure
from lovec.types import LovecError, Record

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_HEIGHT = 2.0  # inches of a panel
_POINTS = 72  # of a curve, about, where a threshold can reach few coverages
_BEHIND = 40  # points of a curve behind another's


@dataclass(frozen=True, slots=True)
class Curve:
    """What a panel shows.

    Attributes:
        coverage: shares of the sentences that a threshold can keep, ascending, in (0, 1].
        risk: mean of 1 - f of what is kept, for each of them.
        aurc: area under the curve, see ``lovec.metrics.risk.aurc``.
    """

    coverage: tuple[float, ...]
    risk: tuple[float, ...]
    aurc: float

    def drawn(self) -> tuple[list[float], list[float]]:
        """Coverage and risk of every part that could be kept: of equal confidences, some drawn at random."""
        xs, ys = [0.0], [self.risk[0]]
        steps = max(1, _POINTS // len(self.risk))
        for begin, kept, end in zip((0.0, *self.coverage), (0.0, *self.risk), range(len(self.risk)), strict=False):
            width = self.coverage[end] - begin
            loss = (self.coverage[end] * self.risk[end] - begin * kept) / width
            for step in range(1, steps + 1):
                x = begin + width * step / steps
                xs.append(x)
                ys.append((begin * kept + (x - begin) * loss) / x)
        return xs, ys


def risk_curve(records: Sequence[Record], readout: str = "stated") -> Curve:
    """The curve of tagged and labelled records, over sentences that have both.

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
    pair = torch.tensor(stated, dtype=torch.float64), torch.tensor(true, dtype=torch.float64)
    coverage, risk = risk_coverage(*pair)
    return Curve(tuple(coverage.tolist()), tuple(risk.tolist()), float(aurc(*pair)))


def risk_coverage_curves(
    groups: Mapping[str, Sequence[Record]],
    path: str | os.PathLike[str],
    readout: str = "stated",
    title: str = "How much is wrong in what is kept",
) -> Path:
    """Write a figure with one panel a method; the same records give the same bytes.

    The most confident sentences are kept first. A dot is what a threshold on the confidence keeps; between dots,
    sentences of equal confidence are drawn at random. The other methods are faint behind each. A method that knows
    nothing is flat; the sooner a curve falls below that on its way to the left, the better.

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
    panels = {name: risk_curve(records, readout) for name, records in groups.items()}
    return write_figure(lambda: draw(panels, title), path, title)


def draw(panels: Mapping[str, Curve], title: str) -> Figure:
    """The figure, panels row by row.

    Raises:
        LovecError: there is no panel.
    """
    figure, axes = tiles(len(panels), (_HEIGHT,), title, "share of the sentences kept, % (grey: the others)")
    curves = {name: curve.drawn() for name, curve in panels.items()}
    most = max(max(ys) for _, ys in curves.values()) or 1.0
    for place, ((ax,), (name, panel)) in enumerate(zip(axes, panels.items(), strict=True)):
        for other in curves:
            if other != name:
                _line(ax, curves[other], -(-len(curves[other][0]) // _BEHIND), color=FAINT, alpha=0.5, linewidth=0.9)
        _line(ax, curves[name], 1, color=BLUE, linewidth=1.8, zorder=3)
        dots = [100 * share for share in panel.coverage], [100 * risk for risk in panel.risk]
        ax.plot(*dots, "o", color=BLUE, markersize=4 if len(panel.risk) <= 20 else 0, clip_on=False, zorder=4)
        ax.set(xlim=(0, 102), ylim=(0, 108 * most), xticks=[0, 50, 100])
        ax.set_title(f"{short(name)}\nAURC {100 * panel.aurc:.1f} %", fontsize=10, color=INK)
        if place % COLUMNS == 0:
            ax.set_ylabel("risk, %", color=INK)
    return figure


def _line(ax: Any, curve: tuple[list[float], list[float]], every: int, **style: Any) -> None:
    """A curve, of whose points every so many are drawn, and the last."""
    points = [*zip(*curve, strict=True)]
    xs, ys = zip(*points[:-1:every], points[-1], strict=True)
    ax.plot([100 * x for x in xs], [100 * y for y in ys], **style)
