"""Read and write confidence tags, such as ``A sentence. <confidence> 9 </confidence>``; and skip thoughts.

This is the only module that knows what a tag looks like, and what a reasoning model writes before its answer, between
``<think>`` and ``</think>``, which is never part of the answer. Parsing is strict, takes linear time on any input and
loses nothing: the raw spans of the sentences and the untagged tail, joined, are the input.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise

from lovec.types import DEFAULT_SCALE, LovecError, Scale

_THOUGHT = ("<think>", "</think>")
_QUOTED = 20  # characters of the model's text that an error message quotes at most


@dataclass(frozen=True, slots=True)
class TagFormat:
    """The two tag words around a score, and the scale that the score belongs to.

    The words of the scale may contain each other ("1" and "10", "likely" and "unlikely"): what stands between the tag
    words is compared as a string.

    Attributes:
        open: the word before the score.
        close: the word after it.
        scale: the levels that a tag can state.

    Raises:
        LovecError: a tag word is empty or has white space at an edge, the tag words contain each other, or they cannot
            be told apart from a word of the scale.
    """

    open: str = "<confidence>"
    close: str = "</confidence>"
    scale: Scale = DEFAULT_SCALE

    def __post_init__(self) -> None:
        for name, word in (("open", self.open), ("close", self.close)):
            if not word or word != word.strip():
                raise LovecError(
                    f"tag word {name}={word!r}, expected a non-empty word without white space at its edges"
                )
        if self.open in self.close or self.close in self.open:
            raise LovecError(
                f"tag words {self.open!r} and {self.close!r} contain each other; choose words that do not, "
                "such as <c> and </c>"
            )
        for score, word in enumerate(self.scale.words):
            tag = self.tag(score)
            head = len(tag) - len(self.close)
            if tag.find(self.close) != head or tag.rfind(self.open, 0, head) != 0:
                raise LovecError(
                    f"tag words {self.open!r} and {self.close!r} cannot be told apart from the score {word!r} between "
                    "them; choose tag words that share nothing with the words of the scale"
                )

    def tag(self, score: int) -> str:
        """Return the tag that states a score, an index into the scale: ``<confidence> 9 </confidence>``."""
        return f"{self.open} {self.scale.words[score]} {self.close}"

    def occur_in(self, text: str) -> bool:
        """Return whether a text contains one of the tag words."""
        return self.open in text or self.close in text


DEFAULT_TAGS = TagFormat()
"""``<confidence> X </confidence>`` with X from 0 to 10, as in the paper."""


SOURCE_WORDS = ("<by_source>", "</by_source>")
"""The words around a confidence by source, which ``lovec tag`` prints behind the other one; no model writes them."""

_BY_SOURCE = re.compile(rf" ?{SOURCE_WORDS[0]} (?:-|[01]\.\d\d) {SOURCE_WORDS[1]}")


_WHOLE = "[sentence "


def whole_mark(confidence: float) -> str:
    """Return the confidence of a sentence as ``lovec tag`` prints it behind those of its clauses: [sentence 0.48]."""
    return f"{_WHOLE}{confidence:.2f}]"


def without_own_marks(text: str, tags: TagFormat = DEFAULT_TAGS) -> str:
    """Return a text without what ``lovec tag`` prints behind tags: confidences by source, and of whole sentences.

    Args:
        text: any string.
        tags: the tag words; what looks like the confidence of a whole sentence is one only behind the closing one.
    """
    if SOURCE_WORDS[0] in text:  # most have none, and the search takes longer
        text = _BY_SOURCE.sub("", text)
    if _WHOLE in text:
        text = re.sub(rf"(?<={re.escape(tags.close)}) ?{re.escape(_WHOLE)}[01]\.\d\d\]", "", text)
    return text


UNTAGGED = "the answer ends without a tag"
"""Problem of a last sentence that no tag follows."""


@dataclass(frozen=True, slots=True)
class TaggedSentence:
    """One span of a text that ends in a tag, well-formed or not.

    Attributes:
        text: what stands before the first tag word, stripped; it contains no tag word.
        score: the stated score, an index into the scale (0..10 by default); None where the tag is malformed.
        problem: why the tag is malformed, in a few words; None where it is well-formed.
        raw: the span as it was, tag and white space included.
    """

    text: str
    score: int | None
    problem: str | None
    raw: str


@dataclass(frozen=True, slots=True)
class TaggedText:
    """A parsed text; ``thought + "".join(s.raw for s in sentences) + tail`` is the input.

    Attributes:
        sentences: the tagged spans in their order.
        tail: what follows the last tag, unstripped; it contains no tag word.
        thought: what a reasoning model wrote before its answer, see ``lovec.tags``; "" for most texts.
    """

    sentences: tuple[TaggedSentence, ...]
    tail: str
    thought: str = ""


def parse(text: str, tags: TagFormat = DEFAULT_TAGS, opened: bool = True) -> TaggedText:
    r"""Cut a text after every tag and read the scores.

    A span is well-formed if it is non-empty text followed by ``<confidence>\s*X\s*</confidence>``, where X is a word
    of the scale. A span ends after its closing tag word. It is malformed if its tag is anything else ("8.5", "11",
    "08", nothing, no text before it, two opening words, no opening word); so is the rest of the text after an opening
    word that is never closed. A thought at the beginning is not a part of any span, whatever tags it contains.

    Args:
        text: any string, usually the output of a model.
        tags: the tag words and the scale.
        opened: as for `thought_length`.
    """
    scores = {word: score for score, word in enumerate(tags.scale.words)}
    sentences = []
    start = thought = thought_length(text, opened)
    while (close := text.find(tags.close, start)) >= 0:
        end = close + len(tags.close)
        sentences.append(_parse_span(text[start:end], close - start, tags, scores))
        start = end
    rest = text[start:]
    if (opening := rest.find(tags.open)) >= 0:
        sentences.append(TaggedSentence(rest[:opening].strip(), None, "no closing tag", rest))
        rest = ""
    return TaggedText(tuple(sentences), rest, text[:thought])


def shows_confidence(span: TaggedSentence, tags: TagFormat = DEFAULT_TAGS) -> bool:
    """Return whether a span ends in a tag with a confidence in place of a score, as ``lovec tag`` prints it: 0.42.

    Args:
        span: a span of `parse`.
        tags: the tag words.
    """
    tag = rf"\s*{re.escape(tags.open)} (?:0\.\d\d|1\.00) {re.escape(tags.close)}"
    return bool(span.text) and re.fullmatch(tag, span.raw.lstrip()[len(span.text) :]) is not None


def render(
    sentences: Iterable[TaggedSentence | tuple[str, int]], tags: TagFormat = DEFAULT_TAGS, opened: bool = True
) -> str:
    """Write the canonical form: ``s1 <confidence> 9 </confidence> s2 <confidence> 3 </confidence>``.

    ``parse`` gives the same texts and scores back.

    Args:
        sentences: tagged sentences, or (text, score) pairs; a score is an index into the scale, texts are stripped.
        tags: the tag words and the scale.
        opened: as for `thought_length`, of who parses it.

    Raises:
        LovecError: a text is empty or contains a tag word, or a score is not an integer 0..top of the scale (None
            included).
    """
    pieces: list[str] = []
    for number, sentence in enumerate(sentences, start=1):
        text, score = (sentence.text, sentence.score) if isinstance(sentence, TaggedSentence) else sentence
        text = text.strip()
        if not text:
            raise LovecError(f"sentence {number} is empty, expected text to tag; leave it out")
        if type(score) is not int or not 0 <= score <= tags.scale.top:
            raise LovecError(f"sentence {number} has the score {score!r}, expected an integer 0..{tags.scale.top}")
        piece = f"{text} {tags.tag(score)}"
        # Parsed again rather than searched for tag words: a text may also complete one together with what follows it.
        if [(s.text, s.score) for s in parse(piece, tags, opened).sentences] != [(text, score)]:
            raise LovecError(
                f"sentence {number} contains a tag word ({tags.open!r} or {tags.close!r}): {text[:_QUOTED]!r}...; "
                "remove it, or choose other tag words"
            )
        pieces.append(piece)
    return " ".join(pieces)


def strip(text: str, tags: TagFormat = DEFAULT_TAGS, opened: bool = True) -> str:
    """Return a text without its tags; white space between sentences stays as it was.

    Of malformed tags the tag words are removed. What stands right after an opening word goes with it where it is a
    number or a word of the scale and another tag word or the end follows ("8.5"), or where it is a word of the scale
    and a new sentence seems to follow ("<confidence> 9 She ..."). All else is kept: it may belong to the text.

    Args:
        text: any string, usually the output of a model.
        tags: the tag words and the scale.
        opened: as for `thought_length`.
    """
    parsed = parse(text, tags, opened)
    words = "|".join(map(re.escape, sorted(tags.scale.words, key=len, reverse=True)))
    opening, closing = re.escape(tags.open), re.escape(tags.close)
    alone = rf"\s*(?:\d+(?:\.\d+)?|{words})(?=\s*(?:{opening}|{closing}|\Z))"
    before_sentence = rf"\s*(?:{words})(?=\s+(?![a-z])\w)"
    broken = re.compile(rf"[^\S\n]*(?:{opening}(?:{alone}|{before_sentence})?|{closing})")

    pieces: list[str] = []
    for span in parsed.sentences:
        begin = len(span.raw) - len(span.raw.lstrip())
        pieces += [span.raw[:begin] + span.text] if span.problem is None else broken.split(span.raw)
    pieces = [piece for piece in (*pieces, parsed.tail) if piece]
    spaced = pieces[:1]
    for before, after in pairwise(pieces):
        spaced += [after] if before[-1].isspace() or after[0].isspace() else [" ", after]
    return "".join(spaced).strip()


def thought_length(answer: str, opened: bool = False) -> int:
    """Return how many of the first characters of an answer are a thought, its marks and the white space after included.

    An answer begins with a thought if its first word is ``<think>``. Many chat templates write this mark themselves, so
    what a model wrote also does if ``</think>`` comes without it. A mark further on is text like any other.

    Args:
        answer: an answer; a thought that does not end takes all of it.
        opened: whether a chat template may have opened a thought, as before what a model wrote; not of a given text.
    """
    opening, closing = _THOUGHT
    close = answer.find(closing)
    if not answer.lstrip().startswith(opening) and (not opened or close < 0 or opening in answer[:close]):
        return 0
    if close < 0:
        return len(answer)
    rest = answer[close + len(closing) :]
    return len(answer) - len(rest.lstrip())


def mentions_thought(text: str) -> bool:
    """Return whether a text has the mark that ends a thought."""
    return _THOUGHT[1] in text


def without_thoughts(reply: str) -> str | None:
    """Return what follows the last thought of a reply to a question; None where the reply ends inside a thought.

    Args:
        reply: what a model wrote; a thought may stand anywhere in it.
    """
    opening, closing = _THOUGHT
    rest = reply.rpartition(closing)[2]
    return None if opening in rest else rest


def _parse_span(raw: str, close: int, tags: TagFormat, scores: dict[str, int]) -> TaggedSentence:
    """Read one span, which ends with the closing tag word that begins at ``close``."""
    opening = raw.find(tags.open, 0, close)
    if opening < 0:
        return TaggedSentence(raw[:close].strip(), None, "closing tag without an opening one", raw)
    text = raw[:opening].strip()
    inside = raw[opening + len(tags.open) : close]
    word = inside.strip()
    if tags.open in inside:
        problem = "second opening tag before the closing one"
    elif not text:
        problem = "no text before the tag"
    elif not word:
        problem = "no score in the tag"
    elif word not in scores:
        scale = tags.scale
        expected = f"an integer 0..{scale.top}" if scale.is_numeric else f"one of {', '.join(scale.words)}"
        problem = f"score is {word if len(word) <= _QUOTED else word[:_QUOTED] + '...'!r}, expected {expected}"
    else:
        return TaggedSentence(text, scores[word], None, raw)
    return TaggedSentence(text, None, problem, raw)
