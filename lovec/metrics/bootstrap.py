"""Paired bootstrap: how much a metric, or the difference of two methods, would vary with other questions.

Sentences of one answer belong together, so questions are drawn, with replacement, along with their sentences. Two
methods are asked the same questions, so one draw serves both, and all their training seeds: how hard the questions are
cancels in the difference. The interval is about the questions, unless the training runs are drawn as well: then it also
covers what another training seed, or another base model, would change (a hierarchical bootstrap).
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

import torch
from torch import Tensor

from lovec.core.settings import check_count, check_range, check_seed
from lovec.metrics.functional import f1_at_k, group_of, log_losses
from lovec.metrics.grouped import GroupedPairs
from lovec.metrics.of_pairs import OF_PAIRS, DecomposedPairs
from lovec.metrics.ranking import aurc_of
from lovec.metrics.records import sentence_pairs
from lovec.metrics.table import METRICS
from lovec.metrics.weighted import PairLayout, WeightedPairs
from lovec.types import LovecError, Record, question_id

QuestionPairs: TypeAlias = Mapping[str, tuple[Sequence[float], Sequence[float]]]
"""Confidences and factualities (equally long, in [0, 1]) of the sentences of each answer, by the id of its record.

Several answers to one question have ids that differ only in their ending "/sample-N", and are drawn together.
"""

BOOTSTRAPPED = tuple(name for name, info in METRICS.items() if info.bootstrapped)
"""Names of all metrics that can get an interval."""

MAIN = tuple(name for name in BOOTSTRAPPED if METRICS[name].main)
"""Names of those that get one unless others are asked for: Brier score, ECE-M with ten bins, Spearman's correlation."""

_MEANS = ("mean_confidence", "mean_factuality")
_FEWEST_DRAWS, _MOST_DRAWN = 100, 20_000_000  # of very many pairs, fewer draws
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

    @property
    def excludes_zero(self) -> bool:
        """Whether 0 lies outside, so that chance does not explain a difference of this interval."""
        return self.low > 0 or self.high < 0


@dataclass(frozen=True, slots=True)
class Resampled:
    """Metrics of one method on the questions and on every draw, each the mean over its training seeds.

    Attributes:
        questions: their ids, without "/sample-N", sorted.
        seed: seed of the draws.
        metrics: values by name, [1 + draws], float64; the first is that of the questions themselves. NaN where it is
            undefined for any of the training seeds.
    """

    questions: tuple[str, ...]
    seed: int
    metrics: Mapping[str, Tensor]


def by_question(records: Iterable[Record], readout: str) -> dict[str, tuple[list[float], list[float]]]:
    """Return the pairs of tagged and labelled records per answer, without sentences that lack one of the two.

    Args:
        records: the answers, each with the question's id, or that with the ending "/sample-N".
        readout: "stated" or "mean", see ``lovec.metrics.records.confidence_of``.

    Raises:
        LovecError: two records share an id, or the readout is unknown.
    """
    pairs: dict[str, tuple[list[float], list[float]]] = {}
    for record in records:
        if record.id in pairs:
            raise LovecError(f"two records have the id {record.id!r}, expected one of its own for each answer")
        confidence, factuality, _ = sentence_pairs([record], readout)
        pairs[record.id] = confidence, factuality
    return pairs


