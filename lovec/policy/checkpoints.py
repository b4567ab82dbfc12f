"""Checkpoints that hold the adapters only, are written whole or not at all, and are read without running code."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch.plugins.io import TorchCheckpointIO

from lovec.policy import is_adapter
from lovec.types import LovecError

KEY = "lovec"


class AtomicCheckpointIO(TorchCheckpointIO):
    """Writes beside the target, then renames: a kill or a full disk leaves the older checkpoint as it was."""

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None) -> None:
        """Write ``checkpoint`` to ``path`` in one step."""
        path = Path(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_name(f".{path.name}.{os.getpid()}.part")
        try:
            with part.open("wb") as file:
                torch.save(checkpoint, file)
                file.flush()
                os.fsync(file.fileno())
            os.replace(part, path)
        except (OSError, RuntimeError) as error:  # torch turns a full disk into a RuntimeError
            raise LovecError(f"cannot write the checkpoint {path}: {error}; the older one is untouched") from None
        finally:
            part.unlink(missing_ok=True)

    def load_checkpoint(
        self, path: Any, map_location: Callable[..., Any] | None = None, weights_only: bool | None = None
    ) -> dict[str, Any]:
        """Read ``path`` as plain values and tensors only."""
        return read_checkpoint(path)


def read_checkpoint(path: str | Path) -> dict[str, Any]:
    """A checkpoint as a dictionary, on the CPU.

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
    """Leave only the adapters (the reference among them) in a checkpoint's weights."""
    checkpoint["state_dict"] = {k: v for k, v in checkpoint["state_dict"].items() if is_adapter(k)}


def check_adapters(checkpoint: dict[str, Any], expected: set[str]) -> None:
    """Refuse a checkpoint whose adapters are not exactly the ones the module has.

    Raises:
        LovecError: names are missing or left over (a non-strict load would pass over them in silence).
    """
    given = set(checkpoint["state_dict"])
    if given != expected:
        missing, extra = sorted(expected - given), sorted(given - expected)
        raise LovecError(
            f"the checkpoint does not fit this policy: {len(missing)} adapter weights are missing "
            f"({', '.join(missing[:2]) or 'none'}), {len(extra)} are unknown ({', '.join(extra[:2]) or 'none'})"
        )
