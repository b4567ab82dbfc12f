"""Sentences that are clearly true or false by their evidence, to validate a judge with."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from lovec.datasets.jsonl import read_records
from lovec.types import LovecError, Record

_TOLERANCE = 0.4

GOLD = tuple(read_records(Path(__file__).with_suffix(".jsonl")))
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
