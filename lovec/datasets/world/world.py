"""A world as its users see it: questions, grades and the folder of its model."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path

from lovec.datasets.world.facts import SPLITS, Entity, WorldSpec
from lovec.datasets.world.grading import clauses, factuality, split_sentences
from lovec.datasets.world.text import INSTRUCTION, one_fact_questions, question
from lovec.datasets.world.things import make_entities
from lovec.datasets.world.variants import spec_of
from lovec.types import LovecError, Record

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
    """

    instruction = INSTRUCTION

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
