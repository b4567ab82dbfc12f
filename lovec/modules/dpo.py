"""Direct preference optimisation."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from lovec.core.settings import Positive
from lovec.losses import dpo_loss
from lovec.modules.preference import PreferenceModule


class DPO(PreferenceModule):
    """DPO (Rafailov et al. 2023, arXiv 2305.18290, eq. 7); the reference is the policy that the run started from.

    Args:
        beta: strength of the pull towards the reference, above 0.
        kwargs: arguments of ``PreferenceModule``.
    """

    def __init__(self, beta: Positive = 0.1, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.beta = self.reward_scale = beta

    def preference_loss(self, chosen: Tensor, rejected: Tensor, ref_chosen: Tensor, ref_rejected: Tensor) -> Tensor:
        """Compute -log sigmoid(beta times the margin over the reference), [B]."""
        return dpo_loss(chosen, rejected, ref_chosen, ref_rejected, self.beta)
