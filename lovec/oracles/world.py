"""The embedded world's oracle: exact look-up, no model, no evidence, no cost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from string import Formatter

from lovec.datasets.world.facts import Entity
from lovec.datasets.world.text import TEMPLATES, write
from lovec.datasets.world.world import World
from lovec.types import LovecError, Record

_YEARS_OFF = 4
_LEFT = {"year": Fraction(3, 4), "city": Fraction(2, 5)}  # credit of a corrupted fact by its rule; else 0


class WorldOracle:
    """Rates sentences about the entities of an embedded world.

    Args:
        world: the world, or the name of one; its model is not needed, so none is built.
    """

    def __init__(self, world: World | str = "world") -> None:
        self.world = World(world) if isinstance(world, str) else world

    def rate(self, records: Sequence[Record]) -> list[list[float | None]]:
        """Factuality of every sentence of every record about ``record.meta["entity"]``, in {0, 0.1, ..., 1}.

        Raises:
            LovecError: a record names no entity of this world.
        """
        return [[self.world.grade(_entity_name(record), s.text) for s in record.sentences] for record in records]

    def validate(self) -> int:
        """Score gold: true sentences must be rated 1, corrupted ones their known credit.

        Every paraphrase of every sentence is rated as it is, with one fact corrupted (each in turn: a year moved by
        4, a wrong city in the right country, another value that does not exist), and as if it were about somebody
        else.

        Returns:
            Number of sentences rated.

        Raises:
            LovecError: a rating is not what it must be.
        """
        rated = 0
        for i, entity in enumerate(self.world.entities):
            stranger = self.world.entities[i - 1]
            for template in (t for group in TEMPLATES[entity.kind] for t in group):
                graded = [
                    slot for slot in _slots(template) if slot.rpartition("_")[2] not in ("name", "surname", "country")
                ]
                self._expect(entity, write(entity, template), Fraction(1))
                for slot in graded:
                    lost = 1 - _LEFT.get(slot.rpartition("_")[2], Fraction(0))
                    self._expect(entity, write(_corrupted(entity, slot), template), 1 - lost / len(graded))
                rated += 1 + len(graded)
                if entity.name.split()[-1] not in stranger.name:
                    self._expect(stranger, write(entity, template), Fraction(0))
                    rated += 1
        return rated

    def _expect(self, entity: Entity, sentence: str, credit: Fraction) -> None:
        rating = (credit * 10 + Fraction(1, 2)).__floor__()
        if (given := self.world.grade(entity.name, sentence)) != rating / 10:
            raise LovecError(
                f"the oracle rates {sentence!r} {given} for {entity.name}, expected {rating / 10}: its grader is broken"
            )


def _entity_name(record: Record) -> str:
    if "entity" not in record.meta:
        raise LovecError(
            f"record {record.id!r} has no meta.entity, so the world's oracle cannot look it up; "
            "choose another oracle for questions that are not the world's"
        )
    return str(record.meta["entity"])


def _slots(template: str) -> list[str]:
    return [slot for _, slot, _, _ in Formatter().parse(template) if slot]


def _corrupted(entity: Entity, slot: str) -> Entity:
    truth = entity.facts[slot]
    wrong = str(int(truth) + _YEARS_OFF) if slot.endswith("_year") else " ".join("Nemo" for _ in truth.split())
    return replace(entity, facts={**entity.facts, slot: wrong})
