"""What a sentence of Atlas states: its kind, what it is about, and the value that it gives."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from string import Formatter

from lovec.datasets.atlas.asking import CITY, COUNTRY, ONE_FACT, OTHER_WORDS, Kind
from lovec.datasets.atlas.facts import folded
from lovec.datasets.atlas.names import country_named

_SHORTER: Mapping[Kind, str] = {
    "continent": "It is on the continent of {continent}.",
    "inhabitants": "It has a population of {inhabitants}.",
    "currency": "The currency is the {currency}.",
    "language": "The official language is {language}.",
}
_MILLION = {"thousand": 1e3, "million": 1e6, "billion": 1e9}
_NUMBER = re.compile(r"(?P<digits>\d[\d,. ]*\d|\d)\s*(?P<unit>thousand|million|billion)?")


@dataclass(frozen=True, slots=True)
class Claim:
    """What a sentence states.

    Attributes:
        kind: the fact that it gives.
        value: the value that it gives, as it is written.
        city: the city that it names; None where it names none.
        country: the country that it names beside its value; None where it names none.
    """

    kind: Kind
    value: str
    city: str | None = None
    country: str | None = None


@lru_cache(maxsize=1 << 16)
def read(sentence: str) -> Claim | None:
    """Return what a sentence states; None if it has none of the forms of Atlas."""
    for kind, pattern in _patterns():
        if match := pattern.fullmatch(sentence.strip()):
            slots = match.groupdict()
            return Claim(kind, slots.pop(kind), **slots)
    return None


def claims(sentences: Sequence[str]) -> list[str | None]:
    """Return what the sentences of an answer claim: kind of fact and country, such as "capital: FR".

    Two such claims are equal where answers place their cities in the same country, even if the values that they give
    differ. In an answer that names no country, as to a question for one fact, it is the value that is compared.

    Args:
        sentences: of one answer, in their order.

    Returns:
        A name for each sentence; None where it has none of the forms of Atlas.
    """
    read_as = [read(sentence) for sentence in sentences]
    places = [c.value if c.kind == "country" else c.country for c in read_as if c is not None and c.city is not None]
    named = next((code for place in places if place and (code := country_named(place))), None)
    return [None if c is None else f"{c.kind}: {named or folded(c.value)}" for c in read_as]


def number(text: str) -> float | None:
    """Return the number that a text gives in digits, such as "1,200,000" or "1.2 million"; None if it gives none."""
    match = _NUMBER.search(text)
    if match is None:
        return None
    digits = match["digits"].replace(" ", "")
    if match["unit"] is None:  # marks of thousands only
        return float(re.sub(r"[,.]", "", digits))
    try:
        return float(digits.replace(",", "")) * _MILLION[match["unit"]]
    except ValueError:
        return None


@cache
def _patterns() -> list[tuple[Kind, re.Pattern[str]]]:
    return [(kind, _pattern(form)) for kind, form in _forms()]


def _forms() -> Iterator[tuple[Kind, str]]:
    for forms in (CITY, OTHER_WORDS, COUNTRY):
        yield from forms.items()
    for kind, (_, form) in ONE_FACT.items():
        yield kind, form
    yield from _SHORTER.items()


def _pattern(form: str) -> re.Pattern[str]:
    """Return a form as a pattern; and a value is any text of one sentence."""
    parts = []
    for literal, slot, _, _ in Formatter().parse(form):
        parts.append(re.escape(literal))
        parts.append(f"(?P<{slot}>(?:St[.] |(?![.] ).)+?)" if slot else "")
    return re.compile("".join(parts))
