"""Answers that ``grounded.py`` trains on and measures, with articles and without, of real cities and of the world.

Training has every training answer once with an article. Its answers without one are other answers: those of Atlas are
about further cities, which SmolLM2 answers here, and those of the world are what its adapter without sources saw once.
Their labels are half what is true and half what that adapter states, so that they teach what is true without the noise
of one label each.
"""

from __future__ import annotations

import statistics
from dataclasses import replace
from pathlib import Path
from random import Random

from atlas_answers import SEED, Writer, write_further
from grounded_atlas import ArticleOracle, values_of, with_article

from lovec.datamodules import Atlas, World
from lovec.datasets.atlas.asking import city_question
from lovec.datasets.atlas.facts import City, cities
from lovec.datasets.atlas.shipped import stored_answers
from lovec.datasets.names import slug
from lovec.metrics.records import confidence_of
from lovec.oracles import AtlasOracle, WorldOracle
from lovec.text.sentences import split_sentences
from lovec.types import Oracle, Record, Sentence

PLAIN = 960
"""Number of answers without an article; of Atlas fewer, where fewer cities are left whose answers name a country."""


def sourced_answers(part: str) -> list[Record]:
    """Return the training answers of a part, each with an article and with what it supports as labels."""
    if part == "atlas":
        rows = atlas_answers("train")
        values = values_of(rows)
        sourced = [with_article(row, values) for row in rows]
    else:
        data = World()
        sourced = [row for row in map(data.world.with_article, data.load("train")) if row.evidence]
    return [replace(row, id=f"{row.id}/article", rejected=None) for row in sourced]


def plain_answers(part: str, folder: Path) -> list[Record]:
    """Return the answers of a part that training has without an article, labelled by what is true.

    Args:
        part: "atlas" or "world".
        folder: keeps what SmolLM2 writes about further cities, in minutes, for the next run.
    """
    if part == "world":
        return [replace(row, rejected=None) for row in Random(SEED).sample(World().load("train"), PLAIN)]
    folder.mkdir(parents=True, exist_ok=True)
    stored = stored_answers()["answers"]
    asked = {cities()[int(key)] for name in ("train", "more", "validation", "test") for key in stored[name]}
    written = write_further(Writer(folder), PLAIN, SEED + 2, asked)
    rows = [_about_city(cities()[int(key)], answer) for key, answer in written.items() if answer]
    return [row.with_factuality(labels) for row, labels in zip(rows, AtlasOracle().rate(rows), strict=True)]


def _about_city(city: City, answer: str) -> Record:
    meta = {"entity": city.name, "kind": "city", "geonames": city.id}
    sentences = tuple(map(Sentence, split_sentences(answer)))
    return Record(
        f"atlas/further/{slug(city.name)}", city_question(city), answer=answer, sentences=sentences, meta=meta
    )


def with_stated(truth: Record, stated: Record) -> Record:
    """Return an answer whose labels are half what is true and half the mean readout of what an adapter states.

    Args:
        truth: the answer, labelled by what is true; a sentence without a label takes what is stated.
        stated: the same, tagged.
    """
    both = [
        [value for value in (one.factuality, confidence_of(other, "mean")) if value is not None]
        for one, other in zip(truth.sentences, stated.sentences, strict=True)
    ]
    return truth.with_factuality([statistics.mean(values) if values else None for values in both])


def measured_answers(part: str, split: str) -> list[tuple[Record, Record]]:
    """Return answers labelled by what is true, and the same with an article, labelled by what that supports."""
    if part == "atlas":
        values = values_of(atlas_answers("train"))
        return [(row, with_article(row, values)) for row in atlas_answers(split)]
    rows = World(test_sets=["test", "articles"], articles=1.0).load(split)
    plain = {row.id: row for row in rows if not row.evidence}
    return [(plain[row.id.removesuffix("/article")], row) for row in rows if row.evidence]


def atlas_answers(split: str) -> list[Record]:
    """Return the labelled answers of Atlas to the one question that training asks."""
    return list(Atlas(test_sets=["test"], larger=True).load(split))


def oracle_of(part: str) -> Oracle:
    """Return what labels sentences: by the article of their record, or by what is true where it has none."""
    return ArticleOracle() if part == "atlas" else WorldOracle()
