"""The calibration of an adapter: what turns its scores into deployed confidences, as one JSON file beside it."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from datetime import UTC, datetime
from functools import partial
from itertools import groupby, pairwise
from pathlib import Path
from typing import Annotated, Any, ClassVar, NamedTuple, TypeAlias

import numpy as np

import lovec
from lovec.calibration.conformal import TRUE_FROM, Guarantee, guarantee, weighted
from lovec.calibration.drift import Histogram
from lovec.calibration.features import check_names, feature_row
from lovec.calibration.fitting import Answer, Fitted, Labelled, feature_names, fit_labelled
from lovec.calibration.maps import FeatureMap, Identity, Stack, feature_map_from_dict, mapped
from lovec.calibration.numbers import resolved
from lovec.core.notices import counted
from lovec.core.plain import (
    PlainObject,
    Within,
    checked_list,
    checked_number,
    checked_object,
    checked_text,
    plain_object,
    read_object,
    wrong,
)
from lovec.core.provenance import Provenance
from lovec.core.settings import check_range, checked
from lovec.metrics.bootstrap import MAIN
from lovec.metrics.records import READOUTS
from lovec.types import BY_SOURCE, DEFAULT_SCALE, FittedMode, LovecError, Promise, Record, Sentence, question_id

VERSIONS = (1, 2)
"""Versions of the file format; the first one does not say what decides the scores."""

Metrics: TypeAlias = Mapping[str, Mapping[str, Sequence[float] | None]]
"""By "before", "after" and "difference": by the metric's name [value, low, high], None where it is undefined."""

_SOURCE = {"mean": "mean of the score distribution", "stated": "stated score"}
_STAGES = ("before", "after", "difference")
_FIX = "calibrate again"


class Promised(NamedTuple):
    """A guarantee to compute, see ``lovec.calibration.conformal.guarantee``."""

    alpha: float
    kind: Promise = "all-true"
    share: float = 1.0

    @classmethod
    def keep_factual(cls, probability: float) -> Promised:
        """Return the promise that all kept sentences are true with a probability in (0, 1)."""
        check_range("keep_factual", probability, above=0, below=1)
        return cls(round(1.0 - probability, 9))

    @classmethod
    def of(cls, found: Guarantee) -> Promised:
        """Return the promise of a guarantee, to be made again."""
        return cls(found.alpha, found.kind, found.share)


def _asked_for(found: Guarantee) -> str:
    """Return the options of ``lovec calibrate`` that ask for what a guarantee promises, beside the probability."""
    words = "" if found.kind == "all-true" else f" --promise {found.kind}"
    words += f" --share {found.share:g}" if found.kind == "share" else ""
    return words + ("" if found.true_from == TRUE_FROM else f" --true_from {found.true_from:g}")


@dataclass(frozen=True, slots=True)
class FittedOn(PlainObject):
    """What a calibration was fitted on.

    Attributes:
        sentences: number of labelled sentences.
        passages: number of answers that they are from.
        date: day of the fit, in UTC, as "2026-11-22".
        data: names of the files with the labelled answers, without their folders.
        metrics: before and after, cross-fitted, with 95 % bootstrap intervals over passages.
        lovec: version of lovec.
    """

    what: ClassVar[str] = "a calibration"

    sentences: Annotated[int, Within(1, 2**31 - 1)]
    passages: Annotated[int, Within(1, 2**31 - 1)]
    date: str
    data: tuple[str, ...] = ()
    metrics: Annotated[Metrics, _metrics] = field(default_factory=dict)
    lovec: str = ""

    def __post_init__(self) -> None:
        if not re.fullmatch(r"\d{4}-\d\d-\d\d", self.date):
            raise wrong("date of a calibration", self.date, "a day such as 2026-11-22")

    @classmethod
    def from_dict(cls, data: Any) -> FittedOn:
        """Return what a JSON object holds.

        Raises:
            LovecError: it holds something else.
        """
        return read_object(cls, checked_object(data, "what was fitted on", [field.name for field in fields(cls)]))


