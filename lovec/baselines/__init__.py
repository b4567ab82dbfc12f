"""Baselines: taggers with the same interface as the trained ones."""

from lovec.baselines.constant import ConstantTagger, best_constant

__all__ = ["ConstantTagger", "best_constant"]
