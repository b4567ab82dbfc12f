"""How far two label files say the same: oracles, people, or one of each."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch

from lovec.metrics.functional import spearman
from lovec.types import LovecError, Record, to_rating

BANDS = ("0", "1-3", "4-6", "7-9", "10")
"""The fact-checking prompt's own scale: what its ratings stand for."""


@dataclass(frozen=True, slots=True)
class Agreement:
    """How far two raters agree.

    Attributes:
        n: sentences that both have labelled.
        spearman: rank correlation of their factualities; None where one of them says the same throughout.
        exact: share of sentences whose ratings 0..10 are the same; None without any.
        within_1: share of sentences whose ratings differ by 1 at most.
        mean_first: mean factuality by the first rater; None without any.
        mean_second: mean factuality by the second.
        passages: records with such a sentence.
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
    """Sentences that two files share.

    Attributes:
        pairs: factualities in both files, by record id; only sentences that both have labelled.
        unlabelled: sentences in both files that one of them gives no label.
        only_first: ids of records that only the first file has.
        only_second: ids of records that only the second has.
        differing: ids of records of which one file has sentences that the other has not.
        sentences: number of those sentences, over both files.
    """

    pairs: Mapping[str, Sequence[tuple[float, float]]]
    unlabelled: int
    only_first: tuple[str, ...]
    only_second: tuple[str, ...]
    differing: tuple[str, ...]
    sentences: int


def match(first: Iterable[Record], second: Iterable[Record]) -> Matched:
    """Match two labelled files by record id and the text of the sentence; white space does not matter.

    A sentence that stands twice in a record is matched in its order.
    """
    others = {record.id: _by_text(record) for record in second}
    seen: dict[str, None] = {}
    pairs: dict[str, list[tuple[float, float]]] = {}
    only_first, differing = [], []
    unlabelled = sentences = 0
    for record in first:
        if record.id not in others:
            only_first.append(record.id)
            continue
        seen[record.id] = None
        mine, theirs = _by_text(record), others[record.id]
        lonely = 0
        for text in dict.fromkeys([*mine, *theirs]):
            ours, other = mine.get(text, []), theirs.get(text, [])
            lonely += abs(len(ours) - len(other))
            for f, g in zip(ours, other, strict=False):
                if f is None or g is None:
                    unlabelled += 1
                else:
                    pairs.setdefault(record.id, []).append((f, g))
        if lonely:
            differing.append(record.id)
            sentences += lonely
    only_second = tuple(name for name in others if name not in seen)
    return Matched(pairs, unlabelled, tuple(only_first), only_second, tuple(differing), sentences)


def agreement(pairs: Mapping[str, Sequence[tuple[float, float]]]) -> Agreement:
    """How far two raters agree.

    Args:
        pairs: factualities in [0, 1] by the first and the second rater, by record.

    Raises:
        LovecError: a factuality lies outside [0, 1].
    """
    flat = [pair for group in pairs.values() for pair in group]
    ratings = [(to_rating(f), to_rating(g)) for f, g in flat]
    counts = [[0 for _ in BANDS] for _ in BANDS]
    for a, b in ratings:
        counts[_band(a)][_band(b)] += 1
    means = [(_mean([f for f, _ in group]), _mean([g for _, g in group])) for group in pairs.values() if group]
    return Agreement(
        n=len(flat),
        spearman=_spearman(flat),
        exact=_mean([float(a == b) for a, b in ratings]) if flat else None,
        within_1=_mean([float(abs(a - b) <= 1) for a, b in ratings]) if flat else None,
        mean_first=_mean([f for f, _ in flat]) if flat else None,
        mean_second=_mean([g for _, g in flat]) if flat else None,
        passages=len(means),
        passage_spearman=_spearman(means),
        confusion=tuple(map(tuple, counts)),
    )


def _by_text(record: Record) -> dict[str, list[float | None]]:
    found: dict[str, list[float | None]] = {}
    for sentence in record.sentences:
        found.setdefault(" ".join(sentence.text.split()), []).append(sentence.factuality)
    return found


def _spearman(pairs: Sequence[tuple[float, float]]) -> float | None:
    if len(pairs) < 2:
        return None
    first, second = torch.tensor(pairs, dtype=torch.float64).T
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a None says it
        value = spearman(first, second).item()
    return None if math.isnan(value) else value


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)


def _band(rating: int) -> int:
    return 0 if rating == 0 else 4 if rating == 10 else 1 + (rating - 1) // 3


def checked(matched: Matched, first: str, second: str) -> Matched:
    """The same, if the files have a labelled sentence in common.

    Raises:
        LovecError: they have none; the message says what they have instead.
    """
    if not matched.pairs:
        names = " and ".join([*matched.only_first[:1], *matched.only_second[:1]])
        raise LovecError(
            f"{first} and {second} share no labelled sentence: {len(matched.only_first)} and "
            f"{len(matched.only_second)} records have ids of their own{f' ({names})' if names else ''}, "
            f"{matched.sentences} sentences differ, {matched.unlabelled} have no label; ids and texts must be the same"
        )
    return matched
