"""Engines, which sample from the policy and score choices with it: token ids in, token ids out."""

from typing import Any

from lovec.core import moved
from lovec.engines.server import RemoteVllm
from lovec.engines.transformers import TransformersEngine
from lovec.engines.vllm import VllmEngine

__all__ = ["RemoteVllm", "TransformersEngine", "VllmEngine"]


def __getattr__(name: str) -> Any:
    """Return a class by its old name."""
    if name == "VllmServer":
        moved.warn("lovec.engines.VllmServer", "lovec.engines.RemoteVllm")
        return RemoteVllm
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
