"""What a training step does differently where several processes train together."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from lovec.evaluation.processes import gather, raise_on_all_ranks
from lovec.evaluation.sharding import ShardedStrategy
from lovec.modules.batching import ExampleT


def even_groups(trainer: Any, groups: list[list[ExampleT]]) -> list[list[ExampleT]]:
    """Return the micro-batches of this process; where the base is sharded, as many as every other process has.

    Processes with a sharded base run forward and backward passes together, so all of them need the same number. The
    last micro-batch stands in for those that are missing, and must not count again.

    Raises:
        LovecError: the base is sharded, and some processes have examples and others none.
    """
    if not in_step(trainer):
        return groups
    numbers = gather(trainer, len(groups))
    problem = (
        "a process has no example for an optimiser step that others make, which a sharded base does not allow; let "
        "update_batches yield some on each"
    )
    raise_on_all_ranks(trainer, problem if 0 in numbers and any(numbers) else None)
    return groups + groups[-1:] * (max(numbers) - len(groups))


def in_step(trainer: Any) -> bool:
    """Return whether processes run their forward and backward passes together, as they do where the base is sharded."""
    return isinstance(trainer.strategy, ShardedStrategy)


def without_sync(trainer: Any) -> AbstractContextManager[Any]:
    """Keep DDP from summing gradients in every micro-batch, of which processes may have unequal numbers.

    FSDP2 has no gradients to sum: only the frozen base is sharded.
    """
    model = trainer.strategy.model
    return model.no_sync() if isinstance(model, DistributedDataParallel) else nullcontext()


def sum_gradients(trainer: Any, parameters: Sequence[torch.nn.Parameter]) -> None:
    """Sum the gradients of parameters over the processes, each of which holds all of them."""
    if trainer.world_size > 1:
        for p in parameters:
            p.grad = torch.zeros_like(p) if p.grad is None else p.grad
            dist.all_reduce(p.grad)
