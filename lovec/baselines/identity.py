"""What confidences that are computed with a model depend on, to tell those of an earlier run from others."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Set
from dataclasses import asdict, fields, is_dataclass
from functools import cached_property
from inspect import isroutine
from pathlib import Path, PurePath
from typing import Any

from torch import nn

from lovec.baselines.base import BaselineResources
from lovec.core.own_code import own_modules
from lovec.core.provenance import file_digest, text_digest, weights_digest, weights_of
from lovec.core.settings import decisive_arguments
from lovec.datasets.jsonl import record_to_dict
from lovec.policy.fingerprint import prompt_part
from lovec.types import LovecError, Record

_IMPORTED = time.time()
_PLAIN = (str, int, float, bool, type(None))


class UntoldSettings(LovecError):
    """An object cannot say all that it was made with, or its code is not known: it cannot be told from others."""


def resources_part(base: str, resources: BaselineResources, adapter: str | None) -> dict[str, Any]:
    """Return what baselines work with, as values of JSON.

    Args:
        base: digest of the base model, see ``lovec.policy.fingerprint.loaded_digest``.
        resources: what they are given.
        adapter: folder with the weights of the adapter; None for the bare model.
    """
    samples = resources.samples
    return {
        "base": base,
        "adapter": None if adapter is None else weights_digest(adapter),
        "prompt": prompt_part(resources.encoder) | {"scoring": resources.encoder.scoring},
        "wording": asdict(resources.wording),
        "samples": [samples.temperature, samples.max_new_tokens, samples.seed],
        "judge": plain_settings(resources.judge),
    }


def answer_part(record: Record, labels: bool) -> dict[str, Any]:
    """Return what is computed from an answer's record, as values of JSON.

    Args:
        record: the answer.
        labels: whether its labels count, and all else that is known of its sentences beside their texts.
    """
    answer = record_to_dict(record) | {"rejected": None}
    return answer if labels else answer | {"sentences": [sentence.text for sentence in record.sentences]}


def parts_digest(parts: Iterable[Mapping[str, Any]]) -> str:
    """Return 32 hexadecimal digits that tell values of JSON from others."""
    return text_digest(json.dumps(part, sort_keys=True, default=str) for part in parts)[:32]


def code_part(modules: Iterable[str]) -> dict[str, str]:
    """Return digests of the files of modules, and of what these import of the user's own, by module.

    Raises:
        UntoldSettings: a module has no file, as a notebook, or it was written since this module was imported, so that
            it may not be what runs.
    """
    files = {name: getattr(sys.modules.get(name), "__file__", None) for name in modules}
    digests = {}
    for name, path in (own_modules(files) | files).items():
        if path is None or not Path(path).is_file() or Path(path).stat().st_mtime >= _IMPORTED:
            raise UntoldSettings(f"the code of {name} is not known")
        digests[name] = file_digest(path)
    return digests


def class_name(value: Any) -> str:
    """Return the full name of an object's class."""
    return f"{type(value).__module__}.{type(value).__qualname__}"


def plain_settings(value: Any) -> Any:
    """Return what an object was made with as values of JSON: its class, and its settings by name.

    An object with a text ``fingerprint`` is described by it. Settings are the arguments on which results depend, where
    an object remembers them, as baselines do; of another object its public attributes, and what they are described by;
    of a model, and of what has none of these, the name of the class alone. Beside a remembered argument that names a
    file, or a folder with weights, stands a digest of these.
    """
    return _described(value, (), _by_attributes)


def told_settings(value: Any) -> Any:
    """Return the same of an object that can say all that it was made with.

    That is an object with a ``fingerprint``, one that remembers its arguments, a dataclass, or one whose class takes no
    arguments. Their settings are such objects again, or plain values, paths, classes and named functions. Beside an
    argument that names a file, or a folder with weights, stands a digest of these.

    Raises:
        UntoldSettings: it is another object, or has one among its settings.
    """
    return _described(value, (), _by_arguments)


def _described(value: Any, around: tuple[int, ...], settings_of: Callable[[Any], Mapping[str, Any] | None]) -> Any:
    """Return a value as values of JSON.

    Args:
        value: any value.
        around: the ids of the objects that it is part of.
        settings_of: returns the settings of an object; None where the name of its class says all.
    """
    if isinstance(value, _PLAIN):
        return value
    if isinstance(value, PurePath):
        return str(value)
    if isinstance(value, type) or isroutine(value):
        name = f"{value.__module__}.{value.__qualname__}"
        if settings_of is _by_arguments and ("<" in name or getattr(value, "__self__", None) is not None):
            raise UntoldSettings(f"{name} has no name of its own")
        return name
    name = class_name(value)
    if id(value) in around:
        return name
    around = (*around, id(value))
    if isinstance(value, list | tuple):
        return [_described(item, around, settings_of) for item in value]
    if isinstance(value, Set):
        return sorted((_described(item, around, settings_of) for item in value), key=repr)
    if isinstance(value, Mapping):
        return {str(key): _described(item, around, settings_of) for key, item in value.items()}
    fingerprint = getattr(value, "fingerprint", None)
    if isinstance(fingerprint, str):
        return {"class": name, "fingerprint": fingerprint}
    settings = settings_of(value)
    if settings is None:
        return name
    return {"class": name} | {key: _described(item, around, settings_of) for key, item in sorted(settings.items())}


def _by_attributes(value: Any) -> Mapping[str, Any] | None:
    """Return the arguments that an object remembers, or else its public attributes; None of a model."""
    settings = decisive_arguments(value)
    if settings is not None:
        return _with_contents(settings)
    if isinstance(value, nn.Module):
        return None
    slots = {field.name: getattr(value, field.name) for field in fields(value)} if is_dataclass(value) else {}
    found = slots | getattr(value, "__dict__", {})
    computed = {key for key in found if isinstance(getattr(type(value), key, None), cached_property)}
    return {key: item for key, item in found.items() if not key.startswith("_") and key not in computed}


def _by_arguments(value: Any) -> Mapping[str, Any]:
    """Return all arguments that an object was made with on which results depend.

    Raises:
        UntoldSettings: it does not remember them.
    """
    settings = decisive_arguments(value)
    if is_dataclass(value):  # whose __init__ is written after the class is made, and remembers nothing
        return _with_contents(
            {field.name: getattr(value, field.name) for field in fields(value)} | dict(settings or {})
        )
    kind: Any = type(value)
    takes_none = kind.__init__ is object.__init__ and kind.__new__ is object.__new__ and hasattr(value, "__dict__")
    if settings is None and not takes_none:
        raise UntoldSettings(f"{class_name(value)} does not remember its arguments")
    return _with_contents(settings or {})


def _with_contents(settings: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return settings with digests of the files, and of the weights in the folders, that they name."""
    named = {name: value for name, value in settings.items() if isinstance(value, str | PurePath)}
    contents = {f"content of {name}": weights_of(value) for name, value in named.items()}
    return {**settings, **{name: digest for name, digest in contents.items() if digest is not None}}
