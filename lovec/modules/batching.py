"""From rows to micro-batches: what one row contributes to a batch, and which rows share a forward pass."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import torch
from torch import Tensor

from lovec.policy import TokenBatch, TokenSequence
from lovec.types import Record


@dataclass(frozen=True, slots=True)
class Example:
    """What one row contributes to a batch; it is never split over micro-batches.

    An objective that needs more subclasses it as a frozen dataclass, returns the subclass from ``encode`` or
    ``update_batches``, and takes a ``Batch`` of it in ``loss``.

    Attributes:
        sequences: one for a demonstration or a rollout, the chosen and the rejected one for a pair.
        record: the record that it was made from.
        extra_tokens: tokens appended to each sequence in the forward pass, such as the branches of score strings; they
            count towards the size of a micro-batch only.
    """

    sequences: tuple[TokenSequence, ...]
    record: Record
    extra_tokens: int = field(default=0, kw_only=True)

    @property
    def length(self) -> int:
        """Tokens of the longest sequence, with those appended to it."""
        return max(map(len, self.sequences)) + self.extra_tokens


ExampleT = TypeVar("ExampleT", bound=Example)


@dataclass(frozen=True, slots=True)
class Batch(Generic[ExampleT]):
    """A micro-batch, as ``loss`` takes it.

    Attributes:
        examples: its B examples.
        tokens: all their sequences, [N], example by example.
    """

    examples: tuple[ExampleT, ...]
    tokens: TokenBatch

    @classmethod
    def of(cls, examples: Sequence[ExampleT], device: torch.device) -> Batch[ExampleT]:
        """Pad the sequences of ``examples`` together on ``device``."""
        return cls(tuple(examples), TokenBatch.of([s for example in examples for s in example.sequences], device))

    def ones(self) -> Tensor:
        """Return a mask that counts every example, [B]."""
        return torch.ones(len(self.examples), device=self.tokens.mask.device)


def micro_batches(examples: Sequence[ExampleT], budget: int) -> list[list[ExampleT]]:
    """Split examples into groups whose padded size is at most ``budget`` tokens; an example alone may exceed it.

    Examples of similar length share a group, which keeps padding small. The longest come first, so that a batch that
    is too large for the memory fails at once.
    """
    groups: list[list[ExampleT]] = []
    longest = sequences = 0
    for example in sorted(examples, key=lambda example: -example.length):
        n = len(example.sequences)
        if not groups or (sequences + n) * longest > budget:
            groups.append([])
            longest, sequences = example.length, 0
        groups[-1].append(example)
        sequences += n
    return groups
