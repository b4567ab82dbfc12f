"""Metrics of answers as torchmetrics, and the metrics of answers and of pairs all at once; see ``pairs``."""

from __future__ import annotations

import re
from collections.abc import Iterable
from inspect import signature
from typing import Annotated, Any

import torch
from torch import Tensor
from torchmetrics import Metric, MetricCollection

from lovec.metrics.functional import checked_pair, entropy
from lovec.metrics.pairs import (
    ECEM,
    AllPairMetrics,
    BrierScore,
    ExactMetric,
    GradedShare,
    LogScore,
    MalformedShare,
    MeanConfidence,
    MeanFactuality,
    OrderWithinClaims,
    PairCount,
    RatioMetric,
)
from lovec.metrics.records import NO_ANSWERS, AnswerStatistics
from lovec.metrics.table import METRICS, MetricInfo
from lovec.settings import Setting, checked
from lovec.types import N_SCORES, LovecError

# What answers are like, whether they are true or not. A policy that states the same score everywhere shows in the
# entropy and number of its scores, one that earns its reward by saying less in the words and their variety.


_ANSWER_MEANS = ("abstained", "cut_off", "words", "diversity", "ttr", "ordinality", "f1_at_k")


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
        levels: number of levels of the scale.
        kwargs: options of ``torchmetrics.Metric``.
    """

    counts: Tensor
    """[levels], int64."""

    def __init__(self, levels: Annotated[int, Setting(at_least=2)] = N_SCORES, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.add_state("counts", torch.zeros(levels, dtype=torch.int64), dist_reduce_fx="sum")

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
        value = self.metric.compute() if self.sums[1] else self.sums.new_tensor(float("nan"))
        if not isinstance(value, Tensor) or value.numel() != 1:
            raise LovecError(f"the metric {type(self.metric).__name__} computes {value!r}, expected one number")
        return value.reshape(()).double()

    def reset(self) -> None:
        """Forget all pairs."""
        super().reset()
        self.metric.reset()


def user_metric_infos(metrics: Iterable[Metric]) -> dict[str, MetricInfo]:
    """Return how to show metrics of the user's own, by their names, in the order given.

    A metric's name is that of its class in snake case. The class attributes ``heading``, ``unit`` ("percent" or
    "number") and ``digits`` say how it is shown, ``higher_is_better`` which direction is better.

    Args:
        metrics: each takes two tensors [N] in [0, 1] in ``update``, confidence and factuality, and computes one number.

    Raises:
        LovecError: two metrics have the same name, one has that of a built-in metric, or one does not take a pair.
    """
    infos: dict[str, MetricInfo] = {}
    for metric in metrics:
        class_name = type(metric).__name__
        name = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", class_name).lower()
        if {name, f"mean_{name}"} & {*METRICS, *infos, "n"}:  # mean readouts are logged as val/mean_NAME
            raise LovecError(f"the name {name!r} of the metric {class_name} is taken; give its class another name")
        try:
            signature(metric.update).bind(None, None)
        except TypeError:
            raise LovecError(
                f"the metric {class_name} has update{signature(metric.update)}, expected update(confidence, factuality)"
            ) from None
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
    ) -> None:
        """Add pairs of sentences, or of passages, and the answers they are from; nothing is added if they are refused.

        Args:
            confidence: [N], in [0, 1]; items without one are left out.
            factuality: [N], in [0, 1].
            malformed: number of items with a factuality but without a valid confidence.
            answers: see ``lovec.metrics.records.answer_statistics``.
            claim: [N], int64: see ``lovec.metrics.records.claim_numbers``; None where no claim is known.

        Raises:
            LovecError: see ``lovec.metrics.functional.checked_pair``.
        """
        device = self["n"].device
        pair = (values.to(device) for values in checked_pair(confidence, factuality))
        named = dict(zip(("confidence", "factuality"), pair, strict=True))
        super().update(**named, malformed=malformed, answers=answers, claim=claim)
