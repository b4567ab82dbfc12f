"""The tables of a report, as the paper lays them out; those without data are left out.

Lines are methods, in sections; columns are the domains of the data, each with its figures. Which tables there are and
what they hold is described in docs/tables.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from lovec.reports.cells import COLUMNS, MODES, Cells
from lovec.reports.diagnostic_tables import checkpoints, diagnostics, risk, running_time, sweeps
from lovec.reports.paper import beside, model_named, paper_table
from lovec.reports.results_table import Row
from lovec.reports.runs import BASELINES, RECALIBRATED, UNSEEN, Run
from lovec.reports.table import Column, Line, Table, mark_best

_LITERATURE = "LUQ"
_LONG = ("brier", "ece_m", "spearman")
_SHORT = {"auroc": COLUMNS["auroc"], "ece_m": replace(COLUMNS["ece_m"], heading="ECE"), "brier": COLUMNS["brier"]}
_READOUTS = {"stated": "stated score", "mean": "mean of the distribution"}
_LEGEND = "In %; BS and ECE-M: lower is better, SC: higher; -: undefined."
_BOLD = "Bold: the best of its mode."


@dataclass(frozen=True)
class _Entry:
    """A line to be: its section and name, and the method, mode and readout whose rows it shows."""

    section: str
    name: str
    method: str
    mode: str
    readout: str = "stated"


def sheets(run: Run, draws: int = 1000, level: float = 0.95, paper: str | None = None) -> list[Table]:
    """All tables that a run has data for, the main one first.

    Args:
        run: see ``lovec.reports.runs.read_run``.
        draws: of the bootstrap behind the intervals; 0 gives none.
        level: of the intervals.
        paper: a model of the paper, see ``lovec.reports.paper.model_named``: its figures stand in the same tables
            where they have a column in common, else in one of their own behind ours. None leaves them out.

    Raises:
        LovecError: the paper has no such model, a file cannot be read, or the number of draws or the level is wrong.
    """
    model = None if paper is None else model_named(paper)
    cells, rows = Cells(run, draws, level), _Rows(run)
    found: list[tuple[str, Table | None]] = [
        ("main", _main(cells, rows, "main", "sentence")),
        ("passage", _main(cells, rows, "passage", "passage")),
        ("no-previous-scores", _unseen(cells, rows)),
        ("hybrid", _hybrid(cells, rows)),
        ("recalibrated", _recalibrated(cells, rows)),
        ("short-form", _short(cells, rows)),
        ("readouts", _readouts(cells, rows)),
        ("risk-coverage", risk(cells)),
        ("diagnostics", diagnostics(cells)),
        ("running-time", running_time(run)),
        ("checkpoints", checkpoints(run)),
        *sweeps(run),
    ]
    shown = [(key, _seeds(run, sheet)) for key, sheet in found if sheet is not None]
    if model is None:
        return [sheet for _, sheet in shown]
    both = [one for key, sheet in shown for one in beside(sheet, key, model)]
    regression = paper_table("sft-regression", model)
    measured = any("regression" in row["method"].lower() for row in run.rows)
    return [*both, regression] if regression is not None and measured else both


class _Rows:
    """The rows of a run, by what they are of."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.domains = list(dict.fromkeys(row["domain"] for row in run.rows))
        self.places = {(r["method"], r["mode"], r["readout"], r["level"], r["domain"]): r for r in run.rows}

    def names(self, *kinds: str, mode: str | None = None, readout: str = "stated") -> list[str]:
        """Methods of these kinds that were measured in a mode (None: in any), in order of appearance."""
        found = (
            r for r in self.run.rows if r["kind"] in kinds and mode in (None, r["mode"]) and r["readout"] == readout
        )
        return list(dict.fromkeys(row["method"] for row in found))

    def of(self, entry: _Entry, level: str, domain: str) -> Row | None:
        return self.places.get((entry.method, entry.mode, entry.readout, level, domain))

    def constant(self) -> list[_Entry]:
        """The lines of the best constant, which every table shows: what it costs to know nothing of a sentence."""
        return [_Entry("Baselines", name, name, "iterative") for name in self.names("constant", mode="iterative")]


