"""From records to the pairs that the metrics take."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import torch

from lovec.metrics.functional import ordinality
from lovec.metrics.text import semantic_diversity, type_token_ratio
from lovec.types import N_SCORES, Embedder, LovecError, Record, Sentence

Total: TypeAlias = tuple[float, int]
"""A sum and how many values are in it: what means are made of, since sums of parts are the whole's."""

READOUTS = ("stated", "mean")
"""Ways to read a confidence off a sentence, see ``confidence_of``."""


def confidence_of(sentence: Sentence, readout: str) -> float | None:
    """Confidence of a sentence in [0, 1], None where it has none.

    Args:
        sentence: a tagged sentence.
        readout: "stated" is the stated score / 10, or, where there is no score, the stored ``confidence`` (baselines
            give one without a score). "mean" is the expected score / 10 under the distribution over the 11 scores,
            renormalised; None without a distribution or where it gives no score any mass.

    Raises:
        LovecError: an unknown readout, or a distribution that does not hold 11 probabilities.
    """
    if readout not in READOUTS:
        raise LovecError(f"readout is {readout!r}, expected one of {', '.join(READOUTS)}")
    if readout == "stated":
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
        ttr: type-token ratios, over the answers with a word.
        diversity: semantic diversities, over the answers with two sentences or more; of none without an embedder.
        abstained: answers that decline to answer, over all; of none if nobody was asked.
        ordinality: of the distributions over scores, over the sentences with one.
    """

    scores: tuple[int, ...]
    missing: int
    words: int
    answers: int
    ttr: Total = (0.0, 0)
    diversity: Total = (0.0, 0)
    abstained: Total = (0.0, 0)
    ordinality: Total = (0.0, 0)


def statements(
    records: Iterable[Record], declines: Callable[[str], bool] | None = None, embedder: Embedder | None = None
) -> Statements:
    """Counts over all sentences of tagged records, those without a label included; sums of parts are the whole's.

    An answer's text is its sentences, joined by spaces.

    Args:
        records: tagged.
        declines: says of a text whether it declines to answer; None leaves abstentions out.
        embedder: makes a vector of a sentence; None leaves semantic diversity out.
    """
    records = list(records)
    said = [s for record in records for s in record.sentences]
    stated = [s.score for s in said if s.score is not None]
    texts = [" ".join(s.text for s in record.sentences) for record in records]
    return Statements(
        scores=tuple(map(stated.count, range(N_SCORES))),
        missing=len(said) - len(stated) + sum(not record.sentences for record in records),
        words=sum(len(s.text.split()) for s in said),
        answers=len(records),
        ttr=_total([ratio for text in texts if (ratio := type_token_ratio(text)) is not None]),
        diversity=_total([] if embedder is None else _diversities(records, embedder)),
        abstained=_total([] if declines is None else [float(declines(text)) for text in texts]),
        ordinality=_total(_ordinalities(said)),
    )


def _diversities(records: Sequence[Record], embedder: Embedder) -> list[float]:
    """Semantic diversity of every answer that has two sentences."""
    answers = [[s.text for s in record.sentences] for record in records if len(record.sentences) > 1]
    if not answers:
        return []
    vectors = embedder.embed([text for answer in answers for text in answer])
    return [float(semantic_diversity(part)) for part in torch.split(vectors, [len(answer) for answer in answers])]


def _ordinalities(sentences: Iterable[Sentence]) -> list[float]:
    """Ordinality of every distribution that has any mass."""
    found = [s.distribution for s in sentences if s.distribution is not None and any(s.distribution)]
    return ordinality(torch.tensor(found, dtype=torch.float64)).tolist() if found else []


def _total(values: Sequence[float]) -> Total:
    return math.fsum(values), len(values)


def _mean(values: list[float]) -> float:
    """The mean without its last digits: three times 0.7 and four times 0.7 must tie, or ranks are made of rounding."""
    return round(math.fsum(values) / len(values), 12)
