"""LoRA adapters: made fresh, or read from a folder or a checkpoint that a stranger may have written.

Weights are read from safetensors only, and must be exactly those that the options describe, all of them finite. Of the
options only those of a plain LoRA are passed on. Options without an effect on a loaded adapter are left out, and an
adapter that needs any other option is refused.
"""

from __future__ import annotations

import json
import math
import os
import re
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lovec.core.files import ADAPTER_CONFIG, read_adapter_config
from lovec.core.hub import RANDOM, adapter_folder
from lovec.core.imports import gc_paused
from lovec.core.provenance import WITHOUT_EFFECT
from lovec.policy.targets import check_untied
from lovec.types import LovecError

ADAPTER = "default"
REFERENCE = "reference"
TEMPORARY = "temporary"
"""PEFT's names of the adapter that is trained, of the frozen copy it started from, and of one for temporary use."""

_WEIGHTS = "adapter_model.safetensors"
_IS_A = re.compile(r"\.lora_(embedding_)?A(\.|$)")  # names of weights whose first dimension is the rank
_DIGEST = re.compile(r"-[0-9a-f]{12}$")  # at the end of the name of a folder in the cache
_DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
_MODULE = re.compile(r"\w+(\.\w+)*", re.ASCII)  # PEFT compares it with the end of a module's name, not as a pattern


def _is_names(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(name, str) and _MODULE.fullmatch(name) for name in value)


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and 0 < value < math.inf


def _is_rank(value: Any) -> bool:
    return type(value) is int and value > 0


def _is_by_module(value: Any, check: Callable[[Any], bool]) -> bool:
    return isinstance(value, dict) and _is_names(list(value)) and all(map(check, value.values()))


_TAKEN: Mapping[str, tuple[Callable[[Any], bool], str]] = {
    "r": (_is_rank, "a whole number from 1 up"),
    "lora_alpha": (_is_number, "a number above 0"),
    "lora_dropout": (lambda v: type(v) in (int, float) and 0 <= v < 1, "a number from 0 up and below 1"),
    "target_modules": (
        lambda v: v == "all-linear" or _is_names(v),
        "a list of names of layers (a pattern is not read)",
    ),
    "exclude_modules": (lambda v: v is None or _is_names(v), "a list of names of layers"),
    "layers_to_transform": (
        lambda v: v is None or type(v) is int or (isinstance(v, list) and all(type(i) is int for i in v)),
        "numbers of layers",
    ),
    "rank_pattern": (lambda v: _is_by_module(v, _is_rank), "a rank by name of layer"),
    "alpha_pattern": (lambda v: _is_by_module(v, _is_number), "a number by name of layer"),
    "use_rslora": (lambda v: type(v) is bool, "true or false"),
    "fan_in_fan_out": (lambda v: type(v) is bool, "true or false"),
}
"""Options of a plain LoRA, what each may be, and how an error says that."""

_NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    "peft_type": ("LORA",),
    "task_type": ("CAUSAL_LM", None),
    "bias": ("none", None),
    "init_lora_weights": (True, False, None, "gaussian"),  # others change the base model as well
}
"""Options with the values that they have in a plain LoRA; every other option must be off: null, false or empty."""


@dataclass(frozen=True)
class AdapterFiles:
    """What a folder holds of an adapter.

    Attributes:
        options: options of ``LoraConfig``.
        weights: weights by PEFT's names in files.
        base: name of the base model in its configuration; None where it names none.
    """

    options: dict[str, Any]
    weights: dict[str, Tensor]
    base: str | None


def fresh_adapter(base: Any, lora: dict[str, Any], reference: bool) -> Any:
    """Add a new trainable adapter (an update of zero) to the base.

    Args:
        base: the frozen model.
        lora: arguments of ``LoraConfig``.
        reference: whether to add a second adapter of the same shape, whose weights a checkpoint will fill in.

    Raises:
        LovecError: the target modules do not fit the model.
    """
    with gc_paused():
        from peft import LoraConfig, get_peft_model

    config = LoraConfig(**{"task_type": "CAUSAL_LM", **lora})
    try:
        with warnings.catch_warnings():  # PEFT asks by a name that transformers is giving up
            warnings.filterwarnings("ignore", "`is_gradient_checkpointing`", FutureWarning)
            with gc_paused():  # PEFT imports more here
                model = get_peft_model(base, config, adapter_name=ADAPTER)
            if reference:
                model.add_adapter(REFERENCE, config)
    except ValueError as error:
        raise LovecError(f"no adapter fits this model: {str(error)[:200]}; see policy.target_modules") from None
    return model


