"""``lovec report``: tables, plots and one HTML page of what tests measured."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from lovec.files import check_unused, write_text
from lovec.types import LovecError, check_count

from .parser import OneLineParser

if TYPE_CHECKING:
    from lovec.reports.page import MethodAnswers
    from lovec.reports.runs import RunResults
    from lovec.reports.table import Table

_DRAWS = 1000  # of the bootstrap behind the intervals
_MARK = "Written by lovec"


def run(words: list[str]) -> None:
    """Write index.html, tables/ and plots/, and print the main table.

    Args:
        words: the command line after ``report``.

    Raises:
        LovecError: a run holds nothing to report, a file in it cannot be read, or the report cannot be written.
    """
    parser = OneLineParser("report", "Write tables, plots and one HTML page of what `lovec test` measured.")
    parser.add_argument(
        "runs", nargs="+", metavar="RUN", help="folder of a run, or one above several runs, such as runs/demo"
    )
    parser.add_argument(
        "--out", help="folder of the report (default: report/ in RUN, or in the folder that all RUNs share)"
    )
    parser.add_argument("--paper", metavar="MODEL", help="show the paper's numbers beside ours: llama or gemma")
    parser.add_argument("--title", help="heading of the page (default: the names of the runs)")
    parser.add_argument(
        "--answers", type=int, default=20, metavar="N", help="number of answers shown per method and mode"
    )
    parser.add_argument("--no_intervals", action="store_true", help="leave out the bootstrap intervals of the tables")
    options = parser.read(words)
    check_count("--answers", options.answers, at_least=0)
    from lovec.reports.paper_tables import report_tables
    from lovec.reports.runs import read_run
    from lovec.reports.table import print_table

    results = read_run(*options.runs)
    tables = report_tables(results, draws=0 if options.no_intervals else _DRAWS, paper=options.paper)
    folder = Path(options.out) if options.out else _default_folder(options.runs)
    if options.out:
        _check_folder(folder)
    for table in tables[:1]:
        print_table(table)
    try:
        message = _write_report(results, tables, options, folder)
    except OSError as error:
        raise LovecError(
            f"cannot write the report to {folder}: {error.strerror or error}; give another --out"
        ) from error
    print(f"\n{message}")


def _check_folder(folder: Path) -> None:
    """Refuse a folder that holds a page, tables or plots which no earlier report has written."""
    try:
        if _MARK in (folder / "index.html").read_text(encoding="utf-8", errors="replace"):
            return
    except OSError:  # there is no page yet
        pass
    for name in ("index.html", "tables", "plots"):
        check_unused(folder / name, "no report has written it: give another --out")


def _write_report(results: RunResults, tables: Sequence[Table], options: argparse.Namespace, folder: Path) -> str:
    """Write the report and return a message that says where its parts are."""
    from lovec.reports.page import page
    from lovec.reports.plots import write_plots
    from lovec.reports.table import csv_text, json_text, latex, markdown

    plots, left_out = write_plots(results, folder / "plots")
    intervals = not options.no_intervals
    for table in tables:
        path = folder / "tables" / table.name
        write_text(f"{path}.csv", csv_text(table), errors="replace")
        write_text(f"{path}.json", json_text(table), errors="replace")
        write_text(f"{path}.md", markdown(table, intervals), errors="replace")
        write_text(f"{path}.tex", latex(table, intervals), errors="replace")
    html = page(
        options.title or f"lovec report: {results.name}",
        options.runs,
        tables,
        plots,
        _answers(results, options.answers),
        left_out,
        f"{_MARK} {import_module('lovec').__version__}.",
    )
    write_text(folder / "index.html", html, errors="replace")
    written = f"{len(tables)} tables in {folder / 'tables'} (csv, tex, md, json), {len(plots)} plots in "
    written += f"{folder / 'plots'} (svg), all of them on one page: {folder / 'index.html'}"
    return "\n".join([*left_out, written])


def _answers(results: RunResults, limit: int) -> list[MethodAnswers]:
    """Return the tagged answers of every method and mode, those of trained methods first; none if ``limit`` is 0."""
    from lovec.reports.page import method_answers
    from lovec.reports.plots import methods_with_records

    trained = {row.method for row in results.rows if row.kind == "method"}
    modes = dict.fromkeys(row.mode for row in results.rows) if limit else {}
    places = [(method, mode) for mode in modes for method in methods_with_records(results, mode)]
    places.sort(key=lambda place: place[0] not in trained)
    return [method_answers(*place, results.tagged_records(*place), limit) for place in places]


def _default_folder(runs: Sequence[str]) -> Path:
    """Return the folder of the report if none is given."""
    folder = Path(runs[0] if len(runs) == 1 else os.path.commonpath([Path(path).resolve() for path in runs]))
    inside = next((part for part in (folder, folder.parent) if part.name == "test"), None)
    return (folder if inside is None else inside.parent) / "report"
