"""Figures of result rows as cells of a table, with bootstrap intervals where tagged records are there."""

from __future__ import annotations

import math
from collections.abc import Iterable

from lovec.metrics.bootstrap import FIGURES, Interval, by_question, intervals, resample
from lovec.metrics.records import passage_pairs
from lovec.reports.results_table import Row
from lovec.reports.runs import Run, reading
from lovec.reports.table import Cell, Column
from lovec.types import LovecError, Record

COLUMNS = {
    "brier": Column("BS", better="lower"),
    "ece_m": Column("ECE-M", better="lower"),
    "spearman": Column("SC", better="higher"),
    "aurc": Column("AURC", better="lower"),
    "auroc": Column("AUROC", better="higher"),
    "malformed": Column("bad tags", better="lower"),
    "abstained": Column("abstained"),
    "mean_confidence": Column("mean c"),
    "mean_factuality": Column("mean f", better="higher"),
    "words": Column("words"),
    "diversity": Column("diversity", better="higher"),
    "ttr": Column("TTR", better="higher"),
    "distinct": Column("scores said"),
    "entropy": Column("entropy"),
    "ordinality": Column("ordinality", better="higher"),
}
"""Columns by the name of their figure in a result row."""

PLAIN = {"words": 1, "diversity": 3, "ttr": 3, "distinct": 1, "entropy": 2, "ordinality": 2}
"""Digits of figures that are no percentages."""

MODES = {"iterative": "Iterative tagging", "free-form": "Free-form tagging"}
"""Sections of methods by evaluation mode."""

_Place = tuple[str, str, str, str, str]
_TOLERANCE = 1e-3  # float32 figures, and a confidence on the edge of a bin


class Cells:
    """Makes the cells of a run's rows.

    Args:
        run: where rows and tagged records come from.
        draws: how often passages are drawn anew for the intervals; 0 makes none.
        level: share of the draws inside an interval.

    Raises:
        LovecError: there are fewer than 0 draws, or the level is not between 0 and 1.
    """

    def __init__(self, run: Run, draws: int = 1000, level: float = 0.95) -> None:
        if draws < 0 or not 0 < level < 1:
            raise LovecError(f"got {draws} draws and level {level}, expected 0 or more and a level such as 0.95")
        self.run, self.draws, self.level = run, draws, level
        self.seen = False
        self._known: dict[_Place, dict[str, Interval | None]] = {}

    def cell(self, row: Row | None, name: str) -> Cell | None:
        """A figure of a row; None where there is no row."""
        if row is None:
            return None
        value = row.get(name)
        interval = self._intervals(row).get(name) if self.draws and name in FIGURES and value is not None else None
        if interval is None or math.isnan(interval.low) or abs(interval.value - float(value or 0)) > _TOLERANCE:
            return number(value, name)
        self.seen = True
        span = f"{number(interval.low, name).text} to {number(interval.high, name).text}"
        return Cell(number(value, name).text, value, interval.low, interval.high, span)

    @property
    def spans(self) -> str:
        """What the intervals given so far are; nothing where there are none."""
        if not self.seen:
            return ""
        what = f"{self.draws} draws of the questions, with all their sentences"
        seeds = "; training seeds are not drawn" if len(self.run.seeds) > 1 else ""
        return f"Intervals: {100 * self.level:.4g} % percentile bootstrap, {what}{seeds}."

    def _intervals(self, row: Row) -> dict[str, Interval | None]:
        """Intervals of a row's figures; none where its tagged records are missing."""
        place = (row["method"], row["domain"], row["mode"], row["level"], row["readout"])
        if place not in self._known:
            answers = self.run.answers(row["method"], row["mode"], row["readout"])
            own = [inside(records, row["domain"]) for records in answers]
            runs = [pairs(records, row) for records in own if records]
            try:
                found = intervals(resample(runs, self.draws), level=self.level) if runs else {}
            except LovecError:  # seeds that were asked different questions
                found = {}
            self._known[place] = found
        return self._known[place]


def inside(records: Iterable[Record], domain: str) -> list[Record]:
    """The records of one domain."""
    return [record for record in records if str(record.meta.get("domain", "in-domain")) == domain]


def pairs(records: Iterable[Record], row: Row) -> dict[str, tuple[list[float], list[float]]]:
    """Confidences and factualities of every question as a row counts them: its sentences, or the mean of each.

    Raises:
        LovecError: two records share an id.
    """
    if row["level"] == "sentence":
        return by_question(records, reading(row))
    return {record.id: passage_pairs([record], reading(row))[:2] for record in records}


def number(value: float | None, name: str) -> Cell:
    """A figure without its interval; shares and correlations are printed times 100."""
    if value is None or not math.isfinite(value):
        return Cell("-")
    return Cell(f"{value:.{PLAIN[name]}f}" if name in PLAIN else f"{100 * value:.1f}", value)
