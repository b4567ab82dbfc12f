"""Iterative tagging: the text is fixed, the model picks the score of each sentence (paper, eq. "iterative tagging")."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import replace

from lovec.encoding import Encoder
from lovec.settings import checked
from lovec.stopwatch import Stopwatch
from lovec.taggers.scoring import (
    History,
    OnSentence,
    Passage,
    ScoreRequest,
    Step,
    most_probable,
    run_to_end,
    score_requests,
    score_steps,
    with_score,
)
from lovec.types import Engine, Readout, Record, Sentence, TokenScores


@checked()
class IterativeTagger:
    """Scores given sentences one after the other.

    c_i = argmax_c pi(c | q, (s_1, c_1), ..., (s_{i-1}, c_{i-1}), s_i), with pi(c | ...) the exact probability of the
    first tokens of " c </confidence>" that tell scores apart, or of the whole string (``Encoder.scoring``). The scores
    in the context are always the stated ones, whatever the readout.

    Args:
        engine: scores contexts with the policy.
        encoder: encodes prompts and sentences; the prompt contains the instruction.
        readout: what ``confidence`` is: "stated" is score / top of the scale; "mean" is the expected score / top under
            the distribution over all scores, renormalised.
        history: what the context of s_i contains. "scores": all earlier sentences with their scores. "hidden": all
            earlier sentences without scores. "previous": the sentence before, without its score (the paper's variant
            without previous scores).
        likelihoods: whether to fill in the log-probabilities of the tokens of every sentence, given the same context;
            they come from the computation that scores the sentence.

    Attributes:
        watch: seconds spent, in the phase "scoring".

    Raises:
        LovecError: readout or history is none of these; when tagging, the engine cannot give ``likelihoods``.
    """

    def __init__(
        self,
        engine: Engine,
        encoder: Encoder,
        readout: Readout = "stated",
        history: History = "scores",
        likelihoods: bool = False,
    ) -> None:
        self.engine = engine
        self.encoder = encoder
        self.readout: Readout = readout
        self.history: History = history
        self.likelihoods = likelihoods
        self.watch = Stopwatch()

    def tag(self, records: Sequence[Record], on_sentence: OnSentence | None = None) -> list[Record]:
        """Return the records with score, confidence and distribution of every sentence, in the order given.

        A record without sentences is returned as it is. Where a text is longer than the model's context, its sentences
        are scored in a sliding window (see `lovec.taggers.scoring.score_passages`); a sentence that does not fit by
        itself gets None for all three. ``meta["problems"]`` says both; other records are not affected.

        Args:
            records: questions with sentences.
            on_sentence: called with every sentence once it is scored; the sentences of a record come in their order.
        """
        return run_to_end(self.steps(records, on_sentence))

    def steps(
        self, records: Sequence[Record], on_sentence: OnSentence | None = None
    ) -> Generator[None, None, list[Record]]:
        """Do the work of ``tag``, and yield after every call of the engine; the generator returns the records.

        Between two calls others may use the engine: the results stay the same. Closing the generator, or an exception
        in ``on_sentence``, ends the work; the engine can be used again at once.

        Args:
            records: as for ``tag``.
            on_sentence: as for ``tag``.
        """
        requests = self.requests(records, on_sentence)
        return (yield from self.watch.timed("scoring", score_steps(self.engine, self.encoder.choices, requests)))

    def requests(
        self, records: Sequence[Record], on_sentence: OnSentence | None = None
    ) -> Generator[ScoreRequest, list[TokenScores], list[Record]]:
        """Do the work of ``tag``, with the engine's part left to the caller; the generator returns the records.

        Args:
            records: as for ``tag``.
            on_sentence: as for ``tag``.
        """
        passages = [
            self._passage(number, record, on_sentence) for number, record in enumerate(records) if record.sentences
        ]
        size = self.engine.max_rows, self.engine.context_length
        yield from score_requests(self.encoder, passages, *size, self.history, self.likelihoods)
        scored = iter(passages)
        return [self._tagged(record, next(scored)) if record.sentences else record for record in records]

    def _passage(self, number: int, record: Record, on_sentence: OnSentence | None) -> Passage:
        def on_scored(at: int, logps: list[float] | None) -> None:
            if on_sentence is not None:
                on_sentence(number, at, self._scored(record.sentences[at], logps, passage.token_logps[at]))

        steps = [Step(sentence.text) for sentence in record.sentences]
        passage = Passage(record.id, self.encoder.prompt(record.question), steps, on_scored=on_scored)
        return passage

    def _tagged(self, record: Record, passage: Passage) -> Record:
        results = zip(record.sentences, passage.logps, passage.token_logps, strict=True)
        sentences = [self._scored(*result) for result in results]
        meta = dict(record.meta)
        if passage.problems:
            meta["problems"] = [*meta.get("problems", ()), *passage.problems]
        return replace(record, sentences=tuple(sentences), meta=meta)

    def _scored(self, sentence: Sentence, logps: list[float] | None, token_logps: tuple[float, ...] | None) -> Sentence:
        scale = self.encoder.scale
        sentence = replace(sentence, token_logps=token_logps)
        if logps is None:
            return replace(sentence, score=None, confidence=None, distribution=None, levels=scale.size)
        return with_score(sentence, most_probable(logps), logps, scale, self.readout)
