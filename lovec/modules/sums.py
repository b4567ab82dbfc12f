"""What is logged of an optimiser batch: means over its micro-batches and all processes."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from lovec.evaluation.processes import reduce_over_processes
from lovec.types import LossOutput, LovecError


class BatchSums:
    """Sums of the loss and of the terms, metrics and peaks of micro-batches."""

    def __init__(self) -> None:
        self._sums: dict[str, float] = defaultdict(float)
        self._peaks: dict[str, float] = {}
        self._units: dict[str, str] = {}  # what each term is counted per
        self._names: tuple[str, ...] = ()  # of terms and metrics

    @property
    def loss(self) -> float:
        """The loss of the batch; 0 where it has no example."""
        return self._sums.get("loss", 0.0)

    def add(self, loss: Tensor, out: LossOutput) -> None:
        """Add a micro-batch.

        Args:
            loss: its share of the loss of the batch.
            out: what the objective has returned for it.
        """
        self._units = {name: term.per for name, term in out.terms.items()}
        self._names = (*out.terms, *out.metrics)
        self._sums["loss"] += float(loss.detach())
        for name, term in {**out.terms, **out.metrics}.items():
            self._sums[f"sum/{name}"] += float((term.values.detach() * term.mask).sum())
            self._sums[f"count/{name}"] += float(term.mask.sum())
        for name, values in out.peaks.items():
            self._peaks[name] = max(self._peaks.get(name, 0.0), float(values.max()))

    def reduce(self, trainer: Any) -> None:
        """Add what the other processes have; every process must call it."""
        self._sums = reduce_over_processes(trainer, self._sums, sum)
        self._peaks = reduce_over_processes(trainer, self._peaks, max)

    def check(self, counts: Mapping[str, float]) -> None:
        """Check that the masks of the terms count what the terms were divided by.

        Args:
            counts: number of each unit in the batch.

        Raises:
            LovecError: a mask does not.
        """
        for name, unit in self._units.items():
            if not math.isclose(self._sums[f"count/{name}"], counts[unit], rel_tol=1e-6):  # masks may have fractions
                raise LovecError(
                    f"the mask of the term {name!r} counts {self._sums[f'count/{name}']:g} {unit}s, but the batch "
                    f"holds {counts[unit]:g}: override counts() where a term counts something else"
                )

    def metrics(self) -> dict[str, float]:
        """Return the loss, the mean of every term and metric, NaN where nothing has one, and the peaks, by name."""
        counted = ((name, self._sums[f"sum/{name}"], self._sums[f"count/{name}"]) for name in self._names)
        means = {name: total / count if count else math.nan for name, total, count in counted}
        return {"loss": self.loss, **means, **self._peaks}
