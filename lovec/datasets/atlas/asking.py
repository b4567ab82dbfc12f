"""Questions of Atlas, and the prompts of worked examples that let a language model answer them in plain text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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

_EXAMPLES: Sequence[Mapping[str, str]] = (
    {
        "city": "Porto",
        "country": "Portugal",
        "continent": "Europe",
        "inhabitants": "253,000",
        "capital": "Lisbon",
        "currency": "euro",
        "language": "Portuguese",
        "people": "10,000,000",
    },
    {
        "city": "Nagoya",
        "country": "Japan",
        "continent": "Asia",
        "inhabitants": "2,330,000",
        "capital": "Tokyo",
        "currency": "Japanese yen",
        "language": "Japanese",
        "people": "127,000,000",
    },
    {
        "city": "Kumasi",
        "country": "Ghana",
        "continent": "Africa",
        "inhabitants": "2,540,000",
        "capital": "Accra",
        "currency": "Ghanaian cedi",
        "language": "English",
        "people": "30,000,000",
    },
    {
        "city": "Mendoza",
        "country": "Argentina",
        "continent": "South America",
        "inhabitants": "115,000",
        "capital": "Buenos Aires",
        "currency": "Argentine peso",
        "language": "Spanish",
        "people": "44,000,000",
    },
)

EXAMPLE_CITIES = tuple(example["city"] for example in _EXAMPLES)
EXAMPLE_COUNTRIES = tuple(example["country"] for example in _EXAMPLES)


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


def city_prompt(question: str) -> str:
    """Return a prompt for the plain answer to a question about a city, after four examples."""
    return _prompt(CITY_QUESTION, " ".join(CITY.values()), question)


def other_prompt(question: str) -> str:
    """Return a prompt for the plain answer to a question about a city in other words, after four examples."""
    return _prompt(OTHER_QUESTION, " ".join(OTHER_WORDS.values()), question)


def one_fact_prompt(question: str, kind: Kind) -> str:
    """Return a prompt for the plain answer to a question about one fact, after four examples."""
    return _prompt(*ONE_FACT[kind], question)


def country_prompt(question: str) -> str:
    """Return a prompt for the plain answer to a question about a country, after four examples."""
    answer = " ".join(COUNTRY.values()).replace("{inhabitants}", "{people}")
    return _prompt(COUNTRY_QUESTION, answer, question)


def _prompt(asked: str, answered: str, question: str) -> str:
    examples = [f"Question: {asked.format(**e)}\nAnswer: {answered.format(**e)}\n\n" for e in _EXAMPLES]
    return f"{''.join(examples)}Question: {question}\nAnswer:"
