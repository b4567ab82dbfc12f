"""Chooses and fits the map from what a tagger tells about a sentence to how often such sentences are true."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lovec.calibration.conformal import Passage
from lovec.calibration.features import check_names, feature_row
from lovec.calibration.logistic import Array
from lovec.calibration.maps import MAPS, STRENGTHS, FeatureMap, Identity, Isotonic, Platt, Stack, mapped
from lovec.core.notices import counted
from lovec.core.settings import check_count, check_seed
from lovec.metrics.bootstrap import MAIN, QuestionPairs, draws_of, interval_of, resample_groups
from lovec.metrics.functional import brier_score, checked_pair, ece_m, spearman
from lovec.metrics.grouped import GroupedPairs
from lovec.metrics.records import READOUTS
from lovec.metrics.table import METRICS
from lovec.types import LovecError, Record, question_id

LEAST_LABELS = 200
"""Number of labelled sentences below which a fit warns.

In a simulation (six sentences per passage that share half of the variance of their log-odds, graded labels, confidences
too high by one unit of log-odds, which is an ECE-M of 17.6 points) the chosen map has an ECE-M on new passages of 6.9
points on average with 30 labelled sentences, 4.0 with 102, 3.0 with 204 and 1.9 with 804; one fit in ten is worse than
11.6, 6.1, 4.4 and 2.6 points.
"""

LEAST_PASSAGES = 30
"""Number of labelled passages below which a fit warns; see ``LEAST_LABELS``: 204 sentences are 34 passages there."""

_Indices: TypeAlias = NDArray[np.int64]

_Fit: TypeAlias = Callable[[Array, Array, _Indices], FeatureMap]
"""Fits a map to features [N, F], factuality [N] and the passage of each [N]; the map takes features as well."""

_Judged: TypeAlias = Callable[[_Indices], tuple[Array, Array]]
"""Returns features [M, F] and corrected labels [M], by people's labels of those passages alone that are given."""

_SAME = 1e-12  # Brier scores that differ by less are equal


class Words(NamedTuple):
    """What messages call what is rated, and what some of these belong to."""

    item: str = "sentence"
    group: str = "passage"
    expected: str = "tagged records with factualities; label them with `lovec label`"


SENTENCES = Words()
"""Of tagged records."""


class Answer(NamedTuple):
    """The labelled sentences of an answer, as the numbers that a map takes.

    Attributes:
        id: its id; answers to one question, see ``question``, are one passage.
        rows: the features of each sentence; None where it lacks one.
        factuality: how true each is, in [0, 1].
    """

    id: str
    rows: Sequence[list[float] | None]
    factuality: Sequence[float]

    @classmethod
    def of(cls, record: Record, features: Sequence[str]) -> Answer:
        """Return those sentences of a tagged record that have a factuality."""
        labelled = [(feature_row(s, features), s.factuality) for s in record.sentences if s.factuality is not None]
        return cls(record.id, [row for row, _ in labelled], [factuality for _, factuality in labelled])

    @property
    def question(self) -> str:
        """What the answers to one question share in their ids."""
        return question_id(self.id)

    def passage(self, rank: Callable[[list[float]], float], true_from: float) -> Passage:
        """Return what a guarantee is computed from, see ``lovec.calibration.conformal``.

        Args:
            rank: returns what a sentence is kept by, from its features.
            true_from: factuality from which a sentence is true.
        """
        return Passage(
            [None if row is None else rank(row) for row in self.rows],
            [factuality >= true_from for factuality in self.factuality],
        )


