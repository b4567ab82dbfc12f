"""What stages read: files of records, and data sets by name."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Protocol

from lovec.datasets.bios import read_bios
from lovec.datasets.evidence import open_evidence, with_evidence
from lovec.datasets.factscore import read_factscore
from lovec.datasets.jsonl import read_objects, record_from_dict
from lovec.datasets.layouts import read_any
from lovec.datasets.popqa import read_popqa
from lovec.datasets.triviaqa import read_triviaqa
from lovec.datasets.wikibio import read_wikibio
from lovec.datasets.wildhallu import read_wildhallu
from lovec.datasets.world import World
from lovec.types import LovecError, Record

_BLOCK = 1 << 20


class Source(Protocol):
    """Records in an order of their own, from any place on."""

    def identity(self) -> Mapping[str, Any]:
        """What the records depend on, as JSON: the same for the same records."""

    def records(self, skip: int) -> Iterator[Record]:
        """The records behind the first ``skip`` ones, one by one."""


@dataclass(frozen=True, slots=True)
class FileSource:
    """A file that a stage wrote: our JSONL, with ids that are known to be unique.

    Attributes:
        path: the file.
    """

    path: Path

    def identity(self) -> Mapping[str, Any]:
        """A digest of the file."""
        return {"file": file_digest(self.path)}

    def records(self, skip: int) -> Iterator[Record]:
        """The records, one by one; nothing is remembered of them."""
        for number, data in islice(read_objects(self.path), skip, None):
            try:
                yield record_from_dict(data)
            except LovecError as error:
                raise LovecError(f"{self.path}:{number}: {error}") from None


@dataclass(frozen=True, slots=True)
class Dataset:
    """A data set that has a name here.

    Attributes:
        read: from a path and a split to records.
        answered: whether its records come with answers.
        splits: the splits it has; () where it has none.
    """

    read: Callable[[str | None, str | None], Iterable[Record]]
    answered: bool = False
    splits: tuple[str, ...] = ()


def _world(path: str | None, split: str | None) -> Iterable[Record]:
    return World(path or "world").questions(split or "train")


def _factscore(path: str | None, split: str | None) -> Iterable[Record]:
    if path is None:
        raise LovecError("FActScore's labelled data are not on the hub; give ChatGPT.jsonl with --data.path")
    return read_factscore(path)


DATASETS: Mapping[str, Dataset] = {
    "World": Dataset(_world, splits=("train", "dev", "test", "companies")),
    "WildHallu": Dataset(read_wildhallu, splits=("train", "validation", "test")),
    "Bios": Dataset(lambda path, split: read_bios(path)),
    "PopQA": Dataset(lambda path, split: read_popqa(path)),
    "TriviaQA": Dataset(lambda path, split: read_triviaqa(path)),
    "WikiBio": Dataset(lambda path, split: read_wikibio(path), answered=True),
    "FActScore": Dataset(_factscore, answered=True),
}
"""Data sets by the name they are asked for."""


@dataclass(frozen=True, slots=True)
class NamedSource:
    """A data set, or a user's own file in any layout that is known, with evidence found for it.

    Attributes:
        path: file or folder of the records; None asks the hub, or makes the world.
        dataset: name in ``DATASETS``; None is a user's own file.
        split: split of the data set.
        evidence: file to find evidence in (see ``lovec.datasets.evidence``), for records that have none.
    """

    path: str | None
    dataset: str | None = None
    split: str | None = None
    evidence: str | None = None

    def identity(self) -> Mapping[str, Any]:
        """Name and split, and digests of the files."""
        known = self.path is not None and Path(self.path).is_file()
        return {
            "data": self.dataset,
            "split": self.split,
            "file": file_digest(self.path) if known and self.path else self.path,
            "evidence": _sized(self.evidence) if self.evidence else None,
        }

    def records(self, skip: int) -> Iterator[Record]:
        """The records, one by one; of a user's file only the ids are remembered."""
        if self.dataset is not None:
            found: Iterable[Record] = DATASETS[self.dataset].read(self.path, self.split)
        else:
            found = read_any(self.path or "")
        rest = islice(found, skip, None)
        yield from with_evidence(rest, open_evidence(self.evidence)) if self.evidence else rest


def file_digest(path: str | os.PathLike[str]) -> str:
    """SHA-256 of a file.

    Raises:
        LovecError: it cannot be read.
    """
    digest = hashlib.sha256()
    try:
        with open(path, "rb") as file:
            while block := file.read(_BLOCK):
                digest.update(block)
    except OSError as error:
        raise LovecError(f"cannot read {path} ({error.strerror}); give the path of a JSONL file") from None
    return digest.hexdigest()


def _sized(path: str) -> list[Any]:
    """Name and size: a digest of all of Wikipedia would take minutes."""
    return [Path(path).name, os.path.getsize(path) if os.path.exists(path) else None]
