"""The best constant: one score for every sentence, the row a method must beat to have told sentences apart."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from lovec.types import N_SCORES, Record


def best_constant(records: Iterable[Record]) -> int | None:
    """The score 0..10 with the least Brier score on the labelled sentences of ``records``.

    Choose it on validation data, never on the test set. None without any labelled sentence.
    """
    labels = [s.factuality for record in records for s in record.sentences if s.factuality is not None]
    if not labels:
        return None
    return min(range(N_SCORES), key=lambda score: sum((score / 10 - f) ** 2 for f in labels))


class ConstantTagger:
    """Says the same score of every sentence.

    Args:
        score: integer 0..10.
    """

    def __init__(self, score: int) -> None:
        self.score = score

    def tag(self, records: Sequence[Record]) -> list[Record]:
        """Records with the constant on every sentence."""
        confidence = self.score / 10
        return [
            replace(
                record,
                sentences=tuple(
                    replace(s, score=self.score, confidence=confidence, distribution=None) for s in record.sentences
                ),
            )
            for record in records
        ]
