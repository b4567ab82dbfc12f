"""Work for child processes: functions that a new process can import."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

from lovec.cli import demo
from lovec.cli.children import children, lines_of
from lovec.signals import terminating
from lovec.types import LovecError


def prepare(*_: object) -> None:
    """Prepare nothing."""


def stage(planned: demo.Stage, folder: Path, settings: dict[str, Any], begun: bool, named: bool) -> None:
    """Stand in for a stage of the demo: note when it began and ended; fail or wait where a file says so."""
    begin = time.monotonic()
    if (folder / f"fail {planned.method}").exists():
        time.sleep(0.5)  # the others have begun by now
        raise LovecError(f"{planned.method} has no room")
    with lines_of(planned.method):
        print("lovec: warning: it works", "again" if begun else "", flush=True)
    waits = (folder / f"wait {planned.method}").exists()
    if waits:
        (folder / f"waits {planned.method}").write_text(str(os.getpid()))
    time.sleep(60 if waits else 0.5)
    result = planned.result(demo.State(folder, settings))
    result.parent.mkdir(parents=True, exist_ok=True)
    result.touch()
    with (folder / "log").open("a") as log:
        log.write(f"{planned.name},{begin},{time.monotonic()},{os.getpid()}\n")


def sleep(folder: Path, number: int) -> None:
    """Say that this process runs, and sleep."""
    (folder / f"child-{number}").write_text(str(os.getpid()))
    time.sleep(60)


def die() -> None:
    """End as a process without memory does."""
    os.kill(os.getpid(), signal.SIGKILL)


def parent(folder: Path) -> None:
    """Run two children that sleep, as a command does."""
    with terminating(), children(2) as pool:
        for future in [pool.submit(sleep, folder, number) for number in range(2)]:
            future.result()


if __name__ == "__main__":
    parent(Path(sys.argv[1]))
