"""A batch of token sequences with its KV cache: slots with explicit positions, holes allowed.

One column of the cache is a slot. ``slots[b, s]`` is the position that slot ``s`` has in row ``b``, or -1 for a hole
(padding, or a token that no longer counts). Masks and position ids are built from these positions and never from
token ids, so rows of different lengths live in one batch, a row can forget its end, and padding sides do not matter.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache

from lovec.choices import NO_CHOICES, AttentionKind, ChoiceTree

_HOLES = 1.25
"""A cache this many times longer than its longest row is copied into a dense one."""


class CachedRows:
    """Token sequences of a batch, all of them in a KV cache.

    Args:
        model: a transformers causal language model.
        kind: its masks.

    Attributes:
        ids: the cached tokens of each row.
    """

    def __init__(self, model: Any, kind: AttentionKind) -> None:
        self.model = model
        self.kind = kind
        self.ids: list[tuple[int, ...]] = []
        self._cache = DynamicCache()  # without a config every layer keeps all slots, sliding ones too
        self._slots = torch.zeros(0, 0, dtype=torch.long, device=model.device)
        self._lengths = torch.zeros(0, dtype=torch.long, device=model.device)

    def take(self, rows: Sequence[int], lengths: Sequence[int]) -> None:
        """Make the batch of the first ``lengths[i]`` tokens of row ``rows[i]``; rows may repeat.

        A batch without rows gives empty ones.
        """
        device = self._slots.device
        self._lengths = torch.tensor(lengths, device=device)
        if not any(lengths):
            self.ids = [()] * len(rows)
            self._cache = DynamicCache()
            self._slots = torch.zeros(len(rows), 0, dtype=torch.long, device=device)
            return
        same = list(rows) == list(range(len(self.ids)))
        self.ids = [self.ids[row][:length] for row, length in zip(rows, lengths, strict=True)]
        index = torch.tensor(rows, device=device)
        slots = self._slots if same else self._slots[index]
        slots = slots.masked_fill(slots >= self._lengths[:, None], -1)
        size = max(lengths)
        if same and slots.shape[1] <= _HOLES * size:
            self._slots = slots
            return
        self._gather(index, slots, size)

    def drop(self, rows: Sequence[int]) -> None:
        """Keep only ``rows`` of a batch that `step` has run on."""
        index = torch.tensor(rows, device=self._slots.device)
        self.ids = [self.ids[row] for row in rows]
        self._lengths = self._lengths[index]
        self._slots = self._slots[index]
        self._cache.batch_select_indices(index)

    def extend(self, new: Sequence[Sequence[int]], tree: ChoiceTree = NO_CHOICES) -> Tensor:
        """Append ``new[b]`` to every row; look at the nodes of ``tree`` behind it, and forget them again.

        Args:
            new: tokens for each row, left-padded here. A row may get none; its logits then mean nothing.
            tree: choices whose nodes run in the same forward pass.

        Returns:
            Logits after the last context token and after every node: [B, 1 + nodes, vocabulary].
        """
        width, nodes, device = max(map(len, new)), len(tree.ids), self._slots.device
        tokens, positions = [], []
        for row, more in zip(self.ids, new, strict=True):
            end, pad = len(row) + len(more), width - len(more)
            tokens.append([0] * pad + list(more) + tree.ids)
            positions.append([-1] * pad + list(range(len(row), end)) + [end + depth - 1 for depth in tree.depths])
        self.ids = [row + tuple(more) for row, more in zip(self.ids, new, strict=True)]
        asks = torch.tensor(positions, device=device)
        keys = torch.cat([self._slots, asks], dim=1)
        seen = (keys[:, None, :] >= 0) & (keys[:, None, :] <= asks[:, :, None])
        if nodes:
            seen[:, width:, -nodes:] = tree.sees.to(device)
        # Everything sees itself, padding too: a row of a mask that allows nothing would give NaN.
        seen[:, :, self._slots.shape[1] :].diagonal(dim1=1, dim2=2).fill_(True)
        logits = self._forward(torch.tensor(tokens, device=device), asks, keys, seen, keep=1 + nodes)
        if nodes:
            self._cache.crop(-nodes)
        self._slots = keys[:, : keys.shape[1] - nodes]
        self._lengths = torch.tensor([len(row) for row in self.ids], device=device)
        return logits

    def step(self, tokens: Tensor) -> Tensor:
        """Append one token [B] to every row: logits [B, vocabulary]. ``ids`` does not follow."""
        asks = self._lengths[:, None]
        self._slots = torch.cat([self._slots, asks], dim=1)
        self._lengths = self._lengths + 1
        return self._forward(tokens[:, None], asks, self._slots, (self._slots >= 0)[:, None, :], keep=1)[:, -1]

    def _forward(self, tokens: Tensor, asks: Tensor, keys: Tensor, seen: Tensor, keep: int) -> Tensor:
        """Logits of the last ``keep`` of ``tokens`` [B, Q] at positions ``asks``, which see ``seen`` [B, Q, K]."""
        output = self.model(
            input_ids=tokens,
            attention_mask=self.kind.masks(seen, asks, keys, self.model.dtype),
            position_ids=asks.clamp(min=0),
            past_key_values=self._cache,
            use_cache=True,
            logits_to_keep=keep,
        )
        logits: Tensor = output.logits
        return logits

    def _gather(self, index: Tensor, slots: Tensor, size: int) -> None:
        """Copy rows ``index`` with the live ones of ``slots`` [B, S] into a cache of ``size`` slots."""
        order = (slots < 0).long().argsort(dim=1, stable=True)[:, :size]
        self._slots = slots.gather(1, order)
        for layer in self._cache.layers:
            at = (index[:, None].to(layer.keys.device), slice(None), order.to(layer.keys.device))
            layer.keys = layer.keys[at].transpose(1, 2)
            layer.values = layer.values[at].transpose(1, 2)
