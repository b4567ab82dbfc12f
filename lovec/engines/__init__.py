"""Engines: sample from the policy and score with it, token ids in, token ids out."""

from lovec.engines.transformers import TransformersEngine

__all__ = ["TransformersEngine"]
