"""The table, the plots and the page of results made elsewhere, which ``lovec score`` writes."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from torch import Tensor

from lovec.core.files import atomic_folder, write_text
from lovec.core.notices import counted
from lovec.core.shown import one_line
from lovec.datasets.scored import ScoredFile, ScoredMethod
from lovec.metrics.bootstrap import Interval, draws_of, mean_interval, measure
from lovec.metrics.grouped import GroupedPairs, group_means, ranks
from lovec.metrics.powered import TooFewGroups
from lovec.metrics.results import write_results
from lovec.metrics.table import METRICS
from lovec.reports.judged import JudgedScores, judged_scores, judged_table
from lovec.reports.page import page
from lovec.reports.reliability import reliability, reliability_diagram
from lovec.reports.risk_coverage import risk_coverage_curves
from lovec.reports.shown import Picture
from lovec.reports.table import (
    Cell,
    Column,
    Line,
    Table,
    interval_cell,
    legend,
    mark_best,
    metric_column,
    print_table,
    transposed,
    write_table,
)
from lovec.reports.texts import texts
from lovec.types import ELSEWHERE, LovecError, ResultRow

_LEVEL = 0.95
_USES = {"probability": "calibration", "order": "ranking", "labels": "labels"}
"""Headings of the metrics by what they use of the pairs, see ``MetricInfo.uses``."""

_BIASED = ("ece_m", "smooth_ece")
"""Metrics of which percentiles of draws lie too high on few groups, since noise never cancels in them."""

_SPANS = ("span_iou", "span_correlation")
_SECTIONS = {"sentence": "rows", "passage": "groups"}


@dataclass(frozen=True, slots=True)
class Measured:
    """The metrics of one method at one level.

    Attributes:
        method: its name in tables.
        level: "sentence" (the rows of the file) or "passage" (the means of what belongs together).
        n: number of pairs of confidence and factuality; where there are no confidences, of labels.
        values: metrics by name; None where one is undefined or does not apply.
    """

    method: str
    level: str
    n: int
    values: Mapping[str, Interval | None]


@dataclass(frozen=True, slots=True)
class Scores:
    """Everything that was measured.

    Attributes:
        files: the files, as they were named.
        measured: one per method and level.
        probabilities: the pairs of the methods whose confidences are numbers in [0, 1], by method.
        orders: the pairs of all methods with confidences; of some only the order counts.
        notes: a sentence per thing that a reader has to know.
        draws: number of bootstrap draws behind the intervals.
        judged: what a judge's labels say beside people's, by method.
    """

    files: tuple[str, ...]
    measured: tuple[Measured, ...]
    probabilities: Mapping[str, GroupedPairs]
    orders: Mapping[str, GroupedPairs]
    notes: tuple[str, ...]
    draws: int
    judged: Mapping[str, JudgedScores]


def measured_files(files: Sequence[ScoredFile], draws: int = 1000) -> Scores:
    """Compute all metrics of all methods, with intervals.

    Args:
        files: what was read.
        draws: number of bootstrap draws behind the intervals; 0 gives none. Very large files are drawn less often.

    Raises:
        LovecError: ``draws`` is negative, or two methods have one name.
    """
    rows: list[Measured] = []
    notes: list[str] = []
    probabilities: dict[str, GroupedPairs] = {}
    orders: dict[str, GroupedPairs] = {}
    judged: dict[str, JudgedScores] = {}
    used = draws
    for name, method in _named(files).items():
        pairs, uses = _pairs(method)
        notes += _notes(name, method, pairs)
        if draws and len(pairs.group) > 1 and _is_constant(pairs.group):
            notes.append(
                f"{name}: all rows are of one group, so nothing is known of others and there are no intervals; where "
                'each row stands for itself, say --group "".'
            )
        used = min(used, draws_of(pairs, draws))
        values = measure(pairs, uses, draws)
        if method.judged is not None:
            try:
                judged[name] = judged_scores(method.judged, "probability" in uses, draws)
            except TooFewGroups as error:
                notes.append(f"{name}: nothing is measured with the judge's labels: {error}.")
        if method.spans is not None:
            for metric, numbers in zip(_SPANS, method.spans.T, strict=True):
                values[metric] = mean_interval(numbers, draws)
        if "order" in uses:
            missing = method.missing / len(method.factuality)
            values["malformed"] = Interval(missing, math.nan, math.nan)
            orders[name] = pairs
        if "probability" in uses:
            probabilities[name] = pairs
        rows.append(Measured(name, "sentence", len(pairs.factuality), values))
        means = group_means(pairs) if method.grouped and "probability" in uses else pairs
        if 1 < len(means.factuality) < len(pairs.factuality):
            rows.append(Measured(name, "passage", len(means.factuality), measure(means, uses, draws)))
    if used < draws:
        notes.append(f"So many rows are drawn {used} times for an interval, not {draws} times.")
    return Scores(tuple(file.path for file in files), tuple(rows), probabilities, orders, tuple(notes), used, judged)


def scores_table(scores: Scores) -> Table:
    """Return all metrics of all methods: a line per method and level, a column per metric that a method has."""
    applied = {name for row in scores.measured for name in row.values}
    infos = [info for name, info in METRICS.items() if name in applied and (scores.orders or info.uses == "labels")]
    infos.sort(key=lambda info: list(_USES).index(info.uses or "labels"))
    several = len({row.level for row in scores.measured}) > 1
    lines, levels = [], []
    for row in sorted(scores.measured, key=lambda row: list(_SECTIONS).index(row.level)):
        cells = [interval_cell(row.values.get(info.name), info) for info in infos]
        section = _SECTIONS[row.level] if several else ""
        lines.append(Line(row.method, (*cells, Cell(str(row.n), row.n)), section))
        levels.append(row.level)
    columns = (*(metric_column(info, _USES[info.uses or "labels"]) for info in infos), Column("n", "labels"))
    notes = [f"{legend(infos)}; -: undefined, or not measured."]
    if several:
        notes.append("Rows: every row of the file. Groups: mean confidence and mean factuality of the rows of a group.")
    ends = [found.low for row in scores.measured for found in row.values.values() if found is not None]
    has_intervals = not all(map(math.isnan, ends))
    drawn = f"{scores.draws} draws of the groups, with all their rows" if has_intervals else ""
    interval_note = f"Intervals: {100 * _LEVEL:.4g} % percentile bootstrap, {drawn}." if drawn else ""
    if drawn and (biased := [info.heading for info in infos if info.name in _BIASED]):
        interval_note += f" Those of {' and '.join(biased)} lie too high where few groups are drawn."
    if drawn and len({row.method for row in scores.measured}) > 1:
        interval_note += " Bold: better than all others; its interval overlaps none of theirs."
    table = Table("scores", "Confidences against labels", columns, tuple(lines), tuple(notes), interval_note)
    return mark_best(table, levels)


def print_scores(scores: Scores, console: Console | None = None) -> None:
    """Print the table with a line per metric, and what a reader has to know.

    Args:
        scores: what was measured.
        console: where to print; None is standard output.
    """
    console = console or Console()
    print_table(transposed(scores_table(scores), "metric"), console, intervals=True)
    if scores.judged:
        console.print()
        print_table(judged_table(scores.judged), console, intervals=True)
    for note in scores.notes:
        console.print(one_line(note), markup=False, highlight=False, soft_wrap=True)


def write_scores(scores: Scores, folder: Path, title: str, foot: str, others: Mapping[str, str] | None = None) -> str:
    """Write results.json, the table in four formats, the plots and the page, all of them or nothing.

    Args:
        scores: what was measured.
        folder: folder to write; what it held before is gone.
        title: heading of the page.
        foot: a sentence at the end of the page.
        others: content of other files to write, by name.

    Returns:
        What was written.

    Raises:
        OSError: the folder cannot be written.
    """
    table = scores_table(scores)
    tables = [table, *([judged_table(scores.judged)] if scores.judged else [])]
    with atomic_folder(folder) as fresh:
        write_results(fresh / "results.json", list(_result_rows(scores)))
        for one in tables:
            write_table(one, fresh / "tables")
        pictures = list(_plots(scores, fresh / "plots"))
        shown = [transposed(table, "metric"), *tables[1:]]
        names = [Path(file).name for file in scores.files]
        html = page(title, names, shown, pictures, (), scores.notes, foot, written=tables)
        write_text(fresh / "index.html", html, errors="replace")
        for name, content in (others or {}).items():
            write_text(fresh / name, content)
    plots = f", {counted(len(pictures), 'plot')} (svg, pdf, png)" if pictures else ""
    files = ", ".join([*(others or {}), "index.html", "results.json"])
    of_tables = "the table" if len(tables) == 1 else "the tables"
    return f"written to {folder}: {files}, {of_tables} (csv, json, md, tex){plots}"


def _plots(scores: Scores, folder: Path) -> Iterable[Picture]:
    """Draw the plots that the methods have numbers for, as SVG, PDF and PNG."""
    words = texts()["plots"]
    diagrams = {name: reliability(pairs, corp=True) for name, pairs in scores.probabilities.items()}
    drawn: tuple[tuple[str, Mapping[str, Any], Callable[..., Path]], ...] = (
        ("reliability", diagrams, reliability_diagram),
        ("risk-coverage", scores.orders, risk_coverage_curves),
    )
    for name, groups, write in drawn:
        if groups:
            title, caption = words[name]["title"], words[f"{name}-of-rows"]["caption"]
            for suffix in ("png", "pdf", "svg"):
                write(groups, folder / f"{name}.{suffix}", title=title)
            yield Picture(name, title, caption, (folder / f"{name}.svg").read_text(encoding="utf-8"))


def _result_rows(scores: Scores) -> Iterable[ResultRow]:
    for row in scores.measured:
        metrics = {name: None if interval is None else interval.value for name, interval in row.values.items()}
        yield ResultRow(row.method, "method", "scored", ELSEWHERE, row.level, "stated", None, row.n, metrics)


def _named(files: Sequence[ScoredFile]) -> dict[str, ScoredMethod]:
    """Return the methods of all files by their names in tables: the method's own, or with its file's where it helps.

    Raises:
        LovecError: two of them have one name.
    """
    stems = [Path(file.path).name.removesuffix(".gz").rsplit(".", 1)[0] for file in files]
    names = stems if len(set(stems)) == len(stems) else [file.path for file in files]
    named: dict[str, ScoredMethod] = {}
    for name, file in zip(names, files, strict=True):
        for method in file.methods:
            alone = method.name if len(files) == 1 else f"{name}: {method.name}"
            shown = alone if method.name and len(file.methods) > 1 else name
            if shown in named:
                raise LovecError(f"two methods of {file.path} are called {shown!r}, expected one each; rename one")
            named[shown] = method
    return named


def _pairs(method: ScoredMethod) -> tuple[GroupedPairs, tuple[str, ...]]:
    """Return the pairs of a method, and what of them can be used, see ``MetricInfo.uses``.

    Rows without a confidence are left out where others have one. Without any, only the labels can be used. Confidences
    of which only the order counts are replaced by their ranks.
    """
    there = ~method.confidence.isnan()
    groups = int(method.group.max()) + 1
    if not there.any():
        return GroupedPairs(torch.zeros_like(method.factuality), method.factuality, method.group, groups), ("labels",)
    confidence = method.confidence[there]
    uses = ("order", "labels") if method.order_only else ("probability", "order", "labels")
    confidence = ranks(confidence) if method.order_only else confidence
    return GroupedPairs(confidence, method.factuality[there], method.group[there], groups), uses


def _notes(name: str, method: ScoredMethod, pairs: GroupedPairs) -> Iterable[str]:
    """Yield a sentence per thing about a method that its numbers do not show."""
    if method.missing == len(method.factuality):
        yield f"{name}: there are no confidences, so only the labels are measured."
        return
    if method.order_only:
        yield f"{name}: {method.order_only}; calibration is not."
    if method.missing:
        rows = counted(len(method.factuality), "labelled row")
        yield f"{name}: {method.missing} of {rows} left out, without a confidence."
    if method.unlabelled:
        yield f"{name}: {counted(method.unlabelled, 'row')} left out, without a label."
    if len(pairs.factuality) > 1 and _is_constant(pairs.factuality):
        yield f"{name}: all labels are {float(pairs.factuality[0]):g}, so nothing can be ranked."
    if len(pairs.confidence) > 1 and _is_constant(pairs.confidence):
        yield f"{name}: all confidences are equal, so they rank nothing."


def _is_constant(values: Tensor) -> bool:
    return bool((values == values[0]).all())
