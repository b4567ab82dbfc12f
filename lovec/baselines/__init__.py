"""Baselines: taggers with the same interface as the trained ones."""

from lovec.baselines.constant import ConstantTagger, best_constant
from lovec.baselines.recalibrated import Isotonic, Platt, Recalibrated

__all__ = ["ConstantTagger", "Isotonic", "Platt", "Recalibrated", "best_constant"]
