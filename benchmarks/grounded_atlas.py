"""Sources about cities for ``grounded.py``: short articles in other words than the answers, some of them wrong.

An article is made for one answer of Atlas. Of every statement of the answer it says the same, another value, or
nothing, so what it supports is known exactly, and does not depend on what is true.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache

from lovec.datasets.atlas.asking import Kind
from lovec.datasets.atlas.facts import folded
from lovec.datasets.atlas.reading import read
from lovec.oracles import AtlasOracle
from lovec.types import Record

SAME, LEFT_OUT = 0.45, 0.25
"""Probabilities that an article says what a statement says, and nothing about it; else it says another value."""

FORMS: dict[Kind, Sequence[str]] = {
    "country": ("The town belongs to {}.", "On the map you will find it in {}."),
    "continent": ("Travellers come to {} to see it.", "{} is the continent of its people."),
    "inhabitants": ("Around {} people live there.", "At the last count {} people had their homes there."),
    "capital": ("Its country is governed from {}.", "Laws for the whole country are made in {}."),
    "currency": ("Shops take the {}.", "Prices are given in the {}."),
    "language": ("Its officials write in {}.", "Letters to the town hall are written in {}."),
}
FILLERS = (
    "The railway station was rebuilt after a fire.",
    "Every spring there is a market on the main square.",
    "Its football club once played in the first division.",
    "The old walls can still be seen near the river.",
    "Visitors praise the bread of its bakeries.",
    "A bridge from the last century crosses the harbour.",
)


def with_article(record: Record, values: Mapping[Kind, Sequence[str]]) -> Record:
    """Return an answer of Atlas with an article as its evidence, and with what the article supports as its labels.

    Args:
        record: the answer. Its id decides the article.
        values: what other answers say, by the kind of fact; see `values_of`.
    """
    rng = random.Random(f"{record.id}/article")
    said: dict[Kind, str] = {}
    for claim in filter(None, (read(sentence.text) for sentence in record.sentences)):
        fate = rng.random()
        if fate < SAME:
            said[claim.kind] = claim.value
        elif fate >= SAME + LEFT_OUT:
            said[claim.kind] = rng.choice([v for v in values[claim.kind] if folded(v) != folded(claim.value)])
    told = [rng.choice(FORMS[kind]).format(value) for kind, value in said.items()] + rng.sample(FILLERS, 1)
    rng.shuffle(told)
    return by_source(
        replace(record, evidence=(f"{record.meta['entity']} is worth a visit. {' '.join(told)}",), rejected=None)
    )


def by_source(record: Record) -> Record:
    """Return an answer with what its article supports as its labels: 1 where it says the same value, and else 0."""
    (article,) = record.evidence
    said = {kind: match[1] for kind, forms in FORMS.items() for form in forms if (match := _form(form).search(article))}
    claims = [read(sentence.text) for sentence in record.sentences]
    supported = [c is not None and c.kind in said and folded(said[c.kind]) == folded(c.value) for c in claims]
    return record.with_factuality(list(map(float, supported)))


@cache
def _form(text: str) -> re.Pattern[str]:
    """Return what finds a sentence of an article, with the value that it gives as its group."""
    before, after = map(re.escape, text.split("{}"))
    value = ".+?" if before else "[^.]+"  # a value that begins the sentence must not begin in the one before
    return re.compile(rf"(?<=[.] ){before}({value})(?<!\bSt){after}(?= [A-Z]|$)")  # "St." ends no sentence


class ArticleOracle(AtlasOracle):
    """Rates sentences about cities: by the article of their record, or by GeoNames where it has none."""

    reads_evidence = True

    def rate(self, records: Sequence[Record]) -> list[list[float | None]]:
        """Return the factuality of every sentence."""
        known = super().rate([record for record in records if not record.evidence])
        rows = iter(known)
        return [[s.factuality for s in by_source(r).sentences] if r.evidence else next(rows) for r in records]


def values_of(records: Iterable[Record]) -> dict[Kind, list[str]]:
    """Return the values that answers state, by the kind of fact, in their order and without repetition."""
    found: dict[Kind, dict[str, None]] = {}
    for claim in filter(None, (read(sentence.text) for record in records for sentence in record.sentences)):
        found.setdefault(claim.kind, {})[claim.value] = None
    return {kind: list(values) for kind, values in found.items()}
