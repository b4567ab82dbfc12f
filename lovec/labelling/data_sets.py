"""Data sets as sources of labelling: the datamodules declare them, for training, testing and labelling alike.

This module imports Lightning; the others of this package do not.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from inspect import signature
from pathlib import Path
from typing import Any

import lovec.datamodules
from lovec.core.imports import import_object
from lovec.core.provenance import text_digest
from lovec.datamodules import RecordsDataModule
from lovec.labelling.sources import Shard, Source, first_source, input_digest
from lovec.types import LovecError, Record


def data_sets() -> dict[str, type[RecordsDataModule]]:
    """Return lovec's own data sets by name: all of its datamodules that have questions."""
    classes = {name: getattr(lovec.datamodules, name) for name in lovec.datamodules.__all__}
    return {name: cls for name, cls in classes.items() if _has_questions(cls)}


def open_data_set(
    name: str,
    path: str | None = None,
    split: str | None = None,
    evidence: str | None = None,
    shard: Shard | None = None,
    **options: Any,
) -> Source:
    """Build a data set and return its records as a source.

    Args:
        name: a key of ``data_sets()``, or the import path of a class, such as ``my_file.MySet``.
        path: a copy of the data set on this machine, where the class takes a path.
        split: one of the splits of the class; default: its first one.
        evidence: file in which evidence is looked up for records that have none.
        shard: the part of the data set to return; None is all of it.
        **options: other arguments of the class.

    Raises:
        LovecError: there is no such class, split or argument, or the class refuses its arguments.
    """
    cls = data_sets().get(name) or import_object(name)
    if not _has_questions(cls):
        raise LovecError(
            f"{name} is not a data set, expected a subclass of QuestionSet that overrides questions(split)"
        )
    options |= {} if path is None else {"path": path}
    try:
        data = cls(**options)
    except TypeError as error:
        names = ", ".join(option for option in signature(cls).parameters if option != "kwargs")
        raise LovecError(f"cannot open the data set {name} ({error}); its arguments are {names}") from error
    chosen = cls.splits[0] if split is None else split
    if chosen not in cls.splits:
        raise LovecError(f"the split of {name} is {chosen!r}, expected one of {', '.join(cls.splits)}")
    origin = {"data": name, "split": chosen, "options": {key: _identity(value) for key, value in options.items()}}
    return first_source(lambda: _unique(data.questions(chosen), name), origin, evidence, cls.answered, shard)


def _has_questions(cls: Any) -> bool:
    return isinstance(cls, type) and issubclass(cls, RecordsDataModule) and cls.questions != RecordsDataModule.questions


def _identity(value: Any) -> Any:
    """Return an argument as JSON: a file by its digest, and a folder by those of the files in it."""
    if not isinstance(value, str) or not os.path.exists(value):
        return value
    if os.path.isfile(value):
        return input_digest(value)
    files = sorted(path for path in Path(value).rglob("*") if path.is_file())
    return text_digest(f"{path.relative_to(value)}\n{input_digest(path)}" for path in files)


def _unique(records: Iterable[Record], name: str) -> Iterator[Record]:
    """Yield the records, and refuse an id that was there before: samples and labels are matched by id."""
    ids: set[str] = set()
    for record in records:
        if record.id in ids:
            raise LovecError(f"{name} has two records with the id {record.id!r}; give every record its own id")
        ids.add(record.id)
        yield record
