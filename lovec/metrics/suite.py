"""Metrics as torchmetrics, each a thin class around a pure function, and all of them at once.

They accumulate batches on any number of processes, and their values are those of the whole: batches may be empty, and
a process may have none. Values are float64 scalars, NaN where they are undefined.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from inspect import signature
from numbers import Real
from typing import Annotated, Any, ClassVar

import torch
from torch import Tensor
from torch import distributed as dist
from torch.nn import Module
from torchmetrics import Metric, MetricCollection
from torchmetrics.metric import jit_distributed_available
from torchmetrics.utilities.data import dim_zero_cat

from lovec.core.settings import Count, CountFromTwo, PositiveShare, Setting, checked
from lovec.metrics.corp import brier_decomposition
from lovec.metrics.functional import (
    F1_K,
    LOG_CLIP,
    Values,
    checked_pair,
    ece_from_sums,
    entropy,
    f1_at_k,
    float64_device,
    group_count,
    group_sums,
    log_losses,
    spearman,
)
from lovec.metrics.of_pairs import OF_PAIRS, DecomposedPairs
from lovec.metrics.ranking import (
    THRESHOLD,
    auarc,
    auprc,
    auroc,
    c_index,
    order_within,
    prr,
)
from lovec.metrics.records import NO_ANSWERS, AnswerStatistics
from lovec.metrics.risk import aurc
from lovec.metrics.smooth import smooth_ece
from lovec.metrics.table import METRICS, MetricInfo
from lovec.metrics.weighted import PairLayout
from lovec.types import N_SCORES, LovecError

_ANSWER_MEANS = ("abstained", "cut_off", "words", "diversity", "ttr", "ordinality", "f1_at_k")


def several_processes() -> bool:
    """Return whether metrics have states in other processes, too.

    A group of this process alone, as vLLM opens one in it, has nothing to add, and may take no tensors of the CPU.
    """
    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1


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
        super().__init__(**{"distributed_available_fn": several_processes} | kwargs)
        self._dtype = torch.float64

    def keep_apart(self) -> None:
        """Add a state that equals no other: a ``MetricCollection`` takes metrics with equal states for one.

        It compares them after the first batch. Sums of different numbers may then be equal, and are if it is empty.
        """
        self.add_state("apart", torch.tensor(torch.nan, dtype=torch.float64), dist_reduce_fx="sum")

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
        self.keep_apart()

    def add(self, total: float | Tensor, count: int) -> None:
        """Add a sum and the number of values in it."""
        self.sums += torch.tensor([float(total), count], dtype=torch.float64, device=self.device)

    def compute(self) -> Tensor:
        """Return the sum divided by the count: scalar, float64."""
        return self.sums[0] / self.sums[1]


class PairMean(RatioMetric):
    """Base of metrics that are the mean of a number per pair."""

    def update(self, confidence: Tensor, factuality: Tensor) -> None:
        """Add pairs, both [N] in [0, 1].

        Raises:
            LovecError: see ``lovec.metrics.functional.checked_pair``.
        """
        values = self.of_pairs(*checked_pair(confidence, factuality))
        self.add(values.sum(), values.numel())

    def of_pairs(self, confidence: Tensor, factuality: Tensor) -> Tensor:
        """Return the number of every pair, [N]."""
        raise NotImplementedError


class BrierScore(PairMean):
    """Brier score with soft labels, see ``lovec.metrics.functional.brier_score``."""

    higher_is_better = False

    def of_pairs(self, confidence: Tensor, factuality: Tensor) -> Tensor:
        """Return the squared errors."""
        return (confidence - factuality).square()


class MeanConfidence(PairMean):
    """Mean confidence of the pairs."""

    def of_pairs(self, confidence: Tensor, factuality: Tensor) -> Tensor:
        """Return the confidences."""
        return confidence


class MeanFactuality(PairMean):
    """Mean factuality of the pairs."""

    def of_pairs(self, confidence: Tensor, factuality: Tensor) -> Tensor:
        """Return the factualities."""
        return factuality


class GradedShare(PairMean):
    """Share of the pairs whose factuality is neither 0 nor 1."""

    def of_pairs(self, confidence: Tensor, factuality: Tensor) -> Tensor:
        """Return whether each factuality is."""
        return (factuality > 0) & (factuality < 1)


@checked()
class LogScore(PairMean):
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

    def of_pairs(self, confidence: Tensor, factuality: Tensor) -> Tensor:
        """Return the losses."""
        return log_losses(confidence, factuality, self.clip)


class MalformedShare(RatioMetric):
    """Share of labelled items without a valid confidence."""

    higher_is_better = False

    def update(self, confidence: Tensor, malformed: int, counted: int = 0) -> None:
        """Add the confidences, [N], and the number of items that have no valid one, of which some count as 0 in [N]."""
        self.add(malformed, malformed - counted + confidence.numel())


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
        self.keep_apart()

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

    measure: ClassVar[Callable[..., Tensor]]
    """Computes the metric of all confidences and factualities, [N] each."""

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
        """Return all confidences and factualities so far, [N] each, float64.

        They are on the CPU wherever the states are: metrics of sorted values are hundreds of small steps, for each of
        which a GPU would be waited for.
        """
        empty = torch.zeros(0, dtype=torch.float64)
        return (
            dim_zero_cat(self.confidence).cpu() if len(self.confidence) else empty,
            dim_zero_cat(self.factuality).cpu() if len(self.factuality) else empty,
        )

    def compute(self) -> Any:
        """Return the metric of all pairs: scalar, float64; NaN where it is undefined."""
        return self.measure(*self.pairs())


class SpearmanCorrelation(PairMetric):
    """Spearman's rank correlation, see ``lovec.metrics.functional.spearman``."""

    higher_is_better = True
    measure = staticmethod(spearman)


