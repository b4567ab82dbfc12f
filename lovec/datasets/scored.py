"""Confidences and labels of results made elsewhere, method by method: a table with columns, or a layout that is known.

A file is read row by row; what stays in memory are three numbers per row and method, and the names of the groups.
"""

from __future__ import annotations

import math
import os
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice
from typing import Any

import torch
from torch import Tensor

from lovec.datasets.columns import GUESSED, Columns, guessed, missing_column, value_at
from lovec.datasets.jsonl import short_json
from lovec.datasets.layouts import LAYOUTS, OWN, known_layout, layout_of, read_any
from lovec.datasets.rows import Layout, Row, read_rows
from lovec.datasets.values import confidence_of, label_of, says_opposite
from lovec.metrics.functional import mean_confidence
from lovec.types import LovecError, Record

LAYOUT_NAMES = tuple(dict.fromkeys(layout.short for layout in LAYOUTS if layout.short))
"""Names of the layouts that hold labels."""

_FIRST = 100  # rows whose keys say which columns there are


@dataclass(frozen=True, slots=True)
class ScoredMethod:
    """What one method of a file gave: the labelled rows, in the order of the file.

    Attributes:
        name: the column, scorer or model; "" where the file has one method without a name.
        confidence: [N], float64, higher for surer; NaN where a row has none.
        factuality: [N], float64, in [0, 1].
        group: [N], int64: the number of the passage, answer or question that a row belongs to, from 0.
        grouped: whether the file says what belongs together; otherwise every row is a group of its own.
        order_only: why only the order of the confidences counts; "" where they are numbers in [0, 1].
        unlabelled: number of rows that were left out, because nobody could say whether they are true.
    """

    name: str
    confidence: Tensor
    factuality: Tensor
    group: Tensor
    grouped: bool
    order_only: str = ""
    unlabelled: int = 0

    @property
    def missing(self) -> int:
        """Number of labelled rows without a confidence."""
        return int(self.confidence.isnan().sum())


@dataclass(frozen=True, slots=True)
class ScoredFile:
    """What was read from a file.

    Attributes:
        path: the file.
        methods: at least one, each with a label.
        said: in one line, the columns that were guessed, and whether labels were turned round; "" where neither is so,
            or where the file has a known layout.
    """

    path: str
    methods: tuple[ScoredMethod, ...]
    said: str


def read_scored(
    path: str | os.PathLike[str],
    columns: Columns = GUESSED,
    layout: str | None = None,
) -> ScoredFile:
    """Read the confidences and labels of a file that was made elsewhere.

    A layout that is given, or recognised where neither confidence nor label is named, says where they are. Any other
    file is a table whose columns are named, or guessed from their names. In a layout ``columns.confidence`` selects
    methods by their names.

    Args:
        path: JSON Lines, JSON, CSV, TSV or Parquet, also compressed.
        columns: which columns to read, and how.
        layout: one of `LAYOUT_NAMES`, or None.

    Raises:
        LovecError: the file cannot be read, a column is missing or cannot be guessed, a value is no number or label, or
            there is no labelled row.
    """
    name = str(path)
    if layout is not None and layout not in LAYOUT_NAMES:
        raise LovecError(f"unknown layout {layout!r}, expected one of {', '.join(LAYOUT_NAMES)}")
    rows = read_rows(path)
    first = list(islice(rows, _FIRST))
    if not first:
        raise LovecError(f"{name} holds no row, expected rows with a confidence and a label")
    rows = chain(first, rows)
    layouts = [known for known in LAYOUTS if known.short == layout] if layout is not None else LAYOUTS
    if layout is not None:
        found: Layout | None = layout_of(first[0][1], f"{name}:{first[0][0]}", layouts)
    else:
        found = None if columns.methods or columns.label else _recognised(first[0][1])
    said = ""
    if found is not None:  # reading logs what it read
        collected: dict[str, _Series] = {}
        for record in read_any(path, rows, units=True, layouts=layouts):
            _add_record(collected, record, found)
    else:
        columns, said = guessed(columns, [row for _, row in first], name)
        collected = {"": _table(rows, columns, [row for _, row in first], name)}
    methods = tuple(method for series, rows_of in collected.items() for method in rows_of.methods(series))
    if found is not None and columns.confidence:
        methods = _selected(methods, columns.confidence, name)
    methods = tuple(method for method in methods if len(method.factuality))
    if not methods:
        raise LovecError(f"{name} has no row with a label, expected a label per row; name its column with --label")
    return ScoredFile(name, methods, said)


@dataclass
class _Series:
    """Rows as they are read, with the confidences of all methods that give some to them."""

    confidences: dict[str, array[float]] = field(default_factory=dict)
    factuality: array[float] = field(default_factory=lambda: array("d"))
    group: array[int] = field(default_factory=lambda: array("q"))
    groups: dict[str, int] = field(default_factory=dict)
    grouped: bool = False
    order_only: set[str] = field(default_factory=set)
    unlabelled: int = 0

    def add(self, confidences: Mapping[str, float | None], factuality: float | None, group: str | None) -> None:
        """Add a row; methods that are not named have no confidence there, and None as group is a group of its own."""
        if factuality is None:
            self.unlabelled += 1
            return
        for name in confidences:
            if name not in self.confidences:
                self.confidences[name] = array("d", [math.nan]) * len(self.factuality)
        for name, numbers in self.confidences.items():
            confidence = confidences.get(name)
            numbers.append(math.nan if confidence is None else confidence)
        self.factuality.append(factuality)
        if group is None:
            self.group.append(len(self.group))
        else:
            self.group.append(self.groups.setdefault(group, len(self.groups)))
            self.grouped = True

    def methods(self, series: str) -> Iterator[ScoredMethod]:
        """Yield every method with all rows; where no row has a confidence, one with the name of the series."""
        unknown = {series: array("d", [math.nan]) * len(self.factuality)}
        for name, numbers in (self.confidences or unknown).items():
            confidence = torch.tensor(numbers, dtype=torch.float64)
            yield ScoredMethod(
                name,
                confidence,
                torch.tensor(self.factuality, dtype=torch.float64),
                torch.tensor(self.group, dtype=torch.int64),
                self.grouped,
                _order_only(confidence[~confidence.isnan()], name in self.order_only),
                self.unlabelled,
            )


