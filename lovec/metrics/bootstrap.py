"""Paired bootstrap: how much a metric, or the difference of two methods, would vary with other questions.

Sentences of one answer belong together, so questions are drawn, with replacement, along with their sentences. Two
methods are asked the same questions, so one draw serves both, and all their training seeds: how hard the questions are
cancels in the difference. The interval is about the questions; what another training seed would change is not in it,
beyond the mean over the seeds given.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor

from lovec.metrics.functional import checked_pair, group_of
from lovec.metrics.records import sentence_pairs
from lovec.metrics.table import METRICS
from lovec.types import LovecError, Record, check_count, check_range, check_seed

QuestionPairs: TypeAlias = Mapping[str, tuple[Sequence[float], Sequence[float]]]
"""Confidences and factualities (equally long, in [0, 1]) of the sentences of each question, by the question's id."""

BOOTSTRAPPED = tuple(name for name, info in METRICS.items() if info.bootstrapped)
"""Names of the metrics that get an interval: Brier score, ECE-M with ten bins and Spearman's correlation."""

_BINS = 10
_AT_ONCE = 256  # draws computed together at most
_CELLS = 1 << 20  # draws times sentences computed together at most: bounds the memory, not the result
_MULTIPLE = 16  # of rows: products of matrices round the rows that are left over from such blocks in another way


@dataclass(frozen=True, slots=True)
class Interval:
    """The value of a metric and its percentile interval.

    Attributes:
        value: on the questions themselves.
        low: lower end.
        high: upper end.
    """

    value: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Resampled:
    """Metrics of one method on the questions and on every draw, each the mean over its training seeds.

    Attributes:
        questions: their ids, sorted.
        seed: seed of the draws.
        metrics: values by name, [1 + draws], float64; the first is that of the questions themselves. NaN where it is
            undefined for any of the training seeds.
    """

    questions: tuple[str, ...]
    seed: int
    metrics: Mapping[str, Tensor]


def by_question(records: Iterable[Record], readout: str) -> dict[str, tuple[list[float], list[float]]]:
    """Return the pairs of tagged and labelled records per question, without sentences that lack one of the two.

    Args:
        records: one per question, with the question's id.
        readout: "stated" or "mean", see ``lovec.metrics.records.confidence_of``.

    Raises:
        LovecError: two records share an id, or the readout is unknown.
    """
    pairs: dict[str, tuple[list[float], list[float]]] = {}
    for record in records:
        if record.id in pairs:
            raise LovecError(f"two records have the id {record.id!r}, expected one answer per question in a run")
        confidence, factuality, _ = sentence_pairs([record], readout)
        pairs[record.id] = confidence, factuality
    return pairs


