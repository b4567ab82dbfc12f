"""Overlap: how many of the content words, numbers and names of a sentence its source has; no model is asked."""

from __future__ import annotations

import re
from collections.abc import Sequence

from lovec.baselines.base import Baseline
from lovec.core.settings import PlainWord
from lovec.text.cutting import words_of
from lovec.types import Record

_THOUSANDS = re.compile(r"(?<=\d),(?=\d{3})")  # "1,815" and "1815" are one number

FUNCTION_WORDS = frozenset(
    "a about above after again all also although am an and any are as at be because been before being below between "
    "both but by can could did do does doing down during each either few for from further had has have having he her "
    "here hers herself him himself his how however i if in into is it its itself just may me might more most must my "
    "myself neither no nor not of off on once only or other our ours ourselves out over own per s same shall she "
    "should so some such t than that the their theirs them themselves then there these they this those though through "
    "thus to too under until up upon us very was we were what when where whether which while who whom whose why will "
    "with within without would yet you your yours yourself".split()
)
"""English words that say nothing of what a sentence is about, and are not compared."""


class SourceOverlap(Baseline):
    """The share of what a sentence says that the words of its source have, whatever they say there.

    With W(x) the different words of a text but for `FUNCTION_WORDS`, without capitals, numbers among them without the
    commas of thousands, the confidence of a sentence s with the evidence E of its record is

        |W(s) & W(E)| / |W(s)|

    A sentence without such words, or of a record without evidence, has no confidence. Evidence is not cut.

    Args:
        name: its name in tables.
    """

    def __init__(self, name: PlainWord = "Overlap") -> None:
        super().__init__(name)

    def confidences(self, records: Sequence[Record]) -> list[list[float | None]]:
        """Return the share for every sentence; None where there is nothing to compare."""
        with self.watch.phase("scoring"):
            return [self._of(record) for record in records]

    def _of(self, record: Record) -> list[float | None]:
        source = content_words("\n".join(record.evidence))
        words = [content_words(sentence.text) for sentence in record.sentences]
        return [len(own & source) / len(own) if own and source else None for own in words]


def content_words(text: str) -> set[str]:
    """Return the different words of a text but for those of `FUNCTION_WORDS`, see `SourceOverlap`."""
    return set(words_of(_THOUSANDS.sub("", text))) - FUNCTION_WORDS
