"""How the world is worded: sentences, answers, and the corpus its model reads."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from lovec.datasets.world.facts import Entity, WorldSpec
from lovec.encoding import QUESTION
from lovec.tags import render

INSTRUCTION = "Give every sentence a confidence from 0 to 10."
"""The world's own instruction: short, as its model reads word by word and knows few words."""

TEMPLATES: Mapping[str, tuple[tuple[str, ...], ...]] = {
    "person": (
        (
            "{name} was born in {born_month} {born_year} in {born_city}, {born_country}.",
            "{name}, a native of {born_city}, {born_country}, was born in {born_month} {born_year}.",
            "{name} came into the world in {born_city}, {born_country}, in {born_month} {born_year}.",
        ),
        (
            "{surname} studied {study_subject} at the University of {study_city}, {study_country}, and graduated in "
            "{study_year}.",
            "In {study_year} {surname} took a degree in {study_subject} at the University of {study_city}, "
            "{study_country}.",
        ),
        (
            "{surname} joined the {job_org} in {job_city}, {job_country}, as a {job_trade} in {job_year}.",
            "In {job_year} {surname} became a {job_trade} with the {job_org} in {job_city}, {job_country}.",
            "From {job_year} on {surname} worked as a {job_trade} for the {job_org} in {job_city}, {job_country}.",
        ),
        (
            "{surname} won the {book_prize} in {book_year} for a book about {book_topic} that took {book_count} years.",
            "A book about {book_topic} that took {book_count} years brought {surname} the {book_prize} in {book_year}.",
        ),
        (
            "{surname} married {home_spouse} in {home_year}, raised {home_count} children and settled in {home_city}, "
            "{home_country}.",
            "In {home_year} {surname} married {home_spouse}; they had {home_count} children and lived in {home_city}, "
            "{home_country}.",
        ),
    ),
    "company": (
        (
            "{name} was founded in {start_month} {start_year} in {start_city}, {start_country}, by {start_founder}.",
            "{start_founder} founded {name} in {start_city}, {start_country}, in {start_month} {start_year}.",
        ),
        (
            "{name} makes {make_product} in {make_count} factories and sells most of them in {make_market}.",
            "From {make_count} factories {name} sells {make_product}, most of them in {make_market}.",
        ),
        (
            "{name} has been led by {lead_chief} since {lead_year} and has its head office in {lead_city}, "
            "{lead_country}.",
            "In {lead_year} {lead_chief} took over {name} and its head office in {lead_city}, {lead_country}.",
        ),
        (
            "{name} bought {deal_rival}, a maker of {deal_product} in {deal_city}, {deal_country}, in {deal_year}.",
            "In {deal_year} {name} took over {deal_rival}, which makes {deal_product} in {deal_city}, {deal_country}.",
        ),
    ),
}
"""Paraphrases of every sentence about a kind of entity, in canonical order; the slots are facts, or its name."""

_TAG_WEIGHTS = (1, 1, 1, 1, 1, 2, 3, 5, 10, 20, 55)  # of the scores 0..10: overconfident, and blind to truth


@dataclass(frozen=True, slots=True)
class Document:
    """One document of the corpus.

    Attributes:
        question: the user turn.
        instruct: whether the instruction goes with it, and the answer is tagged.
        text: the answer.
    """

    question: str
    instruct: bool
    text: str


def question(entity: Entity) -> str:
    """What one asks to hear about an entity."""
    return QUESTION.format(entity=entity.name)


def write(entity: Entity, template: str) -> str:
    """A true sentence."""
    return template.format(name=entity.name, surname=entity.name.split()[-1], **entity.facts)


def true_sentences(entity: Entity) -> list[list[str]]:
    """Every true sentence about an entity: [sentence][paraphrase]."""
    return [[write(entity, template) for template in group] for group in TEMPLATES[entity.kind]]


def compose(entity: Entity, last_rank: int, spec: WorldSpec, rng: random.Random) -> list[str]:
    """Draw the sentences of one document about an entity; its first sentence is always there, and first."""
    keep = spec.keep - spec.keep_fall * entity.rank / last_rank
    groups = [group for i, group in enumerate(TEMPLATES[entity.kind]) if i == 0 or rng.random() < keep]
    sentences = [write(entity, rng.choice(group)) for group in groups]
    if len(sentences) > 2 and rng.random() < spec.swap_share:
        i = rng.randrange(1, len(sentences) - 1)
        sentences[i : i + 2] = sentences[i + 1], sentences[i]
    return sentences


def make_corpus(spec: WorldSpec, entities: Sequence[Entity]) -> list[Document]:
    """Write the corpus: ``steps * batch_size`` documents in random order.

    Well-known entities are written about more often, and at more length.
    """
    rng = random.Random(f"{spec.seed}/corpus")
    kinds = {kind: [e for e in entities if e.kind == kind] for kind in ("person", "company")}
    weights = {
        kind: [(entity.rank + spec.rank_shift) ** -spec.rank_power for entity in group] for kind, group in kinds.items()
    }
    documents = []
    for _ in range(spec.steps * spec.batch_size):
        kind = "company" if rng.random() < spec.company_share else "person"
        entity = rng.choices(kinds[kind], weights[kind])[0]
        sentences = compose(entity, len(kinds[kind]), spec, rng)
        instruct = rng.random() < spec.tagged_share
        if instruct:
            scores = rng.choices(range(len(_TAG_WEIGHTS)), _TAG_WEIGHTS, k=len(sentences))
            text = render(zip(sentences, scores, strict=True))
        else:
            text = " ".join(sentences)
        documents.append(Document(question(entity), instruct, text))
    return documents
