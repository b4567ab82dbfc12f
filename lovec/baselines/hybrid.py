"""Two methods in one: the mean of their confidences (the paper's LUQ + DPO)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from lovec.types import LovecError, Record, Sentence, Tagger


class Hybrid:
    """Tags with two taggers and takes the mean; see ``hybrid``.

    Args:
        first: a tagger of given answers.
        second: another one.
    """

    def __init__(self, first: Tagger, second: Tagger) -> None:
        self.first = first
        self.second = second

    def tag(self, records: Sequence[Record]) -> list[Record]:
        """Records with the mean confidence of both, in the order given."""
        return hybrid(self.first.tag(records), self.second.tag(records))


def hybrid(first: Sequence[Record], second: Sequence[Record]) -> list[Record]:
    """The same answers tagged twice, with the mean of both confidences and neither score nor distribution.

    Args:
        first: tagged records.
        second: the same records, tagged by something else.

    Returns:
        The records of ``first``. A sentence that has no confidence in either has none.

    Raises:
        LovecError: the two are not the same answers.
    """
    if len(first) != len(second):
        raise LovecError(f"a hybrid got {len(first)} and {len(second)} records, expected the same ones tagged twice")
    return [
        replace(one, sentences=tuple(map(_mean, one.sentences, _matching(one, other))))
        for one, other in zip(first, second, strict=True)
    ]


def _mean(one: Sentence, other: Sentence) -> Sentence:
    stated = [s.confidence for s in (one, other) if s.confidence is not None]
    confidence = sum(stated) / 2 if len(stated) == 2 else None
    return replace(one, confidence=confidence, score=None, distribution=None)


def _matching(one: Record, other: Record) -> tuple[Sentence, ...]:
    """The sentences of the other record, which must have the same text."""
    if one.id != other.id or [s.text for s in one.sentences] != [s.text for s in other.sentences]:
        raise LovecError(
            f"a hybrid got different answers in records {one.id!r} and {other.id!r}, expected the same ones tagged "
            "twice; free-form answers of two methods differ, so tag given ones"
        )
    return other.sentences
