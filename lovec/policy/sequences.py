"""Token ids of prompts and completions: one sequence, and many as padded tensors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class TokenSequence:
    """A prompt and its completion as token ids (end of turn included)."""

    prompt: tuple[int, ...]
    completion: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.prompt) + len(self.completion)


@dataclass(frozen=True, slots=True)
class TokenBatch:
    """Sequences as right-padded tensors. Masks come from lengths, so a pad id may equal the end token.

    Attributes:
        input_ids: [N, L].
        attention_mask: [N, L], 1 on real tokens.
        targets: [N, T] completion ids, left-aligned.
        mask: [N, T] float, 1 on completion tokens.
        positions: [N, T] index into L of the token that predicts each target.
    """

    input_ids: Tensor
    attention_mask: Tensor
    targets: Tensor
    mask: Tensor
    positions: Tensor

    @classmethod
    def of(cls, sequences: Sequence[TokenSequence], device: torch.device | str = "cpu") -> TokenBatch:
        """Pad sequences [N] into a batch on ``device``."""
        n, length = len(sequences), max(len(s) for s in sequences)
        steps = max(len(s.completion) for s in sequences)
        input_ids = torch.zeros(n, length, dtype=torch.long)
        attention_mask = torch.zeros(n, length, dtype=torch.long)
        targets = torch.zeros(n, steps, dtype=torch.long)
        mask = torch.zeros(n, steps)
        first = torch.tensor([len(s.prompt) - 1 for s in sequences])
        for i, s in enumerate(sequences):
            input_ids[i, : len(s)] = torch.tensor(s.prompt + s.completion)
            attention_mask[i, : len(s)] = 1
            targets[i, : len(s.completion)] = torch.tensor(s.completion)
            mask[i, : len(s.completion)] = 1.0
        positions = (first[:, None] + torch.arange(steps)).clamp(max=length - 1)
        tensors = (input_ids, attention_mask, targets, mask, positions)
        return cls(*(t.to(device) for t in tensors))

    def padded(self, rows: Sequence[Sequence[float]]) -> Tensor:
        """One number a completion token, padded with 0 like ``mask``: [N, T] from N lists."""
        values = torch.zeros_like(self.mask)
        values[self.mask.bool()] = torch.tensor([x for row in rows for x in row], device=self.mask.device)
        return values
