"""Wall time by phase."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager


class Stopwatch:
    """Adds up the seconds spent in named phases.

    Attributes:
        seconds: wall time of every phase so far. Time inside an inner phase counts for that one only, so the values
            sum to the time spent in any phase at all.
    """

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._inner: list[float] = []

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Count the time inside for a phase; phases may be nested."""
        begin = time.monotonic()
        self._inner.append(0.0)
        try:
            yield
        finally:
            spent = time.monotonic() - begin
            own = spent - self._inner.pop()
            self.seconds[name] = self.seconds.get(name, 0.0) + own
            if self._inner:
                self._inner[-1] += spent
