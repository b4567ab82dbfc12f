"""What all teachers share: what they work with, and how their estimates are kept in files."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence, Set
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field, fields, is_dataclass
from functools import cached_property
from inspect import isroutine
from itertools import chain
from pathlib import Path, PurePath
from typing import Any, TypeAlias

from torch import nn

from lovec.baselines import BaselineResources
from lovec.core.files import write_text
from lovec.core.hub import adapter_folder
from lovec.core.notices import counted
from lovec.core.progress import doing
from lovec.core.provenance import adapter_options, text_digest, weights_digest
from lovec.core.settings import check_range, decisive_arguments
from lovec.datasets.jsonl import record_to_dict
from lovec.policy import Policy
from lovec.policy.fingerprint import loaded_digest, prompt_part
from lovec.types import LovecError, Oracle, Record, plain_numbers

Estimates: TypeAlias = list[list[float | None]]
"""How true every sentence of every record is, in [0, 1]; None where a teacher cannot say."""

_PLAIN = (str, int, float, bool, type(None))


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
    base and adapter, the prompts, the settings of samples, and the answers. The options of the adapter stand in the
    file: ``{"adapter": options, "estimates": rows}``; files of earlier versions hold the rows alone. A second run with
    the same ones reads the file. It is written whole or not at all. A subclass overrides ``settings`` and ``estimate``,
    and ``adapter`` and ``lasting`` where it needs to.
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
        path = None if resources.folder is None else resources.folder / f"{self.digest(records, resources)}.json"
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
        if path is not None and all(resources.gather(self.lasting(resources))) and resources.rank == 0:
            write_text(path, json.dumps({"adapter": options, "estimates": rows}) + "\n")
        return rows

    def digest(self, records: Sequence[Record], resources: TeacherResources) -> str:
        """Return a digest of all that the estimates of records depend on."""
        adapter, shared = self._folder(resources), resources.baselines
        samples = shared.samples
        parts: dict[str, Any] = {
            "teacher": f"{type(self).__module__}.{type(self).__qualname__}",
            "settings": dict(self.settings),
            "base": loaded_digest(resources.policy.model),
            "adapter": None if adapter is None else weights_digest(adapter),
            "prompt": prompt_part(shared.encoder) | {"scoring": shared.encoder.scoring},
            "wording": asdict(shared.wording),
            "samples": [samples.temperature, samples.max_new_tokens, samples.seed],
            "judge": plain_settings(shared.judge),
            "oracle": plain_settings(resources.oracle),
        }
        answers = (record_to_dict(record) | {"rejected": None} for record in records)
        if not self.uses_labels:
            texts = ([sentence.text for sentence in record.sentences] for record in records)
            answers = (answer | {"sentences": own} for answer, own in zip(answers, texts, strict=True))
        return text_digest(json.dumps(part, sort_keys=True, default=str) for part in chain([parts], answers))[:32]

    def _folder(self, resources: TeacherResources) -> str | None:
        """Return the folder with the weights of the teacher's adapter; None is the bare base model."""
        adapter = self.adapter(resources)
        return None if adapter is None else adapter_folder(adapter)


def plain_settings(value: Any) -> Any:
    """Return what an object was made with as values of JSON: its class, and its settings by name.

    An object with a text ``fingerprint`` is described by it. Settings are the arguments on which results depend, where
    an object remembers them, as baselines do; of another object its public attributes, and what they are described by;
    of a model, and of what has none of these, the name of the class alone.
    """
    return _described(value, ())


def _described(value: Any, around: tuple[int, ...]) -> Any:
    """Return a value as values of JSON, given the ids of the objects that it is part of."""
    if isinstance(value, _PLAIN):
        return value
    if isinstance(value, PurePath):
        return str(value)
    if isinstance(value, type) or isroutine(value):
        return f"{value.__module__}.{value.__qualname__}"
    name = f"{type(value).__module__}.{type(value).__qualname__}"
    if id(value) in around:
        return name
    around = (*around, id(value))
    if isinstance(value, list | tuple):
        return [_described(item, around) for item in value]
    if isinstance(value, Set):
        return sorted((_described(item, around) for item in value), key=repr)
    if isinstance(value, Mapping):
        return {str(key): _described(item, around) for key, item in value.items()}
    fingerprint = getattr(value, "fingerprint", None)
    if isinstance(fingerprint, str):
        return {"class": name, "fingerprint": fingerprint}
    settings = decisive_arguments(value)
    if settings is None and isinstance(value, nn.Module):
        return name
    if settings is None:
        slots = {field.name: getattr(value, field.name) for field in fields(value)} if is_dataclass(value) else {}
        found = slots | getattr(value, "__dict__", {})
        computed = {key for key in found if isinstance(getattr(type(value), key, None), cached_property)}
        settings = {key: item for key, item in found.items() if not key.startswith("_") and key not in computed}
    return {"class": name} | {key: _described(item, around) for key, item in sorted(settings.items())}


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
