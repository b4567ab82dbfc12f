"""Preference pairs (the paper's Algorithm 1): the true score of every sentence against a random wrong one."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import replace
from random import Random

from lovec.types import DEFAULT_SCALE, LovecError, Record, Scale


def with_rejected(record: Record, seed: int, scale: Scale = DEFAULT_SCALE) -> Record:
    """Draw a wrong score for every sentence, uniformly from all scores of the scale except the true one.

    The chosen side of a pair is the answer with its true scores, the rejected side the same text with these scores.
    The draw is a function of (seed, record.id) only, so it is the same in every process, file order and Python version.

    Args:
        record: a record whose sentences all have a factuality. If it has wrong scores already, it keeps them.
        seed: seed of the draw.
        scale: scale of the scores.

    Returns:
        The record with ``rejected``, one score 0..``scale.top`` per sentence.

    Raises:
        LovecError: a sentence has no factuality, or the record has wrong scores that the scale does not have.
    """
    scores = [scale.nearest(s.factuality) for s in record.sentences if s.factuality is not None]
    if not record.labelled:
        raise LovecError(
            f"record {record.id!r} has {len(scores)} labels for {len(record.sentences)} sentences, expected one each; "
            "leave such records out (lovec.datasets.pairs.usable)"
        )
    if record.rejected is not None:
        if max(record.rejected) > scale.top:
            raise LovecError(
                f"record {record.id!r} has the wrong scores {list(record.rejected)}, expected 0..{scale.top}; "
                "leave 'rejected' out so that they are drawn"
            )
        return record
    digest = hashlib.sha256(f"{seed}/{record.id}".encode()).digest()
    # random() is the only method of Random that promises the same numbers in every Python version.
    random = Random(int.from_bytes(digest, "big")).random
    draws = (int(scale.top * random()) for _ in scores)
    return replace(record, rejected=tuple(d + (d >= score) for d, score in zip(draws, scores, strict=True)))


def usable(records: Iterable[Record]) -> tuple[list[Record], int]:
    """Select the records that can be trained on: those with sentences that are all labelled.

    Returns:
        The selected records in their order, and the number of the others.
    """
    everything = list(records)
    kept = [record for record in everything if record.labelled]
    return kept, len(everything) - len(kept)
