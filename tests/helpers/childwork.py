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
from lovec.core import stopwatch
from lovec.core.signals import Terminated, terminating
from lovec.types import LovecError

PARTNERS = {"dpo": "grpo", "grpo": "dpo"}
"""Stages that wait for each other, so that both run at the same time."""


def prepare(planned: demo.Stage, folder: Path, settings: dict[str, Any]) -> None:
    """Prepare nothing, and wait until another process has begun the stage."""
    wait_for(folder / f"begun {planned.method}")


def wait_for(file: Path) -> None:
    deadline = time.monotonic() + 120
    while not file.exists():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def train() -> None:
    """Go on until SIGTERM, as a training does: it is noted, and the process ends by it when all is saved."""
    noted: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: noted.append(number))
    deadline = time.monotonic() + 600
    while not noted and time.monotonic() < deadline:
        time.sleep(0.05)
    time.sleep(1)
    raise Terminated.by(signal.SIGTERM)


def stage(planned: demo.Stage, folder: Path, settings: dict[str, Any], begun: bool, named: bool) -> None:
    """Stand in for a stage of the demo: note when it began and ended; fail or wait where a file says so."""
    begin = time.monotonic()
    (folder / f"begun {planned.method}").write_text(str(os.getpid()))
    if (folder / f"fail {planned.method}").exists():
        wait_for(folder / "trains grpo")
        raise LovecError(f"{planned.method} has no room")
    with lines_of(planned.method):
        print("lovec: warning: it works", "again" if begun else "", flush=True)
    if (folder / f"train {planned.method}").exists():
        (folder / f"trains {planned.method}").write_text(str(os.getpid()))
        train()
    if planned.command == "fit" and planned.method in PARTNERS:
        wait_for(folder / f"begun {PARTNERS[planned.method]}")
    result = planned.result(demo.State(folder, settings))
    result.parent.mkdir(parents=True, exist_ok=True)
    result.touch()
    with (folder / "log").open("a") as log:
        log.write(f"{planned.name},{begin},{time.monotonic()},{os.getpid()}\n")


def shared() -> int:
    """Return how many processes this one takes to share the machine."""
    return stopwatch.processes_at_a_time


def sleep(folder: Path, number: int) -> None:
    """Say that this process runs, and sleep."""
    (folder / f"child-{number}").write_text(str(os.getpid()))
    time.sleep(600)


def work(folder: Path, number: int) -> None:
    """Say that this process runs, and train."""
    (folder / f"child-{number}").write_text(str(os.getpid()))
    train()


def idle(folder: Path, number: int) -> None:
    """Say that this process runs, and have no more to do once the other one works."""
    wait_for(folder / f"child-{1 - number}")
    (folder / f"child-{number}").write_text(str(os.getpid()))


def die() -> None:
    """End as a process without memory does."""
    os.kill(os.getpid(), signal.SIGKILL)


def parent(folder: Path, *names: str) -> None:
    """Run two children, as a command does."""
    with terminating(), children(2) as pool:
        for future in [pool.submit(globals()[name], folder, number) for number, name in enumerate(names)]:
            future.result()


if __name__ == "__main__":
    parent(Path(sys.argv[1]), *sys.argv[2:])
