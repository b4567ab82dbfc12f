"""``lovec report``: tables, figures and one HTML page of what tests measured."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from lovec.types import LovecError

from .parser import OneLineParser

if TYPE_CHECKING:
    from lovec.reports.page import Answers
    from lovec.reports.runs import Run
    from lovec.reports.table import Table


def run(words: list[str]) -> None:
    """Writes index.html, tables/ and figures/, and prints the main table.

    Args:
        words: the command line after ``report``.

    Raises:
        LovecError: a run holds nothing to report, a file in it cannot be read, or the report cannot be written.
    """
    parser = OneLineParser("report", "Tables, figures and one HTML page of what `lovec test` measured.")
    parser.add_argument(
        "runs", nargs="+", metavar="RUN", help="folder of a run, or one above several, such as runs/demo"
    )
    parser.add_argument(
        "--out", help="folder of the report (default: report/ in RUN, or in what all RUNs have in common)"
    )
    parser.add_argument("--paper", metavar="MODEL", help="print the paper's figures beside: llama or gemma")
    parser.add_argument("--title", help="heading of the page (default: the names of the runs)")
    parser.add_argument("--answers", type=int, default=20, metavar="N", help="answers shown for every method and mode")
    parser.add_argument("--no-intervals", action="store_true", help="leave out the bootstrap intervals of the tables")
    options = parser.read(words)
    if options.answers < 0:
        raise LovecError(f"--answers is {options.answers}, expected 0 or more")
    from lovec.reports.paper_tables import sheets
    from lovec.reports.runs import read_run
    from lovec.reports.table import print_table

    found = read_run(*options.runs)
    tables = sheets(found, draws=0 if options.no_intervals else 1000, paper=options.paper)
    folder = Path(options.out) if options.out else _home(options.runs)
    try:
        written = _write_all(found, tables, options, folder)
    except OSError as error:
        raise LovecError(
            f"cannot write the report to {folder}: {error.strerror or error}; give another --out"
        ) from error
    for sheet in tables[:1]:
        print_table(sheet)
    print(f"\n{written}")


def _write_all(found: Run, tables: Sequence[Table], options: argparse.Namespace, folder: Path) -> str:
    """Writes the report and says what and where it is."""
    from lovec.reports.page import page
    from lovec.reports.plots import pictures

    figures, left_out = pictures(found, folder / "figures")
    for sheet in tables:
        _write_tables(sheet, folder / "tables", not options.no_intervals)
    html = page(
        options.title or f"lovec report: {found.name}",
        options.runs,
        tables,
        figures,
        _answers(found, options.answers),
        left_out,
        f"Written by lovec {import_module('lovec').__version__}.",
    )
    _write(folder / "index.html", html)
    what = f"{len(tables)} tables in {folder / 'tables'} (csv, tex, md, json), {len(figures)} figures in "
    where = f"{folder / 'figures'} (svg), all of it on one page: {folder / 'index.html'}"
    return "\n".join([*left_out, what + where])


def _answers(run: Run, shown: int) -> list[Answers]:
    """Tagged answers of every method and mode, those of trained methods first."""
    from lovec.reports.page import answers
    from lovec.reports.plots import methods

    trained = {row["method"] for row in run.rows if row["kind"] == "method"}
    modes = dict.fromkeys(row["mode"] for row in run.rows) if shown else {}
    places = sorted(((name, mode) for mode in modes for name in methods(run, mode)), key=lambda p: p[0] not in trained)
    return [answers(name, mode, run.tagged(name, mode), shown) for name, mode in places]


def _write_tables(sheet: Table, folder: Path, intervals: bool) -> None:
    from lovec.reports.table import csv_text, json_text, latex, markdown

    texts = {
        "csv": csv_text(sheet),
        "json": json_text(sheet),
        "md": markdown(sheet, intervals),
        "tex": latex(sheet, intervals),
    }
    for ending, text in texts.items():
        _write(folder / f"{sheet.name}.{ending}", text)


def _write(path: Path, text: str) -> None:
    """Writes a file, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    part.write_text(text, encoding="utf-8", errors="replace")
    os.replace(part, path)


def _home(runs: list[str]) -> Path:
    """Where the report goes unless told."""
    given = Path(runs[0] if len(runs) == 1 else os.path.commonpath([Path(path).resolve() for path in runs]))
    return (given.parent if given.name == "test" else given) / "report"
