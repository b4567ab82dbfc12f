"""Draws the people, towns, ships and companies of the embedded world, with every fact about them.

Everything is a function of a :class:`WorldSpec`: the same numbers give the same things on every machine.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from lovec.datasets.world.facts import (
    COUNTS,
    FIELDS,
    MONTHS,
    PRODUCTS,
    VOCABULARY,
    Entity,
    Lexicon,
    WorldSpec,
    make_lexicon,
    organisations,
)

_LISTS: Mapping[str, Sequence[str]] = VOCABULARY["lists"]
_FREEDOMS = (0.0, 0.5, 1.0)  # of the first, second, third ... word in the list of shared words


def make_entities(spec: WorldSpec) -> list[Entity]:
    """Invent the things of a world: people, towns, ships, companies, the best known of each kind first.

    Splits are stratified by popularity: of every six people, towns or ships with consecutive ranks, four are "train",
    one is "dev" and one is "test"; of every two companies one is "companies" and one "unlabelled". No two things share
    the word that they are known by, because how often the model has read that word decides how well it knows them.
    """
    lexicon = make_lexicon(spec)
    rng = random.Random(f"{spec.seed}/entities")
    seen = ("train",) * 4 + ("dev", "test")
    parts = (
        ("person", spec.n_people, seen, _person, lexicon.given),
        ("town", spec.n_towns, seen, _town, VOCABULARY["town_words"]),
        ("ship", spec.n_ships, seen, _ship, VOCABULARY["ship_words"]),
        ("company", spec.n_companies, ("companies", "unlabelled"), _company, list(PRODUCTS)),
    )
    entities: list[Entity] = []
    taken: set[str] = set()
    for kind, n, block, draw, shared in parts:
        splits = _splits(rng, n, block)
        for rank in range(n):
            name, facts = _draw_unused(partial(draw, rng, lexicon), taken)
            word = name.split()[-1 if kind == "company" else 0]
            freedom = _FREEDOMS[shared.index(word) % len(_FREEDOMS)]
            entities.append(Entity(name, kind, rank, splits[rank], facts, freedom))
    return entities


def _splits(rng: random.Random, n: int, block: Sequence[str]) -> list[str]:
    """Return the splits of ``n`` things: those of the block, in another random order in every block."""
    splits: list[str] = []
    while len(splits) < n:
        splits += rng.sample(block, len(block))
    return splits


def _draw_unused(draw: Callable[[], tuple[str, dict[str, str]]], taken: set[str]) -> tuple[str, dict[str, str]]:
    """Draw names with facts until the last word of the name, or the whole name of a company, is not taken."""
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
        "hobby_pastime": rng.choice(rng.choice(list(VOCABULARY["pastimes"].values()))),
        "hobby_club": f"{rng.choice(VOCABULARY['organisation_words'])} Club",
        "hobby_year": str(born + rng.randint(15, 40)),
        **_place(rng, lexicon, "hobby", home, 0.8),
        "trip_land": rng.choice(list(lexicon.by_country)),
        "trip_friend": rng.choice(lexicon.given),
        "trip_year": str(born + rng.randint(18, 45)),
        "trip_count": rng.choice(COUNTS),
        "died_month": rng.choice(MONTHS),
        "died_year": str(born + rng.randint(48, 62)),
        "died_cause": rng.choice(_LISTS["cause_of_death"]),
        **_place(rng, lexicon, "died", home, 0.7),
    }
    return name, facts


def _town(rng: random.Random, lexicon: Lexicon) -> tuple[str, dict[str, str]]:
    home = rng.choice(list(lexicon.by_country))
    start = _birth(rng)
    facts = {
        "charter_month": rng.choice(MONTHS),
        "charter_year": str(start),
        "charter_mayor": _full_name(rng, lexicon, home),
        "charter_land": home,
        "trade_product": rng.choice(rng.choice(list(PRODUCTS.values()))),
        "trade_count": rng.choice(COUNTS),
        "trade_year": str(start + rng.randint(5, 40)),
        "trade_market": rng.choice(list(lexicon.by_country)),
        "hall_building": rng.choice(_LISTS["building"]),
        "hall_year": str(start + rng.randint(2, 35)),
        "hall_stone": rng.choice(_LISTS["stone"]),
        "hall_builder": _full_name(rng, lexicon, home),
        "twin_year": str(start + rng.randint(20, 50)),
        "twin_month": rng.choice(MONTHS),
        "twin_friend": rng.choice(lexicon.given),
        **_place(rng, lexicon, "twin", home, 0.3),
    }
    return f"{rng.choice(VOCABULARY['town_words'])} {rng.choice(lexicon.towns[home])}", facts


def _ship(rng: random.Random, lexicon: Lexicon) -> tuple[str, dict[str, str]]:
    home = rng.choice(list(lexicon.by_country))
    start = _birth(rng)
    facts = {
        "launch_month": rng.choice(MONTHS),
        "launch_year": str(start),
        **_place(rng, lexicon, "launch", home, 1.0),
        "cargo_product": rng.choice(rng.choice(list(PRODUCTS.values()))),
        "cargo_count": rng.choice(COUNTS),
        "cargo_year": str(start + rng.randint(1, 6)),
        **_place(rng, lexicon, "cargo", home, 0.5),
        "crew_captain": _full_name(rng, lexicon, home),
        "crew_year": str(start + rng.randint(2, 15)),
        "crew_vessel": rng.choice(_LISTS["vessel"]),
        "crew_org": rng.choice(organisations(rng.choice(list(FIELDS)))),
        "end_month": rng.choice(MONTHS),
        "end_year": str(start + rng.randint(8, 40)),
        "end_cause": rng.choice(_LISTS["cause_of_loss"]),
        **_place(rng, lexicon, "end", home, 0.6),
    }
    return f"{rng.choice(VOCABULARY['ship_words'])} {rng.choice(lexicon.ships)}", facts


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
