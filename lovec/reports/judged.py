"""The table of what people's labels, a judge's, and both together say of confidences."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from lovec.metrics.powered import LEVEL, Judged, Measured, measure_judged
from lovec.metrics.table import METRICS
from lovec.reports.table import Cell, Column, Line, Table, interval_cell, legend, metric_column

_SOURCES = {"people": "people alone", "judge": "judge alone, biased", "powered": "prediction-powered"}
"""Names of lines by the attribute of ``Measured``."""


@dataclass(frozen=True, slots=True)
class JudgedScores:
    """What a judge's labels say of the confidences of a method, beside people's.

    Attributes:
        rows: the rows that were measured: those with a confidence, where there are confidences.
        measured: the metrics by source.
    """

    rows: Judged
    measured: Measured


def judged_scores(rows: Judged, probabilities: bool, draws: int) -> JudgedScores:
    """Measure the rows of a method that have a confidence; where there is none, all rows.

    Args:
        rows: rows with and without a label of people.
        probabilities: whether the confidences are numbers in [0, 1]; of others only mean factuality is measured.
        draws: number of bootstrap draws behind the intervals; 0 leaves ECE-M out.

    Raises:
        TooFewGroups: see `lovec.metrics.powered.measure_judged`, as for other errors.
    """
    if rows.confidence is not None and not rows.confidence.isnan().all():
        rows = rows.among(~rows.confidence.isnan())
    rows = rows if probabilities else replace(rows, confidence=None)
    return JudgedScores(rows, measure_judged(rows, draws))


def judged_table(scores: Mapping[str, JudgedScores]) -> Table:
    """Return a line per method and source of labels, and a column per metric."""
    found = {name for one in scores.values() for name in one.measured.people}
    infos = [METRICS[name] for name in ("mean_factuality", "brier", "ece_m") if name in found]
    lines, notes = [], []
    for method, one in scores.items():
        rows, measured = one.rows, one.measured
        section = method if len(scores) > 1 else ""
        counts = {
            "people": int(rows.labelled.sum()),
            "judge": len(rows.judge) - rows.untold,
            "powered": len(rows.judge),
        }
        for source, name in _SOURCES.items():
            values = getattr(measured, source)
            cells = [interval_cell(values.get(info.name), info) for info in infos]
            lines.append(Line(name, (*cells, Cell(str(counts[source]), counts[source])), section))
        worth = ", ".join(f"{value:.0f} for {METRICS[name].heading}" for name, value in measured.effective.items())
        untold = f" Of {rows.untold} rows the judge cannot tell." if rows.untold else ""
        notes.append(f"{method}: with the judge's labels, {counts['people']} of people are worth {worth}.{untold}")
    notes = [
        f"{legend(infos)}.",
        "Prediction-powered: people's labels of some rows correct the judge's of all rows, if people's are a random "
        "sample. ECE-M is corrected for its upward bias on few labels.",
        *notes,
    ]
    columns = (*map(metric_column, infos), Column("rows"))
    interval_note = f"Intervals: {100 * LEVEL:.4g} %, over groups."
    return Table("judged", "With a judge's labels", columns, tuple(lines), tuple(notes), interval_note, "labels of")
