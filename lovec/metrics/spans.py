"""Metrics of marked characters: how well the parts of an answer that a method doubts match those that people marked.

The definitions are those of Mu-SHROOM (SemEval 2025, Task 3). Characters are counted from 0, as Python's strings do.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, TypeAlias

from lovec.core.settings import check_count, check_range
from lovec.types import LovecError

if TYPE_CHECKING:
    from lovec.metrics.functional import Values

Span: TypeAlias = tuple[int, int]
"""Start and end of a part of an answer, in characters; the end is the first character behind it."""

MARKED = 0.5
"""A character counts as marked where its probability is above this."""

_DIGITS = 8  # to which the task's scorer rounds before it asks whether all probabilities are equal


def iou(marked: Iterable[Span], labelled: Iterable[Span]) -> float:
    """Compute the intersection over union of two sets of characters; two empty sets count 1.

    Args:
        marked: the parts that a method marked; they may overlap.
        labelled: the parts that people marked; likewise.

    Returns:
        In [0, 1].
    """
    first, second = _characters(marked), _characters(labelled)
    union = first | second
    return len(first & second) / len(union) if union else 1.0


def character_correlation(probability: Values, labelled: Values) -> float:
    """Compute Spearman's correlation of the probabilities of the characters of an answer, ties at their mid-rank.

    Where one side is constant to eight digits, it is 1 if the other one is, too, and otherwise 0.

    Args:
        probability: probability that a character is wrong, by a method, [N] in [0, 1].
        labelled: the same by people: the share of them that marked it, [N] in [0, 1].

    Returns:
        In [-1, 1].

    Raises:
        LovecError: see ``lovec.metrics.functional.checked_pair``.
    """
    from lovec.metrics.functional import checked_pair, spearman  # with torch, which readers of files do without

    pair = checked_pair(probability, labelled)
    constant = [len((values * 10**_DIGITS).round().unique()) < 2 for values in pair]
    return float(all(constant)) if any(constant) else float(spearman(*pair))


def character_probabilities(spans: Iterable[tuple[int, int, float]], length: int) -> list[float]:
    """Return the probability of every character of an answer; 0 outside of all spans.

    Args:
        spans: start, end and probability in [0, 1] of parts of the answer; of overlapping ones the later counts.
        length: number of characters of the answer.

    Returns:
        ``length`` numbers.

    Raises:
        LovecError: a span ends behind the answer, or before it begins, or its probability lies outside [0, 1].
    """
    check_count("length", length, at_least=0)
    found = [0.0] * length
    for start, end, probability in spans:
        check_span((start, end), length)
        check_range("the probability of a span", probability, at_least=0, at_most=1)
        found[start:end] = [probability] * (end - start)
    return found


def marked_spans(probability: Iterable[float]) -> list[Span]:
    """Return the longest parts of an answer whose characters all have a probability above ``MARKED``.

    Args:
        probability: of every character.
    """
    spans, here = [], 0
    for is_marked, run in groupby(value > MARKED for value in probability):
        end = here + len(list(run))
        spans += [(here, end)] if is_marked else []
        here = end
    return spans


def check_span(span: Sequence[int], length: int) -> Span:
    """Return a span as start and end, if it lies in an answer.

    Args:
        span: start and end.
        length: number of characters of the answer.

    Raises:
        LovecError: it does not.
    """
    start, end = span
    if not (isinstance(start, int) and isinstance(end, int) and 0 <= start <= end <= length):
        raise LovecError(f"a span is {start!r} to {end!r}, expected characters 0 to {length} of the answer, in order")
    return start, end


def _characters(spans: Iterable[Span]) -> set[int]:
    return {place for span in spans for place in range(*span)}
