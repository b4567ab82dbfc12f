"""Jobs that another server does: each is a task of the event loop."""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod

from lovec.core.calls import ApiClient, CallFailed, ServerRefused
from lovec.serving.jobs import Job, queue_full, shutting_down
from lovec.serving.wire import RequestRefused
from lovec.types import LovecError

log = logging.getLogger(__name__)

_UPSTREAM: tuple[type[Exception], ...] = (CallFailed, ServerRefused, LovecError)


class TaskWorker(ABC):
    """Runs every job at once, each as a task, which calls another server.

    A job that is cancelled ends its calls.

    Args:
        api: makes the calls.
        most: the most jobs at a time.

    Attributes:
        stopping: whether the worker accepts no more jobs.
        alive: whether it may still do jobs.
    """

    def __init__(self, api: ApiClient, most: int) -> None:
        self.api, self.most = api, most
        self.stopping = False
        self.alive = True
        self._tasks: dict[asyncio.Task[None], Job] = {}

    @property
    def running(self) -> int:
        """Number of jobs that have begun."""
        return len(self._tasks) - self.waiting

    @property
    def waiting(self) -> int:
        """Number of jobs that wait for their first turn."""
        return 0

    async def open(self) -> None:
        """Begin, in the running event loop."""
        await self.api.__aenter__()

    async def problem(self) -> str | None:
        """Return why jobs cannot be done, for the health check; None where they can."""
        return None

    async def close(self, timeout: float) -> bool:
        """End all jobs and close the connections; return whether that took no longer than ``timeout`` seconds."""
        self.cancel()
        tasks = list(self._tasks)
        left = (await asyncio.wait(tasks, timeout=timeout))[1] if tasks else ()
        await self.api.__aexit__()
        self.alive = bool(left)
        return not self.alive

    def refuse(self) -> None:
        """Accept no more jobs."""
        self.stopping = True

    def cancel(self) -> None:
        """Accept no more jobs, and end the others with an error."""
        self.refuse()
        for job in list(self._tasks.values()):
            job.end(shutting_down())
            job.cancel()

    def submit(self, *jobs: Job, accepted: bool = False) -> None:
        """Start jobs, all or none of them, see ``EngineWorker.submit``.

        Raises:
            RequestRefused: there are too many, or the worker is stopping.
        """
        if self.stopping and not accepted:
            raise shutting_down()
        if not accepted and len(self._tasks) + len(jobs) > self.most:
            raise queue_full(self.most)
        for job in jobs:
            task = asyncio.create_task(self._run(job))
            job.on_cancel = task.cancel
            self._tasks[task] = job
            task.add_done_callback(self._tasks.pop)

    async def _run(self, job: Job) -> None:
        """Do a job, and hand over what becomes known of it, or the error."""
        try:
            await self._do(job)
        except Exception as error:  # goes to those who wait
            log.error("the model's server failed: %s", error, exc_info=not isinstance(error, _UPSTREAM))
            job.end(self._refusal(error) if isinstance(error, _UPSTREAM) else error)

    @abstractmethod
    async def _do(self, job: Job) -> None:
        """Do a job, and hand over what becomes known of it.

        Raises:
            CallFailed: the other server has failed.
            ServerRefused: it refuses every call.
        """

    @abstractmethod
    def _refusal(self, error: Exception) -> RequestRefused:
        """Return what a client learns of an error of the other server."""
