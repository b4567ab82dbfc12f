"""Metrics of pairs as torchmetrics: each a thin class around a pure function.

They accumulate batches on any number of processes, and their values are those of the whole: batches may be empty, and
a process may have none. Values are float64 scalars, NaN where they are undefined.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any

import torch
from torch import Tensor
from torch.nn import Module
from torchmetrics import Metric
from torchmetrics.utilities.data import dim_zero_cat

from lovec.metrics.corp import brier_decomposition, decompose
from lovec.metrics.functional import (
    F1_K,
    LOG_CLIP,
    Values,
    checked_pair,
    ece_from_sums,
    f1_at_k,
    float64_device,
    group_count,
    group_sums,
    log_losses,
    spearman,
)
from lovec.metrics.ranking import (
    THRESHOLD,
    auarc,
    auarc_of,
    auprc,
    auprc_of,
    auroc,
    auroc_of,
    c_index,
    c_index_of,
    order_within,
    prr,
    prr_of,
)
from lovec.metrics.risk import aurc
from lovec.metrics.smooth import smooth_ece, smooth_ece_of
from lovec.metrics.weighted import PairLayout
from lovec.settings import Count, PositiveShare, Setting, checked
from lovec.types import N_SCORES


class ExactMetric(Metric):
    """Base of metrics whose states keep their precision, whatever the precision of the module that they belong to.

    A model that is cast to half precision casts the states of its metrics with it, and sums of thousands of pairs in
    bfloat16 are wrong in the second digit. Here ``.to(dtype)`` moves the states and leaves their types alone. On a
    device without float64 the states stay on the CPU.

    Args:
        kwargs: options of ``torchmetrics.Metric``.
    """

    full_state_update = False

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._dtype = torch.float64

    def _apply(self, fn: Callable[[Tensor], Tensor], exclude_state: Sequence[str] = ()) -> Module:
        device = float64_device(fn(torch.zeros(1, device=self.device)).device)
        module = super()._apply(lambda state: state.to(device), exclude_state)
        # A process without pairs contributes an empty tensor of this type to those of the others.
        self._dtype = torch.float64
        return module


class RatioMetric(ExactMetric):
    """Base of metrics that are a sum divided by a count, NaN where the count is 0.

    Args:
        kwargs: options of ``torchmetrics.Metric``.
    """

    sums: Tensor
    """[2], float64: the sum and the count."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.add_state("sums", torch.zeros(2, dtype=torch.float64), dist_reduce_fx="sum")

    def add(self, total: float | Tensor, count: int) -> None:
        """Add a sum and the number of values in it."""
        self.sums += torch.tensor([float(total), count], dtype=torch.float64, device=self.device)

    def compute(self) -> Tensor:
        """Return the sum divided by the count: scalar, float64."""
        return self.sums[0] / self.sums[1]


class BrierScore(RatioMetric):
    """Brier score with soft labels, see ``lovec.metrics.functional.brier_score``."""

    higher_is_better = False

    def update(self, confidence: Tensor, factuality: Tensor) -> None:
        """Add pairs, both [N] in [0, 1].

        Raises:
            LovecError: see ``lovec.metrics.functional.checked_pair``.
        """
        confidence, factuality = checked_pair(confidence, factuality)
        self.add((confidence - factuality).square().sum(), confidence.numel())


class MeanConfidence(RatioMetric):
    """Mean confidence of the pairs."""

    def update(self, confidence: Tensor, factuality: Tensor) -> None:
        """Add pairs, both [N] in [0, 1].

        Raises:
            LovecError: see ``lovec.metrics.functional.checked_pair``.
        """
        self.add(checked_pair(confidence, factuality)[0].sum(), confidence.numel())


class MeanFactuality(RatioMetric):
    """Mean factuality of the pairs."""

    def update(self, confidence: Tensor, factuality: Tensor) -> None:
        """Add pairs, both [N] in [0, 1].

        Raises:
            LovecError: see ``lovec.metrics.functional.checked_pair``.
        """
        self.add(checked_pair(confidence, factuality)[1].sum(), factuality.numel())


class MalformedShare(RatioMetric):
    """Share of labelled items without a valid confidence."""

    higher_is_better = False

    def update(self, confidence: Tensor, malformed: int) -> None:
        """Add the valid confidences, [N], and the number of items that have none."""
        self.add(malformed, malformed + confidence.numel())


