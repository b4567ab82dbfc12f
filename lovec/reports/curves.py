"""Training curves: what runs logged, by step, as tables, as rows for files and as a figure.

Runs log with Lightning's CSVLogger: ``RUN/logs/version_N/metrics.csv``, one version a start. Steps here are optimiser
batches learned from, so 0 is before training; the files number batches from 0 and are one behind.
"""

from __future__ import annotations

import csv
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich import box
from rich.console import Console
from rich.table import Table

from lovec.reports.style import COLOURS, FAINT, INK, finish, write_figure
from lovec.types import LovecError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

WINDOWS = 10
"""Rows of the training table where validation was too rare to give them."""

TRAINING = {
    "reward": ("train/reward",),
    "loss": ("train/loss",),
    "malformed": ("train/malformed", "train/probe_malformed"),
    "entropy": ("train/entropy", "train/probe_entropy"),
    "mean_confidence": ("train/confidence", "train/probe_confidence"),
    "mean_factuality": ("train/factuality", "train/probe_factuality"),
    "words": ("train/words", "train/probe_words"),
}
"""Figures of the training table, and where they are logged: what was sampled to learn from, or else probes."""

VALIDATION = (
    "brier",
    "ece_m",
    "spearman",
    "malformed",
    "mean_confidence",
    "mean_factuality",
    "entropy",
    "distinct",
    "words",
)
"""Figures of the validation table."""

PLACES = ("val", "val/free-form")
"""The first evaluation mode, and free-form tagging where it is another one."""

_HEADINGS = {
    "step": "Step",
    "reward": "Mean reward",
    "loss": "Loss",
    "brier": "BS",
    "ece_m": "ECE-M",
    "spearman": "SC",
    "malformed": "bad tags",
    "entropy": "entropy",
    "distinct": "distinct",
    "mean_confidence": "mean c",
    "mean_factuality": "mean f",
    "words": "words",
}
_PLAIN = {
    "reward": 3,
    "loss": 3,
    "entropy": 2,
    "distinct": 0,
    "words": 1,
}  # digits; what is not here is shown in percent
_DASHES: tuple[Any, ...] = ("-", (0, (4, 2)))
_WIDTH, _HEIGHT = 3.7, 2.1  # inches of a panel
_LEAST = 5.0  # percent that an axis shows at least, so that one bad tag is no mountain


_Lines = list[tuple[str, tuple[str, ...]]]  # of a panel: label and names, of which the first that was logged is drawn


@dataclass(frozen=True, slots=True)
class Run:
    """What a run logged.

    Attributes:
        name: the folder as it was given.
        logged: figures by step; what was NaN is left out.
    """

    name: str
    logged: Mapping[int, Mapping[str, float]]

    def series(self, *names: str) -> list[tuple[int, float]]:
        """Steps and values of the first of ``names`` that was logged at all."""
        for name in names:
            if found := [(step, row[name]) for step, row in self.logged.items() if name in row]:
                return found
        return []


def read_run(folder: str | os.PathLike[str]) -> Run:
    """Everything a run has logged, in the order of steps.

    A later version goes on from an earlier one: of steps that both have, the later one's count. A version without
    training figures (``lovec validate`` leaves such ones) is passed over.

    Raises:
        LovecError: there is no log, a line of one cannot be read, or no step was logged.
    """
    files = sorted(Path(folder).glob("*/version_*/metrics.csv"), key=_version)
    if not files:
        raise LovecError(
            f"{folder} has no logs/version_N/metrics.csv; give the folder of a run (trainer.default_root_dir) that "
            "logs with CSVLogger, as the recipes do"
        )
    logged: dict[int, dict[str, float]] = {}
    for file in files:
        rows = _rows(file)
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
    return Run(str(folder), dict(sorted(logged.items())))


