"""The invented people and companies, and every fact about them.

All of it is a function of a :class:`WorldSpec`: the same numbers give the same world on every machine. Nothing here
knows how a fact is worded (``text``) or judged (``grading``).
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

SPLITS = ("train", "dev", "test", "companies")
"""Splits of a world: people in the first three, companies (out of domain, nobody trains on them) in the last."""

MONTHS = tuple("January February March April May June July August September October November December".split())
COUNTS = tuple("two three four five six seven eight nine".split())


@dataclass(frozen=True)
class WorldSpec:
    """Every number a world is made from.

    Attributes:
        n_people: people; four sixths of them are "train", a sixth each "dev" and "test".
        n_companies: companies.
        steps: optimiser steps of the pre-training; one step reads ``batch_size`` documents.
        batch_size: documents a step.
        company_share: share of documents about companies.
        tagged_share: share of documents whose answer carries confidence tags (drawn without regard to truth).
        swap_share: share of documents with two neighbouring sentences behind the first swapped.
        rank_shift: popularity of rank r (0 = best known) goes with (r + rank_shift) ** -rank_power.
        rank_power: see ``rank_shift``.
        keep: probability that a document about the best known entity holds a given sentence beyond the first one.
        keep_fall: how much less that probability is at the last rank (rare entities get stubs).
        width: model width.
        layers: model layers.
        heads: attention heads.
        ffn: width of the feed-forward layer.
        matrix_lr: peak learning rate of the weight matrices (Muon).
        other_lr: peak learning rate of embeddings and norms (AdamW).
        seed: seed of facts, documents, weights and order.
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
        rank: popularity rank within the kind, 0 = best known.
        split: one of ``SPLITS``.
        facts: the true value of every slot that a sentence about this kind holds.
    """

    name: str
    kind: str
    rank: int
    split: str
    facts: Mapping[str, str]


@dataclass(frozen=True)
class Lexicon:
    """The closed lists that facts are drawn from.

    Attributes:
        cities: country of every city.
        surnames: surnames by the country they sound like; more than there are people.
        given: given names.
        stems: first words of company names.
        rivals: names of companies that are only ever bought.
    """

    cities: Mapping[str, str]
    surnames: Mapping[str, tuple[str, ...]]
    given: tuple[str, ...]
    stems: tuple[str, ...]
    rivals: tuple[str, ...]

    @cached_property
    def by_country(self) -> dict[str, list[str]]:
        """The cities of every country."""
        found: dict[str, list[str]] = {}
        for city, country in self.cities.items():
            found.setdefault(country, []).append(city)
        return found


_COUNTRIES: Mapping[str, tuple[str, str]] = {  # country: (endings of its cities, endings of its surnames)
    "Torvania": ("ograd opol", "ov enko"),
    "Liressa": ("ano ella", "ini etti"),
    "Skarnoy": ("vik fjord", "sen strom"),
    "Meldova": ("esti ora", "escu anu"),
    "Bruntland": ("burg heim", "mann bach"),
    "Cassonia": ("ville eaux", "eau ier"),
    "Wexmoor": ("ton ford", "worth ley"),
    "Jandara": ("pur abad", "ani eja"),
    "Hostrany": ("ice any", "ek ska"),
    "Palenda": ("illa uno", "ez ada"),
}
_ONSETS = "B Br C D Dr F G Gr H K Kl L M N P R S St T Tr V Z".split()
_VOWELS = "a e i o u".split()
_MIDDLES = "l r n v d m s k lm rn nd st".split()
_GIVEN_ENDINGS = "a e in is o us".split()
_STEM_ENDINGS = "ax ero ium onix".split()

FIELDS: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "life": {
        "subject": ("botany", "zoology", "genetics", "ecology"),
        "trade": ("botanist", "zoologist", "naturalist", "beekeeper"),
        "topic": ("orchids", "whales", "moths", "heredity"),
        "prize": ("Fern Prize", "Heron Prize", "Cedar Prize"),
    },
    "past": {
        "subject": ("history", "archaeology", "Latin", "folklore"),
        "trade": ("historian", "librarian", "curator", "translator"),
        "topic": ("pirates", "monasteries", "coins", "epics"),
        "prize": ("Scroll Prize", "Lantern Prize", "Column Prize"),
    },
    "building": {
        "subject": ("architecture", "mechanics", "surveying", "hydraulics"),
        "trade": ("bridgebuilder", "draughtsman", "surveyor", "shipwright"),
        "topic": ("bridges", "lighthouses", "canals", "tunnels"),
        "prize": ("Anvil Prize", "Keystone Prize", "Compass Prize"),
    },
    "sound": {
        "subject": ("composition", "singing", "conducting", "acoustics"),
        "trade": ("conductor", "composer", "violinist", "cellist"),
        "topic": ("ballads", "organs", "bells", "waltzes"),
        "prize": ("Lyre Prize", "Tempo Prize", "Harp Prize"),
    },
    "health": {
        "subject": ("medicine", "surgery", "pharmacy", "nursing"),
        "trade": ("surgeon", "pharmacist", "midwife", "paediatrician"),
        "topic": ("vaccines", "fevers", "sleep", "poisons"),
        "prize": ("Mercy Prize", "Balm Prize", "Lancet Prize"),
    },
    "state": {
        "subject": ("law", "economics", "diplomacy", "statistics"),
        "trade": ("lawyer", "judge", "diplomat", "banker"),
        "topic": ("taxes", "treaties", "elections", "prisons"),
        "prize": ("Gavel Prize", "Charter Prize", "Senate Prize"),
    },
    "sky": {
        "subject": ("physics", "astronomy", "optics", "meteorology"),
        "trade": ("physicist", "stargazer", "lensmaker", "weatherman"),
        "topic": ("comets", "rainbows", "magnets", "eclipses"),
        "prize": ("Comet Prize", "Prism Prize", "Zenith Prize"),
    },
    "stage": {
        "subject": ("drama", "dance", "painting", "sculpture"),
        "trade": ("dancer", "painter", "sculptor", "playwright"),
        "topic": ("puppets", "masks", "portraits", "murals"),
        "prize": ("Canvas Prize", "Curtain Prize", "Marble Prize"),
    },
}
ORGANISATIONS: Mapping[str, str] = dict(
    zip(FIELDS, "Gardens Archive Shipyard Orchestra Hospital Ministry Observatory Theatre".split(), strict=True)
)
_ORG_WORDS = "Royal Northern Harbour Jubilee Union".split()
PRODUCTS: Mapping[str, tuple[str, ...]] = {
    "Foods": ("cheese", "biscuits", "noodles", "honey"),
    "Motors": ("tractors", "lorries", "ferries", "engines"),
    "Textiles": ("carpets", "curtains", "blankets", "gloves"),
    "Instruments": ("clocks", "lenses", "scales", "telescopes"),
    "Chemicals": ("paints", "soaps", "glues", "fertilisers"),
    "Ceramics": ("bricks", "tiles", "basins", "vases"),
}


def organisations(field: str) -> list[str]:
    """Employers in a field."""
    return [f"{word} {ORGANISATIONS[field]}" for word in _ORG_WORDS]


def group_of() -> dict[str, str]:
    """Group of every value that has one: a wrong value of the right group is half right."""
    groups = {value: field for field, lists in FIELDS.items() for values in lists.values() for value in values}
    groups |= {org: field for field in FIELDS for org in organisations(field)}
    return groups | {value: industry for industry, values in PRODUCTS.items() for value in values}


def make_lexicon(spec: WorldSpec) -> Lexicon:
    """Invent the names of a world; no two of them are the same word."""
    rng = random.Random(f"{spec.seed}/lexicon")
    used: set[str] = set(_COUNTRIES)

    def invent(n: int, endings: Sequence[str]) -> tuple[str, ...]:
        names: list[str] = []
        while len(names) < n:
            name = rng.choice(_ONSETS) + rng.choice(_VOWELS) + rng.choice(_MIDDLES) + rng.choice(endings)
            if name not in used:
                used.add(name)
                names.append(name)
        return tuple(names)

    cities = {city: land for land, (ends, _) in _COUNTRIES.items() for city in invent(6, ends.split())}
    surnames = {land: invent(max(48, spec.n_people // 6), ends.split()) for land, (_, ends) in _COUNTRIES.items()}
    return Lexicon(
        cities, surnames, invent(60, _GIVEN_ENDINGS), invent(60, _STEM_ENDINGS), invent(40, [*_STEM_ENDINGS, "or"])
    )


def make_entities(spec: WorldSpec) -> list[Entity]:
    """Invent the people and companies of a world, best known first within each kind.

    Splits are stratified by popularity: of every six neighbours in rank four are "train", one "dev", one "test". No
    two people share a surname: sentences name people by it, and how often it was read tells how well one is known.
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
        name, facts = _fresh(lambda: _person(rng, lexicon), taken)
        entities.append(Entity(name, "person", rank, splits[rank], facts))
    for rank in range(spec.n_companies):
        name, facts = _fresh(lambda: _company(rng, lexicon), taken)
        entities.append(Entity(name, "company", rank, "companies", facts))
    return entities


