"""A world as its users see it: questions, grades and the folder of its model."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path

from lovec.datasets.world.facts import SPLITS, Entity, WorldSpec, make_entities
from lovec.datasets.world.grading import factuality, split_sentences
from lovec.datasets.world.text import INSTRUCTION, question
from lovec.datasets.world.variants import spec_of
from lovec.types import LovecError, Record


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
        """All people, then all companies, the best known of each first."""
        return tuple(make_entities(self.spec))

    def questions(self, split: str) -> list[Record]:
        """Return a record without an answer for every entity of a split, best known first.

        Args:
            split: "train", "dev", "test" (people) or "companies".

        Raises:
            LovecError: there is no such split.
        """
        if split not in SPLITS:
            raise LovecError(f"the split of the world is {split!r}, expected one of {', '.join(SPLITS)}")
        return [self._record(entity) for entity in self.entities if entity.split == split]

    def split_sentences(self, answer: str) -> list[str]:
        """Split a plain answer into sentences, without white space at their edges."""
        return split_sentences(answer)

    def grade(self, entity_name: str, sentence: str) -> float:
        """Return how true a sentence about an entity is, in {0, 0.1, ..., 1}.

        Raises:
            LovecError: the world has no entity of that name.
        """
        return factuality(self._entity(entity_name), sentence)

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

    def _record(self, entity: Entity) -> Record:
        return Record(
            id=f"{self.variant}/{entity.split}/{entity.name.lower().replace(' ', '-')}",
            question=question(entity),
            meta={
                "entity": entity.name,
                "kind": entity.kind,
                "rank": entity.rank,
                "split": entity.split,
                "domain": "in-domain" if entity.kind == "person" else "out-of-domain",
            },
        )