def resample(
    runs: Sequence[QuestionPairs],
    draws: int = 2000,
    seed: int = 0,
    metrics: Sequence[str] = MAIN,
    bases: Sequence[str] | None = None,
) -> Resampled:
    """Compute metrics of a method on ``draws`` draws of the questions.

    The same questions, number of draws and seed give the same draws, whatever the method and the metrics; the same
    ``bases`` give the same draws of runs.

    Args:
        runs: one per training seed, over the same answers.
        draws: number of draws; each holds as many questions as there are, drawn with replacement.
        seed: seed of the draws.
        metrics: names out of ``BOOTSTRAPPED``. The ones of ``MAIN`` are quick; all of them take some ten times as long.
        bases: name of the base model of every run. Where it is given, every draw also draws as many base models as
            there are, with replacement, and of each as many of its runs as it has, with replacement. None takes the
            mean over all runs in every draw.

    Raises:
        LovecError: there is no run, no question or no draw, a metric is unknown, or the runs have different questions;
            a question has not as many confidences as factualities, or one of them is missing or lies outside [0, 1];
            there are not as many names of base models as runs.
    """
    check_count("draws", draws)
    check_seed("seed", seed)
    if not metrics or not {*metrics} <= {*BOOTSTRAPPED}:
        raise LovecError(f"metrics of the bootstrap are {metrics!r}, expected some of {', '.join(BOOTSTRAPPED)}")
    answers = sorted({answer for run in runs for answer in run})
    if not answers:
        raise LovecError(f"a bootstrap got {len(runs)} runs without any question; give tagged and labelled records")
    for run in runs:
        if missing := [answer for answer in answers if answer not in run]:
            raise LovecError(_unequal(len(run), len(answers), missing[0]))
    if bases is not None and len(bases) != len(runs):
        raise LovecError(
            f"a bootstrap got {len(runs)} runs and {len(bases)} names of base models, expected one per run"
        )
    questions = tuple(sorted(set(map(question_id, answers))))
    samples = [_Sample.of(run, answers, questions) for run in runs]
    weights = None if bases is None else _run_weights(bases, draws, seed)
    return Resampled(questions, seed, _values(samples, draws, seed, metrics, weights))


def resample_groups(
    pairs: GroupedPairs, draws: int = 1000, seed: int = 0, metrics: Sequence[str] = MAIN
) -> dict[str, Tensor]:
    """Compute metrics of pairs on ``draws`` draws of their groups, as `resample` does of questions.

    Args:
        pairs: what is drawn from, at least one group.
        draws: number of draws; 0 computes the metrics of the pairs themselves.
        seed: seed of the draws.
        metrics: names out of ``BOOTSTRAPPED``, or "mean_confidence" and "mean_factuality".

    Returns:
        Values by name, [1 + draws], float64; the first is that of the pairs themselves. NaN where it is undefined.

    Raises:
        LovecError: a metric is unknown, there is no group, or a setting is out of range.
    """
    check_count("groups", pairs.groups)
    check_count("draws", draws, at_least=0)
    check_seed("seed", seed)
    if not {*metrics} <= {*BOOTSTRAPPED, *_MEANS}:
        expected = ", ".join([*BOOTSTRAPPED, *_MEANS])
        raise LovecError(f"metrics of the bootstrap are {metrics!r}, expected some of {expected}")
    return _values([_Sample.of_groups(pairs)], draws, seed, metrics)


def _run_weights(bases: Sequence[str], draws: int, seed: int) -> Tensor:
    """Return the share of every run in every draw of base models and their runs, [1 + draws, runs], float64.

    The first row is that of no draw: every base model has the same weight, and so has every run of it.
    """
    rng = random.Random(f"{seed}/runs")
    names = sorted({*bases})
    runs_of = [[i for i, base in enumerate(bases) if base == name] for name in names]
    weights = torch.zeros(1 + draws, len(bases), dtype=torch.float64)
    for row in range(1 + draws):
        for chosen in runs_of if row == 0 else rng.choices(runs_of, k=len(runs_of)):
            for run in chosen if row == 0 else rng.choices(chosen, k=len(chosen)):
                weights[row, run] += 1 / (len(names) * len(chosen))
    return weights


