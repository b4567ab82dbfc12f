"""CPU time, wall time and memory of a piece of work; needs nothing but Python, for peers without lovec."""

from __future__ import annotations

import ctypes
import gc
import resource
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple


class Usage(NamedTuple):
    """What a piece of work took.

    Attributes:
        cpu: user and system time of the process, in seconds.
        wall: seconds that passed.
        memory: growth of the resident memory of the process at its highest, in MiB.
    """

    cpu: float
    wall: float
    memory: float


def used(work: Callable[[], Any]) -> tuple[Any, Usage]:
    """Do some work; return its result and what it took."""
    free_memory()
    before = resident_memory()
    with peak_memory() as peak:
        cpu, wall = time.process_time(), time.perf_counter()
        result = work()
        cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
    return result, Usage(cpu, wall, peak[0] - before)


def resident_memory() -> float:
    """Return the resident memory of this process, in MiB."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * resource.getpagesize() / 2**20


@contextmanager
def peak_memory() -> Iterator[list[float]]:
    """Measure the resident memory of this process 50 times per second inside the block.

    ``getrusage`` would not do: its peak begins with that of the process that started this one.

    Yields:
        A list with one item, the highest value so far, in MiB.
    """
    peak, done = [resident_memory()], threading.Event()

    def watch() -> None:
        while not done.wait(0.02):
            peak[0] = max(peak[0], resident_memory())

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield peak
    finally:
        done.set()
        thread.join()


def free_memory() -> None:
    """Give memory that is no longer used back to the system, so that a later peak is not hidden in it."""
    gc.collect()
    if (trim := getattr(ctypes.CDLL(None), "malloc_trim", None)) is not None:  # of the C library of Linux
        trim(0)