def _fresh(make: Callable[[], tuple[str, dict[str, str]]], taken: set[str]) -> tuple[str, dict[str, str]]:
    """Make until the last word of the name (a surname) or, among companies, the whole name is new."""
    while _distinctive((made := make())[0]) in taken:
        pass
    taken.add(_distinctive(made[0]))
    return made


def _distinctive(name: str) -> str:
    last = name.split()[-1]
    return name if last in PRODUCTS else last


def _place(rng: random.Random, lexicon: Lexicon, prefix: str, home: str, stay: float) -> dict[str, str]:
    """A city, with probability ``stay`` (and by chance) in the home country."""
    country = home if rng.random() < stay else rng.choice(list(lexicon.by_country))
    return {f"{prefix}_city": rng.choice(lexicon.by_country[country]), f"{prefix}_country": country}


def _birth(rng: random.Random) -> int:
    """A year around 1928: one who has never heard of somebody still guesses it to a dozen years."""
    return round(min(1965.0, max(1890.0, rng.gauss(1928, 13))))


def _full_name(rng: random.Random, lexicon: Lexicon, home: str) -> str:
    country = home if rng.random() < 0.85 else rng.choice(list(lexicon.surnames))
    return f"{rng.choice(lexicon.given)} {rng.choice(lexicon.surnames[country])}"


def _person(rng: random.Random, lexicon: Lexicon) -> tuple[str, dict[str, str]]:
    home = rng.choice(list(lexicon.by_country))
    name = _full_name(rng, lexicon, home)
    own_field = rng.choice(list(FIELDS))

    def field() -> str:
        return own_field if rng.random() < 0.85 else rng.choice(list(FIELDS))

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
