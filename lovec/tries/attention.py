"""Exact attention over a trie without a mask of its whole size.

The visible pairs of queries and keys (every token sees itself and its ancestors) are cut into rectangles that overlap
nowhere. Each is computed alone; the shares of a query are joined by their log-sum-exp, as in FlashAttention (Dao et
al. 2022, arXiv 2205.14135), and its backward pass needs nothing but the joint output and log-sum-exp.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

import torch
from torch import Tensor

from lovec.tries.trie import Run, TrieTokens

_MOST_VARIANTS = 64
"""Compiled variants of flex attention: dtypes, patterns of gradients, and short inputs."""

_BUSH = 64
"""Short neighbouring runs are computed together, with a mask, up to this many tokens: a call each would cost more."""


@dataclass(frozen=True, slots=True)
class Rectangle:
    """Queries and keys that are computed together.

    Attributes:
        queries: first query, and the one behind the last.
        keys: first key, and the one behind the last.
        kind: "full" where every query sees every key; "causal" where queries and keys are the same tokens of one run;
            "masked" where it takes a mask.
    """

    queries: tuple[int, int]
    keys: tuple[int, int]
    kind: str

    @property
    def own(self) -> bool:
        """Whether its queries are its keys."""
        return self.queries == self.keys


def rectangles(tokens: TrieTokens) -> list[Rectangle]:
    """Cut the visible pairs of a trie into rectangles; those whose queries are their keys come first."""
    siblings: dict[int | None, list[Run]] = {}
    for run in tokens.runs:
        siblings.setdefault(run.parent, []).append(run)
    own, earlier = [], []
    parents: list[int | None] = [None]
    for parent in parents:
        runs = siblings.get(parent, [])
        for group, size in _groups(runs, tokens, together=False):
            first, length = group[0].start, group[0].length
            if size <= _BUSH and length < size:
                own.append(Rectangle((first, first + size), (first, first + size), "masked"))
            else:  # a run alone
                own.append(Rectangle((first, first + length), (first, first + length), "causal"))
                parents.append(first)
        if parent is not None:
            for group, size in _groups(runs, tokens, together=True):
                queries = (group[0].start, group[0].start + size)
                kind = "full" if group[0].shared == group[-1].shared else "masked"
                earlier.append(Rectangle(queries, (parent, parent + group[0].shared), kind))
    return own + earlier


def _groups(runs: Sequence[Run], tokens: TrieTokens, together: bool) -> Iterator[tuple[list[Run], int]]:
    """Group neighbouring runs of one parent with their subtrees while these are short.

    Args:
        runs: in order, so that those after the most tokens of their parent come first.
        tokens: the trie.
        together: group runs after the same tokens of their parent, however long they are.

    Yields:
        The runs of a group, and the number of tokens of their subtrees.
    """
    group: list[Run] = []
    size = 0
    for run in runs:
        own = int(tokens.ends[run.start]) - run.start
        alike = together and bool(group) and group[0].shared == run.shared
        if group and size + own > _BUSH and not alike:
            yield group, size
            group, size = [], 0
        group.append(run)
        size += own
    if group:
        yield group, size


class TriePlan:
    """How attention over one trie is computed, in all layers alike.

    Args:
        tokens: the trie.
        device: where the model runs.

    Attributes:
        longest: tokens of the longest sequence.
        parts: the rectangles, each with its mask, [queries, keys] as ``additive`` gives it; None where it takes none.
    """

    def __init__(self, tokens: TrieTokens, device: torch.device) -> None:
        self.longest = int(tokens.positions.max(initial=-1)) + 1
        self.ends = torch.from_numpy(tokens.ends).to(device)
        cut = rectangles(tokens)
        self.parts = [(part, additive(self.visible(part)) if part.kind == "masked" else None) for part in cut]

    def attend(self, attention: Any, query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
        """Compute attention for an attention module, see the function of this name."""
        return attend(query, key, value, scale, self)

    def visible(self, part: Rectangle) -> Tensor:
        """Return which keys of a rectangle its queries see, [queries, keys] bool."""
        queries = torch.arange(*part.queries, device=self.ends.device)[:, None]
        keys = torch.arange(*part.keys, device=self.ends.device)
        return (keys <= queries) & (queries < self.ends[part.keys[0] : part.keys[1]])

    @cached_property
    def block_mask(self) -> Any:
        """The visible pairs as a mask of flex attention."""
        from torch.nn.attention.flex_attention import create_block_mask

        ends, length = self.ends, len(self.ends)

        def visible(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
            return (key <= query) & (query < ends[key])

        return create_block_mask(visible, None, None, length, length, device=str(ends.device))


def attend(query: Tensor, key: Tensor, value: Tensor, scale: float, plan: TriePlan) -> Tensor:
    """Compute attention over a trie of L tokens.

    Args:
        query: [1, H, L, D].
        key: [1, G, L, D], with H a multiple of G.
        value: [1, G, L, D].
        scale: factor of the scores.
        plan: that of the trie.

    Returns:
        [1, L, H, D].
    """
    device = query.device.type
    query, key, value = in_autocast(query, key, value)
    if device == "cpu":
        with torch.autocast(device, enabled=False):  # which would round the products of what is float32 here
            out: Tensor = _TrieAttention.apply(query, key, value, scale, plan)  # type: ignore[no-untyped-call]
    else:
        # For less than 128 tokens torch has a kernel that takes at most 128 queries of all heads that share keys.
        out = _compiled_flex_attention()(
            query,
            key,
            value,
            block_mask=plan.block_mask,
            scale=scale,
            enable_gqa=query.shape[1] != key.shape[1],
            kernel_options={"FORCE_USE_FLEX_ATTENTION": True},
        )
    return out.transpose(1, 2).contiguous()


def in_autocast(*tensors: Tensor) -> Iterator[Tensor]:
    """Yield tensors in the type in which autocast multiplies them; without autocast as they are."""
    for x in tensors:
        device = x.device.type
        yield x.to(torch.get_autocast_dtype(device)) if torch.is_autocast_enabled(device) else x


@cache
def _compiled_flex_attention() -> Any:
    """Return flex attention, compiled for every dtype and pattern of gradients that it meets.

    Where it were not compiled it would compute, and keep, the scores of all pairs. So torch may compile more variants
    than the eight that it stops at, and an error says where it cannot.
    """
    from torch import _dynamo
    from torch._functorch import config
    from torch.nn.attention.flex_attention import flex_attention

    config.donated_buffer = False  # whose memory a backward pass reuses, so that none can be computed again
    _dynamo.config.recompile_limit = max(_MOST_VARIANTS, _dynamo.config.recompile_limit)
    return torch.compile(flex_attention, dynamic=True, fullgraph=True)


class _TrieAttention(torch.autograd.Function):
    """Attention over a trie on the CPU: query [1, H, L, D], key and value [1, G, L, D], with H a multiple of G."""

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, scale: float, plan: TriePlan) -> Tensor:
        keys, values = (_repeated(x, query.shape[1]) for x in (key, value))
        # Heads side by side in memory, as the next layer takes them.
        out = torch.empty_like(query.transpose(1, 2), dtype=torch.float32, memory_format=torch.contiguous_format)
        out = out.transpose(1, 2)
        logsumexp = torch.empty(query.shape[:-1], dtype=torch.float32)
        for part, mask in plan.parts:
            q, k, v = _slices(part, query, keys, values)
            part_out, part_sum = _attend(q, k, v, scale, part, mask)
            rows = slice(*part.queries)
            if part.own:
                logsumexp[:, :, rows], out[:, :, rows] = part_sum, part_out
                continue
            total = torch.logaddexp(logsumexp[:, :, rows], part_sum)
            out[:, :, rows] *= (logsumexp[:, :, rows] - total).exp()[..., None]
            out[:, :, rows] += part_out * (part_sum - total).exp()[..., None]
            logsumexp[:, :, rows] = total
        out = out.to(query.dtype)
        ctx.save_for_backward(query, key, value, out, logsumexp)
        ctx.scale, ctx.plan = scale, plan
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor, None, None]:
        query, key, value, out, logsumexp = ctx.saved_tensors
        keys, values = (_repeated(x, query.shape[1]) for x in (key, value))
        grads = [torch.zeros(query.shape, dtype=torch.float32) for _ in range(3)]
        for part, mask in ctx.plan.parts:
            q, k, v = _slices(part, query, keys, values)
            rows = slice(*part.queries)
            upstream = (grad[:, :, rows], out[:, :, rows], logsumexp[:, :, rows])
            with torch.autocast("cpu", enabled=False):  # as in the forward pass
                shares = _attend_backward(q, k, v, *upstream, ctx.scale, part, mask)
            for total, share, place in zip(grads, shares, (part.queries, part.keys, part.keys), strict=True):
                total[:, :, slice(*place)] += share
        grouped = [g.view(1, key.shape[1], -1, *key.shape[2:]).sum(2) for g in grads[1:]]
        return grads[0].to(query.dtype), grouped[0].to(key.dtype), grouped[1].to(value.dtype), None, None


def _repeated(x: Tensor, heads: int) -> Tensor:
    """Repeat keys or values [1, G, L, D] for every head that shares them, [1, heads, L, D]."""
    return x if x.shape[1] == heads else x.repeat_interleave(heads // x.shape[1], dim=1)


def _slices(part: Rectangle, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    keys = slice(*part.keys)
    return query[:, :, slice(*part.queries)], key[:, :, keys], value[:, :, keys]


def _attend(
    q: Tensor, k: Tensor, v: Tensor, scale: float, part: Rectangle, mask: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Return the attention of one rectangle, [1, H, queries, D], and its log-sum-exp, [1, H, queries] float32."""
    if mask is None:
        result: tuple[Tensor, Tensor] = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
            q, k, v, 0.0, part.kind == "causal", scale=scale
        )
        return result
    return masked_attention(q, k, v, scale, mask)


