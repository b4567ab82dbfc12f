"""A table, and how it is written: on a terminal, in Markdown, CSV, LaTeX and JSON.

A ``Table`` holds both what is printed and the values behind it: ``Cell.text`` is ready to read (percentages times 100),
``Cell.value`` is as computed. CSV and JSON hold the values, the other formats the text.
"""

from __future__ import annotations

import csv
import io
import json
import math
import re
import textwrap
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from rich.cells import cell_len
from rich.console import Console
from rich.markup import escape
from rich.text import Text

from lovec.core.files import write_text
from lovec.core.shown import one_line
from lovec.core.templates import load_template
from lovec.metrics.table import MetricInfo, finite
from lovec.reports.texts import HERE

if TYPE_CHECKING:
    from lovec.metrics.bootstrap import Interval

_ARROWS = {"lower": "↓", "higher": "↑"}
_GAP = 2  # spaces between the columns of a terminal
_NOTE_WIDTH = 80  # width of the notes below a table that is narrower
_LATEX_DELIMITERS = {  # the usual {{ }} and {% %} are hard to tell from LaTeX's braces
    "variable_start_string": "<<",
    "variable_end_string": ">>",
    "block_start_string": "<%",
    "block_end_string": "%>",
}
_LATEX_ESCAPES = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    '"': "{''}",  # OT1, the default encoding of fonts, has no straight ones
    "[": "{[}",  # after a line break, a bare bracket would be read as an option of it
    "]": "{]}",
    "*": "{*}",
    **{char: f"\\{char}" for char in "%_&#${}"},
}


_MINUS = re.compile(r"(?<![\w.\u2212-])-(?=\d)")


@dataclass(frozen=True)
class Cell:
    """One cell of a table.

    Attributes:
        text: as printed; "-" where the value is undefined.
        value: as computed; None where it is undefined or not a number.
        low: lower end of its interval, in the unit of ``value``.
        high: upper end of its interval.
        interval: the interval as printed, such as "5.1 to 6.3"; "" prints none.
        best: whether it is better than those of all other lines of ours, beyond chance, see ``mark_best``.
    """

    text: str
    value: float | None = None
    low: float | None = None
    high: float | None = None
    interval: str = ""
    best: bool = False

    def shown(self, intervals: bool) -> str:
        """Return the text, with the interval in brackets behind it if there is one and it is asked for."""
        return f"{self.text} ({self.interval})" if intervals and self.interval else self.text


@dataclass(frozen=True)
class Column:
    """The head of a column.

    Attributes:
        heading: name of the column.
        group: what neighbouring columns have in common, printed once above them; "" for nothing.
        better: which direction is better; None where neither is.
        left: whether the column holds words, which are aligned to the left, and not numbers.
    """

    heading: str
    group: str = ""
    better: Literal["lower", "higher"] | None = None
    left: bool = False

    @property
    def marked(self) -> str:
        """The heading with an arrow that says which direction is better."""
        return self.heading + _ARROWS.get(self.better or "", "")


@dataclass(frozen=True)
class Line:
    """One line of a table.

    Attributes:
        name: text of the first column.
        cells: one per column; None where the column does not apply to the line, which prints nothing.
        section: heading above neighbouring lines that share it; "" for none.
        paper: whether the values are those that a paper printed, and not ours.
    """

    name: str
    cells: tuple[Cell | None, ...]
    section: str = ""
    paper: bool = False


