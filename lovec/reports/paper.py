"""The numbers that the LoVeC paper prints, to stand beside ours and always marked as the paper's.

They are in paper.json as printed: every table with its key, its model, the labels in the paper's source that it is
taken from, its columns (group, heading, better direction, unit) and its lines (section, name, values).
"""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from lovec.reports.table import Cell, Column, Line, Table
from lovec.types import LovecError

_MARK = "LoVeC paper"


def models() -> tuple[str, ...]:
    """Return the models that the paper has tables of."""
    return tuple(dict.fromkeys(table["model"] for table in _tables()))


def model_named(text: str) -> str:
    """Return the model whose name begins with a text, in upper or lower case, such as "llama".

    Raises:
        LovecError: there is none.
    """
    for model in models():
        if text and model.casefold().startswith(text.casefold()):
            return model
    raise LovecError(f"the paper has no model {text!r}, expected one of {', '.join(models())}, or how it begins")


def paper_table(key: str, model: str) -> Table | None:
    """Return one of the paper's tables; None if it has none for that model.

    Args:
        key: which table, such as "main"; see docs/tables.md.
        model: see ``models``.
    """
    for table in _tables():
        if (table["key"], table["model"]) == (key, model):
            columns = tuple(Column(heading, group, better) for group, heading, better, _ in table["columns"])
            units = [unit for _, _, _, unit in table["columns"]]
            lines = tuple(
                Line(name, tuple(map(_cell, values, units)), section, paper=True)
                for section, name, *values in table["lines"]
            )
            note = f"{_MARK}: as printed there ({', '.join(table['labels'])}), with its data and hardware."
            return Table(f"{key}-paper", f"{_MARK}, {model}: {table['title']}", columns, lines, (note,))
    return None


def with_paper(table: Table, key: str, model: str) -> list[Table]:
    """Return a table of ours with the paper's: one table if they share a column (group and heading), else two.

    Args:
        table: ours.
        key: key of the paper's table, see ``paper_table``.
        model: see ``models``.
    """
    printed = paper_table(key, model)
    if printed is None:
        return [table]
    places = {_column_key(column): place for place, column in enumerate(printed.columns)}
    our_keys = {_column_key(column) for column in table.columns}
    if not our_keys & places.keys():
        return [table, printed]
    new_columns = tuple(column for column in printed.columns if _column_key(column) not in our_keys)
    columns = (*table.columns, *new_columns)
    lines = [replace(line, cells=(*line.cells, *([None] * len(new_columns)))) for line in table.lines]
    for line in printed.lines:
        cells = tuple(line.cells[places[_column_key(c)]] if _column_key(c) in places else None for c in columns)
        section = f"{_MARK}, {model}: {line.section}" if line.section else f"{_MARK}, {model}"
        lines.append(replace(line, cells=cells, section=section))
    return [replace(table, columns=columns, lines=tuple(lines), notes=(*table.notes, *printed.notes))]


@cache
def _tables() -> list[dict[str, Any]]:
    tables: list[dict[str, Any]] = json.loads(Path(__file__).with_name("paper.json").read_text("utf-8"))["tables"]
    return tables


def _cell(printed: str, unit: str) -> Cell:
    """Return the cell of a printed value; shares are shown in percent, as ours are."""
    value = float(printed)
    if unit == "share":
        return Cell(f"{100 * value:.0f}", value)
    return Cell(printed, round(value / 100, 6) if unit == "%" else value)


def _column_key(column: Column) -> tuple[str, str]:
    return column.group.casefold(), column.heading.casefold()
