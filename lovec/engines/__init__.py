"""Engines, which sample from the policy and score choices with it: token ids in, token ids out."""

from lovec.engines.server import VllmServer
from lovec.engines.transformers import TransformersEngine
from lovec.engines.vllm import VllmEngine

__all__ = ["TransformersEngine", "VllmEngine", "VllmServer"]
