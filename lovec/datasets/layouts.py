"""Files of records in any known layout: lovec's own, the authors', those of data sets and of other tools.

A layout is recognised by its keys. Another one is a function from a row to records under `layout`, and its place
in `LAYOUTS`, or in the entry points ``lovec.layouts`` of the package that brings it.
"""

from __future__ import annotations

import logging
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from itertools import chain
from typing import Any

from lovec.core.notices import listed
from lovec.core.plugins import PluginError, plugins
from lovec.core.progress import is_quiet
from lovec.datasets import (
    authors,
    checkers,
    conversations,
    factscore,
    halueval,
    harness,
    marked,
    triviaqa,
    uncertainty,
    wikibio,
)
from lovec.datasets.jsonl import RECORD_KEYS, records_of
from lovec.datasets.rows import Layout, Reading, Row, read_records_of, read_rows
from lovec.types import LovecError, Record

log = logging.getLogger(__name__)


OWN = Layout("lovec", ("question",), None, conversations.is_own, short="lovec")

_PARALLEL = ("scores", "supported")
"""Keys of ``meta`` with a value for every sentence, or a list of them for every method."""

_SPECIFIC = (
    checkers.veriscore,
    triviaqa.short_answer,
    OWN,
    authors.demonstration,
    conversations.preference,
    authors.online,
    authors.outputs,
    factscore.labelled,
    factscore.decided,
    checkers.safe,
    checkers.longfact,
    wikibio.passage,
    checkers.factbench,
    checkers.factcheck_gpt,
    halueval.halueval,
    uncertainty.subclaims,
    uncertainty.uqlm,
    uncertainty.polygraph,
    uncertainty.polygraph_manager,
    uncertainty.rlcr,
    uncertainty.rlcr_numbers,
    uncertainty.subclaim_numbers,
    harness.choices,
    marked.marked_answer,
)
_GENERAL = (conversations.answered, conversations.asked, conversations.chat)  # which many rows fit
_GROUP = "lovec.layouts"

LAYOUTS = (*_SPECIFIC, *_GENERAL)
"""Lovec's own layouts."""


def all_layouts() -> Iterator[Layout]:
    """Yield all layouts, those of other packages among them; a row has the first one that it fits.

    Packages are looked for only once lovec's own layouts, but for the general ones, do not fit.
    """
    yield from _SPECIFIC
    yield from _brought()
    yield from _GENERAL


def layout_names() -> tuple[str, ...]:
    """Return what `lovec score --layout` takes: the short names of layouts that hold labels."""
    return tuple(dict.fromkeys([*(layout.short for layout in LAYOUTS if layout.short), *plugins(_GROUP)]))


def layouts_called(name: str) -> Sequence[Layout]:
    """Return the layouts with a short name.

    Raises:
        LovecError: there is none, or the package that brings it is broken.
    """
    if own := [layout for layout in LAYOUTS if layout.short == name]:
        return own
    if name not in plugins(_GROUP):
        raise LovecError(f"unknown layout {name!r}, expected one of {', '.join(layout_names())}")
    return [replace(layout := plugins(_GROUP)[name].load(Layout), short=layout.short and name)]


@cache
def _brought() -> Sequence[Layout]:
    """Return the layouts of other packages; a warning names a package whose layout cannot be used."""
    layouts: list[Layout] = []
    for name in plugins(_GROUP):
        try:
            layouts += layouts_called(name)
        except PluginError as error:
            log.warning("%s", error)
    return layouts


def read_any(
    path: str | os.PathLike[str],
    rows: Iterator[tuple[int, Row]] | None = None,
    units: bool = False,
    layouts: Sequence[Layout] | None = None,
) -> Iterator[Record]:
    """Read the records of a file one by one, whatever its layout, be it JSON Lines, JSON, CSV or Parquet.

    The first row says whether the file is lovec's own; in other files every row may have another layout. What was read
    from a file that is not lovec's own, and what was left out, is logged at its end, in one line.

    Args:
        path: a file that ``lovec.datasets.rows`` can read, in one of these layouts.
        rows: number and object of every row of the file; default: ``read_rows(path)``.
        units: whether rows are read at their finest unit with all scores, see ``Layout.units``.
        layouts: the layouts that a row may have; it has the first one that it fits. None is `all_layouts`.

    Yields:
        Records in file order.

    Raises:
        LovecError: the file is missing, empty or broken, or a row has no known layout; the message names the nearest
            one and what it lacks.
    """
    rows = read_rows(path) if rows is None else rows
    first = next(rows, None)
    if first is None:
        return
    layout = layout_of(first[1], f"{path}:{first[0]}", layouts)
    reading, counts, rows_of = Reading(path), Counter[str](), Counter[str]()
    rows, is_own = chain([first], rows), layout is OWN
    for record in records_of(_own(rows, path), path) if is_own else _foreign(rows, reading, rows_of, units, layouts):
        counts["records"] += 1
        counts["sentences"] += len(record.sentences)
        counts["labels"] += sum(sentence.factuality is not None for sentence in record.sentences)
        counts["confidences"] += sum(value is not None for value in _confidences(record, units))
        yield record
    if is_own:
        rows_of[OWN.name] = counts["records"]
        reading.kept.update(dict.fromkeys(key for key in first[1] if key not in RECORD_KEYS))
    if not is_own or reading.kept:
        kept = f"; kept in meta: {listed(list(reading.kept))}" if reading.kept else ""
        _say(f"{path}: {_summary(rows_of, counts, reading.left_out)}{kept}")


