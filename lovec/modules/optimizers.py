"""The optimiser of a training and its schedule: created from what the user gives, or refused by name."""

from __future__ import annotations

from typing import Any

import torch
from lightning.pytorch import Trainer
from lightning.pytorch.cli import LRSchedulerCallable, OptimizerCallable
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import ReduceLROnPlateau

from lovec.core.settings import check_range
from lovec.types import LovecError


def create_optimizer(
    optimizer: OptimizerCallable, lr_scheduler: LRSchedulerCallable | None, parameters: list[torch.nn.Parameter]
) -> tuple[Optimizer, Any]:
    """Return the optimiser of parameters, and its schedule, None without one.

    Args:
        optimizer: creates the optimiser.
        lr_scheduler: creates the schedule; None keeps the rate constant.
        parameters: what is trained.

    Raises:
        LovecError: one of them refuses its settings, or a setting is not finite.
    """
    try:
        created = optimizer(parameters)
        check_rates(created)
        schedule = None if lr_scheduler is None else lr_scheduler(created)
    except (ValueError, TypeError) as error:
        raise LovecError(f"the optimizer or its lr_scheduler refuses its settings: {error}") from error
    if isinstance(schedule, ReduceLROnPlateau):
        raise LovecError(
            "lr_scheduler is ReduceLROnPlateau, which waits for a metric, while schedules are stepped with the "
            "optimiser here; choose one that needs none, such as CosineAnnealingLR"
        )
    return created, schedule


def step_schedule(schedule: Any) -> None:
    """Go on with a schedule after an optimiser step.

    Raises:
        LovecError: it has come to its end.
    """
    try:
        schedule.step()
    except ValueError as error:
        raise LovecError(f"the lr_scheduler cannot go on: {error}; let it have as many steps as the run") from error


def set_total_steps(schedule: Any, trainer: Trainer, updates_per_batch: int) -> None:
    """Tell a schedule how many optimiser steps a training has, if it has a method ``set_total_steps`` for that.

    Args:
        schedule: the schedule; one with ``total_steps`` of its own keeps them.
        trainer: the trainer, whose loaders are set up.
        updates_per_batch: optimiser steps per batch.

    Raises:
        LovecError: the training has no end.
    """
    if not hasattr(schedule, "set_total_steps") or getattr(schedule, "total_steps", None) is not None:
        return
    steps = trainer.estimated_stepping_batches
    if steps == float("inf"):
        raise LovecError(
            "the learning-rate schedule needs the length of the run: set trainer.max_epochs or "
            "trainer.max_steps, or lr_scheduler: null"
        )
    steps = int(steps) * updates_per_batch  # Lightning counts batches
    schedule.set_total_steps(steps if trainer.max_steps < 0 else min(steps, trainer.max_steps))


def check_rates(optimizer: Optimizer) -> None:
    """Refuse an optimiser with a setting that is not finite, or with a negative learning rate.

    Raises:
        LovecError: there is such a setting.
    """
    for group in optimizer.param_groups:
        check_range("lr of the optimizer", _plain(group.get("lr")), at_least=0)
        for name, setting in group.items():
            for value in setting if isinstance(setting, tuple) else (setting,):
                if isinstance(value, float):
                    check_range(f"{name} of the optimizer", value)


def _plain(value: Any) -> Any:
    return float(value) if isinstance(value, Tensor) else value
