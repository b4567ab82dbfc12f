"""Taggers: give the sentences of an answer a confidence; and a session, a model opened for them outside training."""

from lovec.taggers.freeform import FreeFormTagger
from lovec.taggers.iterative import IterativeTagger
from lovec.taggers.scoring import expected_confidence
from lovec.taggers.session import Session, open_session

__all__ = ["FreeFormTagger", "IterativeTagger", "Session", "expected_confidence", "open_session"]
