"""Tensors that gain columns and lose rows in place, and a layer of a KV cache made of them.

Appending a column to a tensor with ``torch.cat`` copies all of it, at every token and in every layer. Here the values
lie at the beginning of an allocation with room for more. When it is made it has 5/4 of the columns in use, plus 16. It
is replaced when more than a quarter of its rows are unused. So the copies of a column are bounded, and memory stays
below twice what is in use.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer

from lovec.tries.places import TokenPlaces


class GrowingTensor:
    """A tensor [rows, ..., columns, ...] with room for more columns.

    Args:
        values: the values. They are not copied before they change.
        dim: the dimension of the columns, at least 1.

    Attributes:
        used: a view of the values, without the room. Later changes may write to it.
    """

    def __init__(self, values: Tensor, dim: int) -> None:
        self.used = self._allocated = values
        self._dim = dim

    def append(self, new: Tensor) -> Tensor:
        """Append columns to every row and return ``used``."""
        start, more = self.used.shape[self._dim], new.shape[self._dim]
        if start + more > self._allocated.shape[self._dim]:
            self.store(self.used, start + more)
        self.used = self._allocated[: len(new)].narrow(self._dim, 0, start + more)
        self.used.narrow(self._dim, start, more).copy_(new)
        return self.used

    def crop(self, columns: int) -> None:
        """Remove the last columns."""
        self.used = self.used.narrow(self._dim, 0, self.used.shape[self._dim] - columns)

    def keep(self, places: Tensor, rows: Tensor, count: int) -> None:
        """Move ``rows`` to ``places`` and keep the first ``count`` rows; the memory of the others is freed in bulk."""
        self.used[places.to(self.used.device)] = self.used[rows.to(self.used.device)]
        self.used = self.used[:count]
        if 4 * count < 3 * len(self._allocated):
            self.store(self.used)

    def store(self, values: Tensor, columns: int = 0) -> None:
        """Replace all by a copy of ``values``, with room for at least ``columns`` columns."""
        shape = list(values.shape)
        columns = max(columns, shape[self._dim])
        shape[self._dim] = columns + columns // 4 + 16
        self._allocated = values.new_empty(shape)
        self.used = self._allocated.narrow(self._dim, 0, values.shape[self._dim]).copy_(values)


class GrowingLayer(DynamicLayer):  # type: ignore[misc]  # transformers has no types
    """The keys and values of one layer.

    Attributes:
        parts: keys and values, [rows, heads, slots, size] each; empty before the first forward pass.
    """

    def __init__(self) -> None:
        super().__init__()
        self.parts: list[GrowingTensor] = []

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Append the states of new tokens, and return those of all tokens."""
        if not self.parts:
            self.parts = [GrowingTensor(states[:, :, :0], dim=2) for states in (key_states, value_states)]
        keys, values = self.parts
        return keys.append(key_states), values.append(value_states)

    def get_seq_length(self) -> int:
        """Return the number of slots."""
        return self.parts[0].used.shape[2] if self.parts else 0


class GrowingCache(DynamicCache):  # type: ignore[misc]  # transformers has no types
    """A KV cache whose layers all keep all slots, sliding-window layers too.

    Attributes:
        places: where new tokens lie that come one after the other; None where they come in rows.
    """

    def __init__(self) -> None:
        super().__init__()
        self.layer_class_to_replicate = GrowingLayer
        self.places: TokenPlaces | None = None

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Append the states of new tokens to a layer, and return those of all tokens of its rows."""
        if self.places is not None:
            key_states, value_states = map(self.places.padded_from, (key_states, value_states))
        states: tuple[Tensor, Tensor] = super().update(key_states, value_states, layer_idx, *args, **kwargs)
        return states

    @property
    def parts(self) -> list[GrowingTensor]:
        """Keys and values of all layers."""
        return [part for layer in self.layers for part in layer.parts]
