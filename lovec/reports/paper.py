"""The figures that the LoVeC paper prints, to stand beside ours and always marked as the paper's.

They lie in paper.json, as printed: every table with its key here, its model, the labels of the paper's source that it
is taken from, its columns (group, heading, better end, unit) and its lines (section, name, figures).
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
    """Models that the paper has tables of."""
    return tuple(dict.fromkeys(table["model"] for table in _held()["tables"]))


def model_named(text: str) -> str:
    """The model whose name begins so, upper or lower case, such as "llama".

    Raises:
        LovecError: there is none.
    """
    for model in models():
        if text and model.casefold().startswith(text.casefold()):
            return model
    raise LovecError(f"the paper has no model {text!r}, expected one of {', '.join(models())}, or how it begins")


def paper_table(key: str, model: str) -> Table | None:
    """One of the paper's tables; None where it has none for that model.

    Args:
        key: such as "main"; see docs/tables.md.
        model: see ``models``.
    """
    for table in _held()["tables"]:
        if (table["key"], table["model"]) == (key, model):
            columns = tuple(Column(heading, group, better) for group, heading, better, _ in table["columns"])
            units = [unit for _, _, _, unit in table["columns"]]
            lines = tuple(
                Line(name, tuple(map(_cell, figures, units)), section, paper=True)
                for section, name, *figures in table["lines"]
            )
            note = f"{_MARK}: as printed there ({', '.join(table['labels'])}), with its data and hardware."
            return Table(f"{key}-paper", f"{_MARK}, {model}: {table['title']}", columns, lines, (note,))
    return None


def beside(sheet: Table, key: str, model: str) -> list[Table]:
    """A table of ours with the paper's: in one where they share a column (same domain and figure), else two.

    Args:
        sheet: ours.
        key: of the paper's table.
        model: see ``models``.
    """
    theirs = paper_table(key, model)
    if theirs is None:
        return [sheet]
    places = {_name(column): place for place, column in enumerate(theirs.columns)}
    ours = {_name(column) for column in sheet.columns}
    if not ours & places.keys():
        return [sheet, theirs]
    more = tuple(column for column in theirs.columns if _name(column) not in ours)
    columns = (*sheet.columns, *more)
    own = [replace(line, cells=(*line.cells, *([None] * len(more)))) for line in sheet.lines]
    found = []
    for line in theirs.lines:
        cells = tuple(line.cells[places[_name(c)]] if _name(c) in places else None for c in columns)
        section = f"{_MARK}, {model}: {line.section}" if line.section else f"{_MARK}, {model}"
        found.append(replace(line, cells=cells, section=section))
    return [replace(sheet, columns=columns, lines=(*own, *found), notes=(*sheet.notes, *theirs.notes))]


@cache
def _held() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(Path(__file__).with_name("paper.json").read_text(encoding="utf-8"))
    return found


def _cell(printed: str, unit: str) -> Cell:
    """A printed figure; shares are shown in percent, as ours are."""
    value = float(printed)
    if unit == "share":
        return Cell(f"{100 * value:.0f}", value)
    return Cell(printed, round(value / 100, 6) if unit == "%" else value)


def _name(column: Column) -> tuple[str, str]:
    return column.group.casefold(), column.heading.casefold()
