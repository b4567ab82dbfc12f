"""A calibrated blend of teachers, fitted on the labelled answers and used on all of them."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import expit, logit

from lovec.calibration import Isotonic
from lovec.calibration.logistic import Array, fit_logistic, softened
from lovec.core.settings import CountFromTwo, Positive, Seed, checked
from lovec.teachers.base import Estimates, Teacher, TeacherResources
from lovec.types import LovecError, Oracle, Record, comparable

_CLIP = 0.01


@dataclass(frozen=True, slots=True)
class CalibratedStack:
    """An isotonic map of each column, and ridge logistic regression on the log-odds of what the maps give.

    c = sigmoid(sum of w_j logit m_j(x_j) + intercept), with m_j the map of column j, clipped to [0.01, 0.99].

    Attributes:
        maps: the map of each of the J columns.
        weights: w, [J].
        intercept: added to the log-odds.
    """

    maps: tuple[Isotonic, ...]
    weights: tuple[float, ...]
    intercept: float

    @classmethod
    def fit(cls, rows: ArrayLike, factuality: ArrayLike, strength: float) -> CalibratedStack:
        """Find the maps, and the weights with the lowest mean cross-entropy to soft labels plus the penalty.

        Args:
            rows: estimates, [N, J], in [0, 1].
            factuality: [N], in [0, 1].
            strength: the penalty is strength / 2 times the squared length of the weights; above 0.
        """
        x, y = np.asarray(rows, dtype=np.float64), np.asarray(factuality, dtype=np.float64)
        maps = tuple(_isotonic(column, y) for column in x.T)
        design = np.vstack([_log_odds(maps, x), np.ones(len(x))])
        (*weights, intercept), _ = fit_logistic(design, softened(y), np.array([strength] * len(maps) + [0.0]))
        return cls(maps, tuple(float(weight) for weight in weights), float(intercept))

    def __call__(self, rows: ArrayLike) -> Array:
        """Return the blended estimates of rows [N, J]: [N] in [0, 1], float64."""
        odds = _log_odds(self.maps, np.asarray(rows, dtype=np.float64))
        return np.asarray(expit(np.array(self.weights) @ odds + self.intercept))


@checked("{} of a blend")
class Blend(Teacher):
    """A calibrated blend of several teachers, fitted on the labelled training answers by cross-fitting.

    Every teacher gets an isotonic map from its estimates to factuality; a ridge logistic regression on their log-odds
    makes one estimate of all. The questions are divided at random into folds, and the answers to those of a fold get
    the estimates of maps that were fitted without them; answers without labels get those of maps that were fitted to
    all labels. So the target of a sentence never contains its own label. With a single teacher it is calibrated only.

    A sentence that a teacher cannot judge is blended with that teacher's estimate of equal sentences (see ``alike``) in
    its place, or else with the mean of its estimates; where no teacher can judge it, there is no estimate.

    Args:
        teachers: what is blended.
        folds: number of folds; with fewer labelled questions, one fold per question.
        strength: strength of the ridge penalty, above 0, see ``CalibratedStack.fit``.
        alike: whether equal sentences in several answers to a question get the mean of their estimates; what a
            teacher says of a sentence depends on the text before it, how true it is does not.
        seed: seed of the division into folds.
    """

    uses_labels = True

    def __init__(
        self,
        teachers: list[Teacher],
        folds: CountFromTwo = 5,
        strength: Positive = 1e-3,
        alike: bool = True,
        seed: Seed = 0,
    ) -> None:
        if not teachers:
            raise LovecError("the teacher Blend has no teachers to blend, expected one or more")
        self.teachers = teachers
        self.folds = folds
        self.strength = strength
        self.alike = alike
        self.seed = seed

    def check_ready(self, oracle: Oracle | None) -> None:
        """Refuse a blend of which a teacher lacks what it needs."""
        for teacher in self.teachers:
            teacher.check_ready(oracle)

    def estimates(self, records: Sequence[Record], resources: TeacherResources) -> Estimates:
        """Return the blended estimates.

        Raises:
            LovecError: there are labels of fewer than two questions, or all labels are equal.
        """
        questions, y = _labels(records)
        _labelled_questions(questions, y, ~np.isnan(y))  # before teachers estimate in vain
        return self.blended(records, [teacher.estimates(records, resources) for teacher in self.teachers])

    def blended(self, records: Sequence[Record], estimates: Sequence[Estimates]) -> Estimates:
        """Return the blend of estimates that exist already, those of one teacher after the other."""
        columns = [[value for row in rows for value in row] for rows in estimates]
        x = np.array(columns, dtype=np.float64).T  # None becomes NaN
        known = np.asarray(~np.isnan(x).all(1))
        if not known.any():
            raise LovecError(f"none of {len(x)} sentences has an estimate of a teacher to blend; choose other teachers")
        means = _column_means(x)
        asked, y = _labels(records)
        if self.alike:
            texts = [comparable(sentence.text) for record in records for sentence in record.sentences]
            x = _alike(x, [f"{question}\x1f{text}" for question, text in zip(asked, texts, strict=True)])
        x = np.where(np.isnan(x), means, x)  # only now: a twin that could not be judged says nothing of the others
        labelled = np.asarray(known & ~np.isnan(y))
        fold = _fold_of(_labelled_questions(asked, y, labelled), self.folds, self.seed)
        part = np.array([fold.get(question, -1) for question in asked])
        blended = CalibratedStack.fit(x[labelled], y[labelled], self.strength)(x)
        for number in set(fold.values()):
            fitted = CalibratedStack.fit(x[labelled & (part != number)], y[labelled & (part != number)], self.strength)
            blended[part == number] = fitted(x[part == number])
        values = iter([float(value) if has else None for value, has in zip(blended, known, strict=True)])
        return [[next(values) for _ in record.sentences] for record in records]


def _labels(records: Sequence[Record]) -> tuple[list[str], Array]:
    """Return the question and the factuality of every sentence, NaN without a label."""
    pairs = [(record.question, sentence.factuality) for record in records for sentence in record.sentences]
    return [question for question, _ in pairs], np.array([value for _, value in pairs], dtype=np.float64)


def _labelled_questions(asked: Sequence[str], factuality: Array, labelled: NDArray[np.bool_]) -> list[str]:
    """Return the questions that a blend can be fitted on, each once, in their order.

    Args:
        asked: the question of every sentence.
        factuality: as for ``CalibratedStack.fit``.
        labelled: which sentences have a label, and an estimate, [N].

    Raises:
        LovecError: there are fewer than two, or all labels are equal.
    """
    questions = list(dict.fromkeys(question for question, has in zip(asked, labelled, strict=True) if has))
    if len(questions) < 2 or np.ptp(factuality[labelled]) == 0:
        raise LovecError(
            f"a blend is fitted to labels, and got {int(labelled.sum())} of {len(questions)} questions, expected "
            "different ones of two questions or more; give labelled training answers, or a teacher that needs none"
        )
    return questions


def _fold_of(questions: Sequence[str], folds: int, seed: int) -> dict[str, int]:
    """Return the fold of every question; a question's place depends on the seed and its text, not on the order."""
    keys = {question: hashlib.sha256(f"{seed}/{question}".encode()).hexdigest() for question in questions}
    ordered = sorted(questions, key=keys.__getitem__)
    return {question: number % min(folds, len(ordered)) for number, question in enumerate(ordered)}


