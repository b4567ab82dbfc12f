"""Which country, currency, language or continent a text names: GeoNames' and ISO's names, and a table of others."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from lovec.datasets.atlas.facts import CONTINENTS, City, Country, countries, folded, needed

_TABLE = Path(__file__).with_name("table.yaml")


def country_named(text: str) -> str | None:
    """Return the code of the country that a text names: as a whole, after its last comma, or with its last words."""
    words = _plain(text)
    known = _countries()
    for part in (words, _plain(text.rpartition(",")[2])):
        if part in known:
            return known[part]
    ends = (words.split(" ", count)[-1] for count in range(1, words.count(" ") + 1))
    return next((known[end] for end in ends if end in known), None)


def lies_in(named: str, code: str) -> bool:
    """Return whether a country, or the territory of another one, is what a text names; both by their codes."""
    return named in (code, _table()["part_of"].get(code))


def capitals(code: str, named: str) -> set[str]:
    """Return the folded names of a country's capital, by the name that a text has for the country."""
    if (parts := _table()["parts"].get(named)) is not None:
        return set(map(folded, parts))
    return {folded(countries()[code].capital), *map(folded, _table()["capitals"].get(code, ()))}


def continents(country: Country, city: City | None = None) -> set[str]:
    """Return the codes of the continents that a country, or a city in it, lies on.

    Both count where sources differ. Cities of countries on two continents are told apart by where they lie.
    """

    def others(part: str) -> set[str]:
        boxes: dict[str, list[float]] = _table()[part].get(country.code, {})
        return {
            code
            for code, (west, east, south, north) in boxes.items()
            if city is None or (west <= city.longitude <= east and south <= city.latitude <= north)
        }

    return (others("only_on") if city is not None else set()) or {country.continent} | others("also_on")


def lies_on(text: str, country: Country, city: City | None = None) -> bool | None:
    """Return whether a country, or a city in it, lies on the continent, or the part of one, that a text names.

    Returns:
        None if it names none.
    """
    words = _plain(text).removeprefix("continent of ")
    if (region := _regions().get(words)) is not None:
        return country.code in region
    named = _continents().get(words)
    return None if named is None else named in continents(country, city)


def is_currency_of(text: str, code: str) -> bool:
    """Return whether a text names the currency of a country: its noun, alone or with words for the country before it.

    Args:
        text: such as "peso", "Argentine peso" or "CFA franc".
        code: two letters of the country.
    """
    words = _plain(text)
    words = words[:-1] if words.endswith("s") and words[:-1] in _all_nouns() else words
    currency = countries()[code].currency
    return any(
        words == noun or (words.endswith(f" {noun}") and words.removesuffix(f" {noun}") in _before(currency))
        for noun in _nouns(currency)
    )


def languages_named(text: str) -> list[str] | None:
    """Return the folded names of the languages that a text names, joined by "and" or commas; None if one is unknown."""
    parts = [part for part in re.split(r",\s*(?:and\s)?|\s(?:and|or)\s|\s*/\s*", text) if part.strip()]
    found = [re.sub(r" languages?$", "", _plain(re.sub(r"\(.*?\)", "", part))) for part in parts]
    return found if found and all(name in _known_languages() for name in found) else None


def official_languages(code: str) -> set[str]:
    """Return the folded names of a country's official languages."""
    names = _table()["languages"].get(code) or _listed_languages(countries()[code])
    return {folded(other) for name in names for other in (name, *_table()["language_names"].get(name, ()))}


def _listed_languages(country: Country) -> list[str]:
    """Return the languages that GeoNames lists first or marks with the country."""
    official = [tag for at, tag in enumerate(country.languages) if at == 0 or tag.endswith(f"-{country.code}")]
    return [_language(tag.partition("-")[0]) for tag in official]


def _language(code: str) -> str:
    found = needed("pycountry", "names").languages.get(**{f"alpha_{len(code)}": code})
    return code if found is None else re.sub(r"\s*\(.*\)", "", str(found.name))


def _plain(text: str) -> str:
    return folded(text).removeprefix("the ")


@cache
def _table() -> dict[str, Any]:
    table: dict[str, Any] = yaml.safe_load(_TABLE.read_text(encoding="utf-8"))
    return table


@cache
def _countries() -> dict[str, str]:
    names = {code: [country.name, *_table()["countries"].get(code, ())] for code, country in countries().items()}
    return _inverse(names)


@cache
def _regions() -> dict[str, set[str]]:
    return {_plain(name): set(codes) for name, codes in _table()["regions"].items()}


@cache
def _continents() -> dict[str, str]:
    return _inverse({code: [CONTINENTS[code], *names] for code, names in _table()["continents"].items()})


def _inverse(names: Mapping[str, Iterable[str]]) -> dict[str, str]:
    return {_plain(name): code for code, known in names.items() for name in known}


@cache
def _nouns(currency: str) -> set[str]:
    """Return what a currency is called without the word for its country."""
    found = needed("pycountry", "names").currencies.get(alpha_3=currency)
    iso = [] if found is None else [folded(found.name).split()[-1]]
    return set(map(folded, _table()["currencies"].get(currency, iso)))


@cache
def _all_nouns() -> set[str]:
    return {noun for country in countries().values() for noun in _nouns(country.currency)}


@cache
def _before(currency: str) -> set[str]:
    """Return what may stand before the noun of a currency: words of ISO 4217, or those for a country that uses it."""
    found = needed("pycountry", "names").currencies.get(alpha_3=currency)
    phrases = list(_table()["money_words"].get(currency, ()))
    if found is not None:
        phrases.append(found.name.rpartition(" ")[0])
    for country in countries().values():
        if country.currency == currency and not (currency == "USD" and country.code != "US"):
            phrases += [country.name, *_table()["demonyms"].get(country.code, ())]
    return set(map(folded, phrases))


@cache
def _known_languages() -> set[str]:
    listed = {_language(tag.partition("-")[0]) for c in countries().values() for tag in c.languages}
    table = _table()
    ours = {name for names in table["languages"].values() for name in names}
    others = {other for names in table["language_names"].values() for other in names}
    iso = {re.sub(r"\s*\(.*\)", "", language.name) for language in needed("pycountry", "names").languages}
    return set(map(folded, listed | ours | others | iso))
