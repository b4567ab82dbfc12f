"""Taggers, which give the sentences of an answer a confidence, and sessions, which open a model for them."""

from lovec.taggers.freeform import FreeFormTagger
from lovec.taggers.iterative import IterativeTagger
from lovec.taggers.session import Session, open_session

__all__ = ["FreeFormTagger", "IterativeTagger", "Session", "open_session"]
