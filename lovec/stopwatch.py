"""Measure the wall time that named phases take."""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from typing import TypeVar

T = TypeVar("T")

processes_at_a_time = 1
"""How many processes of a command work beside each other, this one included; a command that starts some sets it."""


class Stopwatch:
    """Adds up the seconds spent in named phases.

    Attributes:
        seconds: wall time of each phase so far. Time inside an inner phase counts for that one only, so the values sum
            to the time spent in any phase at all.
    """

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._inner: list[float] = []

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Add the time that the block takes to a phase; phases may be nested."""
        begin = time.monotonic()
        self._inner.append(0.0)
        try:
            yield
        finally:
            spent = time.monotonic() - begin
            outside_inner = spent - self._inner.pop()
            self.seconds[name] = self.seconds.get(name, 0.0) + outside_inner
            if self._inner:
                self._inner[-1] += spent

    def timed(self, name: str, steps: Generator[None, None, T]) -> Generator[None, None, T]:
        """Run a generator step by step, and add the time that its steps take, not the time in between, to a phase."""
        try:
            while True:
                with self.phase(name):
                    try:
                        next(steps)
                    except StopIteration as end:
                        result: T = end.value
                        return result
                yield
        finally:
            with self.phase(name):
                steps.close()
