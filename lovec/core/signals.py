"""What ends a command from outside: SIGTERM, SIGHUP and SIGUSR1 raise an exception, so that everything is closed.

SLURM sends SIGUSR1, or another signal of the job's choice, some time before a time limit.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

SIGNALS = (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)


class Terminated(SystemExit):
    """A signal has ended the process; its exit code is that of a process killed by the signal, such as 143.

    Attributes:
        announced: whether the user was told already.
    """

    announced = False

    @classmethod
    def by(cls, number: int) -> Terminated:
        """Return the exception for a signal."""
        return cls(128 + number)

    @property
    def number(self) -> int:
        """Number of the signal."""
        return int(self.args[0]) - 128


def terminate(number: int, frame: Any) -> None:
    """Handle a signal: raise ``Terminated``, and ignore later ones, so that they do not disturb what is being closed.

    Where Ctrl-C has a handler of its own, as while paid calls are made or requests are answered, that handler is called
    instead: it lets them finish.

    Raises:
        Terminated: nothing else handles the signal.
    """
    interrupt = signal.getsignal(signal.SIGINT)
    if callable(interrupt) and interrupt is not signal.default_int_handler:
        interrupt(number, frame)
        return
    for each in SIGNALS:
        signal.signal(each, signal.SIG_IGN)
    raise Terminated.by(number)


@contextmanager
def terminating() -> Iterator[list[int]]:
    """Handle ``SIGNALS`` with ``terminate`` inside the block; a signal that is ignored stays ignored.

    Yields:
        Numbers of the signals that have arrived.
    """
    arrived: list[int] = []

    def handle(number: int, frame: Any) -> None:
        arrived.append(number)
        terminate(number, frame)

    if threading.current_thread() is not threading.main_thread():  # only the main thread may set handlers
        yield arrived
        return
    previous = {each: signal.getsignal(each) for each in SIGNALS}
    for each, handler in previous.items():
        if handler is not signal.SIG_IGN:
            signal.signal(each, handle)
    try:
        yield arrived
    finally:
        for each, handler in previous.items():
            signal.signal(each, handler)
