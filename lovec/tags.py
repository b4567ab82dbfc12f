"""The one file that knows how a confidence tag looks: ``A sentence. <confidence> 9 </confidence>``.

Parsing is strict, takes linear time on any input and loses nothing: the raw spans of the sentences and the untagged
tail, joined, are the input.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from lovec.types import N_SCORES, LovecError

_SCORES = {str(score): score for score in range(N_SCORES)}
_QUOTED = 20  # characters of the model's text that an explanation may quote


@dataclass(frozen=True, slots=True)
class TagFormat:
    """The two words around a score.

    Attributes:
        open: word before the score.
        close: word after it.

    Raises:
        LovecError: the words are empty, have white space at an edge, contain each other, or cannot be told apart
            from a score.
    """

    open: str = "<confidence>"
    close: str = "</confidence>"

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
        for score in range(N_SCORES):
            head = f"{self.open} {score} "
            tag = head + self.close
            if tag.find(self.close) != len(head) or tag.rfind(self.open, 0, len(head)) != 0:
                raise LovecError(
                    f"tag words {self.open!r} and {self.close!r} cannot be told apart from the score {score} between "
                    "them; choose words without numbers"
                )


DEFAULT_TAGS = TagFormat()
"""``<confidence> X </confidence>``, as in the paper."""


@dataclass(frozen=True, slots=True)
class TaggedSentence:
    """One span of a text that ends in a tag, well-formed or not.

    Attributes:
        text: what stands before the first tag word, stripped; it holds no tag word.
        score: the integer 0..10, None where the tag is malformed.
        problem: None where the tag is well-formed, else why it is not, in a few words.
        raw: the span as it was, tag and white space included.
    """

    text: str
    score: int | None
    problem: str | None
    raw: str


@dataclass(frozen=True, slots=True)
class TaggedText:
    """A parsed text; ``"".join(s.raw for s in sentences) + tail`` is the input.

    Attributes:
        sentences: the tagged spans in their order.
        tail: what follows the last tag, unstripped; it holds no tag word.
    """

    sentences: tuple[TaggedSentence, ...]
    tail: str


def parse(text: str, tags: TagFormat = DEFAULT_TAGS) -> TaggedText:
    r"""Cut a text behind every tag and read the scores.

    Well-formed is non-empty text followed by ``<confidence>\s*(10|[0-9])\s*</confidence>``. A span ends behind its
    closing tag word; a span whose tag is anything else ("8.5", "11", "08", nothing, no text before it, two opening
    words, no opening word) is malformed, and so is the whole rest of the text behind an opening word that is never
    closed.

    Args:
        text: what a model wrote; any string.
        tags: the tag words.
    """
    sentences = []
    start = 0
    while (close := text.find(tags.close, start)) >= 0:
        end = close + len(tags.close)
        sentences.append(_sentence(text[start:end], close - start, tags))
        start = end
    rest = text[start:]
    if (opening := rest.find(tags.open)) >= 0:
        sentences.append(TaggedSentence(rest[:opening].strip(), None, "no closing tag", rest))
        rest = ""
    return TaggedText(tuple(sentences), rest)


def render(sentences: Iterable[TaggedSentence | tuple[str, int]], tags: TagFormat = DEFAULT_TAGS) -> str:
    """Write the canonical form: ``s1 <confidence> 9 </confidence> s2 <confidence> 3 </confidence>``.

    ``parse`` gives the same texts and scores back.

    Args:
        sentences: tagged sentences, or (text, score) pairs; texts are stripped.
        tags: the tag words.

    Raises:
        LovecError: a text is empty or holds a tag word, or a score is no integer 0..10 (None included).
    """
    pieces = []
    for number, sentence in enumerate(sentences, start=1):
        text, score = (sentence.text, sentence.score) if isinstance(sentence, TaggedSentence) else sentence
        text = text.strip()
        if not text:
            raise LovecError(f"sentence {number} is empty, expected text to tag; leave it out")
        if type(score) is not int or not 0 <= score < N_SCORES:
            raise LovecError(f"sentence {number} has the score {score!r}, expected an integer 0..10")
        piece = f"{text} {tags.open} {score} {tags.close}"
        # Read back rather than searched for tag words: a text may also complete one together with what follows it.
        if [(s.text, s.score) for s in parse(piece, tags).sentences] != [(text, score)]:
            raise LovecError(
                f"sentence {number} holds a tag word ({tags.open!r} or {tags.close!r}): {text[:_QUOTED]!r}...; "
                "remove it, or choose other tag words"
            )
        pieces.append(piece)
    return " ".join(pieces)


def strip(text: str, tags: TagFormat = DEFAULT_TAGS) -> str:
    """The text without its tags. Of malformed ones the tag words go, and a number behind an opening word.

    Args:
        text: what a model wrote; any string.
        tags: the tag words.
    """
    parsed = parse(text, tags)
    broken = re.compile(rf"{re.escape(tags.open)}(?:\s*\d+(?:\.\d+)?(?!\w))?|{re.escape(tags.close)}")
    pieces = [s.text if s.problem is None else " ".join(broken.sub(" ", s.raw).split()) for s in parsed.sentences]
    return " ".join(piece for piece in (*pieces, parsed.tail.strip()) if piece)


def _sentence(raw: str, close: int, tags: TagFormat) -> TaggedSentence:
    """Judge one span whose closing tag word begins at ``close`` and ends it."""
    opening = raw.find(tags.open, 0, close)
    if opening < 0:
        return TaggedSentence(raw[:close].strip(), None, "closing tag without an opening one", raw)
    text = raw[:opening].strip()
    inside = raw[opening + len(tags.open) : close]
    score = None
    if tags.open in inside:
        problem = "second opening tag before the closing one"
    elif not text:
        problem = "no text before the tag"
    elif (score := _SCORES.get(inside.strip())) is None:
        given = inside.strip()
        shown = given if len(given) <= _QUOTED else given[:_QUOTED] + "..."
        problem = f"score is {shown!r}, expected an integer 0..10" if given else "no score in the tag"
    else:
        return TaggedSentence(text, score, None, raw)
    return TaggedSentence(text, None, problem, raw)
