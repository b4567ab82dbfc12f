"""Which columns of a table made elsewhere hold confidences, labels and groups, and what a row has in them.

A column is named as it is in the file; ``claims.confidence`` is the key ``confidence`` of an object, or of each object
of a list, under the key ``claims``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from typing import Annotated, Any

from lovec.core.settings import Setting, checked
from lovec.datasets.rows import Row
from lovec.datasets.uncertainty import scorers
from lovec.datasets.values import confidence_of, is_number, label_column, plain_name, says_opposite
from lovec.types import LovecError

CONFIDENCES = (
    "confidence conf confidence_score confidences probability prob p p_true ptrue p_correct certainty "
    "verbalized_confidence stated_confidence score prediction pred y_prob y_score".split()
)
"""Names of columns that are taken for the confidence, the first one that a file has."""

GROUPS = (
    "group passage passage_id answer_id response_id document document_id doc_id doc question_id prompt_id topic entity "
    "question prompt".split()
)
"""Names of columns that are taken for the group, the first one that a file has."""

_HIGHEST = 1e6  # of a scale
_SHOWN = 12  # columns that a message lists


@checked()
@dataclass(frozen=True, slots=True)
class Columns:
    """Which columns to read, and how.

    Attributes:
        confidence: columns of confidences, each one a method; empty guesses them.
        uncertainty: columns whose higher numbers mean less sure, each one a method of which only the order is used.
        label: column of the labels; None guesses it.
        group: column that names the passage, answer or question a row belongs to; None guesses it, "" is none.
        confidence_scale: highest confidence of the scale, such as 10 or 100; None is 1.
        label_scale: highest label of the scale; None is 1.
        by: column whose values promises are made for, one by one; None is none.
        judge: column of a judge's labels, beside those of people in ``label``; None is none.

    Raises:
        LovecError: a scale is out of range.
    """

    confidence: tuple[str, ...] = ()
    uncertainty: tuple[str, ...] = ()
    label: str | None = None
    group: str | None = None
    confidence_scale: Annotated[float, Setting(above=0, at_most=_HIGHEST)] | None = None
    label_scale: Annotated[float, Setting(above=0, at_most=_HIGHEST)] | None = None
    by: str | None = None
    judge: str | None = None

    @property
    def methods(self) -> tuple[str, ...]:
        """The columns that are methods."""
        return (*self.confidence, *self.uncertainty)


GUESSED = Columns()
"""Nothing is named: all columns are guessed."""


def guessed(columns: Columns, rows: Sequence[Row], path: str) -> tuple[Columns, str]:
    """Fill in the columns that are not named, from the names that the first rows have.

    Args:
        columns: those that are named.
        rows: the first rows of a file, at least one.
        path: the file, for the error message.

    Returns:
        All columns, and a line that says what was guessed, "" if nothing was.

    Raises:
        LovecError: the confidence or the label cannot be guessed.
    """
    names = _names(rows)
    by_plain: dict[str, str] = {}
    for name in names:
        by_plain.setdefault(plain_name(name), name)
    if opposite := [name for name in columns.confidence if says_opposite(name)]:
        raise LovecError(
            f"{path}: --confidence is {opposite[0]!r}, whose name says that higher is less sure, expected one "
            f"that is higher for surer; say --uncertainty {opposite[0]}, or give the column another name"
        )
    said: list[str] = []
    confidence, uncertainty, label, group = columns.confidence, columns.uncertainty, columns.label, columns.group
    if label is None:
        label = label_column([{name: row[name] for name in row if name != columns.judge} for row in rows])
    if not columns.methods:
        taken = (label, columns.judge)
        confidence, uncertainty = _methods({plain: name for plain, name in by_plain.items() if name not in taken}, rows)
        if not (confidence or uncertainty):
            raise LovecError(_no_column(path, "confidence", names))
        said += [f"confidence = {', '.join(confidence)}"] if confidence else []
        said += [f"uncertainty = {', '.join(uncertainty)}"] if uncertainty else []
    if label is None or label in (*columns.methods, columns.judge):
        raise LovecError(_no_column(path, "label", names))
    said += [f"label = {label}"] if columns.label is None else []
    if group is None:
        group = next((by_plain[name] for name in GROUPS if name in by_plain), "")
        said.append(f"group = {group or 'none'}")
    made = replace(columns, confidence=confidence, uncertainty=uncertainty, label=label, group=group)
    lines = [f"columns guessed: {'; '.join(said)}"] if said else []
    others = [name for name in names if name not in (*made.methods, label, group, columns.by, columns.judge)]
    if not columns.methods and (numbers := [name for name in others if _has_numbers(rows, name, fractions=True)]):
        lines.append(f"numbers that are not read: {_listed(numbers)} (--confidence COLUMN or --uncertainty COLUMN)")
    lines += [
        f"labels turned round: by its name, 1 in {label_name} is wrong and 0 right"
        for label_name in (label, columns.judge)
        if label_name and says_opposite(label_name)
    ]
    return made, "; ".join(lines)


def value_at(row: Mapping[str, Any], column: str) -> Any:
    """Return what a row has in a column; None where it has nothing, a list where a part of the path is a list."""
    if column in row or "." not in column:
        return row.get(column)
    head, _, rest = column.partition(".")
    inner = row.get(head)
    if isinstance(inner, Mapping):
        return value_at(inner, rest)
    if isinstance(inner, list):
        return [value_at(item, rest) if isinstance(item, Mapping) else None for item in inner]
    return None


def missing_column(path: str, what: str, column: str, rows: Sequence[Mapping[str, Any]]) -> LovecError:
    """Return the error for a column that no row has."""
    names = _names(rows)
    if column in names:
        return LovecError(
            f"{path}: the column {column!r} is empty in every row, expected a {what}; name another column"
        )
    nearest = get_close_matches(column, names, n=1, cutoff=0.6)
    hint = f"did you mean {nearest[0]}?" if nearest else f"its columns are {_listed(names)}"
    hint += '; where each row stands for itself, say --group ""' if what == "group" else ""
    return LovecError(f"{path}: no row has a {what} in the column {column!r}; {hint}")


def _methods(by_plain: Mapping[str, str], rows: Sequence[Row]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the columns that are confidences by their name, and else those that are uncertainties.

    Confidences are all those of a family in the order of the file, or else the likeliest one.
    """
    usable = {plain: name for plain, name in by_plain.items() if not says_opposite(plain)}
    known = scorers(usable)
    family = [
        column
        for plain, column in usable.items()
        if plain == "confidence"
        or (
            (plain in known or plain.startswith("confidence_") or plain.endswith("_confidence"))
            and _has_numbers(rows, column)
        )
    ]
    confidence = tuple(family) or tuple(usable[name] for name in CONFIDENCES if name in usable)[:1]
    opposite = [name for plain, name in by_plain.items() if plain not in usable and _has_numbers(rows, name)]
    return confidence, () if confidence else tuple(opposite)


def _has_numbers(rows: Sequence[Row], column: str, fractions: bool = False) -> bool:
    """Return whether a column holds nothing but numbers, and some that are no integer where ``fractions`` asks it."""
    given = [row[column] for row in rows if row.get(column) not in (None, "")]
    if any(isinstance(value, bool) for value in given) or not all(map(is_number, given)):
        return False
    return any((confidence_of(value) or 0) % 1 for value in given) if fractions else bool(given)


def _names(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    return list(dict.fromkeys(name for row in rows for name in row))


def _no_column(path: str, what: str, names: Sequence[str]) -> str:
    return f"{path}: cannot tell which column is the {what} ({_listed(names)}); name it with --{what} COLUMN"


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:_SHOWN]) + (f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else "")