def _own(rows: Iterable[tuple[int, Row]], path: str | os.PathLike[str]) -> Iterator[tuple[int, Row]]:
    """Yield the rows of a file of lovec's own, and refuse one whose answer is under the key of another layout."""
    for number, row in rows:
        if "question" in row and not OWN.fits(row):
            raise LovecError(
                f"{path}:{number}: has its answer under another key than 'answer', but the rows before have the layout "
                "of lovec's own files; call it 'answer' in all rows"
            )
        yield number, row


def _confidences(record: Record, units: bool) -> Iterable[float | None]:
    """Return the confidences of a record: those of its sentences, or the scores of the first of several methods."""
    scores = record.meta.get("scores") if units else None
    if isinstance(scores, dict):
        scores = next(iter(scores.values()), ())
    return [sentence.confidence for sentence in record.sentences] if scores is None else scores


def _foreign(
    rows: Iterable[tuple[int, Row]],
    reading: Reading,
    rows_of: Counter[str],
    units: bool,
    layouts: Sequence[Layout] | None,
) -> Iterator[Record]:
    """Yield the records of rows in any layouts but lovec's own, and count the rows of each layout."""
    ids: set[str] = set()
    for number, row in rows:
        reading.number = number
        layout = layout_of(row, reading.place, layouts)
        if layout.read is None:
            raise LovecError(f"{reading.place}: has the layout of lovec's own files, but the rows before have another")
        rows_of[layout.name] += 1
        read = layout.units if units and layout.units is not None else layout.read
        for record in read_records_of(row, layout.name, read, reading):
            if record.id in ids:
                raise LovecError(f"{reading.place}: id {record.id!r} is already that of an earlier row; leave one out")
            ids.add(record.id)
            yield _without_blank(record, reading)


def _without_blank(record: Record, reading: Reading) -> Record:
    """Return a record without its sentences that have no text, which files of records may not have, nor their scores.

    The texts of the others have no white space around them.
    """
    texts = [sentence.text.strip() for sentence in record.sentences]
    if texts == [sentence.text for sentence in record.sentences] and all(texts):
        return record
    kept = [place for place, text in enumerate(texts) if text]

    def of_kept(values: Any) -> Any:
        if isinstance(values, Mapping):
            return {name: of_kept(inner) for name, inner in values.items()}
        is_parallel = isinstance(values, list) and len(values) == len(texts)
        return [values[place] for place in kept] if is_parallel else values

    reading.left_out["claims without a text"] += len(texts) - len(kept)
    sentences = tuple(replace(record.sentences[place], text=texts[place]) for place in kept)
    parallel = {name: of_kept(record.meta[name]) for name in _PARALLEL if name in record.meta}
    return replace(record, sentences=sentences, meta={**record.meta, **parallel})


def known_layout(row: Row, layouts: Sequence[Layout] | None = None) -> Layout | None:
    """Return the first of some layouts, by default of all, that a row fits, or None if it fits none."""
    return next((layout for layout in layouts or all_layouts() if not layout.missing(row) and layout.fits(row)), None)


def layout_of(row: Row, place: str, layouts: Sequence[Layout] | None = None) -> Layout:
    """Return the layout of a row.

    Args:
        row: the row.
        place: where it is, for the error message.
        layouts: the layouts that it may have; None is `all_layouts`.

    Raises:
        LovecError: it has none; the message names the nearest layout and what the row lacks.
    """
    if (layout := known_layout(row, layouts)) is not None:
        return layout
    nearest = max(layouts or all_layouts(), key=lambda layout: _share(layout, row))
    if not _share(nearest, row):
        nearest = layouts[0] if layouts else OWN
    lacks = ", ".join(map(repr, nearest.missing(row))) or "values of another form"
    keys = ", ".join(map(str, list(row)[:8])) + ", ..." * (len(row) > 8)
    found = f"no known layout has the keys {keys or '(none)'}"
    if layouts:
        found = f"has the keys {keys or '(none)'}, not the layout {layouts[0].short}"
    raise LovecError(f"{place}: {found}; the nearest, {nearest.name}, also needs {lacks}")


def _summary(rows_of: Counter[str], counts: Counter[str], left_out: Counter[str]) -> str:
    """Return in one line what a file held and what was read from it."""
    read = ", ".join(f"{counts[what]} {what}" for what in ("records", "sentences", "labels", "confidences"))
    rest = [f"{count} {what}" for what, count in left_out.items() if count]
    if counts["labels"] and (unlabelled := counts["sentences"] - counts["labels"]):
        rest.append(f"{unlabelled} sentences without a label")
    names = " and ".join(rows_of)
    return f"{rows_of.total()} rows read as {names}: {read}" + (f"; of these {', '.join(rest)}" if rest else "")


def _share(layout: Layout, row: Row) -> float:
    """Return the share of a layout's keys that a row has; 0 where keys alone do not make the layout."""
    return 1 - len(layout.missing(row)) / len(layout.keys) if layout.missing(row) else 0.0


@cache
def _say(line: str) -> None:
    """Log a line once, since a file may be read several times."""
    if not is_quiet():
        log.warning("%s", line)
