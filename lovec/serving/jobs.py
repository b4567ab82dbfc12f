"""What the server asks a model for: answers, and texts to score; each hands over what becomes known of it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from lovec.serving.wire import RequestRefused
from lovec.taggers.freeform import GrowingAnswer, PausingCompletion, ScoredSpan
from lovec.taggers.scoring import Requests, ScoreRequest, next_item
from lovec.types import Completion, TokenScores


@dataclass(eq=False)
class Job:
    """Work with the model for one answer or text.

    Attributes:
        on_item: called where the worker runs the job with everything that becomes known, and at the end with the result
            or the error that prevented it; not called for a cancelled job.
        on_cancel: called when the job is cancelled; None for nothing.
        cancelled: set when nobody waits for more, also because the end is there.
        turn: number of the turn in which it has run last; of a job that has not run yet, of its arrival.
    """

    on_item: Callable[[Any], None]
    on_cancel: Callable[[], Any] | None = field(default=None, init=False)
    cancelled: threading.Event = field(default_factory=threading.Event, init=False)
    turn: int = field(default=0, init=False)
    _ending: threading.Lock = field(default_factory=threading.Lock, init=False)

    def put(self, item: Any) -> None:
        """Hand over what has become known, unless nobody waits for it."""
        if not self.cancelled.is_set():
            self.on_item(item)

    def end(self, result: Any) -> None:
        """Hand over the result or an error, unless that was done, or nobody waits for it."""
        with self._ending:
            if not self.cancelled.is_set():
                self.cancelled.set()
                self.on_item(result)

    def cancel(self) -> None:
        """Say that nobody waits for the result any more."""
        self.cancelled.set()
        if self.on_cancel is not None:
            self.on_cancel()


class AnswerEnd(NamedTuple):
    """The end of an answer.

    Attributes:
        finished: whether its model, or a stop, has ended it, and not a limit of tokens.
        prompt_tokens: number of tokens of the prompt; None where nobody has counted them.
        tokens: number of tokens of the answer, likewise.
        problems: what is wrong with it.
        repeated: whether it was asked for twice, because the first one was empty or had malformed tags.
        own_prompt: whether the prompt was read for this answer alone; otherwise for all answers of its request at once.
    """

    finished: bool
    prompt_tokens: int | None
    tokens: int | None
    problems: Sequence[str] = ()
    repeated: bool = False
    own_prompt: bool = False


def added(first: int | None, second: int | None) -> int | None:
    """Return the sum of two numbers of tokens, of which each may be unknown."""
    return None if first is None or second is None else first + second


@dataclass(eq=False)
class CompletionJob(PausingCompletion, Job):
    """A completion to be sampled. Its callbacks run where the worker runs it.

    Attributes:
        on_token: called with every token; returns False to pause the completion, see ``EngineWorker``.
    """

    on_token: Callable[[int], bool]

    @property
    def stopped(self) -> bool:
        """Whether the completion ends with the token that it has paused at: nobody waits for more."""
        return self.cancelled.is_set()

    def finish(self, finished: bool) -> bool:
        """Take notice that no token follows; return whether something is left to be scored before the end.

        Args:
            finished: whether the model has ended the completion.
        """
        return False


@dataclass(eq=False, kw_only=True)
class AnswerJob(CompletionJob):
    """A completion that is a tagged answer: it hands over the answer's sentences, and at the end an ``AnswerEnd``.

    What follows the last tag is handed over like a sentence, once ``finish`` was called.

    Attributes:
        growing: reads and scores its sentences.
        streams: whether the client gets sentences before the answer is complete. Otherwise they are handed over at its
            end, without those that have turned out to be part of a thought.
    """

    growing: GrowingAnswer
    streams: bool = True
    _held: list[ScoredSpan] = field(default_factory=list, init=False)

    @property
    def stopped(self) -> bool:
        """Whether a stop has ended the answer, or nobody waits for more."""
        return self.growing.stopped or super().stopped

    def finish(self, finished: bool) -> bool:
        """Take notice that no token follows, see ``GrowingAnswer.finish``."""
        return self.growing.finish(finished)

    def release(self, logps: Sequence[float]) -> None:
        """Hand over the sentences that are scored, or keep them for the end, see ``GrowingAnswer.release``."""
        for sentence in self.growing.release(logps):
            if self.streams:
                self.put(sentence)
            else:
                self._held.append(sentence)

    def end(self, result: Any) -> None:
        """Hand over the end of the answer, or an error."""
        if isinstance(result, Completion):
            growing = self.growing
            for sentence in self._held[growing.withdrawn :]:
                self.put(sentence)
            problems = [*(growing.withdrawal if self.streams else ()), *growing.own_problems, *growing.problems]
            finished = result.finished or growing.stopped
            result = AnswerEnd(finished, len(self.prompt), len(result.ids), problems)
        super().end(result)


@dataclass(eq=False)
class StepsJob(Job):
    """Any other work with the model, in steps between which other jobs run.

    Attributes:
        requests: the work, which ends with the item that it yields last.
        request: what is to be scored next; None before the first request, and at the end.
    """

    requests: Requests[Any]
    request: ScoreRequest | None = field(default=None, init=False)

    def advance(self, scores: Sequence[TokenScores] | None = None) -> ScoreRequest | None:
        """Go on up to the next request, and return it; None at the end.

        Args:
            scores: the answer to the last request; None where there was none.
        """
        item = next_item(self.requests, scores)
        while item is not None and not isinstance(item, ScoreRequest):
            self.put(item)
            item = next_item(self.requests)
        self.request = item
        if item is None:
            self.cancelled.set()
        return item


def shutting_down() -> RequestRefused:
    """Return the error of a request that a stopping server does not answer."""
    return RequestRefused("the server is shutting down; ask another one, or again later", status=503)


def queue_full(most: int) -> RequestRefused:
    """Return the error of a request that is one too many."""
    message = f"the queue has no room, where at most {most} answers wait; try again later"
    return RequestRefused(message, status=429, code="rate_limit_exceeded")
