"""Checkpoints without the base model, which are written atomically and read without running code."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from pickle import UnpicklingError
from typing import Any
from zipfile import BadZipFile, ZipFile

import torch
from lightning.pytorch.plugins.io import TorchCheckpointIO
from lightning.pytorch.utilities import rank_zero_warn

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
            with atomic_file(path) as temporary:
                with temporary.open("wb") as file:
                    torch.save(checkpoint, file)
                _warn_of_code(temporary, path)
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
    adapters = {name: weight for name, weight in checkpoint["state_dict"].items() if is_adapter(name)}
    for part, values in (("state_dict", adapters), ("optimizer_states", checkpoint.get("optimizer_states"))):
        for name, tensor in _tensors(values, part):
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
    adapters = {str(name): weight for name, weight in weights.items() if is_adapter(str(name))}
    check_finite(adapters, "the checkpoint")
    shapes = {name: [*weight.shape] for name, weight in adapters.items()}
    return {**shape, "lora": plain_lora(shape["lora"], "the checkpoint", shapes)}


def keep_trained(checkpoint: dict[str, Any], own: Collection[str]) -> None:
    """Remove all weights from a checkpoint but those of the adapters, the reference included, and a module's own.

    What Lightning's ``save_hyperparameters`` has put there goes, too: it may be of any class, and is not read.

    Args:
        checkpoint: the checkpoint.
        own: names of what the module has of its own.
    """
    checkpoint["state_dict"] = {k: v for k, v in checkpoint["state_dict"].items() if is_adapter(k) or k in own}
    for name in [name for name in checkpoint if "hyper_parameters" in name or "hparams" in name]:
        del checkpoint[name]


def check_state(
    checkpoint: dict[str, Any], state: Mapping[str, torch.Tensor], own: Collection[str], fitting: bool
) -> None:
    """Check that a checkpoint holds exactly the adapter weights that a module has, and what it has of its own.

    Lightning loads checkpoints non-strictly here, and would ignore names that are missing or unknown.

    Args:
        checkpoint: the checkpoint.
        state: the module's state dict.
        own: names of what the module has of its own.
        fitting: whether a training goes on, which needs these, too.

    Raises:
        LovecError: names are missing or unknown, or a size differs.
    """
    weights = checkpoint["state_dict"]
    expected = {name: value.shape for name, value in state.items() if is_adapter(name) or name in own}
    missing, extra = (
        sorted(name for name in names if fitting or is_adapter(name))
        for names in (expected.keys() - weights.keys(), weights.keys() - expected.keys())
    )
    if missing or extra:
        what = "adapter weights" if all(map(is_adapter, [*missing, *extra])) else "weights"
        raise LovecError(
            f"the checkpoint does not fit this module: {len(missing)} {what} are missing "
            f"({', '.join(missing[:2]) or 'none'}), {len(extra)} are unknown ({', '.join(extra[:2]) or 'none'})"
        )
    for name in expected.keys() & weights.keys():
        if weights[name].shape != expected[name]:
            raise LovecError(
                f"the checkpoint does not fit this module: {name} has the size {tuple(weights[name].shape)}, expected "
                f"{tuple(expected[name])}"
            )


def _warn_of_code(written: Path, path: Any) -> None:
    """Warn where a checkpoint holds more than plain values and tensors, which nobody can read without running code."""
    try:
        torch.load(written, map_location="cpu", weights_only=True, mmap=True)
    except UnpicklingError as error:
        found = re.search(r"GLOBAL (\S+)", str(error))
        what = f"a {found[1]}" if found else "an object that is neither a plain value nor a tensor"
        rank_zero_warn(
            f"no run can go on from {path}: it holds {what}, which a callback, a schedule or on_save_checkpoint "
            "has put there; keep plain values and tensors only"
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
