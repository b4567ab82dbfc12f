"""A batch of token sequences with its KV cache, whose slots have explicit positions and may be unused.

A column of the cache is a slot. ``slots[b, s]`` is the position of slot ``s`` in row ``b``, or -1 if the slot is unused
there (padding, or a token that was dropped). Attention masks and position ids are built from these positions and never
from token ids, so rows of different lengths share a batch, a row can drop its last tokens, and the side of the padding
does not matter. Where much of the new tokens would be padding, the model gets them without any.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from lovec.encoding.choices import NO_CHOICES, AttentionKind, ChoiceTree
from lovec.engines.growing import GrowingCache, GrowingTensor
from lovec.tries.places import TokenPlaces

MOST_PADDING = 1.05
"""New tokens are packed where rows padded to the same length would be more than this many times as many tokens."""

_MOST_SLOTS = 1.25
"""A cache that is more than this many times longer than its longest row is copied into a dense one."""


class CachedRows:
    """Token sequences of a batch, with the model's keys and values for all of their tokens.

    Args:
        model: a transformers causal language model.
        kind: which attention masks the model takes.

    Attributes:
        ids: the cached tokens of each row.
    """

    def __init__(self, model: Any, kind: AttentionKind) -> None:
        self.model = model
        self.kind = kind
        # Since 5.24, transformers calls it "cache".
        self._cache_name = "cache" if "cache" in inspect.signature(model.forward).parameters else "past_key_values"
        self.ids: list[tuple[int, ...]]
        self._clear(0)

    def select(self, rows: Sequence[int], lengths: Sequence[int]) -> None:
        """Replace the batch by the first ``lengths[i]`` tokens of row ``rows[i]``, for every i.

        Args:
            rows: indices of rows; they may repeat. Indices are ignored where all lengths are 0.
            lengths: tokens to keep of each row.
        """
        if not any(lengths):
            self._clear(len(rows))
            return
        device = self.model.device
        self._lengths = torch.tensor(lengths, device=device)
        unchanged = list(rows) == list(range(len(self.ids)))
        self.ids = [self.ids[row][:length] for row, length in zip(rows, lengths, strict=True)]
        index = torch.tensor(rows, device=device)
        slots = self._slots.used if unchanged else self._slots.used[index]
        slots.masked_fill_(slots >= self._lengths[:, None], -1)
        size = max(lengths)
        if not unchanged or slots.shape[1] > _MOST_SLOTS * size:
            self._gather(index, slots, size)

    def drop(self, rows: Sequence[int]) -> list[int]:
        """Drop rows; the last of the others take their places, so that only these are moved.

        Args:
            rows: indices of rows, ascending.

        Returns:
            The rows of the new batch, as indices of the old one.
        """
        count = len(self.ids) - len(rows)
        places = [row for row in rows if row < count]
        moved = sorted(set(range(count, len(self.ids))) - set(rows))
        order = list(range(count))
        for place, row in zip(places, moved, strict=True):
            order[place] = row
        self.ids = [self.ids[row] for row in order]
        self._lengths = self._lengths[order]
        for part in (self._slots, *self._cache.parts):
            part.keep(torch.tensor(places, dtype=torch.long), torch.tensor(moved, dtype=torch.long), count)
        return order

    def places(self, lengths: Sequence[int]) -> TokenPlaces:
        """Return where the model computes so many new tokens of each row, those of a tree included."""
        padded = max(lengths) * len(lengths)
        packed = self.kind.packs and padded > MOST_PADDING * sum(lengths)
        return TokenPlaces(lengths, self.model.device, packed)

    def extend(self, new: Sequence[Sequence[int]], tree: ChoiceTree = NO_CHOICES) -> Tensor:
        """Append tokens to every row, and compute the logits after them and after the nodes of a tree of choices.

        The nodes run in the same forward pass, as a continuation of every row, and are dropped afterwards, but for
        those that all choices begin with: what follows a row most often is one of the choices.

        Args:
            new: tokens to append to each row. A row may get none; its logits then mean nothing.
            tree: the choices.

        Returns:
            Logits after the last token of every row and after every node: [B, 1 + nodes, vocabulary].
        """
        width, nodes, device = max(map(len, new)), len(tree.ids), self.model.device
        tokens, positions = [], []
        for row, more in zip(self.ids, new, strict=True):
            end, pad = len(row) + len(more), width - len(more)
            tokens.append([0] * pad + list(more) + tree.ids)
            positions.append([-1] * pad + list(range(len(row), end)) + [end + depth - 1 for depth in tree.depths])
        beginning = tuple(tree.ids[: tree.shared])
        self.ids = [row + tuple(more) + beginning for row, more in zip(self.ids, new, strict=True)]
        query_positions = torch.tensor(positions, device=device)
        key_positions = self._slots.append(query_positions)
        visible = (key_positions[:, None, :] >= 0) & (key_positions[:, None, :] <= query_positions[:, :, None])
        if nodes:
            visible[:, width:, -nodes:] = tree.ancestors.to(device)
        # Every token sees itself, padding too: a row of a mask that allows nothing would give NaN.
        visible[:, :, -(width + nodes) :].diagonal(dim1=1, dim2=2).fill_(True)
        token_ids = torch.tensor(tokens, device=device)
        places = self.places([len(more) + nodes for more in new])
        logits = self._forward(token_ids, query_positions, key_positions, visible, 1 + nodes, places)
        for part in (self._slots, *self._cache.parts):
            part.crop(nodes - tree.shared)
        self._lengths = torch.tensor([len(row) for row in self.ids], device=device)
        return logits

    def step(self, tokens: Tensor) -> Tensor:
        """Append one token [B] to every row and return the logits after it [B, vocabulary]; ``ids`` is not updated."""
        positions = self._lengths[:, None]
        slots = self._slots.append(positions)
        self._lengths = self._lengths + 1
        visible = (slots >= 0)[:, None, :]
        return self._forward(tokens[:, None], positions, slots, visible, 1)[:, -1]

    def _forward(
        self,
        tokens: Tensor,
        query_positions: Tensor,
        key_positions: Tensor,
        visible: Tensor,
        keep: int,
        places: TokenPlaces | None = None,
    ) -> Tensor:
        """Run the model on new tokens.

        Args:
            tokens: [B, Q] token ids.
            query_positions: [B, Q] their positions.
            key_positions: [B, K] positions of all slots, the new ones last.
            visible: [B, Q, K] bool, which slots each token sees.
            keep: Q' <= Q.
            places: where the new tokens lie; None where no row is padded.

        Returns:
            Logits of the last Q' tokens, [B, Q', vocabulary].
        """
        count, width = tokens.shape
        positions, packing = query_positions.clamp(min=0), {}
        # As indices, because linear layers multiply a slice row by row: at 49k logits five times the cost on a CPU.
        last = torch.arange(width - keep, width, device=tokens.device)
        if places is not None and places.packed:
            tokens, positions, last = places.packed_from(tokens), places.packed_from(positions), places.last(keep)
            packing = {"places": places}
            self._cache.places = places
        output = self.model(
            input_ids=tokens,
            attention_mask=self.kind.masks(visible, query_positions, key_positions, self.model.dtype),
            position_ids=positions,
            use_cache=True,
            logits_to_keep=last,
            **{self._cache_name: self._cache},
            **packing,
        )
        self._cache.places = None
        logits: Tensor = output.logits
        return logits.view(count, keep, -1)

    def _clear(self, rows: int) -> None:
        """Make the batch one of empty rows."""
        self.ids = [()] * rows
        self._cache = GrowingCache()
        self._slots = GrowingTensor(torch.zeros(rows, 0, dtype=torch.long, device=self.model.device), dim=1)
        self._lengths = torch.zeros(rows, dtype=torch.long, device=self.model.device)

    def _gather(self, index: Tensor, slots: Tensor, size: int) -> None:
        """Copy the rows ``index``, with their used slots of ``slots`` [B, S], into a cache of ``size`` slots."""
        order = (slots < 0).long().argsort(dim=1, stable=True)[:, :size]
        self._slots.store(slots.gather(1, order))
        for part in self._cache.parts:
            at = (index[:, None].to(part.used.device), slice(None), order.to(part.used.device))
            part.store(part.used[at].transpose(1, 2))
