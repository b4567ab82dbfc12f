"""How much confidences by the first tokens of scores differ from those by whole tags, measured on some sentences."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from lovec.core.notices import counted
from lovec.encoding import Encoder
from lovec.taggers.iterative import IterativeTagger
from lovec.types import Engine, Record

SENTENCES = 100
"""Sentences that are scored both ways by default; whole tags cost several times as much as first tokens."""

LARGE = 0.001
"""Difference of a confidence, in [0, 1], above which whole tags are advised."""


@dataclass(frozen=True, slots=True)
class ScoringDifference:
    """What first tokens change.

    Attributes:
        sentences: number of sentences that were scored both ways.
        largest: largest difference of the mean of a sentence's distribution over scores, in [0, 1].
        mean: mean of these differences.
        other_scores: number of sentences whose most probable score differs.
    """

    sentences: int
    largest: float
    mean: float
    other_scores: int

    @property
    def is_large(self) -> bool:
        """Whether a confidence differs by more than ``LARGE``."""
        return self.largest > LARGE

    def describe(self) -> str:
        """Return it in words."""
        return (
            f"first tokens compared with whole tags on {counted(self.sentences, 'sentence')}: confidences differ by "
            f"{self.mean:.4f} on average and by {self.largest:.4f} at most; "
            f"{counted(self.other_scores, 'stated score differs', 'stated scores differ')}"
        )

    def advice(self, option: str) -> str:
        """Return what to do where it is large.

        Args:
            option: the option that chooses what is scored.
        """
        return (
            f"a confidence differs by more than {LARGE}, because the model does not always close its tag after the "
            f"score, as trained models do; {option} exact scores whole tags, at several times the cost"
        )


def scoring_difference(
    engine: Engine, encoder: Encoder, records: Sequence[Record], sentences: int = SENTENCES
) -> ScoringDifference | None:
    """Score the first sentences of records by first tokens and by whole tags, and compare the confidences.

    Args:
        engine: runs the model.
        encoder: encodes prompts and sentences.
        records: answers; the contexts contain the scores that are stated either way.
        sentences: how many sentences are taken, the first ones of the records; a longer answer is cut there.

    Returns:
        The difference; None where whole tags are scored anyway, and where no sentence can be scored.
    """
    if encoder.scoring == "exact":
        return None
    taken = list(_beginning(records, sentences))
    tagged = [
        IterativeTagger(engine, encoder.with_scoring(scoring), "mean").tag(taken) for scoring in ("prefix", "exact")
    ]
    scored = [[sentence for record in side for sentence in record.sentences] for side in tagged]
    pairs = [(a, b) for a, b in zip(*scored, strict=True) if a.confidence is not None and b.confidence is not None]
    if not pairs:
        return None
    changes = [abs(a.confidence - b.confidence) for a, b in pairs]
    return ScoringDifference(
        len(pairs), max(changes), statistics.fmean(changes), sum(a.score != b.score for a, b in pairs)
    )


def _beginning(records: Sequence[Record], left: int) -> Iterator[Record]:
    for record in records:
        if left <= 0:
            return
        if record.sentences:
            yield replace(record, sentences=record.sentences[:left])
        left -= len(record.sentences)
