"""From rows to micro-batches: what one row contributes, and how rows share a forward pass."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from lovec.policy import TokenBatch, TokenSequence
from lovec.types import Record


@dataclass(frozen=True, slots=True)
class Example:
    """What one row contributes to a batch; never split over micro-batches.

    Attributes:
        sequences: one for a demonstration, chosen and rejected for a pair, one for a rollout.
        record: the row it came from.
        data: anything else an objective needs (advantages, marks); it may add to it between rounds.
        extra_tokens: tokens that run beside each sequence in the forward pass (branches of score strings); memory only.
    """

    sequences: tuple[TokenSequence, ...]
    record: Record
    data: dict[str, Any] = field(default_factory=dict)
    extra_tokens: int = 0

    @property
    def length(self) -> int:
        """Tokens of the longest sequence, and what runs beside it."""
        return max(map(len, self.sequences)) + self.extra_tokens


@dataclass(frozen=True, slots=True)
class Batch:
    """A micro-batch as ``loss`` sees it.

    Attributes:
        examples: its rows [B].
        tokens: all their sequences [N], row by row.
    """

    examples: tuple[Example, ...]
    tokens: TokenBatch

    @classmethod
    def of(cls, examples: Sequence[Example], device: torch.device) -> Batch:
        """Pad the sequences of ``examples`` together on ``device``."""
        return cls(tuple(examples), TokenBatch.of([s for example in examples for s in example.sequences], device))

    def ones(self) -> Tensor:
        """A mask that counts every example: [B]."""
        return torch.ones(len(self.examples), device=self.tokens.mask.device)


def micro_batches(examples: Sequence[Example], budget: int) -> list[list[Example]]:
    """Split examples into groups whose padded size stays within ``budget`` tokens (an example alone may exceed it).

    Items of like length share a group, longest first, so that a batch too big for memory fails at once and little
    is padding.
    """
    groups: list[list[Example]] = []
    longest = rows = 0
    for example in sorted(examples, key=lambda example: -example.length):
        n = len(example.sequences)
        if not groups or (rows + n) * longest > budget:
            groups.append([])
            longest, rows = example.length, 0
        groups[-1].append(example)
        rows += n
    return groups
