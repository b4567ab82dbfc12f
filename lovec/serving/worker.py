"""One thread that runs the engine: it batches waiting requests and stops those that were cancelled."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from lovec.serving.wire import RequestRefused
from lovec.types import Completion, Engine, LovecError, Sampling

log = logging.getLogger(__name__)


@dataclass(eq=False)
class CompletionJob:
    """A completion to be sampled. Its callbacks run in the worker's thread.

    Attributes:
        prompt: token ids.
        sampling: how to sample; one completion.
        key: names the random stream, together with the seed.
        on_token: called with every token.
        on_end: called once, with the completion or with the error that prevented it.
        cancelled: to be set when nobody waits for the completion any more.
    """

    prompt: Sequence[int]
    sampling: Sampling
    key: str
    on_token: Callable[[int], None]
    on_end: Callable[[Completion | Exception], None]
    cancelled: threading.Event = field(default_factory=threading.Event)


@dataclass(eq=False)
class EngineCall:
    """Any other work with the engine; it is not batched.

    Attributes:
        function: does the work, in the worker's thread.
        on_end: called once, with the result or with the error that ``function`` raised.
        cancelled: to be set when nobody waits for the result any more.
    """

    function: Callable[[], Any]
    on_end: Callable[[Any], None]
    cancelled: threading.Event = field(default_factory=threading.Event)


class EngineWorker:
    """Runs jobs in batches of up to ``engine.max_rows``, first come, first served.

    An engine must be used by one thread only. Jobs that arrive while a batch runs wait for its end; waiting jobs with
    the same temperature and seed run together, each with its own token limit.

    Args:
        engine: samples; nothing else may use it meanwhile.
        stop_ids: ids that end a completion.
        max_waiting: the most jobs that may wait.

    Attributes:
        running: number of jobs in the current batch.
        queue: the jobs that wait.
        thread: runs the engine.
    """

    def __init__(self, engine: Engine, stop_ids: Sequence[int], max_waiting: int) -> None:
        self.engine = engine
        self.stop_ids = tuple(stop_ids)
        self.max_waiting = max_waiting
        self.running = 0
        self.queue: list[CompletionJob | EngineCall] = []
        self._changed = threading.Condition()
        self._stopping = False
        self.thread = threading.Thread(target=self._work, name="lovec-engine", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self.thread.start()

    def stop(self) -> None:
        """Finish all accepted jobs and end the thread; returns when it has ended."""
        with self._changed:
            self._stopping = True
            self._changed.notify()
        self.thread.join()

    def submit(self, job: CompletionJob | EngineCall) -> None:
        """Put a job at the end of the queue.

        Raises:
            RequestRefused: the queue is full, or the worker is stopping.
        """
        with self._changed:
            if self._stopping or len(self.queue) >= self.max_waiting:
                full = f"{self.max_waiting} requests are waiting, the most that may; try again later"
                message = "the server is shutting down; ask another one" if self._stopping else full
                raise RequestRefused(message, status=429, code="rate_limit_exceeded")
            self.queue.append(job)
            self._changed.notify()

    def _work(self) -> None:
        while batch := self._next_batch():
            self.running = len(batch)
            try:
                results: Sequence[Any] = self._results(batch)
            except Exception as error:  # goes to those who wait, and the thread lives on
                if not isinstance(error, LovecError):
                    log.exception("the engine failed")
                results = [error] * len(batch)
            for job, result in zip(batch, results, strict=True):
                job.on_end(result)
            self.running = 0

    def _next_batch(self) -> list[CompletionJob | EngineCall]:
        """Wait for jobs and return those to run together; none when the thread is to end."""
        with self._changed:
            while True:
                self.queue = [job for job in self.queue if not job.cancelled.is_set()]
                if self.queue:
                    break
                if self._stopping:
                    return []
                self._changed.wait()
            first = self.queue[0]
            batch = [job for job in self.queue if _run_together(first, job)][: max(1, self.engine.max_rows)]
            self.queue = [job for job in self.queue if job not in batch]
            return batch

    def _results(self, batch: Sequence[CompletionJob | EngineCall]) -> list[Any]:
        """Run a batch, and return the completion of each job, or the result of the call that is alone in it."""
        if isinstance(batch[0], EngineCall):
            return [batch[0].function()]
        jobs = [job for job in batch if isinstance(job, CompletionJob)]
        n_tokens = [0] * len(jobs)

        def on_token(prompt: int, sample: int, token: int) -> bool:
            job = jobs[prompt]
            n_tokens[prompt] += 1
            if not job.cancelled.is_set():
                job.on_token(token)
            return not job.cancelled.is_set() and n_tokens[prompt] < job.sampling.max_new_tokens

        sampling = replace(jobs[0].sampling, max_new_tokens=max(job.sampling.max_new_tokens for job in jobs))
        completions = self.engine.generate(
            [job.prompt for job in jobs], sampling, self.stop_ids, keys=[job.key for job in jobs], on_token=on_token
        )
        return [completion for (completion,) in completions]


def _run_together(first: CompletionJob | EngineCall, job: CompletionJob | EngineCall) -> bool:
    """Return whether two jobs can run in one batch."""
    if isinstance(first, EngineCall) or isinstance(job, EngineCall):
        return first is job
    return (first.sampling.temperature, first.sampling.seed) == (job.sampling.temperature, job.sampling.seed)
