"""The table, the plots and the page of results made elsewhere, which ``lovec score`` writes."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from rich.console import Console

from lovec.datasets.scored import ScoredFile, ScoredMethod
from lovec.files import atomic_folder, write_text
from lovec.metrics.bootstrap import Interval
from lovec.metrics.grouped import USES, GroupedPairs, by_group, group_means, intervals_of, ranks
from lovec.metrics.table import METRICS, MetricInfo
from lovec.notices import listed
from lovec.reports.page import Picture, page
from lovec.reports.panels import PairGroups
from lovec.reports.reliability import reliability_diagram
from lovec.reports.risk_coverage import risk_coverage_curves
from lovec.reports.table import (
    Cell,
    Line,
    Table,
    csv_text,
    json_text,
    latex,
    legend,
    mark_best,
    markdown,
    metric_cell,
    metric_column,
    print_table,
    transposed,
)
from lovec.reports.texts import texts
from lovec.results import write_results
from lovec.types import ResultRow, check_count, check_range

_LEVEL = 0.95
_TITLES = {"probability": "How true as numbers", "order": "How well ranked", "labels": "Labels"}
"""Headings of the metrics by what they use of the pairs, see ``MetricInfo.uses``."""

_ROWS, _GROUPS = "sentence", "passage"


@dataclass(frozen=True, slots=True)
class Settings:
    """How files are measured.

    Attributes:
        draws: number of bootstrap draws behind the intervals; 0 gives none.
        facts: K of F1@K, the number of facts that an answer should have.

    Raises:
        LovecError: a setting is out of range.
    """

    draws: int = 1000
    facts: int = 64

    def __post_init__(self) -> None:
        check_count("draws", self.draws, at_least=0)
        check_count("facts", self.facts)


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
    values: dict[str, Interval | None]


@dataclass(frozen=True, slots=True)
class Scores:
    """Everything that was measured.

    Attributes:
        files: their paths.
        measured: rows first, then passages.
        pairs: what is drawn, by method: numbers in [0, 1] in ``probabilities``, these and mere orders in ``orders``.
        notes: a sentence per thing that a reader has to know.
        settings: how it was measured.
    """

    files: tuple[str, ...]
    measured: tuple[Measured, ...]
    probabilities: PairGroups
    orders: PairGroups
    notes: tuple[str, ...]
    settings: Settings
