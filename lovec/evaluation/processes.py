"""Collect what each process of a distributed run has."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import zip_longest
from typing import Any, TypeVar

import torch.distributed as dist

from lovec.evaluation.sharding import ShardedStrategy
from lovec.policy import Policy
from lovec.types import LovecError, Record

T = TypeVar("T")


def barrier(trainer: Any) -> None:
    """Make sure that no process is still in a forward pass. Every process must call it before values are exchanged.

    With a sharded base the others take part in that forward pass, see ``ShardedStrategy.sync_forwards``; without,
    there is nothing to do.
    """
    if trainer.world_size > 1 and isinstance(trainer.strategy, ShardedStrategy):
        trainer.strategy.sync_forwards()


def load_policy(trainer: Any, load: Callable[[], Policy]) -> Policy:
    """Load a policy, its base split over the processes where the strategy says so. Every process must call it.

    Args:
        trainer: the Lightning trainer.
        load: loads the policy.

    Raises:
        LovecError: the policy cannot be loaded or split, see ``raise_on_all_ranks``.
    """
    strategy = trainer.strategy
    if not isinstance(strategy, ShardedStrategy):
        return load()
    policy, forwards, problem = strategy.load_sharded(load)
    raise_on_all_ranks(trainer, problem)
    assert policy is not None and forwards is not None
    strategy.begin(forwards)
    return policy


def gather(trainer: Any, part: T) -> list[T]:
    """Return the parts of all processes, by rank, on every process. Every process must call it."""
    if trainer.world_size == 1:
        return [part]
    barrier(trainer)
    parts: list[Any] = [None] * trainer.world_size
    dist.all_gather_object(parts, part)
    return parts


def raise_on_all_ranks(trainer: Any, problem: str | None) -> None:
    """Stop every process where one of them has a problem; the first process says which. Every process must call it.

    Args:
        trainer: the Lightning trainer.
        problem: what is wrong, in one line; None is nothing.

    Raises:
        LovecError: a process has a problem; raised on the first process.
        SystemExit: the same, on the others. Its code is 0, because the launcher kills the first process, which may not
            have spoken yet, as soon as it sees another code.
    """
    if problems := [part for part in gather(trainer, problem) if part is not None]:
        if trainer.is_global_zero:
            raise LovecError(problems[0])
        raise SystemExit(0)


def own_share(trainer: Any, records: Sequence[Record]) -> Sequence[Record]:
    """Return every ``world_size``-th of the records, starting at this process's rank."""
    return records[trainer.global_rank :: trainer.world_size]


def in_data_order(trainer: Any, records: Sequence[Record]) -> list[Record]:
    """Return the records of all processes, on every process, in the order they had before ``own_share`` split them.

    No process may have left one out, see ``in_order_of``.
    """
    return [
        record for row in zip_longest(*gather(trainer, records)) for record in row if record is not None
    ]  # one record per process and row


def in_order_of(trainer: Any, share: Sequence[Record], records: Sequence[Record]) -> list[Record]:
    """Return the records of all processes, on every process, in the order of the data; some may be left out.

    Args:
        trainer: the Lightning trainer.
        share: this process's share of the data, as ``own_share`` returned it.
        records: what was made of some of them, with their ids.
    """
    if trainer.world_size == 1:
        return list(records)
    ids = [id for row in zip_longest(*gather(trainer, [record.id for record in share])) for id in row]
    place = {id: number for number, id in enumerate(ids)}
    made = [record for part in gather(trainer, records) for record in part]
    return sorted(made, key=lambda record: place[record.id])


def reduce_over_processes(
    trainer: Any, values: Mapping[str, float], reduce: Callable[[Iterable[float]], float]
) -> dict[str, float]:
    """Combine each named value over the processes that have it, on every process. Every process must call it.

    Args:
        trainer: the Lightning trainer.
        values: values of this process, by name.
        reduce: combines the values of a name, such as ``sum`` or ``max``.
    """
    by_name: dict[str, list[float]] = {}
    for part in gather(trainer, dict(values)):
        for name, value in part.items():
            by_name.setdefault(name, []).append(value)
    return {name: reduce(parts) for name, parts in by_name.items()}
