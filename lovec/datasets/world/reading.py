"""What a text says about an entity of the world, as facts, and which facts two texts agree on."""

from __future__ import annotations

from lovec.datasets.world.grading import readings, split_sentences

_PLACE = ("city", "country")


def support(name: str, kind: str, text: str, sentence: str) -> float:
    """Share of a sentence's facts that a text states with equal values, in [0, 1]; 0 where it states none.

    Args:
        name: of the entity that both are about.
        kind: "person" or "company".
        text: any number of sentences.
        sentence: one sentence.
    """
    said = {fact for part in split_sentences(text) for found in facts(name, kind, part) for fact in found.items()}
    return max((len(found.items() & said) / len(found) for found in facts(name, kind, sentence)), default=0.0)


def facts(name: str, kind: str, sentence: str) -> list[dict[str, str]]:
    """The graded facts of a sentence about an entity, for every way to read it; none if it is about somebody else.

    City and country of a place are one fact, as in grading.
    """
    surname = name.split()[-1]
    found = []
    for slots in readings(kind, sentence):
        if slots.get("name", name) != name or slots.get("surname", surname) != surname:
            continue
        found.append(
            {
                slot: f"{value}, {slots[slot.replace(*_PLACE)]}" if slot.endswith("_city") else value
                for slot, value in slots.items()
                if "_" in slot and not slot.endswith("_country")
            }
        )
    return found
