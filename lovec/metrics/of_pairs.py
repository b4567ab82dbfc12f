"""Metrics that need all pairs at once, of one set of pairs or of many draws from it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property

from torch import Tensor

from lovec.metrics.corp import Decomposition, decompose
from lovec.metrics.ranking import auarc_of, auprc_of, auroc_of, c_index_of, prr_of
from lovec.metrics.smooth import smooth_ece_of
from lovec.metrics.weighted import WeightedPairs


class DecomposedPairs(WeightedPairs):
    """Weighted pairs with the parts of their Brier score, which several metrics share."""

    @cached_property
    def parts(self) -> Decomposition:
        """Parts of the Brier score of every draw."""
        return decompose(self)


OF_PAIRS: Mapping[str, Callable[[DecomposedPairs], Tensor]] = {
    "miscalibration": lambda pairs: pairs.parts.miscalibration,
    "discrimination": lambda pairs: pairs.parts.discrimination,
    "uncertainty": lambda pairs: pairs.parts.uncertainty,
    "smooth_ece": smooth_ece_of,
    "c_index": c_index_of,
    "auroc": auroc_of,
    "auprc": auprc_of,
    "auarc": auarc_of,
    "prr": prr_of,
}
"""What computes a metric of every draw, by its name in ``lovec.metrics.table``: [D], float64, NaN where undefined."""