def _sheet(
    cells: Cells,
    rows: _Rows,
    entries: Iterable[_Entry],
    name: str,
    title: str,
    level: str = "sentence",
    domains: Sequence[str] | None = None,
    columns: dict[str, Column] | None = None,
    notes: Sequence[str] = (_LEGEND, _BOLD),
) -> Table | None:
    """A table with a group of columns for every domain; entries without any row are left out, None without entries."""
    columns = columns or {figure: COLUMNS[figure] for figure in _LONG}
    domains = rows.domains if domains is None else domains
    modes, lines = [], []
    for entry in entries:
        own = {domain: rows.of(entry, level, domain) for domain in domains}
        if any(own.values()):
            found = tuple(cells.cell(own[domain], figure) for domain in domains for figure in columns)
            lines.append(Line(entry.name, found, entry.section))
            modes.append(entry.mode)
    if not lines:
        return None
    heads = tuple(replace(column, group=domain) for domain in domains for column in columns.values())
    sheet = Table(name, title, heads, tuple(lines))
    return replace(mark_best(sheet, modes), notes=tuple(notes), spans=cells.spans)


def _main(cells: Cells, rows: _Rows, name: str, level: str) -> Table | None:
    """The main results: what the literature offers, baselines, and trained methods in both modes."""
    first = rows.constant()
    judges = sorted(
        rows.names("baseline", mode="iterative"),
        key=lambda method: BASELINES.index(method) if method in BASELINES else len(BASELINES),
    )
    literature = [_Entry("Literature", method, method, "iterative") for method in judges if method == _LITERATURE]
    baselines = [_Entry("Baselines", method, method, "iterative") for method in judges if method != _LITERATURE]
    trained = [
        _Entry(section, method, method, mode)
        for mode, section in MODES.items()
        for method in rows.names(*(("method",) if mode == "iterative" else ("baseline", "method")), mode=mode)
    ]
    title = f"Main results, {level} level"
    return _sheet(cells, rows, [*literature, *first, *baselines, *trained], name, title, level)


def _unseen(cells: Cells, rows: _Rows) -> Table | None:
    """Iterative tagging with and without the scores given before."""
    entries = []
    for method in rows.names("ablation"):
        if method.endswith(UNSEEN):
            base = method.removesuffix(UNSEEN)
            entries += [_Entry(base, "with previous scores", base, "iterative")]
            entries += [_Entry(base, "no previous scores", method, "iterative")]
    if not entries:
        return None
    title = "Iterative tagging without the scores given before"
    return _sheet(cells, rows, [*rows.constant(), *entries], "no-previous-scores", title)


def _hybrid(cells: Cells, rows: _Rows) -> Table | None:
    """Means of two methods' confidences, below the two."""
    entries = []
    for method in rows.names("hybrid"):
        names = {row["method"] for row in rows.run.rows}
        both = next((pair for pair in _halves(method) if set(pair) <= names), ())
        for mode in MODES:
            if method in rows.names("hybrid", mode=mode):
                entries += [_Entry(method, name, name, mode) for name in (*both, method)]
    if not entries:
        return None
    title = "Hybrids: the mean of two confidences"
    return _sheet(cells, rows, [*rows.constant(), *entries], "hybrid", title)


def _halves(method: str) -> Iterator[tuple[str, str]]:
    """The two names that a hybrid's name may be made of."""
    words = method.split(" + ")
    for cut in range(1, len(words)):
        yield " + ".join(words[:cut]), " + ".join(words[cut:])


