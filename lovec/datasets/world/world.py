"""A world as its users see it: questions, grades and the folder of its model."""

from __future__ import annotations

import random
from dataclasses import replace
from functools import cached_property
from pathlib import Path

from lovec.datasets.world.articles import answer_from, make_article, supported
from lovec.datasets.world.facts import SPLITS, Entity, WorldSpec
from lovec.datasets.world.grading import clauses, factuality, split_sentences
from lovec.datasets.world.text import INSTRUCTION, one_fact_questions, question
from lovec.datasets.world.things import make_entities
from lovec.datasets.world.variants import spec_of
from lovec.encoding import EVIDENCE
from lovec.types import LovecError, Record, Sentence

_DOMAINS = {
    "private": "other questions",
    "one-fact": "one fact",
    "companies": "out-of-domain",
    "unlabelled": "out-of-domain",
}


class EmbeddedWorld:
    """An invented world; everything except its model is computed from a few numbers in milliseconds.

    Args:
        variant: name of the world.
        spec: the numbers that the world is made from; default: those of the named variant.
        path: folder of the world's model; None opens it without a model, which is enough for questions and grades.
        store: folder in which others may keep what they make with the model, such as its answers; default: ``path``.

    Attributes:
        variant: as given.
        spec: as given, or that of the variant.
        path: as given.
        store: as given, or ``path``.
        instruction: the instruction that the world's model knows.
        grounding: the text that puts an article into a prompt: the article alone, since the model knows few words.
    """

    instruction = INSTRUCTION
    grounding = EVIDENCE

    def __init__(
        self,
        variant: str = "world",
        spec: WorldSpec | None = None,
        path: Path | None = None,
        store: Path | None = None,
    ) -> None:
        self.variant = variant
        self.spec = spec or spec_of(variant)
        self.path = path
        self.store = store or path

    @property
    def model_path(self) -> Path:
        """Folder of the pre-trained model and its tokenizer, as transformers saves them.

        Raises:
            LovecError: the world was opened without its model.
        """
        if self.path is None:
            raise LovecError(f"the world {self.variant!r} was opened without its model; open it with ensure_world()")
        return self.path / "model"

    @cached_property
    def entities(self) -> tuple[Entity, ...]:
        """All people, towns, ships and companies, the best known of each kind first."""
        return tuple(make_entities(self.spec))

    def questions(self, split: str) -> list[Record]:
        """Return records without answers for a split, about the best known things of each kind first.

        Args:
            split: one of ``SPLITS``.

        Raises:
            LovecError: there is no such split.
        """
        if split not in SPLITS:
            raise LovecError(f"the split of the world is {split!r}, expected one of {', '.join(SPLITS)}")
        if split == "private":
            return [self._record(e, split, question(e, "private")) for e in self._of("test") if e.kind == "person"]
        if split == "one-fact":
            asked = [(entity, one_fact_questions(entity)) for entity in self._of("test")]
            return [self._record(entity, split, facts[entity.rank % len(facts)]) for entity, facts in asked]
        return [self._record(entity, split, question(entity)) for entity in self._of(split)]

    def split_sentences(self, answer: str) -> list[str]:
        """Split a plain answer into sentences, without white space at their edges."""
        return split_sentences(answer)

    def grade(self, entity_name: str, sentence: str) -> float:
        """Return how true a sentence about an entity is, in {0, 0.1, ..., 1}.

        Raises:
            LovecError: the world has no entity of that name.
        """
        return factuality(self._entity(entity_name), sentence)

    def clauses(self, entity_name: str, sentence: str) -> list[tuple[str, float]]:
        """Return the clauses of a sentence about an entity, and how true each of them is, in {0, 0.1, ..., 1}.

        Raises:
            LovecError: the world has no entity of that name.
        """
        return clauses(self._entity(entity_name), sentence)

    def with_article(self, record: Record, rewritten: bool = False) -> Record:
        """Return a record with an article as its evidence, and with what the article supports as its factualities.

        The article is a function of the world, the id and the answer of the record; see ``articles``.

        Args:
            record: a question about a thing of this world, with or without an answer.
            rewritten: whether another answer takes the place of the record's: one that says in other words what the
                article says, with some mistakes.
        """
        entity = self._entity(record.meta["entity"])
        texts = [sentence.text for sentence in record.sentences]
        rng = random.Random(f"{self.spec.seed}/{record.id}/article")
        others = [other for other in self.entities if other.kind == entity.kind]
        article = make_article(entity, texts, others, self.spec, rng)
        if rewritten and article:
            texts = answer_from(entity, article, others, self.spec, rng)
            record = replace(record, answer=" ".join(texts), sentences=tuple(map(Sentence, texts)))
        labels = [supported(entity, article, text) for text in texts]
        return replace(record, evidence=(article,) if article else (), rejected=None).with_factuality(labels)

    def grade_by_source(self, entity_name: str, source: str, sentence: str) -> float:
        """Return how well an article supports a sentence about an entity, in {0, 0.1, ..., 1}; see ``articles``.

        Raises:
            LovecError: the world has no entity of that name.
        """
        return supported(self._entity(entity_name), source, sentence)

    def _entity(self, name: str) -> Entity:
        if name not in self._by_name:
            raise LovecError(
                f"the world {self.variant!r} has no entity named {name!r}; grade answers to its own questions, or "
                "choose another oracle"
            )
        return self._by_name[name]

    @cached_property
    def _by_name(self) -> dict[str, Entity]:
        return {entity.name: entity for entity in self.entities}

    def _of(self, split: str) -> list[Entity]:
        return [entity for entity in self.entities if entity.split == split]

    def _record(self, entity: Entity, split: str, asked: str) -> Record:
        return Record(
            id=f"{self.variant}/{split}/{entity.name.lower().replace(' ', '-')}",
            question=asked,
            meta={
                "entity": entity.name,
                "kind": entity.kind,
                "rank": entity.rank,
                "split": split,
                "domain": _DOMAINS.get(split, "in-domain"),
            },
        )