@dataclass(frozen=True, slots=True)
class Labelled:
    """The sentences that a map is fitted to: those with a factuality and with every feature.

    Attributes:
        features: names of the features; one of them for a map of a single readout.
        rows: their values, [N, number of features].
        factuality: [N], in [0, 1].
        passage: index of the passage of each sentence, [N]; answers to one question are one passage.
        names: ids of the passages.
        missing: number of sentences with a factuality that lack a feature.
        probabilities: for each feature whether it is a confidence in [0, 1], which a map may leave as it is; of other
            features only the order counts.
        stacked: whether the features go into a stack, even if it is one.
        words: for messages.
    """

    features: tuple[str, ...]
    rows: Array
    factuality: Array
    passage: _Indices
    names: tuple[str, ...]
    missing: int
    probabilities: tuple[bool, ...]
    stacked: bool
    words: Words = SENTENCES

    @classmethod
    def of(cls, answers: Iterable[Answer], readout: str | Sequence[str]) -> Labelled:
        """Collect the sentences of labelled answers.

        Args:
            answers: labelled answers, with the features that ``readout`` names.
            readout: "mean" or "stated", or the names of several features.

        Raises:
            LovecError: there are too few sentences to fit anything to; see ``fit_map``.
        """
        features = feature_names(readout)
        found: list[tuple[list[float], float, str]] = []
        missing = 0
        for answer in answers:
            for row, factuality in zip(answer.rows, answer.factuality, strict=True):
                missing += row is None
                found += [] if row is None else [(row, factuality, answer.question)]
        return cls.of_rows(
            features,
            np.array([row for row, _, _ in found], dtype=np.float64).reshape(-1, len(features)),
            [factuality for _, factuality, _ in found],
            [name for _, _, name in found],
            missing,
            [name in READOUTS for name in features],
            not isinstance(readout, str),
        )

    @classmethod
    def of_rows(
        cls,
        features: Sequence[str],
        rows: Array,
        factuality: Sequence[float],
        groups: Sequence[str],
        missing: int,
        probabilities: Sequence[bool],
        stacked: bool,
        words: Words = SENTENCES,
    ) -> Labelled:
        """Collect what was labelled.

        Args:
            features: names of the features.
            rows: their values, [N, number of features], finite.
            factuality: [N], in [0, 1].
            groups: what each belongs to, [N].
            missing: number of those with a factuality that lack a feature, and are not among the rows.
            probabilities: see the class, [number of features].
            stacked: see the class.
            words: for messages.

        Raises:
            LovecError: there are too few to fit anything to; see ``fit_map``.
        """
        if not len(rows):
            nothing = f"none of {missing} labelled {words.item}s has" if missing else f"no {words.item} has a label and"
            raise LovecError(
                f"{nothing} {', '.join(features)}, expected {words.expected}"
                + (", or choose other features" if missing else "")
            )
        names = tuple(dict.fromkeys(groups))
        place = {name: index for index, name in enumerate(names)}
        labelled = cls(
            tuple(features),
            rows,
            np.array(factuality, dtype=np.float64),
            np.array([place[name] for name in groups]),
            names,
            missing,
            tuple(probabilities),
            stacked,
            words,
        )
        labelled._check()
        return labelled

    def members(self) -> list[Any]:
        """Return the indices of the sentences of each passage."""
        order = np.argsort(self.passage, kind="stable")
        return np.split(order, np.cumsum(np.bincount(self.passage))[:-1])

    def pairs(self, confidence: Array) -> QuestionPairs:
        """Return confidences [N] and the factualities, by passage."""
        return {
            name: (confidence[own].tolist(), self.factuality[own].tolist())
            for name, own in zip(self.names, self.members(), strict=True)
        }

    def _check(self) -> None:
        n, (item, group, _) = len(self.factuality), self.words
        checked_pair(np.zeros(n), self.factuality)
        if len(self.names) < 2:
            raise LovecError(
                f"the labelled {item}s are all of one {group}, {self.names[0]!r}, expected two or more: a map is "
                f"chosen on {group}s that it was not fitted to; give more labelled answers"
            )
        if (self.factuality == self.factuality[0]).all():
            raise LovecError(
                f"all {n} labelled {item}s have the factuality {self.factuality[0]:g} (one class), expected true and "
                "false ones; give more labelled answers"
            )
        if (self.rows == self.rows[0]).all():
            values = ", ".join(f"{name} {value:g}" for name, value in zip(self.features, self.rows[0], strict=True))
            raise LovecError(
                f"all {n} labelled {item}s have the same confidence ({values}), expected different ones: no map can "
                "tell them apart; choose another readout, or train the model further"
            )


@dataclass(frozen=True, slots=True)
class Candidate:
    """How a map does on passages that it was not fitted to.

    Attributes:
        name: "identity" (the readout as it is), a name of ``MAPS``, "stack", or "stack, isotonic".
        brier: Brier score of the cross-fitted confidences.
        ece_m: ECE-M of the cross-fitted confidences.
    """

    name: str
    brier: float
    ece_m: float