def _recalibrated(cells: Cells, rows: _Rows) -> Table | None:
    """Confidences before and after recalibration on validation records, by mode and readout."""
    entries = []
    for mode, title in MODES.items():
        for readout, said in _READOUTS.items():
            fitted = rows.names("recalibrated", mode=mode, readout=readout)
            for base in dict.fromkeys(_base(method) for method in fitted):
                own = [base, *(method for method in fitted if _base(method) == base)]
                entries += [_Entry(f"{title}, {said}", method, method, mode, readout) for method in own]
    if not entries:
        return None
    return _sheet(cells, rows, [*rows.constant(), *entries], "recalibrated", "Recalibrated on validation records")


def _base(method: str) -> str:
    for ending in RECALIBRATED:
        method = method.removesuffix(ending)
    return method


def _short(cells: Cells, rows: _Rows) -> Table | None:
    """Short answers, which are right or wrong as a whole."""
    hard = [row["domain"] for row in rows.run.rows if row.get("auroc") is not None and row["level"] == "sentence"]
    if not hard:
        return None
    given = rows.names("baseline", "method", "recalibrated", "hybrid", mode="iterative")
    entries = [_Entry(_family(rows, method), method, method, "iterative") for method in given]
    for method in rows.names("baseline", "method", mode="free-form"):
        entries.append(_Entry(MODES["free-form"], method, method, "free-form"))
    order = ["Baselines", *MODES.values()]
    entries = sorted([*rows.constant(), *entries], key=lambda entry: order.index(entry.section))
    legend = "In %; AUROC: higher is better, ECE and BS: lower; -: undefined."
    domains = list(dict.fromkeys(hard))
    return _sheet(cells, rows, entries, "short-form", "Short answers", "sentence", domains, _SHORT, (legend, _BOLD))


def _family(rows: _Rows, method: str) -> str:
    """Section of a method whose answers were given."""
    return "Baselines" if method in rows.names("baseline") else MODES["iterative"]


def _readouts(cells: Cells, rows: _Rows) -> Table | None:
    """The stated score and the mean of the distribution over scores, side by side."""
    heads = [(domain, readout) for domain in rows.domains for readout in _READOUTS]
    entries = rows.constant()
    for mode, section in MODES.items():
        entries += [_Entry(section, method, method, mode) for method in rows.names("baseline", "method", mode=mode)]
    lines, modes, read = [], [], False
    for entry in entries:
        own = [rows.of(replace(entry, readout=readout), "sentence", domain) for domain, readout in heads]
        means = [row for row, (_, readout) in zip(own, heads, strict=True) if readout == "mean" and row and row["n"]]
        if means or entry.section == "Baselines":
            lines.append(Line(entry.name, tuple(cells.cell(row, f) for row in own for f in _LONG), entry.section))
            modes.append(entry.mode)
            read = read or bool(means)
    if not read:
        return None
    many = len(rows.domains) > 1
    said = {"stated": "stated", "mean": "mean"} if many else _READOUTS  # a group's name should be no wider than it is
    groups = [f"{domain}, {said[readout]}" if many else said[readout] for domain, readout in heads]
    columns = tuple(replace(COLUMNS[figure], group=group) for group in groups for figure in _LONG)
    sheet = mark_best(Table("readouts", "Two ways to read a confidence", columns, tuple(lines)), modes)
    return replace(sheet, notes=(_LEGEND, _BOLD), spans=cells.spans)


def _seeds(run: Run, sheet: Table) -> Table:
    """The sheet with a note on what its figures are means over, where they are made of result rows."""
    if len(run.seeds) < 2 or sheet.name.startswith(("running-time", "checkpoints", "sweep")):
        return sheet
    counts = {row["method"]: len(row["seeds"]) for row in run.rows}
    odd = [f"{method}: {count}" for method, count in counts.items() if count != len(run.seeds)]
    few = f" ({', '.join(odd)})" if odd else ""
    note = f"Means over {len(run.seeds)} training seeds{few}; a figure that is undefined for one of them is undefined."
    return replace(sheet, notes=(*sheet.notes, note))
