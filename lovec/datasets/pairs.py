"""Preference pairs (the paper's Algorithm 1): the true score of every sentence against a random wrong one."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import replace
from random import Random

from lovec.types import N_SCORES, LovecError, Record, to_rating


def with_rejected(record: Record, seed: int) -> Record:
    """Draw a wrong score for every sentence, uniformly from {0..10} without its true rating.

    The chosen side of the pair is the answer with its true ratings, the rejected side the same text with these.
    The draw is a function of (seed, record.id) only: the same in every process, file order and Python version.

    Args:
        record: every sentence has a factuality.
        seed: of the draw.

    Returns:
        The record with ``rejected`` filled in, [sentences].

    Raises:
        LovecError: the record is not fully labelled.
    """
    ratings = [to_rating(s.factuality) for s in record.sentences if s.factuality is not None]
    if not record.labelled:
        raise LovecError(
            f"record {record.id!r} has {len(ratings)} labels for {len(record.sentences)} sentences, expected one each; "
            "leave such records out (lovec.datasets.pairs.usable)"
        )
    digest = hashlib.sha256(f"{seed}/{record.id}".encode()).digest()
    # Of Random's methods only random() promises the same numbers in every Python version.
    random = Random(int.from_bytes(digest, "big")).random
    draws = (int((N_SCORES - 1) * random()) for _ in ratings)
    return replace(record, rejected=tuple(d + (d >= rating) for d, rating in zip(draws, ratings, strict=True)))


def usable(records: Iterable[Record]) -> tuple[list[Record], int]:
    """Records fit for demonstrations and pairs: at least one sentence, and all of them labelled.

    Returns:
        The records kept, in order, and the number left out.
    """
    everything = list(records)
    kept = [record for record in everything if record.labelled]
    return kept, len(everything) - len(kept)
