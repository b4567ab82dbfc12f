"""Group-relative policy optimisation."""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

from torch import Tensor

from lovec.core.settings import NonNegative, Positive
from lovec.losses import group_advantages, grpo_token_loss, k3_kl
from lovec.modules.rollout import RolloutModule

RewardScale: TypeAlias = Literal["group", "batch"]


class GRPO(RolloutModule):
    """LoVeC's GRPO (appendix "GRPO Loss Design"; Shao et al. 2024, arXiv 2402.03300).

    The reference of its KL term is the policy that the run started from.

    Args:
        beta: weight of the KL term; with 0 no reference is computed.
        clip_low: the ratio of new to old probability is clipped below 1 - ``clip_low``.
        clip_high: the ratio is clipped above 1 + ``clip_high``; null is ``clip_low``.
        scale_rewards: whose standard deviation divides the advantages: that of the "group" (the paper), or that of all
            rewards of the "batch" of rollouts, over all processes.
        kwargs: arguments of ``RolloutModule``.
    """

    def __init__(
        self,
        beta: NonNegative = 0.04,
        clip_low: Positive = 0.2,
        clip_high: Positive | None = None,
        scale_rewards: RewardScale = "group",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.beta = beta
        self.clip_low = clip_low
        self.clip_high = clip_low if clip_high is None else clip_high
        self.scale_rewards = scale_rewards
        self.needs_reference = beta != 0.0

    def advantages(self, rewards: Tensor) -> Tensor:
        """Center and scale the rewards of each row, [P, G]."""
        return group_advantages(rewards, None if self.scale_rewards == "group" else self.reward_std)

    def token_loss(
        self,
        token_logps: Tensor,
        old_token_logps: Tensor,
        ref_token_logps: Tensor | None,
        advantages: Tensor,
        mask: Tensor,
    ) -> Tensor:
        """Compute the clipped policy-gradient loss and the KL penalty of every token, [N, T]."""
        clips = (self.clip_low, self.clip_high)
        return grpo_token_loss(token_logps, old_token_logps, ref_token_logps, advantages, *clips, self.beta)

    def token_metrics(
        self, token_logps: Tensor, old_token_logps: Tensor, ref_token_logps: Tensor | None
    ) -> dict[str, Tensor]:
        """Compute which ratios lie beyond a clip, and the KL divergence from the reference."""
        ratio = (token_logps - old_token_logps).exp()
        clipped = (ratio < 1.0 - self.clip_low) | (ratio > 1.0 + self.clip_high)
        metrics = {"clipped": clipped.float()}
        return metrics if ref_token_logps is None else metrics | {"kl": k3_kl(token_logps, ref_token_logps)}