def resample(runs: Sequence[QuestionPairs], draws: int = 2000, seed: int = 0) -> Resampled:
    """Compute Brier score, ECE-M and Spearman's correlation of a method on ``draws`` draws of the questions.

    The same questions, number of draws and seed give the same draws, whatever the method.

    Args:
        runs: one per training seed, over the same questions.
        draws: number of draws; each holds as many questions as there are, drawn with replacement.
        seed: seed of the draws.

    Raises:
        LovecError: there is no run, no question or no draw, or the runs have different questions; a question has not as
            many confidences as factualities, or one of them is missing or lies outside [0, 1].
    """
    check_count("draws", draws)
    check_seed("seed", seed)
    questions = tuple(sorted({question for run in runs for question in run}))
    if not questions:
        raise LovecError(f"a bootstrap got {len(runs)} runs without any question; give tagged and labelled records")
    for run in runs:
        if missing := [question for question in questions if question not in run]:
            raise LovecError(_unequal(len(run), len(questions), missing[0]))
    samples = [_Sample.of(run, questions) for run in runs]
    at_once = _CELLS // max(len(questions), *(len(sample.owner) for sample in samples))
    at_once = max(_MULTIPLE, min(at_once // _MULTIPLE * _MULTIPLE, _AT_ONCE))
    means: dict[str, list[Tensor]] = {name: [] for name in BOOTSTRAPPED}
    for counts in _draws(len(questions), draws, seed, at_once):
        by_run = [_metrics(sample, counts) for sample in samples]
        for name, blocks in means.items():
            blocks.append(torch.stack([metrics[name] for metrics in by_run]).mean(0))
    return Resampled(questions, seed, {name: torch.cat(blocks) for name, blocks in means.items()})


def intervals(first: Resampled, second: Resampled | None = None, level: float = 0.95) -> dict[str, Interval | None]:
    """Compute percentile intervals of a method's metrics, or of their difference to those of another method.

    Draws where a metric is undefined are left out of its interval. ECE-M is biased upwards on few questions, and once
    more on draws of them, the more so the smaller it is: the interval of a well calibrated method lies too high, and
    that of its difference to a badly calibrated one leans towards 0.

    Args:
        first: a method.
        second: the method that is subtracted; None subtracts nothing.
        level: share of the draws inside the interval.

    Returns:
        One per name of ``BOOTSTRAPPED``; None where the metric is undefined on the questions themselves.

    Raises:
        LovecError: the draws of the two are not the same, or ``level`` is not between 0 and 1.
    """
    check_range("level", level, above=0, below=1)
    if second is not None:
        _check_same_draws(first, second)
    ends: dict[str, Interval | None] = {}
    for name, values in first.metrics.items():
        values = values if second is None else values - second.metrics[name]
        if values[0].isnan():
            ends[name] = None
            continue
        quantiles = torch.tensor([(1 - level) / 2, (1 + level) / 2], dtype=values.dtype)
        low, high = torch.nanquantile(values[1:], quantiles).tolist()
        ends[name] = Interval(float(values[0]), low, high)
    return ends


def _check_same_draws(first: Resampled, second: Resampled) -> None:
    """Refuse to subtract draws of different questions.

    Raises:
        LovecError: questions, seeds or numbers of draws differ.
    """
    if unpaired := sorted(set(first.questions) ^ set(second.questions)):
        raise LovecError(_unequal(len(first.questions), len(second.questions), unpaired[0]))
    draws = [len(method.metrics[BOOTSTRAPPED[0]]) - 1 for method in (first, second)]
    if first.seed != second.seed or draws[0] != draws[1]:
        raise LovecError(
            f"methods were drawn with seeds {first.seed} and {second.seed}, {draws[0]} and {draws[1]} times; "
            "a paired difference needs the same draws for both"
        )


def _unequal(first: int, second: int, question: str) -> str:
    return (
        f"runs of {first} and {second} questions cannot be paired: {question!r} is not in both; compare runs that were "
        "tested on the same questions, in the same mode"
    )


def _draws(questions: int, draws: int, seed: int, at_once: int) -> Iterator[Tensor]:
    """Yield how often every draw holds every question, [at most at_once, questions], float64; the first row is all 1.

    The draws do not depend on ``at_once``: the generator gives the same numbers in one call and in several.
    """
    generator = torch.Generator().manual_seed(seed)
    for start in range(0, 1 + draws, at_once):
        rows = min(at_once, 1 + draws - start)
        drawn = torch.arange(questions)[None] if start == 0 else torch.empty(0, questions, dtype=torch.int64)
        drawn = torch.cat([drawn, torch.randint(questions, (rows - len(drawn), questions), generator=generator)])
        yield torch.zeros(rows, questions, dtype=torch.float64).scatter_add_(1, drawn, torch.ones_like(drawn).double())


@dataclass(frozen=True, slots=True)
class _Sample:
    """The sentences of a run, question by question.

    Attributes:
        places: for confidence and for factuality, the number of different values, and the place of every sentence's
            value among them, [N].
        owner: index of the question that every sentence belongs to, [N].
        lengths: number of sentences of every question, float64.
        errors: sum of the squared errors of every question.
        gaps: sums of factuality less confidence of every question, by bin of the confidence, [questions, bins].
    """

    places: tuple[tuple[int, Tensor], ...]
    owner: Tensor
    lengths: Tensor
    errors: Tensor
    gaps: Tensor

    @classmethod
    def of(cls, run: QuestionPairs, questions: Sequence[str]) -> _Sample:
        """Return what is drawn from: the sentences of these questions.

        Raises:
            LovecError: a question has not as many confidences as factualities, or one of them lies outside [0, 1].
        """
        pairs = [run[question] for question in questions]
        for question, (confidences, factualities) in zip(questions, pairs, strict=True):
            if len(confidences) != len(factualities):
                raise LovecError(
                    f"question {question!r} has {len(confidences)} confidences and {len(factualities)} factualities, "
                    "expected one of each per sentence"
                )
        confidence, factuality = checked_pair(
            [c for confidences, _ in pairs for c in confidences], [f for _, labels in pairs for f in labels]
        )
        lengths = torch.tensor([len(confidences) for confidences, _ in pairs])
        owner = torch.arange(len(pairs)).repeat_interleave(lengths)
        errors = torch.zeros(len(pairs), dtype=torch.float64).index_add(0, owner, (confidence - factuality).square())
        gaps = torch.zeros(len(pairs) * _BINS, dtype=torch.float64).index_add(
            0, owner * _BINS + group_of(confidence, "bins", _BINS), factuality - confidence
        )
        sides = [torch.unique(values, return_inverse=True) for values in (confidence, factuality)]
        places = tuple((len(levels), place) for levels, place in sides)
        return cls(places, owner, lengths.double(), errors, gaps.view(-1, _BINS))


def _metrics(sample: _Sample, counts: Tensor) -> dict[str, Tensor]:
    """Compute the metrics of a run on some draws: [draws] each, float64, NaN where undefined."""
    n = counts @ sample.lengths
    return {
        "brier": counts @ sample.errors / n,
        "ece_m": (counts @ sample.gaps).abs().sum(1) / n,
        "spearman": _spearman(sample, counts),
    }


def _spearman(sample: _Sample, counts: Tensor) -> Tensor:
    """Compute the rank correlation of every draw.

    A sentence drawn w times is w equal sentences: its rank is the middle of all that tie with it, and it counts w
    times in the correlation.
    """
    weight = counts[:, sample.owner]
    n = weight.sum(1, keepdim=True)
    product, spread = weight, []
    for levels, place in sample.places:
        mass = weight.new_zeros(len(weight), levels).index_add_(1, place, weight)
        middle = mass.cumsum(1) - (mass + n) / 2  # rank less the mean rank; halves of integers, so exact
        product = product * middle[:, place]
        spread.append((mass * middle.square()).sum(1))
    return (product.sum(1) / (spread[0] * spread[1]).sqrt()).clamp(-1.0, 1.0)
