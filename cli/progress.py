"""What a run over many records prints: lines of progress, and a table at its end."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from lovec.labelling import Counts, Progress

_EVERY = 0.2, 30.0  # seconds between lines of progress, on a terminal and elsewhere
_COUNTS = ("labelled", "labelled in part", "not labelled", "abstained", "failed", "left out")


@contextmanager
def progress(stage: str, oracle: Any) -> Iterator[Callable[[Progress], None]]:
    """Yield a function that prints lines of progress on standard error: on a terminal, a single one.

    Args:
        stage: name of the stage.
        oracle: what labels sentences; its ``status``, if it has one, ends the line.
    """
    terminal = sys.stderr.isatty()
    begin = printed = time.monotonic()
    last = ""

    def line(now: Progress) -> str:
        rate = (now.taken - now.before) / max(time.monotonic() - begin, 1e-9)
        counts = [f"{int(now.counts[name])} {name}" for name in _COUNTS if now.counts.get(name)]
        status = f"; {oracle.status}" if getattr(oracle, "status", None) else ""
        return f"{stage}: {', '.join([f'{now.taken} records', *counts])}; {rate:.0f} records/s{status}"

    def notify(now: Progress) -> None:
        nonlocal printed, last
        last = line(now)
        if time.monotonic() - printed >= _EVERY[0 if terminal else 1]:
            printed = time.monotonic()
            print(f"\r{last}\033[K" if terminal else last, end="" if terminal else "\n", file=sys.stderr, flush=True)

    try:
        yield notify
    finally:
        if last:
            print(f"\r{last}\033[K" if terminal else last, file=sys.stderr, flush=True)


def print_summary(counts: Mapping[str, Counts], oracle: Any) -> None:
    """Print a table of what the stages counted; nothing where none has begun.

    Args:
        counts: by stage.
        oracle: what labels sentences; its ``status``, if it has one, is part of the table.
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
        if stage == "label" and getattr(oracle, "status", None):
            entries["this run"] = str(oracle.status)
        for number, (name, value) in enumerate(entries.items()):
            lines.append(Line("" if number else stage, (Cell(name), Cell(value))))
    print_table(Table("stages", "", (Column("what", left=True), Column("number")), tuple(lines), corner="stage"))
