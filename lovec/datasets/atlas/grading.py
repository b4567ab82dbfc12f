"""The verdicts of Atlas: how true a sentence is by the tables of GeoNames.

A statement is true (1) or false (0); a number of inhabitants is true within a quarter of GeoNames', and half true
within a factor of two. A sentence that names a country is judged about that country, as "The capital of France is
Paris" is true whatever city the answer is about; any other is judged about the thing that was asked about.
"""

from __future__ import annotations

from lovec.datasets.atlas.facts import City, Country, countries, folded
from lovec.datasets.atlas.names import (
    capitals,
    country_named,
    is_currency_of,
    languages_named,
    lies_in,
    lies_on,
    official_languages,
)
from lovec.datasets.atlas.reading import Claim, number, read

_QUARTER, _FACTOR = 0.25, 2.0


def verdict(thing: City | Country, sentence: str) -> float | None:
    """Return how true a sentence of an answer is: 0, 0.5 or 1; None if it cannot be told.

    Args:
        thing: the city or country that was asked about.
        sentence: the sentence.
    """
    claim = read(sentence)
    if claim is None:
        return None
    city = thing if isinstance(thing, City) else None
    if city is not None and claim.city is not None and folded(claim.city) != folded(city.name):
        return None  # it is about something else
    own = countries()[thing.country] if isinstance(thing, City) else thing
    if claim.kind == "inhabitants":
        return _closeness(number(claim.value), thing.inhabitants)
    if claim.kind == "country":
        named = country_named(claim.value)
        return None if named is None else float(lies_in(named, own.code))
    if claim.country is not None and city is not None:
        return _of_country(claim, claim.country)
    return _verdict(claim, own, own.name, city)


def _of_country(claim: Claim, name: str) -> float | None:
    """Return the verdict on what a sentence states about the country that it names."""
    code = country_named(name)
    return None if code is None else _verdict(claim, countries()[code], name, None)


def _verdict(claim: Claim, country: Country, name: str, city: City | None) -> float | None:
    if claim.kind == "continent":
        there = lies_on(claim.value, country, city)
        return None if there is None else float(there)
    if claim.kind == "capital":
        return float(folded(claim.value) in capitals(country.code, name))
    if claim.kind == "currency":
        return float(is_currency_of(claim.value, country.code))
    languages = languages_named(claim.value)
    return None if languages is None else float(set(languages) <= official_languages(country.code))


def _closeness(stated: float | None, truth: int) -> float | None:
    if stated is None:
        return None
    if abs(stated - truth) <= _QUARTER * truth:
        return 1.0
    return 0.5 if truth / _FACTOR <= stated <= truth * _FACTOR else 0.0
