"""What a run over many records prints: lines of progress, and a table at its end."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from lovec.core.notices import counted
from lovec.core.progress import EVERY, EVERY_ON_TERMINAL, LINES, Heartbeat, doing, rounded_time
from lovec.labelling import Counts, Progress

_COUNTS = ("labelled", "labelled in part", "not labelled", "abstained", "failed", "left out")

_SILENCE = 2.0  # seconds without a line on a terminal, after which it is said what the model does


class ProgressLines:
    """Prints lines of progress on standard error: on a terminal, a single one.

    Args:
        stage: name of the stage.
        oracle: what labels sentences; its ``status``, if it has one, ends the line.
    """

    def __init__(self, stage: str, oracle: Any) -> None:
        self._now, self._oracle = Progress(stage, 0, 0, {}), oracle
        self._sentences = 0
        self._begin = self._printed = time.monotonic()
        self._begun = False
        self._written = "", ""  # what the last line said

    def __call__(self, now: Progress) -> None:
        """Take the progress of the stage; a line is printed if the last one is old enough."""
        self._now, self._begun = now, True
        self._print_if_due()

    def count_sentence(self) -> None:
        """Count a tagged sentence, for records that take long."""
        self._sentences += 1
        self._print_if_due()

    def end(self) -> None:
        """Print the last line, unless there was nothing to report, or it stands there already."""
        if self._begun and (sys.stderr.isatty() or self._said() != self._written):
            LINES.write(self._line(), last=True)

    def _print_if_due(self) -> None:
        # By a clock of its own: lines of the heartbeat must not put those off that say how much is done.
        if time.monotonic() - self._printed >= (EVERY_ON_TERMINAL if sys.stderr.isatty() else EVERY):
            self._printed, self._begun = time.monotonic(), True
            LINES.write(self._line())

    def _said(self) -> tuple[str, str]:
        """Return what the line says before the rate, and behind it."""
        now = self._now
        counts = [f"{int(now.counts[name])} {name}" for name in _COUNTS if now.counts.get(name)]
        counts += [counted(self._sentences, "sentence")] if self._sentences else []
        status = f"; {self._oracle.status}" if getattr(self._oracle, "status", None) else ""
        return ", ".join([counted(now.taken, "record"), *counts]), status

    def _rate(self) -> str:
        """Return how fast it goes, with the time that each takes where that is above a second; "" if none is done."""
        now, seconds = self._now, max(time.monotonic() - self._begin, 1e-9)
        done, unit = (self._sentences, "sentence") if self._sentences else (now.taken - now.before, "record")
        if not done:
            return ""
        if done < seconds:
            return f"; {rounded_time(seconds / done)}/{unit}"
        return f"; {counted(round(done / seconds), unit)}/s"

    def _line(self) -> str:
        self._written = listed, status = self._said()
        return f"{self._now.stage}: {listed}{self._rate()}{status}"


@contextmanager
def progress(stage: str, oracle: Any, alone: bool = True) -> Iterator[ProgressLines]:
    """Yield what prints lines of progress; the last one is printed when the block ends, and its line is ended.

    Args:
        stage: name of the stage.
        oracle: what labels sentences.
        alone: whether nothing else is printed on the terminal; if so, what the model does is said, too, while it takes
            long.
    """
    lines = ProgressLines(stage, oracle)
    try:
        with heartbeat(stage, alone):
            yield lines
    finally:
        lines.end()


@contextmanager
def heartbeat(what: str, alone: bool = True) -> Iterator[None]:
    """Say inside the block what is done, whenever nothing was said for ten seconds.

    Args:
        what: what is done, in a word.
        alone: whether nothing else is printed on the terminal.
    """
    if not alone and sys.stderr.isatty():
        yield
        return
    with Heartbeat(EVERY, on_terminal=_SILENCE), doing(what):
        yield


def print_summary(counts: Mapping[str, Counts], asked: Mapping[str, Any]) -> None:
    """Print a table of what the stages counted; nothing where none has begun.

    Args:
        counts: by stage.
        asked: what answers questions or labels sentences, by stage; the table has its ``status``, if it has one.
    """
    if not any(counts.values()):
        return
    from lovec.reports.table import Cell, Column, Line, Table, print_table

    lines = []
    for stage, numbers in counts.items():
        entries = {name: f"{int(value)}" for name, value in numbers.items() if name != "factuality" and value}
        rated = numbers.get("sentences", 0) - numbers.get("sentences without a label", 0)
        if "factuality" in numbers and rated:
            entries["mean factuality"] = f"{numbers['factuality'] / rated:.3f}"
        if getattr(asked.get(stage), "status", None):
            entries["this run"] = str(asked[stage].status)
        for number, (name, value) in enumerate(entries.items()):
            lines.append(Line("" if number else stage, (Cell(name), Cell(value))))
    print_table(Table("stages", "", (Column("what", left=True), Column("number")), tuple(lines), corner="stage"))
