"""What the stages read: files that earlier stages wrote, and the records that labelling begins with."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

from lovec.core.provenance import file_digest
from lovec.core.settings import Count, checked
from lovec.datasets.evidence import open_evidence, with_evidence
from lovec.datasets.hub_rows import HubRows
from lovec.datasets.jsonl import open_input, read_objects, record_from_dict
from lovec.datasets.layouts import read_any
from lovec.types import LovecError, Record, error_in

T = TypeVar("T")
_SHARD = re.compile(r"([0-9]{1,9})/([0-9]{1,9})")


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

    def after(self, skip: int) -> Iterable[Record]:
        """Return all records after the first ``skip`` ones, as something that can be iterated several times."""
        return _Rest(self, skip)


@dataclass(frozen=True, slots=True)
class _Rest:
    source: Source
    skip: int

    def __iter__(self) -> Iterator[Record]:
        return self.source.records(self.skip)


@checked()
@dataclass(frozen=True, slots=True)
class Shard:
    """One of several parts of an input: every ``count``-th record, from the ``number``-th one on.

    Attributes:
        number: which of the shards it is, from 1 to ``count``.
        count: number of shards.

    Raises:
        LovecError: one of them is not an integer above 0, or the number is above the count.
    """

    number: Count
    count: Count

    def __post_init__(self) -> None:
        if self.number > self.count:
            raise LovecError(f"number is {self.number}, expected at most the count of {self.count}")

    @classmethod
    def parse(cls, text: str) -> Shard:
        """Return the shard that a text such as "3/8" names.

        Raises:
            LovecError: the text is not of this form, or there is no such shard.
        """
        match = _SHARD.fullmatch(text)
        if match is None:
            raise LovecError(f"the shard is {text!r}, expected i/n such as 3/8: the third of eight shards")
        number, count = int(match[1]), int(match[2])
        if not 1 <= number <= count:
            raise LovecError(
                f"the shard is {text}, expected i/n with i from 1 to n, such as 3/8; shards are counted from 1 (SLURM: "
                "--array=1-8)"
            )
        return cls(number, count)

    def __str__(self) -> str:
        return f"{self.number}/{self.count}"

    @property
    def name(self) -> str:
        """What the names of its files and folders hold: "shard-3-of-8"."""
        return f"shard-{self.number}-of-{self.count}"


def select(records: Iterable[T], shard: Shard | None, skip: int) -> Iterator[T]:
    """Return the records of a shard, or all records without one, after its first ``skip`` ones."""
    first, step = (0, 1) if shard is None else (shard.number - 1, shard.count)
    return islice(records, first + skip * step, None, step)


def shard_identity(shard: Shard | None) -> dict[str, str]:
    """Return what a shard adds to the identity of its source: nothing where there is none."""
    return {} if shard is None else {"shard": str(shard)}


def stage_file(path: Path) -> Source:
    """Return the records of a file that a stage wrote; none of them is kept in memory.

    Raises:
        LovecError: the file cannot be read.
    """

    def records(skip: int) -> Iterator[Record]:
        for number, data in islice(read_objects(path), skip, None):
            with error_in(f"{path}:{number}: "):
                yield record_from_dict(data)

    return Source(records, {"file": input_digest(path)})


def open_file(path: str, evidence: str | None = None, shard: Shard | None = None) -> Source:
    """Return the records of a user's file; only their ids are kept in memory.

    Args:
        path: the file or data set of the hub, in any layout that ``lovec.datasets.layouts`` recognises.
        evidence: file in which evidence is looked up for records that have none (see ``lovec.datasets.evidence``).
        shard: the part of the file to return; None is all of it.

    Raises:
        LovecError: the file cannot be read.
    """
    return first_source(lambda: read_any(path), {"file": input_digest(path)}, evidence, shard=shard)


def first_source(
    read: Callable[[], Iterable[Record]],
    origin: Mapping[str, Any],
    evidence: str | None,
    answered: bool = False,
    shard: Shard | None = None,
) -> Source:
    """Return what labelling begins with: the records of a shard, or all, with evidence for those that have none."""

    def records(skip: int) -> Iterator[Record]:
        rest = select(read(), shard, skip)
        yield from with_evidence(rest, open_evidence(evidence)) if evidence else rest

    # Evidence is identified by name and size, because a digest of all of Wikipedia would take minutes.
    pages = [Path(evidence).name, os.path.getsize(evidence)] if evidence and os.path.exists(evidence) else evidence
    return Source(records, {**origin, "evidence": pages, **shard_identity(shard)}, answered)


def input_digest(path: str | os.PathLike[str]) -> str:
    """Return the SHA-256 of a file, or of a data set of the hub what its rows depend on.

    Raises:
        LovecError: it cannot be read.
    """
    if (stored := HubRows.parse(os.fspath(path))) is not None:
        return stored.identity
    open_input(path).close()  # refuses what is not a file
    return file_digest(path)
