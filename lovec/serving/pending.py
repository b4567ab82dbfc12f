"""Requests whose responses are growing."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from lovec.serving.jobs import Job
from lovec.serving.responses import Response


@dataclass(eq=False, slots=True)
class Pending:
    """A request that the worker has been asked for.

    Attributes:
        response: the response to it.
        size: bytes of the request.
        deadline: time of the event loop after which the request fails.
        items: what becomes known, each with the number of its part of the response, see ``Response.parts``: sentences,
            and the end of the part or the error that prevented it.
        jobs: the worker's jobs so far.
        cancelled: whether nobody waits for the response any more.
    """

    response: Response
    size: int
    deadline: float
    items: asyncio.Queue[tuple[int, Any]] = field(default_factory=asyncio.Queue)
    jobs: list[Job] = field(default_factory=list)
    cancelled: bool = False
    _loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.get_running_loop)

    def put(self, part: int, item: Any) -> None:
        """Add what has become known of a part; from any thread."""
        self._loop.call_soon_threadsafe(self.items.put_nowait, (part, item))

    def add(self, jobs: Sequence[Job]) -> None:
        """Add jobs; where nobody waits any more they are cancelled."""
        self.jobs += jobs
        if self.cancelled:
            self.cancel()

    def cancel(self) -> None:
        """Tell the worker that nobody waits for the response any more."""
        self.cancelled = True
        for job in list(self.jobs):
            job.cancel()
