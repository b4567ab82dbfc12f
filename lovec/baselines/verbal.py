"""Verbalized confidence: the model is asked for a number (Tian et al. 2023; Xiong et al. 2024)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from lovec.baselines.asked import AskedBaseline
from lovec.baselines.base import Wording
from lovec.core.settings import PlainWord
from lovec.encoding import Encoder
from lovec.encoding.reply_scoring import SentenceQuestion
from lovec.types import DEFAULT_SCALE, Record, Sentence


class VerbalConfidence(AskedBaseline):
    """Asks for a confidence from 0 to 10 in each sentence, with the whole answer as context.

    The eleven replies are scored as ``SentenceQuestion`` does: the stated score is the most probable one, and no reply
    has to be parsed.

    Args:
        name: its name in tables.
    """

    def __init__(self, name: PlainWord = "Verb-Conf") -> None:
        super().__init__(name)

    @staticmethod
    def question(encoder: Encoder, wording: Wording, name: str) -> SentenceQuestion:
        """Return the question, whose replies are the numbers 0 to 10."""
        replies = [wording.score.format(score=word) for word in DEFAULT_SCALE.words]
        return SentenceQuestion(encoder, wording.verbal, replies, name)

    def tag(self, records: Sequence[Record]) -> list[Record]:
        """Return the records with score, confidence and distribution of every sentence.

        The score is the most probable number, the lowest of equals; all three are None where the prompt does not fit
        the model's context.
        """
        return [
            replace(record, sentences=tuple(map(_scored, record.sentences, row)))
            for record, row in zip(records, self.reply_logps(records), strict=True)
        ]

    def confidences(self, records: Sequence[Record]) -> list[list[float | None]]:
        """Return the most probable number / 10 of every sentence; None where the prompt does not fit the context."""
        return [[sentence.confidence for sentence in record.sentences] for record in self.tag(records)]


def _scored(sentence: Sentence, logps: list[float] | None) -> Sentence:
    """Return a sentence with the score, the confidence and the distribution that log-probabilities give it."""
    sentence = replace(sentence, token_logps=None, by_source=None, source_rank=None)
    if logps is None:
        return replace(sentence, score=None, confidence=None, distribution=None)
    score = logps.index(max(logps))
    return replace(
        sentence,
        score=score,
        confidence=DEFAULT_SCALE.confidence(score),
        distribution=tuple(map(math.exp, logps)),
        levels=DEFAULT_SCALE.size,
    )
