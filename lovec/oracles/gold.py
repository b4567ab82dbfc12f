"""Sentences that are clearly true or false by their evidence, to validate a judge with."""

from __future__ import annotations

from collections.abc import Sequence

from lovec.types import LovecError, Record, Sentence

_TOLERANCE = 0.4

GOLD = (
    Record(
        "gold-lighthouse",
        "In a paragraph, could you tell me what you know about the Harlow lighthouse?",
        evidence=(
            "The Harlow lighthouse stands on the island of Tarn. It was built of granite from 1871 to 1874 by the "
            "engineer Ines Kall and is 38 metres tall. It was automated in 1986; its last keeper was Per Oddsen.",
        ),
        sentences=(
            Sentence("The Harlow lighthouse stands on the island of Tarn.", 1.0),
            Sentence("It was painted by Claude Monet, who lived in it as a child.", 0.0),
            Sentence("It was built of granite by the engineer Ines Kall.", 1.0),
            Sentence("It is an inflatable tower made of rubber in 2015.", 0.0),
        ),
    ),
    Record(
        "gold-armstrong",
        "In a paragraph, could you tell me what you know about Neil Armstrong?",
        evidence=(
            "Neil Alden Armstrong (1930-2012) was an American astronaut and aeronautical engineer who, as commander of "
            "Apollo 11, became the first person to walk on the Moon on July 20, 1969.",
        ),
        sentences=(
            Sentence("Neil Armstrong was a French pastry cook who never left Lyon.", 0.0),
            Sentence("He was the first person to walk on the Moon.", 1.0),
        ),
    ),
)
"""Two records. The lighthouse is invented, so that only the evidence says what is true of it."""


def check_ratings(name: str, gold: Sequence[Record], ratings: Sequence[Sequence[float | None]]) -> int:
    """Compare ratings with the known factuality.

    Args:
        name: name of the judge, for the error message.
        gold: records; sentences without a factuality are skipped.
        ratings: the judge's rating of every sentence of every record.

    Returns:
        Number of sentences compared.

    Raises:
        LovecError: a rating is missing or differs by more than 0.4.
    """
    compared = 0
    for record, row in zip(gold, ratings, strict=True):
        for sentence, rating in zip(record.sentences, row, strict=True):
            if sentence.factuality is None:
                continue
            if rating is None or abs(rating - sentence.factuality) > _TOLERANCE:
                raise LovecError(
                    f"{name} rates {sentence.text!r} {rating}, expected about {sentence.factuality}; it cannot "
                    "judge, choose another model"
                )
            compared += 1
    return compared
