"""Processes that begin as copies of this one: with everything loaded, they start in milliseconds."""

from __future__ import annotations

import faulthandler
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, TextIO

import torch

LIMIT = 600.0
"""How long processes may run that a test waits for, in seconds; without one, a hanging process stops all checks."""


class Fork:
    """A process that runs a function; used like ``subprocess.Popen``.

    It has no threads of the tests, draws random numbers as a new process does, and ends with the function's value as
    its exit code (None is 0), with 1 after an exception, whose traceback is printed.

    Attributes:
        pid: number of the process.
        stdout: what it prints.
        stderr: what it prints on standard error; None where this goes to a given file.
        returncode: its exit code, or minus the signal that ended it; None while it runs.
    """

    def __init__(
        self,
        work: Callable[[], Any],
        environment: Mapping[str, str] | None = None,
        stderr: TextIO | None = None,
        group: int | None = None,
    ) -> None:
        """Start the process.

        Args:
            work: what it runs.
            environment: variables that are added to this process's.
            stderr: an open file for standard error.
            group: the process group to join, 0 for one of its own.
        """
        sys.stdout.flush()
        sys.stderr.flush()
        ours_out, theirs_out = os.pipe()
        ours_err, theirs_err = os.pipe() if stderr is None else (None, os.dup(stderr.fileno()))
        self.returncode: int | None = None
        self.pid = os.fork()
        if self.pid == 0:
            self.become(work, theirs_out, theirs_err, dict(environment or {}), group)
        if group is not None:  # here as well: another process may join the group before this one has run
            with suppress(OSError):
                os.setpgid(self.pid, group or self.pid)
        os.close(theirs_out)
        os.close(theirs_err)
        self.stdout = open(ours_out, encoding="utf-8", errors="replace")
        self.stderr = None if ours_err is None else open(ours_err, encoding="utf-8", errors="replace")

    def __enter__(self) -> Fork:
        return self

    def __exit__(self, *_: object) -> None:
        self.stdout.close()
        if self.stderr is not None:
            self.stderr.close()
        self.wait()

    def poll(self) -> int | None:
        """Return the exit code, or None while the process runs."""
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end and return the exit code.

        Raises:
            TimeoutExpired: the process still runs after ``timeout`` seconds.
        """
        if timeout is None and self.returncode is None:
            self.returncode = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        end = time.monotonic() + (timeout or 0.0)
        while (code := self.poll()) is None:
            if time.monotonic() > end:
                raise subprocess.TimeoutExpired("a fork", timeout or 0.0)
            time.sleep(0.01)
        return code

    def send_signal(self, number: int) -> None:
        """Send a signal, unless the process has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def end(self) -> None:
        """Kill the process and forget what it prints."""
        self.send_signal(signal.SIGKILL)
        self.__exit__()

    @staticmethod
    def become(
        work: Callable[[], Any],
        out: int,
        err: int,
        environment: Mapping[str, str] | None = None,
        group: int | None = None,
    ) -> None:
        """Run a function as a process that prints to two descriptors, and end this process."""
        code = 1
        try:
            if group is not None:
                os.setpgid(0, group)
            os.dup2(out, 1)
            os.dup2(err, 2)
            sys.stdout = open(1, "w", buffering=1, encoding="utf-8", closefd=False)
            sys.stderr = open(2, "w", buffering=1, encoding="utf-8", closefd=False)
            os.environ.update(environment or {})
            signal.signal(signal.SIGINT, signal.default_int_handler)
            faulthandler.register(signal.SIGUSR2, file=2)
            torch.manual_seed(0)
            result = work()
            code = int(result) if result is not None else 0
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else int(end.code is not None)
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)


def run_forks(*works: Callable[[], Any], environments: Sequence[Mapping[str, str]] = ()) -> list[tuple[int, str]]:
    """Run functions at the same time, each in a process of its own; return their exit codes and what they printed.

    Processes that still run after ``LIMIT`` seconds print where each of their threads is, and are killed.
    """
    with tempfile.TemporaryDirectory() as folder:
        files = [open(f"{folder}/{i}", "w+", encoding="utf-8") for i in range(len(works))]
        environments = environments or [{}] * len(works)
        forks = [Fork(w, e, stderr=f) for w, e, f in zip(works, environments, files, strict=True)]
        watch = threading.Timer(LIMIT, _end, [forks])
        watch.start()
        results = []
        for fork, file in zip(forks, files, strict=True):
            printed = fork.stdout.read()
            fork.stdout.close()
            code = fork.wait()
            file.seek(0)
            results.append((code, printed + file.read()))
            file.close()
        watch.cancel()
    return results


def in_child(work: Callable[[], int], meanwhile: Callable[[], None] = lambda: None) -> int:
    """Exit code of work that is done in a process of its own; minus the signal where one ended it."""
    sys.stdout.flush()
    sys.stderr.flush()
    child = os.fork()
    if child == 0:
        code = 97
        try:
            code = work()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
    meanwhile()
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def kill_at_call(owner: Any, name: str, at: int, after: bool = False) -> None:
    """Let this process kill itself when a function of ``owner`` is called for the n-th time, before its work or after.

    Args:
        owner: a module or a class.
        name: the function.
        at: the number of that call, from 1.
        after: whether the call does its work before.
    """
    left, real = at, getattr(owner, name)

    def counted(*args: Any) -> Any:
        nonlocal left
        left -= 1
        result = real(*args) if left or after else None
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return result

    setattr(owner, name, counted)


def _end(forks: Sequence[Fork]) -> None:
    for number in (signal.SIGUSR2, signal.SIGKILL):
        for fork in forks:
            if fork.returncode is None:
                with suppress(ProcessLookupError):
                    os.kill(fork.pid, number)
        time.sleep(2)


def ranks(number: int) -> list[dict[str, str]]:
    """Return the environments of processes that train together, as torchrun sets them."""
    port = str(free_port())
    common = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": str(number), "NODE_RANK": "0"}
    return [{**common, "LOCAL_RANK": str(rank)} for rank in range(number)]


def free_port() -> int:
    """Return a free port that no outgoing connection and no server on port 0 gets in the meantime.

    The system gives those ports from a range of its own; this one lies below it. Each worker of pytest-xdist has
    ports of its own.
    """
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    begin = 20_000 + 500 * (worker % 20)
    for at in range(500):
        port = begin + (os.getpid() + at) % 500
        with socket.socket() as tried:
            tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                tried.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise OSError("no free port")
