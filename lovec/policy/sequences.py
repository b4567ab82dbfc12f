"""Token ids of prompts and completions: one sequence, and many sequences as padded tensors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence


@dataclass(frozen=True, slots=True)
class TokenSequence:
    """A prompt and its completion as token ids.

    Attributes:
        prompt: ids of the prompt, ready for the answer.
        completion: ids of the answer, its end of turn included.
    """

    prompt: tuple[int, ...]
    completion: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.prompt) + len(self.completion)


@dataclass(frozen=True, slots=True)
class TokenBatch:
    """N sequences as right-padded tensors, L tokens wide, with completions of up to T tokens.

    Masks are computed from lengths, so the pad id may equal the end token.

    Attributes:
        input_ids: prompt and completion, [N, L].
        attention_mask: 1 on real tokens, 0 on padding, [N, L].
        targets: completion ids, left-aligned, [N, T].
        mask: float, 1 on completion tokens, [N, T].
        positions: index into L of the token that predicts each target, [N, T].
    """

    input_ids: Tensor
    attention_mask: Tensor
    targets: Tensor
    mask: Tensor
    positions: Tensor

    @classmethod
    def of(cls, sequences: Sequence[TokenSequence], device: torch.device | str = "cpu") -> TokenBatch:
        """Pad sequences into a batch on ``device``."""
        ids = [torch.tensor(s.prompt + s.completion) for s in sequences]
        completions = [torch.tensor(s.completion, dtype=torch.long) for s in sequences]
        input_ids = pad_sequence(ids, batch_first=True)
        attention_mask = pad_sequence([torch.ones_like(row) for row in ids], batch_first=True)
        targets = pad_sequence(completions, batch_first=True)
        mask = pad_sequence([torch.ones(len(row)) for row in completions], batch_first=True)
        first = torch.tensor([[len(s.prompt) - 1] for s in sequences])
        positions = (first + torch.arange(targets.shape[1])).clamp(max=input_ids.shape[1] - 1)
        return cls(*(tensor.to(device) for tensor in (input_ids, attention_mask, targets, mask, positions)))

    def padded(self, rows: Sequence[Sequence[float]]) -> Tensor:
        """Pad one list of numbers per sequence, one number per completion token, with 0: [N, T]."""
        values = torch.zeros_like(self.mask)
        values[self.mask.bool()] = torch.tensor([x for row in rows for x in row], device=self.mask.device)
        return values
