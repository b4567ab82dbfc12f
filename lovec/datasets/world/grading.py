"""How true a sentence about the world is: read it back through its template, look every fact up, give credit.

Credit of a fact: 1 if exact; a year ``max(0, 1 - |d| / 16)``; a month ``max(0, 1 - d / 4)`` around the year's circle; a
small number ``max(0, 1 - |d| / 4)``; a place 0.4 for the right country (or the right city under a wrong country); a
value of the right group (field, industry) 0.4. The factuality is the mean credit, rounded half up to tenths; a
sentence about somebody else, or one that no template reads, is 0.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from functools import cache
from string import Formatter

from lovec.datasets.world.facts import COUNTS, MONTHS, Entity, group_of
from lovec.datasets.world.text import TEMPLATES

_PARTIAL = 0.4
_TWO_WORDS = ("name", "org", "prize", "founder", "chief")
_SPLIT = re.compile(r"[^.]*\.|[^.]+\Z")


def split_sentences(text: str) -> list[str]:
    """Cut a plain answer behind every full stop, its sentence-final token; nothing but white space is lost.

    No other token of the world holds a full stop, so the cut is exact on any text its model writes, garbled or not.
    """
    return [sentence for part in _SPLIT.findall(text) if (sentence := part.strip())]


def factuality(entity: Entity, sentence: str) -> float:
    """How true a sentence is of an entity, in {0, 0.1, ..., 1}."""
    return max((_rounded(credits(entity, slots)) for slots in readings(entity.kind, sentence)), default=0.0)


def is_readable(kind: str, sentence: str) -> bool:
    """Whether a template reads the sentence."""
    return any(True for _ in readings(kind, sentence))


def credits(entity: Entity, slots: dict[str, str]) -> list[float]:
    """Credit of every graded fact of a sentence that was read into slots; [] if it is about somebody else."""
    surname = entity.name.split()[-1]
    if slots.get("name", entity.name) != entity.name or slots.get("surname", surname) != surname:
        return []
    found = []
    for slot, value in slots.items():
        prefix, _, rule = slot.partition("_")
        truth = entity.facts.get(slot, "")
        if rule == "year":
            found.append(max(0.0, 1 - abs(int(value) - int(truth)) / 16))
        elif rule == "month":
            found.append(_near(value, truth, MONTHS, cyclic=True))
        elif rule == "count":
            found.append(_near(value, truth, COUNTS, cyclic=False))
        elif rule == "city":
            right = [value == truth, slots[f"{prefix}_country"] == entity.facts[f"{prefix}_country"]]
            found.append(1.0 if all(right) else _PARTIAL if any(right) else 0.0)
        elif rule and rule != "country":
            groups = _groups()
            same_group = value in groups and groups[value] == groups.get(truth)
            found.append(1.0 if value == truth else _PARTIAL if same_group else 0.0)
    return found


def readings(kind: str, sentence: str) -> Iterable[dict[str, str]]:
    """What stands in the slots of a sentence, for every template that reads it."""
    return (match.groupdict() for pattern in _patterns(kind) if (match := pattern.fullmatch(sentence)))


def _near(value: str, truth: str, order: tuple[str, ...], cyclic: bool) -> float:
    if value not in order:
        return 0.0
    distance = abs(order.index(value) - order.index(truth))
    if cyclic:
        distance = min(distance, len(order) - distance)
    return max(0.0, 1 - distance / 4)


def _rounded(found: list[float]) -> float:
    return math.floor(10 * sum(found) / len(found) + 0.5 + 1e-9) / 10 if found else 0.0


@cache
def _groups() -> dict[str, str]:
    return group_of()


@cache
def _patterns(kind: str) -> list[re.Pattern[str]]:
    return [_pattern(template) for group in TEMPLATES[kind] for template in group]


def _pattern(template: str) -> re.Pattern[str]:
    """A template as a pattern: a year is four digits, a name of two words two words, anything else one word."""
    parts = []
    for literal, slot, _, _ in Formatter().parse(template):
        parts.append(re.escape(literal))
        if slot:
            rule = slot.rpartition("_")[2]
            value = r"\d{4}" if rule == "year" else "[A-Za-z]+ [A-Za-z]+" if rule in _TWO_WORDS else "[A-Za-z]+"
            parts.append(f"(?P<{slot}>{value})")
    return re.compile("".join(parts))
