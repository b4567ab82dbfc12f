"""From tagged and labelled records to the values that the metrics take."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import TypeAlias, get_args

import torch

from lovec.core.settings import check_choice
from lovec.metrics.functional import f1_at_k, mean_confidence, ordinality
from lovec.metrics.text import semantic_diversity, type_token_ratio
from lovec.types import Embedder, LovecError, Readout, Record, Sentence

Total: TypeAlias = tuple[float, int]
"""The sum of some values and their number, from which means over all batches are computed."""

READOUTS: tuple[Readout, ...] = get_args(Readout)
"""Ways to read a confidence from a sentence, see ``confidence_of``."""


def confidence_of(sentence: Sentence, readout: str) -> float | None:
    """Return the confidence of a sentence in [0, 1], None where it has none.

    Args:
        sentence: a tagged sentence.
        readout: "stated" is the confidence that the tag states, or, without a score, the stored ``confidence``
            (baselines give one without a score). "mean" is the expected confidence under the distribution over the
            levels of the scale, renormalised; None without a distribution or where it has no mass.

    Raises:
        LovecError: the readout is unknown, or the distribution does not have one probability per level of the scale.
    """
    check_choice("readout", readout, Readout)
    if readout == "stated":
        return sentence.stated
    if sentence.distribution is None:
        return None
    if len(sentence.distribution) != sentence.levels:
        raise LovecError(
            f"a distribution has {len(sentence.distribution)} entries, expected {sentence.levels}, "
            "one per level of the scale"
        )
    return mean_confidence(sentence.distribution)


def sentence_pairs(records: Iterable[Record], readout: str) -> tuple[list[float], list[float], int]:
    """Return confidence and factuality of every sentence that has both, over all records in order.

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
    sentences = [sentence for record in records for sentence in record.sentences]
    pairs = [(confidence_of(s, readout), s.factuality) for s in sentences if s.factuality is not None]
    valid = [(confidence, factuality) for confidence, factuality in pairs if confidence is not None]
    return [c for c, _ in valid], [f for _, f in valid], len(pairs) - len(valid)


def count_missing(records: Iterable[Record]) -> list[Record]:
    """Return the records with a stated confidence of 0 for every sentence that states none."""

    def counted(sentence: Sentence) -> Sentence:
        return replace(sentence, confidence=0.0) if sentence.stated is None else sentence

    return [replace(record, sentences=tuple(map(counted, record.sentences))) for record in records]


def sentence_claims(records: Iterable[Record], readout: str) -> list[str | None]:
    """Return what every sentence claims that has both confidence and factuality, in the order of ``sentence_pairs``.

    Args:
        records: tagged and labelled records.
        readout: see ``confidence_of``.

    Raises:
        LovecError: see ``confidence_of``.
    """
    sentences = [sentence for record in records for sentence in record.sentences]
    return [s.claim for s in sentences if s.factuality is not None and confidence_of(s, readout) is not None]


def claim_numbers(claims: Sequence[str | None]) -> torch.Tensor:
    """Return a number below 2**52 for each name of a claim, the same on every process; -1 for none. [N], int64."""
    digests = {claim: sha256(claim.encode()).digest()[:8] for claim in set(claims) if claim is not None}
    numbers = {claim: int.from_bytes(digest) >> 12 for claim, digest in digests.items()}
    return torch.tensor([-1 if claim is None else numbers[claim] for claim in claims], dtype=torch.int64)


