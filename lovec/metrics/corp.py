"""CORP: reliability by isotonic recalibration, and what of the Brier score is miscalibration.

Dimitriadis, Gneiting and Jordan (2021), "Stable reliability diagrams for probabilistic classifiers", PNAS 118(8),
arXiv 2008.03033. The recalibrated confidence is the isotonic regression of the labels on the confidences, so there are
no bins to choose. Labels may be graded: the squared error is as proper a score of a mean as of a probability (Gneiting
and Resin 2023, arXiv 2108.03210).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lovec.core.settings import check_count, check_range, check_seed
from lovec.metrics.functional import Values
from lovec.metrics.weighted import PairLayout, WeightedPairs

Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Decomposition:
    """The parts of the Brier score: miscalibration - discrimination + uncertainty.

    With r the recalibrated confidences, f the labels and m their mean: miscalibration (MCB) is mean (c - f)^2 - mean
    (r - f)^2, discrimination (DSC) mean (m - f)^2 - mean (r - f)^2, uncertainty (UNC) mean (m - f)^2. For graded labels
    as for labels 0 and 1, the three give the Brier score exactly (up to rounding), and none is negative. MCB is 0 where
    the confidences are their own isotonic regression, DSC is 0 where that regression is constant. For labels 0 and 1,
    UNC is m (1 - m); graded labels have less.

    Attributes:
        miscalibration: how much isotonic recalibration lowers the Brier score, float64; 0 is best.
        discrimination: how much better the recalibrated confidences are than the mean label, float64; more is better.
        uncertainty: variance of the labels, float64, at most 0.25; no confidence changes it.
    """

    miscalibration: Tensor
    discrimination: Tensor
    uncertainty: Tensor


@dataclass(frozen=True, slots=True)
class CorpCurve:
    """A CORP reliability diagram, ready to be plotted; empty without pairs.

    Attributes:
        x: the different confidences, ascending, [K], float64.
        recalibrated: mean label at each of them by isotonic regression, [K], float64, non-decreasing; it is linear in
            between.
        low: lower end of the consistency band at each of them, [K], float64.
        high: upper end, likewise.
        count: number of pairs with each confidence, [K], int64.
        brier: Brier score; NaN without pairs.
        miscalibration: see ``Decomposition``; NaN without pairs.
        discrimination: likewise.
        uncertainty: likewise.
    """

    x: Tensor
    recalibrated: Tensor
    low: Tensor
    high: Tensor
    count: Tensor
    brier: float
    miscalibration: float
    discrimination: float
    uncertainty: float

    @property
    def n(self) -> int:
        """Number of pairs."""
        return int(self.count.sum())


def corp_reliability(
    confidence: Values, factuality: Values, level: float = 0.95, draws: int = 1000, seed: int = 0
) -> CorpCurve:
    """Compute the CORP reliability curve with a consistency band.

    The band holds, at every confidence, a share ``level`` of the curves that calibrated confidences would give: pairs
    are drawn with replacement, their labels are replaced by labels with mean c, and the curve is computed again. A
    label is drawn from 0 and 1 with probability c for 1. Graded labels vary less about their mean than that: their
    variance is s c (1 - c), with s the sum of (f - r)^2 over that of r (1 - r), so a label is drawn so with
    probability s, and is c itself otherwise. For labels 0 and 1, s is exactly 1. The band takes pairs as independent;
    sentences of the same answer are not quite, so it is somewhat narrow for them.

    Args:
        confidence: c, [N], in [0, 1].
        factuality: f, [N], in [0, 1].
        level: level of the band at each confidence, between 0 and 1.
        draws: number of draws for the band.
        seed: seed of the draws.

    Returns:
        The curve; the same input gives the same band.

    Raises:
        LovecError: see ``lovec.metrics.functional.checked_pair``, or a setting is out of range.
    """
    check_range("level", level, above=0, below=1)
    check_count("draws", draws)
    check_seed("seed", seed)
    pairs = PairLayout.of(confidence, factuality).whole()
    levels, _ = pairs.layout.by_confidence
    x, count, truth = (values.cpu().numpy() for values in (levels, pairs.mass[0], pairs.truth[0]))
    recalibrated = _isotonic(truth, count)
    low, high = _band(x, count, _spread(pairs, recalibrated), level, draws, seed) if len(x) else (x, x)
    parts = decompose(pairs)
    brier = (pairs.layout.confidence - pairs.layout.factuality).square().mean()
    return CorpCurve(
        x=levels,
        recalibrated=torch.from_numpy(recalibrated).to(levels.device),
        low=torch.from_numpy(low).to(levels.device),
        high=torch.from_numpy(high).to(levels.device),
        count=pairs.mass[0].long(),
        brier=float(brier),
        miscalibration=float(parts.miscalibration),
        discrimination=float(parts.discrimination),
        uncertainty=float(parts.uncertainty),
    )


def brier_decomposition(confidence: Values, factuality: Values) -> Decomposition:
    """Compute the parts of the Brier score.

    Args:
        confidence: c, [N], in [0, 1].
        factuality: f, [N], in [0, 1].

    Returns:
        Scalars, NaN for N = 0.

    Raises:
        LovecError: see ``lovec.metrics.functional.checked_pair``.
    """
    parts = decompose(PairLayout.of(confidence, factuality).whole())
    return Decomposition(parts.miscalibration[0], parts.discrimination[0], parts.uncertainty[0])


def decompose(pairs: WeightedPairs) -> Decomposition:
    """Compute the parts of the Brier score of every draw: [D] each, NaN for a draw without pairs."""
    confidence, factuality = pairs.layout.confidence, pairs.layout.factuality
    brier = pairs.weight @ (confidence - factuality).square() / pairs.n
    # mean (r - f)^2 = mean (m - f)^2 - mean (r - m)^2, since r is the mean label of each of its blocks.
    uncertainty = (pairs.weight * (factuality - pairs.mean[:, None]).square()).sum(1) / pairs.n
    mass, truth = pairs.mass.cpu().numpy(), pairs.truth.cpu().numpy()
    explained = [
        float(n @ (_isotonic(t, n) - t.sum() / max(n.sum(), 1.0)) ** 2) for n, t in zip(mass, truth, strict=True)
    ]
    discrimination = torch.tensor(explained, dtype=torch.float64, device=pairs.n.device) / pairs.n
    return Decomposition((brier - uncertainty + discrimination).clamp(min=0.0), discrimination, uncertainty)


def _isotonic(truth: Array, count: Array) -> Array:
    """Return the isotonic regression of labels with these sums per level, [K]; 0 at levels without any pair."""
    from scipy.optimize import isotonic_regression  # takes a moment, which reports without the parts need not wait

    fitted, there = np.zeros_like(truth), count > 0
    if there.any():
        fitted[there] = isotonic_regression(truth[there] / count[there], weights=count[there]).x.clip(0.0, 1.0)
    return fitted


def _spread(pairs: WeightedPairs, recalibrated: Array) -> float:
    """Return the variance of the labels about the curve as a share of that of labels 0 and 1: in [0, 1]."""
    fitted = torch.from_numpy(recalibrated).to(pairs.weight.device)[pairs.layout.by_confidence[1]]
    most = float((fitted * (1.0 - fitted)).sum())
    return min(float((pairs.layout.factuality - fitted).square().sum()) / most, 1.0) if most else 0.0


def _band(x: Array, count: Array, spread: float, level: float, draws: int, seed: int) -> tuple[Array, Array]:
    """Return the ends of the consistency band, [K] each, see ``corp_reliability``."""
    stream, n = np.random.default_rng(seed), int(count.sum())
    curves = np.empty((draws, len(x)))
    for row in range(draws):
        drawn = stream.multinomial(n, count / n)
        varied = stream.binomial(drawn, spread)
        truth = stream.binomial(varied, x) + (drawn - varied) * x
        there = drawn > 0
        curves[row] = np.interp(x, x[there], _isotonic(truth, drawn.astype(np.float64))[there])
    low, high = np.quantile(curves, [(1 - level) / 2, (1 + level) / 2], axis=0)
    return low, high
