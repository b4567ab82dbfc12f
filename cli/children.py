"""Child processes that share the work of a command: they end with it, however it ends, and name their lines."""

from __future__ import annotations

import io
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from multiprocessing import active_children, connection, get_context, parent_process
from typing import Any

from lovec.core import stopwatch
from lovec.core.signals import Terminated
from lovec.types import LovecError

_GRACE = 20.0  # seconds that a child has, once this process is gone, to end a step and write a checkpoint


@contextmanager
def children(jobs: int, tasks_per_child: int | None = None) -> Iterator[ProcessPoolExecutor]:
    """Yield an executor of child processes, all of which have ended at the end of the block.

    Where the block ends by an error, children finish what was submitted to them. Where it ends by Ctrl-C or a signal,
    they get SIGTERM, at which a training writes a checkpoint; so they do when this process is killed.

    Args:
        jobs: number of children.
        tasks_per_child: after how many tasks a child is replaced by a new one; None is never.

    Raises:
        LovecError: a child has died.
    """
    # Otherwise each process uses all cores, and they slow each other down.
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // jobs)))
    context = get_context("spawn")
    with _Pool(jobs, context, _begin, (jobs,), max_tasks_per_child=tasks_per_child) as pool:
        try:
            yield pool
        except BrokenProcessPool as error:
            raise LovecError(
                "a child process died, perhaps for lack of memory; continue with the same command and fewer --jobs"
            ) from error
        except (KeyboardInterrupt, SystemExit):
            end_children()
            raise
        finally:
            pool.shutdown(cancel_futures=True)


def end_children() -> None:
    """Send SIGTERM to all children of this process."""
    for process in active_children():
        process.terminate()


class _Pool(ProcessPoolExecutor):
    """An executor whose children end at a signal, also where their work has taken the time to save something."""

    def submit(self, work: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Submit work."""
        return super().submit(_work, work, *args, **kwargs)


def _work(work: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Do work and return its result; where a signal has ended it, end this process.

    The executor would take the exception for a result, and wait for more work of a parent that waits for its end.
    """
    try:
        return work(*args, **kwargs)
    except Terminated as end:
        os._exit(128 + end.number)


@contextmanager
def lines_of(name: str) -> Iterator[None]:
    """Begin every line that is printed inside the block with a name, which takes the place of "lovec"."""
    lines = _NamedLines(name)
    with redirect_stdout(lines), redirect_stderr(lines):
        try:
            yield
        finally:
            print()  # ends a last line


class _NamedLines(io.TextIOBase):
    """Writes whole lines to standard error, each at once, so that those of several processes do not mix.

    Args:
        name: what they begin with.
    """

    def __init__(self, name: str) -> None:
        super().__init__()
        self._name = name
        self._rest = ""

    def write(self, text: str) -> int:
        """Write the lines that the text ends; the rest waits for its end."""
        *lines, self._rest = (self._rest + text).split("\n")
        for line in filter(str.strip, lines):
            os.write(2, f"{self._name}: {line.strip().removeprefix('lovec: ')}\n".encode(errors="backslashreplace"))
        return len(text)


def _begin(jobs: int) -> None:
    """Prepare one of several children.

    Ctrl-C, which reaches all processes of a terminal, is left to the parent, which ends its own.
    """
    stopwatch.processes_at_a_time = jobs
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # a parent that is ending ignores it, and children inherit that
    parent = parent_process()
    assert parent is not None
    threading.Thread(target=_end_with, args=(parent.sentinel,), daemon=True).start()


def _end_with(parent: int) -> None:
    """End this process when its parent has ended."""
    connection.wait([parent])
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(_GRACE)
    os._exit(1)
