"""The confidence that users get: calibrated where a calibration lies beside the adapter, else the mean readout."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lovec.core.hub import CALIBRATION_FILE
from lovec.core.notices import listed
from lovec.types import (
    BY_SOURCE,
    FREE_FORM,
    ITERATIVE,
    Keeps,
    LovecError,
    Mode,
    Record,
    Scale,
    Sentence,
    ThresholdBy,
)

if TYPE_CHECKING:
    from lovec.calibration import Calibration, Guarantee
    from lovec.core.provenance import Provenance


def renamed_threshold(min_score: Any, scale: Scale, written: str) -> LovecError:
    """Return the error for a threshold on stated scores, which names the threshold on confidences in its place.

    Args:
        min_score: the lowest score, as it was given.
        scale: the scale of the score.
        written: how a threshold on confidences is given where the other one was, with ``{}`` for the number.
    """
    is_score = isinstance(min_score, int) and not isinstance(min_score, bool) and 0 <= min_score <= scale.top
    confidence = f"{min_score / scale.top:.2g}" if is_score else "0.7"
    return LovecError(f"min_score is now min_confidence, a confidence from 0 to 1: {written.format(confidence)}")


DEPLOYED = "deployed"
"""Readout of result rows whose confidences are those that users get."""

_OTHER: Mapping[str, str] = {
    a: b
    for one, two in ((ITERATIVE, FREE_FORM), (BY_SOURCE[ITERATIVE], BY_SOURCE[FREE_FORM]))
    for a, b in ((one, two), (two, one))
}
"""Whose calibration takes the place of one that is missing."""

UNCALIBRATED = "Confidence: mean of the score distribution, not calibrated."
"""What is said of confidences that no map has calibrated."""


@dataclass(frozen=True, slots=True)
class ServedConfidence:
    """What becomes of the confidence that a tagger reads from the distribution over scores.

    Attributes:
        calibrations: by what they were fitted to: the mode of tagging, "iterative" or "free-form", and for records
            whose prompt has their evidence "by source" and "free-form by source". Where one is missing, that of the
            other mode takes its place, but none by source that of one by knowledge, nor the other way round; without
            any, the confidence stays as the tagger has read it.
        kinds: the guarantees for each kind of questions by itself, by the kind; of free-form tagging.
        falls_back: False where no other mode's takes the place of a missing one: a model behind an API tags its
            answers, and texts get another score by another question.
    """

    calibrations: Mapping[str, Calibration] = field(default_factory=dict)
    kinds: Mapping[str, tuple[Guarantee, ...]] = field(default_factory=dict)
    falls_back: bool = True

    @classmethod
    def beside(cls, weights: str | None, provenance: Callable[[], Provenance]) -> ServedConfidence:
        """Return what the file beside an adapter or a merged model says; nothing is changed where there is no file.

        Args:
            weights: folder of the adapter, or of the model where there is none; a hub id has no file.
            provenance: returns what decides the scores that it is applied to.

        Raises:
            LovecError: the file is broken, or was fitted to other weights, or to the scores of another model, adapter
                or prompt.
        """
        if not weights or not os.path.lexists(Path(weights, CALIBRATION_FILE)):
            return cls()
        from lovec.calibration import read_calibrations  # here, because it needs scipy

        return cls(read_calibrations(weights, provenance()))

    @classmethod
    def of_scores(
        cls, path: str | os.PathLike[str], model: str, scale: Scale, mode: Mode = FREE_FORM
    ) -> ServedConfidence:
        """Return what ``lovec calibrate FILE`` has written for tagged answers or texts.

        Args:
            path: the calibration: its file, or its folder.
            model: name of the model that gives the scores, for messages.
            scale: the scale of the scores.
            mode: how the answers that it is applied to are tagged.

        Raises:
            LovecError: there is no such file, or it was not fitted to answers that `lovec tag` wrote.
        """
        from lovec.calibration import Calibration, Stack, load_calibration
        from lovec.datasets.layouts import OWN
        from lovec.datasets.scored import READOUTS

        found = load_calibration(path)
        names = [column.key for column in found.columns]
        if found.layout != OWN.short or not set(names) <= READOUTS.keys():
            raise LovecError(
                f"the calibration {path} is of {', '.join(names) or 'the confidence'}, expected one of "
                f"{' and '.join(READOUTS)}, fitted by `lovec calibrate` to labelled answers that `lovec tag` wrote, or "
                "again to verdicts, by `lovec calibrate CALIBRATION --feedback VERDICTS`"
            )
        readouts = tuple(READOUTS[name] for name in names)
        is_stack = isinstance(found.map, Stack)
        fitted = Calibration(
            map=replace(found.map, features=readouts) if isinstance(found.map, Stack) else found.map,
            guarantees=found.guarantees,
            fitted=found.fitted,
            histogram=found.histogram,
            readout=readouts if is_stack else readouts[0],
            adapter="",
            base=model,
            mode=mode,
            levels=scale.size,
        )
        values = dict.fromkeys(one.value for one in found.kinds)
        kinds = {value: tuple(one.guarantee for one in found.kinds if one.value == value) for value in values}
        return cls({mode: fitted}, kinds, falls_back=False)

    def calibration(self, mode: str) -> Calibration | None:
        """Return the calibration for a mode of tagging, or for its confidences by source; None without any."""
        return self.calibrations.get(mode) or (self.calibrations.get(_OTHER[mode]) if self.falls_back else None)

    def needs_likelihoods(self, mode: str) -> bool:
        """Return whether a map of a mode takes the log-probabilities of the sentences' own tokens."""
        used = self.calibration(mode), self.calibration(BY_SOURCE[mode])
        return any(made is not None and made.needs_token_logps for made in used)

    def sentence(self, sentence: Sentence, mode: str) -> Sentence:
        """Return a tagged sentence with the confidence that users get; score and distribution stay.

        Args:
            sentence: a sentence whose confidence is the mean readout.
            mode: how it was tagged.
        """
        calibration = self.calibration(mode)
        return sentence if calibration is None else replace(sentence, confidence=calibration.confidence(sentence))

    def record(self, record: Record, mode: str) -> Record:
        """Return a tagged record with the confidences that users get."""
        if record.evidence and self.calibration(BY_SOURCE[mode]) is not None:
            mode = BY_SOURCE[mode]
        if self.calibration(mode) is None:
            return record
        return replace(record, sentences=tuple(self.sentence(sentence, mode) for sentence in record.sentences))

    def keeps(
        self,
        mode: str,
        min_confidence: float | None = None,
        keep_factual: float | None = None,
        kind: str | None = None,
    ) -> Keeps:
        """Return a function that tells whether a sentence stays in a text; what is not a statement always does.

        Args:
            mode: how the sentences are tagged; "by source" and "free-form by source" compare their confidences by
                source, which sentences of a text without evidence do not have.
            min_confidence: sentences with a lower confidence, or without one, do not stay; None keeps them. What is
                compared is the confidence that users get, in [0, 1] and before it is rounded to be shown.
            keep_factual: the probability of a guarantee, see ``lovec.calibration.Guarantee``; sentences at or below its
                threshold do not stay. None asks for no guarantee.
            kind: the kind of questions for which the guarantee is to hold by itself; None for all of them together.

        Raises:
            LovecError: there is no calibration, or none of its thresholds gives that guarantee.
        """
        calibration = self.calibrations.get(mode)
        if keep_factual is None and kind is not None:
            raise LovecError(
                f"the guarantee for {kind!r} is asked for, without keep_factual, which says how sure it is"
            )
        guarantee = None if keep_factual is None else self._guarantee(mode, keep_factual, kind)
        by: ThresholdBy = "source" if mode in BY_SOURCE.values() else "knowledge"

        def keeps(sentence: Sentence) -> bool:
            if not sentence.is_statement:
                return True
            confidence = sentence.confidence_by(by)
            if min_confidence is not None and (confidence is None or confidence < min_confidence):
                return False
            if guarantee is None or calibration is None:
                return True
            return guarantee.keeps(sentence.source_rank) if by == "source" else calibration.keeps(sentence, guarantee)

        return keeps

    def promise(self, mode: str, keep_factual: float) -> str:
        """Return one sentence that says what a guarantee promises of the sentences that stay.

        Raises:
            LovecError: there is no such guarantee.
        """
        found = self.calibrations[mode].describe_guarantee(self._guarantee(mode, keep_factual))
        return f"{found[:1].upper()}{found[1:]}."

    def _guarantee(self, mode: str, keep_factual: float, kind: str | None = None) -> Guarantee:
        if (calibration := self.calibrations.get(mode)) is None:
            is_sourced = mode in BY_SOURCE.values()
            what = f"{mode} confidences" if is_sourced else f"{mode} tagging"
            needs = " on records with evidence" if is_sourced else ""
            needs += ", and an oracle that reads it" if mode == BY_SOURCE[FREE_FORM] else ""
            made_of = "RUN" if self.falls_back else "FILE"  # of an API only answers in a file can be labelled
            raise LovecError(
                f"keep_factual is {keep_factual:g}, and there is no threshold for {what} with this model; "
                f"make one{needs} with: lovec calibrate {made_of} --keep_factual {keep_factual:g}"
            )
        if kind is None:
            return calibration.threshold(keep_factual)
        if mode != FREE_FORM or kind not in self.kinds:
            there = listed(sorted(self.kinds)) if mode == FREE_FORM and self.kinds else "nothing"
            raise LovecError(
                f"there is no guarantee for {kind!r} by itself, only for {there}; `lovec calibrate FILE --promise_by "
                "COLUMN` makes one for every value of a column"
            )
        return replace(calibration, guarantees=self.kinds[kind]).threshold(keep_factual)

    def ranks(self, record: Record, mode: str) -> list[float]:
        """Return the numbers of a tagged record's sentences by which `drift` compares texts; none uncalibrated."""
        calibration = self.calibration(mode)
        if calibration is None:
            return []
        return [rank for s in record.sentences if (rank := calibration.rank(s)) is not None]

    def drift(self, ranks: Sequence[Sequence[float]], mode: str) -> str | None:
        """Return in one sentence how texts differ from those that the map was fitted to; None where they may not.

        Args:
            ranks: what `ranks` has given for each text.
            mode: how they were tagged.
        """
        calibration = self.calibration(mode)
        return None if calibration is None else calibration.histogram.unlike(ranks)

    def note(self, mode: str) -> str:
        """Return one sentence that says what the confidences of a mode are."""
        calibration = self.calibration(mode)
        if calibration is None:
            return UNCALIBRATED
        note = calibration.describe()
        if mode not in self.calibrations:
            note += f", fitted to {calibration.mode} tagging"
        return f"{note[:1].upper()}{note[1:]}."

    def source_note(self, mode: str) -> str:
        """Return one sentence that says what the confidences by source of a mode are."""
        made = self.calibration(BY_SOURCE[mode])
        what = "not calibrated" if made is None else made.describe()
        if made is not None and made.mode != BY_SOURCE[mode]:
            what += ", fitted to given texts" if mode == FREE_FORM else ", fitted to answers of the model"
        return f"By source: how well the evidence supports a sentence, by the same model; {what}."


def with_mean_readout(records: Sequence[Record]) -> list[Record]:
    """Return tagged records whose confidences are the mean of their distribution, where they have one."""
    from lovec.metrics.records import confidence_of

    def read(sentence: Sentence) -> Sentence:
        return (
            sentence if sentence.distribution is None else replace(sentence, confidence=confidence_of(sentence, "mean"))
        )

    return [replace(record, sentences=tuple(map(read, record.sentences))) for record in records]
