"""The equations of the objectives as pure functions: tensors in, values per token, row or pair out, no mean taken.

Shapes: N rows, T tokens, B pairs. The training loop divides by the count over the whole optimiser batch.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor

from lovec.types import LovecError

TokenMean: TypeAlias = Literal["sequence", "token", "constant"]
"""How a loss is averaged over the tokens of a batch: "sequence" is the mean over each row, then over rows (GRPO),
"token" the mean over all tokens (DAPO, arXiv 2503.14476), "constant" each row's sum over a constant length, then the
mean over rows (Dr. GRPO, arXiv 2503.20783)."""
_STD_FLOOR = 1e-4
"""Added to a group's standard deviation, so that advantages stay finite where rewards hardly differ (TRL's value)."""
_CERTAIN = -1e-12
"""Largest log-probability whose odds are computed; larger ones are replaced by it, since the odds of 1 are infinite."""


def sequence_logps(token_logps: Tensor, mask: Tensor, average: bool = False) -> Tensor:
    """Compute the log-probability of whole completions: sum over t of log pi(y_t | q, y_<t).

    The sum is taken in float64: over hundreds of tokens a float32 sum loses the digits in which policy and reference
    differ.

    Args:
        token_logps: log-probability of every token, [N, T]; masked positions may hold any value, NaN included.
        mask: 1 (or True) on the tokens that count, [N, T].
        average: divide by the number of tokens that count, as ORPO's odds do (Hong et al. 2024, arXiv 2403.07691,
            eq. 3). A row in which no token counts gives 0.

    Returns:
        [N], float64.
    """
    keep = mask.bool()
    sums = token_logps.double().masked_fill(~keep, 0.0).sum(-1)
    return sums / keep.sum(-1).clamp(min=1) if average else sums


def sft_nll(token_logps: Tensor) -> Tensor:
    """Compute the negative log-likelihood of every token: -log pi(y_t | q, y_<t).

    Args:
        token_logps: log-probability of every token, [N, T].

    Returns:
        [N, T], in nats.
    """
    return -token_logps


def soft_score_nll(logps: Tensor, targets: Tensor) -> Tensor:
    """Compute the cross-entropy of scores to soft labels: -(a + 1 - z) log p(a) - (z - a) log p(a + 1), a = floor(z).

    The soft label of a real target z is on the two scores next to it, and its mean is z.

    Args:
        logps: log-probability of every score, [M, K].
        targets: z, [M], in [0, K - 1].

    Returns:
        [M], in nats.
    """
    targets = targets.to(logps.dtype)
    lower = targets.floor().clamp(0, logps.shape[-1] - 2)
    share = targets - lower
    index = lower.long()[:, None]
    below, above = (logps.gather(-1, index + step)[:, 0] for step in (0, 1))
    return -torch.where(share < 1, (1 - share) * below, 0.0) - torch.where(share > 0, share * above, 0.0)


def dpo_loss(chosen: Tensor, rejected: Tensor, ref_chosen: Tensor, ref_rejected: Tensor, beta: float) -> Tensor:
    """Compute the loss of direct preference optimisation (Rafailov et al. 2023, arXiv 2305.18290, eq. 7).

    -log sigmoid(beta [(log pi(y_w) - log ref(y_w)) - (log pi(y_l) - log ref(y_l))])

    The loss is ln 2 where policy and reference agree.

    Args:
        chosen: log pi(y_w | q), summed over the completion, [B].
        rejected: log pi(y_l | q), summed likewise, [B].
        ref_chosen: log ref(y_w | q), [B].
        ref_rejected: log ref(y_l | q), [B].
        beta: strength of the pull towards the reference, above 0.

    Returns:
        [B], in nats.
    """
    margin = (chosen - ref_chosen) - (rejected - ref_rejected)
    return -F.logsigmoid(beta * margin)


def orpo_odds_loss(chosen: Tensor, rejected: Tensor) -> Tensor:
    """Compute the odds-ratio term of ORPO (Hong et al. 2024, arXiv 2403.07691, eq. 7).

    -log sigmoid(log odds(y_w) - log odds(y_l)), with odds(y) = P(y) / (1 - P(y)) and log P(y) the mean over tokens.

    Args:
        chosen: log-probability of y_w averaged over its tokens, [B]. Where it is 0 (float32 can round a probability to
            1) the odds are infinite; those of 1 - 1e-12 are taken instead, and the row has no gradient.
        rejected: log-probability of y_l, averaged likewise, [B].

    Returns:
        [B], in nats, always finite for finite log-probabilities.
    """
    return -F.logsigmoid(_log_odds(chosen) - _log_odds(rejected))


def group_advantages(rewards: Tensor, std: float | None = None) -> Tensor:
    """Compute how much better each rollout is than the others of its prompt: (r - mean) / (std + 1e-4).

    The standard deviation has Bessel's correction. That of the group gives the advantages of LoVeC's GRPO (Shao et al.
    2024, arXiv 2402.03300, sec. 4.1.2), as TRL 0.15.2 computes them. One for all groups of a batch keeps groups whose
    rewards hardly differ from weighing as much as others (Liu et al. 2025, "Part I: Tricks or Traps?", arXiv
    2508.08221; TRL's ``scale_rewards="batch"``); the mean is the group's own with either.

    Args:
        rewards: [P, G], G rollouts of each of P prompts.
        std: the standard deviation to divide by, 0 or more; None is that of each group.

    Returns:
        [P, G]; exactly zero in a group whose rewards are all equal.

    Raises:
        LovecError: G is 1, so that there is nothing to compare with, or a reward is NaN or infinite.
    """
    if rewards.dim() != 2 or rewards.shape[1] < 2:
        raise LovecError(f"rewards have the shape {list(rewards.shape)}, expected [prompts, rollouts] with 2 or more")
    if not bool(torch.isfinite(rewards).all()):
        prompt, rollout = (~torch.isfinite(rewards)).nonzero()[0].tolist()
        raise LovecError(
            f"the reward of rollout {rollout} of prompt {prompt} is {float(rewards[prompt, rollout])}, expected a "
            "finite number; fix the reward or the oracle"
        )
    equal = (rewards == rewards[:, :1]).all(1, keepdim=True)  # a mean of equal numbers may differ from them by rounding
    centred = rewards - rewards.mean(1, keepdim=True)
    scale = rewards.std(1, keepdim=True) if std is None else std
    return (centred / (scale + _STD_FLOOR)).masked_fill(equal, 0.0)


def k3_kl(token_logps: Tensor, ref_token_logps: Tensor) -> Tensor:
    """Estimate KL(policy || reference) at every token that the policy sampled, without bias and never below 0.

    exp(log ref - log pi) - (log ref - log pi) - 1 ("k3" of Schulman 2020; GRPO, arXiv 2402.03300, eq. 4)

    Args:
        token_logps: log-probability under the policy, [N, T].
        ref_token_logps: log-probability under the reference, [N, T].

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
    """Compute the loss of every sampled token under GRPO (LoVeC, appendix "GRPO Loss Design").

    -(min(ratio A, clip(ratio, 1 - clip_low, 1 + clip_high) A) - beta k3), ratio = exp(log pi - log pi_old)

    Args:
        token_logps: log-probability under the policy that is trained, [N, T].
        old_token_logps: log-probability under the policy that sampled, without gradient, [N, T].
        ref_token_logps: log-probability under the reference, without gradient, [N, T]; may be None where ``beta`` is 0.
        advantages: one per rollout, [N], or one per token, [N, T].
        clip_low: the ratio is clipped below 1 - ``clip_low``.
        clip_high: the ratio is clipped above 1 + ``clip_high``.
        beta: weight of the KL term.
        weights: factors of the policy term, 0 or more, [N, T], such as ``importance_weights``; None is 1. They multiply
            the advantages, since minimum and clip commute with them.

    Returns:
        [N, T].

    Raises:
        LovecError: ``beta`` is not 0 and there are no reference log-probabilities.
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
        raise LovecError(f"beta is {beta}, so reference log-probabilities are needed; give them, or set beta to 0")
    return beta * k3_kl(token_logps, ref_token_logps) - gain


def score_variance(logps: Tensor) -> Tensor:
    """Compute how widely scores are spread: sum over c of p_c (c - m)^2, m = (sum of p_c c) / (sum of p_c).

    This is the variance of the score among well-formed tags, times their probability.

    Args:
        logps: log-probability of every score 0..K-1, [..., K]; the probabilities sum to at most 1, the rest is that of
            malformed tags.

    Returns:
        [...], in squared points of the scale, 0..((K - 1) / 2)^2.
    """
    scores = torch.arange(logps.shape[-1], dtype=logps.dtype, device=logps.device)
    mean = (logps.softmax(-1) * scores).sum(-1, keepdim=True)
    return (logps.exp() * (scores - mean) ** 2).sum(-1)


def score_entropy(logps: Tensor) -> Tensor:
    """Compute the entropy of the score among well-formed tags: -sum over c of q_c log q_c, q_c = p_c / (sum of p_c).

    Args:
        logps: log-probability of every score 0..K-1, [..., K]; finite.

    Returns:
        [...], in nats, 0..log K.
    """
    normalised = logps.log_softmax(-1)
    return -(normalised.exp() * normalised).sum(-1)


def importance_weights(token_logps: Tensor, sampler_logps: Tensor, cap: float) -> Tensor:
    """Compute truncated importance weights for tokens that another distribution sampled: min(pi(y_t) / mu(y_t), cap).

    mu is what was sampled from: the policy in another engine's arithmetic, or at another temperature (Ionides 2008,
    "Truncated importance sampling", J. Comput. Graph. Stat. 17(2); here per token). With these weights the tokens count
    as if the trained policy had sampled them.

    Args:
        token_logps: log pi of every token under the trained policy at the time of sampling, without gradient, [N, T].
        sampler_logps: log mu as the engine returned it, at the temperature of sampling, [N, T].
        cap: largest weight, above 0.

    Returns:
        [N, T], in (0, cap].
    """
    return torch.exp(token_logps - sampler_logps).clamp(max=cap)


def row_means(values: Tensor, mask: Tensor, length: int | None = None) -> Tensor:
    """Compute the mean of every row over the tokens that count, or their sum divided by a constant length.

    Args:
        values: [N, T]; masked positions may hold any value, NaN included.
        mask: 1 (or True) on the tokens that count, [N, T].
        length: the divisor; None is the row's own number of tokens (a row in which no token counts gives 0).

    Returns:
        [N], float64.
    """
    keep = mask.bool()
    sums = values.double().masked_fill(~keep, 0.0).sum(-1)
    return sums / (keep.sum(-1).clamp(min=1) if length is None else length)


def reduce_tokens(x: Tensor, mask: Tensor, how: TokenMean, length: int | None = None) -> Tensor:
    """Compute the mean over the tokens of a whole batch.

    This is the definition of what the training loop computes over micro-batches and processes.

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
    """Compute log(p / (1 - p)) from log p, exactly near p = 0 and p = 1."""
    logps = logps.clamp(max=_CERTAIN)
    return logps - torch.log(-torch.expm1(logps))
