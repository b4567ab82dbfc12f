"""Read what training runs logged, and summarise it in tables by optimiser step.

Runs log with Lightning's CSVLogger: ``RUN/logs/version_N/metrics.csv``, one version per start. A step here is the
number of optimiser batches learned from, so step 0 is before training; the files count from 0 and are one behind.
"""

from __future__ import annotations

import csv
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from lovec.core.files import version_of
from lovec.core.shown import one_line
from lovec.metrics.table import METRICS, metric_info
from lovec.reports.table import Line, Table, legend, metric_cell, metric_column, print_table
from lovec.types import LovecError

WINDOWS = 10
"""Number of rows of the training table of a run that was not validated often enough to divide it."""

_FEWEST_VALIDATIONS = 3
_OTHER_ROWS = ("passage_", "mean_")  # prefixes of a metric at passage level, and of the mean readout


@dataclass(frozen=True, slots=True)
class TrainingLog:
    """The metrics that a training run logged.

    Attributes:
        name: folder of the run, as it was given.
        logged: values by step and name; undefined values (NaN) are left out.
    """

    name: str
    logged: Mapping[int, Mapping[str, float]]

    @property
    def last_step(self) -> int:
        """The last step that was logged."""
        return max(self.logged)

    @property
    def modes(self) -> list[str]:
        """Prefixes of what validation logged: "val" for the first evaluation mode, "val/MODE" for the others."""
        names = {name for row in self.logged.values() for name in row if name.startswith("val/")}
        return sorted({name.rpartition("/")[0] for name in names})

    def series(self, *names: str) -> list[tuple[int, float]]:
        """Return steps and values of the first of ``names`` that was logged at all; [] if none was."""
        for name in names:
            if points := [(step, row[name]) for step, row in self.logged.items() if name in row]:
                return points
        return []

    def training_series(self, metric: str) -> list[tuple[int, float]]:
        """Return steps and values of a metric of training: of the answers learned from, or else of probes."""
        return self.series(*training_names(metric))

    def validation_metrics(self, mode: str) -> list[str]:
        """Return the metrics that validation logged for sentences and stated scores, users' own ones at the end.

        Args:
            mode: one of ``modes``.
        """
        paths = (name.rpartition("/") for row in self.logged.values() for name in row)
        names = {name for prefix, _, name in paths if prefix == mode}
        other_rows = {prefix + name for name in names for prefix in _OTHER_ROWS}
        return [*(name for name in METRICS if name in names), *sorted(names - METRICS.keys() - other_rows)]


@dataclass(frozen=True, slots=True)
class LoggedRow:
    """One line of a table of a training log.

    Attributes:
        step: number of optimiser batches learned from.
        metrics: values by name; None where a metric was not logged or is undefined.
    """

    step: int
    metrics: Mapping[str, float | None]


def training_names(metric: str) -> tuple[str, str]:
    """Return the names under which training logs a metric of the answers learned from, and of probes.

    The first one that was logged counts. Of bad tags that is the probe: an objective that learns from given answers
    logs the probability of what is not a score, and no tag of a given answer is bad.
    """
    name = metric.removeprefix("mean_")
    names = f"train/{name}", f"train/probe_{name}"
    return names[::-1] if name == "malformed" else names


def read_training_log(folder: str | os.PathLike[str]) -> TrainingLog:
    """Read everything that a run logged, in the order of steps.

    A later version continues an earlier one: where both have a step, the later one counts. Versions without training
    metrics, which ``lovec validate`` writes, are skipped.

    Args:
        folder: folder of the run.

    Raises:
        LovecError: there is no log, a line of a log cannot be read, or no step of training was logged.
    """
    files = sorted(Path(folder).glob("*/version_*/metrics.csv"), key=version_of)
    if not files:
        raise LovecError(
            f"{folder} has no logs/version_N/metrics.csv; give the folder of a run (trainer.default_root_dir) that "
            "logs with CSVLogger, as the recipes do"
        )
    logged: dict[int, dict[str, float]] = {}
    for file in files:
        rows = _read_csv(file)
        if not any(name.startswith("train/") for row in rows.values() for name in row):
            continue
        begin = min(rows)
        logged = {step: row for step, row in logged.items() if step <= begin}
        for step, row in rows.items():
            logged[step] = {**logged.get(step, {}), **row}
    if not logged:
        raise LovecError(
            f"{folder} has logged no step of training; train for trainer.log_every_n_steps batches or more"
        )
    return TrainingLog(str(folder), dict(sorted(logged.items())))


