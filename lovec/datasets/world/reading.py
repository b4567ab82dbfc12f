"""The facts that a text states about an entity of the world, and the share of them that another text confirms."""

from __future__ import annotations

from typing import Literal

from lovec.datasets.world.grading import readings, split_sentences

_PLACE = ("city", "country")


def support(name: str, kind: str, text: str, sentence: str) -> float:
    """Return the share of a sentence's facts that a text states with equal values, in [0, 1]; 0 if it states none.

    Args:
        name: name of the entity that both are about.
        kind: one of ``lovec.datasets.world.facts.KINDS``.
        text: any number of sentences.
        sentence: one sentence.
    """
    stated = {fact for part in split_sentences(text) for reading in facts(name, kind, part) for fact in reading.items()}
    shares = (len(reading.items() & stated) / len(reading) for reading in facts(name, kind, sentence) if reading)
    return max(shares, default=0.0)


def relation(name: str, kind: str, text: str, sentence: str) -> Literal["entailment", "contradiction", "neutral"]:
    """Return whether a text states all facts of a sentence, another value for one of them, or neither.

    A sentence without facts is neutral. Arguments are those of ``support``.
    """
    stated: dict[str, set[str]] = {}
    for part in split_sentences(text):
        for reading in facts(name, kind, part):
            for slot, value in reading.items():
                stated.setdefault(slot, set()).add(value)
    of_sentence = [reading for reading in facts(name, kind, sentence) if reading]
    if any(all(value in stated.get(slot, ()) for slot, value in reading.items()) for reading in of_sentence):
        return "entailment"
    if any(value not in stated.get(slot, {value}) for reading in of_sentence for slot, value in reading.items()):
        return "contradiction"
    return "neutral"


def facts(name: str, kind: str, sentence: str) -> list[dict[str, str]]:
    """Return the graded facts of a sentence about an entity, for every form that matches it.

    The list is empty if the sentence is about another entity. City and country of a place are one fact, as in grading.
    """
    surname = name.split()[-1]
    return [
        {
            slot: f"{value}, {slots[slot.replace(*_PLACE)]}" if slot.endswith("_city") else value
            for slot, value in slots.items()
            if "_" in slot and not slot.endswith("_country")
        }
        for slots in readings(kind, sentence)
        if slots.get("name", name) == name and slots.get("surname", surname) == surname
    ]
