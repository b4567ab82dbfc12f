"""Tables of what was observed beside the calibration: thresholds, texts, running times, training, sweeps."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from statistics import mean
from typing import Any

import torch

from lovec.metrics.records import sentence_pairs
from lovec.metrics.risk import aurc, thresholds
from lovec.reports import curves
from lovec.reports.cells import COLUMNS, MODES, Cells, inside, number
from lovec.reports.results_table import Row
from lovec.reports.runs import Run, reading
from lovec.reports.table import Cell, Column, Line, Table, mark_best
from lovec.reports.timing import Timing, free_form, plain_answer, timings
from lovec.types import LovecError

log = logging.getLogger(__name__)

THRESHOLDS = range(5, 11)
"""Scores from which sentences are kept."""

TEXTS = ("words", "mean_factuality", "diversity", "ttr", "malformed", "abstained", "distinct", "entropy", "ordinality")
"""Figures of the diagnostics."""

PHASES = ("writing", "sampling", "judging", "scoring")
"""Phases of running times, in the order in which they are shown; others come after them."""

_TIMED = ("Plain answers", "Baselines", *MODES.values())
_FIGURES = ("brier", "ece_m", "spearman")
_SWEPT = (*_FIGURES, "malformed")
_PLACES = {"val": "first mode", "val/free-form": "free-form"}


def risk(cells: Cells) -> Table | None:
    """What a threshold keeps, and how true it is; from the tagged records."""
    lines, groups = [], []
    for section, row in _sections(cells.run, ("iterative", "free-form"), ("ablation", "recalibrated")):
        kept = _kept(cells.run, row)
        if kept:
            lines.append(Line(row["method"], kept, section))
            groups.append(section if row["mode"] == "iterative" else f"{section} {row['method']}")
    if not lines:
        return None
    columns = [COLUMNS["aurc"]]
    for score in THRESHOLDS:
        columns += [
            replace(column, group=f"score >= {score}") for column in (Column("kept"), COLUMNS["mean_factuality"])
        ]
    sheet = mark_best(Table("risk-coverage", "What a threshold keeps", tuple(columns), tuple(lines)), groups)
    note = (
        "In %; AURC: area under the risk-coverage curve, risk being 1 - factuality; kept: share of the sentences with "
        "that stated score or more (baselines: that confidence); mean f: their mean factuality; -: none is kept."
    )
    return replace(sheet, notes=(note, "Bold: the best of its section; free-form answers differ, so none is."))


def diagnostics(cells: Cells) -> Table | None:
    """What answers are like, and what scores are said."""
    found = list(_sections(cells.run, ("free-form", "iterative"), ("ablation", "recalibrated", "hybrid", "constant")))
    names = [name for name in TEXTS if any(row.get(name) is not None for _, row in found)]
    if not any(name in names for name in TEXTS if name not in ("mean_factuality", "malformed")):
        return None
    lines = [Line(row["method"], tuple(cells.cell(row, name) for name in names), section) for section, row in found]
    note = (
        "mean f, bad tags, abstained in %; diversity: 1 - mean cosine of the sentences of an answer; TTR: different "
        "words / words; scores said: how many of the eleven; entropy of the scores in nats; -: undefined or not "
        "measured. In iterative tagging the texts are given, not the method's own."
    )
    columns = tuple(COLUMNS[name] for name in names)
    return Table("diagnostics", "Answers and scores", columns, tuple(lines), (note,))


def running_time(run: Run) -> Table | None:
    """Seconds an answer, by phase, and how many times as long as free-form tagging."""
    found = [timing for timing in timings(run) if timing.kind != "ablation"]
    if not found:
        return None
    plain, base = plain_answer(found), free_form(found)
    phases = sorted(
        {phase for timing in found for phase in timing.seconds},
        key=lambda phase: (PHASES.index(phase) if phase in PHASES else len(PHASES), phase),
    )
    columns = [
        *(Column(phase, "seconds an answer") for phase in phases),
        Column("needed", "seconds an answer", "lower"),
        *([Column("with the answer", "seconds an answer", "lower")] if plain is not None else []),
        *([Column("times free-form")] if base is not None else []),
        Column("context tokens"),
        Column("answers"),
    ]
    lines = []
    for timing in sorted(found, key=lambda timing: _TIMED.index(_timed(timing))):
        whole = timing.total + (plain or 0.0 if timing.mode == "iterative" else 0.0)
        cells = [_seconds(timing.seconds[phase]) if phase in timing.seconds else None for phase in phases]
        cells += [_seconds(timing.total), *([_seconds(whole)] if plain is not None else [])]
        cells += [Cell(f"{whole / base:.1f}", whole / base)] if base is not None else []
        cells += [
            Cell(f"{timing.prefill_tokens:.0f}", timing.prefill_tokens),
            Cell(str(timing.records), timing.records),
        ]
        lines.append(Line(timing.method, tuple(cells), _timed(timing)))
    return Table("running-time", "Running time", tuple(columns), tuple(lines), tuple(_time_notes(found, plain, base)))


def _timed(timing: Timing) -> str:
    """Section of the running times that a method belongs to."""
    if timing.kind == "answers":
        return _TIMED[0]
    return "Baselines" if (timing.kind, timing.mode) == ("baseline", "iterative") else MODES[timing.mode]


def _time_notes(found: Sequence[Timing], plain: float | None, base: float | None) -> Iterator[str]:
    yield (
        "Wall time of all processes together. Needed: the sum of the phases, in free-form tagging without the scoring, "
        "which fills in distributions that the tags do not need. Context tokens: tokens an answer that went through "
        "the model as context."
    )
    if plain is not None:
        yield "With the answer: iterative tagging and baselines wait for a plain answer, whose time is added."
    if base is not None:
        own = [timing.method for timing in found if timing.mode == "free-form" and timing.kind == "method"]
        yield f"Times free-form: as a multiple of free-form tagging (the mean of {', '.join(own)})."
    if (runs := max(timing.runs for timing in found)) > 1:
        yield f"Medians over up to {runs} runs."


def checkpoints(run: Run) -> Table | None:
    """Validation by training step, of runs that validated more than once."""
    lines = []
    for folder in run.logs:
        try:
            logged = curves.read_run(folder)
        except LovecError as error:  # a log that cannot be read is no reason to report nothing else
            log.warning("no table of checkpoints of %s: %s", folder, error)
            continue
        rewards = {row["step"]: row["reward"] for row in curves.training_rows(logged)}
        for place, said in _PLACES.items():
            rows = curves.validation_rows(logged, place)
            for row in rows if len(rows) > 1 else []:
                reward = rewards.get(row["step"])
                earned = Cell("-") if reward is None else Cell(f"{reward:.3f}", reward)
                cells = (*(number(row[name], name) for name in _FIGURES), earned)
                lines.append(Line(f"step {row['step']}", cells, f"{_title(run, folder)}, {said}"))
    if not lines:
        return None
    columns = [*(COLUMNS[name] for name in _FIGURES), Column("mean reward", better="higher")]
    if all(line.cells[-1] == Cell("-") for line in lines):
        columns, lines = columns[:-1], [replace(line, cells=line.cells[:-1]) for line in lines]
    note = "Validation records, stated score, in %; step 0: before training; mean reward: since the line before."
    if len(columns) == len(_FIGURES):
        note = "Validation records, stated score, in %; step 0: before training."
    return Table("checkpoints", "Intermediate checkpoints", tuple(columns), tuple(lines), (note,), corner="step")


def sweeps(run: Run) -> Iterator[tuple[str, Table]]:
    """A table for every sweep, and the kind of ablation that it is: "sweep-reward", "sweep-oracle" or "sweep"."""
    for number_, (folder, rows) in enumerate(run.sweeps.items(), start=1):
        shown = [row for row in rows if row["level"] == "sentence" and row["readout"] == "stated"]
        modes = list(dict.fromkeys(row["mode"] for row in shown))
        lines = [_variation(shown, method, modes) for method in dict.fromkeys(row["method"] for row in shown)]
        columns = [replace(COLUMNS[name], group=MODES.get(mode, mode)) for mode in modes for name in _SWEPT]
        flags = " ".join(str(row.get("flags", "")) for row in shown)
        kind = "sweep-reward" if ".reward" in flags else "sweep-oracle" if ".oracle" in flags else "sweep"
        seeds = len({row["seed"] for row in shown})
        note = "Validation records, in %; BS, ECE-M and bad tags: lower is better, SC: higher; s: seconds of a run."
        many = (f"Means over {seeds} training seeds; intervals: the range over them.",) if seeds > 1 else ()
        name = "sweep" if len(run.sweeps) == 1 else f"sweep-{number_}"
        sheet = Table(name, f"Sweep {folder.name}", (*columns, Column("s")), tuple(lines), (note, *many), "variation")
        yield kind, mark_best(sheet)


def _sections(run: Run, modes: Sequence[str], without: Sequence[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Sentence rows of the stated score by mode and domain, with the name of their section."""
    domains = list(dict.fromkeys(row["domain"] for row in run.rows))
    for mode in modes:
        for domain in domains:
            section = f"{MODES[mode]}, {domain}" if len(domains) > 1 else MODES[mode]
            for row in run.rows:
                place = (row["mode"], row["domain"], row["level"], row["readout"])
                if place == (mode, domain, "sentence", "stated") and row["kind"] not in without:
                    yield section, row


