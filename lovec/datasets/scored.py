"""Confidences and labels of results made elsewhere, method by method: a table with columns, or a layout that is known.

A file is read row by row; what stays in memory are three numbers per row and method, and the names of the groups.
"""

from __future__ import annotations

import os
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice

import torch
from torch import Tensor

from lovec.datasets.columns import GUESSED, Columns, guessed, missing_column, value_at
from lovec.datasets.jsonl import short_json
from lovec.datasets.layouts import LAYOUTS, OWN, Layout, known_layout, read_any
from lovec.datasets.rows import Row, read_rows
from lovec.datasets.values import confidence_of, label_of
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
        said: in one line, the columns that were guessed; "" where none was, or where the file has a known layout.
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
    given = bool(columns.methods or columns.label)
    found = None if given else _recognised(first[0][1])
    if layout is not None:
        found = _checked_layout(layout, first[0], name)
    collected: dict[str, _Collected] = {}
    if found is not None:
        said = ""  # reading logs the layout
        for record in read_any(path, rows, units=True):
            _add_record(collected, record, found)
    else:
        columns, said = guessed(columns, [row for _, row in first], name)
        _add_rows(collected, rows, columns, [row for _, row in first], name)
    methods = tuple(collection.method(title) for title, collection in collected.items())
    if found is not None and columns.confidence:
        methods = _selected(methods, columns.confidence, name)
    methods = tuple(method for method in methods if len(method.factuality))
    if not methods:
        raise LovecError(f"{name} has no row with a label, expected a label per row; name its column with --label")
    return ScoredFile(name, methods, said)


@dataclass
class _Collected:
    """The rows of a method, as they are read."""

    confidence: array[float] = field(default_factory=lambda: array("d"))
    factuality: array[float] = field(default_factory=lambda: array("d"))
    group: array[int] = field(default_factory=lambda: array("q"))
    groups: dict[str, int] = field(default_factory=dict)
    grouped: bool = False
    order_only: bool = False
    unlabelled: int = 0

    def add(self, confidence: float | None, factuality: float | None, group: str | None) -> None:
        """Add a row; None as group is a group of its own."""
        if factuality is None:
            self.unlabelled += 1
            return
        self.confidence.append(float("nan") if confidence is None else confidence)
        self.factuality.append(factuality)
        if group is None:
            self.group.append(len(self.group))
        else:
            self.group.append(self.groups.setdefault(group, len(self.groups)))
            self.grouped = True

    def method(self, name: str) -> ScoredMethod:
        """Return the method with all its rows."""
        confidence = torch.tensor(self.confidence, dtype=torch.float64)
        given = confidence[~confidence.isnan()]
        reason = ""
        if len(given):
            low, high = float(given.min()), float(given.max())
            if self.order_only:
                reason = "its numbers are uncertainties without a scale, so only their order is measured"
            elif low < 0 or high > 1:
                reason = f"its confidences lie between {low:g} and {high:g}, so only their order is measured"
                if low >= 0 and high <= 100:
                    reason += f" (say --confidence_scale {10 if high <= 10 else 100} if that is their scale)"
        return ScoredMethod(
            name,
            confidence,
            torch.tensor(self.factuality, dtype=torch.float64),
            torch.tensor(self.group, dtype=torch.int64),
            self.grouped,
            reason,
            self.unlabelled,
        )


def _recognised(row: Row) -> Layout | None:
    """Return the layout of a row if it is one with labels, and not a table that happens to have its keys."""
    layout = known_layout(row)
    if layout is None or not layout.short:
        return None
    if layout is OWN:
        return layout if "sentences" in row else None
    return layout if layout.short != "uqlm" or row.get("claims_data") is not None else None


def _checked_layout(short: str, first: tuple[int, Row], path: str) -> Layout:
    """Return the layout of this name that the first row has.

    Raises:
        LovecError: it has none of them.
    """
    named = [layout for layout in LAYOUTS if layout.short == short]
    number, row = first
    found = known_layout(row)
    if found is not None and found in named:
        return found
    nearest = min(named, key=lambda layout: len(layout.missing(row)))
    lacks = ", ".join(map(repr, nearest.missing(row))) or "something of its form"
    raise LovecError(f"{path}:{number}: has not the layout {short}: {nearest.name} also needs {lacks}")


