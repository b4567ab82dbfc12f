"""The results of every mode, domain and readout: a table of the methods, and the plots that belong to it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TypeVar

from lovec.metrics.bootstrap import MAIN
from lovec.metrics.grouped import grouped_pairs
from lovec.reports.cells import BOLD, CellMaker, in_domain
from lovec.reports.histogram import histogram
from lovec.reports.lead import Lead
from lovec.reports.overlay import MOST, histogram_overlay, reliability_overlay, risk_overlay
from lovec.reports.reliability import Reliability, reliability
from lovec.reports.results_table import custom_metrics
from lovec.reports.risk_coverage import risk_curve
from lovec.reports.runs import RunResults, stored_readout
from lovec.reports.shown import Picture, Place
from lovec.reports.style import write_both
from lovec.reports.table import Cell, Column, Line, Table, legend, mark_best, metric_column
from lovec.reports.texts import MAIN_READOUT, MODE_TITLES, READOUT_TITLES, texts
from lovec.types import Kind, Record, ResultRow

T = TypeVar("T")

KINDS: tuple[Kind, ...] = ("constant", "baseline", "method", "hybrid")
"""Kinds of rows that places show; recalibrated methods and ablations have tables of their own."""

_REFERENCES: tuple[Kind, ...] = ("constant", "baseline")  # which are shown by their stated score where they must be
_FEWEST_LEVELS = 10  # different confidences that a CORP curve needs: the curve of fewer is that of the bins


def places_of(
    cells: CellMaker, lead: Lead | None, folder: Path, on_plot: Callable[[str], object] = lambda name: None
) -> Iterator[Place]:
    """Yield the results of every mode, domain and readout, and write their plots.

    Two or three methods are laid over each other, the same in all plots: the lead's method, the baseline Vanilla (or
    else the baseline with the lowest Brier score in the lead's mode and domain), and the next best trained method.

    Args:
        cells: makes the cells of a run's rows.
        lead: what the report says first; None if nothing was measured, and then nothing is yielded.
        folder: folder for the plots, NAME.svg and NAME.pdf.
        on_plot: called with the name of every plot before it is drawn.

    Raises:
        LovecError: a file of the run cannot be read.
    """
    if lead is None:
        return
    rows = [row for row in cells.run.rows if row.level == "sentence" and row.kind in KINDS and row.n]
    names = _laid_over(rows, lead)
    taken: set[str] = set()
    readouts = [name for name in READOUT_TITLES if any(row.readout == name for row in rows)]
    for mode, domain in dict.fromkeys((row.mode, row.domain) for row in rows):
        here = [row for row in rows if (row.mode, row.domain) == (mode, domain)]
        for readout in readouts:
            if any(row.readout == readout for row in here):
                place_rows = list(_rows_of(here, readout))
                table = _table(cells, place_rows, (mode, domain, readout))
                while table.name in taken:  # names that differ in other characters than letters and digits
                    table = replace(table, name=f"{table.name}-{len(taken)}")
                taken.add(table.name)
                short = table.name.removeprefix("place-")
                pictures = _pictures(cells.run, place_rows, names, readout, short, folder, on_plot)
                yield Place(mode, domain, readout, table, tuple(pictures))


def slug(text: str) -> str:
    """Return a text in lower-case letters, digits and hyphens, for the name of a file."""
    return "-".join("".join(char if char.isalnum() else " " for char in text.lower()).split()) or "run"


def _rows_of(rows: Sequence[ResultRow], readout: str) -> Iterator[ResultRow]:
    """Yield one row per method that has the readout, and the stated one of constants and baselines that have not."""
    methods = dict.fromkeys(row.method for row in rows)
    by_place = {(row.method, row.readout): row for row in rows}
    for method in methods:
        row = by_place.get((method, readout))
        if row is None and (stated := by_place.get((method, "stated"))) and stated.kind in _REFERENCES:
            row = stated
        if row is not None:
            yield row


def _laid_over(rows: Sequence[ResultRow], lead: Lead) -> list[str]:
    """Return the names of the methods that plots show."""
    domain = lead.places[0].domain
    here = [
        row for row in rows if (row.mode, row.domain) == (lead.mode, domain) and row.metrics.get("brier") is not None
    ]
    here = [row for row in here if row.readout in (lead.readout, MAIN_READOUT)]
    here.sort(key=lambda row: row.metrics["brier"] or 0.0)
    trained = dict.fromkeys(row.method for row in here if row.kind == "method")
    baselines = dict.fromkeys(row.method for row in here if row.kind == "baseline")
    first = ["Vanilla"] if "Vanilla" in baselines else [*baselines][:1]
    chosen = [*dict.fromkeys([lead.method, *first, *trained, *baselines])][:MOST]
    return [name for name in dict.fromkeys(row.method for row in rows) if name in chosen]


def _table(cells: CellMaker, rows: Sequence[ResultRow], keys: tuple[str, str, str]) -> Table:
    """Return the table of a place: the main metrics and users' own, and the number of sentences."""
    mode, domain, readout = keys
    infos = [*(cells.run.metrics[name] for name in MAIN), *custom_metrics(rows, cells.run.metrics)]
    lines = []
    for row in rows:
        shown = (*(cells.cell(row, info.name) for info in infos), Cell(str(row.n), row.n))
        lines.append(Line(_named(row, readout), shown))
    title = f"{MODE_TITLES.get(mode, mode)}, {domain}, {READOUT_TITLES[readout]}"
    columns = (*map(metric_column, infos), Column("n"))
    bold = (BOLD.format(group="this table"),) if cells.draws and len(lines) > 1 else ()
    notes = (f"{legend(infos)}; n: sentences; -: undefined.", *bold)

    def clear(first: int, second: int, place: int) -> bool:
        return cells.is_clear(rows[first], rows[second], infos[place].name)

    table = Table(f"place-{slug(' '.join(keys))}", title, columns, tuple(lines), notes, cells.interval_note)
    return mark_best(table, clear=clear)


