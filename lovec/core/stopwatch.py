"""Measure the wall time and the processor time that named phases take."""

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
        cpu_seconds: the same in processor time of this process, of all its threads together; unlike wall time it does
            not grow where other programs use the machine.
    """

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self.cpu_seconds: dict[str, float] = {}
        self._inner: list[tuple[float, float]] = []

    def add(self, name: str, seconds: float, cpu_seconds: float) -> None:
        """Add time to a phase that was measured elsewhere."""
        for clock, spent in ((self.seconds, seconds), (self.cpu_seconds, cpu_seconds)):
            clock[name] = clock.get(name, 0.0) + spent

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Add the time that the block takes to a phase; phases may be nested."""
        begin, cpu_begin = time.monotonic(), time.process_time()
        self._inner.append((0.0, 0.0))
        try:
            yield
        finally:
            spent, cpu_spent = time.monotonic() - begin, time.process_time() - cpu_begin
            inner, cpu_inner = self._inner.pop()
            self.add(name, spent - inner, cpu_spent - cpu_inner)
            if self._inner:
                outer, cpu_outer = self._inner[-1]
                self._inner[-1] = outer + spent, cpu_outer + cpu_spent

    def timed(self, name: str, items: Generator[T, None, None]) -> Generator[T, None, None]:
        """Yield the items of a generator, and add the time that it takes, not the time in between, to a phase."""
        try:
            while True:
                with self.phase(name):
                    try:
                        item = next(items)
                    except StopIteration:
                        return
                yield item
        finally:
            with self.phase(name):
                items.close()
