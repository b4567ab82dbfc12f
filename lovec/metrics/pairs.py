"""The torchmetrics: they collect batches, on any number of processes, and leave the arithmetic to ``functional``."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torchmetrics import Metric
from torchmetrics.utilities.data import dim_zero_cat

from lovec.metrics.functional import (
    brier_score,
    checked_pair,
    ece_from_sums,
    group_count,
    group_sums,
    spearman,
)
from lovec.metrics.risk import aurc


class BrierScore(Metric):
    """Brier score with soft labels, see ``lovec.metrics.functional.brier_score``. Lower is better.

    Args:
        kwargs: options of ``torchmetrics.Metric``.
    """

    is_differentiable = False
    higher_is_better = False
    full_state_update = False
    total: Tensor
    count: Tensor

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.add_state("total", torch.zeros((), dtype=torch.float64), dist_reduce_fx="sum")
        self.add_state("count", torch.zeros((), dtype=torch.int64), dist_reduce_fx="sum")

    def update(self, confidence: Tensor, factuality: Tensor) -> None:
        """Add pairs, both [N] in [0, 1].

        Raises:
            LovecError: see ``lovec.metrics.functional.checked_pair``.
        """
        if confidence.numel() or factuality.numel():  # the mean of nothing is NaN and would stay in the sum
            self.total += brier_score(confidence, factuality) * confidence.numel()
            self.count += confidence.numel()

    def compute(self) -> Tensor:
        """Mean (c - f)^2 of all pairs: scalar, float64; NaN without any."""
        return self.total / self.count


class ECEM(Metric):
    """Expected calibration error with soft labels, see ``lovec.metrics.functional.ece_m``. Lower is better.

    Args:
        variant: "bins", "levels" or "huang".
        bins: number of bins of the variant "bins".
        kwargs: options of ``torchmetrics.Metric``.

    Raises:
        LovecError: an unknown variant, or fewer than one bin.
    """

    is_differentiable = False
    higher_is_better = False
    full_state_update = False
    sums: Tensor

    def __init__(self, variant: str = "bins", bins: int = 10, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.variant = variant
        self.bins = bins
        groups = group_count(variant, bins)
        self.add_state("sums", torch.zeros(3, groups, dtype=torch.float64), dist_reduce_fx="sum")

    def update(self, confidence: Tensor, factuality: Tensor) -> None:
        """Add pairs, both [N] in [0, 1].

        Raises:
            LovecError: see ``lovec.metrics.functional.checked_pair``.
        """
        self.sums += group_sums(*checked_pair(confidence, factuality), self.variant, self.bins)

    def compute(self) -> Tensor:
        """ECE-M of all pairs: scalar, float64; NaN without any."""
        return ece_from_sums(self.sums)


class PairMetric(Metric):
    """Base of metrics that need all pairs at once: keeps every confidence and factuality (16 bytes a pair).

    Args:
        kwargs: options of ``torchmetrics.Metric``.
    """

    is_differentiable = False
    full_state_update = False
    confidence: list[Tensor]
    factuality: list[Tensor]

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        # A process that saw nothing is gathered as an empty tensor of this type, which must match the others'.
        self.set_dtype(torch.float64)
        self.add_state("confidence", [], dist_reduce_fx="cat")
        self.add_state("factuality", [], dist_reduce_fx="cat")

    def update(self, confidence: Tensor, factuality: Tensor) -> None:
        """Add pairs, both [N] in [0, 1].

        Raises:
            LovecError: see ``lovec.metrics.functional.checked_pair``.
        """
        confidence, factuality = checked_pair(confidence, factuality)
        self.confidence.append(confidence)
        self.factuality.append(factuality)

    def pairs(self) -> tuple[Tensor, Tensor]:
        """All confidences and factualities so far, [N] each, float64."""
        empty = torch.zeros(0, dtype=torch.float64, device=self.device)
        return (
            dim_zero_cat(self.confidence) if len(self.confidence) else empty,
            dim_zero_cat(self.factuality) if len(self.factuality) else empty,
        )


class SpearmanCorrelation(PairMetric):
    """Spearman's rank correlation, see ``lovec.metrics.functional.spearman``. Higher is better."""

    higher_is_better = True

    def compute(self) -> Tensor:
        """Rank correlation of all pairs: scalar, float64; NaN without any, NaN and a warning where one is constant."""
        return spearman(*self.pairs())


class AURC(PairMetric):
    """Area under the risk-coverage curve, see ``lovec.metrics.risk.aurc``. Lower is better."""

    higher_is_better = False

    def compute(self) -> Tensor:
        """Mean risk over all coverages, of all pairs: scalar, float64; NaN without any."""
        return aurc(*self.pairs())
