"""Which columns of a table made elsewhere hold confidences, labels and groups, and what a row has in them.

A column is named as it is in the file; ``claims.confidence`` is the key ``confidence`` of an object, or of each object
of a list, under the key ``claims``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from lovec.datasets.rows import Row
from lovec.datasets.uncertainty import SCORERS
from lovec.datasets.values import LABELS, plain_name
from lovec.types import LovecError, check_range

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

    Raises:
        LovecError: a scale is out of range.
    """

    confidence: tuple[str, ...] = ()
    uncertainty: tuple[str, ...] = ()
    label: str | None = None
    group: str | None = None
    confidence_scale: float | None = None
    label_scale: float | None = None

    def __post_init__(self) -> None:
        check_range("confidence_scale", self.confidence_scale, above=0, at_most=_HIGHEST)
        check_range("label_scale", self.label_scale, above=0, at_most=_HIGHEST)

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
    said: list[str] = []
    confidence, label, group = columns.confidence, columns.label, columns.group
    if not columns.methods:
        confidence = _confidences(by_plain, rows)
        if not confidence:
            raise LovecError(_no_column(path, "confidence", names))
        said.append(f"confidence = {', '.join(confidence)}")
    if label is None:
        label = next((by_plain[name] for name in LABELS if name in by_plain), None)
        label = next((by_plain[name] for name in by_plain if name.endswith("_label")), None) if label is None else label
        if label is None or label in confidence:
            raise LovecError(_no_column(path, "label", names))
        said.append(f"label = {label}")
    if group is None:
        group = next((by_plain[name] for name in GROUPS if name in by_plain), "")
        said.append(f"group = {group or 'none'}")
    made = Columns(confidence, columns.uncertainty, label, group, columns.confidence_scale, columns.label_scale)
    return made, f"columns guessed: {'; '.join(said)}" if said else ""


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


def missing_column(path: str, what: str, column: str, rows: Sequence[Row]) -> LovecError:
    """Return the error for a column that no row has."""
    names = _names(rows)
    nearest = get_close_matches(column, names, n=1, cutoff=0.6)
    hint = f"did you mean {nearest[0]}?" if nearest else f"its columns are {_listed(names)}"
    return LovecError(f"{path}: no row has a {what} in the column {column!r}; {hint}")


def _confidences(by_plain: Mapping[str, str], rows: Sequence[Row]) -> tuple[str, ...]:
    """Return all columns that are confidences by their name, in the order of the file, or else the likeliest one."""
    family = [
        column
        for plain, column in by_plain.items()
        if plain == "confidence"
        or (
            (plain in SCORERS or plain.startswith("confidence_") or plain.endswith("_confidence"))
            and _has_numbers(row.get(column) for row in rows)
        )
    ]
    return tuple(family) or tuple(by_plain[name] for name in CONFIDENCES if name in by_plain)[:1]


def _has_numbers(values: Iterable[Any]) -> bool:
    given = [value for value in values if value is not None]
    return bool(given) and all(isinstance(value, int | float) and not isinstance(value, bool) for value in given)


def _names(rows: Sequence[Row]) -> list[str]:
    return list(dict.fromkeys(name for row in rows for name in row))


def _no_column(path: str, what: str, names: Sequence[str]) -> str:
    return f"{path}: cannot tell which column is the {what} ({_listed(names)}); name it with --{what} COLUMN"


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:_SHOWN]) + (f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else "")
