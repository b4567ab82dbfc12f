"""Articles about things of the embedded world, with facts left out and altered, and what such an article supports.

An article is made for one answer: some of its sentences say what the answer says, whether that is true or not. So for
every sentence the truth by the article and the truth by the world are known exactly, and they differ.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import replace
from string import Formatter

from lovec.datasets.world.facts import Entity, WorldSpec
from lovec.datasets.world.grading import fact_credits, readings, split_sentences
from lovec.datasets.world.text import FORMS, SentenceForm, draw_sentence
from lovec.types import to_rating

LEFT_OUT = 0.25
"""Probability that a sentence of the set of an article is left out."""

AS_ANSWERED = 0.25
"""Probability that a sentence has the facts of the answer instead of the true ones."""

ALTERED = 0.3
"""Probability of a fact in any other sentence to be that of another thing."""

DROPPED = 0.15
"""Probability of a detail in any other sentence to be left out."""

UNTOLD = 0.3
"""Probability that an answer from an article has a sentence about what the article leaves out."""

MISTAKEN = 0.2
"""Probability of a fact in an answer from an article to be that of another thing."""


def make_article(
    entity: Entity, answer: Iterable[str], others: Sequence[Entity], spec: WorldSpec, rng: random.Random
) -> str:
    """Return an article about a thing.

    Args:
        entity: the thing.
        answer: the sentences of an answer about it.
        others: things of the same kind, whose facts take the place of altered ones.
        spec: the numbers of the world.
        rng: source of randomness.
    """
    claims = stated_facts(entity, answer)
    whole = replace(spec, dropped=0.0)
    sentences = []
    for form in FORMS[entity.kind]["life"]:
        fate = rng.random()
        if fate < LEFT_OUT:
            continue
        details, changed = form.details, {slot: claims[slot] for slot in _slots(form) if slot in claims}
        if fate >= LEFT_OUT + AS_ANSWERED:
            details = tuple(detail for detail in details if rng.random() >= DROPPED)
            changed = _altered(entity, _slots(form), others, ALTERED, rng)
        told = replace(entity, facts={**entity.facts, **changed})
        sentences.append(draw_sentence(told, SentenceForm(form.head, details), whole, rng))
    return " ".join(sentences)


def answer_from(
    entity: Entity, article: str, others: Sequence[Entity], spec: WorldSpec, rng: random.Random
) -> list[str]:
    """Return the sentences of an answer that says in other words what an article says, with some mistakes.

    Args:
        entity: the thing.
        article: an article about it.
        others: things of the same kind, whose facts are the mistakes.
        spec: the numbers of the world.
        rng: source of randomness.
    """
    told, whole = stated_facts(entity, split_sentences(article)), replace(spec, dropped=0.0)
    sentences = []
    for at, form in enumerate(FORMS[entity.kind]["life"]):
        details = tuple(detail for detail in form.details if told.keys() >= {*_slots(SentenceForm(detail))})
        if not told.keys() >= {*_slots(SentenceForm(form.head))} or not {*_slots(form)} & told.keys():
            if at and rng.random() >= UNTOLD:
                continue
            details = form.details
        said = replace(entity, facts={**entity.facts, **told, **_altered(entity, _slots(form), others, MISTAKEN, rng)})
        sentences.append(draw_sentence(said, SentenceForm(form.head, details), whole, rng))
    return sentences


def stated_facts(entity: Entity, sentences: Iterable[str]) -> dict[str, str]:
    """Return the facts that sentences state about a thing, by slot; a sentence about something else states none."""
    surname = entity.name.split()[-1]
    facts: dict[str, str] = {}
    for sentence in sentences:
        for slots in readings(entity.kind, sentence):
            if slots.get("name", entity.name) == entity.name and slots.get("surname", surname) == surname:
                facts |= {slot: value for slot, value in slots.items() if "_" in slot}
    return facts


def supported(entity: Entity, article: str, sentence: str) -> float:
    """Return how well an article supports a sentence about a thing, in {0, 0.1, ..., 1}.

    It is the credit of the sentence's facts as in ``grading``, with the facts of the article in place of the true ones,
    and 0 for a fact that the article does not mention.
    """
    told = stated_facts(entity, split_sentences(article))
    by_article = replace(entity, facts={**entity.facts, **told})
    found = 0.0
    for slots in readings(entity.kind, sentence):
        mentioned = {slot: value for slot, value in slots.items() if "_" not in slot or slot in told}
        if facts := len(fact_credits(entity, slots)):
            found = max(found, sum(fact_credits(by_article, mentioned)) / facts)
    return to_rating(round(found, 9)) / 10


def _altered(
    entity: Entity, slots: Sequence[str], others: Sequence[Entity], share: float, rng: random.Random
) -> dict[str, str]:
    """Return other values for a share of the facts of a sentence; city and country of a place are one fact."""
    changed: dict[str, str] = {}
    for slot in slots:
        if slot.endswith("_country") or rng.random() >= share:
            continue
        another = rng.choice([other for other in others if other.facts[slot] != entity.facts[slot]])
        group = (slot, slot.replace("_city", "_country"))
        changed |= {name: another.facts[name] for name in group}
    return changed


def _slots(form: SentenceForm) -> list[str]:
    """Return the facts of a sentence form."""
    found = (slot for part in (form.head, *form.details) for _, slot, _, _ in Formatter().parse(part) if slot)
    return [slot for slot in found if "_" in slot]
