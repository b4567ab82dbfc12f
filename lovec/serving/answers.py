"""Answers while they are written: their sentences are scored as soon as their tags are closed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import NamedTuple

from lovec.encoding import Encoder
from lovec.serving.jobs import CompletionJob
from lovec.taggers.freeform import AnswerReader, sentence_spans
from lovec.taggers.scoring import Passage, Step
from lovec.tags import TaggedSentence, TaggedText, parse
from lovec.types import Engine
from lovec.written import Steps


class ScoredSpan(NamedTuple):
    """A tagged span of an answer, and what the model tells about it.

    Attributes:
        span: the span.
        logps: log-probabilities of all scores at its tag; None where it has no valid tag, does not fit the model's
            context, or they were not asked for.
        token_logps: log-probabilities of the sentence's own tokens; None where they are not known.
    """

    span: TaggedSentence
    logps: list[float] | None
    token_logps: tuple[float, ...] | None = None


@dataclass(eq=False)
class GrowingAnswer:
    """An answer that is written token by token.

    Its methods run where the worker runs the model: in the thread of an engine, or in the event loop.

    Attributes:
        encoder: the encoder of the model that writes it.
        prompt: token ids of its prompt.
        on_sentences: called with the spans that are complete and scored, in their order.
        distributions: whether spans get the log-probabilities of all scores.
        likelihoods: whether spans get the log-probabilities of their tokens; they are those of the distribution that
            is sampled from, so the sampling must keep those of the model (``Sampling.keeps_logps``).
        stops: texts that end the answer, looked for in the answer without its tags. What begins with one is left out,
            unless it stands in a sentence that was handed over already.
        stopped: whether one of them has ended it.
    """

    encoder: Encoder
    prompt: Sequence[int]
    on_sentences: Callable[[list[ScoredSpan]], None]
    distributions: bool = True
    likelihoods: bool = False
    stops: Sequence[str] = ()
    stopped: bool = field(default=False, init=False)
    _text: str = field(default="", init=False)  # of the sentences so far, without tags
    _kept: str = field(default="", init=False)  # of the sentence that a stop cuts
    _reader: AnswerReader = field(init=False)
    _passage: Passage = field(init=False)
    _steps: list[Step] = field(default_factory=list, init=False)
    _spans: list[TaggedSentence] = field(default_factory=list, init=False)

    def __post_init__(self) -> None:
        self._reader = AnswerReader(self.encoder)
        self._passage = Passage("answer", self.prompt, self._steps)
        self._stop_ends = {stop[-1] for stop in self.stops} | {"\ufffd"}  # U+FFFD: part of a character

    @property
    def is_pending(self) -> bool:
        """Whether it has sentences that were not handed over."""
        return bool(self._spans)

    def on_token(self, token: int) -> bool:
        """Add a token, and return whether the answer can go on: not where it has a sentence to be scored, or stops."""
        for span in self._reader.on_token(token):
            if self._stops_in(span.raw, span.text):
                break
            self._spans.append(span)
            scored = self.distributions and span.score is not None
            self._steps.append(Step(span.text, score=span.score) if scored else Step(span.raw, literal=True))
        if self.stops and not self.stopped and self._stop_ends & set(self.encoder.token_text(token)):
            tail = self._reader.rest().tail
            opening = self.encoder.tags.open
            begun = max((n for n in range(len(opening)) if tail.endswith(opening[:n])), default=0)
            self._stops_in(tail, tail[: len(tail) - begun].strip(), final=False)
        return not (self._spans or self.stopped)

    def next_context(
        self, room: int | None, ids: Sequence[int], watched: Sequence[Mapping[int, float]]
    ) -> list[int] | None:
        """Return the context of the next sentence to score, see ``Passage.next_context``.

        Args:
            room: length of the model's context in tokens; None is no limit.
            ids: all tokens of the answer so far, or more.
            watched: log-probabilities in their places, see ``Completion.watched``.
        """
        self._passage.ids, self._passage.watched = ids, watched
        return self._passage.next_context(self.encoder, "scores", room)

    def steps_behind(self, context: Sequence[int]) -> Steps:
        """Return what is written behind a context, see ``Passage.steps_behind``."""
        return self._passage.steps_behind(context)

    def advance(self, logps: list[float]) -> None:
        """Store the log-probabilities of that sentence's scores."""
        self._passage.advance(self.encoder, "scores", logps)

    def release(self, ids: Sequence[int], logps: Sequence[float]) -> None:
        """Hand over the spans that are scored, and those between them that have no score.

        Args:
            ids: all tokens of the answer so far, or more.
            logps: their log-probabilities.
        """
        first, done = len(self._steps) - len(self._spans), len(self._passage.logps)
        spans, self._spans = self._spans[: done - first], self._spans[done - first :]
        tokens: list[tuple[float, ...] | None] = [None] * len(spans)
        if self.likelihoods:
            text = parse(self.encoder.written(ids), self.encoder.tags)
            places = sentence_spans(text, ids, self.encoder)[first:done]
            tokens = [None if place is None else tuple(logps[place]) for place in places]
        self.on_sentences(list(map(ScoredSpan, spans, self._passage.logps[first:], tokens)))

    def rest(self) -> list[ScoredSpan]:
        """Return what follows the spans that were handed over, up to a stop; for the end of the answer."""
        rest = TaggedText((), "") if self.stopped else self._reader.rest()
        spans = list(takewhile(lambda span: not self._stops_in(span.raw, span.text), rest.sentences))
        is_cut = self.stopped or self._stops_in(rest.tail, rest.tail.strip())
        tail = self._kept if is_cut else rest.tail
        if tail.strip():
            spans.append(TaggedSentence(tail.strip(), None, "cut by stop" if is_cut else "untagged tail", tail))
        return [ScoredSpan(span, None) for span in spans]

    def _stops_in(self, raw: str, text: str, final: bool = True) -> bool:
        """Return whether a stop ends in a sentence, and keep what stands before it.

        Args:
            raw: the sentence as it was written, with the white space before it.
            text: the sentence without tag and surrounding white space.
            final: whether it is complete; then the next one follows it.
        """
        space = raw[: len(raw) - len(raw.lstrip())] if self._text else ""
        whole = f"{self._text}{space}{text}"
        begin = len(self._text)
        found = [
            (at + len(stop), at) for stop in self.stops if (at := whole.find(stop, max(0, begin - len(stop) + 1))) >= 0
        ]
        if found:
            self.stopped = True
            self._kept = whole[begin : max(begin, min(found)[1])]
        elif final:
            self._text = whole
        return self.stopped