def continued_adapter(base: Any, adapter: str, reference: bool) -> Any:
    """Add a trainable adapter from a folder to the base, and a frozen copy of it where ``reference`` is True.

    Raises:
        LovecError: there is no adapter, or it does not fit the base.
    """
    files = read_adapter(adapter)
    check_untied(base, files.options["target_modules"], f"the adapter in {adapter}")
    model = fresh_adapter(base, files.options, reference)
    for name in (ADAPTER, REFERENCE) if reference else (ADAPTER,):
        _load_weights(model, name, files, adapter)
    return model


def add_adapter(model: Any, adapter: str) -> None:
    """Load the adapter of a folder into a PEFT model, frozen and inactive, under the name ``TEMPORARY``.

    Raises:
        LovecError: there is no adapter, or it does not fit the base.
    """
    from peft import LoraConfig

    files = read_adapter(adapter)
    check_untied(model.get_base_model(), files.options["target_modules"], f"the adapter in {adapter}")
    try:
        model.add_adapter(TEMPORARY, LoraConfig(task_type="CAUSAL_LM", inference_mode=True, **files.options))
    except ValueError as error:
        raise _unfit(adapter, str(error)[:160]) from None
    _load_weights(model, TEMPORARY, files, adapter)


def _load_weights(model: Any, name: str, files: AdapterFiles, adapter: str) -> None:
    """Load weights into an adapter of a PEFT model, which must have exactly these, in these shapes."""
    from peft import get_peft_model_state_dict, set_peft_model_state_dict

    expected = get_peft_model_state_dict(model, adapter_name=name, save_embedding_layers=False)
    missing, extra = sorted(expected.keys() - files.weights), sorted(files.weights.keys() - expected)
    if whole := [key for key in extra if ".lora_" not in key and key.endswith(".weight") and not missing]:
        raise LovecError(
            f"the adapter in {adapter} holds a whole layer ({whole[0]}) beside its LoRA, expected LoRA weights only; "
            "save it again with save_pretrained(FOLDER, save_embedding_layers=False) of PEFT"
        )
    if missing or extra:
        raise _unfit(
            adapter,
            f"{len(missing)} of its weights are missing ({', '.join(missing[:1]) or 'none'}), "
            f"{len(extra)} are unknown ({', '.join(extra[:1]) or 'none'})",
        )
    for key, weight in files.weights.items():
        if weight.shape != expected[key].shape:
            raise _unfit(adapter, f"{key} has the shape {[*weight.shape]}, expected {[*expected[key].shape]}")
    set_peft_model_state_dict(model, dict(files.weights), adapter_name=name)


def _unfit(adapter: str, reason: str) -> LovecError:
    return LovecError(
        f"the adapter in {adapter} does not fit the base model: {reason}; it is incomplete, or it was trained on "
        f"another base (see base_model_name_or_path in its {ADAPTER_CONFIG})"
    )


def check_adapter(adapter: str, model: str | None = None, any_base: bool = False) -> None:
    """Check that a folder holds a whole, plain LoRA adapter, before a model is loaded.

    Args:
        adapter: folder of the adapter.
        model: folder or hub id of the base model that it will be used with; None does not compare.
        any_base: whether the adapter may name another base model.

    Raises:
        LovecError: there is no adapter, it is broken or no plain LoRA, or it names another base model.
    """
    named = read_adapter(adapter).base
    if model is None or named is None or any_base:
        return
    if not same_base(named, model.removeprefix(RANDOM)):
        raise LovecError(
            f"the adapter in {adapter} was trained on another base: it names {named}, and the model is {model}; give "
            "that model, or set any_base (--any_base, --model.policy.any_base true) if they are the same; or first "
            "train an adapter of this model, with lovec fit --config sft.yaml and the same overlays"
        )


