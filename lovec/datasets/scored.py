"""Confidences and labels of results made elsewhere, method by method: a table with columns, or a layout that is known.

A file is read row by row; what stays in memory are three numbers per row and method, and the names of the groups.
"""

from __future__ import annotations

import math
import os
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, compress, islice
from typing import Any

import torch
from torch import Tensor

from lovec.datasets.columns import GUESSED, Columns, guessed, missing_column, value_at
from lovec.datasets.jsonl import short_json
from lovec.datasets.layouts import OWN, known_layout, layout_of, layouts_called, read_any
from lovec.datasets.marked import SpanScores, span_scores, with_labels_of_marks
from lovec.datasets.rows import Layout, Row, WrittenRow, read_rows
from lovec.datasets.values import confidence_of, label_of, says_opposite
from lovec.metrics.functional import mean_confidence
from lovec.metrics.powered import Judged
from lovec.types import ROUNDING, LovecError, Readout, Record, ScoreKind, error_in, question_id

STATED, MEAN = "stated", "mean of the distribution"
"""The methods of lovec's own files."""

QUESTION = "question"
"""The column of a layout that holds the questions of its records; the others are the keys of their ``meta``."""

READOUTS: Mapping[str, Readout] = {STATED: "stated", MEAN: "mean"}
"""What they are read from tags by."""

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
        kind: what the numbers in the file are, from which ``confidence`` is computed.
        by: what each row has in the column ``Columns.by``, [N]; "" where it has nothing. None where none was asked for.
        judged: the rows with and without a label, with the labels of a judge; None where none were asked for. The
            confidences are those of ``confidence``, of all rows.
        spans: how well the method marks the characters of answers, [answers, 2], float64, see
            `lovec.datasets.marked.SpanScores`; None where people marked none.
    """

    name: str
    confidence: Tensor
    factuality: Tensor
    group: Tensor
    grouped: bool
    order_only: str = ""
    unlabelled: int = 0
    kind: ScoreKind = "confidence"
    by: tuple[str, ...] | None = None
    judged: Judged | None = None
    spans: Tensor | None = None

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
        layout: the short name of its layout; None for a table.
        columns: of a table, the columns that were read.
    """

    path: str
    methods: tuple[ScoredMethod, ...]
    said: str
    layout: str | None = None
    columns: Columns = GUESSED


