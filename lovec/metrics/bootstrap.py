"""Paired bootstrap: how far a figure, or a difference of two methods, would wander with other questions.

Sentences of one answer belong together, so questions are drawn, with replacement, and their sentences come along. Two
methods are asked the same questions, so one draw serves both, and all their training seeds: what is hard about the
questions cancels in the difference. The interval is about the questions; what another training seed would change is
not in it, beyond the mean over the seeds given.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor

from lovec.metrics.functional import checked_pair, group_of
from lovec.metrics.records import sentence_pairs
from lovec.types import LovecError, Record

Run: TypeAlias = Mapping[str, tuple[Sequence[float], Sequence[float]]]
"""Confidences and factualities (equally long, in [0, 1]) of the sentences of every question, by its id."""

FIGURES = ("brier", "ece_m", "spearman")
"""What is drawn again, by the names of a result row; ECE-M with ten bins."""

_BINS = 10
_AT_ONCE = 256  # draws computed together: bounds the memory, not the result


@dataclass(frozen=True, slots=True)
class Interval:
    """A figure and its percentile interval.

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
    """Figures of one method on the questions and on every draw, each the mean over its runs.

    Attributes:
        questions: their ids, sorted.
        seed: of the draws.
        figures: by name, [1 + draws], float64; the first is that of the questions themselves. NaN where it is
            undefined in any of the runs.
    """

    questions: tuple[str, ...]
    seed: int
    figures: Mapping[str, Tensor]


def by_question(records: Iterable[Record], readout: str) -> dict[str, tuple[list[float], list[float]]]:
    """Tagged and labelled records as a ``Run``; sentences without a confidence or a label are left out.

    Args:
        records: one a question, by its id.
        readout: "stated" or "mean", see ``lovec.metrics.records.confidence_of``.

    Raises:
        LovecError: two records share an id, or the readout is unknown.
    """
    run: dict[str, tuple[list[float], list[float]]] = {}
    for record in records:
        if record.id in run:
            raise LovecError(f"two records have the id {record.id!r}, expected one answer a question in a run")
        confidence, factuality, _ = sentence_pairs([record], readout)
        run[record.id] = confidence, factuality
    return run


def resample(runs: Sequence[Run], draws: int = 2000, seed: int = 0) -> Resampled:
    """Brier score, ECE-M and Spearman's correlation of a method on ``draws`` draws of the questions.

    The same questions, number of draws and seed give the same draws, whatever the method said.

    Args:
        runs: one for each training seed, over the same questions.
        draws: how often as many questions as there are are drawn, with replacement.
        seed: of the draws.

    Raises:
        LovecError: there is no run or no question, or the runs have different ones; a confidence or a factuality lies
            outside [0, 1].
    """
    questions = tuple(sorted({question for run in runs for question in run}))
    if not questions:
        raise LovecError(f"a bootstrap got {len(runs)} runs without any question; give tagged and labelled records")
    for run in runs:
        if missing := [question for question in questions if question not in run]:
            raise LovecError(_unequal(len(run), len(questions), missing[0]))
    counts = _draws(len(questions), draws, seed)
    total = torch.stack([_figures(run, questions, counts) for run in runs]).mean(0)
    return Resampled(questions, seed, dict(zip(FIGURES, total.unbind(1), strict=True)))


def intervals(first: Resampled, second: Resampled | None = None, level: float = 0.95) -> dict[str, Interval | None]:
    """Percentile intervals of a method's figures, or of how far they lie above those of another method.

    Draws where a figure is undefined are left out of its interval. ECE-M is biased upwards on few questions, and once
    more on draws of them, the more so the smaller it is: the interval of a well calibrated method lies too high, and
    that of its difference to a badly calibrated one leans towards 0.

    Args:
        first: a method.
        second: what is subtracted; None subtracts nothing.
        level: share of the draws inside.

    Returns:
        One for each of ``FIGURES``; None where the figure on the questions themselves is undefined.

    Raises:
        LovecError: the two were not drawn alike.
    """
    found: dict[str, Interval | None] = {}
    if second is not None:
        _alike(first, second)
    for name, values in first.figures.items():
        values = values if second is None else values - second.figures[name]
        if values[0].isnan():
            found[name] = None
            continue
        ends = torch.tensor([(1 - level) / 2, (1 + level) / 2], dtype=values.dtype)
        low, high = torch.nanquantile(values[1:], ends).tolist()
        found[name] = Interval(float(values[0]), low, high)
    return found