def read_adapter(adapter: str) -> AdapterFiles:
    """Read the adapter of a folder; nothing in it runs, and ``adapter_model.bin`` is never opened.

    Args:
        adapter: the folder, or the adapter's name on the hub.

    Raises:
        LovecError: there is no adapter, a file is broken, weights are not finite, or it is not a plain LoRA.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    folder = Path(adapter_folder(adapter))
    config = read_adapter_config(folder)
    if not (folder / _WEIGHTS).is_file():
        raise LovecError(f"the adapter in {adapter} has no {_WEIGHTS}; other formats of weights are not read")
    try:
        weights = load_file(folder / _WEIGHTS)
    except (SafetensorError, OSError, ValueError, KeyError) as error:
        raise LovecError(
            f"{folder / _WEIGHTS} is broken or cut off ({str(error).strip()[:120]}); copy it again"
        ) from None
    options = plain_lora(config, f"the adapter in {adapter}", {name: [*weights[name].shape] for name in weights})
    check_finite(weights, f"the adapter in {adapter}")
    base = config.get("base_model_name_or_path")
    return AdapterFiles(options, weights, base if isinstance(base, str) and base else None)


def check_finite(weights: Mapping[str, Tensor], where: str) -> None:
    """Check that all weights are finite numbers, in a precision that adapters are stored in.

    Raises:
        LovecError: one is not; the error names its tensor.
    """
    for name, weight in weights.items():
        if weight.dtype not in _DTYPES:
            given, *expected = (str(dtype).removeprefix("torch.") for dtype in (weight.dtype, *_DTYPES))
            raise LovecError(
                f"{where} stores {name} as {given}, expected {', '.join(expected)}; convert its weights to float32 "
                "(tensor.float() in Python), or use one that is not quantised"
            )
        if not bool(torch.isfinite(weight).all()):
            raise LovecError(f"{where} is broken: {name} holds values that are no finite numbers; use another one")


def plain_lora(options: object, where: str, shapes: Mapping[str, list[int]]) -> dict[str, Any]:
    """Return the options of a plain LoRA, for ``LoraConfig``.

    Args:
        options: options as they were saved.
        where: what holds them, for errors.
        shapes: shapes of its weights by name; no rank may be above theirs.

    Raises:
        LovecError: an option is none of a plain LoRA, or has a value that it cannot have.
    """
    if not isinstance(options, dict):
        raise LovecError(f"the LoRA options of {where} are a {type(options).__name__}, expected names with values")
    for name, value in options.items():
        if name in _TAKEN and not _TAKEN[name][0](value):
            raise LovecError(f"{where} sets {name} to {str(value)[:60]!r}, expected {_TAKEN[name][1]}")
        neutral = name in _TAKEN or name in WITHOUT_EFFECT
        if not neutral and (value not in _NEUTRAL[name] if name in _NEUTRAL else value):
            raise LovecError(
                f"{where} is not a plain LoRA: it sets {str(name)[:60]} to {str(value)[:60]!r}; give one that trains "
                "nothing but LoRA weights"
            )
    if not options.get("target_modules"):
        raise LovecError(f"{where} names no target_modules, which a LoRA needs; use another one")
    taken = {"r": 8, **{name: options[name] for name in _TAKEN if name in options}}  # PEFT's rank where none is named
    highest = max([taken["r"], *taken.get("rank_pattern", {}).values()])
    held = max((shape[0] for name, shape in shapes.items() if _IS_A.search(name) and shape), default=0)
    if highest > held:
        raise LovecError(f"{where} is broken: its rank is {highest}, but its weights have rank {held}")
    return taken


def same_base(named: str, model: str) -> bool:
    """Return whether two names of base models mean the same model, as far as names tell.

    Hub ids must be equal. A folder is the same as another one, or as a hub id, with the same last name, since folders
    are moved and copied; models that are built offline have a digest in their folder's name, as have those from GGUF
    files, whatever the file was called.

    Args:
        named: hub id or folder, or the name of a model that is built offline.
        model: hub id or folder.
    """
    if named == model or (os.path.isdir(named) and os.path.isdir(model) and os.path.samefile(named, model)):
        return True
    if is_hub_id(named) and is_hub_id(model):
        return named.lower() == model.lower()
    last, other = _last_name(named), _last_name(model)
    if last == other or re.fullmatch(rf"{re.escape(last)}-[0-9a-f]{{12}}", other) is not None:
        return True
    digests = [_DIGEST.search(text) for text in (last, other)]
    return all(digests) and len({match[0] for match in digests if match}) == 1


def is_hub_id(name: str) -> bool:
    """Return whether a model's name is a hub id, and no folder of that name exists, which would be loaded instead."""
    return re.fullmatch(r"\w[\w.-]*(/\w[\w.-]*)?", name, re.ASCII) is not None and not os.path.lexists(name)


def _last_name(name: str) -> str:
    """Return the last part of a name: of a hub id, of a folder, of a folder in the hub's cache, or of a built world."""
    parts = Path(name).parts
    cached = [part.rpartition("--")[2] for part in parts if part.startswith("models--")]
    last = cached[-1] if cached else parts[-2] if len(parts) > 1 and parts[-1] == "model" else Path(name).name
    return last.lower()


def lora_options(config: Any) -> dict[str, Any]:
    """Return the rank of a LoraConfig, and its other options that differ from the defaults, as a checkpoint holds them.

    They are what ``plain_lora`` returns for them.
    """
    from peft import LoraConfig

    options, defaults = config.to_dict(), LoraConfig().to_dict()
    kept = {name: options[name] for name in _TAKEN if name == "r" or options[name] != defaults[name]}
    plain: dict[str, Any] = json.loads(json.dumps(kept, default=sorted))  # sets become sorted lists
    return plain