def training_rows(run: Run) -> list[dict[str, Any]]:
    """The training table: means over the steps since the row before.

    Rows end where validation was; where that was less than three times, the run is cut into ten equal parts, and a row
    ends at the last step that was logged in its part.
    """
    marks = sorted({step for place in PLACES for step, _ in run.series(f"{place}/brier", f"{place}/malformed")} - {0})
    last = max(run.logged)
    cut = len(marks) < 3
    if cut:
        marks = [math.ceil(last * part / WINDOWS) for part in range(1, WINDOWS + 1)]
    if marks[-1] < last:
        marks.append(last)
    rows = []
    for begin, end in zip([-1, *marks], marks, strict=False):
        logged = [step for step in run.logged if begin < step <= end]
        row: dict[str, Any] = {"step": logged[-1] if cut and logged else end}
        for figure, names in TRAINING.items():
            inside = [value for step, value in run.series(*names) if begin < step <= end]
            row[figure] = sum(inside) / len(inside) if inside else None
        if any(row[figure] is not None for figure in TRAINING):
            rows.append(row)
    return rows


def validation_rows(run: Run, place: str) -> list[dict[str, Any]]:
    """The validation table of one of ``PLACES``, a row for every time it was run."""
    return [
        {"step": step, **{name: row.get(f"{place}/{name}") for name in VALIDATION}}
        for step, row in run.logged.items()
        if f"{place}/malformed" in row
    ]


def curve_rows(run: Run) -> list[dict[str, Any]]:
    """Both tables for a file: each row says its ``run`` and its ``table`` ("train", or one of ``PLACES``)."""
    tables = {"train": training_rows(run), **{place: validation_rows(run, place) for place in PLACES}}
    return [{"run": run.name, "table": table, **row} for table, rows in tables.items() for row in rows]


def print_curves(run: Run, console: Console | None = None) -> None:
    """Prints both tables; plain text where there is no terminal."""
    console = console or Console(width=max(100, Console().width))
    console.print(run.name, style="bold")
    _print(console, "Training, means since the row before", training_rows(run), tuple(TRAINING))
    for place in PLACES:
        _print(console, f"Validation, {place}/", validation_rows(run, place), VALIDATION)
    console.print("BS, ECE-M, SC, bad tags, mean c and mean f in %; step 0: before training; -: undefined", style="dim")


def curves_figure(runs: Sequence[Run], path: str | os.PathLike[str]) -> Path:
    """Write the curves of runs as a figure; the same logs give the same bytes.

    Args:
        runs: one is drawn with a colour a figure, several with a colour a run.
        path: the file to write, .svg or .png.

    Returns:
        The path written to.

    Raises:
        LovecError: there are more runs than colours that can be told apart, or the file has another ending.
    """
    if not 1 <= len(runs) <= len(COLOURS):
        raise LovecError(f"got {len(runs)} runs to draw, expected 1 to {len(COLOURS)}")
    return write_figure(lambda: draw(runs), path, "Training curves")


