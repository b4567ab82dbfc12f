"""Names of models that are built on this machine instead of downloaded."""

from __future__ import annotations

import torch


def resolve_model(name: str) -> str:
    """Return the folder of an offline model, or the name itself for a hub id or a folder.

    Args:
        name: ``world``, ``world-small``, ``tiny-<architecture>``, a hub id or a folder. Offline models are built at
            their first use and cached.
    """
    with torch.device("cpu"):  # the model is kept, so it must not depend on the trainer's default device
        if name.startswith("world"):
            from lovec.datasets.world import VARIANTS, ensure_world

            if name in VARIANTS:
                return str(ensure_world(name).model_path)
        if name.startswith("tiny-"):
            from lovec.tiny import ensure_tiny

            return str(ensure_tiny(name))
    return name
