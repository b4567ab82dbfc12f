"""The policy's adapter as a PEFT folder, a new one for every change, for engines that load a model of their own.

The base model is never changed. Folder names are never reused, because vLLM identifies adapters and cached prefixes by
name. In a configuration vLLM reads one rank and one scaling for all layers and ignores others by name of layer, so
layers that have others of their own are written with weights to the same effect.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from lovec.core.files import ADAPTER_CONFIG, read_adapter_config
from lovec.engines.common import on_finalize
from lovec.types import LovecError

_WEIGHTS = "adapter_model.safetensors"
_FACTOR = re.compile(r"(?:base_model\.model\.)?(.+)\.lora_(?:embedding_)?([AB])(?:\.weight)?")  # its layer, A or B


class AdapterFolders:
    """Writes the active adapter of a policy to a new folder whenever it has changed, and removes old folders.

    Args:
        root: where to create the folders; None takes the system's temporary folder. They are removed when the process
            ends.

    Attributes:
        current: folder of the newest adapter; None before there is one.
    """

    def __init__(self, root: str | Path | None = None) -> None:
        if root is not None:
            Path(root).mkdir(parents=True, exist_ok=True)
        self._parent = Path(tempfile.mkdtemp(prefix="lovec-adapters-", dir=root)).absolute()  # for another process
        self._parent.chmod(0o755)  # mkdtemp creates a private folder, but a server may run as another user
        self._remove = on_finalize(self, shutil.rmtree, str(self._parent), ignore_errors=True)
        self._count = 0
        self._written: bytes | None = None  # fingerprint of the newest adapter
        self.current: Path | None = None

    def write(self, policy: Any) -> Path | None:
        """Return the folder with the policy's adapter as it is now; it is written only if the adapter has changed.

        Args:
            policy: its attribute ``peft`` is a PEFT model.

        Returns:
            The folder; None where the policy's adapters are switched off.

        Raises:
            LovecError: more than one adapter is active.
        """
        name = active_adapter(policy.peft)
        if name is None:
            return None
        config = policy.peft.peft_config[name]
        tensors = _tensors(policy.peft, name)
        fingerprint = _fingerprint(repr(sorted(config.to_dict().items(), key=lambda item: item[0])), tensors)
        if fingerprint == self._written:
            return self.current
        folder = self._next()
        _write(folder, config.to_dict(), tensors)
        self.current, self._written = folder, fingerprint
        return folder

    def readable(self, adapter: Path) -> Path:
        """Return a folder from which vLLM loads an adapter as PEFT does: its own, or a new one if its layers differ.

        Args:
            adapter: its folder.

        Raises:
            LovecError: there is no adapter, or its options cannot be read.
        """
        from safetensors.torch import load_file

        options = read_adapter_config(adapter)
        if not differs_by_layer(options):
            return adapter
        folder = self._next()
        _write(folder, options, load_file(adapter / _WEIGHTS))
        return folder

    def clean(self) -> None:
        """Remove the folders of replaced adapters."""
        for folder in self._parent.glob("adapter-*"):
            if folder != self.current:
                shutil.rmtree(folder, ignore_errors=True)

    def close(self) -> None:
        """Remove all folders."""
        self._remove()

    def _next(self) -> Path:
        """Return a folder that was never used before; it does not exist yet."""
        self._count += 1
        return self._parent / f"adapter-{self._count}"


def active_adapter(peft: Any) -> str | None:
    """Return the name of the adapter that a PEFT model runs with; None where its adapters are switched off.

    Raises:
        LovecError: more than one is active.
    """
    from peft.tuners.tuners_utils import BaseTunerLayer  # here, because peft loads bitsandbytes where it is installed

    states = {
        () if module.disable_adapters else tuple(module.active_adapters)
        for module in peft.modules()
        if isinstance(module, BaseTunerLayer)
    }
    if len(states) > 1 or any(len(state) > 1 for state in states):
        raise LovecError(f"the policy runs with the adapters {sorted(states)}, expected one everywhere; activate one")
    return next((state[0] for state in states if state), None)


def _tensors(peft: Any, name: str) -> dict[str, torch.Tensor]:
    """Return the adapter's weights on the CPU, by the names that PEFT uses in files."""
    from peft import get_peft_model_state_dict

    state = get_peft_model_state_dict(peft, adapter_name=name, save_embedding_layers=False)
    return {key: state[key].detach().to("cpu").contiguous() for key in sorted(state)}


def _fingerprint(config: str, tensors: dict[str, torch.Tensor]) -> bytes:
    """Return a digest that changes whenever the adapter does, however its weights were written to."""
    digest = hashlib.blake2b(config.encode())
    for key, tensor in tensors.items():
        digest.update(f"{key} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.view(torch.uint8).numpy().data if tensor.numel() else b"")
    return digest.digest()


def _write(folder: Path, options: Mapping[str, Any], tensors: Mapping[str, torch.Tensor]) -> None:
    """Write a PEFT folder: the weights, and the configuration for inference."""
    from safetensors.torch import save_file

    if differs_by_layer(options):
        options, tensors = _alike(options, tensors)
    folder.mkdir()
    save_file(dict(tensors), str(folder / _WEIGHTS), metadata={"format": "pt"})
    text = json.dumps({**options, "inference_mode": True}, default=sorted, indent=2)  # sets become sorted lists
    (folder / ADAPTER_CONFIG).write_text(text, encoding="utf-8")


def differs_by_layer(options: Mapping[str, Any]) -> bool:
    """Return whether layers of an adapter with these options have ranks or scalings of their own, by their names."""
    return bool(options.get("rank_pattern") or options.get("alpha_pattern"))


def _alike(
    options: Mapping[str, Any], tensors: Mapping[str, torch.Tensor]
) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    """Give all layers of an adapter one rank and one scaling without changing what it computes.

    Every layer gets the highest rank by zeros, and its B is multiplied by the quotient of its own and the one scaling.
    """
    from peft.utils.other import get_pattern_key  # how PEFT finds the layers that a name stands for

    factors = {key: match.groups() for key in tensors if (match := _FACTOR.fullmatch(key))}
    ranks = {layer: tensors[key].shape[0] for key, (layer, factor) in factors.items() if factor == "A"}
    rank, alphas = max(ranks.values()), options.get("alpha_pattern") or {}
    alpha = options.get("lora_alpha", 8)  # PEFT's where none is named
    power = 0.5 if options.get("use_rslora") else 1.0
    alike = dict(tensors)
    for key, (layer, factor) in factors.items():
        weight = tensors[key]
        if factor == "B":
            own = alphas.get(get_pattern_key(list(alphas), layer), alpha)
            weight = weight * (own / alpha * math.pow(rank / ranks[layer], power))
        at = 0 if factor == "A" else 1
        shape = [*weight.shape]
        shape[at] = rank - shape[at]
        alike[key] = torch.cat([weight, weight.new_zeros(shape)], dim=at).contiguous()
    return {**options, "r": rank, "lora_alpha": alpha, "rank_pattern": {}, "alpha_pattern": {}}, alike
