"""Cells of result rows, with bootstrap intervals where the tagged records are there."""

from __future__ import annotations

import math
from collections.abc import Iterable

from lovec.core.settings import CountFromZero, Probability, checked
from lovec.metrics.bootstrap import BOOTSTRAPPED, MAIN, Interval, Resampled, by_question, intervals, resample
from lovec.metrics.records import passage_pairs
from lovec.reports.runs import RunResults, stored_readout
from lovec.reports.table import Cell, metric_cell
from lovec.types import N_SCORES, LovecError, Record, ResultRow

BOLD = "Bold: better than all others of {group}: the interval of its difference to each of them excludes 0."
"""Note below a table: what is bold in it, with the name of what is compared."""

_TOLERANCE = 1e-3  # metrics are computed in float32, and a confidence may lie on the edge of a bin


@checked()
class CellMaker:
    """Makes the cells of a run's rows.

    Args:
        run: results with rows and tagged records.
        draws: number of bootstrap draws for the intervals; 0 makes no intervals.
        level: share of the draws inside an interval.

    Raises:
        LovecError: ``draws`` is negative, or ``level`` is not between 0 and 1.
    """

    def __init__(self, run: RunResults, draws: CountFromZero = 1000, level: Probability = 0.95) -> None:
        self.run, self.draws, self.level = run, draws, level
        self._has_intervals = False
        self._resampled_of: dict[tuple[str, ...], Resampled | None] = {}
        self._intervals_of: dict[tuple[str, ...], dict[str, Interval | None]] = {}

    def cell(self, row: ResultRow | None, name: str) -> Cell | None:
        """Return a metric of a row, with its interval where there is one; None where there is no row."""
        if row is None:
            return None
        info = self.run.metrics[name]
        cell = metric_cell(row.metrics.get(name), info)
        if cell.value is None or not self.draws or not info.bootstrapped:
            return cell
        interval = self._intervals(row).get(name)
        if interval is None or math.isnan(interval.low) or abs(interval.value - cell.value) > _TOLERANCE:
            return cell
        self._has_intervals = True
        return metric_cell(cell.value, info, interval.low, interval.high)

    def is_clear(self, first: ResultRow | None, second: ResultRow | None, name: str) -> bool:
        """Return whether the interval of the difference of two rows in a metric excludes 0.

        The difference is paired: both methods are drawn on the same questions. Without draws or tagged records, where
        these do not reproduce the values or hold sentences of fewer than two questions, or where the two were tested on
        different questions, nothing is known of it, and the answer is no.
        """
        difference = self.difference(first, second, name)
        return difference is not None and difference.excludes_zero

    def difference(self, first: ResultRow | None, second: ResultRow | None, name: str) -> Interval | None:
        """Return the difference of two rows in a metric, the first less the second, with its paired interval.

        None where nothing is known of it, see ``is_clear``.
        """
        if first is None or second is None or not self.draws or name not in BOOTSTRAPPED:
            return None
        drawn = self._resampled(first, name), self._resampled(second, name)
        if drawn[0] is None or drawn[1] is None:
            return None
        try:
            interval = intervals(drawn[0], drawn[1], self.level)[name]
        except LovecError:  # other questions
            return None
        values = first.metrics.get(name), second.metrics.get(name)
        if interval is None or math.isnan(interval.low) or values[0] is None or values[1] is None:
            return None
        return interval if abs(interval.value - (values[0] - values[1])) <= 2 * _TOLERANCE else None

    @property
    def interval_note(self) -> str:
        """What the intervals made so far are; "" if none was made."""
        if not self._has_intervals:
            return ""
        drawn = f"{self.draws} draws of the questions, with all their sentences"
        seeds = "; training seeds are not drawn" if self.run.most_seeds > 1 else ""
        return f"Intervals: {100 * self.level:.4g} % percentile bootstrap, {drawn}{seeds}."

    def _intervals(self, row: ResultRow) -> dict[str, Interval | None]:
        """Return the intervals of a row's main metrics; none if its tagged records are missing."""
        key = _key(row)
        if key not in self._intervals_of:
            drawn = self._resampled(row, MAIN[0])
            self._intervals_of[key] = {} if drawn is None else intervals(drawn, level=self.level)
        return self._intervals_of[key]

    def _resampled(self, row: ResultRow, name: str) -> Resampled | None:
        """Return a row's metrics on draws of its questions: the main ones together, another metric by itself.

        None if its tagged records are missing, or its seeds were tested on different questions.
        """
        key = (*_key(row), "main" if name in MAIN else name)
        if key not in self._resampled_of:
            by_seed = self.run.records_by_seed(row.method, row.mode, row.readout)
            pairs = [_pairs_by_answer(records, row) for seed in by_seed if (records := in_domain(seed, row.domain))]
            names = MAIN if name in MAIN else (name,)
            try:
                self._resampled_of[key] = resample(pairs, self.draws, metrics=names) if pairs else None
            except LovecError:  # the seeds were tested on different questions
                self._resampled_of[key] = None
        return self._resampled_of[key]


def in_domain(records: Iterable[Record], domain: str) -> list[Record]:
    """Return the records of one domain."""
    return [record for record in records if record.domain == domain]


def levels_of(records: Iterable[Record]) -> int:
    """Return the number of levels of the scale that tagged records are scored on: that of the first stated score."""
    sentences = (sentence for record in records for sentence in record.sentences)
    return next((sentence.levels for sentence in sentences if sentence.score is not None), N_SCORES)


def _key(row: ResultRow) -> tuple[str, str, str, str, str]:
    return row.method, row.domain, row.mode, row.level, row.readout


def _pairs_by_answer(records: Iterable[Record], row: ResultRow) -> dict[str, tuple[list[float], list[float]]]:
    """Return the confidences and factualities of every answer as the row counts them: per sentence or per passage.

    Raises:
        LovecError: two records share an id.
    """
    if row.level == "sentence":
        return by_question(records, stored_readout(row))
    return {record.id: passage_pairs([record], stored_readout(row))[:2] for record in records}
