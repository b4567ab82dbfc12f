"""What the baselines share that ask the model a question about every sentence."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import replace

from lovec.baselines.base import Baseline, BaselineResources, Wording, Work
from lovec.encoding import Encoder
from lovec.encoding.reply_scoring import SentenceQuestion
from lovec.types import Record


class AskedBaseline(Baseline, ABC):
    """A baseline that asks the model about every sentence, and scores the replies to :meth:`question`."""

    _question: SentenceQuestion  # from `attach`

    @staticmethod
    @abstractmethod
    def question(encoder: Encoder, wording: Wording, name: str) -> SentenceQuestion:
        """Return the question, with its replies; ``name`` stands in what is logged of it."""

    def attach(self, resources: BaselineResources) -> None:
        """Ask the model of these resources from now on."""
        super().attach(resources)
        self._question = self.question(resources.encoder, resources.wording, self.name)

    def work(self, records: Sequence[Record]) -> Work:
        """Return what it takes: the prompts of an answer's sentences are read, what they share once."""
        return replace(super().work(records), tokens=self._question.tokens(self.resources.engine, records))

    def reply_logps(self, records: Sequence[Record]) -> list[list[list[float] | None]]:
        """Return the log-probability of every reply for every sentence; None where the prompt does not fit."""
        engine = self.resources.engine
        with self.watch.phase("scoring"):
            return self._question.score_sentences(engine, records)
