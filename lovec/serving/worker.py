"""The thread of an engine in this process, which batches requests, pauses completions to score them, and cancels."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from itertools import count

from lovec.serving.jobs import AnswerJob, CompletionJob, Job, StepsJob, queue_full, shutting_down
from lovec.taggers.freeform import score_growing, write_on
from lovec.taggers.scoring import computed
from lovec.types import Completion, Engine, LovecError

log = logging.getLogger(__name__)

TURN = 0.5
"""Seconds that one of several jobs in steps runs until it is the next one's turn: the engine drops its cache then."""


class EngineWorker:
    """Runs jobs in batches of up to ``engine.max_rows``, first come, first served.

    An engine must be used by one thread only. Jobs with the same temperature, top_p and seed run together, each with
    its own token limit. A completion may pause, for instance at the end of every sentence; once all completions of
    the batch have paused or ended, ``on_paused`` is called with those that have paused, and then they go on, together
    with jobs that have arrived in the meantime. Of batches that cannot run together, the one that has waited longest
    is next. A job in steps gives way after every step to the first of the waiting jobs and their batch; several jobs
    in steps take turns.

    A completion that has paused is continued behind the tokens that it has, with a random stream that depends on their
    number: equal requests with equal seeds stay equal.

    Args:
        engine: samples; nothing else may use it meanwhile.
        stop_ids: ids that end a completion.
        max_waiting: the most jobs that may wait.
        on_paused: called in the worker's thread with the jobs of a batch that have paused, and those that end and have
            something left to be scored; it may use the engine.
        choices: token ids of every score behind the contexts of jobs in steps.

    Attributes:
        queue: the jobs that wait for their first turn.
        stopping: whether the worker accepts no more jobs.
        thread: runs the engine.
    """

    def __init__(
        self,
        engine: Engine,
        stop_ids: Sequence[int],
        max_waiting: int,
        on_paused: Callable[[Sequence[CompletionJob]], None] = lambda jobs: None,
        choices: Sequence[Sequence[int]] = (),
    ) -> None:
        self.engine = engine
        self.stop_ids = tuple(stop_ids)
        self.max_waiting = max_waiting
        self.on_paused = on_paused
        self.choices = choices
        self.queue: list[Job] = []
        self.stopping = False
        self._current: list[Job] = []
        self._paused: list[Job] = []  # completions that go on
        self._turns = count()
        self._begun: deque[Job] = deque()  # jobs in steps that gave way
        self._begun_next = False
        self._changed = threading.Condition()
        self.thread = threading.Thread(target=self._work, name="lovec-engine", daemon=True)

    @property
    def most(self) -> int:
        """The most jobs that may be submitted together."""
        return self.max_waiting

    @property
    def running(self) -> int:
        """Number of jobs that have begun."""
        return len(self._current) + len(self._paused) + len(self._begun)

    @property
    def waiting(self) -> int:
        """Number of jobs that wait for their first turn."""
        return len(self.queue)

    @property
    def alive(self) -> bool:
        """Whether the thread runs."""
        return self.thread.is_alive()

    async def problem(self) -> str | None:
        """Return why jobs cannot be done, for the health check; None where they can."""
        return None if self.alive else "the engine has stopped"

    async def open(self) -> None:
        """Start the thread."""
        self.thread.start()

    async def close(self, timeout: float) -> bool:
        """Cancel all jobs and end the thread; see ``stop`` for argument and result."""
        self.cancel()
        return await asyncio.to_thread(self.stop, timeout)

    def refuse(self) -> None:
        """Accept no more jobs; the thread ends once those that were accepted are done."""
        with self._changed:
            self.stopping = True
            self._changed.notify()

    def cancel(self) -> None:
        """Accept no more jobs, and end the others with an error; the engine stops at its next token or step."""
        self.refuse()
        with self._changed:
            jobs = [*self.queue, *self._current, *self._paused, *self._begun]
        for job in jobs:
            job.end(shutting_down())

    def stop(self, timeout: float | None = None) -> bool:
        """Finish all accepted jobs and end the thread.

        Args:
            timeout: the most seconds to wait for its end; None is no limit.

        Returns:
            Whether the thread has ended; a call of the engine cannot be interrupted.
        """
        self.refuse()
        self.thread.join(timeout)
        return not self.thread.is_alive()

    def submit(self, *jobs: Job, accepted: bool = False) -> None:
        """Put jobs at the end of the queue, all or none of them.

        Args:
            jobs: the jobs.
            accepted: whether they go on with one that was accepted; then they are, too.

        Raises:
            RequestRefused: the queue has no room for them, or the worker is stopping.
        """
        with self._changed:
            if self.stopping and not accepted:
                raise shutting_down()
            if not accepted and len(self.queue) + len(self._begun) + len(jobs) > self.max_waiting:
                raise queue_full(self.max_waiting)
            for job in jobs:
                job.turn = next(self._turns)
            self.queue += jobs
            self._changed.notify()

    def _work(self) -> None:
        while jobs := self._next_jobs():
            try:
                if isinstance(jobs[0], StepsJob):
                    self._advance(jobs[0])
                else:
                    self._complete([job for job in jobs if isinstance(job, CompletionJob)])
            except Exception as error:  # goes to those who wait, and the thread lives on
                log.error("the engine failed: %s", error, exc_info=not isinstance(error, LovecError))
                for job in jobs:
                    job.end(error)
            self._current = []

    def _next_jobs(self) -> list[Job]:
        """Wait for jobs and return those to run together; none when the thread is to end."""
        with self._changed:
            while True:
                self.queue = [job for job in self.queue if not job.cancelled.is_set()]
                self._paused = [job for job in self._paused if not job.cancelled.is_set()]
                ready = [*self._paused, *self.queue]
                if ready or self._begun:
                    break
                if self.stopping:
                    return []
                self._changed.wait()
            if self._begun and (self._begun_next or not ready):
                self._current = [self._begun.popleft()]
                self._begun_next = False
            else:
                first = min(ready, key=lambda job: job.turn)
                # Completions that have begun go first: they end sooner, and no more than a batch of them is open.
                together = [job for job in ready if _run_together(first, job)]
                self._current = together[: max(1, self.engine.max_rows)]
                self._paused = [job for job in self._paused if job not in self._current]
                self.queue = [job for job in self.queue if job not in self._current]
                self._begun_next = not isinstance(first, StepsJob)
            return self._current

    def _advance(self, job: StepsJob) -> None:
        """Do steps of a job, at least one, until others wait."""
        begin = time.monotonic()
        goes_on = False
        try:
            if job.request is None:
                job.advance()
            while job.request is not None and not job.cancelled.is_set() and not goes_on:
                job.advance(computed(job.request, self.engine, self.choices))
                waited = self.queue or self._paused or (self._begun and time.monotonic() - begin > TURN)
                goes_on = bool(waited) and job.request is not None
        finally:
            if not goes_on:
                job.requests.close()
                self.engine.score([], self.choices)  # frees what the engine kept
        if goes_on:
            with self._changed:
                self._current = []
                self._begun.append(job)

    def _complete(self, jobs: Sequence[CompletionJob]) -> None:
        """Sample a batch of completions until each of them pauses or ends."""
        pauses = write_on(
            self.engine,
            self.stop_ids,
            jobs,
            lambda job, token: not job.cancelled.is_set() and job.on_token(token),
        )
        ended = ((job, pause) for job, pause in zip(jobs, pauses, strict=True) if not pause.goes_on)
        left = {job for job, pause in ended if job.finish(pause.finished)}
        if due := [job for job, pause in zip(jobs, pauses, strict=True) if pause.asked or job in left]:
            self.on_paused(due)
        for job, pause in zip(jobs, pauses, strict=True):
            if pause.goes_on:
                with self._changed:
                    job.turn = next(self._turns)
                    self._paused.append(job)
            else:
                job.end(Completion(tuple(job.ids), tuple(job.logps), pause.finished))


def _run_together(first: Job, job: Job) -> bool:
    """Return whether two jobs can run in one batch."""
    if not (isinstance(first, CompletionJob) and isinstance(job, CompletionJob)):
        return first is job
    alike = [(s.temperature, s.top_p, s.seed) for s in (first.sampling, job.sampling)]
    return alike[0] == alike[1]


def score_answers(engine: Engine, jobs: Sequence[CompletionJob]) -> None:
    """Score the new sentences of answers together, see ``score_growing``, and hand them over.

    Args:
        engine: scores contexts.
        jobs: answers of one model that have paused or ended; the sentences of those that nobody waits for are left out.
    """
    waited_for = [job for job in jobs if isinstance(job, AnswerJob) and not job.cancelled.is_set()]
    score_growing(engine, [(job.growing, job.ids, job.watched) for job in waited_for])
    for job in waited_for:
        job.release(job.logps)
