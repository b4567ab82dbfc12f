"""``lovec report``: tables, plots and one HTML page of what tests measured."""

from __future__ import annotations

import argparse
import errno
import os
import re
import shlex
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING

from lovec.core.files import atomic_folder, check_run_folder, check_unused, write_text
from lovec.core.notices import counted
from lovec.core.progress import Heartbeat, doing
from lovec.core.settings import check_count
from lovec.types import LovecError

from .console import say_next
from .errors import check_folder_name
from .pages import foot, has_own_page
from .parser import OneLineParser

if TYPE_CHECKING:
    from lovec.reports.cells import CellMaker
    from lovec.reports.lead import Lead
    from lovec.reports.runs import RunResults
    from lovec.reports.shown import MethodAnswers
    from lovec.reports.table import Table

_DRAWS = 1000  # of the bootstrap behind the intervals

_LINK = re.compile(r'<a href="(tables|plots)/([^/"]+)" download')
"""A link of a page to one of its files; texts of models are escaped there, and so have none."""


def run(words: list[str], last: bool = True) -> None:
    """Write index.html, tables/ and plots/, and print the main table, with the paper's where it is asked for.

    Args:
        words: the command line after ``report``.
        last: whether nothing comes after it, so that what can be run next is said.

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
    parser.add_argument(
        "--paper",
        nargs="?",
        const="llama",
        metavar="MODEL",
        help="print and show the paper's numbers beside ours: llama (the default) or gemma",
    )
    parser.add_argument("--title", help="heading of the page (default: the names of the runs)")
    parser.add_argument(
        "--answers", type=int, default=20, metavar="N", help="number of answers shown per method and mode"
    )
    parser.add_argument("--no_intervals", action="store_true", help="leave out the bootstrap intervals of the tables")
    options = parser.read(words)
    check_count("--answers", options.answers, at_least=0)
    if options.out:
        check_folder_name("--out", Path(options.out))
    for run in options.runs:
        check_run_folder(run)
    folder = Path(options.out) if options.out else _default_folder(options.runs)
    if options.out:
        _check_folder(folder)
    from lovec.reports.table import print_table

    with Heartbeat(), doing("report") as activity:

        def on_step(name: str) -> None:
            activity.what = f"report: {name}"

        report = _measured(options, on_step)
        try:
            message = _write_report(report, options, folder, on_step)
        except OSError as error:
            raise LovecError(
                f"cannot write the report to {folder}: {error.strerror or error}; give another --out"
            ) from error
    for table in report.tables:
        if table.name == "main" or (options.paper and table.name == "main-paper"):
            print_table(table)
            print()
    print(message)
    if last:
        say_next((f"python -m webbrowser {shlex.quote(str(folder / 'index.html'))}", "look at the page"))


@dataclass(frozen=True)
class _Report:
    """What a report shows: what makes its cells, what it says first, and its tables."""

    cells: CellMaker
    lead: Lead | None
    tables: Sequence[Table]


def _measured(options: argparse.Namespace, on_step: Callable[[str], None]) -> _Report:
    """Read the runs and make all tables."""
    from lovec.reports.cells import CellMaker
    from lovec.reports.lead import lead_of
    from lovec.reports.paper_tables import report_tables
    from lovec.reports.runs import read_run

    on_step("reads the results")
    cells = CellMaker(read_run(*options.runs), draws=0 if options.no_intervals else _DRAWS)
    tables = report_tables(cells, paper=options.paper, on_table=lambda name: on_step(f"table {name}"))
    on_step("looks for the best method")
    return _Report(cells, lead_of(cells), tables)


def _check_folder(folder: Path) -> None:
    """Refuse a folder that holds a page, tables or plots which no earlier report has written."""
    if has_own_page(folder):
        return
    for name in ("index.html", "tables", "plots"):
        check_unused(folder / name, "no report has written it: give another --out")


def _write_report(report: _Report, options: argparse.Namespace, folder: Path, on_step: Callable[[str], None]) -> str:
    """Write the report and return a message that says where its parts are.

    Tables and plots replace those of an earlier report; other files that lie beside them stay.
    """
    from lovec.reports.breakdown import places_of
    from lovec.reports.lead import provenance
    from lovec.reports.page import page
    from lovec.reports.plots import write_plots
    from lovec.reports.table import write_table

    run = report.cells.run

    def on_plot(name: str) -> None:
        on_step(f"plot {name}")

    earlier = _linked(folder)
    with _replaced(folder / "tables", earlier) as table_folder, _replaced(folder / "plots", earlier) as plot_folder:
        places = list(places_of(report.cells, report.lead, plot_folder, on_plot))
        plots, left_out = write_plots(run, plot_folder, on_plot)
        on_step("writes the page")
        tables = [*report.tables, *(place.table for place in places)]
        for table in tables:
            write_table(table, table_folder, not options.no_intervals)
        html = page(
            options.title or f"lovec report: {run.name}",
            options.runs,
            report.tables,
            plots,
            _answers(run, report.lead, options.answers),
            left_out,
            foot(),
            lead=report.lead,
            provenance=provenance(run),
            places=places,
        )
    write_text(folder / "index.html", html, errors="replace")
    drawn = len(plots) + sum(len(place.pictures) for place in places)
    written = f"{counted(len(tables), 'table')} in {folder / 'tables'} (csv, tex, md, json), "
    written += f"{counted(drawn, 'plot')} in {folder / 'plots'} (svg, pdf), " if drawn else ""
    written += f"all on one page: {folder / 'index.html'}"
    return "\n".join([*left_out, written])


def _linked(folder: Path) -> set[tuple[str, str]]:
    """Return the files that the page in a folder links to, as folder and name; none where no command has written it."""
    if not has_own_page(folder):
        return set()
    return {*_LINK.findall((folder / "index.html").read_text(encoding="utf-8", errors="replace"))}


@contextmanager
def _replaced(folder: Path, earlier: set[tuple[str, str]]) -> Iterator[Path]:
    """Yield a new folder that replaces one with files of an earlier report if the block ends without an error.

    Args:
        folder: folder to write. What it holds beside those files stays: it is the user's own.
        earlier: files of the earlier report, see ``_linked``.
    """
    if folder.exists() and not folder.is_dir():
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(folder))
    with atomic_folder(folder) as fresh:
        yield fresh
        for item in folder.iterdir() if folder.is_dir() else ():
            if (folder.name, item.name) not in earlier and not os.path.lexists(fresh / item.name):
                if item.is_dir() and not item.is_symlink():
                    shutil.copytree(item, fresh / item.name, symlinks=True)
                else:
                    shutil.copy2(item, fresh / item.name, follow_symlinks=False)
    with suppress(OSError):  # as where no plot was drawn: an empty folder says nothing
        folder.rmdir()


def _answers(run: RunResults, lead: Lead | None, limit: int) -> list[MethodAnswers]:
    """Return the tagged answers of every method and mode in the lead's readout, or else the main one; none at limit 0.

    They answer the same questions, those that show most of the lead's method, as far as a method was asked them.
    """
    from lovec.reports.breakdown import KINDS
    from lovec.reports.page import method_answers
    from lovec.reports.texts import MAIN_READOUT

    methods = dict.fromkeys(row.method for row in run.rows if row.kind in KINDS)
    modes = dict.fromkeys(row.mode for row in run.rows) if limit else {}
    readouts = (lead.readout if lead else MAIN_READOUT, MAIN_READOUT)
    answers: dict[tuple[str, str], MethodAnswers] = {}
    places = [*product(methods, modes)]
    wanted: tuple[str, ...] = ()
    for method, mode in sorted(places, key=lambda place: lead is None or place != (lead.method, lead.mode)):
        readout = next((readout for readout in readouts if (method, mode, readout) in run.files), None)
        if readout is not None:
            records = run.tagged_records(method, mode, readout)
            answers[method, mode] = method_answers(method, mode, records, limit, readout, wanted)
            wanted = wanted or tuple(record.id for record in answers[method, mode].records)
    return [answers[place] for place in places if place in answers]


def _default_folder(runs: Sequence[str]) -> Path:
    """Return the folder of the report if none is given."""
    folder = Path(runs[0] if len(runs) == 1 else os.path.commonpath([Path(path).resolve() for path in runs]))
    inside = next((part for part in (folder, folder.parent) if part.name == "test"), None)
    return (folder if inside is None else inside.parent) / "report"
