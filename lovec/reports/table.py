"""A table of a report, and how it is shown: on a terminal, in Markdown, CSV, LaTeX and JSON.

A ``Table`` holds what is printed and the raw figures behind it: ``Cell.text`` is ready to read (shares times 100),
``Cell.value`` is as computed. CSV and JSON give the raw figures, the others the text.
"""

from __future__ import annotations

import csv
import io
import json
import math
import re
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import groupby, product
from typing import Any, Literal

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

_ARROWS = {"lower": "↓", "higher": "↑"}
_TEX_ARROWS = {"lower": r"$\downarrow$", "higher": r"$\uparrow$"}
_GAP = 2
_NOTE = 80  # columns that notes may take below a narrower table
_TEX = {
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


@dataclass(frozen=True)
class Cell:
    """One figure.

    Attributes:
        text: as printed; "-" where the figure is undefined.
        value: raw; None where it is undefined or no number.
        low: lower end of its interval, in the unit of ``value``.
        high: upper end.
        span: the interval as printed, such as "5.1-6.3"; "" without one.
        best: whether no other line of ours has a better one.
    """

    text: str
    value: float | None = None
    low: float | None = None
    high: float | None = None
    span: str = ""
    best: bool = False


@dataclass(frozen=True)
class Column:
    """What a column holds.

    Attributes:
        heading: its own name.
        group: what neighbouring columns have in common, printed once above them; "" for none.
        better: which end is better; None where neither is.
        left: whether it holds words, set to the left, rather than numbers.
    """

    heading: str
    group: str = ""
    better: Literal["lower", "higher"] | None = None
    left: bool = False


@dataclass(frozen=True)
class Line:
    """A line of a table.

    Attributes:
        name: what stands in front.
        cells: one for every column; None where the column does not apply, which prints nothing.
        section: neighbouring lines of one section stand under its name; "" for none.
        paper: whether these are figures that a paper printed, not ours.
    """

    name: str
    cells: tuple[Cell | None, ...]
    section: str = ""
    paper: bool = False


@dataclass(frozen=True)
class Table:
    """A table.

    Attributes:
        name: short, for file names and labels: lower-case letters, digits and hyphens.
        title: what it shows.
        columns: from left to right, without that of the names.
        lines: from top to bottom.
        notes: sentences that stand below.
        spans: what the intervals are, which stands below where they are shown.
        corner: heading of the names.
    """

    name: str
    title: str
    columns: tuple[Column, ...]
    lines: tuple[Line, ...]
    notes: tuple[str, ...] = ()
    spans: str = ""
    corner: str = "method"

    def below(self, intervals: bool) -> tuple[str, ...]:
        """What stands below, with or without intervals in the table."""
        return (*self.notes, self.spans) if intervals and self.spans else self.notes


def mark_best(sheet: Table, groups: Sequence[str] | None = None) -> Table:
    """The sheet with the best of every column marked, and all that print the same; the paper's lines stay out.

    Args:
        sheet: with nothing marked.
        groups: one for every line; only lines of one group are compared. None compares all. Where all values are the
            same, none is best.
    """
    groups = [""] * len(sheet.lines) if groups is None else groups
    lines = [list(line.cells) for line in sheet.lines]
    for (place, column), group in product(enumerate(sheet.columns), dict.fromkeys(groups)):
        own = [
            cells for cells, line, of in zip(lines, sheet.lines, groups, strict=True) if of == group and not line.paper
        ]
        found = {cell.value: cell.text for cells in own if (cell := cells[place]) and cell.value is not None}
        if column.better is None or len(found) < 2:
            continue
        best = found[min(found) if column.better == "lower" else max(found)]
        for cells in own:
            cell = cells[place]
            if cell is not None:
                cells[place] = replace(cell, best=cell.text == best)
    marked = [replace(line, cells=tuple(cells)) for line, cells in zip(sheet.lines, lines, strict=True)]
    return replace(sheet, lines=tuple(marked))


def print_table(sheet: Table, console: Console | None = None, intervals: bool = False) -> None:
    """Prints a table: sections and the best in bold, the paper's lines dim; plain text where there is no terminal.

    Lines of a table are never cut or folded: one that is wider than the terminal wraps there.

    Args:
        sheet: what to print.
        console: where; None is standard output.
        intervals: whether intervals stand behind their figures.
    """
    console = console or Console()
    for line in _drawn(sheet, intervals, console.encoding.lower().startswith("utf")):
        console.print(line, soft_wrap=True, highlight=False)


def markdown(sheet: Table, intervals: bool = False, title: bool = True) -> str:
    """A table in Markdown, between its title and its notes; the best in bold, the paper's lines in italics.

    Args:
        sheet: what to write.
        intervals: whether intervals stand behind their figures.
        title: whether title and notes are written.
    """

    def escaped(text: str) -> str:
        return re.sub(r"([\\`*_\[\]<>|])", r"\\\1", " ".join(text.split()))

    def shown(line: Line, cell: Cell | None) -> str:
        if cell is None:
            return ""
        text = escaped(_text(cell, intervals))
        return f"**{text}**" if cell.best else f"*{text}*" if line.paper and text else text

    heads = [sheet.corner, *(f"{column.group}: {_heading(column)}" if column.group else _heading(column)
                             for column in sheet.columns)]  # fmt: skip
    body = [[escaped(head) for head in heads], ["---", *("---" if c.left else "---:" for c in sheet.columns)]]
    for section, lines in groupby(sheet.lines, key=lambda line: line.section):
        if section:
            body.append([f"**{escaped(section)}**", *([""] * len(sheet.columns))])
        for line in lines:
            name = escaped(line.name)
            body.append([f"*{name}*" if line.paper else name, *(shown(line, cell) for cell in line.cells)])
    table = "\n".join(f"| {' | '.join(cells)} |" for cells in body) + "\n"
    if not title:
        return table
    notes = "".join(f"\n{escaped(note)}\n" for note in sheet.below(intervals))
    return f"**{escaped(sheet.title)}**\n\n{table}{notes}"


def csv_text(sheet: Table) -> str:
    """A table as CSV with raw figures, and the ends of intervals in columns of their own where there are any.

    The first columns are ``section``, the corner and ``source`` ("ours" or "paper"). What is undefined or does not
    apply is empty.
    """
    spans = [
        any((cell := line.cells[place]) is not None and cell.low is not None for line in sheet.lines)
        for place in range(len(sheet.columns))
    ]
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    heads = ["section", sheet.corner, "source"]
    for column, span in zip(sheet.columns, spans, strict=True):
        name = f"{column.group} {column.heading}".strip()
        heads += [name, *([f"{name} low", f"{name} high"] if span else [])]
    writer.writerow(heads)
    for line in sheet.lines:
        row: list[Any] = [line.section, line.name, "paper" if line.paper else "ours"]
        for cell, span in zip(line.cells, spans, strict=True):
            cell = cell or Cell("")
            words = "" if cell.text == "-" else cell.text
            row.append(words if _finite(cell.value) is None else cell.value)
            row += [_finite(cell.low), _finite(cell.high)] if span else []
        writer.writerow(row)
    return out.getvalue()


def latex(sheet: Table, intervals: bool = False) -> str:
    """A table for LaTeX, which needs the package booktabs; sections as in the paper, the best in bold.

    The caption holds title and notes, the label is "tab:" and the sheet's name.

    Args:
        sheet: what to write.
        intervals: whether intervals stand below their figures, in small print.
    """
    columns = sheet.columns
    width = len(columns) + 1
    out = [r"\begin{table*}[t]", r"\centering", r"\footnotesize", r"\setlength{\tabcolsep}{4pt}"]
    out += [rf"\begin{{tabular}}{{l{''.join('l' if column.left else 'r' for column in columns)}}}", r"\toprule"]
    runs = list(_groups(columns))
    if any(group for group, _, _ in runs):
        heads = [
            rf"\multicolumn{{{end - start}}}{{c}}{{\textbf{{{tex(group)}}}}}" if group else ""
            for group, start, end in runs
        ]
        rules = [rf"\cmidrule(lr){{{start + 2}-{end + 1}}}" for group, start, end in runs if group]
        out += [f" & {' & '.join(heads)} \\\\", " ".join(rules)]
    heads = [rf"\textbf{{{tex(c.heading)}}}{_TEX_ARROWS.get(c.better or '', '')}" for c in columns]
    out.append(rf"\textbf{{{tex(sheet.corner)}}} & {' & '.join(heads)} \\")
    for section, lines in groupby(sheet.lines, key=lambda line: line.section):
        out.append(r"\midrule")
        if section:
            out += [rf"\multicolumn{{{width}}}{{c}}{{\textbf{{{tex(section)}}}}} \\", r"\midrule"]
        for line in lines:
            name = rf"\textit{{{tex(line.name)}}}" if line.paper else tex(line.name)
            out.append(rf"{name} & {' & '.join(_tex_cell(line, cell, intervals) for cell in line.cells)} \\")
    caption = " ".join([_sentence(tex(sheet.title)), *(tex(note) for note in sheet.below(intervals))])
    out += [r"\bottomrule", r"\end{tabular}", rf"\caption{{{caption}}}", rf"\label{{tab:{sheet.name}}}"]
    return "\n".join([*out, r"\end{table*}"]) + "\n"


def tex(text: str) -> str:
    """Any text for LaTeX's text mode, on one line and without control characters."""
    return "".join(_TEX.get(char, char) for char in " ".join(text.split()) if char.isprintable())


def to_json(sheet: Table) -> dict[str, Any]:
    """A table as JSON data, fields named as in the classes here; what is not finite is None."""
    found = asdict(sheet)
    for line in found["lines"]:
        for cell in line["cells"]:
            if cell is not None:
                cell.update({name: _finite(cell[name]) for name in ("value", "low", "high")})
    return found


def json_text(sheet: Table) -> str:
    """A table as JSON text."""
    return json.dumps(to_json(sheet), indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def _drawn(sheet: Table, intervals: bool, unicode: bool) -> Iterator[Text]:
    """The lines of a terminal; ``unicode``: whether it has more than ASCII."""
    heads = [_heading(column) if unicode else column.heading for column in sheet.columns]
    texts = [[_text(cell, intervals) for cell in line.cells] for line in sheet.lines]
    first = max(cell_len(name) for name in (sheet.corner, *(line.name for line in sheet.lines)))
    widths = [max(cell_len(text) for text in column) for column in zip(heads, *texts, strict=True)]
    for group, start, end in _groups(sheet.columns):
        short = cell_len(group) - sum(widths[start:end]) - _GAP * (end - start - 1)
        widths[end - 1] += max(0, short)
    dash = "─" if unicode else "-"
    rule = Text(dash * (first + sum(_GAP + width for width in widths)), style="dim")
    yield Text(sheet.title, style="bold")
    if any(column.group for column in sheet.columns):
        yield _above(sheet.columns, first, widths, dash)
    yield _row(sheet, first, widths, sheet.corner, [(head, "bold") for head in heads], "bold")
    yield rule
    section = ""
    for line, cells in zip(sheet.lines, texts, strict=True):
        if line.section != section:
            section = line.section
            yield Text(section, style="bold italic")
        plain = "dim" if line.paper else ""
        styles = ["bold" if cell is not None and cell.best else plain for cell in line.cells]
        yield _row(sheet, first, widths, line.name, list(zip(cells, styles, strict=True)), plain)
    yield rule
    for note in sheet.below(intervals):
        yield from (Text(part, style="dim") for part in textwrap.wrap(note, max(_NOTE, len(rule))))


def _above(columns: Sequence[Column], first: int, widths: Sequence[int], dash: str) -> Text:
    """The line of groups, each over its columns."""
    line = " " * first
    for group, start, end in _groups(columns):
        room = sum(widths[start:end]) + _GAP * (end - start - 1)
        ruled = group and cell_len(group) + 6 <= room
        line += " " * _GAP + (f" {group} ".center(room, dash) if ruled else _padded(group, room, True))
    return Text(line.rstrip())


def _row(
    sheet: Table, first: int, widths: Sequence[int], name: str, cells: Sequence[tuple[str, str]], style: str
) -> Text:
    """One line of the terminal from its name and its cells (text, style)."""
    row = Text()
    row.append(_padded(name, first, True), style=style)
    for (text, of_cell), column, width in zip(cells, sheet.columns, widths, strict=True):
        row.append(" " * _GAP)
        row.append(_padded(text, width, column.left), style=of_cell)
    row.rstrip()
    return row


def _padded(text: str, width: int, left: bool) -> str:
    space = " " * (width - cell_len(text))
    return text + space if left else space + text


def _groups(columns: Sequence[Column]) -> Iterator[tuple[str, int, int]]:
    """Group, first place and place after the last of columns that stand together; each alone where it has none."""
    start = 0
    for (group, _), run in groupby(enumerate(columns), key=lambda one: (one[1].group, one[1].group or one[0])):
        end = start + len(list(run))
        yield group, start, end
        start = end


def _heading(column: Column) -> str:
    return column.heading + _ARROWS.get(column.better or "", "")


def _text(cell: Cell | None, intervals: bool) -> str:
    if cell is None:
        return ""
    return f"{cell.text} ({cell.span})" if intervals and cell.span else cell.text


def _tex_cell(line: Line, cell: Cell | None, intervals: bool) -> str:
    if cell is None:
        return ""
    text = rf"\textbf{{{tex(cell.text)}}}" if cell.best else tex(cell.text)
    text = rf"\textit{{{text}}}" if line.paper else text
    return rf"\shortstack{{{text}\\{{\tiny {tex(cell.span)}}}}}" if intervals and cell.span else text


def _sentence(text: str) -> str:
    return text if text.endswith((".", "!", "?")) else f"{text}."


def _finite(value: float | None) -> float | None:
    return None if value is None or not math.isfinite(value) else value
