"""Recognise answers that decline to answer."""

from __future__ import annotations

import re
from pathlib import Path

import yaml

# ruff: noqa: RUF001 - typographic apostrophes and quotation marks are meant
from lovec.text.sentences import split_sentences

_LONGEST = 400  # characters of a sentence that are looked at: whoever declines does so at once

_PATTERNS: dict[str, re.Pattern[str]] = {
    name: re.compile(pattern, re.VERBOSE)
    for name, pattern in yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8")).items()
}
"""Regular expressions, which the file explains."""
_MARKS = " \t\n*_#>"
_QUOTED = re.compile(r"\"[^\"]*\"|“[^”]*”")


def is_abstention(answer: str) -> bool:
    """Return whether an answer declines: it says that it cannot find, does not know or will not tell, and little else.

    One of its first two sentences declines (in the first person, by asking what is meant, or by saying that there is no
    information), and at most half of all its sentences state something. An answer that declines and then answers all
    the same does not count. English only.

    Args:
        answer: the whole untagged text; an empty answer is not an abstention.
    """
    sentences = [sentence.lstrip(_MARKS)[:_LONGEST] for sentence in split_sentences(answer.replace("’", "'"))]
    if not any(map(_declines, sentences[:2])):
        return False
    statements = sum(not _declines(sentence) and not _is_aside(sentence) for sentence in sentences)
    return 2 * statements <= len(sentences)


def _declines(sentence: str) -> bool:
    """Return whether a sentence says that the model does not know, or asks what is meant."""
    claim = _PATTERNS["limits"].sub("", sentence)
    if _PATTERNS["declines"].match(claim) or _PATTERNS["asks_back"].search(claim):
        return True
    own_words = _QUOTED.sub("", claim)
    if _PATTERNS["reported"].search(own_words):
        return False
    return all(_PATTERNS[name].search(own_words) for name in ("first_person", "denies"))


def _is_aside(sentence: str) -> bool:
    """Return whether a sentence addresses the reader, or guesses why nothing was found."""
    return sentence.rstrip(" *_").endswith("?") or _PATTERNS["to_reader"].search(sentence) is not None