@dataclass(frozen=True, slots=True, kw_only=True)
class FittedMap(PlainObject):
    """A fitted map and what is promised: what the calibrations of an adapter and of any scores have in common.

    Attributes:
        map: a map of confidences, or a stack of features.
        guarantees: thresholds on the only feature before the map, or on what a stack makes of several.
        fitted: what it was fitted on.
        histogram: the distribution of what the thresholds are on, over the sentences that it was fitted to.
    """

    what: ClassVar[str] = "a calibration"

    map: Annotated[FeatureMap, _map]
    guarantees: Annotated[tuple[Guarantee, ...], Within(most=100)] = ()
    fitted: FittedOn
    histogram: Histogram

    def __post_init__(self) -> None:
        check_promises(self.guarantees)

    def threshold(self, keep_factual: float) -> Guarantee:
        """Return the guarantee that was computed for a probability.

        Args:
            keep_factual: probability 1 - alpha that the promise holds, or 1 less the bound on the share of errors.

        Raises:
            LovecError: there is none for it; the message lists those that there are.
        """
        check_range("keep_factual", keep_factual, above=0, below=1)
        for found in self.guarantees:
            if abs(found.keep_factual - keep_factual) < 1e-9:
                return found
        there = ", ".join(
            f"{found.keep_factual:g}" + ("" if found.kind == "all-true" else f" ({found.kind})")
            for found in self.guarantees
        )
        alike = [found for found in self.guarantees if _asked_for(found) == _asked_for(self.guarantees[0])]
        which = "with it" if not alike else "with all of them"
        if len(alike) < len(self.guarantees):
            which = "with those that promise the same as the first"
        levels = [f"{level:g}" for level in (*(found.keep_factual for found in alike), keep_factual)]
        promise = _asked_for(alike[0]) if alike else ""
        raise LovecError(
            f"there is no threshold for --keep_factual {keep_factual:g}, only for {there or 'none'}; calibrate again "
            f"{which}: `lovec calibrate {self._again([*dict.fromkeys(levels)])}{promise}`"
        )

    def _again(self, levels: Sequence[str]) -> str:
        """Return the words after ``lovec calibrate`` with which thresholds for these levels are computed."""
        return f"RUN --keep_factual {levels[0]}" if len(levels) == 1 else f"RUN --keep_factual '[{','.join(levels)}]'"

    def describe_from(self, source: str, item: str, group: str) -> str:
        """Return in one sentence what a confidence is.

        Args:
            source: what is mapped.
            item: what was rated, such as "sentence".
            group: what such things belong to, such as "answer".
        """
        kind = self.map.name if not isinstance(self.map, Stack) or self.map.isotonic is None else "stack, isotonic"
        kind = "as it is, which no map improved" if isinstance(self.map, Identity) else kind
        counts = f"{counted(self.fitted.sentences, item)} of {counted(self.fitted.passages, group)}"
        return f"confidence: {source}, calibrated ({kind}, {counts}, {self.fitted.date})"


def file_words(levels: Sequence[str]) -> str:
    """Return the words after ``lovec calibrate`` with which thresholds for these levels are computed of a file."""
    return f"FILE {' '.join(f'--keep_factual {level}' for level in levels)}"