@dataclass(frozen=True, slots=True)
class ScoredRow:
    """What the methods gave to a row, whether it has a label or not.

    Attributes:
        row: the row of a table; or, of a layout, the id, the question, the text and the scores of a sentence or claim.
        scores: of each method, the scores of what the row holds: one, or as many as its cells have items. They are
            higher for surer, and NaN where there is none.
        group: name of what the row belongs to; None is itself.
        listed: whether the cells of the row are lists.
        by: what the row has in the column ``Columns.by``, "" where it has nothing; None without such a column.
        place: where the row is, for error messages.
    """

    row: Mapping[str, Any]
    scores: tuple[tuple[float, ...], ...]
    group: str | None
    listed: bool = False
    by: str | None = None
    place: str = ""


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
        layout: one of `lovec.datasets.layouts.layout_names`, or None.

    Raises:
        LovecError: the file cannot be read, a column is missing or cannot be guessed, a value is not a number or
            label, or there is no labelled row.
    """
    name = str(path)
    layouts = None if layout is None else layouts_called(layout)
    if layout is not None and columns.judge:
        raise LovecError(
            f"a judge's labels, in the column {columns.judge!r}, are read from tables, and {layout} is a layout; name "
            "the columns with --confidence and --label instead"
        )
    rows = read_rows(path)
    first = list(islice(rows, _FIRST))
    if not first:
        raise LovecError(f"{name} holds no row, expected rows with a confidence and a label")
    rows = chain(first, rows)
    verdicts = layout == OWN.short and _is_verdict(first[0][1])
    if layout is not None:
        found: Layout | None = OWN if verdicts else layout_of(first[0][1], f"{name}:{first[0][0]}", layouts)
    else:
        found = None if columns.methods or columns.label or columns.judge else _recognised(first[0][1])
    said = ""
    if found is not None:
        _check_known(columns, name, found)
    collected: dict[str, _Series] = {}
    if verdicts:
        collected[""] = _verdicts(rows, columns, [row for _, row in first], name)
    elif found is not None:  # reading logs what it read
        records = read_any(path, rows, units=True, layouts=layouts)
        for record in _with_keys(records, name, group=columns.group, kind=columns.by):
            _add_record(collected, record, found, columns)
    else:
        columns, said = guessed(columns, [row for _, row in first], name)
        collected[""] = _table(rows, columns, [row for _, row in first], name)
    methods = tuple(method for series, rows_of in collected.items() for method in rows_of.methods(series))
    if found is not None and columns.confidence:
        methods = _selected(methods, columns.confidence, name)
    methods = tuple(method for method in methods if len(method.factuality))
    if not methods:
        raise LovecError(f"{name} has no row with a label, expected a label per row; name its column with --label")
    return ScoredFile(name, methods, said, None if found is None else found.short, columns)


def lacks_kinds(path: str | os.PathLike[str], column: str) -> bool:
    """Return whether a file holds a server's verdicts, and none of them has a kind in a column: a server adds none.

    Raises:
        LovecError: the file cannot be read.
    """
    rows = (row for _, row in read_rows(path))
    first = next(rows, None)
    return (
        first is not None and _is_verdict(first) and all(value_at(row, column) is None for row in chain([first], rows))
    )


def read_scores(
    path: str | os.PathLike[str], columns: Columns, layout: str | None = None, as_written: bool = False
) -> Iterator[ScoredRow]:
    """Yield the scores of every row of a file, in its order; labels are not asked for, nor that a row has anything.

    Args:
        path: as of `read_scored`.
        columns: the columns to read, all of them named; of a layout, the names of the methods as ``confidence``.
        layout: one of `lovec.datasets.layouts.layout_names`; None for a table.
        as_written: whether rows of a table of text keep their cells as they stand in the file.

    Raises:
        LovecError: the file cannot be read, no row has one of the columns or methods, or a value is not a number.
    """
    name, seen = str(path), dict.fromkeys(columns.methods, False)
    found = _rows_of_layout(path, columns, layout) if layout else _rows_of_table(path, columns, as_written)
    first: list[Mapping[str, Any]] = []
    has_kind = not columns.by
    for row in found:
        has_kind |= row.by is not None
        for method, scores in zip(columns.methods, row.scores, strict=True):
            seen[method] |= any(score == score for score in scores)
        first += [row.row] if len(first) < _FIRST else []
        yield row
    if not first:
        raise LovecError(f"{name} holds no row, expected rows with {', '.join(columns.methods)}")
    if missing := [method for method, is_there in seen.items() if not is_there]:
        raise missing_column(name, "score", missing[0], first)
    if not has_kind:
        raise missing_column(name, "kind", str(columns.by), first)


def _rows_of_table(path: str | os.PathLike[str], columns: Columns, as_written: bool) -> Iterator[ScoredRow]:
    for number, given_row in read_rows(path, as_written=True):
        row = given_row.read() if isinstance(given_row, WrittenRow) else given_row
        given = {name: value_at(row, name) for name in columns.methods}
        key = value_at(row, columns.group) if columns.group else None
        lists = [value for value in given.values() if isinstance(value, list)]
        with error_in(f"{path}:{number}: "):
            cells = _cells(given, [None] * len(lists[0]) if lists else None)
            numbers = [{name: _confidence(value, name, columns) for name, value in cell.items()} for _, cell in cells]
        scores = tuple(tuple(_or_nan(cell[name]) for cell in numbers) for name in columns.methods)
        group = f"row {number}" if lists and key is None else None if key is None else str(key)
        shown = given_row if as_written else row
        kind = value_at(row, columns.by or "")
        by = None if kind is None and columns.by not in row else _named(kind)
        yield ScoredRow(shown, scores, group, bool(lists), by, f"{path}:{number}")


def _rows_of_layout(path: str | os.PathLike[str], columns: Columns, layout: str) -> Iterator[ScoredRow]:
    layouts, methods = layouts_called(layout), columns.methods
    rows = read_rows(path)
    first = list(islice(rows, 1))
    found = layout_of(first[0][1], f"{path}:{first[0][0]}", layouts) if first else layouts[0]
    records = read_any(path, chain(first, rows), units=True, layouts=layouts)
    for record in _with_keys(records, str(path), kind=columns.by):
        by_method = _scores_of(record, found)
        for at, sentence in enumerate(record.sentences):
            scores = {name: by_method[name][at] if name in by_method else None for name in methods}
            named = {name or "confidence": score for name, score in scores.items()}
            row = {"id": record.id, "question": record.question, "text": sentence.text, **named}
            numbers = tuple((_or_nan(score),) for score in scores.values())
            group = _group_of(record, found, columns.group)
            kind = _named(_columns_of(record).get(columns.by or ""))
            yield ScoredRow(row, numbers, group, by=kind, place=f"{path}: {record.id!r}")


def _with_keys(records: Iterator[Record], path: str, **asked: str | None) -> Iterator[Record]:
    """Yield the records of a layout, and see to it that they have the columns that were asked for.

    Args:
        records: the records.
        path: the file, for the error message.
        **asked: columns by what they are for; None and "" are none.

    Raises:
        LovecError: no record has one of them, as is known after the last one.
    """
    missing = {what: column for what, column in asked.items() if column}
    names: dict[str, None] = {}
    for record in records:
        of_record = _columns_of(record)
        names.update(dict.fromkeys(name for name, value in of_record.items() if not isinstance(value, dict | list)))
        missing = {what: column for what, column in missing.items() if column not in of_record}
        yield record
    for what, column in missing.items():
        raise missing_column(path, what, column, [names])


def _columns_of(record: Record) -> Mapping[str, Any]:
    """Return what a record of a layout has in the columns that may name groups and kinds."""
    return {**record.meta, QUESTION: record.question}


def _named(value: Any) -> str:
    """Return the name of the kind that a row is of; a list of values is one."""
    return "" if value is None else " ".join(map(str, value)) if isinstance(value, list) else str(value)


def _or_nan(score: float | None) -> float:
    return math.nan if score is None else score


@dataclass
class _Series:
    """Rows as they are read, with the confidences of all methods that give some to them.

    Rows without a label are counted; they are kept only where a judge's labels were asked for, with NaN as their own.
    """

    confidences: dict[str, array[float]] = field(default_factory=dict)
    factuality: array[float] = field(default_factory=lambda: array("d"))
    group: array[int] = field(default_factory=lambda: array("q"))
    groups: dict[str, int] = field(default_factory=dict)
    kinds: dict[str, ScoreKind] = field(default_factory=dict)
    unlabelled: int = 0
    by: list[str] | None = None
    judge: array[float] | None = None
    spans: dict[str, list[SpanScores]] = field(default_factory=dict)

    def add(
        self,
        confidences: Mapping[str, float | None],
        factuality: float | None,
        group: str | None,
        by: str = "",
        judge: float | None = None,
    ) -> None:
        """Add a row; methods that are not named have no confidence there, and None as group is a group of its own."""
        if factuality is None:
            self.unlabelled += 1
            if self.judge is None:
                return
        for name in confidences:
            if name not in self.confidences:
                self.confidences[name] = array("d", [math.nan]) * len(self.factuality)
        for name, numbers in self.confidences.items():
            confidence = confidences.get(name)
            numbers.append(math.nan if confidence is None else confidence)
        self.factuality.append(_or_nan(factuality))
        if self.judge is not None:
            self.judge.append(_or_nan(judge))
        if self.by is not None:
            self.by.append(by)
        row = len(self.group)  # a group has the number of its first row, which no other group can have
        self.group.append(row if group is None else self.groups.setdefault(group, row))

    def methods(self, series: str) -> Iterator[ScoredMethod]:
        """Yield every method with all rows; where no row has a confidence, one with the name of the series."""
        unknown = {series: array("d", [math.nan]) * len(self.factuality)}
        factuality = torch.tensor(self.factuality, dtype=torch.float64)
        group = torch.unique(torch.tensor(self.group, dtype=torch.int64), return_inverse=True)[1]
        labelled = ~factuality.isnan()
        judge = None if self.judge is None else torch.tensor(self.judge, dtype=torch.float64)
        for name, numbers in (self.confidences or unknown).items():
            confidence = torch.tensor(numbers, dtype=torch.float64)
            kind = self.kinds.get(name, "confidence")
            order_only = _order_only(confidence[~confidence.isnan()], kind == "uncertainty")
            if not order_only:
                confidence = confidence.clamp(0.0, 1.0)  # but for rounding they lie there
            yield ScoredMethod(
                name,
                confidence[labelled],
                factuality[labelled],
                torch.unique(group[labelled], return_inverse=True)[1],
                bool(self.groups),
                order_only,
                self.unlabelled,
                kind,
                None if self.by is None else tuple(compress(self.by, labelled.tolist())),
                None if judge is None else Judged(factuality, judge, group, confidence),
                torch.tensor(self.spans[name], dtype=torch.float64) if name in self.spans else None,
            )


def _order_only(confidence: Tensor, uncertain: bool) -> str:
    """Return why only the order of confidences counts, "" where they are numbers in [0, 1]."""
    if not len(confidence):
        return ""
    low, high = float(confidence.min()), float(confidence.max())
    if uncertain:
        return "its numbers are uncertainties without a scale, so only their order is measured"
    if low >= -ROUNDING and high <= 1 + ROUNDING:
        return ""
    reason = f"its confidences lie between {low:.7g} and {high:.7g}, so only their order is measured"
    if low >= -ROUNDING and 2 <= high <= 100:  # below that it is no scale from 0 to 10
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


def _scores_of(record: Record, layout: Layout) -> Mapping[str, Sequence[float | None]]:
    """Return the scores of the sentences of a record, by method."""
    stated: list[float | None] = [sentence.stated for sentence in record.sentences]
    if layout is OWN:
        means = [None if s.distribution is None else mean_confidence(s.distribution) for s in record.sentences]
        known = any(mean is not None for mean in means)
        return {STATED: stated} | ({MEAN: means} if known else {})
    scores = record.meta.get("scores")
    if isinstance(scores, dict):
        return scores
    if scores is None and all(confidence is None for confidence in stated):
        return {}
    return {layout.series(record): stated if scores is None else scores}


def _group_of(record: Record, layout: Layout, column: str | None) -> str | None:
    """Return what the sentences of a record belong to; None is each to itself.

    Args:
        record: the record.
        layout: its layout.
        column: one of `_columns_of`; "" is none. None is what the layout says: the question, which several samples may
            answer, of RLCR by its text and of lovec's own records by their ids; of others the record.
    """
    if column is None and layout.short == "rlcr":
        return record.question
    if column is None:
        return question_id(record.id) if layout is OWN else record.id
    if not column:
        return None
    return _named(_columns_of(record).get(column)) or f"record {record.id}"


def _check_known(columns: Columns, path: str, layout: Layout) -> None:
    """Refuse what is said of the columns of a file whose layout says it.

    Raises:
        LovecError: the columns name a label, an uncertainty or a scale.
    """
    scales = {"confidence_scale": columns.confidence_scale, "label_scale": columns.label_scale}
    named = {"label": columns.label, "uncertainty": columns.uncertainty}
    given = [(option, "columns") for option, column in named.items() if column]
    given += [(option, "scales") for option, scale in scales.items() if scale not in (None, 1)]
    for option, what in given:
        raise LovecError(
            f"--{option} works only with plain tables; {path} has the layout {layout.short}, whose {what} are known; "
            "leave it out, or name the columns with --confidence and --label, without --layout"
        )


def _add_record(collected: dict[str, _Series], record: Record, layout: Layout, columns: Columns) -> None:
    """Add what the same methods have rated of a record: its labelled sentences, and its marked characters."""
    record = with_labels_of_marks(record)
    by_method = _scores_of(record, layout)
    series = collected.setdefault(layout.series(record), _Series(by=None if columns.by is None else []))
    series.kinds.update(record.meta.get("kinds", ()) if layout is not OWN else ())
    group, by = _group_of(record, layout, columns.group), _named(_columns_of(record).get(columns.by or ""))
    for at, sentence in enumerate(record.sentences):
        scores = {method: numbers[at] for method, numbers in by_method.items()}
        series.add(scores, sentence.factuality, group, by)
    for method, confidences in by_method.items():
        if (spans := span_scores(record, confidences)) is not None:
            series.spans.setdefault(method, []).append(spans)


def _table(rows: Iterator[tuple[int, Row]], columns: Columns, first: Sequence[Row], path: str) -> _Series:
    """Return the rows of a table; a cell that is a list holds several of them, which belong together.

    Raises:
        LovecError: no row has one of the columns, or a value is not a number or label; the message names the row.
    """
    assert columns.label is not None
    label, judge = columns.label, columns.judge or columns.label  # without a judge nothing else is read
    series = _Series(
        kinds=dict.fromkeys(columns.uncertainty, "uncertainty"),
        by=None if columns.by is None else [],
        judge=array("d") if columns.judge else None,
    )
    names = {*columns.methods, label, judge, columns.group or label, columns.by or label}
    opposite, judge_opposite = says_opposite(label), says_opposite(judge)
    seen: set[str] = set()
    for number, row in rows:
        values = {name: value_at(row, name) for name in names}
        seen.update(name for name, value in values.items() if value is not None)
        key = values.get(columns.group or "")
        group = None if key is None else str(key)
        with error_in(f"{path}:{number}: "):
            truths = values[columns.label]
            given = {name: values[name] for name in (*columns.methods, judge)}
            if truths is None and (lists := [value for value in given.values() if isinstance(value, list)]):
                truths = [None] * len(lists[0])
            several = isinstance(truths, list)
            for truth, cells in _cells(given, truths if several else None, truths):
                factuality = label_of(truth, columns.label_scale, opposite)
                judged = label_of(cells[judge], columns.label_scale, judge_opposite)
                confidences = {name: _confidence(cells[name], name, columns) for name in columns.methods}
                kind = _named(values[columns.by]) if columns.by else ""
                series.add(confidences, factuality, group or f"row {number}" if several else group, kind, judged)
    for what, name in (
        ("label", columns.label),
        ("group", columns.group),
        ("kind", columns.by),
        ("judge's label", columns.judge),
        *(("confidence", method) for method in columns.methods),
    ):
        if name and name not in seen:
            raise missing_column(path, what, name, first)
    return series


def _is_verdict(row: Row) -> bool:
    """Return whether a row is a verdict on a sentence of an answer, as ``lovec.serving.feedback`` writes it."""
    return "response_id" in row and isinstance(row.get("readouts"), Mapping)


def _verdicts(rows: Iterator[tuple[int, Row]], columns: Columns, first: Sequence[Row], path: str) -> _Series:
    """Return verdicts on the answers of a server; the methods are the readouts, with the names of lovec's own files.

    Raises:
        LovecError: they are on the scores of several models or modes, or no row has one of the readouts.
    """

    def of_one_model() -> Iterator[tuple[int, Row]]:
        of = [first[0].get(key) for key in ("mode", "scores")]
        for number, row in rows:
            if (own := [row.get(key) for key in ("mode", "scores")]) != of:
                raise LovecError(
                    f"{path}:{number}: is a verdict on {' '.join(map(str, own))} scores, and those before are on "
                    f"{' '.join(map(str, of))} ones; give only lines with the same 'mode' and 'scores', since each "
                    "mode of a model has a calibration of its own"
                )
            yield number, row

    there = {name for row in first for name in row.get("readouts") or ()}
    names = columns.confidence or [name for name, readout in READOUTS.items() if readout in there]
    readouts = tuple(f"readouts.{READOUTS.get(name, name)}" for name in names)
    named = replace(columns, confidence=readouts, label="factuality", group="response_id")
    series = _table(of_one_model(), named, first, path)
    series.confidences = dict(zip(names, series.confidences.values(), strict=True))
    return series


def _cells(
    given: Mapping[str, Any], labels: list[Any] | None, label: Any = None
) -> Iterator[tuple[Any, dict[str, Any]]]:
    """Yield the label and, by method, the confidence of every row that the cells of a table's row hold.

    Args:
        given: cells by method.
        labels: the labels, where the cells are lists; None where they are not.
        label: the label, where they are not.

    Raises:
        LovecError: a cell does not hold as many confidences as there are labels.
    """
    if labels is None:
        yield label, dict(given)
        return
    lists = {name: [None] * len(labels) if numbers is None else numbers for name, numbers in given.items()}
    for name, numbers in lists.items():
        if not isinstance(numbers, list) or len(numbers) != len(labels):
            raise LovecError(
                f"{name} is {short_json(numbers)}, expected a list of {len(labels)} numbers, one per label"
            )
    for at, truth in enumerate(labels):
        yield truth, {name: numbers[at] for name, numbers in lists.items()}


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
