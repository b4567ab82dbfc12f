"""How many validation records are measured while a model is trained."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from lightning.pytorch.utilities import rank_zero_info

from lovec.datasets.stored import domains_of
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


def sample_validation(data: Any, domain: str, modes: Sequence[str], wanted: int | None, cheap: bool, seed: int) -> None:
    """Let validations within training measure a sample, where all records would cost much of an epoch, and say so.

    Args:
        data: the datamodule; one without ``sample_validation`` measures all of its records.
        domain: the domain that is logged; a sample has records of no other.
        modes: as for ``validation_size``, like ``wanted`` and ``cheap``.
        wanted: number of records that is asked for.
        cheap: whether all records are measured by default.
        seed: decides which records are drawn.
    """
    if not hasattr(data, "sample_validation"):
        return
    records = data.loaded("validation")
    size = validation_size(len(records), len(data.loaded("train")), modes, wanted, cheap)
    if size >= len(records):
        data.sample_validation(None)
        return
    logged = [place for place, of in enumerate(domains_of(records)) if of == domain]
    places = [logged[at] for at in drawn(len(logged), size, seed)]
    data.sample_validation(places)
    option = "--model.evaluation.validation_records"
    by_default = f"so that a validation costs about a tenth of an epoch; {option} 0 measures all"
    rank_zero_info(
        f"validations during training measure {len(places)} of {len(records)} records, drawn with the seed, "
        + (f"all of the domain {domain}, which val/... is about, " if len(logged) < len(records) else "")
        + (f"as {option} says" if wanted else by_default)
    )
