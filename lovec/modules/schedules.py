"""Learning-rate schedules that know the length of the run."""

from __future__ import annotations

import math
from typing import Annotated, Any

from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from lovec.core.settings import Count, ProperShare, Setting, checked


@checked()
class WarmupCosine(LRScheduler):
    """Linear warm-up, then a half cosine down to ``floor`` times the base rate.

    Args:
        optimizer: the optimiser whose rates are scheduled.
        warmup: fraction of the run over which the rate rises, in [0, 1).
        floor: factor of the base rate at the end of the run, in [0, 1].
        total_steps: optimiser steps after which the rate is at its floor; None takes those of the run.

    Raises:
        LovecError: a setting is out of range.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        warmup: ProperShare = 0.1,
        floor: Annotated[float, Setting(at_least=0, at_most=1)] = 0.0,
        total_steps: Count | None = None,
    ) -> None:
        self.warmup = warmup
        self.floor = floor
        self.total_steps = total_steps
        super().__init__(optimizer)

    def factor(self, step: int) -> float:
        """Return the factor of the base rate at an optimiser step (0 is the first)."""
        if self.total_steps is None:
            return 1.0
        rising = math.ceil(self.warmup * self.total_steps)
        if step < rising:
            return (step + 1) / (rising + 1)
        done = min(1.0, (step - rising) / max(1, self.total_steps - rising))
        return self.floor + (1.0 - self.floor) * 0.5 * (1.0 + math.cos(math.pi * done))

    def set_total_steps(self, total_steps: int) -> None:
        """Set the number of optimiser steps of the run, and the next rate accordingly."""
        self.total_steps = total_steps
        self._set_rates()

    def state_dict(self) -> dict[str, Any]:
        """Return the position in the run; not its length, which a resumed run may change."""
        return {k: v for k, v in super().state_dict().items() if k not in ("total_steps", "warmup", "floor")}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take the position of a run that goes on, and the rate that the length of this one gives it.

        The optimiser must have its state by then: with that it gets the rate by the length of the earlier run.
        """
        super().load_state_dict(state_dict)
        self._set_rates()

    def _set_rates(self) -> None:
        """Give the optimiser the rates of its next step."""
        for group, rate in zip(self.optimizer.param_groups, self.get_lr(), strict=True):
            group["lr"] = rate

    def get_lr(self) -> list[float | Tensor]:
        """Return the rates for the next step, one per parameter group."""
        return [base * self.factor(self.last_epoch) for base in self.base_lrs]