def _alike(first: Resampled, second: Resampled) -> None:
    """Refuse to subtract draws of different questions.

    Raises:
        LovecError: see above.
    """
    if odd := sorted(set(first.questions) ^ set(second.questions)):
        raise LovecError(_unequal(len(first.questions), len(second.questions), odd[0]))
    lengths = [len(method.figures[FIGURES[0]]) - 1 for method in (first, second)]
    if first.seed != second.seed or lengths[0] != lengths[1]:
        raise LovecError(
            f"methods were drawn with seeds {first.seed} and {second.seed}, {lengths[0]} and {lengths[1]} times; "
            "a paired difference needs the same draws for both"
        )


def _unequal(one: int, other: int, question: str) -> str:
    return (
        f"runs of {one} and {other} questions cannot be paired: {question!r} is not in both; compare runs that were "
        "tested on the same questions, in the same mode"
    )


def _draws(questions: int, draws: int, seed: int) -> Tensor:
    """How often every draw holds every question: [1 + draws, questions], float64; once each in the first row."""
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.randint(questions, (draws, questions), generator=generator)
    counts = torch.zeros(draws, questions, dtype=torch.float64).scatter_add_(1, drawn, torch.ones_like(drawn).double())
    return torch.cat([torch.ones(1, questions, dtype=torch.float64), counts])


def _figures(run: Run, questions: Sequence[str], counts: Tensor) -> Tensor:
    """Figures of a run on every draw: [1 + draws, 3], float64, NaN where undefined."""
    pairs = [run[question] for question in questions]
    confidence, factuality = checked_pair(
        torch.tensor([c for said, _ in pairs for c in said], dtype=torch.float64),
        torch.tensor([f for _, true in pairs for f in true], dtype=torch.float64),
    )
    lengths = torch.tensor([len(said) for said, _ in pairs])
    owner = torch.arange(len(pairs)).repeat_interleave(lengths)
    gaps = torch.zeros(len(pairs), dtype=torch.float64).index_add(0, owner, (confidence - factuality).square())
    bins = torch.zeros(len(pairs) * _BINS, dtype=torch.float64).index_add(
        0, owner * _BINS + group_of(confidence, "bins", _BINS), factuality - confidence
    )
    n = counts @ lengths.double()
    brier = counts @ gaps / n
    ece_m = (counts @ bins.view(-1, _BINS)).abs().sum(1) / n
    return torch.stack([brier, ece_m, torch.cat(list(_spearman(confidence, factuality, owner, counts)))], dim=1)


def _spearman(confidence: Tensor, factuality: Tensor, owner: Tensor, counts: Tensor) -> Iterator[Tensor]:
    """Rank correlations, a block of draws at a time.

    A sentence drawn w times is w equal sentences: its rank is the middle of all that tie with it, and it counts w
    times in the correlation.
    """
    sides = [torch.unique(values, return_inverse=True) for values in (confidence, factuality)]
    for start in range(0, len(counts), _AT_ONCE):
        weight = counts[start : start + _AT_ONCE, owner]
        n = weight.sum(1, keepdim=True)
        centred, spread = [], []
        for levels, place in sides:
            mass = weight.new_zeros(len(weight), len(levels)).index_add_(1, place, weight)
            middle = mass.cumsum(1) - (mass + n) / 2  # rank less the mean rank; halves of integers, so exact
            centred.append(middle[:, place])
            spread.append((mass * middle.square()).sum(1))
        product = (weight * centred[0] * centred[1]).sum(1)
        yield (product / (spread[0] * spread[1]).sqrt()).clamp(-1.0, 1.0)
