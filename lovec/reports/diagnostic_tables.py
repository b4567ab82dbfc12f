"""Tables of what was measured beside calibration: thresholds, texts, running times, training steps, sweeps."""

from __future__ import annotations

import logging
import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import mean

import torch

from lovec.metrics.bootstrap import MAIN
from lovec.metrics.records import sentence_pairs
from lovec.metrics.risk import aurc, thresholds
from lovec.metrics.table import METRICS, MetricInfo
from lovec.reports.cells import BOLD, CellMaker, in_domain, levels_of
from lovec.reports.results_table import custom_metrics
from lovec.reports.runs import RunResults, stored_readout
from lovec.reports.table import Cell, Column, Line, Table, legend, mark_best, metric_cell, metric_column
from lovec.reports.texts import MAIN_READOUT, MODE_TITLES, READOUT_TITLES, texts
from lovec.reports.times import Timing, conditions, free_form_seconds, plain_answer_seconds, timings
from lovec.reports.training_log import read_training_log, training_rows, validation_rows
from lovec.types import LovecError, ResultRow

log = logging.getLogger(__name__)

_DIAGNOSTICS = (
    "words", "mean_factuality", "diversity", "ttr", "malformed", "abstained", "cut_off", "distinct", "entropy",
    "ordinality",
)  # fmt: skip
_SWEPT = (*MAIN, "malformed")
_KEPT = MetricInfo("kept", "kept")
_PHASES = ("writing", "sampling", "judging", "scoring")  # in the order of columns; other phases follow
_TIME_SECTIONS = ("Plain answers", "Baselines", *MODE_TITLES.values())


