"""One thread that runs the engine: what waits is batched, what nobody waits for any more is stopped."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from lovec.types import Completion, Engine, LovecError, Sampling

log = logging.getLogger(__name__)


class Busy(LovecError):
    """As many requests wait as may wait."""


@dataclass(eq=False)
class Job:
    """A completion that somebody waits for. Its callbacks run in the worker's thread.

    Attributes:
        prompt: token ids.
        sampling: how to sample; one completion.
        key: names its random stream, with the seed.
        on_token: is told every token.
        end: is told the completion, or what went wrong, once.
        gone: set by whoever no longer waits.
    """

    prompt: Sequence[int]
    sampling: Sampling
    key: str
    on_token: Callable[[int], None]
    end: Callable[[Completion | Exception], None]
    gone: threading.Event = field(default_factory=threading.Event)


@dataclass(eq=False)
class Call:
    """Anything else to be done with the engine, by itself."""

    do: Callable[[], Any]
    end: Callable[[Any], None]
    gone: threading.Event = field(default_factory=threading.Event)


class Worker:
    """Runs jobs in batches of up to ``engine.max_rows``, first come, first served.

    An engine is one thread's affair. Jobs that come while a batch runs wait for its end; those that wait and sample
    alike (temperature, seed) go together, each with its own limit of tokens.

    Args:
        engine: samples; nobody else may use it meanwhile.
        stop_ids: ids that end a completion.
        waiting: jobs that may wait.

    Attributes:
        running: jobs in the batch that runs now.
    """

    def __init__(self, engine: Engine, stop_ids: Sequence[int], waiting: int) -> None:
        self.engine = engine
        self.stop_ids = tuple(stop_ids)
        self.waiting = waiting
        self.running = 0
        self._queue: deque[Job | Call] = deque()
        self._news = threading.Condition()
        self._stopping = False
        self._thread = threading.Thread(target=self._work, name="lovec-engine", daemon=True)

    @property
    def alive(self) -> bool:
        """Whether the thread runs."""
        return self._thread.is_alive()

    @property
    def queued(self) -> int:
        """Jobs that wait."""
        return len(self._queue)

    def start(self) -> None:
        """Begin to work."""
        self._thread.start()

    def stop(self) -> None:
        """Finish what was taken, then end; returns when the thread has."""
        with self._news:
            self._stopping = True
            self._news.notify()
        self._thread.join()

    def submit(self, job: Job | Call) -> None:
        """Put a job at the end of the queue.

        Raises:
            Busy: the queue is full, or the worker is stopping.
        """
        with self._news:
            if self._stopping or len(self._queue) >= self.waiting:
                raise Busy(
                    "the server is shutting down; ask another one"
                    if self._stopping
                    else f"{self.waiting} requests are waiting, as many as may; try again later"
                )
            self._queue.append(job)
            self._news.notify()

    def _work(self) -> None:
        while batch := self._next():
            self.running = len(batch)
            if isinstance(first := batch[0], Call):
                self._call(first)
            else:
                self._complete([job for job in batch if isinstance(job, Job)])
            self.running = 0

    def _next(self) -> list[Job | Call]:
        """What to do now, once there is something; nothing when it is time to end."""
        with self._news:
            while True:
                for job in [job for job in self._queue if job.gone.is_set()]:
                    self._queue.remove(job)
                if self._queue:
                    break
                if self._stopping:
                    return []
                self._news.wait()
            first = self._queue[0]
            batch = [job for job in self._queue if _alike(first, job)][: max(1, self.engine.max_rows)]
            for job in batch:
                self._queue.remove(job)
            return batch

    def _call(self, call: Call) -> None:
        try:
            found: Any = call.do()
        except Exception as error:
            found = self._failed(error)
        call.end(found)

    def _complete(self, jobs: list[Job]) -> None:
        streamed = [0] * len(jobs)

        def on_token(prompt: int, sample: int, token: int) -> bool:
            job = jobs[prompt]
            streamed[prompt] += 1
            if not job.gone.is_set():
                job.on_token(token)
            return not job.gone.is_set() and streamed[prompt] < job.sampling.max_new_tokens

        first = jobs[0].sampling
        longest = max(job.sampling.max_new_tokens for job in jobs)
        sampling = Sampling(longest, first.temperature, seed=first.seed)
        try:
            found = self.engine.generate(
                [job.prompt for job in jobs], sampling, self.stop_ids, keys=[job.key for job in jobs], on_token=on_token
            )
        except Exception as error:
            failed = self._failed(error)
            for job in jobs:
                job.end(failed)
            return
        for job, (completion,) in zip(jobs, found, strict=True):
            job.end(completion)

    def _failed(self, error: Exception) -> Exception:
        """The error, which goes to those who asked; the thread lives on."""
        if not isinstance(error, LovecError):
            log.exception("the engine failed")
        return error


def _alike(first: Job | Call, job: Job | Call) -> bool:
    """Whether two jobs can run in one batch."""
    if isinstance(first, Call) or isinstance(job, Call):
        return first is job
    return (first.sampling.temperature, first.sampling.seed) == (job.sampling.temperature, job.sampling.seed)
