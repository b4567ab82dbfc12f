"""How many validation records are measured while a model is trained."""

from __future__ import annotations

import random
from collections.abc import Sequence

from lovec.types import ITERATIVE

SHARE = 0.1
"""Share of an epoch's cost that a validation has by default, about."""

LEAST = 32
"""The fewest records that a validation measures by default, where there are as many."""

_WRITTEN = 2.0  # cost of a record whose answer is written, in those of a record that is learned from


def validation_size(records: int, training: int, modes: Sequence[str], wanted: int | None, cheap: bool) -> int:
    """Return how many validation records a validation within training measures.

    To tag a given answer is taken to cost as much as to learn from one, and to write one twice as much.

    Args:
        records: number of validation records.
        training: number of training records, which are an epoch.
        modes: the modes that are measured.
        wanted: number that is asked for; 0 is all, None is as many as cost ``SHARE`` of an epoch, and at least
            ``LEAST``.
        cheap: whether the model is so small that all records are measured by default.
    """
    if wanted is None:
        if cheap:
            return records
        cost = sum(1.0 if mode == ITERATIVE else _WRITTEN for mode in modes)
        wanted = max(LEAST, int(SHARE * training / cost))
    return min(records, wanted) if wanted else records


def drawn(records: int, size: int, seed: int) -> list[int]:
    """Return the places of a sample of records, in their order; a smaller sample is a part of a larger one.

    Args:
        records: number of records.
        size: number of those that are drawn.
        seed: decides which.
    """
    order = list(range(records))
    random.Random(f"validation/{seed}").shuffle(order)
    return sorted(order[:size])
