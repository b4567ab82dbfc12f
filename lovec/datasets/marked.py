"""Answers in which people marked the characters that are wrong: the rows of Mu-SHROOM (SemEval 2025, Task 3).

A record keeps the marks in ``meta``: ``soft_labels``, the share of people who marked each part, and ``hard_labels``,
the parts that more than half of them marked. So what tags the answer in any units can be measured by characters, and
the labels of its units follow from the marks.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from lovec.datasets.rows import Reading, Row, layout
from lovec.metrics.spans import (
    Span,
    character_correlation,
    character_probabilities,
    check_span,
    iou,
    marked_spans,
)
from lovec.text.documents import parts
from lovec.text.sentences import Places
from lovec.types import LovecError, Record, without_rounding

SOFT, HARD, PREDICTED = "soft_labels", "hard_labels", "predicted"


class SpanScores(NamedTuple):
    """How well the characters of an answer that a method marks match those that people marked.

    Attributes:
        iou: see `lovec.metrics.spans.iou`.
        correlation: see `lovec.metrics.spans.character_correlation`.
    """

    iou: float
    correlation: float


def predicted_marks(row: Row, reading: Reading) -> Iterator[Record]:
    """Read an answer as `marked_answer` does, with what a method predicts for it in the key ``predicted``.

    A prediction is an object with ``soft_labels``, ``hard_labels`` or both, as the shared task collects them. The
    confidence of a sentence is 1 less the largest probability of its characters.
    """
    for record in marked_answer(row, reading):
        if (predicted := row.get(PREDICTED)) is None:
            yield record
            continue
        probability, _ = _marks(predicted, len(record.answer))
        confidences = _confidences(record, probability)
        yield replace(record, meta={**record.meta, PREDICTED: predicted, "scores": {"confidence": confidences}})


@layout(
    "Mu-SHROOM: marked characters",
    "model_input model_output_text soft_labels|predicted",
    short="mu-shroom",
    units=predicted_marks,
)
def marked_answer(row: Row, reading: Reading) -> Iterator[Record]:
    """Read an answer with its sentences, labelled as by `with_labels_of_marks`."""
    meta = {name: row[name] for name in (SOFT, HARD) if row.get(name) is not None}
    if row.get("model_id"):
        meta["model"] = row["model_id"]
    answer = row["model_output_text"]
    name = None if row.get("id") is None else str(row["id"])
    record = reading.record(row["model_input"].strip(), answer, parts(answer), name, **meta)
    yield with_labels_of_marks(record if name is None else replace(record, id=name))


def with_labels_of_marks(record: Record) -> Record:
    """Return a record whose units without a label have one by the marks of the answer; others as they are.

    The factuality of a unit is 1 less the largest share of people who marked one of its characters.

    Raises:
        LovecError: a mark lies outside of the answer, or its share outside [0, 1].
    """
    if SOFT not in record.meta:
        return record
    by_marks = _confidences(record, _marks(record.meta, len(record.answer))[0])
    pairs = zip(record.sentences, by_marks, strict=True)
    return record.with_factuality(
        [label if s.is_statement and s.factuality is None else s.factuality for s, label in pairs]
    )


def span_scores(record: Record, confidences: Sequence[float | None]) -> SpanScores | None:
    """Return how well the doubts of a method match people's marks; None where the record has no marks.

    The probability of a character is that of ``meta["predicted"]``, or else 1 less the confidence of its unit, and 0
    where it belongs to no unit with a confidence. It is marked where that is above one half, unless the prediction
    says which characters are.

    Args:
        record: an answer with its units.
        confidences: the confidence of every unit, in [0, 1]; None where there is none.

    Raises:
        LovecError: a mark lies outside of the answer, or a number outside [0, 1].
    """
    if SOFT not in record.meta:
        return None
    length = len(record.answer)
    labelled, label_spans = _marks(record.meta, length)
    if PREDICTED in record.meta:
        probability, spans = _marks(record.meta[PREDICTED], length)
    else:
        places = zip(_places(record), confidences, strict=True)
        doubts = [(*place, 1 - c) for place, c in places if place is not None and c is not None]
        probability = character_probabilities(doubts, length)
        spans = marked_spans(probability)
    return SpanScores(iou(spans, label_spans), character_correlation(probability, labelled))


def _marks(marks: Mapping[str, Any], length: int) -> tuple[list[float], list[Span]]:
    """Return the probability of every character, and the parts that are marked; either follows from the other.

    Raises:
        LovecError: they are no marks of an answer of this length.
    """
    try:
        soft, hard = marks.get(SOFT), marks.get(HARD)
        spans = None if hard is None else [check_span(span, length) for span in hard]
        if soft is None:
            soft = [{"start": start, "end": end, "prob": 1.0} for start, end in spans or ()]
        found = [(s["start"], s["end"], without_rounding(s["prob"])) for s in soft]
        probability = character_probabilities(found, length)
    except (KeyError, TypeError, ValueError, AttributeError):
        raise LovecError(
            f'{SOFT} and {HARD} are lists such as [{{"start": 0, "end": 4, "prob": 0.5}}] and [[0, 4]]'
        ) from None
    return probability, marked_spans(probability) if spans is None else spans


def _confidences(record: Record, probability: Sequence[float]) -> list[float | None]:
    """Return, for every unit, 1 less the largest probability of its characters; None where it is not in the answer."""
    return [None if place is None else 1 - max(probability[slice(*place)]) for place in _places(record)]


def _places(record: Record) -> list[Span | None]:
    """Return where the units of a record are in its answer."""
    places = Places(record.answer)
    return [places.find(sentence.text) for sentence in record.sentences]
