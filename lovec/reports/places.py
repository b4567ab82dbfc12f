"""The results of every mode, domain and readout: a table of the methods, and the plots that belong to it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from lovec.metrics.grouped import grouped_pairs
from lovec.reports.cells import BOLD, MODE_TITLES, CellMaker, in_domain
from lovec.reports.histogram import histogram
from lovec.reports.lead import READOUT_TITLES, Lead
from lovec.reports.overlay import MOST, histogram_overlay, reliability_overlay, risk_overlay, says_something
from lovec.reports.reliability import Reliability, reliability
from lovec.reports.results_table import custom_metrics
from lovec.reports.risk_coverage import risk_curve
from lovec.reports.runs import RunResults, stored_readout
from lovec.reports.shown import Picture, Place
from lovec.reports.style import write_both
from lovec.reports.table import Cell, Column, Line, Table, legend, mark_best, metric_column
from lovec.reports.texts import texts
from lovec.types import Kind, Record, ResultRow

KINDS: tuple[Kind, ...] = ("constant", "baseline", "method", "hybrid")
"""Kinds of rows that places show; recalibrated methods and ablations have tables of their own."""

_CALIBRATION = ("brier", "ece_m", "spearman")
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
                pictures = _pictures(cells.run, place_rows, names, short, folder, on_plot)
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
    here.sort(key=lambda row: row.metrics["brier"] or 0.0)
    trained = dict.fromkeys(row.method for row in here if row.kind == "method")
    baselines = dict.fromkeys(row.method for row in here if row.kind == "baseline")
    first = ["Vanilla"] if "Vanilla" in baselines else [*baselines][:1]
    chosen = [*dict.fromkeys([lead.method, *first, *trained, *baselines])][:MOST]
    return [name for name in dict.fromkeys(row.method for row in rows) if name in chosen]


def _table(cells: CellMaker, rows: Sequence[ResultRow], keys: tuple[str, str, str]) -> Table:
    """Return the table of a place: the main metrics and users' own, and the number of sentences."""
    mode, domain, readout = keys
    infos = [*(cells.run.metrics[name] for name in _CALIBRATION), *custom_metrics(rows, cells.run.metrics)]
    lines = []
    for row in rows:
        name = row.method
        if row.readout != readout and row.kind != "constant":
            name += f" ({READOUT_TITLES[row.readout]})"
        lines.append(Line(name, (*(cells.cell(row, info.name) for info in infos), Cell(str(row.n), row.n))))
    title = f"{MODE_TITLES.get(mode, mode)}, {domain}, {READOUT_TITLES[readout]}"
    columns = (*map(metric_column, infos), Column("n"))
    bold = (BOLD.format(group="this table"),) if cells.draws else ()
    notes = (f"{legend(infos)}; n: sentences; -: undefined.", *bold)

    def clear(first: int, second: int, place: int) -> bool:
        return cells.is_clear(rows[first], rows[second], infos[place].name)

    table = Table(f"place-{slug(' '.join(keys))}", title, columns, tuple(lines), notes, cells.interval_note)
    return mark_best(table, clear=clear)


def _pictures(
    run: RunResults,
    rows: Sequence[ResultRow],
    names: Sequence[str],
    place: str,
    folder: Path,
    on_plot: Callable[[str], object],
) -> Iterator[Picture]:
    """Yield the plots of a place, as far as there are labelled records; each method has its colour in all places."""
    records: dict[str, tuple[ResultRow, list[Record]]] = {}
    for row in rows:
        if row.method in names and (row.method, row.mode, row.readout) in run.files:
            mine = in_domain(run.tagged_records(row.method, row.mode, row.readout), row.domain)
            if grouped_pairs(mine, stored_readout(row)).confidence.numel():
                records[row.method] = row, mine
    if not records:
        return
    on_plot(f"reliability, {place}")
    diagrams = dict(_diagram(name, records.get(name)) for name in names)
    if any(diagrams.values()):
        path = write_both(partial(reliability_overlay, diagrams), folder / f"reliability.{place}.svg")
        yield _picture("reliability", path)
    on_plot(f"risk and coverage, {place}")
    of_all = {name: records.get(name) for name in names}
    curves = {name: given and risk_curve(given[1], stored_readout(given[0])) for name, given in of_all.items()}
    yield _picture("risk-coverage", write_both(partial(risk_overlay, curves), folder / f"risk-coverage.{place}.svg"))
    shares = {name: given and histogram(given[1], stored_readout(given[0])) for name, given in of_all.items()}
    yield _picture("histogram", write_both(partial(histogram_overlay, shares), folder / f"histogram.{place}.svg"))


def _diagram(name: str, given: tuple[ResultRow, Sequence[Record]] | None) -> tuple[str, Reliability | None]:
    """Return a method's name and reliability, by the mean readout where its stated scores are too few to show it."""
    if given is None:
        return name, None
    row, records = given
    diagram = _with_curve(records, stored_readout(row))
    if says_something(diagram):
        return name, diagram
    if row.readout == "stated" and grouped_pairs(records, "mean").confidence.numel():
        diagram = _with_curve(records, "mean")
        return f"{name} (mean)", diagram if says_something(diagram) else None
    return name, None


def _with_curve(records: Sequence[Record], readout: str) -> Reliability:
    pairs = grouped_pairs(records, readout)
    return reliability(pairs, corp=len(set(pairs.confidence.tolist())) >= _FEWEST_LEVELS, band=False)


def _picture(name: str, path: Path) -> Picture:
    words: Mapping[str, str] = texts()["plots"][name]
    return Picture(path.stem, words["title"], words["caption"], path.read_text(encoding="utf-8"))
