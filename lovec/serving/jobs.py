"""What the server asks a model for: completions, and texts to score; with callbacks for their results."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from lovec.serving.wire import RequestRefused
from lovec.types import Sampling


@dataclass(eq=False)
class Job:
    """Work with the model for one answer or text.

    Attributes:
        on_end: called once, with the result or with the error that prevented it; not called for a cancelled job.
        on_cancel: called when the job is cancelled; None for nothing.
        cancelled: set when nobody waits for the result any more, also because it is there.
        turn: number of the turn in which it has run last; of a job that has not run yet, of its arrival.
    """

    on_end: Callable[[Any], None]
    on_cancel: Callable[[], Any] | None = field(default=None, init=False)
    cancelled: threading.Event = field(default_factory=threading.Event, init=False)
    turn: int = field(default=0, init=False)
    _ending: threading.Lock = field(default_factory=threading.Lock, init=False)

    def end(self, result: Any) -> None:
        """Hand over the result or an error, unless that was done, or nobody waits for it."""
        with self._ending:
            if not self.cancelled.is_set():
                self.cancelled.set()
                self.on_end(result)

    def cancel(self) -> None:
        """Say that nobody waits for the result any more."""
        self.cancelled.set()
        if self.on_cancel is not None:
            self.on_cancel()


@dataclass(eq=False)
class CompletionJob(Job):
    """A completion to be sampled. Its callbacks run where the worker runs it.

    Attributes:
        prompt: token ids.
        sampling: how to sample; one completion.
        key: names the random stream, together with the seed.
        on_token: called with every token; returns False to pause the completion, see ``EngineWorker``.
        ids: the tokens so far.
        logps: their log-probabilities, up to the last pause.
        watched: log-probabilities in their places, up to the last pause, see ``Completion.watched``.
    """

    prompt: Sequence[int]
    sampling: Sampling
    key: str
    on_token: Callable[[int], bool]
    ids: list[int] = field(default_factory=list, init=False)
    logps: list[float] = field(default_factory=list, init=False)
    watched: list[Mapping[int, float]] = field(default_factory=list, init=False)

    @property
    def stopped(self) -> bool:
        """Whether the completion ends with the token that it has paused at."""
        return False


@dataclass(eq=False)
class StepsJob(Job):
    """Any other work with the model, in steps between which other jobs run.

    Attributes:
        steps: does the work, as the worker's ``steps`` has made it, and returns the result.
    """

    steps: Generator[Any, Any, Any]


def shutting_down() -> RequestRefused:
    """Return the error of a request that a stopping server does not answer."""
    return RequestRefused("the server is shutting down; ask another one, or again later", status=503)


def queue_full(most: int) -> RequestRefused:
    """Return the error of a request that is one too many."""
    message = f"the queue has no room, where at most {most} answers wait; try again later"
    return RequestRefused(message, status=429, code="rate_limit_exceeded")
