"""Measure the wall time that named phases take."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager


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
