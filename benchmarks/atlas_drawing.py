"""Which cities and countries Atlas asks about, and how they are split; no verdict on an answer takes part in it.

Here is also how a language model is asked about them in plain text, by prompts of worked examples, and how the answers
are stored.
"""

from __future__ import annotations

import gzip
import json
import random
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from lovec.core.files import atomic_file
from lovec.datasets.atlas.asking import (
    CITY,
    CITY_QUESTION,
    COUNTRY,
    COUNTRY_QUESTION,
    ONE_FACT,
    OTHER_QUESTION,
    OTHER_WORDS,
    Kind,
)
from lovec.datasets.atlas.facts import City, Country, cities, countries, folded
from lovec.datasets.atlas.names import country_named
from lovec.datasets.atlas.reading import read
from lovec.datasets.atlas.shipped import Part

_SKEW = 2.5  # a city's place in the order of population is N u ** 2.5 for a uniform u, which prefers large ones
_MOST_OF_A_CLAIM = 45  # cities that the model places in one country
_LEAST_OF_A_CLAIM = 4
_LEAST_PEOPLE = 100_000  # of a country that is asked about

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


def candidates(number: int, seed: int, without: Iterable[City] = ()) -> list[City]:
    """Draw different cities towards the large ones.

    Args:
        number: how many.
        seed: of the draw.
        without: cities that are not drawn.
    """
    taken = set(without)
    free = [city for city in _can_be_asked() if city not in taken]
    return _drawn(free, number, random.Random(seed))


def candidates_where_named(named: Iterable[str], number: int, without: Iterable[City], seed: int) -> list[City]:
    """Draw cities in the countries that a model named for other cities, as often as it named them.

    A model that is lost names few countries. Among cities of the whole world such a claim would be false nearly
    always, and whoever has learned the names of these countries would seem to know the truth. Cities that lie there
    make the same claim true now and then.

    Args:
        named: code of the country that the model named for each of the other cities.
        number: how many cities to draw at most; fewer where a country has no more.
        without: cities that are not drawn.
        seed: of the draw.
    """
    drawn, taken = Counter(named), set(without)
    of_country = defaultdict(list)
    for city in _can_be_asked():
        if city not in taken:
            of_country[city.country].append(city)
    total = drawn.total()
    chosen: list[City] = []
    for code, count in sorted(drawn.items()):
        share = min(round(number * count / total), len(of_country[code]) // 2)
        chosen.extend(_drawn(of_country[code], share, random.Random(f"{seed}/{code}")))
    return random.Random(seed).sample(chosen, len(chosen))


def chosen_by_claim(named: Mapping[City, str], number: int) -> list[City]:
    """Choose cities so that each country that a model names is named often, but not too often.

    Args:
        named: the country that the model named for each candidate, in the order in which cities are taken.
        number: how many cities to choose at most.
    """
    count = Counter(named.values())
    taken: Counter[str] = Counter()
    chosen: list[City] = []
    for city, claim in named.items():
        if len(chosen) < number and count[claim] >= _LEAST_OF_A_CLAIM and taken[claim] < _MOST_OF_A_CLAIM:
            taken[claim] += 1
            chosen.append(city)
    return chosen


def asked_countries(number: int, seed: int) -> list[Country]:
    """Draw different countries, the most populous first."""
    known = [c for c in countries().values() if c.inhabitants >= _LEAST_PEOPLE and c.name not in EXAMPLE_COUNTRIES]
    return sorted(random.Random(seed).sample(known, number), key=lambda country: -country.inhabitants)


def split_by_size(chosen: Sequence[City], shares: Mapping[str, int], seed: int) -> dict[str, list[City]]:
    """Split cities so that every split has large and small ones alike.

    Args:
        chosen: the cities.
        shares: number of cities of each split but the last, which takes the rest whatever its number is.
        seed: of the draw.

    Returns:
        The cities of each split, the most populous first.
    """
    ranked = sorted(chosen, key=lambda city: (-city.inhabitants, city.id))
    rng, (*sized, rest) = random.Random(seed), shares
    split_of: dict[int, str] = {}
    free = list(range(len(ranked)))
    for name in sized:
        width = len(free) / shares[name]
        for at in range(shares[name]):  # one of every `width` cities
            place = int(width * (at + rng.random()))
            while free[place] in split_of:  # the one before was the last of its range
                place += 1
            split_of[free[place]] = name
        free = [place for place in free if place not in split_of]
    return {name: [city for at, city in enumerate(ranked) if split_of.get(at, rest) == name] for name in shares}


def named_country(city: str, sentence: str) -> str | None:
    """Return the code of the country in which a sentence places a city; None if it names another city, or none."""
    claim = read(sentence)
    is_place = claim is not None and claim.kind == "country" and claim.city == city
    return country_named(claim.value) if claim is not None and is_place else None


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


def write_answers(path: Path, answers: Mapping[Part, Mapping[str, str]], kinds: Mapping[str, Kind]) -> None:
    """Write the file of all answers, the same bytes for the same answers.

    Args:
        path: the file.
        answers: by part and by the number of the city, or the code of the country.
        kinds: the fact that is asked for in "one-fact", by the number of the city.
    """
    content = json.dumps({"kinds": dict(kinds), "answers": answers}, ensure_ascii=False, separators=(",", ":"))
    with atomic_file(path) as staging:
        staging.write_bytes(gzip.compress(content.encode(), compresslevel=9, mtime=0))


def _can_be_asked() -> list[City]:
    """Return the cities whose name is plain letters and of one city only, the most populous first.

    A small model can read such a name, and sentences end where they seem to. Names of examples and of countries are
    left out: their answers stand in the prompt or in the question.
    """
    known = cities().values()
    uses = Counter(folded(city.name) for city in known)
    given = {*EXAMPLE_CITIES, *(country.name for country in countries().values())}
    return [city for city in known if uses[folded(city.name)] == 1 and city.name not in given and _is_plain(city.name)]


def _is_plain(name: str) -> bool:
    return len(name) > 2 and all(c in " -'" or (c.isalpha() and c <= "ÿ") for c in name)


def _drawn(ranked: Sequence[City], number: int, rng: random.Random) -> list[City]:
    drawn: dict[City, None] = {}
    while len(drawn) < number:
        drawn[ranked[int(len(ranked) * rng.random() ** _SKEW)]] = None
    return list(drawn)
