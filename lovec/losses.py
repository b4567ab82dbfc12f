"""The equations of the objectives, one pure function each: tensors in, per-item values out, no mean taken.

Shapes: N rows, T tokens, B pairs. The training loop divides by the count over the whole optimiser batch.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor


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
