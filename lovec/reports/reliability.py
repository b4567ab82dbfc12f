"""Reliability diagrams: mean factuality against mean confidence, bin by bin."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from lovec.metrics.functional import brier_score, ece_from_sums, group_of, group_sums
from lovec.metrics.grouped import GroupedPairs
from lovec.reports.panels import PanelLayout, labelled_pairs, write_panels
from lovec.reports.style import BLUE, FAINT, GREEN, GROUND, HALVES, INK, ORANGE, SIDE, FilePath, short
from lovec.types import Record

if TYPE_CHECKING:
    from lovec.metrics.corp import CorpCurve

BINS = 10
"""Number of equal bins of the confidence, the same as for ECE-M."""

DRAWS, LEVEL = 1000, 0.95
"""Number of bootstrap draws behind an interval, and the share of them that lies inside it."""

_FEWEST_DRAWS, _MOST_DRAWN = 100, 50_000_000  # of more than 50,000 groups, fewer draws: they hardly differ
_MOST_LEVELS = 500  # different confidences that a CORP curve is computed with

_FEWEST = 5  # questions that a bin needs for an interval: draws of fewer hardly differ
_RANGE = (-0.04, 1.04)  # from 0 to 1, with room for dots at the ends
_LAYOUT = PanelLayout("mean confidence in the bin", ("mean factuality", "share, %"), (SIDE, 0.6))


@dataclass(frozen=True, slots=True)
class Bin:
    """One bin of a reliability diagram, with at least one sentence.

    Attributes:
        count: number of its sentences.
        confidence: their mean confidence, in [0, 1].
        factuality: their mean factuality, in [0, 1].
        low: lower end of the bootstrap interval of ``factuality``, over questions; None if the bin holds sentences of
            too few questions.
        high: upper end.
    """

    count: int
    confidence: float
    factuality: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True, slots=True)
class Reliability:
    """The reliability diagram of one method.

    Attributes:
        bins: bins that are not empty, least confident first.
        brier: mean of (c - f)^2 over the sentences.
        ece_m: sum over bins of count / n times |mean factuality - mean confidence|.
        curve: the CORP curve with its band; None draws none.
    """

    bins: tuple[Bin, ...]
    brier: float
    ece_m: float
    curve: CorpCurve | None = None

    @property
    def n(self) -> int:
        """Number of sentences with a confidence and a factuality."""
        return sum(bin_.count for bin_ in self.bins)


def reliability(
    records: Sequence[Record] | GroupedPairs, readout: str = "stated", corp: bool = False, band: bool = True
) -> Reliability:
    """Compute bins and metrics over all sentences with a confidence and a factuality.

    Args:
        records: tagged and labelled records, or their pairs.
        readout: "stated" or "mean", see ``lovec.metrics.records.confidence_of``.
        corp: whether to compute the CORP curve, too.
        band: whether to compute its consistency band, which takes most of the time; without it the ends are worthless.

    Raises:
        LovecError: no sentence has both a confidence and a factuality.
    """
    pairs = labelled_pairs(records, readout)
    confidence, factuality = pairs.confidence, pairs.factuality
    sums = group_sums(confidence, factuality, "bins", BINS)
    ends = _intervals(pairs)
    bins = tuple(Bin(int(n), c / n, f / n, *pair) for (n, c, f), pair in zip(sums.T.tolist(), ends, strict=True) if n)
    brier, ece = float(brier_score(confidence, factuality)), float(ece_from_sums(sums))
    return Reliability(bins, brier, ece, _corp_curve(pairs, DRAWS if band else 1) if corp else None)


def reliability_diagram(
    groups: Mapping[str, Sequence[Record] | GroupedPairs | Reliability],
    path: FilePath,
    readout: str = "stated",
    title: str = "Sentences: how true against how sure",
) -> Path:
    """Write a plot with one reliability diagram per method; the same records give the same bytes.

    A dot is a bin: its mean factuality over its mean confidence. The dashed diagonal is perfect calibration, the thick
    line from it to a dot the gap that ECE-M counts. The thin line is a 95 % bootstrap interval over the questions; a
    hollow dot has none, because its bin holds sentences of fewer than five questions. The strip below shows which share
    of the sentences each bin holds. The CORP curve, where there is one, needs no bins: it is the isotonic regression of
    factuality on confidence, and the band holds 95 % of the curves that calibrated confidences would give.

    Args:
        groups: tagged and labelled records of every method, their pairs, or what `reliability` returned, by its name.
        path: as for ``write_panels``, also for what is returned.
        readout: how records are read.
        title: of the plot.

    Raises:
        LovecError: as for ``write_panels``; or a method has no sentence with a confidence and a factuality.
    """
    panels = [
        (short(name), given if isinstance(given, Reliability) else reliability(given, readout))
        for name, given in groups.items()
    ]
    return write_panels(panels, _draw, _LAYOUT, path, title)


def _corp_curve(pairs: GroupedPairs, draws: int) -> CorpCurve:
    """Return the CORP curve; of very many different confidences, those that a plot can tell apart."""
    from lovec.metrics.corp import corp_reliability  # imported here because it takes SciPy

    confidence = pairs.confidence
    if len(confidence) > _MOST_LEVELS and len(set(confidence.tolist())) > _MOST_LEVELS:
        confidence = (confidence * _MOST_LEVELS).round() / _MOST_LEVELS
    return corp_reliability(confidence, pairs.factuality, draws=draws)


def _draw(axes: Sequence[Any], panel: Reliability) -> str:
    upper, lower = axes
    curve = panel.curve
    upper.plot([0, 1], [0, 1], color=FAINT, linewidth=1, linestyle=(0, (4, 3)), zorder=1)
    if curve is not None:
        x, low, high = curve.x.tolist(), curve.low.tolist(), curve.high.tolist()
        upper.fill_between(x, low, high, color=FAINT, alpha=0.25, linewidth=0, zorder=1)
        upper.plot(x, curve.recalibrated.tolist(), color=GREEN, linewidth=1.5, zorder=3.5)
    for bin_ in panel.bins:
        upper.vlines(bin_.confidence, bin_.confidence, bin_.factuality, color=ORANGE, alpha=0.45, linewidth=5, zorder=2)
        if bin_.low is not None:
            upper.vlines(bin_.confidence, bin_.low, bin_.high, color=INK, linewidth=1.1, zorder=3)
        fill = GROUND if bin_.low is None else BLUE
        upper.scatter(bin_.confidence, bin_.factuality, s=30, color=fill, edgecolors=BLUE, zorder=4, clip_on=False)
    upper.set(xlim=_RANGE, ylim=_RANGE, xticks=[0, 0.5, 1], **HALVES)
    upper.tick_params(labelbottom=False)
    upper.spines[["bottom", "left"]].set_bounds(0, 1)

    centres = [min(int(BINS * bin_.confidence + 1e-6), BINS - 1) / BINS + 0.5 / BINS for bin_ in panel.bins]
    shares = [100 * bin_.count / panel.n for bin_ in panel.bins]
    lower.bar(centres, shares, width=0.9 / BINS, color=BLUE, alpha=0.75)
    lower.set(xlim=_RANGE, ylim=(0, 100), xticks=[0, 0.5, 1], xticklabels=["0", "0.5", "1"], yticks=[0, 100])
    lower.spines["bottom"].set_bounds(0, 1)
    left = sum(bin_.count for bin_ in panel.bins if bin_.confidence < 0.5) <= panel.n / 2  # the emptier side
    place, side = (0.0, "left") if left else (1.0, "right")
    lower.text(place, 92, f"n = {panel.n}", fontsize=8, ha=side, va="top")
    return f"BS {100 * panel.brier:.1f}, ECE-M {100 * panel.ece_m:.1f} %"


def _intervals(pairs: GroupedPairs) -> list[tuple[float, float] | tuple[None, None]]:
    """Return the percentile interval of every bin's mean factuality, over draws of the groups with replacement."""
    n, double = pairs.groups, torch.float64
    place = pairs.group * BINS + group_of(pairs.confidence, "bins", BINS)
    counts, truths = (
        torch.zeros(n * BINS, dtype=double).index_add(0, place, values).view(n, BINS)
        for values in (torch.ones_like(pairs.factuality), pairs.factuality)
    )
    generator = torch.Generator().manual_seed(0)
    means = []
    for _ in range(min(DRAWS, max(_FEWEST_DRAWS, _MOST_DRAWN // n))):
        times_drawn = torch.bincount(torch.randint(n, (n,), generator=generator), minlength=n).double()
        means.append((times_drawn @ truths) / (times_drawn @ counts))
    ends = torch.tensor([(1 - LEVEL) / 2, (1 + LEVEL) / 2], dtype=double)
    low, high = torch.nanquantile(torch.stack(means), ends, dim=0).clamp(0.0, 1.0).tolist()
    enough = ((counts > 0).sum(0) >= _FEWEST).tolist()
    return [(a, b) if many else (None, None) for a, b, many in zip(low, high, enough, strict=True)]
