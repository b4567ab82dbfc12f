"""Log-probabilities of chosen tokens from hidden states, without the logits of all tokens in memory at once."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

LOGITS_AT_ONCE = 1 << 26
"""Logits that are in memory at once: 256 MiB in float32."""

_TARGETS_AT_ONCE = 4096
"""Rows of the output layer that the backward pass copies at once."""


def target_logps(
    hidden: Tensor, rows: Tensor, targets: Tensor, head: Any, temperature: float, softcap: float | None
) -> Tensor:
    """Compute log-probabilities of target tokens after hidden states, some of them at a time.

    Where the output layer is frozen, the gradient is made in the forward pass: that of log p(t) is W_t - E_p[W], with W
    the rows of the layer. So one vector per hidden state is kept, and the backward pass multiplies no matrices. A layer
    with an adapter is computed again in the backward pass.

    In half precision the rounding of E_p[W] would be more than what W_t differs from it where p(t) is above 0.99. There
    W_t - E_p[W] is made at once, from probabilities less 1 at t: that of the first target after every hidden state.

    Args:
        hidden: M hidden states, [M, D].
        rows: index of the hidden state before each target, ascending, [P].
        targets: token ids, [P].
        head: the output layer.
        temperature: divides the logits.
        softcap: logits z are replaced by softcap tanh(z / softcap) first; None leaves them.

    Returns:
        [P] float32.
    """
    chunk = max(1, LOGITS_AT_ONCE // head.out_features)
    starts = torch.arange(0, len(hidden) + chunk, chunk, device=hidden.device)
    bounds = torch.searchsorted(rows, starts).tolist()
    if type(head) is nn.Linear and not head.weight.requires_grad:
        logps: Tensor = _TargetLogps.apply(hidden, rows, targets, head, temperature, softcap, bounds)  # type: ignore[no-untyped-call]
        return logps
    from torch.utils.checkpoint import checkpoint

    parts = []
    for states, start, first, end in zip(torch.split(hidden, chunk), starts, bounds, bounds[1:], strict=False):
        at = (rows[first:end] - start, targets[first:end])
        parts.append(checkpoint(_chunk_logps, head, states, at, temperature, softcap, use_reentrant=False))
    return torch.cat(parts)


def _chunk_logps(
    head: nn.Module, states: Tensor, at: tuple[Tensor, Tensor], temperature: float, softcap: float | None
) -> Tensor:
    logits, _ = _scaled(head(states), temperature, softcap)
    return logits[at] - logits.logsumexp(-1)[at[0]]


def _scaled(logits: Tensor, temperature: float, softcap: float | None) -> tuple[Tensor, Tensor | None]:
    """Return the logits that probabilities are made of, float32, and the slope of the soft cap where there is one."""
    logits, slope = logits.float(), None
    if softcap is not None:
        capped = torch.tanh(logits / softcap)
        logits, slope = softcap * capped, 1.0 - capped.square()
    if temperature != 1.0:
        logits = logits / temperature
    return logits, slope


def _chunk(
    head: nn.Linear,
    states: Tensor,
    at: tuple[Tensor, Tensor],
    temperature: float,
    softcap: float | None,
    gradient: bool,
    taken: Tensor | None,
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Return log-probabilities of a chunk's targets, slopes of the soft cap there, and E_p[W] where it is wanted.

    E_p[W] is less the rows of the targets that are ``taken``, 1.0 each, while the others are 0.0; None takes none.

    This is a function so that nothing as large as the logits is left when those of the next chunk are made.
    """
    logits, slope = _scaled(F.linear(states, head.weight, head.bias), temperature, softcap)
    total = logits.logsumexp(-1, keepdim=True)
    logps = logits[at] - total[at[0], 0]
    if not gradient:
        return logps, None, None
    probs = logits.sub_(total).exp_()
    if taken is not None:
        probs.index_put_(at, -taken, accumulate=True)
    if slope is not None:
        probs.mul_(slope)
    mean = torch.mm(probs.to(head.weight.dtype), head.weight)
    return logps, None if slope is None else slope[at], mean


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
        bounds: list[int],
    ) -> Tensor:
        logps = torch.empty(len(rows), dtype=torch.float32, device=hidden.device)
        slopes = torch.empty_like(logps)
        half = torch.is_autocast_enabled(hidden.device.type) or head.weight.dtype.itemsize < 4
        taken = (rows.diff(prepend=rows[:1] - 1) > 0).float() if half else None  # the first target of every state
        means, start = [], 0  # E_p[W] of every hidden state, where a gradient is wanted
        chunks = torch.split(hidden, max(1, LOGITS_AT_ONCE // head.out_features))
        for states, first, end in zip(chunks, bounds, bounds[1:], strict=False):
            place = (rows[first:end] - start, targets[first:end])
            start += len(states)
            logps[first:end], slope, mean = _chunk(
                head,
                states,
                place,
                temperature,
                softcap,
                ctx.needs_input_grad[0],
                None if taken is None else taken[first:end],
            )
            if slope is not None:
                slopes[first:end] = slope
            if mean is not None:
                means.append(mean)
        if means:
            ctx.save_for_backward(torch.cat(means), rows, targets, *([] if softcap is None else [slopes]))
            ctx.weight, ctx.temperature, ctx.dtype, ctx.taken = head.weight, temperature, hidden.dtype, taken
        return logps

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        means, rows, targets, *slopes = ctx.saved_tensors
        grad = grad / ctx.temperature
        total = torch.zeros(len(means), device=grad.device).index_add_(0, rows, grad)
        result = means.float() * -total[:, None]
        if ctx.taken is not None:
            grad = grad - total[rows] * ctx.taken
        shares = grad * slopes[0] if slopes else grad
        for at, target, share in zip(*(x.split(_TARGETS_AT_ONCE) for x in (rows, targets, shares)), strict=True):
            result.index_add_(0, at, share[:, None] * ctx.weight[target])
        return result.to(ctx.dtype), None, None, None, None, None, None
