"""The policy's adapter as a PEFT folder, new for every change: what an engine with a model of its own loads.

The base model is never touched. Names are never used twice, because vLLM keys adapters and cached prefixes by them.
"""

from __future__ import annotations

import hashlib
import shutil
import tempfile
import weakref
from pathlib import Path
from typing import Any

import torch

from lovec.types import LovecError


class AdapterFolders:
    """Writes the active adapter of a policy where it is new, and removes what is no longer used.

    Args:
        root: folder to make the folders in; None takes the system's temporary one. It goes with the process.

    Attributes:
        current: folder of the adapter last written; None before there is one.
        kept: folders of adapters that were replaced and wait for ``clean``.
    """

    def __init__(self, root: str | Path | None = None) -> None:
        if root is not None:
            Path(root).mkdir(parents=True, exist_ok=True)
        self._home = Path(tempfile.mkdtemp(prefix="lovec-adapters-", dir=root))
        self._home.chmod(0o755)  # mkdtemp makes it private, but a server may run as somebody else
        self._done = weakref.finalize(self, shutil.rmtree, str(self._home), ignore_errors=True)
        self._count = 0
        self._known: bytes | None = None
        self.current: Path | None = None
        self.kept: list[Path] = []

    def take(self, policy: Any) -> Path | None:
        """Folder with the policy's adapter as it is now: the one from before where nothing has changed.

        Args:
            policy: ``policy.peft`` is a PEFT model.

        Returns:
            None where its adapters are switched off.

        Raises:
            LovecError: more than one adapter is active.
        """
        name = active_adapter(policy.peft)
        if name is None:
            return None
        config = policy.peft.peft_config[name]
        tensors = _tensors(policy.peft, name)
        known = _fingerprint(repr(sorted(config.to_dict().items(), key=lambda item: item[0])), tensors)
        if known == self._known:
            return self.current
        self._count += 1
        folder = self._home / f"adapter-{self._count}"
        _write(folder, config, tensors)
        if self.current is not None:
            self.kept.append(self.current)
        self.current, self._known = folder, known
        return folder

    def clean(self) -> None:
        """Remove the folders of adapters that were replaced."""
        for folder in self.kept:
            shutil.rmtree(folder, ignore_errors=True)
        self.kept = []

    def close(self) -> None:
        """Remove everything."""
        self._done()


def active_adapter(peft: Any) -> str | None:
    """Name of the adapter that a PEFT model runs with; None where adapters are switched off.

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
    """The adapter's weights under the names of PEFT's files, on the CPU."""
    from peft import get_peft_model_state_dict

    state = get_peft_model_state_dict(peft, adapter_name=name, save_embedding_layers=False)
    return {key: state[key].detach().to("cpu").contiguous() for key in sorted(state)}


def _fingerprint(config: str, tensors: dict[str, torch.Tensor]) -> bytes:
    """Changes whenever the adapter does, however it was written to."""
    digest = hashlib.blake2b(config.encode())
    for key, tensor in tensors.items():
        digest.update(f"{key} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.view(torch.uint8).numpy().data if tensor.numel() else b"")
    return digest.digest()


def _write(folder: Path, config: Any, tensors: dict[str, torch.Tensor]) -> None:
    """A PEFT folder: the weights, and the config made for inference."""
    from safetensors.torch import save_file

    folder.mkdir()
    save_file(tensors, str(folder / "adapter_model.safetensors"), metadata={"format": "pt"})
    trained, config.inference_mode = config.inference_mode, True
    try:
        config.save_pretrained(str(folder))
    finally:
        config.inference_mode = trained
