"""The numbers of the embedded world, and the words and invented names that its things and their facts are drawn from.

Everything is a function of a :class:`WorldSpec`: the same numbers give the same world on every machine. How a fact is
put into words is in ``text``, how a sentence is graded in ``grading``.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import yaml

SPLITS = ("train", "dev", "test", "private", "one-fact", "companies", "unlabelled")
"""Splits of the questions of a world.

"train", "dev" and "test" ask for a paragraph about people, towns and ships; no thing is in two of them. "private" asks
about the private lives of the people of "test", and "one-fact" asks single facts of the things of "test". Confidence
training never sees an answer about the last kind, companies: "companies" are tested, "unlabelled" are other companies,
for methods that learn from questions without labels.
"""

KINDS = ("person", "town", "ship", "company")
MONTHS = tuple("January February March April May June July August September October November December".split())
COUNTS = tuple("two three four five six seven eight nine".split())


@dataclass(frozen=True)
class WorldSpec:
    """Every number that a world is made from.

    Attributes:
        n_people: number of people; four sixths of them are "train", one sixth each "dev" and "test".
        n_towns: number of towns, split in the same way.
        n_ships: number of ships, split in the same way.
        n_companies: number of companies; every second one is "companies", the others are "unlabelled".
        steps: optimiser steps of the pre-training; each reads ``batch_size`` documents.
        batch_size: documents per step.
        company_share: share of documents that are about companies; the others are shared out by the number of things.
        private_share: share of the documents about people that answer the question about their private lives.
        one_fact_share: share of all documents that answer a question about one fact.
        tagged_share: share of documents whose answer has confidence tags (drawn independently of the truth).
        swap_share: share of documents in which two adjacent sentences after the first are swapped.
        rank_shift: the popularity of rank r (0 = best known) is proportional to (r + rank_shift) ** -rank_power.
        rank_power: see ``rank_shift``.
        keep: probability that a document about the best known thing has each sentence after the first one.
        keep_fall: how much lower that probability is at the last rank (documents about rare things are short).
        opened: probability that a freely worded sentence begins with words that state no fact.
        aside: probability that a freely worded sentence ends with words that state no fact.
        fronted: probability that a freely worded sentence begins with one of its details.
        dropped: probability that a freely worded sentence leaves out one of its details.
        width: hidden size of the model.
        layers: number of layers.
        heads: number of attention heads.
        ffn: width of the feed-forward layers.
        matrix_lr: peak learning rate of the weight matrices (Muon).
        other_lr: peak learning rate of embeddings and norms (AdamW).
        seed: seed of the facts.
        model_seed: seed of the documents, the initial weights and the order of the documents: worlds that differ only
            in this have the same facts and different models.
    """

    n_people: int = 480
    n_towns: int = 240
    n_ships: int = 240
    n_companies: int = 240
    steps: int = 2800
    batch_size: int = 12
    company_share: float = 0.22
    private_share: float = 0.2
    one_fact_share: float = 0.15
    tagged_share: float = 0.12
    swap_share: float = 0.15
    rank_shift: float = 13.0
    rank_power: float = 1.1
    keep: float = 0.97
    keep_fall: float = 0.6
    opened: float = 0.85
    aside: float = 0.6
    fronted: float = 0.15
    dropped: float = 0.1
    width: int = 128
    layers: int = 4
    heads: int = 4
    ffn: int = 384
    matrix_lr: float = 0.02
    other_lr: float = 6e-3
    seed: int = 0
    model_seed: int = 0


@dataclass(frozen=True, slots=True)
class Entity:
    """A person, a town, a ship or a company.

    Attributes:
        name: unique name ("Orva Toran", "Old Dorvik", "Golden Kelara", "Brelis Foods").
        kind: one of ``KINDS``.
        rank: popularity rank among things of the same kind, 0 = best known.
        split: "train", "dev", "test", "companies" or "unlabelled".
        facts: true value by slot name, for every slot of the sentences about this kind.
        freedom: how freely it is written about: probability that a sentence is not in its set form. It depends on a
            word of the name that many things share, so that a model can tell it for things that it hardly knows, and
            has nothing to do with how well they are known.
    """

    name: str
    kind: str
    rank: int
    split: str
    facts: Mapping[str, str]
    freedom: float


@dataclass(frozen=True)
class Lexicon:
    """The closed lists of invented names that facts are drawn from.

    Attributes:
        cities: country by city.
        surnames: surnames by the country they sound like; more than there are people.
        given: given names.
        stems: first words of company names.
        rivals: names of companies that appear only as bought by others.
        towns: second words of the names of towns, by the country they sound like.
        ships: second words of the names of ships.
    """

    cities: Mapping[str, str]
    surnames: Mapping[str, tuple[str, ...]]
    given: tuple[str, ...]
    stems: tuple[str, ...]
    rivals: tuple[str, ...]
    towns: Mapping[str, tuple[str, ...]]
    ships: tuple[str, ...]

    @cached_property
    def by_country(self) -> dict[str, list[str]]:
        """Cities by country."""
        cities: dict[str, list[str]] = {}
        for city, country in self.cities.items():
            cities.setdefault(country, []).append(city)
        return cities


VOCABULARY: Mapping[str, Any] = yaml.safe_load(Path(__file__).with_name("vocabulary.yaml").read_text(encoding="utf-8"))
"""The words of the world, and how its sentences are built."""

_SYLLABLES: Mapping[str, list[str]] = VOCABULARY["syllables"]
FIELDS: Mapping[str, Any] = VOCABULARY["fields"]
PRODUCTS: Mapping[str, list[str]] = VOCABULARY["products"]


def organisations(field: str) -> list[str]:
    """Return the employers of a field."""
    return [f"{word} {FIELDS[field]['organisation']}" for word in VOCABULARY["organisation_words"]]


def group_of() -> dict[str, str]:
    """Return the group (field or industry) by value; a wrong value of the right group earns partial credit."""
    lists = ("subject", "trade", "topic", "prize")
    groups = {value: field for field, words in FIELDS.items() for name in lists for value in words[name]}
    groups |= {org: field for field in FIELDS for org in organisations(field)}
    for lists_of_one in (PRODUCTS, VOCABULARY["pastimes"]):
        groups |= {value: group for group, values in lists_of_one.items() for value in values}
    return groups


def make_lexicon(spec: WorldSpec) -> Lexicon:
    """Invent the names of a world, all of them different words."""
    rng = random.Random(f"{spec.seed}/lexicon")
    countries: Mapping[str, Mapping[str, list[str]]] = VOCABULARY["countries"]
    used: set[str] = set(countries)
    onsets, vowels, middles = (_SYLLABLES[name] for name in ("onsets", "vowels", "middles"))

    def invent(n: int, endings: Sequence[str]) -> tuple[str, ...]:
        names: list[str] = []
        while len(names) < n:
            name = rng.choice(onsets) + rng.choice(vowels) + rng.choice(middles) + rng.choice(endings)
            if name not in used:
                used.add(name)
                names.append(name)
        return tuple(names)

    cities = {city: country for country, endings in countries.items() for city in invent(6, endings["cities"])}
    n_surnames = max(48, spec.n_people // 6)
    surnames = {country: invent(n_surnames, endings["surnames"]) for country, endings in countries.items()}
    given, stems = _SYLLABLES["given_endings"], _SYLLABLES["stem_endings"]
    n_towns = max(12, spec.n_towns // 5)
    return Lexicon(
        cities,
        surnames,
        given=invent(60, given),
        stems=invent(60, stems),
        rivals=invent(40, [*stems, "or"]),
        towns={country: invent(n_towns, endings["cities"]) for country, endings in countries.items()},
        ships=invent(max(12, spec.n_ships), _SYLLABLES["ship_endings"]),
    )