@dataclass(frozen=True, slots=True)
class Fitted:
    """A fitted map, and how well it does on passages that it was not fitted to.

    Attributes:
        map: the chosen map, fitted to all sentences.
        name: its name among ``candidates``.
        readout: what it maps: "mean" or "stated", or the names of several features.
        candidates: all maps that were tried, the simplest first.
        before: the confidences without a map and the factualities, by passage: the readout itself; for several features
            "mean" or "stated", whichever is first among them, and otherwise the mean factuality.
        after: the cross-fitted confidences: each is given by a map that was fitted without the passage.
        rows: the features of every sentence, by passage.
        warnings: what speaks against trusting it, one sentence each.
        missing: number of labelled sentences that lack a feature, and are left out.
        order_only: whether only the order of the confidences without a map counts.
    """

    map: FeatureMap
    name: str
    readout: str | tuple[str, ...]
    candidates: tuple[Candidate, ...]
    before: QuestionPairs
    after: QuestionPairs
    rows: tuple[tuple[list[float], ...], ...]
    warnings: tuple[str, ...]
    missing: int
    order_only: bool

    @property
    def sentences(self) -> int:
        """Number of sentences that the map was fitted to."""
        return sum(len(confidences) for confidences, _ in self.after.values())

    @property
    def passages(self) -> int:
        """Number of passages that they are from."""
        return len(self.after)

    def metrics(self, draws: int = 2000, seed: int = 0) -> dict[str, dict[str, list[float] | None]]:
        """Return the metrics before and after, and after less before, with 95 % bootstrap intervals over passages.

        "After" is cross-fitted, so it is not flattered by the fit. That the best of a few maps was chosen on the same
        numbers flatters it a little.

        Args:
            draws: number of draws of the bootstrap; of very many sentences fewer are made, see ``draws_of``.
            seed: seed of the draws.

        Returns:
            By "before", "after" and "difference": by the metric's name [value, low, high], None where undefined.
        """
        before, after = (_drawn(pairs, draws, seed) for pairs in (self.before, self.after))
        stages = {"before": before, "after": after, "difference": {name: after[name] - before[name] for name in MAIN}}
        found = {stage: {name: interval_of(drawn[name]) for name in MAIN} for stage, drawn in stages.items()}
        if self.order_only:
            for stage in ("before", "difference"):
                found[stage] |= {name: None for name in found[stage] if METRICS[name].uses == "probability"}
        return {
            key: {
                name: None if ends is None or math.isnan(ends.low) else [ends.value, ends.low, ends.high]
                for name, ends in values.items()
            }
            for key, values in found.items()
        }


def fit_map(
    records: Iterable[Record],
    readout: str | Sequence[str] = "mean",
    maps: Sequence[str] = ("isotonic", "platt", "beta"),
    folds: int = 5,
    seed: int = 0,
) -> Fitted:
    """Choose a map from a readout, or from several features, to factuality, and fit it.

    The passages, each with all answers to one question, are divided at random into folds. Every candidate is fitted on
    all folds but one and gives the confidences of that one; the candidate with the lowest Brier score of these
    confidences is fitted to everything. Equal scores go to the simpler map. For one readout the candidates are ``maps``
    and the identity, which is chosen where no map does better; for several features the stack, and the stack with an
    isotonic map behind it. The strength of the stack's penalty is chosen in the same way, inside every fold.

    Below ``LEAST_LABELS`` sentences or ``LEAST_PASSAGES`` passages there is a warning.

    Args:
        records: tagged and labelled records; sentences without a label or a feature are left out.
        readout: "mean" or "stated", or the names of several features, see ``lovec.calibration.features.FEATURES``.
        maps: candidates for one readout, names of ``lovec.calibration.maps.MAPS``.
        folds: number of folds; with fewer passages, one fold per passage.
        seed: seed of the division into folds.

    Raises:
        LovecError: there is no labelled sentence, or only one passage; all labels or all confidences are equal; a value
            is NaN or outside its range; or a name is unknown.
    """
    features = feature_names(readout)
    return fit_labelled(Labelled.of([Answer.of(record, features) for record in records], readout), maps, folds, seed)


