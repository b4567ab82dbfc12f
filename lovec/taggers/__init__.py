"""Taggers: give the sentences of an answer a confidence."""

from lovec.taggers.freeform import FreeFormTagger
from lovec.taggers.iterative import IterativeTagger
from lovec.taggers.walk import expected_confidence

__all__ = ["FreeFormTagger", "IterativeTagger", "expected_confidence"]
