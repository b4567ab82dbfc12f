"""What confidences that are computed with a model depend on, to tell those of an earlier run from others."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Set
from dataclasses import asdict, fields, is_dataclass
from functools import cached_property
from inspect import isroutine
from pathlib import PurePath
from typing import Any

from torch import nn

from lovec.baselines.base import BaselineResources
from lovec.core.provenance import text_digest, weights_digest
from lovec.core.settings import decisive_arguments
from lovec.datasets.jsonl import record_to_dict
from lovec.policy.fingerprint import loaded_digest, prompt_part
from lovec.types import Record

_PLAIN = (str, int, float, bool, type(None))


def resources_part(model: nn.Module, resources: BaselineResources, adapter: str | None) -> dict[str, Any]:
    """Return what baselines work with, as values of JSON.

    Args:
        model: the base model, with or without adapters in its layers.
        resources: what they are given.
        adapter: folder with the weights of the adapter; None for the bare model.
    """
    samples = resources.samples
    return {
        "base": loaded_digest(model),
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


def class_name(value: Any) -> str:
    """Return the full name of an object's class."""
    return f"{type(value).__module__}.{type(value).__qualname__}"


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
    name = class_name(value)
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