@dataclass(frozen=True)
class Table:
    """A table.

    Attributes:
        name: for file names and labels: lower-case letters, digits and hyphens.
        title: what the table shows.
        columns: from left to right, without the first one, which holds the names of the lines.
        lines: from top to bottom.
        notes: sentences printed below the table.
        interval_note: what the intervals are, printed below the table where they are shown.
        corner: heading of the first column.
    """

    name: str
    title: str
    columns: tuple[Column, ...]
    lines: tuple[Line, ...]
    notes: tuple[str, ...] = ()
    interval_note: str = ""
    corner: str = "method"

    @property
    def sections(self) -> list[tuple[str, list[Line]]]:
        """Headings of the sections, each with its lines."""
        return [(name, list(lines)) for name, lines in groupby(self.lines, key=lambda line: line.section)]

    @property
    def groups(self) -> list[tuple[str, int]]:
        """Groups of neighbouring columns with their number of columns; a column without a group ("") is alone."""
        keyed = groupby(enumerate(self.columns), key=lambda item: (item[1].group, item[1].group or item[0]))
        return [(name, len(list(columns))) for (name, _), columns in keyed]

    def footnotes(self, intervals: bool) -> tuple[str, ...]:
        """Return the sentences printed below the table, with or without intervals in it."""
        return (*self.notes, self.interval_note) if intervals and self.interval_note else self.notes


def metric_column(info: MetricInfo, group: str = "") -> Column:
    """Return the column of a metric."""
    return Column(info.heading, group, info.better)


def metric_cell(value: float | None, info: MetricInfo, low: float | None = None, high: float | None = None) -> Cell:
    """Return a cell with a value of a metric, and its interval where there is one.

    Args:
        value: the value; an undefined one (None, NaN, infinite) is printed as "-".
        info: the metric.
        low: lower end of the interval; None or NaN where there is none.
        high: its upper end, likewise.
    """
    if low is None or high is None or math.isnan(low) or math.isnan(high):
        return Cell(info.text(value), finite(value))
    return Cell(info.text(value), finite(value), low, high, f"{info.text(low)} to {info.text(high)}")


def interval_cell(interval: Interval | None, info: MetricInfo) -> Cell:
    """Return a cell with a value of a metric and its interval; None is a value that is not known."""
    if interval is None:
        return metric_cell(None, info)
    return metric_cell(interval.value, info, interval.low, interval.high)


def legend(metrics: Iterable[MetricInfo]) -> str:
    """Return the unit of the columns of metrics and which direction is better, without a full stop.

    For example "In %; lower is better: BS, ECE-M; higher: SC".
    """
    metrics = list(metrics)
    numbers = [info.heading for info in metrics if info.unit == "number"]
    parts = [f"In % except {', '.join(numbers)}" if numbers else "In %"]
    for better, words in (("lower", "lower is better"), ("higher", "higher")):
        if headings := [info.heading for info in metrics if info.better == better]:
            parts.append(f"{words}: {', '.join(headings)}")
    return "; ".join(parts)


Clear: TypeAlias = Callable[[int, int, int], bool]
"""Says of two lines and a column, by their places in a table, whether chance can explain their difference: False."""


def mark_best(table: Table, groups: Sequence[str] | None = None, clear: Clear | None = None) -> Table:
    """Return the table with the best value of a column marked where it is clearly better than all others.

    Lines of the paper are not compared. Values that print the same are never told apart.

    Args:
        table: with nothing marked.
        groups: one per line; only lines of the same group are compared. None compares all lines.
        clear: whether the interval of the difference of two lines (their places, and that of the column) excludes 0.
            None asks whether the intervals of the two cells are disjoint, which is stricter.
    """
    groups = [""] * len(table.lines) if groups is None else groups
    clear = clear or partial(_disjoint, table)
    best: set[tuple[int, int]] = set()
    for group in dict.fromkeys(groups):
        ours = [at for at, line in enumerate(table.lines) if not line.paper and groups[at] == group]
        for place, column in enumerate(table.columns):
            valued = [(at, cell) for at in ours if (cell := table.lines[at].cells[place]) and cell.value is not None]
            ranked = sorted(valued, key=lambda pair: pair[1].value or 0.0, reverse=column.better == "higher")
            if column.better is None or len(ranked) < 2:
                continue
            (first, top), *others = ranked  # not the next only: one that is worse on average may vary more
            if all(top.text != other.text and clear(first, at, place) for at, other in others):
                best.add((first, place))
    lines = (
        replace(line, cells=tuple(cell and replace(cell, best=(at, p) in best) for p, cell in enumerate(line.cells)))
        for at, line in enumerate(table.lines)
    )
    return replace(table, lines=tuple(lines))


