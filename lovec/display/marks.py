"""What a tagged sentence looks like, whatever it is shown on: its band of confidence, its number, the break before it.

Every sentence is followed by its confidence, and one of low confidence has an underline besides its colour, so nothing
is said by colour alone. Texts come from a model or a stranger: characters that could steer a terminal or change the
direction of text are replaced.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from rich.text import Text

from lovec.core.shown import visible
from lovec.tags import thought_length
from lovec.text.sentences import Places
from lovec.types import Sentence, ThresholdBy, to_rating

BANDS: Mapping[str, str] = {
    "low": "below 0.35",
    "middle": "0.35 to 0.65",
    "high": "from 0.65 on",
    "none": "no confidence",
}
"""Names of the bands of confidence, as in the HTML classes ``lv-NAME``, with their limits in words."""

TENTHS: Mapping[str, int] = {"low": 3, "middle": 6}
"""The highest tenth of confidence that belongs to a band; "high" has the others."""

DISAGREEMENT = 0.3
"""Difference between the confidences by source and by knowledge from which they are shown to disagree."""

TERMINAL: Mapping[str, str] = {"low": "underline bright_red", "middle": "yellow", "high": "none", "none": "dim"}
"""Styles of the bands on a terminal, in the syntax of rich."""

_BLANK_LINE = re.compile(r"\n[^\S\n]*\n")


def band(confidence: float | None) -> str:
    """Return the name in ``BANDS`` of a confidence in [0, 1], by its nearest tenth: to 0.3, to 0.6, or above."""
    if confidence is None:
        return "none"
    tenths = to_rating(confidence)
    return next((name for name, highest in TENTHS.items() if tenths <= highest), "high")


def number(sentence: Sentence, by: ThresholdBy = "knowledge") -> str:
    """Return a confidence of a sentence with two decimals, such as "0.70"; "-" without one."""
    confidence = sentence.confidence_by(by)
    return "-" if confidence is None else f"{confidence:.2f}"


def source_number(sentence: Sentence) -> str:
    """Return the confidence of a sentence by its source, as ``number`` does."""
    return number(sentence, "source")


def disagrees(sentence: Sentence) -> bool:
    """Return whether the confidence of a sentence by its source differs by ``DISAGREEMENT`` or more from the other."""
    if sentence.by_source is None or sentence.confidence is None:
        return False
    return abs(sentence.by_source - sentence.confidence) >= DISAGREEMENT - 1e-9  # 0.7 - 0.4 is less than 0.3


def describe(sentence: Sentence) -> str:
    """Return what is known about a sentence in words.

    Such as "confidence 0.64, stated score 7 of 10, factuality 1.00"; "no confidence" if nothing is known.
    """
    words = [] if sentence.confidence is None else [f"confidence {number(sentence)}"]
    if sentence.by_source is not None:
        words = [f"by source {source_number(sentence)}, by knowledge {number(sentence)}"]
    words += [] if sentence.score is None else [f"stated score {sentence.score} of {sentence.levels - 1}"]
    words += [] if sentence.factuality is None else [f"factuality {sentence.factuality:.2f}"]
    return ", ".join(words) or BANDS["none"]


class Breaks:
    """Finds the breaks between the sentences of an answer; sentences must be asked for in their order.

    White space inside a sentence may differ from that of the answer, as in files that store sentences on one line each.

    Args:
        answer: the raw text; none of its sentences stands in its thought. A sentence that is not in it is preceded by a
            space.

    Attributes:
        indentation: the white space before the sentence that was asked for last, if that is all of its line before it.
    """

    def __init__(self, answer: str) -> None:
        self.indentation = ""
        self._answer = answer[thought_length(answer) :]
        self._places = Places(self._answer)
        self._end = 0
        self._next = ""

    def before(self, text: str) -> str:
        """Return what comes before this sentence: "", " ", a line break, or two for a blank line."""
        between_sentences, self._next = self._next, " "
        between = self.between(text) or " "
        line = between.rpartition("\n")[2]
        self.indentation = line if "\n" in between and not line.strip() else ""
        return between_sentences and ("\n\n" if _BLANK_LINE.search(between) else "\n" if "\n" in between else " ")

    def between(self, text: str) -> str | None:
        """Return what the answer has between the sentence before and this one; None where it has not this one."""
        place = self._places.find(text)
        if place is None:
            return None
        begin, self._end = self._end, place[1]
        return self._answer[begin : place[0]]


def sentence_text(sentence: Sentence, tag: str | None = None) -> Text:
    """Return a sentence for a terminal: in the style of its band, followed by its confidence in brackets.

    What is not a statement is plain. Of a confidence by source both are there, with "!" where they disagree.

    Args:
        sentence: the sentence.
        tag: what follows it in the place of its confidence.
    """
    if not sentence.is_statement:
        return Text(visible(sentence.text))
    style = TERMINAL[band(sentence.confidence)]
    if sentence.by_source is not None and tag is None:
        mark = " !" if disagrees(sentence) else ""
        tag = f"[by source {source_number(sentence)}, by knowledge {number(sentence)}{mark}]"
    return Text.assemble((visible(sentence.text), style), " ", (tag or f"[{number(sentence)}]", "bold"))
