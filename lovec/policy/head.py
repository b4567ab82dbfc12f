"""Log-probabilities of chosen tokens from hidden states, without the logits of all tokens in memory at once."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lovec.types import LovecError

LOGITS_AT_ONCE = 1 << 26
"""Logits that are in memory at once: 256 MiB in float32."""

_TARGETS_AT_ONCE = 4096
"""Rows of the output layer that the backward pass copies at once."""


def target_logps(
    hidden: Tensor, rows: Tensor, targets: Tensor, head: nn.Linear, temperature: float, softcap: float | None
) -> Tensor:
    """Compute log-probabilities of target tokens after hidden states.

    Each hidden state may have any number of targets. The gradient with respect to hidden states is made in the forward
    pass, chunk by chunk: that of log p(t) is W_t - E_p[W], with W the rows of the output layer, so that one vector per
    hidden state has to be kept, and the backward pass multiplies no matrices.

    Args:
        hidden: M hidden states, [M, D].
        rows: index of the hidden state before each target, ascending, [P].
        targets: token ids, [P].
        head: the output layer; its weights get no gradient.
        temperature: divides the logits.
        softcap: logits z are replaced by softcap tanh(z / softcap) first; None leaves them.

    Returns:
        [P] float32.
    """
    logps: Tensor = _TargetLogps.apply(hidden, rows, targets, head, temperature, softcap)  # type: ignore[no-untyped-call]
    return logps


def check_head(head: nn.Module) -> None:
    """Refuse an output layer that ``target_logps`` would compute wrongly.

    Raises:
        LovecError: it is adapted, quantised or otherwise no plain linear layer.
    """
    if type(head) is not nn.Linear or head.weight.requires_grad:
        raise LovecError(
            f"the output layer is a trained or adapted {type(head).__name__}, expected a frozen linear layer; leave "
            "lm_head out of the adapter's target_modules and modules_to_save"
        )


class _TargetLogps(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        rows: Tensor,
        targets: Tensor,
        head: nn.Linear,
        temperature: float,
        softcap: float | None,
    ) -> Tensor:
        logps = torch.empty(len(rows), dtype=torch.float32, device=hidden.device)
        slopes = torch.empty_like(logps)
        chunk = max(1, LOGITS_AT_ONCE // head.out_features)
        starts = torch.arange(0, len(hidden) + chunk, chunk, device=hidden.device)
        bounds = torch.searchsorted(rows, starts).tolist()
        means = []  # E_p[W] of every hidden state, where a gradient is wanted
        for number, states in enumerate(torch.split(hidden, chunk)):
            at = slice(bounds[number], bounds[number + 1])
            place = (rows[at] - number * chunk, targets[at])
            logits = F.linear(states, head.weight, head.bias).float()
            slope = None
            if softcap is not None:
                capped = torch.tanh(logits / softcap)
                logits, slope = softcap * capped, 1.0 - capped.square()
                slopes[at] = slope[place]
            if temperature != 1.0:
                logits = logits / temperature
            total = logits.logsumexp(-1, keepdim=True)
            logps[at] = logits[place] - total[place[0], 0]
            if ctx.needs_input_grad[0]:
                probs = logits.sub_(total).exp_()
                if slope is not None:
                    probs.mul_(slope)
                means.append(torch.mm(probs.to(head.weight.dtype), head.weight))
        if ctx.needs_input_grad[0]:
            ctx.save_for_backward(torch.cat(means), rows, targets, *([] if softcap is None else [slopes]))
            ctx.weight, ctx.temperature, ctx.dtype = head.weight, temperature, hidden.dtype
        return logps

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        means, rows, targets, *slopes = ctx.saved_tensors
        grad = grad / ctx.temperature
        total = torch.zeros(len(means), device=grad.device).index_add_(0, rows, grad)
        result = means.float() * -total[:, None]
        shares = grad * slopes[0] if slopes else grad
        for at, target, share in zip(*(x.split(_TARGETS_AT_ONCE) for x in (rows, targets, shares)), strict=True):
            result.index_add_(0, at, share[:, None] * ctx.weight[target])
        return result.to(ctx.dtype), None, None, None, None, None
