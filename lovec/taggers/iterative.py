"""Iterative tagging: the text is fixed, the model picks the score of each sentence (paper, eq. "iterative tagging")."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import get_args

from lovec.encoding import Encoder
from lovec.taggers.walk import (
    History,
    Passage,
    Readout,
    Step,
    best,
    checked_readout,
    distribution,
    expected_confidence,
    walk,
)
from lovec.types import Engine, LovecError, Record


class IterativeTagger:
    """Scores given sentences one after the other.

    c_i = argmax_c pi(c | q, (s_1, c_1), ..., (s_{i-1}, c_{i-1}), s_i), with pi(c | ...) the exact probability of the
    whole string " c </confidence>". The scores in the context are always the argmax ones, whatever the readout.

    Args:
        engine: scores contexts with the policy.
        encoder: prompts and pieces of its tokenizer; the question comes with the instruction.
        readout: what ``confidence`` is: "argmax" is score / 10; "mean" is the expected score / 10 under the
            distribution over the 11 scores, renormalised.
        history: what the context of s_i holds. "scores": all earlier sentences with their scores. "hidden": all
            earlier sentences without. "previous": the sentence before, without its score (the paper's
            no-previous-scores variant).

    Raises:
        LovecError: readout or history is none of these.
    """

    def __init__(
        self, engine: Engine, encoder: Encoder, readout: Readout = "argmax", history: History = "scores"
    ) -> None:
        if history not in get_args(History):
            raise LovecError(f"history is {history!r}, expected one of {', '.join(get_args(History))}")
        self.engine = engine
        self.encoder = encoder
        self.readout = checked_readout(readout)
        self.history = history

    def tag(self, records: Sequence[Record]) -> list[Record]:
        """Records with score, confidence and distribution of every sentence, in the order given.

        A record without sentences comes back as it is. Sentences whose context is longer than the model's get None
        for all three, and ``meta["problems"]`` says so; no record is lost to another one's length.
        """
        passages = [
            Passage(
                name=record.id,
                prompt=self.encoder.prompt(record.question),
                steps=[Step(sentence.text) for sentence in record.sentences],
            )
            for record in records
            if record.sentences
        ]
        walk(self.engine, self.encoder, passages, self.history)
        done = iter(passages)
        return [self._tagged(record, next(done)) if record.sentences else record for record in records]

    def _tagged(self, record: Record, passage: Passage) -> Record:
        sentences = []
        for sentence, logps in zip(record.sentences, passage.logps, strict=True):
            if logps is None:
                sentences.append(replace(sentence, score=None, confidence=None, distribution=None))
                continue
            score = best(logps)
            confidence = score / 10 if self.readout == "argmax" else expected_confidence(logps)
            sentences.append(replace(sentence, score=score, confidence=confidence, distribution=distribution(logps)))
        meta = dict(record.meta)
        if passage.problems:
            meta["problems"] = [*meta.get("problems", ()), *passage.problems]
        return replace(record, sentences=tuple(sentences), meta=meta)
