"""How far two label files agree, be they from oracles, from people, or from one of each."""

from __future__ import annotations

import math
import warnings
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from statistics import fmean
from typing import TypeAlias

import torch

from lovec.metrics.functional import spearman
from lovec.metrics.powered import Judged
from lovec.metrics.records import rounded_mean
from lovec.types import LovecError, Record, to_rating

BANDS = ("0", "1-3", "4-6", "7-9", "10")
"""The ranges of ratings 0..10 that the fact-checking prompt gives a meaning to."""
_BAND_ENDS = (0, 3, 6, 9, 10)

_Labels: TypeAlias = Mapping[str, Mapping[str, Sequence[float | None]]]
"""Labels of the sentences of a file, by record id and text."""


@dataclass(frozen=True, slots=True)
class Agreement:
    """How far two raters agree.

    Attributes:
        n: sentences that both have labelled.
        spearman: rank correlation of their factualities; None where one of them gives the same everywhere.
        exact: share of sentences whose ratings 0..10 are equal; None without any sentence.
        within_1: share of sentences whose ratings differ by 1 at most.
        mean_first: mean factuality by the first rater; None without any sentence.
        mean_second: mean factuality by the second rater; None without any sentence.
        passages: number of records with a sentence that both have labelled.
        passage_spearman: rank correlation of the records' mean factualities over these sentences.
        confusion: sentences by the band (``BANDS``) of the first rater's rating [rows] and of the second's [columns].
    """

    n: int
    spearman: float | None
    exact: float | None
    within_1: float | None
    mean_first: float | None
    mean_second: float | None
    passages: int
    passage_spearman: float | None
    confusion: tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class Matched:
    """Sentences that two files have in common, and what they have not.

    Attributes:
        pairs: factualities in both files, by record id; only sentences that both have labelled.
        unlabelled: number of sentences in both files that one of them gives no label.
        only_first: ids of records that only the first file has.
        only_second: ids of records that only the second file has.
        differing: ids of records in both files that have a sentence in one of them only.
        sentences: number of these sentences, over both files.
        judged: every sentence of the second file, labelled or not, beside its label in the first file.
    """

    pairs: Mapping[str, Sequence[tuple[float, float]]]
    unlabelled: int
    only_first: tuple[str, ...]
    only_second: tuple[str, ...]
    differing: tuple[str, ...]
    sentences: int
    judged: Judged


def match(first: Iterable[Record], second: Iterable[Record]) -> Matched:
    """Match two labelled files by record id and the `comparable` text of the sentence.

    A sentence that a record contains twice is matched in order.
    """
    first_by_id, second_by_id = ({record.id: record.labels_by_text() for record in file} for file in (first, second))
    pairs: dict[str, list[tuple[float, float]]] = {}
    unmatched: Counter[str] = Counter()
    unlabelled = 0
    for record_id in (record_id for record_id in first_by_id if record_id in second_by_id):
        first_labels, second_labels = first_by_id[record_id], second_by_id[record_id]
        for text in dict.fromkeys([*first_labels, *second_labels]):
            ours, theirs = first_labels.get(text, []), second_labels.get(text, [])
            unmatched[record_id] += abs(len(ours) - len(theirs))
            for f, g in zip(ours, theirs, strict=False):
                if f is None or g is None:
                    unlabelled += 1
                else:
                    pairs.setdefault(record_id, []).append((f, g))
    only_first = tuple(record_id for record_id in first_by_id if record_id not in second_by_id)
    only_second = tuple(record_id for record_id in second_by_id if record_id not in first_by_id)
    differing = tuple(record_id for record_id, sentences in unmatched.items() if sentences)
    judged = _judged(first_by_id, second_by_id)
    return Matched(pairs, unlabelled, only_first, only_second, differing, unmatched.total(), judged)


def _judged(people: _Labels, judge: _Labels) -> Judged:
    """Return the sentences that the judge's file has, with people's labels where these have one; records are groups."""
    rows = [
        (math.nan if f is None else f, math.nan if g is None else g, number)
        for number, (record_id, labels) in enumerate(judge.items())
        for text, theirs in labels.items()
        for f, g in zip_longest(people.get(record_id, {}).get(text, [])[: len(theirs)], theirs)
    ]
    f, g, number = torch.tensor(rows, dtype=torch.float64).reshape(-1, 3).unbind(1)
    return Judged(f, g, number.long())


def agreement(pairs: Mapping[str, Sequence[tuple[float, float]]]) -> Agreement:
    """Compute how far two raters agree.

    Args:
        pairs: factualities in [0, 1] by the first and the second rater, by record id.

    Raises:
        LovecError: a factuality lies outside [0, 1].
    """
    flat = [pair for group in pairs.values() for pair in group]
    ratings = [(to_rating(f), to_rating(g)) for f, g in flat]
    counts = [[0 for _ in BANDS] for _ in BANDS]
    for a, b in ratings:
        counts[bisect_left(_BAND_ENDS, a)][bisect_left(_BAND_ENDS, b)] += 1
    means = [(rounded_mean([f for f, _ in g]), rounded_mean([f for _, f in g])) for g in pairs.values() if g]
    return Agreement(
        n=len(flat),
        spearman=_spearman(flat),
        exact=_mean(a == b for a, b in ratings),
        within_1=_mean(abs(a - b) <= 1 for a, b in ratings),
        mean_first=_mean(f for f, _ in flat),
        mean_second=_mean(g for _, g in flat),
        passages=len(means),
        passage_spearman=_spearman(means),
        confusion=tuple(map(tuple, counts)),
    )


def _spearman(pairs: Sequence[tuple[float, float]]) -> float | None:
    if len(pairs) < 2:
        return None
    first, second = torch.tensor(pairs, dtype=torch.float64).T
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # None is returned instead
        value = spearman(first, second).item()
    return None if math.isnan(value) else value


def _mean(values: Iterable[float]) -> float | None:
    values = list(values)
    return fmean(values) if values else None


def check_overlap(matched: Matched, first: str, second: str) -> Matched:
    """Return ``matched`` if the files have a labelled sentence in common.

    Raises:
        LovecError: they have none; the message says how they differ.
    """
    if not matched.pairs:
        names = " and ".join([*matched.only_first[:1], *matched.only_second[:1]])
        raise LovecError(
            f"{first} and {second} share no labelled sentence: {len(matched.only_first)} and "
            f"{len(matched.only_second)} records have ids that the other file lacks{f' ({names})' if names else ''}, "
            f"{matched.sentences} sentences differ, {matched.unlabelled} have no label; ids and texts must be the same"
        )
    return matched
