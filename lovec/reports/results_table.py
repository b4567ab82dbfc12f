"""The table of results: on a terminal, in Markdown and as JSON.

A row is a mapping with the keys ``method``, ``domain``, ``mode`` ("iterative" or "free-form"), ``level`` ("sentence"
or "passage"), ``readout`` ("stated" or "mean"), ``seed``, ``brier``, ``ece_m``, ``spearman``, ``malformed``,
``mean_confidence``, ``mean_factuality`` (shares and correlations in [-1, 1], None where undefined) and ``n``; and
``auroc`` where labels are hard. Files keep them so; tables show them times 100, as the paper does.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from lovec.reports.table import Cell, Column, Line, Table, markdown, print_table
from lovec.types import LovecError

Row = Mapping[str, Any]

FIGURES = {
    "brier": "BS",
    "ece_m": "ECE-M",
    "spearman": "SC",
    "malformed": "bad tags",
    "mean_confidence": "mean c",
    "mean_factuality": "mean f",
}
"""Figures of a row, all shown in percent, with their headings."""

HARD = {"auroc": "AUROC"}
"""Figures that only hard labels have (short answers: right or wrong); shown where a row has them."""

PLACES = ("domain", "mode", "level", "readout")
"""What tells rows of one method apart."""

_LEGEND = "In %; BS and ECE-M: lower is better, SC: higher; c: confidence, f: factuality; -: undefined"


def print_results(rows: Sequence[Row], title: str = "", console: Console | None = None) -> None:
    """Prints rows, one block for every level and readout; plain text where there is no terminal.

    Args:
        rows: in the order they are shown within a block.
        title: a line above the blocks.
        console: where to print; None is standard output.
    """
    console = console or Console()
    console.print(title, style="bold", markup=False, highlight=False, soft_wrap=True)
    for level, readout, block in _blocks(rows):
        print_table(_sheet(block, _figures(rows), ("domain", "mode"), f"{level} level, {readout} readout"), console)
        console.print()
    console.print(_LEGEND, style="dim", highlight=False, soft_wrap=True)


def markdown_table(rows: Sequence[Row]) -> str:
    """Rows as a Markdown table; columns that say the same everywhere are left out."""
    places = [name for name in PLACES if len({row[name] for row in rows}) > 1]
    return markdown(_sheet(rows, _figures(rows), places), title=False)


def write_results(rows: Sequence[Row], path: str | Path) -> Path:
    """Writes rows as a JSON list, NaN and infinities as null, whole or not at all.

    Returns:
        The path written to.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    clean = [{name: None if _undefined(value) else value for name, value in row.items()} for row in rows]
    part.write_text(json.dumps(clean, indent=1, allow_nan=False) + "\n", encoding="utf-8")
    os.replace(part, path)
    return path


def read_results(path: str | Path) -> list[dict[str, Any]]:
    """Rows that ``write_results`` or ``lovec test`` wrote.

    Raises:
        LovecError: there is no such file, or it holds no list of rows.
    """
    try:
        rows = json.loads(Path(path).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise LovecError(f"there are no results at {path}; `lovec test` writes them") from None
    except ValueError as error:
        raise LovecError(f"{path} is not JSON: {error}") from error
    if not isinstance(rows, list) or not all(isinstance(row, dict) and "method" in row for row in rows):
        raise LovecError(f"{path} holds no list of results, expected a file that `lovec test` wrote")
    return rows


def percent(value: float | None) -> str:
    """A share in percent with one decimal, "-" for None or NaN."""
    return "-" if value is None or _undefined(value) else f"{100 * value:.1f}"


def _sheet(rows: Sequence[Row], figures: Mapping[str, str], places: Sequence[str], title: str = "") -> Table:
    """Rows with what tells them apart in columns of their own, then their figures, then ``n``."""
    columns = [Column(name, left=True) for name in places] + [Column(heading) for heading in figures.values()]
    lines = []
    for row in rows:
        words = [Cell(str(row[name])) for name in places]
        cells = [Cell(percent(row.get(name)), row.get(name)) for name in figures]
        lines.append(Line(row["method"], (*words, *cells, Cell(str(row["n"]), row["n"]))))
    return Table("results", title, (*columns, Column("n")), tuple(lines))


def _figures(rows: Sequence[Row]) -> dict[str, str]:
    """The figures to show: those of every row, and those that only some data have."""
    return FIGURES | {name: heading for name, heading in HARD.items() if any(row.get(name) is not None for row in rows)}


def _blocks(rows: Sequence[Row]) -> list[tuple[str, str, list[Row]]]:
    """Rows by level and readout, blocks and rows in order of appearance."""
    blocks: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        blocks.setdefault((row["level"], row["readout"]), []).append(row)
    return [(level, readout, block) for (level, readout), block in blocks.items()]


def _undefined(value: Any) -> bool:
    return isinstance(value, float) and not math.isfinite(value)