def draw(runs: Sequence[Run]) -> Figure:
    """The figure: two panels a row, those without any figure left out."""
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    panels = [(title, lines) for title, lines in _panels(runs) if any(run.series(*n) for _, n in lines for run in runs)]
    rows = -(-len(panels) // 2)
    figure = Figure(
        figsize=(2 * _WIDTH, rows * _HEIGHT + 0.5), layout=ConstrainedLayoutEngine(hspace=0.06, wspace=0.05)
    )
    axes = list(figure.subplots(rows, 2, squeeze=False).flat)
    for ax, (title, lines) in zip(axes, panels, strict=False):
        _panel(ax, title, lines, runs)
    for ax in axes[len(panels) :]:
        ax.set_visible(False)
    figure.supxlabel("optimiser steps", fontsize=10, color=INK)
    if len(runs) > 1:
        from matplotlib.lines import Line2D

        handles = [Line2D([], [], color=colour, label=run.name) for run, colour in zip(runs, COLOURS, strict=False)]
        figure.legend(handles=handles, loc="outside upper center", ncols=3, fontsize=9, frameon=False)
    return figure


def _panels(runs: Sequence[Run]) -> list[tuple[str, _Lines]]:
    """Titles of all panels, and the lines of each."""
    earned = "reward" if any(run.series(*TRAINING["reward"]) for run in runs) else "loss"
    broken = ("val/free-form/malformed", "val/malformed")
    panels: list[tuple[str, _Lines]] = [
        (f"{earned.capitalize()} in training", [(earned, TRAINING[earned])]),
        ("Bad tags, %", [("training", TRAINING["malformed"]), ("validation", broken)]),
        ("Training: words an answer", [("words", TRAINING["words"])]),
        ("Training: confidence, factuality, %", _pair(TRAINING["mean_confidence"], TRAINING["mean_factuality"])),
    ]
    for place, name in zip(PLACES, ("Validation", "Validation, free-form"), strict=True):
        errors: _Lines = [("BS", (f"{place}/brier",)), ("ECE-M", (f"{place}/ece_m",))]
        means = _pair((f"{place}/mean_confidence",), (f"{place}/mean_factuality",))
        panels += [(f"{name}: BS, ECE-M, %", errors), (f"{name}: confidence, factuality, %", means)]
    return panels


def _pair(confidence: tuple[str, ...], factuality: tuple[str, ...]) -> _Lines:
    return [("mean c", confidence), ("mean f", factuality)]


def _panel(ax: Any, title: str, lines: _Lines, runs: Sequence[Run]) -> None:
    """One panel: a dash pattern a line, and a colour a line, too, where there is one run."""
    from matplotlib.lines import Line2D

    percent = title.endswith("%")
    for i, (_, names) in enumerate(lines):
        for j, run in enumerate(runs):
            if points := run.series(*names):
                steps, values = zip(*points, strict=True)
                ax.plot(
                    steps,
                    [100 * value for value in values] if percent else values,
                    color=COLOURS[i if len(runs) == 1 else j],
                    linestyle=_DASHES[i],
                    linewidth=1.5,
                    marker="o" if len(points) <= 2 * WINDOWS else None,
                    markersize=3.5,
                    clip_on=False,
                )
    ax.set_title(title, fontsize=10, color=INK, loc="left")
    ax.grid(axis="y", color=FAINT, alpha=0.25, linewidth=0.6)
    last = max(max(run.logged) for run in runs)
    ax.set_xlim(-0.02 * last, 1.02 * last)
    if percent or title.endswith("words an answer"):
        ax.set_ylim(bottom=0)
    if title.endswith("factuality, %"):
        ax.set_ylim(0, 100)
    elif percent:
        ax.set_ylim(top=max(_LEAST, ax.get_ylim()[1]))
    colours = COLOURS if len(runs) == 1 else (INK,) * len(lines)  # several runs: the legend above tells them apart
    handles = [
        Line2D([], [], color=colour, linestyle=dashes, label=label)
        for (label, names), colour, dashes in zip(lines, colours, _DASHES, strict=False)
        if any(run.series(*names) for run in runs)
    ]
    if len(handles) > 1:
        ax.legend(handles=handles, handlelength=2.6, fontsize=8, frameon=False, labelcolor=INK)
    finish(ax)


def _print(console: Console, title: str, rows: Sequence[Mapping[str, Any]], names: Sequence[str]) -> None:
    """One table, with the columns that hold something."""
    if not rows:
        return
    shown = ["step", *(name for name in names if any(row[name] is not None for row in rows))]
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=0, pad_edge=False)
    for name in shown:
        table.add_column(_HEADINGS[name], justify="right", no_wrap=True, min_width=8)
    for row in rows:
        table.add_row(*(_cell(name, row[name]) for name in shown))
    console.print(table)


def _cell(name: str, value: float | None) -> str:
    if name == "step":
        return str(value)
    if value is None:
        return "-"
    return f"{value:.{_PLAIN[name]}f}" if name in _PLAIN else f"{100 * value:.1f}"


def _rows(file: Path) -> dict[int, dict[str, float]]:
    """Figures of one log by step; rows of the same step are put together."""
    rows: dict[int, dict[str, float]] = {}
    with file.open(encoding="utf-8", newline="") as lines:
        for number, line in enumerate(csv.DictReader(lines), start=2):
            try:
                found = {
                    name: float(value) for name, value in line.items() if name.startswith(("train/", "val/")) and value
                }
                step = int(line["step"]) + 1
            except (KeyError, TypeError, ValueError, AttributeError):
                raise LovecError(f"{file}, line {number}: expected numbers under step, train/... and val/...") from None
            rows.setdefault(step, {}).update({name: value for name, value in found.items() if math.isfinite(value)})
    return rows


def _version(file: Path) -> int:
    number = file.parent.name.rpartition("_")[2]
    return int(number) if number.isdigit() else -1
