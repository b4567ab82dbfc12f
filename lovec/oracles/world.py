"""The oracle of the embedded world: facts are looked up exactly; no model, no evidence, no cost."""

from __future__ import annotations

from collections.abc import Sequence

from lovec.datasets.world.world import EmbeddedWorld
from lovec.types import LovecError, Oracle, Record


class WorldOracle(Oracle):
    """Rates sentences about the entities of an embedded world.

    Args:
        world: the world, or its name; its model is not needed and is not built.
    """

    reads_evidence = True

    def __init__(self, world: EmbeddedWorld | str = "world") -> None:
        self.world = EmbeddedWorld(world) if isinstance(world, str) else world

    def rate(self, records: Sequence[Record]) -> list[list[float | None]]:
        """Return the factuality of every sentence about the entity ``record.meta["entity"]``, in {0, 0.1, ..., 1}.

        Of a record with evidence, which is an article of the world, it is how well the article supports the sentence.

        Raises:
            LovecError: a record names no entity of this world.
        """
        return [[self._grade(record, sentence.text) for sentence in record.sentences] for record in records]

    def _grade(self, record: Record, sentence: str) -> float:
        name = _entity_name(record)
        if record.evidence:
            return self.world.grade_by_source(name, " ".join(record.evidence), sentence)
        return self.world.grade(name, sentence)


def _entity_name(record: Record) -> str:
    if "entity" not in record.meta:
        raise LovecError(
            f"record {record.id!r} has no meta.entity, so the world's oracle cannot look it up; "
            "choose another oracle for questions that are not about the world"
        )
    return str(record.meta["entity"])
