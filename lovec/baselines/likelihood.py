"""Likelihood: how probable the model finds the tokens of a sentence."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Literal, TypeAlias

from lovec.baselines.base import Baseline, Work
from lovec.baselines.plain import plain_texts
from lovec.settings import PlainWord
from lovec.types import Record, token_scorer

How: TypeAlias = Literal["mean", "sum", "min"]
"""How the log-probabilities of the tokens of a sentence become one."""

_REDUCE: dict[str, Callable[[Sequence[float]], float]] = {
    "mean": lambda logps: math.fsum(logps) / len(logps),
    "sum": math.fsum,
    "min": min,
}


class SentenceLikelihood(Baseline):
    """The probability of a sentence given the question and the sentences before it; nothing is asked or sampled.

    An answer takes one forward pass. A sentence that does not fit the model's context directly behind the question has
    no confidence; where an answer is longer than the context, its sentences are read after the latest ones only.

    Args:
        how: "mean" is the geometric mean of the probabilities of the sentence's tokens; "sum" is their product, the
            probability of the whole sentence, which is lower the longer it is; "min" is that of the least probable
            token.
        name: its name in tables; None is "Likelihood", followed by ``how`` where that is not "mean".

    Raises:
        LovecError: ``how`` is not one of these; when tagging, the engine gives no log-probabilities of given tokens.
    """

    def __init__(self, how: How = "mean", name: PlainWord | None = None) -> None:
        super().__init__(name or ("Likelihood" if how == "mean" else f"Likelihood-{how}"))
        self.how = how

    def work(self, records: Sequence[Record]) -> Work:
        """Return what it takes: every text is read once."""
        texts = plain_texts(records, self.resources.engine, self.resources.encoder)
        return replace(super().work(records), tokens=sum(len(text.ids) for text in texts))

    def confidences(self, records: Sequence[Record]) -> list[list[float | None]]:
        """Return the probability of every sentence; None where it does not fit the context."""
        engine, encoder = self.resources.engine, self.resources.encoder
        rows: list[list[float | None]] = [[None] * len(record.sentences) for record in records]
        with self.watch.phase("scoring"):
            texts = plain_texts(records, engine, encoder)
            found = token_scorer(engine).token_logps([text.ids for text in texts], [text.start for text in texts])
            engine.score([], [])  # frees the states that the engine keeps
        for text, scores in zip(texts, found, strict=True):
            for at, begin, end in text.spans:
                rows[text.record][at] = min(1.0, math.exp(_REDUCE[self.how](scores.logps[text.tokens(begin, end)])))
        return rows