@dataclass(eq=False, kw_only=True)
class AnswerJob(CompletionJob):
    """A completion that is a tagged answer.

    Attributes:
        growing: reads and scores its sentences.
    """

    growing: GrowingAnswer

    @property
    def stopped(self) -> bool:
        """Whether a stop has ended the answer."""
        return self.growing.stopped


def score_answers(engine: Engine, jobs: Sequence[CompletionJob]) -> None:
    """Score the new sentences of answers together, and hand them over.

    The context of a sentence is the one that free-form tagging scores it in: its text and the scores that the model
    itself wrote before it, encoded as in iterative tagging. Sentences whose scores are known from writing them are not
    scored again.

    Args:
        engine: scores contexts.
        jobs: answers of one model that have paused; the sentences of those that nobody waits for are left out.
    """
    waited_for = [job for job in jobs if isinstance(job, AnswerJob) and not job.cancelled.is_set()]
    room = engine.context_length

    def contexts_due() -> list[tuple[GrowingAnswer, list[int]]]:
        contexts = ((job.growing, job.growing.next_context(room, job.ids, job.watched)) for job in waited_for)
        return [(answer, context) for answer, context in contexts if context is not None]

    while due := contexts_due():
        choices = due[0][0].encoder.choices
        for (answer, _), logps in zip(due, engine.score([context for _, context in due], choices), strict=True):
            answer.advance(logps)
    for job in waited_for:
        job.growing.release(job.ids, job.logps)
