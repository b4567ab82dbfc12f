"""What ``lovec.tag`` returns: records as dicts, which notebooks and terminals show as tagged text."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import islice
from typing import TYPE_CHECKING, Any

from lovec.core.notices import counted
from lovec.datasets.jsonl import record_from_dict
from lovec.display import notebook_html, number, one_line, source_number
from lovec.types import LovecError, Record

if TYPE_CHECKING:
    from pandas import DataFrame

_MOST_LINES, _MOST_TEXTS, _WIDTH = 50, 5, 100  # what a terminal shows of a text, of a list, and of a sentence
_DTYPES = {
    "id": "str",
    "question": "str",
    "sentence": "int64",
    "text": "str",
    "confidence": "float64",
    "by_source": "float64",
    "score": "Int64",
    "factuality": "float64",
}


class TaggedText(dict[str, Any]):
    """A tagged text: the record as a dict, equal to a plain one and written as JSON like one.

    Notebooks show the text with its sentences tinted by confidence, terminals a line per sentence.

    Args:
        data: the record as a dict, see `lovec.datasets.jsonl.record_to_dict`.
        note: what the confidence is, in one sentence; "" if nothing is known about that.
    """

    def __init__(self, data: Mapping[str, Any], note: str = "") -> None:
        super().__init__(data)
        self.note = note

    def to_frame(self) -> DataFrame:
        """Return a pandas frame with one row per sentence.

        Columns are ``id`` and ``question`` of the record, the number of the ``sentence`` from 1, its ``text``,
        ``confidence`` in [0, 1], stated ``score`` and ``factuality`` in [0, 1]. Unknown values are missing. Where a
        sentence has a confidence by source, ``by_source`` follows ``confidence``.

        Raises:
            LovecError: the dict is not a record any more.
        """
        return _frame([record_from_dict(self)])

    def __repr__(self) -> str:
        try:
            return _lines(record_from_dict(self))
        except LovecError:  # changed by its owner
            return super().__repr__()

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text(repr(self))

    def _repr_html_(self) -> str | None:
        """Return the text as HTML for notebooks; None, for plain text, if the dict is not a record any more."""
        return _html([self])


class TaggedTexts(list[TaggedText]):
    """Several tagged texts: a list, equal to a plain one and written as JSON like one, that notebooks show."""

    def to_frame(self) -> DataFrame:
        """Return a pandas frame with one row per sentence of every text, see `TaggedText.to_frame`.

        Raises:
            LovecError: an element is not a record any more.
        """
        return _frame(map(record_from_dict, self))

    def __repr__(self) -> str:
        more = len(self) - _MOST_TEXTS
        shown = [repr(text) for text in islice(self, _MOST_TEXTS)]
        return "\n\n".join([*shown, *([f"and {more} more"] if more > 0 else [])]) or "[]"

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text(repr(self))

    def _repr_html_(self) -> str | None:
        """Return the texts as HTML for notebooks; None, for plain text, if one is not a record any more."""
        return _html(self)


def _frame(records: Iterable[Record]) -> DataFrame:
    from pandas import DataFrame

    rows = [
        (record.id, record.question, at, s.text, s.confidence, s.by_source, s.score, s.factuality)
        for record in records
        for at, s in enumerate(record.sentences, 1)
    ]
    frame = DataFrame(rows, columns=list(_DTYPES)).astype(_DTYPES)
    return frame if frame["by_source"].notna().any() else frame.drop(columns="by_source")


def _html(texts: Iterable[TaggedText]) -> str | None:
    texts = list(texts)
    try:
        records = [record_from_dict(text) for text in texts]
    except LovecError:
        return None
    notes = dict.fromkeys(note for text in texts if (note := getattr(text, "note", "")))
    return notebook_html(records, list(notes))


def _lines(record: Record) -> str:
    """Return a record for a terminal: a line per sentence with its confidence, that by source if any, and its score."""
    is_sourced = any(s.by_source is not None for s in record.sentences)
    rows = [
        f"{number(s):>10}  {f'{source_number(s):>9}  ' * is_sourced}{'-' if s.score is None else s.score:>5}  "
        f"{one_line(s.text, _WIDTH)}"
        for s in record.sentences[:_MOST_LINES]
    ]
    more = len(record.sentences) - len(rows)
    left_out = record.meta.get("left_out")
    return "\n".join(
        [
            one_line(f"{record.id}: {record.question}", _WIDTH),
            f"confidence  {'by source  ' * is_sourced}score  sentence",
            *rows,
            *([f"and {counted(more, 'more sentence')}"] if more else []),
            *([f"left out: {left_out}"] if left_out else []),
            *(one_line(f"problem: {problem}", _WIDTH) for problem in record.meta.get("problems") or ()),
        ]
    )