@checked("{} of a calibration")
@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration(FittedMap):
    """A map from what a tagger tells about a sentence to its deployed confidence, and thresholds with a guarantee.

    Attributes:
        readout: what is mapped: "mean" or "stated", or the names of several features.
        adapter: digest of the weights that it was fitted for, see ``lovec.calibration.weights_digest``; "" of a model
            behind an API, for whose answers a file was calibrated.
        base: name of the base model.
        mode: how the answers that it was fitted to were tagged.
        levels: number of levels of the scale of the scores.
        provenance: what decided the scores that it was fitted to; None where that is not known.

    Raises:
        LovecError: the map does not belong to the readout, the readout or the mode is unknown, or guarantees contradict
            each other.
    """

    readout: Annotated[str | tuple[str, ...], _readout]
    adapter: str
    base: str
    mode: FittedMode
    levels: Annotated[int, Within(2, 10_000)] = DEFAULT_SCALE.size
    provenance: Provenance | None = None

    def __post_init__(self) -> None:
        if isinstance(self.map, Stack) != (not isinstance(self.readout, str)) or (
            isinstance(self.map, Stack) and self.map.features != self.readout
        ):
            raise LovecError(f"the map {self.map.name!r} does not belong to the readout {self.readout!r}; {_FIX}")
        if isinstance(self.readout, str) and self.readout not in READOUTS:
            raise LovecError(f"the readout of a calibration is {self.readout!r}, expected {' or '.join(READOUTS)}")
        if not isinstance(self.readout, str):
            check_names(self.readout)
        FittedMap.__post_init__(self)

    def _again(self, levels: Sequence[str]) -> str:
        return FittedMap._again(self, levels) if self.adapter else f"{file_words(levels)} --redo"

    @property
    def features(self) -> tuple[str, ...]:
        """Names of the features that the map takes; one for a single readout."""
        return (self.readout,) if isinstance(self.readout, str) else self.readout

    @property
    def needs_token_logps(self) -> bool:
        """Whether a feature is computed from the log-probabilities of the sentence's tokens."""
        return any(name.startswith("logp") for name in self.features)

    @property
    def needs_distribution(self) -> bool:
        """Whether a feature is computed from the distribution over scores."""
        return not {"mean", "entropy"}.isdisjoint(self.features)

    def confidence(self, sentence: Sentence) -> float | None:
        """Return the deployed confidence of a tagged sentence in [0, 1]; None where a feature is missing.

        Raises:
            LovecError: the sentence was scored on another scale.
        """
        row = self._row(sentence)
        return None if row is None else confidence_by(self.map, row)

    def rank(self, sentence: Sentence) -> float | None:
        """Return the number in [0, 1] that the thresholds of the guarantees are on; None where a feature is missing.

        It is the readout before the map, which no label has touched, and of several features the confidence. Both
        order sentences as the confidence does, since maps do not fall.

        Raises:
            LovecError: the sentence was scored on another scale.
        """
        row = self._row(sentence)
        return None if row is None else rank_by(self.map, row)

    def describe_guarantee(self, promised: Guarantee) -> str:
        """Return in one sentence what a guarantee of this calibration promises, see ``Guarantee.describe``."""
        return promised.describe(label="supported by the evidence" if self.mode in BY_SOURCE.values() else "true")

    def keeps(self, sentence: Sentence, promised: Guarantee) -> bool:
        """Return whether a tagged sentence is kept under a guarantee of this calibration."""
        return promised.keeps(self.rank(sentence))

    def apply(self, records: Iterable[Record]) -> list[Record]:
        """Return records with deployed confidences; scores and distributions stay.

        The confidence is computed from what stays, so a second application changes nothing; only where a sentence has
        no score, as those of baselines, "stated" is the confidence itself, and must be mapped once.

        Raises:
            LovecError: a sentence was scored on another scale.
        """
        return [
            replace(r, sentences=tuple(replace(s, confidence=self.confidence(s)) for s in r.sentences)) for r in records
        ]

    def drift(self, records: Iterable[Record]) -> str | None:
        """Return in one sentence how tagged records differ from the fitted ones; None where that is not shown.

        Only their scores are compared, not their texts. See ``Histogram.unlike``.

        Raises:
            LovecError: a sentence was scored on another scale.
        """
        ranks: dict[str, list[float]] = {}
        for record in records:
            found = (self.rank(sentence) for sentence in record.sentences)
            ranks.setdefault(question_id(record.id), []).extend(rank for rank in found if rank is not None)
        return self.histogram.unlike(list(ranks.values()))

    def describe(self) -> str:
        """Return in one sentence what a confidence is."""
        source = _SOURCE[self.readout] if isinstance(self.readout, str) else f"from {', '.join(self.readout)}"
        return self.describe_from(source, "sentence", "answer")

    def to_dict(self) -> dict[str, Any]:
        """Return the calibration as a plain JSON object."""
        said = plain_object(self)
        if self.provenance is None:
            del said["provenance"]
        return {"version": VERSIONS[self.provenance is not None], **said}

    @classmethod
    def from_dict(cls, data: Any) -> Calibration:
        """Return the calibration that a JSON object holds.

        Raises:
            LovecError: it holds something else, or a version of the format that is unknown.
        """
        version = data.get("version") if isinstance(data, Mapping) else VERSIONS[0]
        if type(version) is not int or version not in VERSIONS:
            raise wrong("version of a calibration", version, " or ".join(map(str, VERSIONS)))
        names = {field.name for field in fields(cls)} - ({"provenance"} if version == VERSIONS[0] else set())
        found = {"provenance": None, **checked_object(data, cls.what, {"version", *names})}
        del found["version"]
        made: Calibration = read_object(cls, found)
        if isinstance(made.map, Stack):
            return made
        # Thresholds of earlier versions may be finer than what they are compared with.
        limits = [max(one.threshold, float(resolved(one.threshold))) for one in made.guarantees]
        told = (replace(one, threshold=limit) for one, limit in zip(made.guarantees, limits, strict=True))
        return replace(made, guarantees=tuple(told))

    def _row(self, sentence: Sentence) -> list[float] | None:
        row = feature_row(sentence, self.features)
        if row is not None and sentence.levels != self.levels:
            raise LovecError(
                f"a sentence is scored on {sentence.levels} levels, and the calibration was fitted to {self.levels}; "
                f"{_FIX}"
            )
        return row