def _disjoint(table: Table, first: int, second: int, place: int) -> bool:
    """Return whether the intervals of two cells are disjoint; cells without an interval are not."""
    one, two = table.lines[first].cells[place], table.lines[second].cells[place]
    if one is None or two is None or None in (one.low, one.high, two.low, two.high):
        return False
    return (one.high or 0.0) < (two.low or 0.0) or (two.high or 0.0) < (one.low or 0.0)


def transposed(table: Table, corner: str = "") -> Table:
    """Return a table with lines and columns exchanged: few methods and many metrics read better so.

    Groups of columns become sections of lines, and the other way round.

    Args:
        table: with whatever is marked in it.
        corner: heading of the new first column.
    """
    columns = tuple(Column(line.name, line.section) for line in table.lines)
    lines = tuple(
        Line(column.heading, tuple(line.cells[place] for line in table.lines), column.group)
        for place, column in enumerate(table.columns)
    )
    return replace(table, columns=columns, lines=lines, corner=corner)


def print_table(table: Table, console: Console | None = None, intervals: bool = False) -> None:
    """Print a table: sections and the best values in bold, lines of the paper dim; plain text without a terminal.

    Nothing is cut or folded: a line that is wider than the terminal wraps there.

    Args:
        table: what to print.
        console: where to print it; None is standard output.
        intervals: whether intervals are printed behind their values.
    """
    console = console or Console()
    markup = _console_markup(table, intervals, console.encoding.lower().startswith("utf"))
    for line in Text.from_markup(markup, emoji=False).split():
        line.rstrip()
        console.print(line, soft_wrap=True, highlight=False)


def markdown(table: Table, intervals: bool = False, title: bool = True) -> str:
    """Return a table in Markdown, the best values in bold, lines of the paper in italics.

    Args:
        table: what to write.
        intervals: whether intervals are written behind their values.
        title: whether the title is written above the table and the notes below it.
    """
    template = load_template(HERE / "table.md.j2", filters={"escaped": _markdown_escaped})
    return template.render(table=table, intervals=intervals, title=title)


def csv_text(table: Table) -> str:
    """Return a table as CSV with values as computed; the ends of intervals, where there are any, have own columns.

    The first columns are ``section``, the corner and ``source`` ("ours" or "paper"). What is undefined or does not
    apply is empty.
    """
    headings, widths = ["section", table.corner, "source"], []
    for place, column in enumerate(table.columns):
        cells = [line.cells[place] for line in table.lines]
        name = f"{column.group} {column.heading}".strip()
        widths.append(3 if any(cell is not None and cell.low is not None for cell in cells) else 1)
        headings += [name, f"{name} low", f"{name} high"][: widths[-1]]
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(headings)
    for line in table.lines:
        row: list[Any] = [line.section, line.name, "paper" if line.paper else "ours"]
        for cell, width in zip(line.cells, widths, strict=True):
            numbers = [finite(number) for number in (cell.value, cell.low, cell.high)] if cell else [None] * 3
            words = cell.text if cell and cell.text != "-" else ""
            row += [words if numbers[0] is None else numbers[0], *numbers[1:width]]
        writer.writerow(row)
    return out.getvalue()


def latex(table: Table, intervals: bool = False) -> str:
    """Return a table for LaTeX, which needs the package booktabs; sections as in the paper, the best values in bold.

    The caption holds the title and the notes, the label is "tab:" and the table's name.

    Args:
        table: what to write.
        intervals: whether intervals are written below their values, in small print.
    """
    title = table.title if table.title.endswith((".", "!", "?")) else f"{table.title}."
    caption = " ".join([title, *table.footnotes(intervals)])
    filters = {"escaped": latex_escaped, "number": _latex_number}
    template = load_template(HERE / "table.tex.j2", filters=filters, **_LATEX_DELIMITERS)
    return template.render(table=table, intervals=intervals, caption=caption)


