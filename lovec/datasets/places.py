"""Where an answer states the facts that people wrote down about it, found by the words that both have."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TypeVar

from lovec.text.clauses import spans

_WORD = re.compile(r"[^\W_]+")
_STEM = 6  # letters by which two forms of a word are taken for the same
_SMALL_WORDS = """
    a an the and or but of in on at to for from by with as into over under about between among during after before is
    are was were be been being has have had do does did can could will would may might must he she it they his her its
    their him them who whom whose which that this these those there also other some one not
"""
_SMALL = frozenset(word[:_STEM] for word in _SMALL_WORDS.split())

T = TypeVar("T")


def fact_places(sentence: str, facts: Sequence[str], topic: str = "") -> list[tuple[int, int] | None]:
    """Return where a sentence states its atomic facts: start and end, in characters.

    A fact stands in the shortest part of the sentence that holds all of the fact's new words. Its words are those that
    the sentence has, too, without small words such as "the" and the words of the topic; its new words are those that no
    fact before it has, or all of them where there are none. Of equally short parts it is the first. Words are the same
    where their first six letters are.

    Args:
        sentence: the sentence.
        facts: its atomic facts, in the order of the annotators.
        topic: what the sentence is about, where all facts name it.

    Returns:
        None for a fact that has no word in common with the sentence.
    """
    words = [(match.start(), match.end(), _stem(match[0])) for match in _WORD.finditer(sentence)]
    there = {stem for *_, stem in words} - _SMALL - _stems(topic)
    known: set[str] = set()
    places: list[tuple[int, int] | None] = []
    for fact in facts:
        found = _stems(fact) & there
        places.append(_shortest(words, found - known or found))
        known |= found
    return places


def clause_at(clauses: Sequence[tuple[int, int]], place: tuple[int, int]) -> int:
    """Return which clause completes the fact that stands at a place: the one that the place ends in."""
    return next(at for at, (_, end) in enumerate(clauses) if place[1] <= end)


def fact_sentences(sentences: Sequence[str], facts: Sequence[str]) -> list[int | None]:
    """Return which sentence of an answer states each fact.

    It is the one that has most of the fact's words, small ones such as "the" left out, and of several the first.

    Args:
        sentences: the sentences.
        facts: facts of the answer, each in words of its own.

    Returns:
        Indices; None for a fact of whose words no sentence has half.
    """
    there = [_stems(sentence) - _SMALL for sentence in sentences]
    found: list[int | None] = []
    for fact in facts:
        words = _stems(fact) - _SMALL
        shared = [len(words & own) for own in there]
        most = max(shared, default=0)
        found.append(shared.index(most) if most and 2 * most >= len(words) else None)
    return found


def of_clauses(sentence: str, facts: Sequence[tuple[str, T]], topic: str = "") -> list[tuple[str, list[T]]]:
    """Return the clauses of a sentence, each with the labels of the facts that it completes, see `fact_places`.

    Args:
        sentence: the sentence.
        facts: its facts in their order, each with a label.
        topic: as for `fact_places`.
    """
    found = spans(sentence)
    labels: list[list[T]] = [[] for _ in found]
    for (_, label), place in zip(facts, fact_places(sentence, [fact for fact, _ in facts], topic), strict=True):
        if place is not None:
            labels[clause_at(found, place)].append(label)
    return [(sentence[start:end], own) for (start, end), own in zip(found, labels, strict=True)]


def _shortest(words: Sequence[tuple[int, int, str]], wanted: set[str]) -> tuple[int, int] | None:
    """Return start and end of the shortest part of a sentence that has all of some words; None for no words."""
    best: tuple[int, int, int] | None = None
    last: dict[str, int] = {}  # the latest place of each word so far
    for at, (_, _, stem) in enumerate(words):
        if stem not in wanted:
            continue
        last[stem] = at
        first = min(last.values())
        if len(last) == len(wanted) and (best is None or at - first < best[0]):
            best = at - first, first, at
    return None if best is None else (words[best[1]][0], words[best[2]][1])


def _stem(word: str) -> str:
    return word.casefold()[:_STEM]


def _stems(text: str) -> set[str]:
    return {_stem(word) for word in _WORD.findall(text)}
