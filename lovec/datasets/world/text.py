"""How facts of the embedded world become text: sentences, answers, and the corpus that its model is trained on."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from lovec.datasets.world.facts import VOCABULARY, Entity, WorldSpec
from lovec.encoding import QUESTION
from lovec.tags import render

INSTRUCTION = "Give every sentence a confidence from 0 to 10."
"""The world's own instruction: short, because its model has a vocabulary of whole words and knows few of them."""

TEMPLATES: Mapping[str, list[list[str]]] = VOCABULARY["templates"]
"""Paraphrases of every sentence by kind of entity, in canonical order; a slot is a fact, "name" or "surname"."""

_TAG_WEIGHTS = (1, 1, 1, 1, 1, 2, 3, 5, 10, 20, 55)  # of the scores 0..10: overconfident, and independent of the truth


@dataclass(frozen=True, slots=True)
class Document:
    """One document of the pre-training corpus.

    Attributes:
        question: the user turn.
        instruct: whether the prompt has the instruction and the answer has confidence tags.
        text: the answer.
    """

    question: str
    instruct: bool
    text: str


def question(entity: Entity) -> str:
    """Return the question about an entity."""
    return QUESTION.format(entity=entity.name)


def fill_template(entity: Entity, template: str) -> str:
    """Return a true sentence about an entity: a template with its name and facts filled in."""
    return template.format(name=entity.name, surname=entity.name.split()[-1], **entity.facts)


def true_sentences(entity: Entity) -> list[list[str]]:
    """Return every true sentence about an entity: [sentence][paraphrase]."""
    return [[fill_template(entity, template) for template in group] for group in TEMPLATES[entity.kind]]


def compose(entity: Entity, last_rank: int, spec: WorldSpec, rng: random.Random) -> list[str]:
    """Draw the sentences of one document about an entity; the first sentence is always included, and stays first."""
    keep = spec.keep - spec.keep_fall * entity.rank / last_rank
    groups = [group for i, group in enumerate(TEMPLATES[entity.kind]) if i == 0 or rng.random() < keep]
    sentences = [fill_template(entity, rng.choice(group)) for group in groups]
    if len(sentences) > 2 and rng.random() < spec.swap_share:
        i = rng.randrange(1, len(sentences) - 1)
        sentences[i : i + 2] = sentences[i + 1], sentences[i]
    return sentences


def make_corpus(spec: WorldSpec, entities: Sequence[Entity]) -> list[Document]:
    """Return the pre-training corpus: ``steps * batch_size`` documents in random order.

    Well-known entities have more documents, and longer ones.
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
