"""Show tagged answers as HTML and on a terminal, with sentences of low confidence marked.

Every sentence is followed by its number, and one of low confidence has an underline besides its colour, so nothing is
said by colour alone. The text comes from a model or a stranger: it is escaped, and characters that could steer a
terminal or change the direction of text are replaced. Pages link to nothing.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from typing import Any

from rich.text import Text

from lovec.reports.texts import HERE
from lovec.templates import load_template
from lovec.types import N_SCORES, Record, Sentence, to_rating

BANDS = ("low", "middle", "high", "none")
"""Names of the bands of confidence, as in the HTML classes ``lv-NAME``; "none" is a sentence without a confidence."""

TERMINAL: Mapping[str, str] = {"low": "underline bright_red", "middle": "yellow", "high": "none", "none": "dim"}
"""Styles of the bands on a terminal, in the syntax of rich."""

CSS = (HERE / "passages.css").read_text(encoding="utf-8")
"""Style of `passage_html` and `legend_html`, for light and dark pages; contrasts reach WCAG AA on both."""

# Control characters except tab and line break; characters that override the direction of text; unpaired surrogates.
# The marks U+200E and U+200F override nothing, and texts in Arabic or Hebrew need them.
_UNSAFE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
_BLANK_LINE = re.compile(r"\n[^\S\n]*\n")
_MOST_PROBLEMS = 5


def band(confidence: float | None) -> str:
    """Return the name in ``BANDS`` of a confidence in [0, 1], by its nearest tenth: to 0.3, to 0.6, or above."""
    if confidence is None:
        return "none"
    tenths = to_rating(confidence)
    return "low" if tenths <= 3 else "middle" if tenths <= 6 else "high"


def band_scores(name: str, levels: int = N_SCORES) -> str:
    """Return the scores in a band on a scale of so many levels, such as "4 to 6"; "" if there is none.

    The band "none" gives "no score".
    """
    if name == "none":
        return "no score"
    scores = [str(score) for score in range(levels) if band(score / (levels - 1)) == name]
    return " to ".join(dict.fromkeys([*scores[:1], *scores[-1:]]))


def number(sentence: Sentence) -> str:
    """Return what is shown as a sentence's score: "7", "6.4" if its confidence lies between two scores, or "-"."""
    if sentence.confidence is None:
        return "-"
    value = (sentence.levels - 1) * sentence.confidence
    return f"{value:.0f}" if abs(value - round(value)) < 1e-9 else f"{value:.1f}"


class Breaks:
    """Finds the breaks between the sentences of an answer; sentences must be asked for in their order.

    White space inside a sentence may differ from that of the answer, as in files that store sentences on one line each.

    Args:
        answer: the raw text. A sentence that is not in it is preceded by a space.
    """

    def __init__(self, answer: str) -> None:
        self._answer = answer
        self._places = [place for place, character in enumerate(answer) if not character.isspace()]
        self._solid = "".join(answer.split())
        self._end = 0
        self._next = ""

    def before(self, text: str) -> str:
        """Return what comes before this sentence: "", " ", a line break, or two for a blank line."""
        between_sentences, self._next = self._next, " "
        solid = "".join(text.split())
        start = self._solid.find(solid, self._end)
        if start < 0 or not solid:
            return between_sentences
        begin = self._places[self._end - 1] + 1 if self._end else 0
        between = self._answer[begin : self._places[start]]
        self._end = start + len(solid)
        return between_sentences and ("\n\n" if _BLANK_LINE.search(between) else "\n" if "\n" in between else " ")


def visible(text: str) -> str:
    """Return the text without characters that steer a terminal, change the direction of text, or are invalid."""
    return _UNSAFE.sub("\ufffd", text)


def passage_html(record: Record, longest: int | None = None) -> str:
    """Return a tagged answer as an HTML fragment: a ``div`` of paragraphs, a ``span`` per sentence.

    A span has the class of its band (``lv-low``, ``lv-middle``, ``lv-high``, ``lv-none``), a title with its numbers,
    and ``data-confidence`` and ``data-factuality`` where they are known. Its number follows in a ``sup``.

    Args:
        record: sentences with confidence; of its answer only the line breaks are used.
        longest: number of characters after which the text is cut, with a note of how many follow; None cuts nothing.
    """
    pieces = []
    room = sys.maxsize if longest is None else longest
    breaks = Breaks(record.answer)
    for sentence in record.sentences:
        if room > 0:
            pieces.append((breaks.before(sentence.text), sentence, sentence.text[:room]))
        room -= len(sentence.text)
    return str(_macros().passage(pieces, -room))


def legend_html(levels: int = N_SCORES) -> str:
    """Return the meaning of the marks of `passage_html` as an HTML list, for a scale of so many levels."""
    scores = {name: scores for name in BANDS if (scores := band_scores(name, levels))}
    return str(_macros().legend(scores, levels - 1))


def page(title: str, subtitle: str, records: Iterable[Record], levels: int = N_SCORES) -> Iterator[str]:
    """Yield an HTML page of tagged answers piece by piece; the page opens from a file and loads nothing.

    Args:
        title: heading of the page.
        subtitle: a line below the heading.
        records: tagged answers, which are taken one by one.
        levels: number of levels of the scale that they are scored on.
    """
    macros = _macros()
    yield str(macros.head(title, subtitle, legend_html(levels)))
    for record in records:
        problems = [str(problem) for problem in record.meta.get("problems") or ()]
        if more := problems[_MOST_PROBLEMS:]:
            problems[_MOST_PROBLEMS:] = [f"and {len(more)} more"]
        yield str(macros.article(record, problems, passage_html(record)))
    yield "</body>\n</html>\n"


def sentence_text(sentence: Sentence) -> Text:
    """Return a sentence for a terminal: in the style of its band, followed by its number in brackets."""
    style = TERMINAL[band(sentence.confidence)]
    return Text.assemble((visible(sentence.text), style), " ", (f"[{number(sentence)}]", "bold"))


def _details(sentence: Sentence) -> str:
    """Return what is known about a sentence, such as "score 7 of 10, confidence 0.70"; "no score" if nothing is."""
    words = [f"score {sentence.score} of {sentence.levels - 1}"] if sentence.score is not None else []
    values = {"confidence": sentence.confidence, "factuality": sentence.factuality}
    words += [f"{name} {value:.2f}" for name, value in values.items() if value is not None]
    return ", ".join(words) or "no score"


@cache
def _macros() -> Any:
    """Return the macros of passages.html.j2, which escape all text in elements and attributes alike."""
    filters = {"band": band, "number": number, "details": _details, "visible": visible}
    return load_template(HERE / "passages.html.j2", autoescape=True, filters=filters).module