def risk_table(cells: CellMaker) -> Table | None:
    """Return the table of what a threshold keeps and how true that is; None without tagged records."""
    run = cells.run
    levels = levels_of(record for key in run.files for record in run.tagged_records(*key))
    scores = range(levels // 2, levels)
    lines, rows = [], []
    for section, row in _sections(run, MODE_TITLES, ("ablation", "recalibrated")):
        if values := _kept_by_threshold(run, row, scores):
            infos = [METRICS["aurc"], *([_KEPT, METRICS["mean_factuality"]] * len(scores))]
            lines.append(Line(row.method, tuple(map(metric_cell, values, infos)), section))
            rows.append((row, section if row.mode == "iterative" else f"{section} {row.method}"))
    if not lines:
        return None
    columns = [metric_column(METRICS["aurc"])]
    for score in scores:
        columns += [metric_column(info, f"score >= {score}") for info in (_KEPT, METRICS["mean_factuality"])]
    compared = cells.draws and len({group for _, group in rows}) < len(rows)
    bold = (BOLD.format(group="its section") + " Free-form answers differ, so none is.",) if compared else ()
    notes = (*texts()["tables"]["risk-coverage"], *bold)
    table = Table("risk-coverage", _titled("What a threshold keeps"), tuple(columns), tuple(lines), notes)

    def clear(first: int, second: int, place: int) -> bool:
        return place == 0 and cells.is_clear(rows[first][0], rows[second][0], "aurc")

    return mark_best(table, [group for _, group in rows], clear)


def further_table(cells: CellMaker) -> Table | None:
    """Return the table of further metrics of calibration and ranking; None if none of them was measured."""
    infos = [info for info in METRICS.values() if info.detail]
    rows = list(_sections(cells.run, MODE_TITLES, ("ablation",)))
    infos = [info for info in infos if any(row.metrics.get(info.name) is not None for _, row in rows)]
    if not infos:
        return None
    lines = [
        Line(row.method, tuple(metric_cell(row.metrics.get(info.name), info) for info in infos), section)
        for section, row in rows
    ]
    notes = (f"{legend(infos)}; -: undefined.", *texts()["tables"]["further"])
    columns = tuple(metric_column(info) for info in infos)
    return Table("further", _titled("Further metrics"), columns, tuple(lines), notes)


def diagnostics_table(cells: CellMaker) -> Table | None:
    """Return the table of what the answers and their scores are like; None if none of it was measured."""
    rows = list(_sections(cells.run, reversed(list(MODE_TITLES)), ("ablation", "recalibrated", "hybrid", "constant")))
    names = [name for name in _DIAGNOSTICS if any(row.metrics.get(name) is not None for _, row in rows)]
    if {*names} <= {"mean_factuality", "malformed"}:
        return None
    lines = [Line(row.method, tuple(cells.cell(row, name) for name in names), section) for section, row in rows]
    columns = tuple(metric_column(METRICS[name]) for name in names)
    notes = tuple(texts()["tables"]["diagnostics"])
    return Table("diagnostics", _titled("Answers and scores"), columns, tuple(lines), notes)


def running_time_table(run: RunResults) -> Table | None:
    """Return the table of seconds per answer, by phase and as a multiple of free-form tagging; None without times.

    Where several data sets were tested, each has sections of its own.
    """
    shown = [timing for timing in timings(run) if timing.kind != "ablation"]
    if not shown:
        return None
    order = [row.method for row in run.rows]
    data = list(dict.fromkeys(timing.data for timing in shown))
    shown.sort(
        key=lambda t: (_TIME_SECTIONS.index(_time_section(t)), data.index(t.data), [*order, t.method].index(t.method))
    )
    plain, base = plain_answer_seconds(shown), free_form_seconds(shown)
    measured = {phase for timing in shown for phase in timing.seconds}
    phases = [*(phase for phase in _PHASES if phase in measured), *sorted(measured - {*_PHASES})]
    lines = []
    for timing in shown:
        cells = dict(_time_cells(timing, phases, plain, base))
        section = ", ".join(filter(None, (_time_section(timing), timing.data)))
        lines.append(Line(timing.method, tuple(cells.values()), section))
    return Table("running-time", "Running time", tuple(cells), tuple(lines), tuple(_time_notes(shown, plain, base)))


def checkpoints_table(run: RunResults) -> Table | None:
    """Return the table of validation metrics by training step; None if no run validated more than once."""
    places: list[tuple[str, int, dict[str, float | None]]] = []
    for folder in run.logs:
        try:
            training = read_training_log(folder)
        except LovecError as error:  # a log that cannot be read must not cost the other tables
            log.warning("no table of checkpoints of %s: %s", folder, error)
            continue
        rewards = {row.step: row.metrics.get("reward") for row in training_rows(training)}
        for mode in training.modes:
            section = f"{_log_title(run, folder)}, {'first mode' if mode == 'val' else mode.removeprefix('val/')}"
            rows = validation_rows(training, mode)
            for row in rows if len(rows) > 1 else []:
                places.append((section, row.step, {**row.metrics, "reward": rewards.get(row.step)}))
    if not places:
        return None
    rewarded = any(values["reward"] is not None for _, _, values in places)
    names = (*MAIN, "reward") if rewarded else MAIN
    note = texts()["tables"]["checkpoints-with-rewards" if rewarded else "checkpoints"]
    lines = [
        Line(f"step {step}", tuple(metric_cell(values.get(name), METRICS[name]) for name in names), section)
        for section, step, values in places
    ]
    columns = tuple(metric_column(METRICS[name]) for name in names)
    return Table("checkpoints", "Intermediate checkpoints", columns, tuple(lines), tuple(note), corner="step")


def sweep_tables(run: RunResults) -> Iterator[tuple[str, Table]]:
    """Yield the table of every sweep, each with its kind.

    The kind is "sweep-reward" or "sweep-oracle" if the sweep varies options of a reward or an oracle, else "sweep".
    """
    for number, (folder, results) in enumerate(run.sweeps.items(), start=1):
        options = [option.partition("=")[0] for row in results.rows for option in row.options]
        varied = [name for name in ("reward", "oracle") if any(f".{name}" in option for option in options)]
        name = "sweep" if len(run.sweeps) == 1 else f"sweep-{number}"
        table = sweep_table(results.rows, f"Sweep {folder.name}", results.metrics, ranges=results.metrics)
        yield "-".join(["sweep", *varied[:1]]), replace(table, name=name)


def sweep_table(
    rows: Iterable[ResultRow],
    title: str = "",
    metrics: Mapping[str, MetricInfo] = METRICS,
    ranges: Collection[str] = ("brier",),
) -> Table:
    """Return the table of a sweep: a line per variation with means over seeds, the evaluation modes side by side.

    Args:
        rows: one per variation (``method``), mode and seed; those of sentences and stated scores are shown.
        title: what the table shows.
        metrics: how to show every metric, by name, see ``lovec.metrics.results.Results.metrics``.
        ranges: metrics whose range over the seeds is printed as an interval; CSV and JSON have the range of all.
    """
    rows = [row for row in rows if (row.level, row.readout) == ("sentence", MAIN_READOUT)]
    infos = [*(metrics[name] for name in _SWEPT), *custom_metrics(rows, metrics)]
    modes = list(dict.fromkeys(row.mode for row in rows))
    lines = []
    for method in dict.fromkeys(row.method for row in rows):
        variation = [row for row in rows if row.method == method]
        cells = [
            _mean_over_seeds([row.metrics.get(info.name) for row in variation if row.mode == mode], info, ranges)
            for mode in modes
            for info in infos
        ]
        seconds = [row.metrics.get("seconds") for row in variation]
        lines.append(Line(method, (*cells, _mean_over_seeds(seconds, metrics["seconds"], ranges=()))))
    columns = [metric_column(info, MODE_TITLES.get(mode, mode)) for mode in modes for info in infos]
    columns.append(Column(metrics["seconds"].heading))
    notes = [
        f"Validation records, {READOUT_TITLES[MAIN_READOUT]}. {legend(infos)}; s: seconds of a run (with --jobs, "
        "beside others); -: undefined."
    ]
    if (seeds := len({row.seed for row in rows})) > 1:
        notes.append(f"Means over {seeds} training seeds; in brackets: the range over them.")
        notes.append("Bold: better than all others with every seed: its range overlaps none of theirs.")
    return mark_best(Table("sweep", title, tuple(columns), tuple(lines), tuple(notes), corner="variation"))


def _titled(title: str) -> str:
    """Return the title of a table of the rows that ``_sections`` yields, with their readout."""
    return f"{title}, {READOUT_TITLES[MAIN_READOUT]}"


def _sections(run: RunResults, modes: Iterable[str], without: Collection[str]) -> Iterator[tuple[str, ResultRow]]:
    """Yield the sentence rows of the main readout by mode and domain, with the heading of their section.

    Args:
        run: results with rows.
        modes: evaluation modes in the order of their sections.
        without: kinds of rows that are left out.
    """
    domains = list(dict.fromkeys(row.domain for row in run.rows))
    for mode in modes:
        for domain in domains:
            section = f"{MODE_TITLES[mode]}, {domain}" if len(domains) > 1 else MODE_TITLES[mode]
            for row in run.rows:
                place = (row.mode, row.domain, row.level, row.readout)
                if place == (mode, domain, "sentence", MAIN_READOUT) and row.kind not in without:
                    yield section, row


def _kept_by_threshold(run: RunResults, row: ResultRow, scores: range) -> list[float]:
    """Return AURC, then per score the share that it keeps and its mean factuality; [] without tagged records.

    All are means over seeds. ``scores`` ends at the highest score of the scale.
    """
    by_seed = []
    for records in run.records_by_seed(row.method, row.mode, row.readout):
        if not (records := in_domain(records, row.domain)):
            continue
        confidence, factuality, _ = sentence_pairs(records, stored_readout(row))
        pair = torch.tensor(confidence, dtype=torch.float64), torch.tensor(factuality, dtype=torch.float64)
        kept, true = (values.tolist() for values in thresholds(*pair, levels=scores.stop))
        by_seed.append([float(aurc(*pair)), *(value for score in scores for value in (kept[score], true[score]))])
    if all(math.isnan(values[0]) for values in by_seed):
        return []
    return [mean(values) for values in zip(*by_seed, strict=True)]


def _time_section(timing: Timing) -> str:
    if timing.kind == "answers":
        return "Plain answers"
    return "Baselines" if (timing.kind, timing.mode) == ("baseline", "iterative") else MODE_TITLES[timing.mode]


def _time_cells(
    timing: Timing, phases: Iterable[str], plain: Mapping[str, float], base: Mapping[str, float]
) -> Iterator[tuple[Column, Cell | None]]:
    """Yield the columns of the running times with the cells of one line.

    Args:
        timing: what the line shows.
        phases: columns of single phases.
        plain: seconds of a plain answer, which iterative tagging waits for, by the data, where timed.
        base: seconds of an answer in free-form tagging, by the data, where timed.
    """
    seconds = "seconds per answer"
    for phase in phases:
        yield Column(phase, seconds), _seconds(timing.seconds[phase]) if phase in timing.seconds else None
    waited = plain.get(timing.data, 0.0) if timing.mode == "iterative" else 0.0
    whole = timing.total + waited
    yield Column("needed", seconds, "lower"), _seconds(timing.total, timing.spread)
    if plain:
        low, high = timing.spread
        with_answer = _seconds(whole, (low + waited, high + waited)) if timing.data in plain else None
        yield Column("with the answer", seconds, "lower"), with_answer
    if base:
        ratio = whole / base[timing.data] if timing.data in base else None
        yield Column("times free-form"), None if ratio is None else Cell(f"{ratio:.1f}", ratio)
    yield Column("context tokens"), Cell(f"{timing.prefill_tokens:.0f}", timing.prefill_tokens)
    yield Column("answers"), Cell(str(timing.records), timing.records)


def _time_notes(shown: Sequence[Timing], plain: Mapping[str, float], base: Mapping[str, float]) -> Iterator[str]:
    yield from texts()["tables"]["running-time"]
    if shared := conditions(shown):
        yield shared
    if plain:
        yield from texts()["tables"]["with-the-answer"]
    if base:
        methods = dict.fromkeys(t.method for t in shown if (t.mode, t.kind) == ("free-form", "method"))
        yield f"Times free-form: as a multiple of free-form tagging (the mean of {', '.join(methods)})."
    if (runs := max(timing.runs for timing in shown)) > 1:
        yield f"Medians over up to {runs} runs, and the range over them; needed is the median of the sums."


def _seconds(value: float, spread: tuple[float, float] | None = None) -> Cell:
    """Return a cell of seconds, with their range over several runs where it is more than one number."""
    text, *ends = [f"{number:.3f}" if number < 1 else f"{number:.2f}" for number in (value, *(spread or ()))]
    if spread is None or ends[0] == ends[1]:
        return Cell(text, value)
    return Cell(text, value, *spread, interval=f"{ends[0]} to {ends[1]}")


def _log_title(run: RunResults, folder: Path) -> str:
    """Return the name of a run's folder, with the folder above where other runs have the same name."""
    same = [other for other in run.logs if other.name == folder.name]
    return folder.name if len(same) == 1 else f"{folder.parent.name}/{folder.name}"


def _mean_over_seeds(values: Sequence[float | None], info: MetricInfo, ranges: Collection[str]) -> Cell:
    """Return the mean of a metric over seeds with its range; undefined where it is undefined for one seed."""
    defined = [value for value in values if value is not None]
    if not defined or len(defined) < len(values):
        return metric_cell(None, info)
    if len(defined) == 1:
        return metric_cell(defined[0], info)
    low, high = min(defined), max(defined)
    cell = metric_cell(mean(defined), info, low, high)
    different = info.name in ranges and info.text(low) != info.text(high)
    return cell if different else replace(cell, interval="")
