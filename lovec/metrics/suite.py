"""All figures of a result table's row at once."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from lovec.metrics.functional import brier_score, ece_m, spearman
from lovec.metrics.pairs import PairMetric


class CalibrationSuite(PairMetric):
    """Brier score, ECE-M, Spearman's correlation and the share of malformed tags, over all batches and processes.

    Feed it with sentences, or with the means of passages for the figures at passage level.

    Args:
        kwargs: options of ``torchmetrics.Metric``.
    """

    malformed: Tensor

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.add_state("malformed", torch.zeros((), dtype=torch.int64), dist_reduce_fx="sum")

    def update(self, confidence: Tensor, factuality: Tensor, malformed: int = 0) -> None:
        """Add pairs, and how many more had no confidence.

        Args:
            confidence: [N], in [0, 1]; those without one are left out.
            factuality: [N], in [0, 1].
            malformed: number of items with a factuality but without a valid confidence.

        Raises:
            LovecError: see ``lovec.metrics.functional.checked_pair``.
        """
        super().update(confidence, factuality)
        self.malformed += malformed

    def compute(self) -> dict[str, float]:
        """The figures of all pairs.

        Returns:
            ``brier``, ``ece_m`` (10 bins), ``spearman``, ``mean_confidence``, ``mean_factuality``; ``n``, the number of
            pairs; ``malformed``, the share malformed / (malformed + n). What is undefined is NaN.
        """
        confidence, factuality = self.pairs()
        n, malformed = confidence.numel(), int(self.malformed)
        return {
            "brier": float(brier_score(confidence, factuality)),
            "ece_m": float(ece_m(confidence, factuality)),
            "spearman": float(spearman(confidence, factuality)),
            "malformed": malformed / (malformed + n) if malformed + n else float("nan"),
            "mean_confidence": float(confidence.mean()),
            "mean_factuality": float(factuality.mean()),
            "n": float(n),
        }