def passage_pairs(records: Iterable[Record], readout: str) -> tuple[list[float], list[float], int]:
    """Return mean confidence and mean factuality of every record, each over its sentences that have both.

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
    pairs: list[tuple[float, float]] = []
    malformed = 0
    for record in records:
        confidences, factualities, missing = sentence_pairs([record], readout)
        if confidences:
            pairs.append((rounded_mean(confidences), rounded_mean(factualities)))
        elif missing or not record.sentences:
            malformed += 1
    return [c for c, _ in pairs], [f for _, f in pairs], malformed


@dataclass(frozen=True, slots=True)
class AnswerStatistics:
    """What answers are like, whether they are true or not.

    Attributes:
        scores: the stated scores, one per sentence that has one.
        missing: number of sentences without a score and of answers without a sentence.
        words: number of words of all answers, tags not counted, and number of answers.
        ttr: sum and number of the type-token ratios of the answers with a word.
        diversity: sum and number of the semantic diversities of the answers with two sentences or more; (0, 0) without
            an embedder.
        abstained: number of the answers that decline to answer, and of all answers; (0, 0) where that is not asked.
        cut_off: number of the answers that a limit of tokens has cut, and of all answers; (0, 0) for answers that were
            not written but given.
        ordinality: sum and number of the ordinalities of the sentences whose distribution has one.
        f1_at_k: sum and number of F1@K (K = ``lovec.metrics.functional.F1_K``) of the answers with a sentence that has
            a confidence and a factuality, over these sentences.
    """

    scores: tuple[int, ...] = ()
    missing: int = 0
    words: Total = (0.0, 0)
    ttr: Total = (0.0, 0)
    diversity: Total = (0.0, 0)
    abstained: Total = (0.0, 0)
    cut_off: Total = (0.0, 0)
    ordinality: Total = (0.0, 0)
    f1_at_k: Total = (0.0, 0)


NO_ANSWERS = AnswerStatistics()


def answer_statistics(
    records: Sequence[Record],
    declines: Callable[[str], bool] | None = None,
    embedder: Embedder | None = None,
    written: bool = False,
) -> AnswerStatistics:
    """Compute statistics over all sentences of tagged records, those without a label included.

    An answer's text is its sentences, joined by spaces.

    Args:
        records: tagged records.
        declines: whether a text declines to answer; None leaves abstentions out.
        embedder: makes a vector per sentence; None leaves semantic diversity out.
        written: whether a model has written the answers now, and not only tagged given ones.
    """
    sentences = [sentence for record in records for sentence in record.sentences]
    scores = tuple(sentence.score for sentence in sentences if sentence.score is not None)
    texts = [" ".join(sentence.text for sentence in record.sentences) for record in records]
    words = [text.split() for text in texts]
    return AnswerStatistics(
        scores=scores,
        missing=len(sentences) - len(scores) + sum(not record.sentences for record in records),
        words=_total(map(len, words)),
        ttr=_total(ratio for answer in words if (ratio := type_token_ratio(answer)) is not None),
        diversity=_total(() if embedder is None else _diversities(records, embedder)),
        abstained=_total(() if declines is None else (float(declines(text)) for text in texts)),
        cut_off=_total(float(not record.finished) for record in records if written),
        ordinality=_total(_ordinalities(sentences)),
        f1_at_k=_total(_f1s(records)),
    )


def _diversities(records: Sequence[Record], embedder: Embedder) -> list[float]:
    """Return the semantic diversity of every answer with two sentences or more."""
    answers = [[s.text for s in record.sentences] for record in records if len(record.sentences) > 1]
    if not answers:
        return []
    vectors = embedder.embed([text for answer in answers for text in answer])
    return [float(semantic_diversity(part)) for part in torch.split(vectors, [len(answer) for answer in answers])]


def _ordinalities(sentences: Iterable[Sentence]) -> list[float]:
    """Return the ordinality of every distribution for which it is defined."""
    distributions = [s.distribution for s in sentences if s.distribution is not None]
    values = ordinality(torch.tensor(distributions, dtype=torch.float64)).tolist() if distributions else []
    return [value for value in values if not math.isnan(value)]


def _f1s(records: Iterable[Record]) -> list[float]:
    """Return F1@K of every answer with a sentence that has a confidence and a factuality."""
    labels = [factualities for record in records if (factualities := sentence_pairs([record], "stated")[1])]
    return f1_at_k([math.fsum(answer) for answer in labels], [len(answer) for answer in labels]).tolist()


def _total(values: Iterable[float]) -> Total:
    values = list(values)
    return math.fsum(values), len(values)


def rounded_mean(values: Sequence[float]) -> float:
    """Return the mean rounded to 12 digits: three times 0.7 and four times 0.7 must tie, or ranks are made of noise."""
    return round(math.fsum(values) / len(values), 12)
