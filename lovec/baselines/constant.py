"""The best constant: one score for all sentences. A method must beat it to show that it tells sentences apart."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial

from lovec.core.settings import check_count
from lovec.types import DEFAULT_SCALE, Record, Scale


def best_constant(records: Iterable[Record], scale: Scale = DEFAULT_SCALE) -> int | None:
    """Return the score with the lowest Brier score on the labelled sentences of ``records``, the lowest of equals.

    Choose it on validation data, never on the test set.

    Args:
        records: answers with factuality labels.
        scale: the scale that the score belongs to.

    Returns:
        A score 0..top of the scale; None without any labelled sentence.
    """
    labels = [s.factuality for record in records for s in record.sentences if s.factuality is not None]
    if not labels:
        return None
    return min(range(scale.size), key=lambda score: sum((scale.confidence(score) - f) ** 2 for f in labels))


class ConstantTagger:
    """Tags every sentence with the same score.

    Args:
        score: the score, 0..top of the scale.
        scale: the scale that it belongs to.

    Raises:
        LovecError: ``score`` is not a score of the scale.
    """

    def __init__(self, score: int, scale: Scale = DEFAULT_SCALE) -> None:
        check_count("score", score, at_least=0, at_most=scale.top)
        self.score = score
        self.scale = scale

    def tag(self, records: Sequence[Record]) -> list[Record]:
        """Return the records with the constant score, and its confidence, on every sentence."""
        confidence, levels = self.scale.confidence(self.score), self.scale.size
        constant = partial(
            replace, score=self.score, confidence=confidence, distribution=None, levels=levels, token_logps=None
        )
        return [replace(record, sentences=tuple(map(constant, record.sentences))) for record in records]
