"""From records to the pairs that the metrics take."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from lovec.types import N_SCORES, LovecError, Record, Sentence

READOUTS = ("argmax", "mean")
"""Ways to read a confidence off a sentence, see ``confidence_of``."""


def confidence_of(sentence: Sentence, readout: str) -> float | None:
    """Confidence of a sentence in [0, 1], None where it has none.

    Args:
        sentence: a tagged sentence.
        readout: "argmax" is the stated score / 10, or, where there is no score, the stored ``confidence`` (baselines
            give one without a score). "mean" is the expected score / 10 under the distribution over the 11 scores,
            renormalised; None without a distribution or where it gives no score any mass.

    Raises:
        LovecError: an unknown readout, or a distribution that does not hold 11 probabilities.
    """
    if readout not in READOUTS:
        raise LovecError(f"readout is {readout!r}, expected one of {', '.join(READOUTS)}")
    if readout == "argmax":
        return sentence.confidence if sentence.score is None else sentence.score / 10
    if sentence.distribution is None:
        return None
    if len(sentence.distribution) != N_SCORES:
        raise LovecError(f"a distribution has {len(sentence.distribution)} entries, expected one for each score 0..10")
    mass = math.fsum(sentence.distribution)
    if mass <= 0.0:
        return None
    mean = math.fsum(score * p for score, p in enumerate(sentence.distribution)) / mass / 10
    return min(mean, 1.0)  # rounding can lift a certain 10 above 1


def sentence_pairs(records: Iterable[Record], readout: str) -> tuple[list[float], list[float], int]:
    """Confidence and factuality of every sentence that has both, over all records in order.

    A sentence without factuality is left out and not counted (no oracle could say); one with a factuality but
    without a confidence is left out and counted as malformed.

    Args:
        records: tagged and labelled records.
        readout: see ``confidence_of``.

    Returns:
        Confidences, factualities (equally long), number of malformed sentences.

    Raises:
        LovecError: see ``confidence_of``.
    """
    confidences: list[float] = []
    factualities: list[float] = []
    malformed = 0
    for sentence in (s for record in records for s in record.sentences):
        if sentence.factuality is None:
            continue
        confidence = confidence_of(sentence, readout)
        if confidence is None:
            malformed += 1
        else:
            confidences.append(confidence)
            factualities.append(sentence.factuality)
    return confidences, factualities, malformed


def passage_pairs(records: Iterable[Record], readout: str) -> tuple[list[float], list[float], int]:
    """Mean confidence and mean factuality of every record, each over its sentences that have both.

    A record without such a sentence is left out. It is counted as malformed if it has a factuality somewhere (so
    every confidence is missing) or no sentence at all; if it has sentences but no label, it is not counted.

    Args:
        records: tagged and labelled records.
        readout: see ``confidence_of``.

    Returns:
        Mean confidences, mean factualities (equally long), number of malformed records.

    Raises:
        LovecError: see ``confidence_of``.
    """
    confidences: list[float] = []
    factualities: list[float] = []
    malformed = 0
    for record in records:
        stated, true, missing = sentence_pairs([record], readout)
        if stated:
            confidences.append(_mean(stated))
            factualities.append(_mean(true))
        elif missing or not record.sentences:
            malformed += 1
    return confidences, factualities, malformed


@dataclass(frozen=True, slots=True)
class Statements:
    """What answers say, whether it is true or not.

    Attributes:
        scores: how often each of the scores 0..10 is stated, 11 numbers.
        missing: sentences without a score, and answers without a sentence.
        words: words of all answers, tags not counted.
        answers: number of answers.
    """

    scores: tuple[int, ...]
    missing: int
    words: int
    answers: int


def statements(records: Iterable[Record]) -> Statements:
    """Counts over all sentences of tagged records, those without a label included; sums of parts are the whole's."""
    scores, missing, words, answers = [0] * N_SCORES, 0, 0, 0
    for record in records:
        answers += 1
        missing += not record.sentences
        for sentence in record.sentences:
            words += len(sentence.text.split())
            if sentence.score is None:
                missing += 1
            else:
                scores[sentence.score] += 1
    return Statements(tuple(scores), missing, words, answers)


def _mean(values: list[float]) -> float:
    """The mean without its last digits: three times 0.7 and four times 0.7 must tie, or ranks are made of rounding."""
    return round(math.fsum(values) / len(values), 12)