def _values(
    samples: Sequence[_Sample], draws: int, seed: int, metrics: Iterable[str], weights: Tensor | None = None
) -> dict[str, Tensor]:
    """Compute metrics on the questions themselves and on draws of them, each the mean over samples: [1 + draws].

    With ``weights`` [1 + draws, samples], it is the mean with the weights of the draw, over samples that have some.
    Where fewer than two questions have a sentence, every draw is the same one, so draws are NaN: nothing is known of
    other questions.
    """
    questions = len(samples[0].lengths)
    at_once = _CELLS // max(questions, *(len(sample.owner) for sample in samples))
    at_once = max(_MULTIPLE, min(at_once // _MULTIPLE * _MULTIPLE, _AT_ONCE))
    means: dict[str, list[Tensor]] = {name: [] for name in metrics}
    for counts in _draws(questions, draws, seed, at_once):
        drawn = [_Drawn(sample, counts) for sample in samples]
        for name, blocks in means.items():
            blocks.append(torch.stack([run.metric(name) for run in drawn], dim=1))
    values = {name: torch.cat(blocks) for name, blocks in means.items()}  # [1 + draws, samples]
    if max(int((sample.lengths > 0).sum()) for sample in samples) < 2:
        for value in values.values():
            value[1:] = math.nan
    if weights is None:
        return {name: value.mean(1) for name, value in values.items()}
    return {name: (value * weights).where(weights > 0, 0.0).sum(1) for name, value in values.items()}


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
        One per metric that was drawn; None where the metric is undefined on the questions themselves.

    Raises:
        LovecError: the draws or the metrics of the two are not the same, or ``level`` is not between 0 and 1.
    """
    check_range("level", level, above=0, below=1)
    if second is not None:
        _check_same_draws(first, second)
    ends: dict[str, Interval | None] = {}
    for name, values in first.metrics.items():
        ends[name] = interval_of(values if second is None else values - second.metrics[name], level)
    return ends


def interval_of(values: Tensor, level: float = 0.95) -> Interval | None:
    """Return the percentile interval of a metric.

    Args:
        values: on the questions themselves, then on draws of them, [1 + draws].
        level: share of the draws inside the interval.

    Returns:
        None where the metric is undefined on the questions themselves; both ends are NaN without draws, and where it
        is undefined in all of them.
    """
    if values[0].isnan():
        return None
    if len(values) == 1:
        return Interval(float(values[0]), math.nan, math.nan)
    quantiles = torch.tensor([(1 - level) / 2, (1 + level) / 2], dtype=values.dtype)
    low, high = torch.nanquantile(values[1:], quantiles).tolist()
    return Interval(float(values[0]), low, high)


def mean_interval(values: Tensor, draws: int = 1000, seed: int = 0, weight: Tensor | None = None) -> Interval | None:
    """Return the mean of one number per question, with its 95 % interval over draws of the questions.

    Args:
        values: [N], float64, at least one.
        draws: number of draws; 0 gives no interval, and neither does a single number.
        seed: seed of the draws.
        weight: weight of every number, [N], float64, at least 0; None is 1 for all.

    Returns:
        None where all weights are 0.

    Raises:
        LovecError: ``draws`` is negative.
    """
    check_count("draws", draws, at_least=0)
    weight = torch.ones_like(values) if weight is None else weight
    drawn = _draws(len(values), draws if len(values) > 1 else 0, seed, _AT_ONCE)
    return interval_of(torch.cat([counts @ (weight * values) / (counts @ weight) for counts in drawn]))


def _check_same_draws(first: Resampled, second: Resampled) -> None:
    """Refuse to subtract draws of different questions.

    Raises:
        LovecError: questions, seeds, numbers of draws or metrics differ.
    """
    if unpaired := sorted(set(first.questions) ^ set(second.questions)):
        raise LovecError(_unequal(len(first.questions), len(second.questions), unpaired[0]))
    if first.metrics.keys() != second.metrics.keys():
        raise LovecError(
            f"methods were drawn with the metrics {', '.join(first.metrics)} and {', '.join(second.metrics)}; a paired "
            "difference needs the same metrics of both"
        )
    draws = [len(next(iter(method.metrics.values()))) - 1 for method in (first, second)]
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


@dataclass(frozen=True)
class _Sample:
    """The sentences of a run, question by question.

    Attributes:
        layout: the sentences' pairs.
        answer: index of the answer that every sentence belongs to, [N].
        question: index of the question of every answer, [answers].
        questions: number of questions.
    """

    layout: PairLayout
    answer: Tensor
    question: Tensor
    questions: int

    @classmethod
    def of(cls, run: QuestionPairs, answers: Sequence[str], questions: Sequence[str]) -> _Sample:
        """Return what is drawn from: the sentences of these answers to these questions.

        Raises:
            LovecError: an answer has not as many confidences as factualities, or one of them lies outside [0, 1].
        """
        pairs = [run[answer] for answer in answers]
        for answer, (confidences, factualities) in zip(answers, pairs, strict=True):
            if len(confidences) != len(factualities):
                raise LovecError(
                    f"question {answer!r} has {len(confidences)} confidences and {len(factualities)} factualities, "
                    "expected one of each per sentence"
                )
        layout = PairLayout.of(
            [c for confidences, _ in pairs for c in confidences], [f for _, labels in pairs for f in labels]
        )
        lengths = torch.tensor([len(confidences) for confidences, _ in pairs])
        places = {question: place for place, question in enumerate(questions)}
        question = torch.tensor([places[question_id(answer)] for answer in answers])
        return cls(layout, torch.arange(len(pairs)).repeat_interleave(lengths), question, len(questions))

    @classmethod
    def of_groups(cls, pairs: GroupedPairs) -> _Sample:
        """Return what is drawn from: the groups of pairs.

        Raises:
            LovecError: a confidence or a factuality lies outside [0, 1].
        """
        layout = PairLayout.of(pairs.confidence, pairs.factuality)
        return cls(layout, pairs.group, torch.arange(pairs.groups), pairs.groups)

    @cached_property
    def owner(self) -> Tensor:
        """Index of the question that every sentence belongs to, [N]."""
        return self.question[self.answer]

    @cached_property
    def lengths(self) -> Tensor:
        """Number of sentences of every question, [questions], float64."""
        return torch.bincount(self.owner, minlength=self.questions).double()

    def by_question(self, values: Tensor) -> Tensor:
        """Return the sums of values [N] by question, [questions]."""
        return torch.zeros_like(self.lengths).index_add(0, self.owner, values)

    @cached_property
    def errors(self) -> Tensor:
        """Sum of the squared errors of every question, [questions]."""
        return self.by_question((self.layout.confidence - self.layout.factuality).square())

    @cached_property
    def gaps(self) -> Tensor:
        """Sums of factuality less confidence of every question, by bin of the confidence, [questions, bins]."""
        confidence, factuality = self.layout.confidence, self.layout.factuality
        gaps = torch.zeros(len(self.lengths) * _BINS, dtype=torch.float64).index_add(
            0, self.owner * _BINS + group_of(confidence, "bins", _BINS), factuality - confidence
        )
        return gaps.view(-1, _BINS)

    @cached_property
    def log_losses(self) -> Tensor:
        """Sum of the logarithmic losses of every question, [questions]."""
        return self.by_question(log_losses(self.layout.confidence, self.layout.factuality))

    @cached_property
    def answered(self) -> Tensor:
        """Number of answers with a sentence to every question, [questions], float64."""
        return torch.bincount(self.question[torch.unique(self.answer)], minlength=self.questions).double()

    @cached_property
    def f1(self) -> Tensor:
        """Sum of F1@K of the answers to every question, [questions]; 0 for those without a sentence."""
        lengths = torch.bincount(self.answer, minlength=len(self.question)).double()
        supported = torch.zeros_like(lengths).index_add(0, self.answer, self.layout.factuality)
        of_answers = f1_at_k(supported, lengths).nan_to_num(nan=0.0)
        return torch.zeros_like(self.lengths).index_add(0, self.question, of_answers)


@dataclass(frozen=True)
class _Drawn:
    """Some draws of a sample.

    Attributes:
        sample: what is drawn from.
        counts: how often every draw holds every question, [draws, questions], float64.
    """

    sample: _Sample
    counts: Tensor

    @cached_property
    def n(self) -> Tensor:
        """Number of sentences of every draw, [draws]."""
        return self.counts @ self.sample.lengths

    @cached_property
    def pairs(self) -> DecomposedPairs:
        """The sentences, each as often as its question was drawn."""
        return DecomposedPairs(self.sample.layout, self.counts[:, self.sample.owner])

    def metric(self, name: str) -> Tensor:
        """Compute a metric of the draws: [draws], float64, NaN where it is undefined."""
        return OF_PAIRS[name](self.pairs) if name in OF_PAIRS else _OF_DRAWS[name](self)


def _spearman(pairs: WeightedPairs) -> Tensor:
    """Compute the rank correlation of every draw.

    A sentence drawn w times is w equal sentences: its rank is the middle of all that tie with it, and it counts w
    times in the correlation.
    """
    product, spread = pairs.weight, []
    sides = (pairs.layout.by_confidence, pairs.mass), (pairs.layout.by_factuality, pairs.factuality_mass)
    for (_, place), mass in sides:
        middle = mass.cumsum(1) - (mass + pairs.n[:, None]) / 2  # rank less the mean rank; halves of integers, so exact
        product = product * middle[:, place]
        spread.append((mass * middle.square()).sum(1))
    return (product.sum(1) / (spread[0] * spread[1]).sqrt()).clamp(-1.0, 1.0)


_OF_DRAWS: Mapping[str, Callable[[_Drawn], Tensor]] = {
    "brier": lambda drawn: drawn.counts @ drawn.sample.errors / drawn.n,
    "ece_m": lambda drawn: (drawn.counts @ drawn.sample.gaps).abs().sum(1) / drawn.n,
    "spearman": lambda drawn: _spearman(drawn.pairs),
    "log_score": lambda drawn: drawn.counts @ drawn.sample.log_losses / drawn.n,
    "aurc": lambda drawn: aurc_of(drawn.pairs),
    "f1_at_k": lambda drawn: drawn.counts @ drawn.sample.f1 / (drawn.counts @ drawn.sample.answered),
    "mean_confidence": lambda drawn: drawn.counts @ drawn.sample.by_question(drawn.sample.layout.confidence) / drawn.n,
    "mean_factuality": lambda drawn: drawn.counts @ drawn.sample.by_question(drawn.sample.layout.factuality) / drawn.n,
}
"""What computes the metrics that are not in ``OF_PAIRS``, see ``_Drawn.metric``."""


def draws_of(pairs: GroupedPairs, draws: int) -> int:
    """Return how many draws of pairs are computed: of very many pairs fewer, since every draw costs as much as a file.

    Args:
        pairs: what is drawn from.
        draws: number of draws that were asked for, 0 or more.

    Returns:
        At most ``draws``, and 100 or more if as many were asked for.

    Raises:
        LovecError: ``draws`` is negative.
    """
    check_count("draws", draws, at_least=0)
    return min(draws, max(_FEWEST_DRAWS, _MOST_DRAWN // max(len(pairs.factuality), 1)))


def measure(pairs: GroupedPairs, uses: Collection[str], draws: int = 1000, seed: int = 0) -> dict[str, Interval | None]:
    """Compute all metrics of pairs that ``lovec.metrics.table`` has, with 95 % intervals over draws of the groups.

    Args:
        pairs: what is measured; at least one.
        uses: what of the pairs can be used, see ``MetricInfo.uses``.
        draws: number of draws; 0 gives no intervals. See `draws_of` for very many pairs.
        seed: seed of the draws.

    Returns:
        Metrics by name, in the order of the table; None where one is undefined, or uses what cannot be used. F1@K is
        there only if a group has several pairs. An interval without draws, or of a single group, has NaN as ends.

    Raises:
        LovecError: there is no group, or a value lies outside [0, 1].
    """
    names = [name for name, info in METRICS.items() if info.uses in uses and name in (*BOOTSTRAPPED, *_MEANS)]
    alone = not bool((torch.bincount(pairs.group) > 1).any())  # groups without a pair say nothing
    names = [name for name in names if not (alone and name == "f1_at_k")]
    binary = bool(((pairs.factuality == 0) | (pairs.factuality == 1)).all())
    same = {"c_index": "auroc"} if binary else {}  # the slow one is the quick one where labels are 0 and 1
    drawn = resample_groups(pairs, draws_of(pairs, draws), seed, [name for name in names if name not in same])
    drawn |= {name: drawn[other] for name, other in same.items() if name in names}
    measured: dict[str, Interval | None] = {}
    for name, info in METRICS.items():
        if info.uses is not None and name in (*BOOTSTRAPPED, *_MEANS) and not (alone and name == "f1_at_k"):
            measured[name] = interval_of(drawn[name]) if name in drawn else None
    graded = ((pairs.factuality > 0) & (pairs.factuality < 1)).double().mean()
    measured["graded"] = Interval(float(graded), math.nan, math.nan)
    return measured
