"""Names of models that are built here rather than downloaded."""

from __future__ import annotations

import torch


def resolve_model(name: str) -> str:
    """The folder of an offline model (built and cached at its first use), or the name itself for hub and folders."""
    with torch.device("cpu"):  # what is built here is kept, whatever device the trainer has made the default
        return _built(name)


def _built(name: str) -> str:
    if name.startswith("world"):
        from lovec.datasets.world import VARIANTS, ensure_world

        if name in VARIANTS:
            return str(ensure_world(name).model_path)
    if name.startswith("tiny-"):
        from lovec.tiny import ensure_tiny

        return str(ensure_tiny(name))
    return name