def training_rows(log: TrainingLog) -> list[LoggedRow]:
    """Return the rows of the training table: means over the steps since the row before.

    A row ends at each validation. If there were fewer than three, the run is divided into ten equal parts, and a row
    ends at the last step that was logged in its part.
    """
    ends = sorted({row.step for mode in log.modes for row in validation_rows(log, mode)} - {0})
    divided = len(ends) < _FEWEST_VALIDATIONS
    if divided:
        ends = [math.ceil(log.last_step * part / WINDOWS) for part in range(1, WINDOWS + 1)]
    if ends[-1] < log.last_step:
        ends.append(log.last_step)
    series = {name: points for name in METRICS if (points := log.training_series(name))}
    rows = []
    for begin, end in zip([-1, *ends], ends, strict=False):
        steps = [step for step in log.logged if begin < step <= end]
        values = {name: [v for step, v in points if begin < step <= end] for name, points in series.items()}
        if any(values.values()):
            means = {name: sum(part) / len(part) if part else None for name, part in values.items()}
            rows.append(LoggedRow(steps[-1] if divided else end, means))
    return rows


def validation_rows(log: TrainingLog, mode: str) -> list[LoggedRow]:
    """Return the rows of a validation table, one per validation.

    Args:
        log: log of the run.
        mode: one of ``log.modes``.
    """
    names = log.validation_metrics(mode)
    rows = [LoggedRow(step, {name: row.get(f"{mode}/{name}") for name in names}) for step, row in log.logged.items()]
    return [row for row in rows if any(value is not None for value in row.metrics.values())]


def curve_rows(log: TrainingLog) -> list[dict[str, Any]]:
    """Return the rows of all tables for a file.

    Returns:
        Mappings with the keys ``run``, ``table`` ("train", or one of ``log.modes``), ``step``, and the name of each
        metric.
    """
    return [
        {"run": log.name, "table": table, "step": row.step, **row.metrics}
        for table, rows in _rows_by_table(log).items()
        for row in rows
    ]


def print_training_log(log: TrainingLog, console: Console | None = None) -> None:
    """Print the tables of a log; plain text where there is no terminal.

    Args:
        log: log of a run.
        console: where to print; None is standard output.
    """
    console = console or Console()
    console.print(one_line(log.name), style="bold", markup=False, highlight=False, soft_wrap=True)
    for name, rows in _rows_by_table(log).items():
        if rows:
            title = "Training, means since the row before" if name == "train" else f"Validation, {name}/"
            print_table(_table(name, title, rows), console)
            console.print()


def _rows_by_table(log: TrainingLog) -> dict[str, list[LoggedRow]]:
    return {"train": training_rows(log), **{mode: validation_rows(log, mode) for mode in log.modes}}


def _table(name: str, title: str, rows: Sequence[LoggedRow]) -> Table:
    infos = [metric_info(metric) for metric in rows[0].metrics]
    lines = [Line(str(row.step), tuple(metric_cell(row.metrics[info.name], info) for info in infos)) for row in rows]
    notes = (f"{legend(infos)}; step 0: before training; -: undefined.",)
    return Table(name, title, tuple(map(metric_column, infos)), tuple(lines), notes, corner="step")


def _read_csv(file: Path) -> dict[int, dict[str, float]]:
    """Return the metrics of one file by step; lines of the same step are merged."""
    rows: dict[int, dict[str, float]] = {}
    with file.open(encoding="utf-8", newline="") as lines:
        for number, line in enumerate(csv.DictReader(lines), start=2):
            try:
                values = {
                    name: float(value) for name, value in line.items() if name.startswith(("train/", "val/")) and value
                }
                step = int(line["step"]) + 1
            except (KeyError, TypeError, ValueError, AttributeError):
                raise LovecError(f"{file}, line {number}: expected numbers under step, train/... and val/...") from None
            rows.setdefault(step, {}).update({name: value for name, value in values.items() if math.isfinite(value)})
    return rows