def calibrate(
    records: Sequence[Record], *, readout: str | Sequence[str] = "mean", **options: Any
) -> tuple[Calibration, Fitted]:
    """Fit a calibration to tagged and labelled records.

    Args:
        records: tagged and labelled records.
        readout: see ``fit_map``.
        **options: see ``calibrate_answers``; ``levels`` is that of the records.

    Returns:
        The calibration, and the fit with its candidates and warnings.

    Raises:
        LovecError: see ``calibrate_answers``; or sentences were scored on different scales.
    """
    scales = sorted({s.levels for r in records for s in r.sentences if s.factuality is not None})
    if len(scales) > 1:
        raise LovecError(f"sentences are scored on {scales} levels, expected one scale; calibrate one run at a time")
    features = feature_names(readout)
    answers = [Answer.of(record, features) for record in records]
    return calibrate_answers(answers, readout=readout, levels=(scales or [DEFAULT_SCALE.size])[0], **options)


def calibrate_answers(
    answers: Sequence[Answer],
    *,
    adapter: str,
    base: str,
    mode: FittedMode,
    levels: int,
    readout: str | Sequence[str] = "mean",
    maps: Sequence[str] = ("isotonic", "platt", "beta"),
    promised: Sequence[Promised] = (),
    true_from: float = TRUE_FROM,
    data: Iterable[str] = (),
    folds: int = 5,
    draws: int = 2000,
    seed: int = 0,
    provenance: Provenance | None = None,
    earlier: FeatureMap | None = None,
) -> tuple[Calibration, Fitted]:
    """Fit a calibration to labelled answers.

    For one readout, the thresholds are on the readout itself, so all records serve both the map and the guarantees. A
    stack of several features orders sentences by the labels it was fitted to: where guarantees are asked for, it is
    fitted to one random half of the passages, and the thresholds are found on the other. Several answers to one
    question lie in one fold and in one half, and count as much as one for the thresholds.

    Args:
        answers: labelled answers, with the features that ``readout`` names.
        adapter: digest of the adapter's weights, see ``lovec.calibration.weights_digest``.
        base: name of the base model; of a path only the last part is kept.
        mode: how the answers were tagged.
        levels: number of levels of the scale of their scores.
        readout: see ``fit_map``.
        maps: see ``fit_map``.
        promised: guarantees to compute thresholds for.
        true_from: factuality from which a sentence is true, for the guarantees.
        data: paths of the files with the answers, of which only the names are kept.
        folds: see ``fit_map``.
        draws: number of draws of the bootstrap for the intervals.
        seed: seed of all that is random.
        provenance: what decided the scores of the answers, see ``Session.provenance``; with None nobody can tell later
            whether the scores that the map is applied to are like these.
        earlier: a map of the same features that is replaced: its confidences are those "before". None: the readout.

    Returns:
        The calibration, and the fit with its candidates and warnings.

    Raises:
        LovecError: see ``fit_map`` and ``guarantee``.
    """
    fit_on, promise_on = list(answers), list(answers)
    if promised and not isinstance(readout, str):
        half = random_half((answer.question for answer in answers), seed)
        fit_on, promise_on = [a for a in answers if a.question in half], [a for a in answers if a.question not in half]
    labelled = Labelled.of(fit_on, readout)
    fitted = fit_labelled(labelled, maps, folds, seed)
    if earlier is not None:
        confidences = [confidence_by(earlier, row) for row in labelled.rows.tolist()]
        fitted = replace(fitted, before=labelled.pairs(np.array(confidences)))
    made = Calibration(
        readout=fitted.readout,
        adapter=adapter,
        base=Path(base).name if os.path.isabs(base) else base,
        mode=mode,
        levels=levels,
        provenance=provenance,
        **fitted_fields(fitted, data, draws, seed),
    )
    check_range("true_from", true_from, above=0, at_most=1)
    promise_on = [answer for answer in promise_on if answer.factuality]
    passages = weighted(
        (answer.passage(partial(rank_by, made.map), true_from) for answer in promise_on),
        [answer.question for answer in promise_on],
    )
    told = replace(made.fitted, passages=len({a.id for a in fit_on if any(row is not None for row in a.rows)}))
    guarantees = tuple(guarantee(passages, *one, true_from) for one in promised)
    return replace(made, fitted=told, guarantees=guarantees), fitted


