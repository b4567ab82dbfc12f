"""Iterative tagging: the text is fixed, the model picks the score of each sentence (paper, eq. "iterative tagging")."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from lovec.core.settings import checked
from lovec.core.stopwatch import Stopwatch
from lovec.encoding import Author, Encoder
from lovec.taggers.scoring import (
    History,
    Passage,
    Requests,
    ScoredSentence,
    ScoreRequest,
    Step,
    Tagged,
    answered,
    most_probable,
    next_item,
    read_out,
    score_requests,
)
from lovec.types import Engine, Readout, Record, Sentence

if TYPE_CHECKING:
    from lovec.calibration import Calibration


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
        calibration: makes the confidence of what was read, log-probabilities included if it needs them; None leaves it.
        author: whose the text is said to be: the prompt already has it, as the model's or as the user's (see
            ``Encoder.prompt_with_text``), and what is scored is its repetition. None has the prompt without it: the
            text is the answer that the model is giving.
        by_source: the same for records whose prompt has their evidence; None leaves theirs as it was read.

    Attributes:
        watch: seconds spent, in the phase "scoring".

    Raises:
        LovecError: readout, history or author is not one of these; the engine cannot give ``likelihoods`` when tagging.
    """

    def __init__(
        self,
        engine: Engine,
        encoder: Encoder,
        readout: Readout = "stated",
        history: History = "scores",
        likelihoods: bool = False,
        calibration: Calibration | None = None,
        author: Author | None = None,
        by_source: Calibration | None = None,
    ) -> None:
        self.engine = engine
        self.encoder = encoder
        self.readout: Readout = readout
        self.history: History = history
        used = [made for made in (calibration, by_source) if made is not None]
        self.likelihoods = likelihoods or any(made.needs_token_logps for made in used)
        self.calibration = calibration
        self.author = author
        self.by_source = by_source
        self.watch = Stopwatch()

    def tag(self, records: Sequence[Record]) -> list[Record]:
        """Return the records with score, confidence and distribution of every sentence, in the order given.

        A record without sentences is returned as it is. What states nothing (headings, code: see
        ``lovec.types.PartKind``) stays without a score, and the model does not see it. Where a text is longer than the
        model's context, its sentences are scored in a sliding window (see `lovec.taggers.scoring.score_passages`); a
        sentence that does not fit by itself gets None for all three. ``meta["problems"]`` says both; other records are
        not affected.

        Args:
            records: questions with sentences.
        """
        return [item for item in self.stream(records) if isinstance(item, Record)]

    def stream(self, records: Sequence[Record]) -> Generator[Tagged, None, None]:
        """Yield every sentence of ``tag`` once it is scored, and at the end the records, in the order given.

        While the generator waits others may use the engine: the results stay the same. Closing it ends the work; the
        engine can be used again at once.

        Args:
            records: as for ``tag``.
        """
        return self.watch.timed("scoring", answered(self.requests(records), self.engine, self.encoder.choices))

    def requests(self, records: Sequence[Record], prompts: Sequence[list[int]] | None = None) -> Requests[Tagged]:
        """Do the work of ``stream``, with the engine left to the caller.

        Args:
            records: as for ``tag``.
            prompts: token ids of the prompt of each record, such as a conversation; None makes those of the records.
        """
        passages = {
            number: Passage(
                record.id, self._prompt(record, steps) if prompts is None else prompts[number], steps, number=number
            )
            for number, record in enumerate(records)
            if (steps := [Step(part.text) for part in record.sentences if part.is_statement])
        }
        done: list[list[Sentence]] = [[] for _ in records]
        scored = [0] * len(records)  # statements among these

        def news(number: int) -> Iterator[ScoredSentence]:
            """Yield the sentences up to the next one that is not scored yet."""
            for part in records[number].sentences[len(done[number]) :]:
                if part.is_statement:
                    if scored[number] == len(passages[number].logps):
                        return
                    sentence = self._scored(part, passages[number], scored[number], self._calibration(records[number]))
                    scored[number] += 1
                else:
                    sentence = Sentence(part.text, part.factuality, kind=part.kind)  # nothing of an earlier run
                done[number].append(sentence)
                yield ScoredSentence(number, len(done[number]) - 1, sentence)

        size = self.engine.max_rows, self.engine.context_length
        requests = score_requests(self.encoder, list(passages.values()), *size, self.history, self.likelihoods)
        request: ScoreRequest | None = next_item(requests)
        while request is not None:
            advanced = request.passages
            request = next_item(requests, (yield request))
            for passage in advanced:
                yield from news(passage.number)
        for number, record in enumerate(records):
            yield from news(number)
            meta = dict(record.meta)
            if number in passages and (problems := passages[number].problems):
                meta["problems"] = [*meta.get("problems", ()), *problems]
            yield replace(record, sentences=tuple(done[number]), meta=meta)

    def _prompt(self, record: Record, steps: Sequence[Step]) -> list[int]:
        """Return the ids of the prompt for a record with these sentences."""
        if self.author is None:
            return self.encoder.record_prompt(record)
        return self.encoder.prompt_with_text(record.question, " ".join(step.text for step in steps), self.author)

    def _calibration(self, record: Record) -> Calibration | None:
        return self.by_source if self.encoder.has_source(record) else self.calibration

    def _scored(self, sentence: Sentence, passage: Passage, at: int, calibration: Calibration | None) -> Sentence:
        """Return a sentence with what a step of its passage says of it."""
        logps = passage.logps[at]
        score = None if logps is None else most_probable(logps)
        scale, token_logps = self.encoder.scale, passage.token_logps[at]
        return read_out(sentence, score, logps, token_logps, scale, self.readout, calibration)
