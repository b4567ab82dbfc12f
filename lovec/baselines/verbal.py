"""Verbalized confidence: the model is asked for a number (Tian et al. 2023; Xiong et al. 2024)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from lovec.baselines.base import Baseline, BaselineResources, Work
from lovec.core.settings import PlainWord
from lovec.encoding.reply_scoring import SentenceQuestion
from lovec.types import DEFAULT_SCALE, Record, Sentence


class VerbalConfidence(Baseline):
    """Asks for a confidence from 0 to 10 in each sentence, with the whole answer as context.

    The eleven replies are scored as ``SentenceQuestion`` does: the stated score is the most probable one, and no reply
    has to be parsed.

    Args:
        name: its name in tables.
    """

    _question: SentenceQuestion  # from `attach`

    def __init__(self, name: PlainWord = "Verb-Conf") -> None:
        super().__init__(name)

    def attach(self, resources: BaselineResources) -> None:
        """Ask the model of these resources from now on."""
        super().attach(resources)
        wording = resources.wording
        replies = [wording.score.format(score=word) for word in DEFAULT_SCALE.words]
        self._question = SentenceQuestion(resources.encoder, wording.verbal, replies, self.name)

    def work(self, records: Sequence[Record]) -> Work:
        """Return what it takes: the prompts of an answer's sentences are read, what they share once."""
        return replace(super().work(records), tokens=self._question.tokens(self.resources.engine, records))

    def tag(self, records: Sequence[Record]) -> list[Record]:
        """Return the records with score, confidence and distribution of every sentence.

        The score is the most probable number, the lowest of equals; all three are None where the prompt does not fit
        the model's context.
        """
        engine = self.resources.engine
        with self.watch.phase("scoring"):
            logps = self._question.score_sentences(engine, records)
        return [
            replace(record, sentences=tuple(map(_scored, record.sentences, row)))
            for record, row in zip(records, logps, strict=True)
        ]

    def confidences(self, records: Sequence[Record]) -> list[list[float | None]]:
        """Return the most probable number / 10 of every sentence; None where the prompt does not fit the context."""
        return [[sentence.confidence for sentence in record.sentences] for record in self.tag(records)]


def _scored(sentence: Sentence, logps: list[float] | None) -> Sentence:
    """Return a sentence with the score, the confidence and the distribution that log-probabilities give it."""
    if logps is None:
        return replace(sentence, score=None, confidence=None, distribution=None, token_logps=None)
    score = logps.index(max(logps))
    return replace(
        sentence,
        score=score,
        confidence=DEFAULT_SCALE.confidence(score),
        distribution=tuple(map(math.exp, logps)),
        levels=DEFAULT_SCALE.size,
        token_logps=None,
    )
