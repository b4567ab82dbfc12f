"""Odds-ratio preference optimisation."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from lovec.core.settings import NonNegative
from lovec.losses import orpo_odds_loss
from lovec.modules.preference import PreferenceModule


class ORPO(PreferenceModule):
    """ORPO (Hong et al. 2024, arXiv 2403.07691, eq. 6): SFT on y_w and an odds-ratio term, without a reference.

    Args:
        odds_weight: weight of the odds-ratio term (lambda).
        sft_weight: weight of the SFT term on y_w; 1 in the paper.
        kwargs: arguments of ``PreferenceModule``.
    """

    needs_reference = False
    average_logps = True

    def __init__(self, odds_weight: NonNegative = 0.1, sft_weight: NonNegative = 1.0, **kwargs: Any) -> None:
        super().__init__(sft_weight=sft_weight, **kwargs)
        self.odds_weight = self.reward_scale = odds_weight

    def preference_loss(self, chosen: Tensor, rejected: Tensor, ref_chosen: Tensor, ref_rejected: Tensor) -> Tensor:
        """Compute -lambda log sigmoid(log odds of y_w - log odds of y_l), [B], from log-probs averaged over tokens."""
        return self.odds_weight * orpo_odds_loss(chosen, rejected)