def _kept(run: Run, row: Row) -> tuple[Cell, ...]:
    """AURC, and share and factuality of what every threshold keeps: means over seeds; () without tagged records."""
    found = []
    answers = [inside(records, row["domain"]) for records in run.answers(row["method"], row["mode"], row["readout"])]
    for records in filter(None, answers):
        said, true, _ = sentence_pairs(records, reading(row))
        pair = torch.tensor(said, dtype=torch.float64), torch.tensor(true, dtype=torch.float64)
        kept = [values.tolist() for values in thresholds(*pair)]
        found.append([float(aurc(*pair)), *(side[score] for score in THRESHOLDS for side in kept)])
    if not found or all(math.isnan(figures[0]) for figures in found):
        return ()
    return tuple(number(mean(values), "aurc") for values in zip(*found, strict=True))


def _seconds(value: float) -> Cell:
    return Cell(f"{value:.3f}" if value < 1 else f"{value:.2f}", value)


def _title(run: Run, folder: Any) -> str:
    """A run's folder, told apart from others of that name by the folder above."""
    same = [other for other in run.logs if other.name == folder.name]
    return str(folder.name) if len(same) == 1 else f"{folder.parent.name}/{folder.name}"


def _variation(rows: Sequence[Row], method: str, modes: Sequence[str]) -> Line:
    """Means over seeds, with their range as interval."""
    own = [row for row in rows if row["method"] == method]
    cells: list[Cell | None] = []
    for mode in modes:
        for name in _SWEPT:
            values: list[Any] = [row[name] for row in own if row["mode"] == mode]
            if not values or None in values:
                cells.append(number(None, name))
                continue
            cell, (low, high) = number(mean(values), name), (min(values), max(values))
            if len(values) > 1:
                span = f"{number(low, name).text} to {number(high, name).text}"
                cell = replace(cell, low=low, high=high, span=span)
            cells.append(cell)
    seconds = [float(row["seconds"]) for row in own if row.get("seconds") is not None]
    taken = Cell(f"{mean(seconds):.0f}", mean(seconds)) if seconds else Cell("-")
    return Line(method, (*cells, taken))
