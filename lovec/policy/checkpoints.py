"""Checkpoints that hold adapters only, are written atomically, and are read without running code."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any
from zipfile import BadZipFile, ZipFile

import torch
from lightning.pytorch.plugins.io import TorchCheckpointIO

from lovec.core.files import atomic_file
from lovec.policy import is_adapter
from lovec.policy.adapters import check_finite, plain_lora
from lovec.types import LovecError

KEY = "lovec"
"""Entry of a checkpoint with the shape of its adapters, see ``Policy.shape``."""


class AtomicCheckpointIO(TorchCheckpointIO):
    """Checkpoint I/O for Lightning that replaces a checkpoint only by a complete one.

    A kill or a full disk while a checkpoint is written leaves the older one as it was.
    """

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None) -> None:
        """Write a checkpoint atomically.

        Raises:
            LovecError: it cannot be written.
        """
        try:
            with atomic_file(path) as temporary, temporary.open("wb") as file:
                torch.save(checkpoint, file)
        except (OSError, RuntimeError) as error:  # torch turns a full disk into a RuntimeError
            raise LovecError(f"cannot write the checkpoint {path}: {error}; the older one is untouched") from None

    def load_checkpoint(
        self, path: Any, map_location: Callable[..., Any] | None = None, weights_only: bool | None = None
    ) -> dict[str, Any]:
        """Read a checkpoint, plain values and tensors only.

        Raises:
            LovecError: there is no such file, or it is not a checkpoint of lovec's training.
        """
        checkpoint = read_checkpoint(path)
        if missing := {"pytorch-lightning_version", "state_dict", "epoch", "global_step"} - checkpoint.keys():
            raise LovecError(f"{path} is not a whole checkpoint: it lacks {', '.join(sorted(missing))}")
        return checkpoint


def read_checkpoint(path: str | Path) -> dict[str, Any]:
    """Read a checkpoint as a dictionary, on the CPU.

    Raises:
        LovecError: there is no such file, it is not a whole checkpoint of lovec, or a number in it is not finite.
    """
    checkpoint = peek(path, mmap=False)
    if not _has_right_sums(path):
        raise LovecError(f"{path} is damaged: a checksum in it is wrong; give an older checkpoint")
    for part in ("state_dict", "optimizer_states"):
        for name, tensor in _tensors(checkpoint.get(part), part):
            # Of numbers of 8 bits torch cannot tell it.
            if tensor.is_floating_point() and not (tensor.float() if tensor.itemsize == 1 else tensor).isfinite().all():
                raise LovecError(f"{path} holds numbers that are not finite, in {name}; give an older checkpoint")
    return checkpoint


def peek(path: str | Path, mmap: bool = True) -> dict[str, Any]:
    """Read a checkpoint as a dictionary, on the CPU; its tensors are not looked at.

    Args:
        path: file of the checkpoint.
        mmap: whether tensors stay in the file until they are used.

    Raises:
        LovecError: there is no such file, or it is not a whole checkpoint of lovec.
    """
    if not Path(path).is_file():
        raise LovecError(f"there is no checkpoint {path}; see the checkpoints folder of the run")
    try:
        checkpoint = torch.load(path, map_location="cpu", weights_only=True, mmap=mmap)
    except Exception as error:
        raise LovecError(f"{path} is not a readable checkpoint ({type(error).__name__})") from None
    if not isinstance(checkpoint, dict) or KEY not in checkpoint:
        raise LovecError(f"{path} is a checkpoint, but not of lovec: it names no adapter")
    if not (isinstance(checkpoint.get("state_dict"), dict) and isinstance(checkpoint.get("global_step"), int)):
        raise LovecError(f"{path} is not a whole checkpoint of lovec: adapters or steps are missing; give another one")
    return checkpoint


def adapter_shape(checkpoint: dict[str, Any]) -> dict[str, Any]:
    """Return the shape of a checkpoint's adapters, see ``Policy.shape``, with options of a plain LoRA only.

    Raises:
        LovecError: the checkpoint is not whole, or its adapters are no plain LoRA.
    """
    shape, weights = checkpoint[KEY], checkpoint.get("state_dict")
    is_shape = isinstance(shape, dict) and shape.keys() == {"lora", "reference"} and type(shape["reference"]) is bool
    if not is_shape or not isinstance(weights, dict) or not all(isinstance(w, torch.Tensor) for w in weights.values()):
        raise LovecError("the checkpoint is broken: its adapters are not described as lovec writes them; use another")
    check_finite(weights, "the checkpoint")
    shapes = {str(name): [*weight.shape] for name, weight in weights.items()}
    return {**shape, "lora": plain_lora(shape["lora"], "the checkpoint", shapes)}


def keep_adapters(checkpoint: dict[str, Any]) -> None:
    """Remove all weights from a checkpoint but those of the adapters, the reference included."""
    checkpoint["state_dict"] = {k: v for k, v in checkpoint["state_dict"].items() if is_adapter(k)}


def check_adapters(checkpoint: dict[str, Any], expected: Mapping[str, torch.Size]) -> None:
    """Check that a checkpoint holds exactly the adapter weights that a module has.

    Lightning loads checkpoints non-strictly here, and would ignore names that are missing or unknown.

    Args:
        checkpoint: the checkpoint.
        expected: names and sizes of the module's adapter weights.

    Raises:
        LovecError: names are missing or unknown, or a size differs.
    """
    weights = checkpoint["state_dict"]
    if weights.keys() != expected.keys():
        missing, extra = sorted(expected.keys() - weights.keys()), sorted(weights.keys() - expected.keys())
        raise LovecError(
            f"the checkpoint does not fit this policy: {len(missing)} adapter weights are missing "
            f"({', '.join(missing[:2]) or 'none'}), {len(extra)} are unknown ({', '.join(extra[:2]) or 'none'})"
        )
    for name, size in expected.items():
        if weights[name].shape != size:
            raise LovecError(
                f"the checkpoint does not fit this policy: {name} has the size {tuple(weights[name].shape)}, expected "
                f"{tuple(size)}"
            )


def _has_right_sums(path: str | Path) -> bool:
    """Return whether every part of a checkpoint is as it was written; torch does not look at the checksums."""
    try:
        with ZipFile(path) as archive:
            return archive.testzip() is None
    except BadZipFile:
        return False


def _tensors(value: Any, name: str) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the tensors inside nested dictionaries and lists, with the keys that lead to them."""
    if isinstance(value, torch.Tensor):
        yield name, value
    elif isinstance(value, dict):
        for key, inner in value.items():
            yield from _tensors(inner, f"{name}.{key}")
    elif isinstance(value, (list, tuple)):
        for number, inner in enumerate(value):
            yield from _tensors(inner, f"{name}.{number}")