def feature_names(readout: str | Sequence[str]) -> tuple[str, ...]:
    """Return the names of the features that a map takes, see ``fit_map``.

    Raises:
        LovecError: a name is unknown, or twice there.
    """
    if isinstance(readout, str) and readout not in READOUTS:
        raise LovecError(f"readout is {readout!r}, expected one of {', '.join(READOUTS)}, or a tuple of features")
    names = (readout,) if isinstance(readout, str) else tuple(readout)
    check_names(names)
    return names


def fit_labelled(
    data: Labelled,
    maps: Sequence[str] = ("isotonic", "platt", "beta"),
    folds: int = 5,
    seed: int = 0,
    judged: _Judged | None = None,
) -> Fitted:
    """Choose a map from the features of what was labelled to factuality, and fit it, as ``fit_map`` says.

    Args:
        data: what was labelled. Where only the order of its single feature counts, the identity is not a candidate.
        maps: see ``fit_map``.
        folds: see ``fit_map``.
        seed: see ``fit_map``.
        judged: returns labels of more rows, corrected by those of some passages, see
            ``lovec.calibration.judged.corrected_labels``. The maps of a single feature are then fitted to these, too,
            and are further candidates.

    Raises:
        LovecError: a name or a setting is wrong, or no map that may be chosen never falls.
    """
    check_count("folds", folds, at_least=2)
    check_seed("seed", seed)
    if unknown := [name for name in maps if name not in MAPS]:
        raise LovecError(f"the map {unknown[0]!r} is unknown, expected one of {', '.join(MAPS)}")
    if not data.stacked:
        simplest = ("identity",) if all(data.probabilities) else ()
        fits: dict[str, _Fit] = {
            n: partial(_fit_one, n) for n in MAPS if n in simplest or (n in maps and n != "identity")
        }
        if judged is not None:
            fits |= {f"{n} with the judge": partial(_fit_judged, n, judged) for n in fits if n != "identity"}
    else:
        fits = {"stack": partial(_fit_stack, data.features), "stack, isotonic": partial(_fit_mapped, data.features)}
    fold = _folds(len(data.names), folds, seed)[data.passage]
    crossed = {name: _by_fold(fit, data.rows, data.factuality, data.passage, fold) for name, fit in fits.items()}
    candidates = tuple(
        Candidate(name, float(brier_score(c, data.factuality)), float(ece_m(c, data.factuality)))
        for name, c in crossed.items()
    )
    whole = {name: fit(data.rows, data.factuality, data.passage) for name, fit in fits.items()}
    allowed = [candidate for candidate in candidates if _rises(whole[candidate.name])]
    if not allowed:
        raise LovecError(
            f"no map rises with {data.features[0]} ({', '.join(fits) or 'none was tried'}); give isotonic or beta, "
            "too, or check whether its higher values are the surer ones"
        )
    chosen = min(allowed, key=lambda candidate: round(candidate.brier / _SAME))
    return Fitted(
        map=whole[chosen.name],
        name=chosen.name,
        readout=data.features if data.stacked else data.features[0],
        candidates=candidates,
        before=data.pairs(_raw(data)),
        after=data.pairs(crossed[chosen.name]),
        rows=tuple(tuple(data.rows[own].tolist()) for own in data.members()),
        warnings=tuple(_warnings(data)),
        missing=data.missing,
        order_only=not data.stacked and not all(data.probabilities),
    )


def _drawn(pairs: QuestionPairs, draws: int, seed: int) -> dict[str, Tensor]:
    """Return the metrics on draws of the passages in the order in which they came.

    The page of ``lovec calibrate FILE`` draws its groups in this order, too, so that both have the same intervals.
    """
    check_count("draws", draws)
    confidences, factualities = (
        torch.tensor([value for pair in pairs.values() for value in pair[side]], dtype=torch.float64) for side in (0, 1)
    )
    owners = torch.tensor([owner for owner, (own, _) in enumerate(pairs.values()) for _ in own])
    grouped = GroupedPairs(confidences, factualities, owners, len(pairs))
    return resample_groups(grouped, draws_of(grouped, draws), seed, MAIN)


def _rises(fitted: FeatureMap) -> bool:
    """Return whether a map never falls: only Platt's may, where confidences rank worse than chance."""
    return not isinstance(fitted, Platt) or fitted.slope >= 0


