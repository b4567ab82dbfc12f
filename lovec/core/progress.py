"""What a process is doing, how much of it is done, and lines that say so while it does it; and notes beside them."""

from __future__ import annotations

import os
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType

from lovec.core.shown import visible

EVERY = 10.0
"""Seconds from one line of progress to the next where there is no terminal."""

EVERY_ON_TERMINAL = 0.2
"""The same on a terminal, whose line is replaced."""

QUIET = "LOVEC_QUIET"
"""Environment variable that, unless empty, leaves out progress and notes; processes that are started have it, too."""

_NARROWEST = 80
_BEAT = 0.2  # seconds from one look at what is done to the next
_SHORTEST = 2.0  # seconds; of what has taken less, no line says how long the rest takes


def is_quiet() -> bool:
    """Return whether progress and notes are left out."""
    return bool(os.environ.get(QUIET))


@contextmanager
def quiet() -> Iterator[None]:
    """Leave out progress and notes inside the block, also those of processes that are started there."""
    before = os.environ.get(QUIET)
    os.environ[QUIET] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[QUIET]
        else:
            os.environ[QUIET] = before


def note(line: str, end: str = "\n") -> None:
    """Print a line on standard error that is neither a result nor a warning nor an error; none of it where quiet.

    Args:
        line: the line; it may hold names from files, so characters that steer a terminal are replaced.
        end: what follows it.
    """
    _write(f"{visible(line)}{end}")


def _write(text: str) -> None:
    """Write a text on standard error as it is, unless quiet."""
    if not is_quiet():
        print(text, end="", file=sys.stderr, flush=True)


class Activity:
    """Something that takes time.

    Args:
        what: what is done, such as "validation".
        total: how much of it there is; None where that is not known.
        unit: what is counted, such as "records".
        text: returns the line about it; None makes the line of the other arguments.

    Attributes:
        done: how much of it is done.
    """

    def __init__(
        self, what: str, total: float | None = None, unit: str = "", text: Callable[[], str] | None = None
    ) -> None:
        self.what = what
        self.total = total
        self.unit = unit
        self.done = 0.0
        self._text = text
        self._begin = time.monotonic()

    def advance(self, number: float = 1) -> None:
        """Count more of it as done."""
        self.done += number

    def line(self) -> str:
        """Return what is done, how much of it, for how long, and how long the rest takes."""
        if self._text is not None:
            return self._text()
        if self.total is None and not self.done:
            return f"{self.what}, {clock(time.monotonic() - self._begin)}"
        count = f"{self.what} {self.done:.0f}" + ("" if self.total is None else f"/{self.total:.0f}")
        count += f" {self.unit}" if self.unit else ""
        return count + times(self.done, self.total, time.monotonic() - self._begin)


_current: list[Activity] = []


@contextmanager
def doing(
    what: str, total: float | None = None, unit: str = "", text: Callable[[], str] | None = None
) -> Iterator[Activity]:
    """Let lines of progress speak of something inside the block, behind what is done around it.

    Args:
        what: what is done.
        total: how much of it there is; None where that is not known.
        unit: what is counted.
        text: returns the line about it; None makes the line of the other arguments.
    """
    activity = Activity(what, total, unit, text)
    _current.append(activity)
    try:
        yield activity
    finally:
        _current.remove(activity)


def status() -> str:
    """Return what the process is doing, from the outermost activity to the innermost; "" is nothing in particular."""
    return "; ".join(filter(None, (activity.line() for activity in list(_current))))


def times(done: float, total: float | None, seconds: float) -> str:
    """Return the end of a line: how long something has taken, and how long its rest takes.

    Args:
        done: how much is done.
        total: how much there is; None where that is not known.
        seconds: how long ``done`` has taken.
    """
    if total is None or not 0 < done < total or seconds < _SHORTEST:
        return f", {clock(seconds)}"
    return f", {clock(seconds)}, {clock((total - done) * seconds / done)} left"


def clock(seconds: float) -> str:
    """Return a time as ``0:07``, ``12:30`` or ``3:00:05``, hours first where there are some."""
    whole = round(seconds)
    minutes, rest = divmod(whole, 60)
    return f"{minutes // 60}:{minutes % 60:02}:{rest:02}" if minutes >= 60 else f"{minutes}:{rest:02}"


def rounded_time(seconds: float) -> str:
    """Return a time as it is spoken of: ``0.4 s``, ``15 s``, ``4.5 min``, ``38 min`` or ``3.2 h``."""
    unit, size = ("s", 1.0) if seconds < 90 else ("min", 60.0) if seconds < 90 * 60 else ("h", 3600.0)
    number = seconds / size
    return f"{number:.0f} {unit}" if number >= 10 or number == 0 else f"{number:.2g} {unit}"


class Lines:
    """Writes lines of progress on standard error, from any thread.

    On a terminal there is a single line that fits its width, and what is printed next replaces it.
    """

    def __init__(self) -> None:
        self._written = time.monotonic()
        self._lock = threading.Lock()

    def due(self, every: float, on_terminal: float | None = None) -> bool:
        """Return whether the last line is old enough for another.

        Args:
            every: seconds between lines where there is no terminal.
            on_terminal: seconds between lines of a terminal; None is ``EVERY_ON_TERMINAL``.
        """
        if sys.stderr.isatty():
            every = EVERY_ON_TERMINAL if on_terminal is None else on_terminal
        return time.monotonic() - self._written >= every

    def write(self, line: str, last: bool = False) -> None:
        """Write a line.

        Args:
            line: the line.
            last: whether it stays on a terminal, and may be longer than its width.
        """
        with self._lock:
            self._written = time.monotonic()
            if not sys.stderr.isatty():
                note(f"lovec: {line}")
            elif last:
                _write(f"\r{visible(line)}\033[K\n")
            else:  # the cursor goes back to the beginning, so that a warning replaces the line
                line = line[: max(_NARROWEST, shutil.get_terminal_size().columns) - 1]
                _write(f"\r{visible(line)}\033[K\r")

    def clear(self) -> None:
        """Remove the line of a terminal."""
        if sys.stderr.isatty():
            with self._lock:
                _write("\r\033[K")

    def restart(self) -> None:
        """Count the time to the next line from now on."""
        self._written = time.monotonic()


LINES = Lines()


class Heartbeat:
    """Says what the process is doing, see ``doing``, whenever no line of progress has been written for some time.

    It writes from a thread of its own, so that what takes minutes without reporting anything is spoken of too. Inside
    another heartbeat, the outer one goes on alone.

    Args:
        every: seconds of silence before a line where there is no terminal.
        what: what to speak of where nothing is reported; "" says nothing then.
        on_terminal: seconds of silence before a line of a terminal; None is ``EVERY_ON_TERMINAL``.
    """

    _running = 0

    def __init__(self, every: float = EVERY, what: str = "", on_terminal: float | None = None) -> None:
        self.every = every
        self.on_terminal = on_terminal
        self._what = what
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Heartbeat:
        Heartbeat._running += 1
        if Heartbeat._running == 1:
            LINES.restart()
            self._begin = time.monotonic()
            self._thread = threading.Thread(target=self._beat, daemon=True, name="lovec-heartbeat")
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        Heartbeat._running -= 1
        if self._thread is not None:
            self._ended.set()
            self._thread.join()
            self._thread = None
            LINES.clear()

    def _beat(self) -> None:
        while not self._ended.wait(_BEAT):
            if LINES.due(self.every, self.on_terminal) and (line := status()):
                LINES.write(line)
            elif self._what and LINES.due(self.every, self.every):
                LINES.write(f"{self._what}, {clock(time.monotonic() - self._begin)}")
