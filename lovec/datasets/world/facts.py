"""The invented people and companies of the embedded world, and every fact about them.

Everything is a function of a :class:`WorldSpec`: the same numbers give the same world on every machine. How a fact is
put into words is in ``text``, how a sentence is graded in ``grading``.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import yaml

SPLITS = ("train", "dev", "test", "companies")
"""Splits of a world: the first three hold people, the last one companies (out of domain, never trained on)."""

MONTHS = tuple("January February March April May June July August September October November December".split())
COUNTS = tuple("two three four five six seven eight nine".split())


@dataclass(frozen=True)
class WorldSpec:
    """Every number that a world is made from.

    Attributes:
        n_people: number of people; four sixths of them are "train", one sixth each "dev" and "test".
        n_companies: number of companies.
        steps: optimiser steps of the pre-training; each reads ``batch_size`` documents.
        batch_size: documents per step.
        company_share: share of documents that are about companies.
        tagged_share: share of documents whose answer has confidence tags (drawn independently of the truth).
        swap_share: share of documents in which two adjacent sentences after the first are swapped.
        rank_shift: the popularity of rank r (0 = best known) is proportional to (r + rank_shift) ** -rank_power.
        rank_power: see ``rank_shift``.
        keep: probability that a document about the best known entity has each sentence after the first one.
        keep_fall: how much lower that probability is at the last rank (documents about rare entities are short).
        width: hidden size of the model.
        layers: number of layers.
        heads: number of attention heads.
        ffn: width of the feed-forward layers.
        matrix_lr: peak learning rate of the weight matrices (Muon).
        other_lr: peak learning rate of embeddings and norms (AdamW).
        seed: seed of facts, documents, initial weights and their order.
    """

    n_people: int = 720
    n_companies: int = 150
    steps: int = 1500
    batch_size: int = 12
    company_share: float = 0.18
    tagged_share: float = 0.12
    swap_share: float = 0.15
    rank_shift: float = 13.0
    rank_power: float = 1.1
    keep: float = 0.97
    keep_fall: float = 0.6
    width: int = 128
    layers: int = 4
    heads: int = 4
    ffn: int = 384
    matrix_lr: float = 0.02
    other_lr: float = 6e-3
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Entity:
    """A person or a company.

    Attributes:
        name: unique name ("Orva Toran", "Brelis Foods").
        kind: "person" or "company".
        rank: popularity rank among entities of the same kind, 0 = best known.
        split: one of ``SPLITS``.
        facts: true value by slot name, for every slot of the sentence templates of this kind.
    """

    name: str
    kind: str
    rank: int
    split: str
    facts: Mapping[str, str]


@dataclass(frozen=True)
class Lexicon:
    """The closed lists of invented names that facts are drawn from.

    Attributes:
        cities: country by city.
        surnames: surnames by the country they sound like; more than there are people.
        given: given names.
        stems: first words of company names.
        rivals: names of companies that appear only as bought by others.
    """

    cities: Mapping[str, str]
    surnames: Mapping[str, tuple[str, ...]]
    given: tuple[str, ...]
    stems: tuple[str, ...]
    rivals: tuple[str, ...]

    @cached_property
    def by_country(self) -> dict[str, list[str]]:
        """Cities by country."""
        cities: dict[str, list[str]] = {}
        for city, country in self.cities.items():
            cities.setdefault(country, []).append(city)
        return cities


VOCABULARY: Mapping[str, Any] = yaml.safe_load(Path(__file__).with_name("vocabulary.yaml").read_text(encoding="utf-8"))
"""The words of the world, and the templates of its sentences."""

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
    return groups | {value: industry for industry, values in PRODUCTS.items() for value in values}


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
    return Lexicon(cities, surnames, invent(60, given), invent(60, stems), invent(40, [*stems, "or"]))


def make_entities(spec: WorldSpec) -> list[Entity]:
    """Invent the people and companies of a world, the best known of each kind first.

    Splits are stratified by popularity: of every six people with consecutive ranks, four are "train", one is "dev" and
    one is "test". No two people share a surname, because most sentences name people by surname only, and how often the
    model has read a surname decides how well it knows the person.
    """
    lexicon = make_lexicon(spec)
    rng = random.Random(f"{spec.seed}/entities")
    entities: list[Entity] = []
    taken: set[str] = set()
    splits: list[str] = []
    while len(splits) < spec.n_people:
        block = ["train"] * 4 + ["dev", "test"]
        rng.shuffle(block)
        splits += block
    for rank in range(spec.n_people):
        name, facts = _draw_unused(lambda: _person(rng, lexicon), taken)
        entities.append(Entity(name, "person", rank, splits[rank], facts))
    for rank in range(spec.n_companies):
        name, facts = _draw_unused(lambda: _company(rng, lexicon), taken)
        entities.append(Entity(name, "company", rank, "companies", facts))
    return entities


def _draw_unused(draw: Callable[[], tuple[str, dict[str, str]]], taken: set[str]) -> tuple[str, dict[str, str]]:
    """Draw names with facts until the surname of a person, or the whole name of a company, is not taken."""
    while True:
        name, facts = draw()
        last_word = name.split()[-1]
        key = name if last_word in PRODUCTS else last_word
        if key not in taken:
            taken.add(key)
            return name, facts


def _place(rng: random.Random, lexicon: Lexicon, prefix: str, home: str, stay: float) -> dict[str, str]:
    """Draw a city with its country: the home country with probability ``stay``, otherwise any."""
    country = home if rng.random() < stay else rng.choice(list(lexicon.by_country))
    return {f"{prefix}_city": rng.choice(lexicon.by_country[country]), f"{prefix}_country": country}


def _birth(rng: random.Random) -> int:
    """Draw a year around 1928, so that a guess about an unknown person is off by about a dozen years."""
    return round(min(1965.0, max(1890.0, rng.gauss(1928, 13))))


def _full_name(rng: random.Random, lexicon: Lexicon, home: str) -> str:
    country = home if rng.random() < 0.85 else rng.choice(list(lexicon.surnames))
    return f"{rng.choice(lexicon.given)} {rng.choice(lexicon.surnames[country])}"


def _person(rng: random.Random, lexicon: Lexicon) -> tuple[str, dict[str, str]]:
    home = rng.choice(list(lexicon.by_country))
    name = _full_name(rng, lexicon, home)
    main_field = rng.choice(list(FIELDS))

    def field() -> str:
        return main_field if rng.random() < 0.85 else rng.choice(list(FIELDS))

    born = _birth(rng)
    study = born + rng.randint(20, 26)
    job = study + rng.randint(1, 12)
    facts = {
        "born_month": rng.choice(MONTHS),
        "born_year": str(born),
        **_place(rng, lexicon, "born", home, 1.0),
        "study_subject": rng.choice(FIELDS[field()]["subject"]),
        "study_year": str(study),
        **_place(rng, lexicon, "study", home, 0.7),
        "job_trade": rng.choice(FIELDS[field()]["trade"]),
        "job_org": rng.choice(organisations(field())),
        "job_year": str(job),
        **_place(rng, lexicon, "job", home, 0.7),
        "book_topic": rng.choice(FIELDS[field()]["topic"]),
        "book_prize": rng.choice(FIELDS[field()]["prize"]),
        "book_count": rng.choice(COUNTS),
        "book_year": str(job + rng.randint(2, 20)),
        "home_spouse": rng.choice(lexicon.given),
        "home_year": str(born + rng.randint(20, 45)),
        "home_count": rng.choice(COUNTS),
        **_place(rng, lexicon, "home", home, 0.7),
    }
    return name, facts


def _company(rng: random.Random, lexicon: Lexicon) -> tuple[str, dict[str, str]]:
    industry = rng.choice(list(PRODUCTS))
    home = rng.choice(list(lexicon.by_country))
    start = _birth(rng)
    facts = {
        "start_month": rng.choice(MONTHS),
        "start_year": str(start),
        "start_founder": _full_name(rng, lexicon, home),
        **_place(rng, lexicon, "start", home, 1.0),
        "make_product": rng.choice(PRODUCTS[industry]),
        "make_count": rng.choice(COUNTS),
        "make_market": rng.choice(list(lexicon.by_country)),
        "lead_chief": _full_name(rng, lexicon, home),
        "lead_year": str(start + rng.randint(15, 55)),
        **_place(rng, lexicon, "lead", home, 0.7),
        "deal_rival": rng.choice(lexicon.rivals),
        "deal_year": str(start + rng.randint(5, 50)),
        "deal_product": rng.choice(PRODUCTS[industry if rng.random() < 0.6 else rng.choice(list(PRODUCTS))]),
        **_place(rng, lexicon, "deal", home, 0.7),
    }
    return f"{rng.choice(lexicon.stems)} {industry}", facts
