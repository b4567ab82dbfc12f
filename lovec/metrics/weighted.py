"""Pairs of confidence and factuality that count a number of times each.

A metric of the pairs themselves has every weight 1. A bootstrap draw counts each pair as often as it was drawn, which
is the same as repeating it, without the copies. Each metric is written once, for any number of draws at the same time.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from lovec.metrics.functional import Values, checked_pair


@dataclass(frozen=True)
class PairLayout:
    """What is the same in every draw of the same pairs.

    Attributes:
        confidence: [N], float64, in [0, 1].
        factuality: [N], float64, in [0, 1].
    """

    confidence: Tensor
    factuality: Tensor

    @classmethod
    def of(cls, confidence: Values, factuality: Values) -> PairLayout:
        """Return the layout of pairs.

        Raises:
            LovecError: see ``lovec.metrics.functional.checked_pair``.
        """
        return cls(*checked_pair(confidence, factuality))

    @cached_property
    def by_confidence(self) -> tuple[Tensor, Tensor]:
        """The different confidences [K], ascending, and the place of every pair's confidence among them [N]."""
        return _levels(self.confidence)

    @cached_property
    def by_factuality(self) -> tuple[Tensor, Tensor]:
        """The different factualities [J], ascending, and the place of every pair's factuality among them [N]."""
        return _levels(self.factuality)

    def whole(self) -> WeightedPairs:
        """Return the pairs themselves: one draw that holds each of them once."""
        return WeightedPairs(self, torch.ones_like(self.confidence)[None])


@dataclass(frozen=True)
class WeightedPairs:
    """Pairs with their weights in one draw or several.

    Attributes:
        layout: the pairs.
        weight: how often each draw holds each pair, [D, N], float64, whole numbers of 0 or more.
    """

    layout: PairLayout
    weight: Tensor

    @cached_property
    def n(self) -> Tensor:
        """Number of pairs of every draw, [D]."""
        return self.weight.sum(1)

    @cached_property
    def mass(self) -> Tensor:
        """Number of pairs by confidence, [D, K]."""
        return self.by_confidence(self.weight)

    @cached_property
    def truth(self) -> Tensor:
        """Sum of the factualities by confidence, [D, K]."""
        return self.by_confidence(self.weight * self.layout.factuality)

    @cached_property
    def mean(self) -> Tensor:
        """Mean factuality of every draw, [D]; NaN where it has no pair."""
        return self.truth.sum(1) / self.n

    @cached_property
    def factuality_mass(self) -> Tensor:
        """Number of pairs by factuality, [D, J]."""
        levels, place = self.layout.by_factuality
        return self.weight.new_zeros(len(self.weight), len(levels)).index_add_(1, place, self.weight)

    def by_confidence(self, values: Tensor) -> Tensor:
        """Return the sums of values [D, N] by confidence, [D, K]."""
        levels, place = self.layout.by_confidence
        return values.new_zeros(len(values), len(levels)).index_add_(1, place, values)


def _levels(values: Tensor) -> tuple[Tensor, Tensor]:
    """Return the different values, ascending, and the place of every value among them."""
    levels, place = torch.unique(values, return_inverse=True)
    return levels, place