def _pictures(
    run: RunResults,
    rows: Sequence[ResultRow],
    names: Sequence[str],
    readout: str,
    place: str,
    folder: Path,
    on_plot: Callable[[str], object],
) -> Iterator[Picture]:
    """Yield the plots of a place, as far as there are labelled records; each method has its colour in all places.

    Which scores are given is drawn of stated scores only; of other readouts, the bars of the reliability say as much.
    """
    records: dict[str, tuple[ResultRow, list[Record]]] = {}
    for row in rows:
        if row.method in names and (row.method, row.mode, row.readout) in run.files:
            mine = in_domain(run.tagged_records(row.method, row.mode, row.readout), row.domain)
            if grouped_pairs(mine, stored_readout(row)).confidence.numel():
                records[row.method] = row, mine
    if not records:
        return
    here = {row.method: _named(row, readout) for row in rows}
    shown = {here.get(name, name): records.get(name) for name in names}
    words, note = READOUT_TITLES[readout], _not_drawn(here, names, records)

    def of_all(make: Callable[[Sequence[Record], str], T]) -> dict[str, T | None]:
        return {name: given and make(given[1], stored_readout(given[0])) for name, given in shown.items()}

    def picture(name: str, write: Callable[[Path], Path]) -> Picture:
        on_plot(f"{name}, {place}")
        path, text = write_both(write, folder / f"{name}.{place}.svg"), texts()["plots"][name]
        title = f"{text['title']}: {words}"
        return Picture(path.stem, title, text["caption"], path.read_text(encoding="utf-8"), note=note)

    yield picture("reliability", partial(reliability_overlay, of_all(_diagram), readout=words))
    yield picture("risk-coverage", partial(risk_overlay, of_all(risk_curve), readout=words))
    if readout == "stated":
        yield picture("histogram", partial(histogram_overlay, of_all(histogram)))


def _named(row: ResultRow, readout: str) -> str:
    """Return the name of a row's method at a place, with its readout where that is another one than the place's."""
    other = row.readout != readout and row.kind != "constant"
    return f"{row.method} ({READOUT_TITLES[row.readout]})" if other else row.method


def _not_drawn(here: Mapping[str, str], names: Sequence[str], drawn: Collection[str]) -> str:
    """Return which of a place's methods its plots leave out, and why; "" where all are drawn.

    Args:
        here: names of the lines in the place's table, by method.
        names: methods that plots lay over each other.
        drawn: those of them that have labelled records here.
    """
    reasons = {
        f"at most {MOST} are laid over each other": [name for name in here if name not in names],
        "no tagged sentences with labels": [name for name in here if name in names and name not in drawn],
    }
    left_out = [f"{', '.join(here[name] for name in some)} ({why})" for why, some in reasons.items() if some]
    return f"{len(drawn)} of {len(here)} methods are drawn. Not drawn: {'; '.join(left_out)}." if left_out else ""


def _diagram(records: Sequence[Record], readout: str) -> Reliability:
    pairs = grouped_pairs(records, readout)
    return reliability(pairs, corp=len(set(pairs.confidence.tolist())) >= _FEWEST_LEVELS, band=False)
