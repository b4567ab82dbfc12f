"""The equations of the objectives, one pure function each: tensors in, per-item values out, no mean taken.

Shapes: N rows, T tokens, B pairs. The training loop divides by the count over the whole optimiser batch.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor

from lovec.types import LovecError

TokenMean: TypeAlias = Literal["sequence", "token", "constant"]
_STD_FLOOR = 1e-4
"""Keeps an advantage finite where a group's rewards hardly differ (TRL's value)."""
_CERTAIN = -1e-12
"""Log-probability that counts as certain: the odds of anything nearer to 1 are taken there."""


def sequence_logps(token_logps: Tensor, mask: Tensor, average: bool = False) -> Tensor:
    """Log-probability of whole completions: sum over t of log pi(y_t | q, y_<t).

    Summed in float64: over hundreds of tokens a float32 sum loses the digits in which policy and reference differ.

    Args:
        token_logps: log-probability of every token, [N, T]; masked positions may hold anything, NaN included.
        mask: 1 (or True) on the tokens that count, [N, T].
        average: divide by the number of tokens that count, as ORPO's odds do (Hong et al. 2024, arXiv 2403.07691,
            eq. 3). A row without any gives 0.

    Returns:
        [N], float64.
    """
    keep = mask.bool()
    sums = token_logps.double().masked_fill(~keep, 0.0).sum(-1)
    return sums / keep.sum(-1).clamp(min=1) if average else sums


def sft_nll(token_logps: Tensor) -> Tensor:
    """Negative log-likelihood of every token: -log pi(y_t | q, y_<t).

    Args:
        token_logps: log-probability of every token, [N, T].

    Returns:
        [N, T], in nats.
    """
    return -token_logps


def dpo_loss(chosen: Tensor, rejected: Tensor, ref_chosen: Tensor, ref_rejected: Tensor, beta: float) -> Tensor:
    """Direct preference optimisation (Rafailov et al. 2023, arXiv 2305.18290, eq. 7).

    -log sigmoid(beta [(log pi(y_w) - log ref(y_w)) - (log pi(y_l) - log ref(y_l))])

    It is ln 2 where policy and reference agree.

    Args:
        chosen: log pi(y_w | q), summed over the completion, [B].
        rejected: log pi(y_l | q), [B].
        ref_chosen: log ref(y_w | q), [B].
        ref_rejected: log ref(y_l | q), [B].
        beta: strength of the pull to the reference, above 0.

    Returns:
        [B], in nats.
    """
    margin = (chosen - ref_chosen) - (rejected - ref_rejected)
    return -F.logsigmoid(beta * margin)


def orpo_odds_loss(chosen: Tensor, rejected: Tensor) -> Tensor:
    """Odds-ratio term of ORPO (Hong et al. 2024, arXiv 2403.07691, eq. 7).

    -log sigmoid(log odds(y_w) - log odds(y_l)), with odds(y) = P(y) / (1 - P(y)) and log P(y) the mean over tokens

    Args:
        chosen: log-probability of y_w averaged over its tokens, [B]. Where it is 0 (every token certain, as float32
            may say) the odds have no finite value: those of 1 - 1e-12 are taken, and the row has no gradient there.
        rejected: the same of y_l, [B].

    Returns:
        [B], in nats, always finite for finite log-probabilities.
    """
    return -F.logsigmoid(_log_odds(chosen) - _log_odds(rejected))


def group_advantages(rewards: Tensor) -> Tensor:
    """How much better a rollout is than the others of its prompt: (r - mean) / (std + 1e-4), with Bessel's std.

    LoVeC's GRPO (Shao et al. 2024, arXiv 2402.03300, sec. 4.1.2), as TRL 0.15.2 computes it.

    Args:
        rewards: [P, G], G rollouts of each of P prompts.

    Returns:
        [P, G]; exactly zero in a group whose rewards are all equal.

    Raises:
        LovecError: G is 1, so there is nothing to compare with, or a reward is NaN or infinite.
    """
    if rewards.dim() != 2 or rewards.shape[1] < 2:
        raise LovecError(f"rewards have the shape {list(rewards.shape)}, expected [prompts, rollouts] with 2 or more")
    if not bool(torch.isfinite(rewards).all()):
        prompt, rollout = (~torch.isfinite(rewards)).nonzero()[0].tolist()
        raise LovecError(
            f"the reward of rollout {rollout} of prompt {prompt} is {float(rewards[prompt, rollout])}, expected a "
            "finite number; mend the reward or the oracle"
        )
    equal = (rewards == rewards[:, :1]).all(1, keepdim=True)  # a mean of equal numbers may differ from them by rounding
    centred = rewards - rewards.mean(1, keepdim=True)
    return (centred / (rewards.std(1, keepdim=True) + _STD_FLOOR)).masked_fill(equal, 0.0)


def k3_kl(token_logps: Tensor, ref_token_logps: Tensor) -> Tensor:
    """Unbiased, never negative estimate of KL(policy || reference) at every token the policy sampled.

    exp(log ref - log pi) - (log ref - log pi) - 1 ("k3" of Schulman 2020; GRPO, arXiv 2402.03300, eq. 4)

    Args:
        token_logps: log-probability under the policy, [N, T].
        ref_token_logps: the same under the reference, [N, T].

    Returns:
        [N, T], in nats; 0 where the two agree.
    """
    difference = ref_token_logps - token_logps
    return torch.expm1(difference) - difference


def grpo_token_loss(
    token_logps: Tensor,
    old_token_logps: Tensor,
    ref_token_logps: Tensor | None,
    advantages: Tensor,
    clip_low: float,
    clip_high: float,
    beta: float,
    weights: Tensor | None = None,
) -> Tensor:
    """Loss of every sampled token under GRPO (LoVeC, appendix "GRPO Loss Design").

    -(min(ratio A, clip(ratio, 1 - clip_low, 1 + clip_high) A) - beta k3), ratio = exp(log pi - log pi_old)

    Args:
        token_logps: log-probability under the policy that is trained, [N, T].
        old_token_logps: the same under the policy that sampled, without gradient, [N, T].
        ref_token_logps: the same under the reference, without gradient, [N, T]; may be None where ``beta`` is 0.
        advantages: one a rollout [N], or one a token [N, T].
        clip_low: how far below 1 a ratio may pull.
        clip_high: how far above 1.
        beta: weight of the KL term.
        weights: factors of the policy term, at least 0, [N, T], such as `importance_weights`; None is 1. Minimum and
            clip commute with them, so they are factors of the advantages.

    Returns:
        [N, T].
    """
    if advantages.dim() == 1:
        advantages = advantages[:, None]
    if weights is not None:
        advantages = weights * advantages
    ratio = torch.exp(token_logps - old_token_logps)
    gain = torch.minimum(ratio * advantages, ratio.clamp(1.0 - clip_low, 1.0 + clip_high) * advantages)
    if beta == 0.0:
        return -gain
    if ref_token_logps is None:
        raise LovecError(f"beta is {beta}, so reference log-probs are needed; give them, or beta 0")
    return beta * k3_kl(token_logps, ref_token_logps) - gain


def importance_weights(token_logps: Tensor, sampler_logps: Tensor, cap: float) -> Tensor:
    """Weights that make tokens sampled by another engine count as the trained policy's own, truncated.

    min(pi(y_t) / mu(y_t), cap), with mu what the engine sampled from (Ionides 2008, "Truncated importance sampling", J.
    Comput. Graph. Stat. 17(2); here token by token).

    An advantage times its token's weight weighs the whole policy term, since min and clip commute with a factor that
    is not negative.

    Args:
        token_logps: log pi of every token under the trained policy at the time of sampling, without gradient, [N, T].
        sampler_logps: log mu, as the engine gave it, at the same temperature, [N, T].
        cap: largest weight, above 0.

    Returns:
        [N, T], in (0, cap].
    """
    return torch.exp(token_logps - sampler_logps).clamp(max=cap)


def row_means(values: Tensor, mask: Tensor, length: int | None = None) -> Tensor:
    """Mean of every row over the tokens that count, or their sum over a constant length: [N], float64.

    Args:
        values: [N, T]; masked positions may hold anything, NaN included.
        mask: 1 (or True) on the tokens that count, [N, T].
        length: what to divide by; None is the row's own number of tokens (a row without any gives 0).
    """
    keep = mask.bool()
    sums = values.double().masked_fill(~keep, 0.0).sum(-1)
    return sums / (keep.sum(-1).clamp(min=1) if length is None else length)


def reduce_tokens(x: Tensor, mask: Tensor, how: TokenMean, length: int | None = None) -> Tensor:
    """Mean over the tokens of a whole batch.

    The training loop does the same over micro-batches and processes; this is the definition.

    Args:
        x: [N, T]; masked positions may hold anything, NaN included.
        mask: 1 (or True) on the tokens that count, [N, T].
        how: "sequence": mean over each row, then over rows (GRPO); "token": mean over all tokens (DAPO, arXiv
            2503.14476); "constant": each row's sum over a constant length, then mean over rows (Dr. GRPO, arXiv
            2503.20783).
        length: the constant length; None is T.

    Returns:
        A scalar, float64.
    """
    if how == "token":
        keep = mask.bool()
        return x.double().masked_fill(~keep, 0.0).sum() / keep.sum().clamp(min=1)
    if how not in ("sequence", "constant"):
        raise LovecError(f"how is {how!r}, expected sequence, token or constant")
    return row_means(x, mask, None if how == "sequence" else length or x.shape[-1]).mean()


def _log_odds(logps: Tensor) -> Tensor:
    """log(p / (1 - p)) from log p, exact near p = 0 and p = 1."""
    logps = logps.clamp(max=_CERTAIN)
    return logps - torch.log(-torch.expm1(logps))
