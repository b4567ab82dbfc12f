"""The policy's adapter as a PEFT folder, a new one for every change, for engines that load a model of their own.

The base model is never changed. Folder names are never reused, because vLLM identifies adapters and cached prefixes by
name.
"""

from __future__ import annotations

import hashlib
import shutil
import tempfile
from pathlib import Path
from typing import Any

import torch

from lovec.engines.common import on_finalize
from lovec.types import LovecError


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
        self._parent = Path(tempfile.mkdtemp(prefix="lovec-adapters-", dir=root))
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
        self._count += 1
        folder = self._parent / f"adapter-{self._count}"
        _write(folder, config, tensors)
        self.current, self._written = folder, fingerprint
        return folder

    def clean(self) -> None:
        """Remove the folders of replaced adapters."""
        for folder in self._parent.glob("adapter-*"):
            if folder != self.current:
                shutil.rmtree(folder, ignore_errors=True)

    def close(self) -> None:
        """Remove all folders."""
        self._remove()


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


def _write(folder: Path, config: Any, tensors: dict[str, torch.Tensor]) -> None:
    """Write a PEFT folder: the weights, and the configuration for inference."""
    from safetensors.torch import save_file

    folder.mkdir()
    save_file(tensors, str(folder / "adapter_model.safetensors"), metadata={"format": "pt"})
    before, config.inference_mode = config.inference_mode, True
    try:
        config.save_pretrained(str(folder))
    finally:
        config.inference_mode = before