def _column_means(x: Array) -> Array:
    """Return the mean of each column of [N, J] without its NaNs, 0.5 for a column of nothing else: [J]."""
    count = (~np.isnan(x)).sum(0)
    return np.where(count > 0, np.nansum(x, 0) / np.maximum(count, 1), 0.5)


def _alike(x: Array, keys: Sequence[str]) -> Array:
    """Return rows [N, J], each of them the mean over the rows that have the same key.

    A NaN is no value: the mean is that of the others in its column, NaN where there are none.
    """
    numbers: dict[str, int] = {}  # an array of the keys would give each the memory of the longest
    place = np.array([numbers.setdefault(key, len(numbers)) for key in keys])
    there = ~np.isnan(x)
    sums, counts = (
        np.stack([np.bincount(place, column) for column in values.T], axis=1)
        for values in (np.where(there, x, 0), there)
    )
    means = np.full_like(sums, np.nan)
    return np.asarray(np.divide(sums, counts, out=means, where=counts > 0)[place])


def _isotonic(column: Array, factuality: Array) -> Isotonic:
    """Return the isotonic map of a column; for equal estimates that to the mean factuality."""
    if (column == column[0]).all():
        return Isotonic((0.0,), (float(factuality.mean()),))
    return Isotonic.fit(column, factuality)


def _log_odds(maps: Sequence[Isotonic], rows: Array) -> Array:
    """Return the log-odds of mapped estimates, [J, N]."""
    mapped = np.stack([fitted(column) for fitted, column in zip(maps, rows.T, strict=True)])
    return np.asarray(logit(mapped.clip(_CLIP, 1.0 - _CLIP)))
