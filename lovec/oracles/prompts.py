"""The paper's fact-checking prompt, and the reading of ratings from replies, in linear time."""

from __future__ import annotations

import re
from collections.abc import Sequence

from lovec.encoding.prompts import prompt
from lovec.tags import without_thoughts

FACT_CHECK = prompt("fact_check")
"""The paper's prompt (section "Prompt for Fact-Checking"), word for word. Its slots are the evidence and the sentences,
each after "### " on a line of its own as in the prompt's example."""

NO_EVIDENCE = "(none was found; judge by what you know)"
"""Fills the evidence slot for a record without evidence; the paper has no such records."""

_LABEL = re.compile(
    r"(?:^[^\w\n]*(?:\d+[.):][^\w\n]*)?|\*\*[^\S\n]*)"  # the start of a line, perhaps numbered, or of bold print
    r"(?:veracity[^\S\n]+)?rating(?:[^\S\n]+\#?\d+)?[^\S\n]*(?::[^\S\n]*\*\*|\*\*[^\S\n]*:?|:)",
    re.IGNORECASE | re.MULTILINE,
)
_VALUE = re.compile(  # adjacent quantified classes share no character, so matching takes linear time
    r"[ \t\r$*\\\[({`]*([-\u2212]?[0-9]{1,3}(?:\.[0-9]{1,9})?)(?![\w%])[ \t\r$*\\\])}`.]*"
    r"(?:(?:/|out of)[ \t]*\$?10(?![\w%])[ \t\r$*\\\])}`.]*)?",
    re.IGNORECASE,
)
_ANOTHER = re.compile(
    r"(?:[-\u2010-\u2015\u2212/,;~]+|(?:to|or|and)\b|(?<=\.)(?=\d))[ \t$*\\\[({`]*[-\u2212]?\d", re.IGNORECASE
)  # a range or a choice
_BULLET = re.compile(r"[^\S\n]*[-*\u2022][^\S\n]+")


def fact_check(evidence: str, sentences: Sequence[str]) -> str:
    """Return the user turn that asks for a rating of every sentence.

    Args:
        evidence: the text to judge by; "" for none.
        sentences: at least one; line breaks in them become spaces, since each sentence is one line of the prompt.
    """
    lines = "  \n".join(f"### {' '.join(sentence.split())}" for sentence in sentences)
    return FACT_CHECK.format(evidence=evidence.strip() or NO_EVIDENCE, sentence=lines)


def read_ratings(reply: str) -> list[float | None]:
    """Return the factuality in [0, 1] of every rating in a reply, in order; None for a rating that is not valid.

    A rating follows "Rating:", bold or not ("**Rating:** $7$", "Rating: 7/10", or the number on the next line), or
    fills a line ("$7$", "7") in a reply that has no such label at all. Anything else after a label counts as None: a
    number outside 0..10, a range, a word. What a model writes while it thinks is not read, see ``lovec.tags``.

    The caller must compare the number of ratings with the number of sentences: if one is missing, nothing in the
    reply says which.
    """
    answer = without_thoughts(reply)
    if answer is None:
        return []
    labels = list(_LABEL.finditer(answer))
    if not labels:
        return [_fraction(match[1]) for line in answer.splitlines() if (match := _number_alone(line))]
    ends = [label.start() for label in labels[1:]] + [len(answer)]
    return [_labelled_rating(answer[label.end() : end]) for label, end in zip(labels, ends, strict=True)]


def _labelled_rating(text: str) -> float | None:
    """Return the rating in the text between a label and the next one."""
    line, _, rest = text.partition("\n")
    if not line.strip("*$ \t\r"):
        match = _number_alone(rest.lstrip().partition("\n")[0])
        return _fraction(match[1]) if match else None
    match = _VALUE.match(line)
    if match is None or _ANOTHER.match(line, match.end()):
        return None
    return _fraction(match[1])


def _number_alone(line: str) -> re.Match[str] | None:
    """Match a number that fills its line."""
    bullet = _BULLET.match(line)
    return _VALUE.fullmatch(line, bullet.end() if bullet else 0)


def _fraction(number: str) -> float | None:
    if number[0] in "-\u2212" or float(number) > 10:
        return None
    return float(number) / 10
