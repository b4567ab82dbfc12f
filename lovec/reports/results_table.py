"""The short table of results, on a terminal and in Markdown: ``lovec test`` and ``lovec demo`` print it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from rich.console import Console

from lovec.core.shown import one_line
from lovec.metrics.table import METRICS, MetricInfo
from lovec.reports.table import Cell, Column, Line, Table, legend, markdown, metric_cell, print_table
from lovec.reports.texts import READOUT_TITLES, explained
from lovec.types import ResultRow

_PLACES = ("domain", "mode", "level", "readout")


def print_results(
    rows: Sequence[ResultRow],
    title: str = "",
    console: Console | None = None,
    metrics: Mapping[str, MetricInfo] = METRICS,
) -> None:
    """Print rows, one table per level and readout; plain text without a terminal.

    A domain that all rows share stands in the title: without its column, the table fits 80 columns.

    Args:
        rows: in the order in which a table shows them.
        title: a line above the tables.
        console: where to print; None is standard output.
        metrics: how to show every metric, by name, see ``lovec.metrics.results.Results.metrics``.
    """
    console = console or Console()
    console.print(one_line(title), style="bold", markup=False, highlight=False, soft_wrap=True)
    columns = _columns(rows, metrics)
    domains = {row.domain for row in rows}
    places, place = (("mode",), f", {domains.pop()}") if len(domains) == 1 else (("domain", "mode"), "")
    for level, readout in dict.fromkeys((row.level, row.readout) for row in rows):
        block = [row for row in rows if (row.level, row.readout) == (level, readout)]
        words = READOUT_TITLES.get(readout, readout)
        print_table(_table(block, columns, places, f"{level} level, {words}{place}"), console)
        console.print()
    readouts = (READOUT_TITLES.get(row.readout, "") for row in rows)
    terms = [*(info.heading for info in columns), *(row.mode for row in rows), *readouts]
    units = f"{one_line(legend(columns))}; c: confidence, f: factuality; -: undefined"
    console.print(units, style="dim", markup=False, highlight=False)
    console.print(explained(terms), style="dim", highlight=False)


def markdown_results(rows: Sequence[ResultRow], metrics: Mapping[str, MetricInfo] = METRICS) -> str:
    """Return rows as one Markdown table, without those of the columns domain, mode, level, readout that never differ.

    Args:
        rows: in the order in which they are shown.
        metrics: see ``print_results``.
    """
    places = [name for name in _PLACES if len({getattr(row, name) for row in rows}) > 1]
    return markdown(_table(rows, _columns(rows, metrics), places), title=False)


def custom_metrics(rows: Iterable[ResultRow], metrics: Mapping[str, MetricInfo]) -> list[MetricInfo]:
    """Return the metrics that users added to the built-in ones and that some row has."""
    names = {name for row in rows for name in row.metrics}
    return [info for name, info in metrics.items() if name not in METRICS and name in names]


def has_hard_labels(row: ResultRow) -> bool:
    """Return whether the labels of a row are 0 and 1, and both occur, as those of short answers are.

    Rows of older results have an AUROC only then, and no share of graded labels.
    """
    return row.metrics.get("auroc") is not None and not row.metrics.get("graded")


def _columns(rows: Sequence[ResultRow], metrics: Mapping[str, MetricInfo]) -> list[MetricInfo]:
    """Return the main metrics, AUROC and the order where a row has such labels and claims, and users' own."""
    names = [name for name, info in METRICS.items() if info.main]
    if any(map(has_hard_labels, rows)):
        names.append("auroc")
    if any(row.metrics.get("order") is not None for row in rows):
        names.append("order")
    return [metrics[name] for name in names] + custom_metrics(rows, metrics)


def _table(rows: Iterable[ResultRow], columns: Sequence[MetricInfo], places: Sequence[str], title: str = "") -> Table:
    """Return a table of rows: first the columns that tell rows of a method apart, then the metrics, then ``n``."""
    lines = []
    for row in rows:
        words = [Cell(getattr(row, name)) for name in places]
        values = [metric_cell(row.metrics.get(info.name), info) for info in columns]
        lines.append(Line(row.method, (*words, *values, Cell(str(row.n), row.n))))
    headings = [*(Column(name, left=True) for name in places), *(Column(info.heading) for info in columns), Column("n")]
    return Table("results", title, tuple(headings), tuple(lines))