def _add_record(collected: dict[str, _Collected], record: Record, layout: Layout) -> None:
    """Add the labelled sentences of a record, once per method."""
    labels = [sentence.factuality for sentence in record.sentences]
    stated = [sentence.stated for sentence in record.sentences]
    scores = None if layout is OWN else record.meta.get("scores")
    model = str(record.meta.get("model") or "") if layout is not OWN else ""
    if layout.short == "safe":
        model = f"side {record.meta['side']}"
    by_method: Mapping[str, Sequence[float | None]] = {model: stated if scores is None else scores}
    if isinstance(scores, dict):
        by_method = {model if layout.short == "safe" else name: numbers for name, numbers in scores.items()}
    elif layout is OWN and any(sentence.distribution is not None for sentence in record.sentences):
        means = [None if s.distribution is None else mean_confidence(s.distribution) for s in record.sentences]
        by_method = {"stated": stated, "mean of the distribution": means}
    group = record.question if layout.short == "rlcr" else record.id  # several samples answer one problem
    order_only = record.meta.get("order_only", ())
    for name, confidences in by_method.items():
        method = collected.setdefault(name, _Collected())
        method.order_only = method.order_only or name in order_only
        for confidence, label in zip(confidences, labels, strict=True):
            method.add(confidence, label, group)


def _add_rows(
    collected: dict[str, _Collected],
    rows: Iterator[tuple[int, Row]],
    columns: Columns,
    first: Sequence[Row],
    path: str,
) -> None:
    """Add the rows of a table; a cell that is a list holds several of them, which belong together.

    Raises:
        LovecError: no row has one of the columns, or a value is no number or label; the message names the row.
    """
    assert columns.label is not None
    for name in columns.methods:
        collected[name] = _Collected(order_only=name in columns.uncertainty)
    signs = {name: -1.0 if name in columns.uncertainty else 1.0 for name in columns.methods}
    seen = dict.fromkeys([*columns.methods, columns.label, columns.group or ""], False)
    for number, row in rows:
        try:
            label = value_at(row, columns.label)
            key = value_at(row, columns.group) if columns.group else None
            seen[columns.label] |= label is not None
            seen[columns.group or ""] |= key is not None
            group = None if key is None else str(key)
            several = isinstance(label, list)
            labels = [label_of(item, columns.label_scale) for item in label] if several else None
            one = None if several else label_of(label, columns.label_scale)
            for name, sign in signs.items():
                value = value_at(row, name)
                if value is not None:
                    seen[name] = True
                scale = None if sign < 0 else columns.confidence_scale
                if labels is None:
                    confidence = confidence_of(value, scale)
                    collected[name].add(None if confidence is None else sign * confidence, one, group)
                    continue
                values = [None] * len(labels) if value is None else value
                if not isinstance(values, list) or len(values) != len(labels):
                    raise LovecError(
                        f"{name} is {short_json(value)}, expected a list of {len(labels)} numbers, one per label"
                    )
                for item, truth in zip(values, labels, strict=True):
                    confidence = confidence_of(item, scale)
                    confidence = None if confidence is None else sign * confidence
                    collected[name].add(confidence, truth, group or f"row {number}")
        except LovecError as error:
            raise LovecError(f"{path}:{number}: {error}") from None
    for name, what in ((columns.label, "label"), (columns.group or "", "group")):
        if name and not seen[name]:
            raise missing_column(path, what, name, first)
    for name in columns.methods:
        if not seen[name]:
            raise missing_column(path, "confidence", name, first)


def _selected(methods: Sequence[ScoredMethod], names: Sequence[str], path: str) -> tuple[ScoredMethod, ...]:
    """Return the methods of these names.

    Raises:
        LovecError: there is none of a name.
    """
    by_name = {method.name: method for method in methods}
    if unknown := [name for name in names if name not in by_name]:
        raise LovecError(f"{path} has no method {unknown[0]!r}; it has {', '.join(map(repr, by_name))}")
    return tuple(by_name[name] for name in names)
