"""Iterative tagging: the text is fixed, the model picks the score of each sentence (paper, eq. "iterative tagging")."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import get_args

from lovec.encoding import Encoder
from lovec.stopwatch import Stopwatch
from lovec.taggers.scoring import (
    History,
    OnSentence,
    Passage,
    Readout,
    Step,
    best,
    checked_readout,
    distribution,
    expected_confidence,
    score_passages,
)
from lovec.types import Engine, LovecError, Record, Sentence


class IterativeTagger:
    """Scores given sentences one after the other.

    c_i = argmax_c pi(c | q, (s_1, c_1), ..., (s_{i-1}, c_{i-1}), s_i), with pi(c | ...) the exact probability of the
    whole string " c </confidence>". The scores in the context are always the stated ones, whatever the readout.

    Args:
        engine: scores contexts with the policy.
        encoder: prompts and pieces of its tokenizer; the question comes with the instruction.
        readout: what ``confidence`` is: "stated" is score / 10; "mean" is the expected score / 10 under the
            distribution over the 11 scores, renormalised.
        history: what the context of s_i holds. "scores": all earlier sentences with their scores. "hidden": all
            earlier sentences without. "previous": the sentence before, without its score (the paper's
            no-previous-scores variant).

    Attributes:
        watch: seconds spent, in the phase "scoring".

    Raises:
        LovecError: readout or history is none of these.
    """

    def __init__(
        self, engine: Engine, encoder: Encoder, readout: Readout = "stated", history: History = "scores"
    ) -> None:
        if history not in get_args(History):
            raise LovecError(f"history is {history!r}, expected one of {', '.join(get_args(History))}")
        self.engine = engine
        self.encoder = encoder
        self.readout = checked_readout(readout)
        self.history = history
        self.watch = Stopwatch()

    def tag(self, records: Sequence[Record], on_sentence: OnSentence | None = None) -> list[Record]:
        """Records with score, confidence and distribution of every sentence, in the order given.

        A record without sentences comes back as it is. Sentences whose context is longer than the model's get None
        for all three, and ``meta["problems"]`` says so; no record is lost to another one's length.

        Args:
            records: questions with sentences.
            on_sentence: is on_scored every sentence as soon as it is scored, those of one record in their order.
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
        on_scored = None if on_sentence is None else self._teller(records, passages, on_sentence)
        with self.watch.phase("scoring"):
            score_passages(self.engine, self.encoder, passages, self.history, on_scored)
        done = iter(passages)
        return [self._tagged(record, next(done)) if record.sentences else record for record in records]

    def _tagged(self, record: Record, passage: Passage) -> Record:
        sentences = [self._scored(s, logps) for s, logps in zip(record.sentences, passage.logps, strict=True)]
        meta = dict(record.meta)
        if passage.problems:
            meta["problems"] = [*meta.get("problems", ()), *passage.problems]
        return replace(record, sentences=tuple(sentences), meta=meta)

    def _scored(self, sentence: Sentence, logps: list[float] | None) -> Sentence:
        if logps is None:
            return replace(sentence, score=None, confidence=None, distribution=None)
        score = best(logps)
        confidence = score / 10 if self.readout == "stated" else expected_confidence(logps)
        return replace(sentence, score=score, confidence=confidence, distribution=distribution(logps))

    def _teller(
        self, records: Sequence[Record], passages: Sequence[Passage], on_sentence: OnSentence
    ) -> Callable[[Passage], None]:
        """What `score_passages` tells of passages, as sentences of records."""
        numbers = [number for number, record in enumerate(records) if record.sentences]
        number_of = dict(zip(map(id, passages), numbers, strict=True))
        given = dict.fromkeys(numbers, 0)

        def on_scored(passage: Passage) -> None:
            number = number_of[id(passage)]
            for at in range(given[number], len(passage.logps)):
                on_sentence(number, at, self._scored(records[number].sentences[at], passage.logps[at]))
            given[number] = len(passage.logps)

        return on_scored
