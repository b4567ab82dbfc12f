"""The table of a sweep: a line for every variation of a recipe, its evaluation modes side by side.

Rows are those of ``lovec.reports.results_table``; ``method`` is the variation, and ``seconds`` says how long its run took.
There is a row for every seed; lines give means over them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from lovec.reports.results_table import FIGURES, Row, percent

SHOWN = ("brier", "ece_m", "spearman", "malformed")
"""Figures of the table: of sentences and their stated scores."""

_LEGEND = "In %; BS and ECE-M: lower is better, SC: higher; -: undefined; s: seconds of a run"
_WIDTH = 100


def print_variations(rows: Sequence[Row], title: str = "", console: Console | None = None) -> None:
    """Prints the table; plain text where there is no terminal.

    Args:
        rows: in the order they are shown.
        title: a line above the table.
        console: where to print; None is standard output, wide enough that no digit is cut.
    """
    lines, modes = list(_lines(rows)), _modes(rows)
    table = Table(box=box.SIMPLE_HEAD, padding=0, pad_edge=False, collapse_padding=False)
    table.add_column("variation", no_wrap=True)
    for mode in modes:
        for name in SHOWN:
            table.add_column(f"{mode if name == SHOWN[0] else ''}\n{FIGURES[name]}", justify="right", no_wrap=True)
    table.add_column("\ns", justify="right", no_wrap=True)
    for line in lines:
        table.add_row(*line)
    console = console or Console(width=max(_WIDTH, Console().width, 8 * len(lines[0]) + max(len(x[0]) for x in lines)))
    console.print(title, style="bold")
    console.print(table)
    console.print(legend(rows), style="dim")


def markdown_variations(rows: Sequence[Row]) -> str:
    """The table in Markdown, without its legend."""
    modes = _modes(rows)
    heads = [f"{mode}: {FIGURES[name]}" if name == SHOWN[0] else FIGURES[name] for mode in modes for name in SHOWN]
    rule = ["---", *["---:"] * (len(heads) + 1)]
    return "\n".join(f"| {' | '.join(line)} |" for line in [["variation", *heads, "s"], rule, *_lines(rows)]) + "\n"


def legend(rows: Sequence[Row]) -> str:
    """What the figures of the table are, in one line."""
    seeds = len({row["seed"] for row in rows})
    return _LEGEND + (f"; means over {seeds} seeds, range of the BS in brackets" if seeds > 1 else "")


def _lines(rows: Sequence[Row]) -> Iterator[list[str]]:
    """Cells of every variation, in order of appearance."""
    shown = [row for row in rows if row["level"] == "sentence" and row["readout"] == "stated"]
    for method in dict.fromkeys(row["method"] for row in shown):
        own = [row for row in shown if row["method"] == method]
        cells = [cell for mode in _modes(rows) for cell in _figures([row for row in own if row["mode"] == mode])]
        yield [method, *cells, f"{_mean([row['seconds'] for row in own]):.0f}"]


def _modes(rows: Sequence[Row]) -> list[str]:
    return list(dict.fromkeys(row["mode"] for row in rows))


def _figures(rows: Sequence[Row]) -> list[str]:
    """Means over seeds, and the range of the first figure where it can be seen."""
    cells = []
    for name in SHOWN:
        values: list[Any] = [row[name] for row in rows if row[name] is not None]
        low, high = (percent(find(values)) if values else "-" for find in (min, max))
        spread = f" ({low}-{high})" if name == SHOWN[0] and low != high else ""
        cells.append(percent(_mean(values)) + spread)
    return cells


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else float("nan")
