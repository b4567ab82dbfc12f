"""What the stages read: files that earlier stages wrote, and the records that labelling begins with."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from lovec.datasets.evidence import open_evidence, with_evidence
from lovec.datasets.jsonl import open_input, read_objects, record_from_dict
from lovec.datasets.layouts import read_any
from lovec.types import LovecError, Record


@dataclass(frozen=True, slots=True)
class Source:
    """Records in a fixed order that can be read from any position on.

    Attributes:
        records: yields all records after the first n ones, given n.
        identity: what the records depend on, as JSON; equal identities mean equal records.
        answered: whether the records of a data set have answers; False for files.
    """

    records: Callable[[int], Iterator[Record]]
    identity: Mapping[str, Any]
    answered: bool = False


def stage_file(path: Path) -> Source:
    """Return the records of a file that a stage wrote; none of them is kept in memory.

    Raises:
        LovecError: the file cannot be read.
    """

    def records(skip: int) -> Iterator[Record]:
        for number, data in islice(read_objects(path), skip, None):
            try:
                yield record_from_dict(data)
            except LovecError as error:
                raise LovecError(f"{path}:{number}: {error}") from None

    return Source(records, {"file": file_digest(path)})


def open_file(path: str, evidence: str | None = None) -> Source:
    """Return the records of a user's file; only their ids are kept in memory.

    Args:
        path: the file, in any layout that ``lovec.datasets.layouts`` recognises.
        evidence: file in which evidence is looked up for records that have none (see ``lovec.datasets.evidence``).

    Raises:
        LovecError: the file cannot be read.
    """
    return first_source(lambda: read_any(path), {"file": file_digest(path)}, evidence)


def first_source(
    read: Callable[[], Iterable[Record]], origin: Mapping[str, Any], evidence: str | None, answered: bool = False
) -> Source:
    """Return what labelling begins with: records, with evidence looked up for those that have none."""

    def records(skip: int) -> Iterator[Record]:
        rest = islice(read(), skip, None)
        yield from with_evidence(rest, open_evidence(evidence)) if evidence else rest

    # Evidence is identified by name and size, because a digest of all of Wikipedia would take minutes.
    pages = [Path(evidence).name, os.path.getsize(evidence)] if evidence and os.path.exists(evidence) else evidence
    return Source(records, {**origin, "evidence": pages}, answered)


def file_digest(path: str | os.PathLike[str]) -> str:
    """Return the SHA-256 of a file.

    Raises:
        LovecError: the file cannot be read.
    """
    with open_input(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
