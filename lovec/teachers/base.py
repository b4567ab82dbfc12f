"""What all teachers share: what they work with, and how their estimates are kept in files."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any, TypeAlias

from lovec.baselines import BaselineResources
from lovec.baselines.identity import (
    UntoldSettings,
    answer_part,
    class_name,
    code_part,
    parts_digest,
    plain_settings,
    resources_part,
)
from lovec.core.files import write_text
from lovec.core.hub import adapter_folder
from lovec.core.notices import counted
from lovec.core.own_code import named_modules, own_modules
from lovec.core.progress import doing
from lovec.core.provenance import adapter_options
from lovec.core.settings import check_range
from lovec.policy import Policy
from lovec.policy.fingerprint import loaded_digest
from lovec.types import LovecError, Oracle, Record, plain_numbers

Estimates: TypeAlias = list[list[float | None]]
"""How true every sentence of every record is, in [0, 1]; None where a teacher cannot say."""


def _only_part(part: Any) -> list[Any]:
    return [part]


@dataclass(frozen=True)
class TeacherResources:
    """What teachers work with.

    Attributes:
        policy: the model. Teachers compute with an adapter of their own, with that of ``start``, or with none.
        baselines: engine and encoder of the policy, and what else baselines work with.
        start: the adapter that training starts from, as for ``policy.adapter``; None where it starts a fresh one.
        oracle: rates sentences; None where there is none.
        folder: where estimates are kept; None keeps none.
        rank: number of this process.
        processes: number of processes, each of which estimates its share.
        gather: returns the values of all processes by rank, on every process.
    """

    policy: Policy
    baselines: BaselineResources
    start: str | None = None
    oracle: Oracle | None = None
    folder: Path | None = None
    rank: int = 0
    processes: int = 1
    gather: Callable[[Any], list[Any]] = field(default=_only_part)

    def using_adapter(self, adapter: str | None) -> AbstractContextManager[None]:
        """Use the adapter of a folder inside the block, or none, in policy and engine."""
        return self.policy.using_adapter(adapter, self.baselines.engine)


class Teacher(ABC):
    """Estimates how true every sentence of the training answers is, for ``lovec.modules.Distil`` to learn.

    Attributes:
        uses_labels: whether the estimates depend on the labels of the records.
    """

    uses_labels: bool = False

    @abstractmethod
    def estimates(self, records: Sequence[Record], resources: TeacherResources) -> Estimates:
        """Return an estimate in [0, 1] for every sentence of every record, None where the teacher cannot say.

        Every process of a run gets all records and must return all estimates.
        """

    def check_ready(self, oracle: Oracle | None) -> None:  # noqa: B027 -- most teachers lack nothing
        """Refuse a teacher that lacks what it needs, before a model is loaded for it; here nothing can be missing.

        Args:
            oracle: that of the run; None where there is none.

        Raises:
            LovecError: the teacher cannot be used.
        """


class StoredTeacher(Teacher):
    """A teacher whose estimates take time, and are therefore kept in a file.

    The name of the file is a digest of all that the estimates depend on: the teacher and its settings, the weights of
    base and adapter, the prompts, the settings of samples, the answers, and the user's own code among them. The options
    of the adapter stand in the file: ``{"adapter": options, "estimates": rows}``; files of earlier versions hold the
    rows alone. A second run with the same ones reads the file. It is written whole or not at all. Nothing is kept where
    a class stands in a notebook, or its file was changed while this process ran. A subclass overrides ``settings`` and
    ``estimate``, and ``adapter`` and ``lasting`` where it needs to.
    """

    @property
    @abstractmethod
    def settings(self) -> Mapping[str, Any]:
        """All settings that the estimates depend on, as values of JSON."""

    def adapter(self, resources: TeacherResources) -> str | None:
        """Return the adapter that the teacher computes with, as for ``policy.adapter``; None is the bare base model."""
        return None

    @abstractmethod
    def estimate(self, records: Sequence[Record], resources: TeacherResources) -> Estimates:
        """Return estimates of records, computed with the teacher's adapter, which is in use."""

    def lasting(self, resources: TeacherResources) -> bool:
        """Return whether the estimates that were just made are worth keeping, and not cut short by a failure."""
        return True

    def estimates(self, records: Sequence[Record], resources: TeacherResources) -> Estimates:
        """Return the estimates of records, from the file where there is one.

        Raises:
            LovecError: the teacher returned something other than one number in [0, 1], or None, for every sentence.
        """
        path = self._path(records, resources)
        sizes = [len(record.sentences) for record in records]
        adapter = self._folder(resources)
        options = {} if adapter is None else adapter_options(Path(adapter))
        stored = resources.gather(_read(path, sizes, options) if path is not None and resources.rank == 0 else None)[0]
        if stored is not None:
            found: Estimates = stored
            return found
        share = records if self.uses_labels else records[resources.rank :: resources.processes]
        about = f"the teacher {type(self).__name__} estimates {counted(len(share), 'answer')}"
        with resources.using_adapter(adapter), doing(about):
            rows = self.estimate(share, resources)
        if not self.uses_labels:
            rows = _interleaved(resources.gather(rows), len(records))
        name = type(self).__name__
        if [len(row) for row in rows] != sizes:
            raise LovecError(f"the teacher {name} returned other numbers of estimates than there are sentences")
        for value in (value for row in rows for value in row):
            check_range(f"an estimate of the teacher {name}", value, at_least=0, at_most=1)
        rows = plain_numbers(rows)
        if resources.folder is not None:
            kept = all(resources.gather(path is not None and self.lasting(resources)))
            if kept and path is not None and resources.rank == 0:
                write_text(path, json.dumps({"adapter": options, "estimates": rows}) + "\n")
        return rows

    def digest(self, records: Sequence[Record], resources: TeacherResources) -> str:
        """Return a digest of all that the estimates of records depend on.

        Raises:
            UntoldSettings: the code of a class that has a part in them is not known.
        """
        parts = resources_part(loaded_digest(resources.policy.model), resources.baselines, self._folder(resources)) | {
            "teacher": class_name(self),
            "settings": dict(self.settings),
            "oracle": plain_settings(resources.oracle),
        }
        modules = named_modules(parts)
        code = code_part(own_modules(modules).keys() | modules & {"__main__"})
        parts |= {"code": code} if code else {}
        return parts_digest(chain([parts], (answer_part(record, self.uses_labels) for record in records)))

    def _path(self, records: Sequence[Record], resources: TeacherResources) -> Path | None:
        """Return the file of the estimates of records; None where none are kept."""
        if resources.folder is None:
            return None
        try:
            return resources.folder / f"{self.digest(records, resources)}.json"
        except UntoldSettings:
            return None

    def _folder(self, resources: TeacherResources) -> str | None:
        """Return the folder with the weights of the teacher's adapter; None is the bare base model."""
        adapter = self.adapter(resources)
        return None if adapter is None else adapter_folder(adapter)


def _interleaved(parts: Sequence[Estimates], count: int) -> Estimates:
    """Return the rows of all processes in the order of the records."""
    return [parts[number % len(parts)][number // len(parts)] for number in range(count)]


def _read(path: Path, sizes: Sequence[int], options: Mapping[str, Any]) -> Estimates | None:
    """Return the estimates of a file; None where there is no file, or it holds something else.

    Args:
        path: the file.
        sizes: numbers of sentences of the records.
        options: options of the adapter that the estimates must be of.
    """
    try:
        rows = json.loads(path.read_text(encoding="utf-8"))
        if isinstance(rows, dict):
            rows = rows["estimates"] if rows["adapter"] == options else None
        fits = [len(row) for row in rows] == list(sizes)
        plain = all(value is None or (type(value) in (int, float) and 0 <= value <= 1) for row in rows for value in row)
    except (OSError, ValueError, TypeError, KeyError):
        return None
    return rows if fits and plain else None