def _order_only(confidence: Tensor, uncertain: bool) -> str:
    """Return why only the order of confidences counts, "" where they are numbers in [0, 1]."""
    if not len(confidence):
        return ""
    low, high = float(confidence.min()), float(confidence.max())
    if uncertain:
        return "its numbers are uncertainties without a scale, so only their order is measured"
    if 0 <= low and high <= 1:
        return ""
    reason = f"its confidences lie between {low:g} and {high:g}, so only their order is measured"
    if low >= 0 and high <= 100:
        reason += f" (say --confidence_scale {10 if high <= 10 else 100} if that is their scale)"
    return reason


def _recognised(row: Row) -> Layout | None:
    """Return the layout of a row if it is one with labels, and not a table that happens to have its keys."""
    layout = known_layout(row)
    if layout is None or not layout.short:
        return None
    if layout is OWN:
        return layout if "sentences" in row else None
    return layout if layout.short != "uqlm" or row.get("claims_data") is not None else None


def _add_record(collected: dict[str, _Series], record: Record, layout: Layout) -> None:
    """Add the labelled sentences of a record to the rows that the same methods have rated."""
    stated: list[float | None] = [sentence.stated for sentence in record.sentences]
    scores = None if layout is OWN else record.meta.get("scores")
    name = layout.series(record)
    by_method: Mapping[str, Sequence[float | None]] = {}
    if isinstance(scores, dict):
        by_method = scores
    elif layout is OWN:
        means = [None if s.distribution is None else mean_confidence(s.distribution) for s in record.sentences]
        known = any(mean is not None for mean in means)
        by_method = {"stated": stated} | ({"mean of the distribution": means} if known else {})
    elif scores is not None or any(confidence is not None for confidence in stated):
        by_method = {name: stated if scores is None else scores}
    series = collected.setdefault(name, _Series())
    series.order_only.update(record.meta.get("order_only", ()))
    group = record.question if layout.short == "rlcr" else record.id  # several samples answer one problem
    for at, sentence in enumerate(record.sentences):
        series.add({method: numbers[at] for method, numbers in by_method.items()}, sentence.factuality, group)


def _table(rows: Iterator[tuple[int, Row]], columns: Columns, first: Sequence[Row], path: str) -> _Series:
    """Return the rows of a table; a cell that is a list holds several of them, which belong together.

    Raises:
        LovecError: no row has one of the columns, or a value is no number or label; the message names the row.
    """
    assert columns.label is not None
    series = _Series(order_only={*columns.uncertainty})
    names = {*columns.methods, columns.label, columns.group or columns.label}
    opposite = says_opposite(columns.label)
    seen: set[str] = set()
    for number, row in rows:
        values = {name: value_at(row, name) for name in names}
        seen.update(name for name, value in values.items() if value is not None)
        key = values.get(columns.group or "")
        group = None if key is None else str(key)
        try:
            for truth, given in _cells(values, columns):
                several = isinstance(values[columns.label], list)
                label = label_of(truth, columns.label_scale, opposite)
                confidences = {name: _confidence(value, name, columns) for name, value in given.items()}
                series.add(confidences, label, group or f"row {number}" if several else group)
        except LovecError as error:
            raise LovecError(f"{path}:{number}: {error}") from None
    for name in (columns.label, columns.group, *columns.methods):
        if name and name not in seen:
            what = "label" if name == columns.label else "group" if name == columns.group else "confidence"
            raise missing_column(path, what, name, first)
    return series


def _cells(values: Mapping[str, Any], columns: Columns) -> Iterator[tuple[Any, dict[str, Any]]]:
    """Yield the label and, by method, the confidence of every row that the cells of a table's row hold.

    Raises:
        LovecError: a cell does not hold as many confidences as there are labels.
    """
    labels = values[columns.label or ""]
    given = {name: values[name] for name in columns.methods}
    if not isinstance(labels, list):
        yield labels, given
        return
    for name, numbers in given.items():
        if numbers is None:
            given[name] = [None] * len(labels)
        elif not isinstance(numbers, list) or len(numbers) != len(labels):
            raise LovecError(
                f"{name} is {short_json(numbers)}, expected a list of {len(labels)} numbers, one per label"
            )
    for at, label in enumerate(labels):
        yield label, {name: numbers[at] for name, numbers in given.items()}


def _confidence(value: Any, name: str, columns: Columns) -> float | None:
    """Return a confidence of a table; uncertainties are negated."""
    if name not in columns.uncertainty:
        return confidence_of(value, columns.confidence_scale)
    uncertainty = confidence_of(value)
    return None if uncertainty is None else -uncertainty


def _selected(methods: Sequence[ScoredMethod], names: Sequence[str], path: str) -> tuple[ScoredMethod, ...]:
    """Return the methods of these names.

    Raises:
        LovecError: there is none of a name.
    """
    by_name = {method.name: method for method in methods}
    if unknown := [name for name in names if name not in by_name]:
        raise LovecError(f"{path} has no method {unknown[0]!r}; it has {', '.join(map(repr, by_name))}")
    return tuple(by_name[name] for name in names)
