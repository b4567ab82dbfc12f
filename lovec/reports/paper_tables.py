"""The tables of a report, laid out as in the LoVeC paper; tables without data are left out.

The lines of a table are methods, in sections; its columns are the metrics of every domain. docs/tables.md describes
which tables there are and what they hold.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import product

from lovec.metrics.bootstrap import MAIN
from lovec.metrics.table import MetricInfo
from lovec.reports import diagnostic_tables
from lovec.reports.cells import BOLD, CellMaker
from lovec.reports.paper import model_named, paper_table, with_paper
from lovec.reports.results_table import custom_metrics, has_hard_labels
from lovec.reports.runs import RunResults
from lovec.reports.table import Line, Table, legend, mark_best, metric_column
from lovec.reports.texts import MAIN_READOUT, MODE_TITLES, READOUT_TITLES
from lovec.types import Kind, ResultRow

_LITERATURE = ("LUQ",)
_REGRESSION = "SFTRegression"
_READOUTS = {name: READOUT_TITLES[name] for name in ("stated", "mean")}


def report_tables(
    run: RunResults | CellMaker,
    draws: int = 1000,
    level: float = 0.95,
    paper: str | None = None,
    on_table: Callable[[str], object] = lambda name: None,
) -> list[Table]:
    """Return all tables that a run has data for, the main one first.

    Args:
        run: see ``lovec.reports.runs.read_run``; or what makes its cells, and then ``draws`` and ``level`` are those of
            the maker.
        draws: number of bootstrap draws for the intervals; 0 gives none.
        level: level of the intervals, such as 0.95.
        paper: a model of the paper, see ``lovec.reports.paper.model_named``. Its numbers stand in the same tables as
            ours where both have a column in common, else in a table of their own behind ours. None leaves them out.
        on_table: called with the name of every table before it is made.

    Raises:
        LovecError: the paper has no such model, a file cannot be read, or ``draws`` or ``level`` is out of range.
    """
    model = None if paper is None else model_named(paper)
    builder = _Builder(run if isinstance(run, CellMaker) else CellMaker(run, draws, level))
    run = builder.cells.run
    makers: dict[str, Callable[[], Table | None]] = {
        "main": lambda: builder.main("main", "sentence"),
        "passage": lambda: builder.main("passage", "passage"),
        "no-previous-scores": builder.no_previous_scores,
        "hybrid": builder.hybrid,
        "recalibrated": builder.recalibrated,
        "short-form": builder.short_form,
        "readouts": builder.readouts,
        "risk-coverage": lambda: diagnostic_tables.risk_table(builder.cells),
        "further": lambda: diagnostic_tables.further_table(builder.cells),
        "diagnostics": lambda: diagnostic_tables.diagnostics_table(builder.cells),
    }
    of_rows: dict[str, Table | None] = {}
    for name, make in makers.items():
        on_table(name)
        of_rows[name] = make()
    tables = [(key, _with_seeds_note(run, table)) for key, table in of_rows.items() if table is not None]
    others = [
        ("running-time", diagnostic_tables.running_time_table(run)),
        ("checkpoints", diagnostic_tables.checkpoints_table(run)),
        *diagnostic_tables.sweep_tables(run),
    ]
    tables += [(key, table) for key, table in others if table is not None]
    if model is None:
        return [table for _, table in tables]
    combined = [part for key, table in tables for part in with_paper(table, key, model)]
    regression = paper_table("sft-regression", model)
    measured = any(row.method == _REGRESSION for row in run.rows)
    return [*combined, regression] if regression is not None and measured else combined


@dataclass(frozen=True)
class _Entry:
    """One line of a table: its section, the method, mode and readout whose rows it shows, and its name if another."""

    section: str
    method: str
    mode: str
    readout: str = MAIN_READOUT
    name: str = ""


@dataclass(frozen=True)
class _Group:
    """One group of columns: its heading, and the domain and readout whose rows it shows; None is that of the line."""

    heading: str
    domain: str
    readout: str | None = None


class _Builder:
    """Builds the tables of result rows.

    Args:
        cells: makes the cells of a run's rows.
    """

    def __init__(self, cells: CellMaker) -> None:
        self.cells, self.rows = cells, cells.run.rows
        self._by_place = {(row.method, row.mode, row.readout, row.level, row.domain): row for row in self.rows}
        self._domains = list(dict.fromkeys(row.domain for row in self.rows))
        infos = cells.run.metrics
        self._metrics = [*(infos[name] for name in MAIN), *custom_metrics(self.rows, infos)]

    def main(self, name: str, level: str) -> Table | None:
        """Build the main results: methods of the literature, baselines, and trained methods in both modes."""
        baselines = self._select(["baseline"], "iterative")
        sections = {method: "Literature" for method in _LITERATURE}
        entries = [_Entry(sections.get(row.method, "Baselines"), row.method, "iterative") for row in baselines]
        entries += self._entries(["method"], "iterative")
        entries += self._with_own_baselines()
        return self._table(name, f"Main results, {level} level", entries, level)

    def no_previous_scores(self) -> Table | None:
        """Build the comparison of iterative tagging with and without the previous scores in the context."""
        entries = []
        for row in self._select(["ablation"], "iterative"):
            for base in row.bases if row.variant == "no previous scores" else ():
                entries.append(_Entry(base, base, "iterative", name="with previous scores"))
                entries.append(_Entry(base, row.method, "iterative", name="no previous scores"))
        return self._table("no-previous-scores", "Iterative tagging without the scores given before", entries)

    def hybrid(self) -> Table | None:
        """Build the table of means of two methods' confidences, each below the two methods."""
        entries = [
            _Entry(row.method, method, mode)
            for mode in MODE_TITLES
            for row in self._select(["hybrid"], mode)
            for method in (*row.bases, row.method)
        ]
        return self._table("hybrid", "Hybrids: the mean of two confidences", entries)

    def recalibrated(self) -> Table | None:
        """Build the table of confidences before and after recalibration on validation records, by mode and readout."""
        entries = []
        for (mode, title), (readout, words) in product(MODE_TITLES.items(), _READOUTS.items()):
            rows = self._select(["recalibrated"], mode, readout)
            for bases in dict.fromkeys(row.bases for row in rows):
                methods = [*bases, *(row.method for row in rows if row.bases == bases)]
                entries += [_Entry(f"{title}, {words}", method, mode, readout) for method in methods]
        return self._table("recalibrated", "Recalibrated on validation records", entries)

    def short_form(self) -> Table | None:
        """Build the table of short answers, which are right or wrong as a whole."""
        hard = [row.domain for row in self.rows if row.level == "sentence" and self._are_whole_answers(row)]
        if not hard:
            return None
        entries = self._entries(["baseline"], "iterative", "Baselines")
        entries += self._entries(["method", "recalibrated", "hybrid"], "iterative")
        entries += self._with_own_baselines()
        infos = self.cells.run.metrics
        metrics = [infos["auroc"], replace(infos["ece_m"], heading="ECE"), infos["brier"]]
        groups = [_Group(domain, domain) for domain in dict.fromkeys(hard)]
        return self._table("short-form", "Short answers", entries, groups=groups, metrics=metrics)

    def _are_whole_answers(self, row: ResultRow) -> bool:
        """Return whether the sentences of a row are answers by themselves, each either right or wrong."""
        answers = self._by_place.get((row.method, row.mode, row.readout, "passage", row.domain))
        return has_hard_labels(row) and (answers is None or answers.n == row.n)

    def readouts(self) -> Table | None:
        """Build the comparison of the stated score with the mean of the distribution over scores."""
        rows = [row for row in self.rows if (row.level, row.readout) == ("sentence", "mean") and row.n]
        places = {(row.method, row.mode) for row in rows}
        entries = [entry for mode in MODE_TITLES for entry in self._entries(["baseline", "method"], mode)]
        entries = [entry for entry in entries if (entry.method, entry.mode) in places]
        many = len(self._domains) > 1  # then short words keep the name of a group from being wider than its columns
        groups = [
            _Group(f"{domain}, {readout}" if many else words, domain, readout)
            for domain, (readout, words) in product(self._domains, _READOUTS.items())
        ]
        return self._table("readouts", "Two ways to read a confidence", entries, groups=groups)

    def _select(self, kinds: Sequence[Kind], mode: str, readout: str = MAIN_READOUT) -> list[ResultRow]:
        """Return the first row of every method of these kinds in a mode and readout, in the order of the rows."""
        first: dict[str, ResultRow] = {}
        for row in self.rows:
            if row.kind in kinds and (row.mode, row.readout) == (mode, readout):
                first.setdefault(row.method, row)
        return list(first.values())

    def _entries(self, kinds: Sequence[Kind], mode: str, section: str = "") -> list[_Entry]:
        """Return a line per method of these kinds in a mode, in a section that is named after the mode by default.

        In free-form tagging, baselines are those that write their own answers.
        """
        return [_Entry(section or MODE_TITLES[mode], row.method, mode) for row in self._select(kinds, mode)]

    def _with_own_baselines(self) -> list[_Entry]:
        """Return a line per method, after the baselines, of each mode but that of given texts."""
        modes = [mode for mode in MODE_TITLES if mode != "iterative"]
        return [entry for mode in modes for entry in self._entries(["baseline", "method"], mode)]

    def _table(
        self,
        name: str,
        title: str,
        entries: Sequence[_Entry],
        level: str = "sentence",
        groups: Sequence[_Group] | None = None,
        metrics: Sequence[MetricInfo] | None = None,
    ) -> Table | None:
        """Build a table from the entries that have rows; None without any.

        Args:
            name: name of the table.
            title: title of the table; the readout is added to it where all lines and columns have the same.
            entries: the lines, from top to bottom. The best constant, which shows what is reached without knowing
                anything about a sentence, is added to every table, below the methods of the literature.
            level: "sentence" or "passage".
            groups: groups of columns; None gives one per domain.
            metrics: columns of every group; None gives those of the main table.
        """
        groups = [_Group(domain, domain) for domain in self._domains] if groups is None else groups
        metrics = self._metrics if metrics is None else metrics
        constants = self._entries(["constant"], "iterative", "Baselines")
        modes, lines, rows_of = [], [], []
        shown: set[tuple[str, str, str, str, str]] = set()
        for entry in sorted([*constants, *entries], key=lambda entry: entry.section != "Literature"):
            places = [(entry.method, entry.mode, g.readout or entry.readout, level, g.domain) for g in groups]
            rows = [self._by_place.get(place) for place in places]
            if any(row is not None for row in rows):
                shown.update(places)
                cells = tuple(self.cells.cell(row, info.name) for row in rows for info in metrics)
                lines.append(Line(entry.name or entry.method, cells, entry.section))
                modes.append(entry.mode)
                rows_of.append([(row, info.name) for row in rows for info in metrics])
        if not entries or not lines:
            return None
        columns = tuple(metric_column(info, group.heading) for group in groups for info in metrics)

        def clear(first: int, second: int, place: int) -> bool:
            return self.cells.is_clear(rows_of[first][place][0], *rows_of[second][place])

        bold = (BOLD.format(group="its mode"),) if self.cells.draws and len({*modes}) < len(modes) else ()
        notes = (f"{legend(metrics)}; -: undefined.", *bold)
        readouts = {readout for _, _, readout, _, _ in shown}
        title += f", {READOUT_TITLES[readouts.pop()]}" if len(readouts) == 1 else ""
        return mark_best(Table(name, title, columns, tuple(lines), notes, self.cells.interval_note), modes, clear)


def _with_seeds_note(run: RunResults, table: Table) -> Table:
    """Return the table with a note on the seeds that its metrics are means over, if there are several."""
    if run.most_seeds < 2:
        return table
    fewer = [f"{method}: {count}" for method, count in run.seed_counts.items() if count < run.most_seeds]
    fewer += [
        f"{method}, {domain}: {count}"
        for (method, domain), count in run.domain_seeds.items()
        if count < run.seed_counts[method]
    ]
    listed = f" ({', '.join(fewer)})" if fewer else ""
    note = f"Means over {run.most_seeds} training seeds{listed}; a metric that is undefined for a seed is undefined."
    if run.divided:
        methods = [name for name in dict.fromkeys(row.method for row in run.rows) if name in run.divided]
        named = ", ".join(methods) if len(methods) < len(run.seed_counts) else "all methods"
        note += f" The seeds of {named} were tested on different questions: n is the mean, and there are no intervals."
    return replace(table, notes=(*table.notes, note))
