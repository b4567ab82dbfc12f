"""Hybrids: the mean of the confidences of two methods (the paper's LUQ + DPO)."""

from __future__ import annotations

from collections.abc import Sequence

from lovec.baselines.base import with_confidences
from lovec.types import LovecError, Record, Sentence


def average_confidences(first: Sequence[Record], second: Sequence[Record]) -> list[Record]:
    """Average the confidences of the same answers tagged twice.

    Args:
        first: tagged records.
        second: the same records, tagged by another method.

    Returns:
        The records of ``first`` with the mean confidence of every sentence, None where either has none, and without
        scores and distributions.

    Raises:
        LovecError: the answers are not the same.
    """
    if len(first) != len(second):
        raise LovecError(f"a hybrid got {len(first)} and {len(second)} records, expected the same ones tagged twice")
    averaged = []
    for record, other in zip(first, second, strict=True):
        if record.id != other.id or [s.text for s in record.sentences] != [s.text for s in other.sentences]:
            raise LovecError(
                f"a hybrid got different answers in records {record.id!r} and {other.id!r}, expected the same ones "
                "tagged twice; free-form answers of two methods differ, so tag given ones"
            )
        averaged.append(with_confidences(record, map(_mean, record.sentences, other.sentences)))
    return averaged


def _mean(sentence: Sentence, other: Sentence) -> float | None:
    both = [s.confidence for s in (sentence, other) if s.confidence is not None]
    return sum(both) / 2 if len(both) == 2 else None