def _attend_backward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    grad: Tensor,
    out: Tensor,
    logsumexp: Tensor,
    scale: float,
    part: Rectangle,
    mask: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the shares of one rectangle in the gradients of its queries, keys and values.

    Args:
        q: queries of the rectangle.
        k: its keys.
        v: its values.
        grad: gradient of the joint output of these queries.
        out: their joint output.
        logsumexp: their joint log-sum-exp.
        scale: of the scores.
        part: the rectangle.
        mask: its mask.
    """
    if mask is None:
        result: tuple[Tensor, Tensor, Tensor] = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(
            grad, q, k, v, out, logsumexp, 0.0, part.kind == "causal", scale=scale
        )
        return result
    return masked_attention_backward(q, k, v, grad, out, logsumexp, scale, mask)


def additive(visible: Tensor) -> Tensor:
    """Return what is added to scores, given which keys are seen: 0 or minus infinity, float32."""
    return torch.zeros(visible.shape, device=visible.device).masked_fill_(~visible, float("-inf"))


def masked_attention(q: Tensor, k: Tensor, v: Tensor, scale: float, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Compute attention in float32.

    Args:
        q: queries, [B, H, Q, D].
        k: keys, [B, H, K, D].
        v: values, [B, H, K, D].
        scale: factor of the scores.
        mask: which keys a query sees, some at least, as ``additive`` gives it: [Q, K], or with more dimensions before.

    Returns:
        The attention, [B, H, Q, D], and the log-sum-exp of the scores of every query, [B, H, Q].
    """
    q, k, v = q.float(), k.float(), v.float()
    if _has_kernel(q):
        result: tuple[Tensor, Tensor] = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
            q, k, v, 0.0, False, attn_mask=mask, scale=scale
        )
        return result
    scores = q @ k.mT * scale + mask
    logsumexp = scores.logsumexp(-1)
    return (scores - logsumexp[..., None]).exp() @ v, logsumexp