def fitted_fields(fitted: Fitted, data: Iterable[str], draws: int, seed: int) -> dict[str, Any]:
    """Return the fields of a ``FittedMap`` but its guarantees.

    Args:
        fitted: the fit.
        data: paths of the files with what was labelled, of which only the names are kept.
        draws: number of draws of the bootstrap for the intervals.
        seed: seed of the draws.
    """
    fitted_on = FittedOn(
        fitted.sentences,
        fitted.passages,
        datetime.now(UTC).strftime("%Y-%m-%d"),
        tuple(Path(path).name for path in data),
        fitted.metrics(draws, seed),
        lovec.__version__,
    )
    histogram = Histogram.of([[rank_by(fitted.map, row) for row in rows] for rows in fitted.rows])
    return {"map": fitted.map, "fitted": fitted_on, "histogram": histogram}


def confidence_by(fitted: FeatureMap, row: list[float]) -> float:
    """Return what a map makes of the features of a sentence, in [0, 1]."""
    return min(max(float(mapped(fitted, [row])[0]), 0.0), 1.0)


def rank_by(fitted: FeatureMap, row: list[float]) -> float:
    """Return what thresholds are on: the only feature, or the confidence that a stack makes of several."""
    return confidence_by(fitted, row) if isinstance(fitted, Stack) else row[0]


def check_promises(guarantees: Sequence[Guarantee]) -> None:
    """Check that there is one guarantee of a kind for a probability, and that the higher of two keeps no more.

    Raises:
        LovecError: two guarantees contradict each other.
    """
    ordered = sorted(guarantees, key=lambda found: (found.kind, found.share, found.keep_factual))
    for _, alike in groupby(ordered, key=lambda found: (found.kind, found.share)):
        for low, high in pairwise(alike):
            if high.keep_factual - low.keep_factual < 1e-9:
                raise LovecError(f"there are two guarantees for {high.keep_factual:g}, expected one; {_FIX}")
            if low.true_from == high.true_from and low.threshold > high.threshold:
                raise LovecError(
                    f"the guarantee for {high.keep_factual:g} keeps more than that for {low.keep_factual:g}, expected "
                    f"fewer sentences; {_FIX}"
                )


def random_half(groups: Iterable[str], seed: int) -> set[str]:
    """Return the names of one random half of the groups, given the group of every row."""
    names = list(dict.fromkeys(groups))
    order = np.random.default_rng(seed).permutation(len(names))
    return {names[index] for index in order[: (len(names) + 1) // 2]}


def _readout(value: Any, _: str) -> str | tuple[str, ...]:
    if isinstance(value, str):
        return value
    names = tuple(checked_text(name, "a feature") for name in checked_list(value, "readout", 100))
    check_names(names)
    return names


def _map(value: Any, _: str) -> FeatureMap:
    return feature_map_from_dict(value)


def _metrics(value: Any, name: str) -> Metrics:
    """Return the metrics in a file, by stage and name."""
    stages = checked_object(value, name, _STAGES)
    return {
        stage: {metric: _interval(ends, f"{metric} of a calibration") for metric, ends in found.items()}
        for stage in _STAGES
        for found in [checked_object(stages[stage], name, MAIN)]
    }


def _interval(ends: Any, name: str) -> list[float] | None:
    if ends is None:
        return None
    if len(checked_list(ends, name, 3)) != 3:
        raise LovecError(f"{name} has {len(ends)} numbers, expected value, low and high")
    return [checked_number(end, name, -2, 2) for end in ends]
