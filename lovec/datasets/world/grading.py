"""The exact grader of the embedded world: reads a sentence back through its form and gives credit for every fact.

The credit of a fact is 1 if it is exact, and otherwise depends on what it is:

- a year: ``max(0, 1 - |d| / 16)`` for a difference of d years,
- a month: ``max(0, 1 - d / 4)`` for a distance of d months around the year,
- a small number: ``max(0, 1 - |d| / 4)`` for a difference of d,
- a place: 0.4 for the right country, or for the right city with a wrong country,
- any other value: 0.4 if it belongs to the right group (field, industry or kind of pastime).

The factuality of a sentence is the mean credit, rounded half up to tenths. A sentence that is about another entity, or
that no form matches, has factuality 0.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from functools import cache, lru_cache
from string import Formatter

from lovec.datasets.world.facts import COUNTS, MONTHS, Entity, group_of
from lovec.datasets.world.text import ASIDES, OPENERS, forms_of

_PARTIAL = 0.4
_TWO_WORDS = ("name", "org", "prize", "founder", "chief", "club", "mayor", "builder", "captain")
_FRAME = re.compile(
    f"(?:(?:{'|'.join(map(re.escape, OPENERS))}) )?(?P<text>.+?)(?:{'|'.join(map(re.escape, ASIDES))})?\\."
)
_SPLIT = re.compile(r"[^.]*\.|[^.]+\Z")


def split_sentences(text: str) -> list[str]:
    """Split a plain answer after every full stop, without white space at the edges; all other text is kept.

    No other token of the world contains a full stop, so the split is exact on any text that its model writes.
    """
    return [sentence for part in _SPLIT.findall(text) if (sentence := part.strip())]


def factuality(entity: Entity, sentence: str) -> float:
    """Return how true a sentence about an entity is, in {0, 0.1, ..., 1}."""
    return max((_rounded_mean(fact_credits(entity, slots)) for slots in readings(entity.kind, sentence)), default=0.0)


def fact_credits(entity: Entity, slots: dict[str, str]) -> list[float]:
    """Return the credit in [0, 1] of every graded fact of a sentence; [] if it is about another entity.

    Args:
        entity: the entity that the sentence should be about.
        slots: the sentence's values by slot, see ``readings``.
    """
    surname = entity.name.split()[-1]
    if slots.get("name", entity.name) != entity.name or slots.get("surname", surname) != surname:
        return []
    credits = []
    for slot, value in slots.items():
        prefix, _, rule = slot.partition("_")
        truth = entity.facts.get(slot, "")
        if rule == "year":
            credits.append(max(0.0, 1 - abs(int(value) - int(truth)) / 16))
        elif rule == "month":
            credits.append(_closeness(value, truth, MONTHS, cyclic=True))
        elif rule == "count":
            credits.append(_closeness(value, truth, COUNTS, cyclic=False))
        elif rule == "city":
            right = [value == truth, slots[f"{prefix}_country"] == entity.facts[f"{prefix}_country"]]
            credits.append(1.0 if all(right) else _PARTIAL if any(right) else 0.0)
        elif rule and rule != "country":
            groups = _groups()
            same_group = value in groups and groups[value] == groups.get(truth)
            credits.append(1.0 if value == truth else _PARTIAL if same_group else 0.0)
    return credits


@lru_cache(maxsize=1 << 16)
def readings(kind: str, sentence: str) -> tuple[dict[str, str], ...]:
    """Return the values of a sentence by slot, for every form and order that matches the sentence.

    They are not to be changed: sentences come back, as in answers that are compared with each other, and are read once.
    """
    framed = _FRAME.fullmatch(sentence)
    if framed is None:
        return ()
    text = framed["text"]
    fronted = text[0].lower() + text[1:]  # a detail in front may begin with a capital
    found = (pattern.fullmatch(fronted if front else text) for front, pattern in _patterns(kind))
    return tuple(match.groupdict() for match in found if match)


def _closeness(value: str, truth: str, order: tuple[str, ...], cyclic: bool) -> float:
    if value not in order:
        return 0.0
    distance = abs(order.index(value) - order.index(truth))
    if cyclic:
        distance = min(distance, len(order) - distance)
    return max(0.0, 1 - distance / 4)


def _rounded_mean(credits: list[float]) -> float:
    return math.floor(10 * sum(credits) / len(credits) + 0.5 + 1e-9) / 10 if credits else 0.0


@cache
def _groups() -> dict[str, str]:
    return group_of()


@cache
def _patterns(kind: str) -> list[tuple[bool, re.Pattern[str]]]:
    """Return a pattern for every order of the parts of every form, and whether a detail stands in front in it."""
    return [
        (bool(front), re.compile("".join(f"{_pattern(part)}, " for part in front) + _joined((form.head, *details))))
        for form in forms_of(kind)
        for front, details in form.orders()
    ]


def _joined(parts: Sequence[str]) -> str:
    return ",? ".join(map(_pattern, parts))


def _pattern(part: str) -> str:
    """Return a part of a form as a pattern: a year is four digits, a full name is two words, other values are one."""
    return "".join(_words(literal) + _value(slot) for literal, slot, _, _ in Formatter().parse(part))


def _words(literal: str) -> str:
    """Return literal text as a pattern; round brackets hold a choice of words."""
    return re.escape(literal).replace(r"\(", "(?:").replace(r"\)", ")").replace(r"\|", "|")


def _value(slot: str | None) -> str:
    if not slot:
        return ""
    rule = slot.rpartition("_")[2]
    value = r"\d{4}" if rule == "year" else "[A-Za-z]+ [A-Za-z]+" if rule in _TWO_WORDS else "[A-Za-z]+"
    return f"(?P<{slot}>{value})"
