"""Training curves: what runs logged, by step, as a plot."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any

from lovec.metrics.table import METRICS, metric_info
from lovec.reports.style import COLOURS, INK, FilePath, fitting, legend_columns, write_plot
from lovec.reports.training_log import WINDOWS, TrainingLog, training_names
from lovec.types import LovecError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_DASHES: tuple[Any, ...] = ("-", (0, (4, 2)))
_WIDTH, _HEIGHT = 3.7, 2.1  # inches of a panel
_NAME, _MOST_COLUMNS = 2.2, 3  # inches of a run's name above the panels, and names in a line
_LEAST_PERCENT = 5.0  # least upper end of an axis, so that one bad tag does not fill the panel


@dataclass(frozen=True, slots=True)
class _Panel:
    """What a panel shows.

    Attributes:
        title: title of the panel.
        lines: label and logged names of each line; the first name that was logged is drawn.
        percent: whether values are drawn in percent.
        limits: ends of the vertical axis; None leaves an end to the values.
    """

    title: str
    lines: tuple[tuple[str, tuple[str, ...]], ...]
    percent: bool = True
    limits: tuple[float | None, float | None] = (0, None)


def write_curves(logs: Sequence[TrainingLog], path: FilePath) -> Path:
    """Write the curves of training runs as a plot; the same logs give the same bytes.

    Args:
        logs: one log is drawn with a colour per metric, several with a colour per run.
        path: file to write, .svg or .png.

    Returns:
        The path written to.

    Raises:
        LovecError: there is no log, there are more logs than colours that can be told apart, or the name of the file
            does not end in .svg or .png.
    """
    if not 1 <= len(logs) <= len(COLOURS):
        raise LovecError(f"got {len(logs)} runs to draw, expected 1 to {len(COLOURS)}")
    return write_plot(lambda: draw(logs), path, "Training curves")


def draw(logs: Sequence[TrainingLog]) -> Figure:
    """Draw the curves of training runs, two panels per row; panels without any value are left out."""
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

    panels = [panel for panel in _panels(logs) if any(log.series(*names) for _, names in panel.lines for log in logs)]
    rows = -(-len(panels) // 2)
    figure = Figure(figsize=(2 * _WIDTH, rows * _HEIGHT + 0.5), layout="constrained")
    axes = list(figure.subplots(rows, 2, squeeze=False).flat)
    for ax, panel in zip(axes, panels, strict=False):
        _draw_panel(ax, panel, logs)
    for ax in axes[len(panels) :]:
        ax.set_visible(False)
    figure.supxlabel("optimiser steps", fontsize=10)
    if len(logs) > 1:
        names = [fitting(name, _NAME, 9) for name in _told_apart([log.name for log in logs])]
        handles = [Line2D([], [], color=colour, label=name) for name, colour in zip(names, COLOURS, strict=False)]
        columns = legend_columns(names, 2 * _WIDTH, _MOST_COLUMNS)
        figure.legend(handles=handles, loc="outside upper center", ncols=columns)
    return figure


def _told_apart(folders: Sequence[str]) -> list[str]:
    """Return the folders without the parts at their beginning that all of them share; each keeps its last part."""
    parts = [PurePath(folder).parts for folder in folders]
    most = min(map(len, parts)) - 1
    shared = next((at for at in range(most) if len({folder[at] for folder in parts}) > 1), max(most, 0))
    return [str(PurePath(*folder[shared:])) for folder in parts]


def _panels(logs: Sequence[TrainingLog]) -> Iterator[_Panel]:
    """Yield all panels, those of training first, then those of each validated mode."""
    modes = sorted({mode for log in logs for mode in log.modes})
    objective = "reward" if any(log.training_series("reward") for log in logs) else "loss"
    bad_tags = tuple(f"{mode}/malformed" for mode in reversed(modes))  # free-form first, where it is another mode
    yield _Panel(f"{objective.capitalize()} in training", (_training(objective),), percent=False, limits=(None, None))
    yield _Panel("Bad tags, %", (("training", training_names("malformed")), ("validation", bad_tags)))
    yield _Panel("Training: words per answer", (_training("words"),), percent=False)
    means = ("mean_confidence", "mean_factuality")
    title = "confidence, factuality, %"
    yield _Panel(f"Training: {title}", tuple(map(_training, means)), limits=(0, 100))
    for mode in modes:
        name = ", ".join(["Validation", *mode.split("/")[1:]])
        yield _Panel(f"{name}: BS, ECE-M, %", tuple(_validation(mode, metric) for metric in ("brier", "ece_m")))
        yield _Panel(f"{name}: {title}", tuple(_validation(mode, metric) for metric in means), limits=(0, 100))
        for metric in dict.fromkeys(metric for log in logs for metric in log.validation_metrics(mode)):
            if metric not in METRICS:
                yield _Panel(f"{name}: {metric}", (_validation(mode, metric),), percent=False, limits=(None, None))


def _training(metric: str) -> tuple[str, tuple[str, ...]]:
    return metric_info(metric).heading, training_names(metric)


def _validation(mode: str, metric: str) -> tuple[str, tuple[str, ...]]:
    return metric_info(metric).heading, (f"{mode}/{metric}",)


def _draw_panel(ax: Any, panel: _Panel, logs: Sequence[TrainingLog]) -> None:
    """Draw one panel: a dash pattern per line, and a colour per line if there is one run, else per run."""
    from matplotlib.lines import Line2D

    handles = []
    for i, (label, names) in enumerate(panel.lines):
        series = {j: points for j, log in enumerate(logs) if (points := log.series(*names))}
        for j, points in series.items():
            steps, values = zip(*points, strict=True)
            heights = [100 * value for value in values] if panel.percent else values
            colour = COLOURS[i if len(logs) == 1 else j]
            marker = "o" if len(points) <= 2 * WINDOWS else None
            ax.plot(steps, heights, color=colour, linestyle=_DASHES[i], marker=marker, clip_on=False)
        if series:
            colour = COLOURS[i] if len(logs) == 1 else INK  # several runs: their legend is above the panels
            handles.append(Line2D([], [], color=colour, linestyle=_DASHES[i], label=label))
    ax.set_title(panel.title, loc="left")
    ax.grid(axis="y")
    last = max(1, *(log.last_step for log in logs))  # an axis needs some width, also where only step 0 was logged
    ax.set_xlim(-0.02 * last, 1.02 * last)
    ax.set_ylim(*panel.limits)
    if panel.percent:
        ax.set_ylim(top=max(_LEAST_PERCENT, ax.get_ylim()[1]))
    if len(handles) > 1:
        ax.legend(handles=handles, handlelength=2.6, fontsize=8)
