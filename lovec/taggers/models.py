"""Names of models that are built on this machine instead of downloaded."""

from __future__ import annotations

import re
from pathlib import Path

import torch

from lovec.gguf import ensure_dequantised, is_gguf, offline_gguf
from lovec.hub import fetched_model


def offline_model(folder: str) -> str | None:
    """Return the name of the offline model whose folder is named like this one, on any machine; None for others."""
    from lovec.datasets.world import VARIANTS

    path = Path(folder)
    if (match := re.fullmatch(r"(.+)-[0-9a-f]{12}", path.parent.name)) and path.name == "model":
        return match[1] if match[1] in VARIANTS else None
    match = re.fullmatch(r"(tiny-\w+)-[0-9a-f]{12}", path.name)
    return match[1] if match else offline_gguf(path)


def resolve_model(name: str) -> str:
    """Return the folder of an offline model or of one that lovec has exported, or the name itself for any other.

    Args:
        name: ``world``, ``world-small``, ``tiny-<architecture>``, ``smollm2``, a hub id, a folder or a GGUF file, here
            or on the hub as ``org/name:file.gguf``. Offline models are built, and GGUF files dequantised, at their
            first use and cached. A hub id may end in ``@`` and a revision.
    """
    if is_gguf(name):
        return str(ensure_dequantised(name))
    with torch.device("cpu"):  # the model is kept, so it must not depend on the trainer's default device
        if name.startswith("world"):
            from lovec.datasets.world import VARIANTS, ensure_world

            if name in VARIANTS:
                return str(ensure_world(name).model_path)
        if name.startswith("tiny-"):
            from lovec.tiny import ensure_tiny

            return str(ensure_tiny(name))
    return fetched_model(name) or name
