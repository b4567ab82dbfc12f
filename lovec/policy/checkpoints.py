"""Checkpoints that hold adapters only, are written atomically, and are read without running code."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch.plugins.io import TorchCheckpointIO

from lovec.files import atomic_file
from lovec.policy import is_adapter
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
        """Read a checkpoint, plain values and tensors only."""
        return read_checkpoint(path)


def read_checkpoint(path: str | Path) -> dict[str, Any]:
    """Read a checkpoint as a dictionary, on the CPU.

    Raises:
        LovecError: there is no such file, or it is not a checkpoint of lovec.
    """
    if not Path(path).is_file():
        raise LovecError(f"there is no checkpoint {path}; see the checkpoints folder of the run")
    try:
        checkpoint = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        raise LovecError(f"{path} is not a readable checkpoint ({type(error).__name__})") from None
    if not isinstance(checkpoint, dict) or KEY not in checkpoint:
        raise LovecError(f"{path} is a checkpoint, but not of lovec: it names no adapter")
    return checkpoint


def keep_adapters(checkpoint: dict[str, Any]) -> None:
    """Remove all weights from a checkpoint but those of the adapters, the reference included."""
    checkpoint["state_dict"] = {k: v for k, v in checkpoint["state_dict"].items() if is_adapter(k)}


def check_adapters(checkpoint: dict[str, Any], expected: set[str]) -> None:
    """Check that a checkpoint holds exactly the adapter weights that a module has.

    Lightning loads checkpoints non-strictly here, and would ignore names that are missing or unknown.

    Args:
        checkpoint: the checkpoint.
        expected: names of the module's adapter weights.

    Raises:
        LovecError: names are missing or unknown.
    """
    names = set(checkpoint["state_dict"])
    if names != expected:
        missing, extra = sorted(expected - names), sorted(names - expected)
        raise LovecError(
            f"the checkpoint does not fit this policy: {len(missing)} adapter weights are missing "
            f"({', '.join(missing[:2]) or 'none'}), {len(extra)} are unknown ({', '.join(extra[:2]) or 'none'})"
        )
