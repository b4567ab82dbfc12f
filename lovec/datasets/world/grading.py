"""The exact grader of the embedded world: reads a sentence back through its form and gives credit for every fact.

The credit of a fact is 1 if it is exact, and otherwise depends on what it is:

- a year: ``max(0, 1 - |d| / 16)`` for a difference of d years,
- a month: ``max(0, 1 - d / 4)`` for a distance of d months around the year,
- a small number: ``max(0, 1 - |d| / 4)`` for a difference of d,
- a place: 0.4 for the right country, or for the right city with a wrong country,
- any other value: 0.4 if it belongs to the right group (field, industry or kind of pastime).

The factuality of a sentence is the mean credit, rounded half up to tenths. A sentence that is about another entity, or
that no form matches, has factuality 0. The clauses of a sentence are the parts of its form that state facts, its head
and its details, and each is graded alike by its own facts.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Sequence
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


def clauses(entity: Entity, sentence: str) -> list[tuple[str, float]]:
    """Return the clauses of a sentence about an entity, and how true each of them is, in {0, 0.1, ..., 1}.

    Words that state no fact belong to the clause behind them, or else to the last one. Joined by spaces, the clauses
    are the sentence. A sentence that no form matches is one clause.
    """
    best, found = -1.0, [(sentence, 0.0)]
    for slots, parts in _readings_with_parts(entity.kind, sentence):
        credits = fact_credits(entity, slots)
        if (truth := _rounded_mean(credits)) > best:
            best, found = truth, list(_graded(entity, sentence, slots, parts))
    return found


def _graded(
    entity: Entity, sentence: str, slots: dict[str, str], parts: Sequence[tuple[int, frozenset[str]]]
) -> Iterator[tuple[str, float]]:
    """Yield the clauses of a sentence and their factualities, given its values by slot and the parts of its form."""
    stating = [(end, names) for end, names in parts if fact_slots(names)] or parts[-1:]
    ends = [end for end, _ in stating[:-1]] + [len(sentence)]
    start = 0
    for end, (_, names) in zip(ends, stating, strict=True):
        end += sentence[end : end + 1] == ","
        own = {slot: value for slot, value in slots.items() if slot in names or "_" not in slot}
        yield sentence[start:end].strip(), _rounded_mean(fact_credits(entity, own))
        start = end


def fact_slots(names: Iterable[str]) -> list[str]:
    """Return the slots whose values are graded."""
    rules = ((name, name.rpartition("_")[2]) for name in names if "_" in name)
    return [name for name, rule in rules if rule != "country"]


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
    return tuple(slots for slots, _ in _readings_with_parts(kind, sentence))


def _readings_with_parts(kind: str, sentence: str) -> Iterator[tuple[dict[str, str], list[tuple[int, frozenset[str]]]]]:
    """Yield the values of a sentence by slot, and of every part of its form its end and its slots, for every match."""
    framed = _FRAME.fullmatch(sentence)
    if framed is None:
        return
    text = framed["text"]
    fronted = text[0].lower() + text[1:]  # a detail in front may begin with a capital
    for front, pattern in _patterns(kind):
        if match := pattern.fullmatch(fronted if front else text):
            named = {number: name for name, number in pattern.groupindex.items()}
            parts: list[tuple[int, frozenset[str]]] = []
            for number in range(1, pattern.groups + 1):
                if number in named:  # a slot stands inside the part whose group began before it
                    end, names = parts.pop()
                    parts.append((end, names | {named[number]}))
                else:
                    parts.append((framed.start("text") + match.end(number), frozenset()))
            yield match.groupdict(), parts


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
        (bool(front), re.compile("".join(f"({_pattern(part)}), " for part in front) + _joined((form.head, *details))))
        for form in forms_of(kind)
        for front, details in form.orders()
    ]


def _joined(parts: Sequence[str]) -> str:
    return ",? ".join(f"({_pattern(part)})" for part in parts)


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
