"""What a labelling run shows: lines of progress, and a table at its end."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lovec.labelling import Counts, Progress

_EVERY = 0.2, 30.0  # seconds between lines of progress, on a terminal and elsewhere
_SHOWN = ("labelled", "labelled in part", "not labelled", "abstained", "failed", "left out")


@contextmanager
def progress(word: str, oracle: Any) -> Iterator[Callable[[Progress], None]]:
    """Inside: lines of progress on standard error (a single one on a terminal), with what the oracle says of itself."""
    terminal = sys.stderr.isatty()
    begin = shown = time.monotonic()
    last = ""

    def line(now: Progress) -> str:
        rate = (now.taken - now.before) / max(time.monotonic() - begin, 1e-9)
        figures = [f"{int(now.counts[name])} {name}" for name in _SHOWN if now.counts.get(name)]
        said = f"; {oracle.status}" if getattr(oracle, "status", None) else ""
        return f"{word}: {', '.join([f'{now.taken} records', *figures])}; {rate:.0f} records/s{said}"

    def notify(now: Progress) -> None:
        nonlocal shown, last
        last = line(now)
        if time.monotonic() - shown >= _EVERY[0 if terminal else 1]:
            shown = time.monotonic()
            print(f"\r{last}\033[K" if terminal else last, end="" if terminal else "\n", file=sys.stderr, flush=True)

    try:
        yield notify
    finally:
        if last:
            print(f"\r{last}\033[K" if terminal else last, file=sys.stderr, flush=True)


def print_summary(counts: Mapping[str, Counts], oracle: Any) -> None:
    """Prints a table of what the stages did; nothing where none has begun."""
    if not any(counts.values()):
        return
    from rich import box
    from rich.console import Console
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1), pad_edge=False)
    for heading in ("stage", "what", "number"):
        table.add_column(heading, justify="right" if heading == "number" else "left")
    for stage, figures in counts.items():
        total = figures.get("factuality")
        shown = {name: f"{int(value)}" for name, value in figures.items() if name != "factuality" and value}
        judged = figures.get("sentences", 0) - figures.get("sentences without a label", 0)
        if total is not None and judged:
            shown["mean factuality"] = f"{total / judged:.3f}"
        if stage == "label" and getattr(oracle, "status", None):
            shown["this run"] = str(oracle.status)
        for number, (name, value) in enumerate(shown.items()):
            table.add_row("" if number else stage, name, value)
    Console(width=max(100, Console().width), highlight=False).print(table)