def _fit_one(name: str, rows: Array, factuality: Array, passage: _Indices) -> FeatureMap:
    x = rows[:, 0]
    if name == Identity.name:  # whatever the rows are, so that it changes nothing
        return Identity()
    if (x == x[0]).all():  # of a fold: the best map that there is, is the mean
        return _constant(factuality)
    try:
        return MAPS[name].fit(x, factuality)
    except LovecError:  # the confidences are equal once they are clipped
        if name not in ("platt", "beta"):
            raise
        return _constant(factuality)


def _fit_judged(name: str, judged: _Judged, rows: Array, factuality: Array, passage: _Indices) -> FeatureMap:
    return _fit_one(name, *judged(passage), passage)


def _constant(factuality: Array) -> Isotonic:
    return Isotonic((0.0,), (float(factuality.mean()),))


def _fit_stack(features: tuple[str, ...], rows: Array, factuality: Array, passage: _Indices) -> Stack:
    """Fit a stack with the strength whose cross-fitted Brier score is lowest; of equal ones the greatest."""
    names, place = np.unique(passage, return_inverse=True)
    fit = partial(Stack.fit, features)
    if len(names) < 2:
        return fit(rows, factuality, STRENGTHS[-1])
    fold = _folds(len(names), 5, seed=0)[place]
    losses: dict[float, float] = {}
    for strength in reversed(STRENGTHS):

        def with_strength(x: Array, y: Array, _: _Indices, strength: float = strength) -> Stack:
            return fit(x, y, strength)

        losses[strength] = float(brier_score(_by_fold(with_strength, rows, factuality, passage, fold), factuality))
    return fit(rows, factuality, min(losses, key=lambda strength: round(losses[strength] / _SAME)))


def _fit_mapped(features: tuple[str, ...], rows: Array, factuality: Array, passage: _Indices) -> Stack:
    """Fit a stack, and an isotonic map to its confidences where they differ."""
    stack = _fit_stack(features, rows, factuality, passage)
    confidence = stack(rows)
    return stack if np.ptp(confidence) == 0 else replace(stack, isotonic=Isotonic.fit(confidence, factuality))


def _folds(passages: int, folds: int, seed: int) -> _Indices:
    """Return the fold of every passage, [passages]: equally many in each, up to one."""
    order = np.random.default_rng(seed).permutation(passages)
    fold = np.empty(passages, dtype=np.int64)
    fold[order] = np.arange(passages) % min(folds, passages)
    return fold


def _by_fold(fit: _Fit, rows: Array, factuality: Array, passage: _Indices, fold: _Indices) -> Array:
    """Return confidences, [N], each by a map that was fitted to the other folds."""
    confidence = np.empty(len(rows))
    for number in np.unique(fold):
        held = fold == number
        confidence[held] = mapped(fit(rows[~held], factuality[~held], passage[~held]), rows[held])
    return confidence


def _raw(data: Labelled) -> Array:
    """Return the confidences without a map: the first feature that is one, or the mean factuality."""
    if not data.stacked:
        return data.rows[:, 0]
    columns = np.flatnonzero(data.probabilities)
    return data.rows[:, columns[0]] if columns.size else np.full(len(data.rows), data.factuality.mean())


def _warnings(data: Labelled) -> Iterable[str]:
    n, passages, (item, group, _) = len(data.factuality), len(data.names), data.words
    if n < LEAST_LABELS or passages < LEAST_PASSAGES:
        yield (
            f"the map is fitted to {counted(n, f'labelled {item}')} of {counted(passages, group)}; below "
            f"{LEAST_LABELS} {item}s or "
            f"{LEAST_PASSAGES} {group}s maps differ widely from fit to fit: label more answers"
        )
    if data.missing:
        lacking = counted(data.missing, f"labelled {item} lacks", f"labelled {item}s lack")
        yield f"{lacking} {' or '.join(data.features)}: left out"
    if len(data.features) == 1 and float(spearman(_raw(data), data.factuality)) <= 0:
        yield (
            f"the readout {data.features[0]!r} does not rank true {item}s above false ones; calibrated confidences "
            "tell little apart: choose another readout, or train the model further"
        )