def latex_escaped(text: str) -> str:
    """Return any text for LaTeX's text mode, on one line and without control characters."""
    return "".join(_LATEX_ESCAPES.get(char, char) for char in " ".join(text.split()) if char.isprintable())


def real_minus(text: str) -> str:
    """Return a text with a minus sign (U+2212) in place of each hyphen that begins a number."""
    return _MINUS.sub("\u2212", text)


def _latex_number(text: str) -> str:
    return _MINUS.sub(lambda _: "$-$", latex_escaped(text))


def json_text(table: Table) -> str:
    """Return a table as JSON, with fields named as in the classes here; what is not finite is null."""

    def all_finite(fields: list[tuple[str, Any]]) -> dict[str, Any]:
        return {name: finite(value) if isinstance(value, float) else value for name, value in fields}

    return json.dumps(asdict(table, dict_factory=all_finite), indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def write_table(table: Table, folder: Path, intervals: bool = True) -> None:
    """Write a table as NAME.csv, NAME.json, NAME.md and NAME.tex.

    Args:
        table: what to write.
        folder: folder of the files.
        intervals: whether intervals are written behind their values in the last two; the first two always have them.
    """
    texts = {
        "csv": csv_text(table),
        "json": json_text(table),
        "md": markdown(table, intervals),
        "tex": latex(table, intervals),
    }
    for suffix, text in texts.items():
        write_text(folder / f"{table.name}.{suffix}", text, errors="replace")


def _console_markup(table: Table, intervals: bool, unicode: bool) -> str:
    """Return a table in rich's console markup; ``unicode`` says whether the terminal can show more than ASCII."""
    table = _on_lines(table)
    columns = (Column(table.corner, left=True), *table.columns)
    headings = [column.marked if unicode else column.heading for column in columns]
    rows = [[line.name, *(cell.shown(intervals) if cell else "" for cell in line.cells)] for line in table.lines]
    widths = [max(map(cell_len, texts)) for texts in zip(headings, *rows, strict=True)]
    dash, gap = "─" if unicode else "-", " " * _GAP

    def padded(text: str, place: int) -> str:
        space = " " * (widths[place] - cell_len(text))
        return escape(text + space if columns[place].left else space + text)

    groups, last = " " * widths[0], 0
    for group, width in table.groups:
        last += width
        room = sum(widths[last - width + 1 : last + 1]) + _GAP * (width - 1)
        widths[last] += max(0, cell_len(group) - room)
        ruled = f" {group} ".center(room, dash) if group and cell_len(group) + 6 <= room else group
        groups += gap + ruled + " " * (room - cell_len(ruled))
    rule = dash * (sum(widths) + _GAP * (len(widths) - 1))
    width = max(_NOTE_WIDTH, len(rule))
    notes = [part for note in table.footnotes(intervals) for part in textwrap.wrap(note, width)]
    template = load_template(HERE / "table.txt.j2", filters={"escaped": escape, "padded": padded})
    return template.render(
        table=table, intervals=intervals, headings=headings, groups=groups, gap=gap, rule=rule, notes=notes
    )


def _on_lines(table: Table) -> Table:
    """Return a table whose texts are one line each, without characters that steer a terminal: names are from files."""

    def plain(cell: Cell | None) -> Cell | None:
        return cell and replace(cell, text=one_line(cell.text), interval=one_line(cell.interval))

    return replace(
        table,
        title=one_line(table.title),
        corner=one_line(table.corner),
        columns=tuple(replace(c, heading=one_line(c.heading), group=one_line(c.group)) for c in table.columns),
        lines=tuple(
            replace(line, name=one_line(line.name), cells=tuple(map(plain, line.cells)), section=one_line(line.section))
            for line in table.lines
        ),
        notes=tuple(map(one_line, table.notes)),
        interval_note=one_line(table.interval_note),
    )


def _markdown_escaped(text: str) -> str:
    return re.sub(r"([\\`*_\[\]<>|])", r"\\\1", " ".join(text.split()))