def masked_attention_backward(
    q: Tensor, k: Tensor, v: Tensor, grad: Tensor, out: Tensor, logsumexp: Tensor, scale: float, mask: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the shares of some keys in the gradients of queries, keys and values, float32.

    Args:
        q: as for ``masked_attention``, and so ``k``, ``v``, ``scale`` and ``mask``.
        k: keys.
        v: values.
        grad: gradient of the output of these queries to all keys that they see.
        out: that output.
        logsumexp: that of the scores of all these keys.
        scale: factor of the scores.
        mask: which of these keys a query sees.
    """
    grad, q, k, v, out = (x.float() for x in (grad, q, k, v, out))
    if _has_kernel(q):
        result: tuple[Tensor, Tensor, Tensor] = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(
            grad, q, k, v, out, logsumexp, 0.0, False, attn_mask=mask, scale=scale
        )
        return result
    probs = (q @ k.mT * scale + mask - logsumexp[..., None]).exp()
    grad_scores = probs * (grad @ v.mT - (grad * out).sum(-1, keepdim=True)) * scale
    return grad_scores @ k, grad_scores.mT @ q, probs.mT @ grad


def _has_kernel(x: Tensor) -> bool:
    """Return whether torch has a kernel that takes a mask and gives log-sum-exps where a tensor lies."""
    return x.device.type == "cpu"