class AURC(PairMetric):
    """Area under the risk-coverage curve, see ``lovec.metrics.risk.aurc``."""

    higher_is_better = False
    measure = staticmethod(aurc)


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
    measure = staticmethod(auroc)

    def __init__(self, threshold: PositiveShare = THRESHOLD, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.threshold = threshold

    def compute(self) -> Tensor:
        """Return the area of all pairs: scalar, float64; NaN where it is undefined."""
        return self.measure(*self.pairs(), self.threshold)


class AUPRC(AUROC):
    """Area under the precision-recall curve, see ``lovec.metrics.ranking.auprc``; options as for ``AUROC``."""

    measure = staticmethod(auprc)


class CIndex(PairMetric):
    """Concordance index, see ``lovec.metrics.ranking.c_index``."""

    higher_is_better = True
    measure = staticmethod(c_index)


class AUARC(PairMetric):
    """Area under the accuracy-rejection curve, see ``lovec.metrics.ranking.auarc``."""

    higher_is_better = True
    measure = staticmethod(auarc)


class PredictionRejectionRatio(PairMetric):
    """Prediction rejection ratio, see ``lovec.metrics.ranking.prr``."""

    higher_is_better = True
    measure = staticmethod(prr)


class SmoothECE(PairMetric):
    """Smooth calibration error, see ``lovec.metrics.smooth.smooth_ece``."""

    higher_is_better = False
    measure = staticmethod(smooth_ece)


class Miscalibration(PairMetric):
    """Miscalibration part of the Brier score, see ``lovec.metrics.corp.Decomposition``."""

    higher_is_better = False
    measure = staticmethod(lambda *pair: brier_decomposition(*pair).miscalibration)


class Discrimination(PairMetric):
    """Discrimination part of the Brier score, see ``lovec.metrics.corp.Decomposition``."""

    higher_is_better = True
    measure = staticmethod(lambda *pair: brier_decomposition(*pair).discrimination)


class Uncertainty(PairMetric):
    """Uncertainty part of the Brier score, see ``lovec.metrics.corp.Decomposition``."""

    measure = staticmethod(lambda *pair: brier_decomposition(*pair).uncertainty)


class AllPairMetrics(PairMetric):
    """All metrics that need all pairs at once, by their names in ``lovec.metrics.table``: the pairs are kept once."""

    def compute(self) -> Mapping[str, Tensor]:
        """Return the metrics of all pairs: scalars, float64, NaN where they are undefined."""
        confidence, factuality = self.pairs()
        whole = PairLayout(confidence, factuality).whole()
        pairs = DecomposedPairs(whole.layout, whole.weight)
        values = {name: of_pairs(pairs)[0] for name, of_pairs in OF_PAIRS.items()}
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
        return order_within(confidence, factuality, dim_zero_cat(self.claim).long().cpu())


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


# Metrics of answers, whether they are true or not. A policy that states the same score everywhere shows in the entropy
# and number of its scores, one that earns its reward by saying less in the words and their variety.


class AnswerMean(RatioMetric):
    """Mean of one of the statistics of answers.

    Args:
        statistic: name of a field of ``lovec.metrics.records.AnswerStatistics`` that is a sum and a number, such as
            "words" (per answer) or "ordinality" (per sentence).
        kwargs: options of ``torchmetrics.Metric``.
    """

    def __init__(self, statistic: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.statistic = statistic

    def update(self, answers: AnswerStatistics) -> None:
        """Add answers."""
        self.add(*getattr(answers, self.statistic))


@checked()
class ScoreHistogram(ExactMetric):
    """Base of metrics of how often each score is stated.

    Args:
        levels: number of levels of the scale; baselines may state scores from 0 to 10 whatever it is.
        kwargs: options of ``torchmetrics.Metric``.
    """

    counts: Tensor
    """Of each score, int64."""

    def __init__(self, levels: CountFromTwo = N_SCORES, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.add_state("counts", torch.zeros(max(levels, N_SCORES), dtype=torch.int64), dist_reduce_fx="sum")

    def update(self, answers: AnswerStatistics) -> None:
        """Add answers."""
        scores = torch.tensor(answers.scores, dtype=torch.int64, device=self.device)
        self.counts += torch.bincount(scores, minlength=len(self.counts))


class ScoreEntropy(ScoreHistogram):
    """Entropy of the stated scores in nats, see ``lovec.metrics.functional.entropy``."""

    def compute(self) -> Tensor:
        """Return the entropy: scalar, float64; NaN without any score."""
        return entropy(self.counts)


class DistinctScores(ScoreHistogram):
    """Number of different scores that are stated."""

    def compute(self) -> Tensor:
        """Return the number: scalar, float64; NaN without any score."""
        return (self.counts > 0).sum().double().where(self.counts.sum() > 0, float("nan"))


# Metrics of the user


class PairsOnly(PairCount):
    """Gives another metric only the batches that have pairs, and is NaN as long as there was none.

    Args:
        metric: takes two tensors [N], confidence and factuality, and computes one number.
    """

    def __init__(self, metric: Metric) -> None:
        super().__init__()
        self.metric = metric
        for part in _parts(metric):
            if part.distributed_available_fn is jit_distributed_available:  # the default
                part.distributed_available_fn = several_processes

    def update(self, confidence: Tensor, factuality: Tensor) -> None:
        """Add pairs, both [N] in [0, 1]."""
        super().update(confidence, factuality)
        if confidence.numel():
            self.metric.update(confidence, factuality)

    def compute(self) -> Tensor:
        """Return the metric of all pairs: scalar, float64.

        Raises:
            LovecError: the metric computes something else than one number.
        """
        if self.sums[1] and self.distributed_available_fn():
            self._end_lists()
        value = self.metric.compute() if self.sums[1] else self.sums.new_tensor(float("nan"))
        if not isinstance(value, Tensor | Real) or (isinstance(value, Tensor) and value.numel() != 1):
            raise LovecError(
                f"the metric {type(self.metric).__name__} computes {value!r}, expected a number or a tensor of one "
                "number"
            )
        return torch.as_tensor(value, dtype=torch.float64, device=self.sums.device).reshape(())

    def reset(self) -> None:
        """Forget all pairs."""
        super().reset()
        self.metric.reset()

    def _end_lists(self) -> None:
        """Add an empty tensor to lists of tensors that are joined over processes, one of which may have no pairs.

        It is of the type and shape that the metric's tensors have. torchmetrics would take an empty list for a tensor
        of a type that may be another, and processes must not exchange tensors of different types.
        """
        tried = _fed(self.metric)
        for ours, theirs in zip(_parts(self.metric), _parts(tried.metric), strict=True):
            for name, state in theirs.metric_state.items():
                if isinstance(state, list) and state and ours._reductions[name] == dim_zero_cat:
                    getattr(ours, name).append(dim_zero_cat(state)[:0])


def user_metric_infos(metrics: Iterable[Metric]) -> dict[str, MetricInfo]:
    """Return how to show metrics of the user's own, by their names, in the order given.

    A metric's name is that of its class in snake case. The class attributes ``heading``, ``unit`` ("percent" or
    "number") and ``digits`` say how it is shown, ``higher_is_better`` which direction is better.

    Args:
        metrics: each takes two tensors [N] in [0, 1] in ``update``, confidence and factuality, and computes one number.

    Raises:
        LovecError: two metrics have the same name or are logged under the same one, one has that of a built-in metric,
            one does not take a pair, or one computes something else than one number.
    """
    infos: dict[str, MetricInfo] = {}
    taken = {"n"}.union(*map(_logged_names, METRICS))
    for metric in metrics:
        class_name = type(metric).__name__
        name = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", class_name).lower()
        if _logged_names(name) & taken:
            raise LovecError(f"the name {name!r} of the metric {class_name} is taken; give its class another name")
        taken |= _logged_names(name)
        try:
            signature(metric.update).bind(None, None)
        except TypeError:
            raise LovecError(
                f"the metric {class_name} has update{signature(metric.update)}, expected update(confidence, factuality)"
            ) from None
        _try(metric)
        higher = metric.higher_is_better
        infos[name] = MetricInfo(
            name,
            heading=getattr(metric, "heading", name.replace("_", " ")),
            better=None if higher is None else "higher" if higher else "lower",
            unit=getattr(metric, "unit", "number"),
            digits=getattr(metric, "digits", 3),
            logged="always",
            main=True,
        )
    return infos


def _try(metric: Metric) -> None:
    """Compute a copy of a metric of some pairs, so that what is wrong with it is known before anything is tagged.

    Raises:
        LovecError: it computes something else than one number.
    """
    _fed(metric).compute()


def _fed(metric: Metric) -> PairsOnly:
    """Return a copy of a metric that was given some pairs, and is of this process alone."""
    tried = PairsOnly(metric.clone())
    tried.reset()
    for part in _parts(tried):
        part.distributed_available_fn = lambda: False  # other processes may not be trying it
    confidence = torch.linspace(0, 1, 20, dtype=torch.float64, device=metric.device)
    tried.update(confidence, torch.arange(20, device=metric.device).double() % 2)
    return tried


def _parts(metric: Metric) -> list[Metric]:
    """Return a metric and those that it is made of."""
    return [part for part in metric.modules() if isinstance(part, Metric)]


def _logged_names(name: str) -> set[str]:
    """Return what a metric is logged as in a validation, after ``val/``: with the prefixes of passages and of means."""
    return {name, f"mean_{name}", f"passage_{name}"}


# All at once


class CalibrationSuite(MetricCollection):
    """The metrics of ``lovec.metrics.table`` that tagged records have, by their names there, and "n", the pairs.

    ``compute`` returns a scalar (float64) per name, NaN where it is undefined, over all batches and processes.

    Args:
        metrics: metrics of the user's own, see ``user_metric_infos``; the suite works on copies.
        levels: number of levels of the scale that the stated scores belong to.

    Raises:
        LovecError: see ``user_metric_infos``.
    """

    def __init__(self, metrics: Iterable[Metric] = (), levels: int = N_SCORES) -> None:
        metrics = list(metrics)
        user_metrics = {
            name: PairsOnly(metric.clone()) for name, metric in zip(user_metric_infos(metrics), metrics, strict=True)
        }
        # Metrics whose states are equal after the first batch must not be merged: it may be empty.
        super().__init__(
            {
                "brier": BrierScore(),
                "ece_m": ECEM(),
                "log_score": LogScore(),
                "graded": GradedShare(),
                "_all_pairs": AllPairMetrics(),
                "order": OrderWithinClaims(),
                "malformed": MalformedShare(),
                "mean_confidence": MeanConfidence(),
                "mean_factuality": MeanFactuality(),
                "distinct": DistinctScores(levels),
                "entropy": ScoreEntropy(levels),
                "n": PairCount(),
                **{name: AnswerMean(name) for name in _ANSWER_MEANS},
                **user_metrics,
            },
            compute_groups=False,
        )

    def update(  # type: ignore[override]
        self,
        confidence: Tensor,
        factuality: Tensor,
        malformed: int = 0,
        answers: AnswerStatistics = NO_ANSWERS,
        claim: Tensor | None = None,
        counted: int = 0,
    ) -> None:
        """Add pairs of sentences, or of passages, and the answers they are from; nothing is added if they are refused.

        Args:
            confidence: [N], in [0, 1]; items without one are left out.
            factuality: [N], in [0, 1].
            malformed: number of items with a factuality but without a valid confidence.
            answers: see ``lovec.metrics.records.answer_statistics``.
            claim: [N], int64: see ``lovec.metrics.records.claim_numbers``; None where no claim is known.
            counted: how many of the malformed items are among the N, with a confidence of 0.

        Raises:
            LovecError: see ``lovec.metrics.functional.checked_pair``.
        """
        device = self["n"].device
        pair = (values.to(device) for values in checked_pair(confidence, factuality))
        named = dict(zip(("confidence", "factuality"), pair, strict=True))
        super().update(**named, malformed=malformed, answers=answers, claim=claim, counted=counted)