class ECEM(ExactMetric):
    """Expected calibration error with soft labels, see ``lovec.metrics.functional.ece_m``.

    Args:
        variant: "bins", "levels" or "huang".
        bins: number of bins of the variant "bins".
        levels: number of levels of the scale for the other two variants.
        kwargs: options of ``torchmetrics.Metric``.

    Raises:
        LovecError: see ``lovec.metrics.functional.group_count``.
    """

    higher_is_better = False
    sums: Tensor

    def __init__(self, variant: str = "bins", bins: int = 10, levels: int = N_SCORES, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.grouping: dict[str, Any] = {"variant": variant, "bins": bins, "levels": levels}
        self.add_state("sums", torch.zeros(3, group_count(**self.grouping), dtype=torch.float64), dist_reduce_fx="sum")

    def update(self, confidence: Tensor, factuality: Tensor) -> None:
        """Add pairs, both [N] in [0, 1].

        Raises:
            LovecError: see ``lovec.metrics.functional.checked_pair``.
        """
        self.sums += group_sums(*checked_pair(confidence, factuality), **self.grouping)

    def compute(self) -> Tensor:
        """Return ECE-M of all pairs: scalar, float64; NaN without any."""
        return ece_from_sums(self.sums)


class PairMetric(ExactMetric):
    """Base of metrics that need all pairs at once: keeps every confidence and factuality (16 bytes per pair).

    Args:
        kwargs: options of ``torchmetrics.Metric``.
    """

    confidence: list[Tensor]
    factuality: list[Tensor]

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
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
        """Return all confidences and factualities so far, [N] each, float64."""
        empty = torch.zeros(0, dtype=torch.float64, device=self.device)
        return (
            dim_zero_cat(self.confidence) if len(self.confidence) else empty,
            dim_zero_cat(self.factuality) if len(self.factuality) else empty,
        )


class SpearmanCorrelation(PairMetric):
    """Spearman's rank correlation, see ``lovec.metrics.functional.spearman``."""

    higher_is_better = True

    def compute(self) -> Tensor:
        """Return the rank correlation of all pairs: scalar, float64; NaN without any or where one side is constant."""
        return spearman(*self.pairs())


class AURC(PairMetric):
    """Area under the risk-coverage curve, see ``lovec.metrics.risk.aurc``."""

    higher_is_better = False

    def compute(self) -> Tensor:
        """Return the mean risk over all coverages, of all pairs: scalar, float64; NaN without any."""
        return aurc(*self.pairs())


@checked()
class AUROC(PairMetric):
    """Area under the ROC curve, see ``lovec.metrics.ranking.auroc``.

    Args:
        threshold: labels of this or more are true, above 0 and at most 1.
        kwargs: options of ``torchmetrics.Metric``.

    Raises:
        LovecError: the threshold is out of range.
    """

    higher_is_better = True

    def __init__(self, threshold: PositiveShare = THRESHOLD, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.threshold = threshold

    def compute(self) -> Tensor:
        """Return the area of all pairs: scalar, float64; NaN where all labels are true, or none is."""
        return auroc(*self.pairs(), self.threshold)


class AUPRC(AUROC):
    """Area under the precision-recall curve, see ``lovec.metrics.ranking.auprc``; options as for ``AUROC``."""

    def compute(self) -> Tensor:
        """Return the average precision of all pairs: scalar, float64; NaN where no label is true."""
        return auprc(*self.pairs(), self.threshold)


class CIndex(PairMetric):
    """Concordance index, see ``lovec.metrics.ranking.c_index``."""

    higher_is_better = True

    def compute(self) -> Tensor:
        """Return the C-index of all pairs: scalar, float64; NaN where all factualities are equal."""
        return c_index(*self.pairs())


class AUARC(PairMetric):
    """Area under the accuracy-rejection curve, see ``lovec.metrics.ranking.auarc``."""

    higher_is_better = True

    def compute(self) -> Tensor:
        """Return the area of all pairs: scalar, float64; NaN for fewer than two."""
        return auarc(*self.pairs())


class PredictionRejectionRatio(PairMetric):
    """Prediction rejection ratio, see ``lovec.metrics.ranking.prr``."""

    higher_is_better = True

    def compute(self) -> Tensor:
        """Return the ratio of all pairs: scalar, float64; NaN where all factualities are equal."""
        return prr(*self.pairs())


class SmoothECE(PairMetric):
    """Smooth calibration error, see ``lovec.metrics.smooth.smooth_ece``."""

    higher_is_better = False

    def compute(self) -> Tensor:
        """Return smECE of all pairs: scalar, float64; NaN without any."""
        return smooth_ece(*self.pairs())


class Miscalibration(PairMetric):
    """Miscalibration part of the Brier score, see ``lovec.metrics.corp.Decomposition``."""

    higher_is_better = False

    def compute(self) -> Tensor:
        """Return the part of all pairs: scalar, float64; NaN without any."""
        return brier_decomposition(*self.pairs()).miscalibration


class Discrimination(PairMetric):
    """Discrimination part of the Brier score, see ``lovec.metrics.corp.Decomposition``."""

    higher_is_better = True

    def compute(self) -> Tensor:
        """Return the part of all pairs: scalar, float64; NaN without any."""
        return brier_decomposition(*self.pairs()).discrimination


class Uncertainty(PairMetric):
    """Uncertainty part of the Brier score, see ``lovec.metrics.corp.Decomposition``."""

    def compute(self) -> Tensor:
        """Return the part of all pairs: scalar, float64; NaN without any."""
        return brier_decomposition(*self.pairs()).uncertainty


class AllPairMetrics(PairMetric):
    """All metrics that need all pairs at once, by their names in ``lovec.metrics.table``: the pairs are kept once."""

    def compute(self) -> Mapping[str, Tensor]:
        """Return the metrics of all pairs: scalars, float64, NaN where they are undefined."""
        confidence, factuality = self.pairs()
        pairs = PairLayout(confidence, factuality).whole()
        parts = decompose(pairs)
        by_draw = {
            "miscalibration": parts.miscalibration,
            "discrimination": parts.discrimination,
            "uncertainty": parts.uncertainty,
            "smooth_ece": smooth_ece_of(pairs),
            "c_index": c_index_of(pairs),
            "auroc": auroc_of(pairs),
            "auprc": auprc_of(pairs),
            "auarc": auarc_of(pairs),
            "prr": prr_of(pairs),
        }
        values = {name: value[0] for name, value in by_draw.items()}
        return values | {"spearman": spearman(confidence, factuality), "aurc": aurc(confidence, factuality)}


class OrderWithinClaims(PairMetric):
    """Order among sentences that claim the same, see ``lovec.metrics.ranking.order_within``.

    Args:
        kwargs: options of ``torchmetrics.Metric``.
    """

    higher_is_better = True

    claim: list[Tensor]

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.add_state("claim", [], dist_reduce_fx="cat")

    def update(self, confidence: Tensor, factuality: Tensor, claim: Tensor | None = None) -> None:
        """Add pairs.

        Args:
            confidence: [N], in [0, 1].
            factuality: [N], in [0, 1].
            claim: [N], int64: what each sentence claims, -1 where it is not known; None where no claim is known.

        Raises:
            LovecError: see ``lovec.metrics.functional.checked_pair``.
        """
        if claim is None or not len(known := (claim >= 0).nonzero()[:, 0]):
            return  # so that data without claims keep nothing
        super().update(confidence[known], factuality[known])
        self.claim.append(claim[known].double().to(self.device))

    def compute(self) -> Tensor:
        """Return the order of all pairs: scalar, float64; NaN where none can be compared."""
        confidence, factuality = self.pairs()
        if not len(confidence):
            return confidence.new_tensor(float("nan"))
        return order_within(confidence, factuality, dim_zero_cat(self.claim).long())


@checked()
class LogScore(RatioMetric):
    """Logarithmic score, see ``lovec.metrics.functional.log_score``.

    Args:
        clip: above 0 and below 0.5; confidences are clipped to [clip, 1 - clip].
        kwargs: options of ``torchmetrics.Metric``.

    Raises:
        LovecError: the clip is out of range.
    """

    higher_is_better = False

    def __init__(self, clip: Annotated[float, Setting(above=0, below=0.5)] = LOG_CLIP, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.clip = clip

    def update(self, confidence: Tensor, factuality: Tensor) -> None:
        """Add pairs, both [N] in [0, 1].

        Raises:
            LovecError: see ``lovec.metrics.functional.checked_pair``.
        """
        losses = log_losses(*checked_pair(confidence, factuality), self.clip)
        self.add(losses.sum(), losses.numel())


class GradedShare(RatioMetric):
    """Share of the pairs whose factuality is neither 0 nor 1."""

    def update(self, confidence: Tensor, factuality: Tensor) -> None:
        """Add pairs, both [N] in [0, 1].

        Raises:
            LovecError: see ``lovec.metrics.functional.checked_pair``.
        """
        _, factuality = checked_pair(confidence, factuality)
        self.add(((factuality > 0) & (factuality < 1)).sum(), factuality.numel())


@checked()
class F1AtK(RatioMetric):
    """Mean F1@K of passages, see ``lovec.metrics.functional.f1_at_k``; passages without sentences are left out.

    Args:
        k: number of supported facts that a reader wants, at least 1.
        kwargs: options of ``torchmetrics.Metric``.

    Raises:
        LovecError: K is below 1.
    """

    higher_is_better = True

    def __init__(self, k: Count = F1_K, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.k = k

    def update(self, supported: Values, total: Values) -> None:
        """Add passages: the number of supported sentences or claims of each, and the number of all, [P] each.

        Raises:
            LovecError: see ``lovec.metrics.functional.f1_at_k``.
        """
        values = f1_at_k(supported, total, self.k)
        self.add(values.nansum(), int((~values.isnan()).sum()))


class PairCount(RatioMetric):
    """Number of pairs."""

    def update(self, confidence: Tensor, factuality: Tensor) -> None:
        """Add pairs, both [N]."""
        self.add(0.0, confidence.numel())

    def compute(self) -> Tensor:
        """Return the number of pairs: scalar, float64."""
        return self.sums[1]
