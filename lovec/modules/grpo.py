"""Group-relative policy optimisation."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from lovec.losses import group_advantages, grpo_token_loss, k3_kl
from lovec.modules.rollout import RolloutModule


class GRPO(RolloutModule):
    """LoVeC's GRPO (appendix "GRPO Loss Design"; Shao et al. 2024, arXiv 2402.03300), against the run's first policy.

    Args:
        beta: weight of the KL term; 0 leaves the reference out.
        clip_low: how far below 1 the ratio of new to old probability may pull.
        clip_high: how far above 1; null is ``clip_low``.
        kwargs: arguments of ``RolloutModule``.
    """

    def __init__(
        self, beta: float = 0.04, clip_low: float = 0.2, clip_high: float | None = None, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self.beta = beta
        self.clip_low = clip_low
        self.clip_high = clip_low if clip_high is None else clip_high
        self.needs_reference = beta != 0.0

    def advantages(self, rewards: Tensor) -> Tensor:
        """Rewards centred and scaled within their group, [P, G]."""
        return group_advantages(rewards)

    def token_loss(
        self, token_logps: Tensor, old_token_logps: Tensor, ref_token_logps: Tensor | None, advantages: Tensor
    ) -> Tensor:
        """Clipped policy gradient and KL penalty, [N, T]."""
        clips = (self.clip_low, self.clip_high)
        return grpo_token_loss(token_logps, old_token_logps, ref_token_logps, advantages, *clips, self.beta)

    def figures(
        self, token_logps: Tensor, old_token_logps: Tensor, ref_token_logps: Tensor | None
    ) -> dict[str, Tensor]:
        """KL to the reference, and the share of tokens whose ratio lies beyond a clip."""
        ratio = (token_logps - old_token_logps).exp()
        clipped = (ratio < 1.0 - self.clip_low) | (ratio > 1.0 + self.clip_high)
        found = {"clipped": clipped.float()}
        return found if ref_token_logps is None else found | {"kl": k3_kl(token_logps, ref_token_logps)}
