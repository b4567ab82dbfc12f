"""Questions of Atlas, and the sentences that answer them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, TypeAlias, get_args

from lovec.datasets.atlas.facts import City, Country

Kind: TypeAlias = Literal["country", "continent", "inhabitants", "capital", "currency", "language"]
"""What a sentence of Atlas states."""

KINDS: tuple[Kind, ...] = get_args(Kind)

CITY: Mapping[Kind, str] = {
    "country": "{city} is a city in {country}.",
    "continent": "It lies on the continent of {continent}.",
    "inhabitants": "It has about {inhabitants} inhabitants.",
    "capital": "The capital of {country} is {capital}.",
    "currency": "The currency used there is the {currency}.",
    "language": "The official language there is {language}.",
}
"""Sentences of an answer about a city, in their order."""

OTHER_WORDS: Mapping[Kind, str] = {
    "country": "The city of {city} belongs to {country}.",
    "continent": "{country} is part of {continent}.",
    "inhabitants": "Some {inhabitants} people live in {city}.",
    "capital": "{capital} is the capital of {country}.",
    "currency": "People there pay with the {currency}.",
    "language": "They officially speak {language}.",
}
"""The same statements in other words."""

COUNTRY: Mapping[Kind, str] = {
    "continent": "{country} is a country on the continent of {continent}.",
    "capital": "Its capital is {capital}.",
    "inhabitants": "It has about {inhabitants} inhabitants.",
    "currency": "The currency used there is the {currency}.",
    "language": "The official language there is {language}.",
}
"""Sentences of an answer about a country, in their order."""

ONE_FACT: Mapping[Kind, tuple[str, str]] = {
    "country": ("In which country is the city of {city}?", "{city} is in {country}."),
    "continent": ("On which continent is the city of {city}?", "{city} is on the continent of {continent}."),
    "inhabitants": ("How many people live in the city of {city}?", "About {inhabitants} people live in {city}."),
    "capital": (
        "What is the capital of the country in which the city of {city} lies?",
        "{city} lies in a country whose capital is {capital}.",
    ),
    "currency": ("Which currency is used in the city of {city}?", "The currency used in {city} is the {currency}."),
    "language": ("What is the official language in {city}?", "The official language in {city} is {language}."),
}
"""A question about one fact of a city and the sentence that answers it, by kind."""

CITY_QUESTION = "Tell me about the city of {city}."
OTHER_QUESTION = "What is there to know about {city}?"
COUNTRY_QUESTION = "Tell me about the country of {country}."


def city_question(city: City) -> str:
    """Return the question about a city that Atlas trains on."""
    return CITY_QUESTION.format(city=city.name)


def other_question(city: City) -> str:
    """Return a question about a city in other words."""
    return OTHER_QUESTION.format(city=city.name)


def one_fact_question(city: City, kind: Kind) -> str:
    """Return a question about one fact of a city."""
    return ONE_FACT[kind][0].format(city=city.name)


def country_question(country: Country) -> str:
    """Return the question about a country."""
    return COUNTRY_QUESTION.format(country=spoken(country))


def spoken(country: Country) -> str:
    """Return a country's name as it stands in a sentence."""
    plural = country.name.endswith(("Islands", "Maldives", "Philippines", "Netherlands", "Emirates", "States"))
    united = country.name.startswith(("United", "Republic", "Democratic", "Bahamas", "Comoros", "Gambia"))
    return f"the {country.name}" if plural or united else country.name
