"""All figures of a result table's row at once."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from lovec.metrics.functional import auroc, brier_score, ece_m, entropy, spearman
from lovec.metrics.pairs import PairMetric
from lovec.metrics.records import Statements
from lovec.metrics.risk import aurc
from lovec.types import N_SCORES

MEANS = ("ttr", "diversity", "abstained", "ordinality")
"""Figures that are means of what ``Statements`` sums up, by its names."""


class CalibrationSuite(PairMetric):
    """Brier score, ECE-M, Spearman's correlation, AURC and the share of malformed tags, over all batches and processes.

    Entropy and number of the scores stated, words an answer, and how its words and sentences repeat each other, tell of
    a policy that says one score of everything or writes ever less. Feed it with sentences, or with the means of
    passages for the figures at passage level.

    Args:
        kwargs: options of ``torchmetrics.Metric``.
    """

    malformed: Tensor
    scores: Tensor
    words: Tensor
    answers: Tensor
    totals: Tensor

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.add_state("malformed", torch.zeros((), dtype=torch.int64), dist_reduce_fx="sum")
        self.add_state("scores", torch.zeros(N_SCORES, dtype=torch.int64), dist_reduce_fx="sum")
        self.add_state("words", torch.zeros((), dtype=torch.int64), dist_reduce_fx="sum")
        self.add_state("answers", torch.zeros((), dtype=torch.int64), dist_reduce_fx="sum")
        self.add_state("totals", torch.zeros(len(MEANS), 2, dtype=torch.float64), dist_reduce_fx="sum")

    def update(
        self, confidence: Tensor, factuality: Tensor, malformed: int = 0, stated: Statements | None = None
    ) -> None:
        """Add pairs, and how many more had no confidence.

        Args:
            confidence: [N], in [0, 1]; those without one are left out.
            factuality: [N], in [0, 1].
            malformed: number of items with a factuality but without a valid confidence.
            stated: what the answers say, see ``lovec.metrics.records.statements``.

        Raises:
            LovecError: see ``lovec.metrics.functional.checked_pair``.
        """
        super().update(confidence, factuality)
        self.malformed += malformed
        if stated is not None:
            self.scores += torch.tensor(stated.scores, device=self.device)
            self.words += stated.words
            self.answers += stated.answers
            totals = [getattr(stated, name) for name in MEANS]
            self.totals += torch.tensor(totals, dtype=torch.float64, device=self.device)

    def compute(self) -> dict[str, float]:
        """The figures of all pairs.

        Returns:
            ``brier``, ``ece_m`` (10 bins), ``spearman``, ``aurc``, ``mean_confidence``, ``mean_factuality``; ``auroc``,
            where all labels are 0 or 1; ``n``, the number of pairs; ``malformed``, the share malformed / (malformed +
            n); ``entropy`` (nats) of the histogram of the stated scores and ``distinct``, how many of the eleven occur;
            ``words``, ``ttr`` and ``diversity``, means of the answers; ``abstained``, the share of those that decline;
            ``ordinality``, the mean of the distributions. What is undefined is NaN.
        """
        confidence, factuality = self.pairs()
        n, malformed, answers = confidence.numel(), int(self.malformed), int(self.answers)
        return {
            "brier": float(brier_score(confidence, factuality)),
            "ece_m": float(ece_m(confidence, factuality)),
            "spearman": float(spearman(confidence, factuality)),
            "aurc": float(aurc(confidence, factuality)),
            "auroc": float(auroc(confidence, factuality)),
            "malformed": malformed / (malformed + n) if malformed + n else float("nan"),
            "mean_confidence": float(confidence.mean()),
            "mean_factuality": float(factuality.mean()),
            "entropy": float(entropy(self.scores)),
            "distinct": float((self.scores > 0).sum()) if self.scores.any() else float("nan"),
            "words": int(self.words) / answers if answers else float("nan"),
            **dict(zip(MEANS, (self.totals[:, 0] / self.totals[:, 1]).tolist(), strict=True)),
            "n": float(n),
        }
