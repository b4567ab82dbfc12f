"""Attention of sequences that grow part by part, with gradients, where a part depends on what came of those before it.

A score is drawn from the distribution behind its sentence, and the next sentence is read after it. Every token is
computed once: keys and values of earlier parts are kept in rows, one for each sequence, and the backward pass goes
through the parts from the last one to the first, adding to the gradients of these keys and values on its way.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from lovec.tries.attention import (
    TriePlan,
    additive,
    attend,
    in_autocast,
    masked_attention,
    masked_attention_backward,
)
from lovec.tries.trie import TrieTokens


def pads(device: torch.device) -> bool:
    """Return whether new tokens of all sequences are computed together, with padding: fewer kernels, more products."""
    return device.type != "cpu"


class _Layer:
    """Keys and values of one layer, [R, G, S, D], and their gradients while a backward pass goes on."""

    def __init__(self, rows: int, slots: int, key: Tensor) -> None:
        self.stored = [key.new_zeros(rows, key.shape[1], slots, key.shape[3]) for _ in range(2)]
        self.grads: list[Tensor] | None = None

    def add(self, place: tuple[Any, ...], shares: Sequence[Tensor]) -> None:
        """Add shares of some keys and values to their gradients."""
        if self.grads is None:
            self.grads = [torch.zeros_like(part, dtype=torch.float32) for part in self.stored]
        for total, share in zip(self.grads, shares, strict=True):
            total[place] += share


class GrowingKeys:
    """The keys and values of growing sequences in all layers.

    Args:
        rows: number of sequences, R.
        slots: the most tokens of a sequence, S: those that are not seen by later ones count as well.
    """

    def __init__(self, rows: int, slots: int) -> None:
        self.rows, self.slots = rows, slots
        self._layers: dict[nn.Module, _Layer] = {}
        self._orders: dict[nn.Module, Tensor] = {}

    def keep(self, attention: nn.Module, key: Tensor, value: Tensor, kept: _Kept) -> tuple[_Layer, Tensor]:
        """Keep keys and values of a part.

        Args:
            attention: the attention module.
            key: [1, G, L, D].
            value: [1, G, L, D].
            kept: which of them are kept where.

        Returns:
            What is kept of the layer, and a tensor that depends on all of it: what takes it is reached by a backward
            pass before what is kept, and can add to the gradients of that.
        """
        if attention not in self._layers:
            self._layers[attention] = _Layer(self.rows, self.slots, key)
            self._orders[attention] = key.new_zeros(1)
        layer = self._layers[attention]
        order: Tensor = _Keep.apply(key, value, self._orders[attention], layer, kept)  # type: ignore[no-untyped-call]
        self._orders[attention] = order
        return layer, order

    def finish(self) -> None:
        """Let go of the graph of autograd, which holds what is kept: nothing more is computed forward."""
        self._orders = {attention: order.detach() for attention, order in self._orders.items()}


class FirstPart:
    """How attention over what sequences begin with is computed: as a trie, whose tokens are then kept in rows.

    Args:
        keys: where they are kept.
        tokens: the trie.
        paths: for every sequence, the indices of the tokens that later ones see.
        device: where the model runs.
    """

    def __init__(
        self, keys: GrowingKeys, tokens: TrieTokens, paths: Sequence[np.ndarray], device: torch.device
    ) -> None:
        self.keys = keys
        self.longest = int(tokens.positions.max(initial=-1)) + 1
        self._plan = TriePlan(tokens, device)
        self._kept = _Kept(paths, [0] * len(paths), device)

    def attend(self, attention: nn.Module, query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
        """Compute attention as ``lovec.tries.attention.attend`` does."""
        query, key, value = in_autocast(query, key, value)
        self.keys.keep(attention, key, value, self._kept)
        return attend(query, key, value, scale, self._plan)


class NextPart:
    """How attention of further tokens is computed, whose keys lie one sequence after the other.

    Args:
        keys: where earlier keys and values are, and those of these tokens come to be.
        first: for every sequence, the first slot that is free.
        visible: for every sequence, which slots its new tokens see, [new, first + new] bool; without new tokens empty.
        longest: tokens of the longest sequence.
        device: where the model runs.
    """

    def __init__(
        self,
        keys: GrowingKeys,
        first: Sequence[int],
        visible: Sequence[np.ndarray],
        longest: int,
        device: torch.device,
    ) -> None:
        self.keys, self.longest = keys, longest
        counts = [len(mask) for mask in visible]
        ends = np.cumsum(counts)
        tokens = [np.arange(end - count, end) for end, count in zip(ends, counts, strict=True)]
        self._kept = _Kept(tokens, first, device)
        some = [row for row, count in enumerate(counts) if count]
        together = [some] if pads(device) else [[row] for row in some]
        self._groups = [
            _Group(rows, [tokens[row] for row in rows], [visible[row] for row in rows], device) for rows in together
        ]

    def attend(self, attention: nn.Module, query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
        """Compute attention to these tokens and earlier ones.

        Args:
            attention: the attention module.
            query: [1, H, L, D].
            key: [1, G, L, D], with H a multiple of G.
            value: [1, G, L, D].
            scale: factor of the scores.

        Returns:
            [1, L, H, D].
        """
        query, key, value = in_autocast(query, key, value)
        layer, order = self.keys.keep(attention, key, value, self._kept)
        with torch.autocast(query.device.type, enabled=False):  # which would round the products of what is float32 here
            out: Tensor = _Attend.apply(query, order, layer, self._groups, scale)  # type: ignore[no-untyped-call]
        return out


class _Kept:
    """Which tokens of a part are kept in which slots; a token may be kept for several sequences.

    Args:
        tokens: for every sequence, the tokens that are kept for it.
        first: for every sequence, the slot of the first of them.
        device: where the model runs.

    Attributes:
        tokens: of all sequences, [P].
        place: where they are kept, in [R, G, S, D].
        ends: whether a backward pass ends here.
    """

    def __init__(self, tokens: Sequence[np.ndarray], first: Sequence[int], device: torch.device) -> None:
        self.ends = not any(first)
        rows = np.repeat(np.arange(len(tokens)), list(map(len, tokens)))
        slots = np.concatenate([slot + np.arange(len(part)) for slot, part in zip(first, tokens, strict=True)])
        self.tokens = torch.from_numpy(np.concatenate(tokens)).to(device)
        self.place = (torch.from_numpy(rows).to(device), slice(None), torch.from_numpy(slots).to(device))


class _Group:
    """Sequences whose new tokens are computed together, padded on the right.

    Args:
        rows: neighbouring sequences with new tokens.
        tokens: the new tokens of each.
        visible: which slots they see, [new, slots] bool.
        device: where the model runs.

    Attributes:
        width: W, the most new tokens of a sequence.
        rows: as given, r in all.
        tokens: [r, W] with any token in place of padding.
        real: [r, W] bool.
        place: where the keys are that are seen, in [R, G, S, D].
    """

    def __init__(
        self, rows: list[int], tokens: Sequence[np.ndarray], visible: Sequence[np.ndarray], device: torch.device
    ) -> None:
        self.width, slots = max(map(len, tokens)), max(mask.shape[1] for mask in visible)
        index = np.zeros((len(rows), self.width), np.int64)
        real, masks = np.zeros(index.shape, bool), np.zeros((*index.shape, slots), bool)
        masks[:, :, 0] = True  # of what padding sees nothing is read; where it saw nothing it would be NaN
        for at, (part, mask) in enumerate(zip(tokens, visible, strict=True)):
            index[at, : len(part)], real[at, : len(part)] = part, True
            masks[at, : len(part), : mask.shape[1]] = mask
        self.tokens, self.real = torch.from_numpy(index).to(device), torch.from_numpy(real).to(device)
        which = torch.tensor(rows, device=device) if len(rows) > 1 else slice(rows[0], rows[0] + 1)
        self.place = (which, slice(None), slice(slots))
        self._mask = additive(torch.from_numpy(masks)[:, None].to(device))
        self._is_padded = not real.all()
        self._repeated: dict[int, Tensor] = {}

    def mask(self, heads: int) -> Tensor:
        """Return which slots are seen, for as many heads as share keys: [r, 1, heads W, slots], see ``additive``."""
        if heads not in self._repeated:
            self._repeated[heads] = self._mask.repeat(1, 1, heads, 1)
        return self._repeated[heads]

    def folded(self, x: Tensor, groups: int) -> Tensor:
        """Return heads of new tokens, [1, L, H, D], as queries of the G groups that share keys, [r, G, H/G W, D]."""
        x = x[0][self.tokens].transpose(1, 2)
        if self._is_padded:
            x = x * self.real[:, None, :, None]
        return x.reshape(len(x), groups, -1, x.shape[-1])

    def store(self, out: Tensor, x: Tensor) -> None:
        """Write what ``folded`` gives, of the real tokens, into heads of all new tokens [1, L, H, D]."""
        x = x.reshape(len(x), out.shape[2], self.width, out.shape[3]).transpose(1, 2)
        if self._is_padded:
            out[0, self.tokens[self.real]] = x[self.real]
        else:
            out[0, self.tokens] = x


class _Keep(torch.autograd.Function):
    """Keeps keys and values [1, G, L, D] in rows; returns what all attention to them takes."""

    @staticmethod
    def forward(ctx: Any, key: Tensor, value: Tensor, order: Tensor, layer: _Layer, kept: _Kept) -> Tensor:
        for stored, x in zip(layer.stored, (key, value), strict=True):
            stored[kept.place] = x[0].transpose(0, 1)[kept.tokens]
        ctx.layer, ctx.kept, ctx.shape, ctx.dtype = layer, kept, key.shape, key.dtype
        return order.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor, None, None]:
        _, groups, length, size = ctx.shape
        grads: list[Tensor | None] = [None, None]
        if ctx.layer.grads is not None:
            for at, total in enumerate(ctx.layer.grads):
                own = total.new_zeros(length, groups, size).index_add_(0, ctx.kept.tokens, total[ctx.kept.place])
                grads[at] = own.transpose(0, 1)[None].to(ctx.dtype)
        if ctx.kept.ends:
            ctx.layer.grads = None
        return grads[0], grads[1], grad, None, None


class _Attend(torch.autograd.Function):
    """Attention of new tokens [1, H, L, D] to what a layer keeps of their sequences."""

    @staticmethod
    def forward(ctx: Any, query: Tensor, order: Tensor, layer: _Layer, groups: list[_Group], scale: float) -> Tensor:
        heads = query.transpose(1, 2)
        out = torch.empty_like(heads, memory_format=torch.contiguous_format)
        sums = []
        for group in groups:
            key, value = (stored[group.place] for stored in layer.stored)
            q = group.folded(heads, key.shape[1])
            part, logsumexp = masked_attention(q, key, value, scale, group.mask(heads.shape[2] // key.shape[1]))
            group.store(out, part.to(out.dtype))
            sums.append(logsumexp)
        ctx.save_for_backward(query, out, *sums)
        ctx.layer, ctx.groups, ctx.scale = layer, groups, scale
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None, None, None]:
        query, out, *sums = ctx.saved_tensors
        heads = query.transpose(1, 2)
        result = torch.empty_like(heads, memory_format=torch.contiguous_format)
        for group, logsumexp in zip(ctx.groups, sums, strict=True):
            key, value = (stored[group.place] for stored in ctx.layer.stored)
            q, upstream, own = (group.folded(x, key.shape[1]) for x in (heads, grad, out))
            mask = group.mask(heads.shape[2] // key.shape[1])
            with torch.autocast(query.device.type, enabled=False):  # as in the forward pass
                share, *shares = masked_attention_backward(q, key, value, upstream, own, logsumexp, ctx.scale, mask)
            group.store(result, share.to(result.dtype))
            if ctx.needs_input_grad[1]:
                ctx.layer.add(group.place, shares)
        return result.transpose(1, 2), grad.new_zeros(1), None, None, None
