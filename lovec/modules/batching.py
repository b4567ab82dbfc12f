"""From rows to micro-batches: what one row contributes, and how rows share a forward pass."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from lovec.policy import TokenBatch, TokenSequence
from lovec.types import Record


@dataclass(frozen=True, slots=True)
class Item:
    """What one row contributes to a batch; never split over micro-batches.

    Attributes:
        sequences: one for a demonstration, chosen and rejected for a pair, one for a rollout.
        record: the row it came from.
        data: anything else an objective needs (advantages, marks); it may add to it between rounds.
        beside: tokens that run beside each sequence in the forward pass (branches of score strings); memory only.
    """

    sequences: tuple[TokenSequence, ...]
    record: Record
    data: dict[str, Any] = field(default_factory=dict)
    beside: int = 0

    @property
    def length(self) -> int:
        """Tokens of the longest sequence, and what runs beside it."""
        return max(map(len, self.sequences)) + self.beside


@dataclass(frozen=True, slots=True)
class Batch:
    """A micro-batch as ``loss`` sees it.

    Attributes:
        items: its rows [B].
        tokens: all their sequences [N], row by row.
    """

    items: tuple[Item, ...]
    tokens: TokenBatch

    @classmethod
    def of(cls, items: Sequence[Item], device: torch.device) -> Batch:
        """Pad the sequences of ``items`` together on ``device``."""
        return cls(tuple(items), TokenBatch.of([s for item in items for s in item.sequences], device))

    def ones(self) -> Tensor:
        """A mask that counts every item: [B]."""
        return torch.ones(len(self.items), device=self.tokens.mask.device)


def micro_batches(items: Sequence[Item], budget: int) -> list[list[Item]]:
    """Split items into groups whose padded size stays within ``budget`` tokens (an item alone may exceed it).

    Items of like length share a group, longest first, so that a batch too big for memory fails at once and little
    is padding.
    """
    groups: list[list[Item]] = []
    longest = rows = 0
    for item in sorted(items, key=lambda item: -item.length):
        n = len(item.sequences)
        if not groups or (rows + n) * longest > budget:
            groups.append([])
            longest, rows = item.length, 0
        groups[-1].append(item)
        rows += n
    return groups


@contextmanager
def seeded(*key: int) -> Iterator[None]:
    """Inside: torch's random streams are a function of ``key`` alone; outside they go on as before."""
    with torch.random.fork_rng(devices=[torch.cuda.current_device()] if torch.cuda.is_available() else []):
        torch.manual_seed(stream_seed(*key))
        yield


def stream_seed(*key: int) -> int:
    """A seed from several numbers, the same in every process."""
    return hash(key) & 0x7FFF_FFFF_FFFF_FFFF  # the hash of a tuple of ints is not salted
