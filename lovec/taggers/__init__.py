"""Taggers, which give the sentences of an answer a confidence, and sessions, which open a model for them."""

from lovec.taggers.freeform import FreeFormTagger
from lovec.taggers.iterative import IterativeTagger
from lovec.taggers.session import Session, open_session
from lovec.taggers.tagged import TaggedText, TaggedTexts

__all__ = ["FreeFormTagger", "IterativeTagger", "Session", "TaggedText", "TaggedTexts", "open_session"]
