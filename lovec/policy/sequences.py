"""Token ids of prompts and completions, and how many of them are laid out for one forward pass."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from lovec.encoding.choices import AttentionKind
from lovec.tries import Trie, TriePlan, TrieTokens


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

    @property
    def inputs(self) -> tuple[int, ...]:
        """The tokens that the model has to read: all but the last, after which nothing is predicted."""
        return (self.prompt + self.completion)[:-1]


@dataclass(frozen=True)
class TokenBatch:
    """N sequences with completions of up to T tokens.

    Masks are computed from lengths, so the pad id may equal the end token.

    Attributes:
        sequences: the sequences.
        targets: completion ids, left-aligned, [N, T].
        mask: float, 1 on completion tokens, [N, T].
    """

    sequences: tuple[TokenSequence, ...]
    targets: Tensor
    mask: Tensor

    @classmethod
    def of(cls, sequences: Sequence[TokenSequence], device: torch.device | str = "cpu") -> TokenBatch:
        """Pad the completions of sequences into a batch on ``device``."""
        completions = [torch.tensor(s.completion, dtype=torch.long) for s in sequences]
        targets = pad_sequence(completions, batch_first=True)
        mask = pad_sequence([torch.ones(len(row)) for row in completions], batch_first=True)
        return cls(tuple(sequences), targets.to(device), mask.to(device))

    def padded(self, rows: Sequence[Sequence[float]]) -> Tensor:
        """Pad one list of numbers per sequence, one number per completion token, with 0: [N, T]."""
        values = torch.zeros_like(self.mask)
        values[self.mask.bool()] = torch.tensor([x for row in rows for x in row], device=self.mask.device)
        return values

    @cached_property
    def shared(self) -> Layout:
        """All sequences in one row, in which what they begin with stands once."""
        return Layout.of(self.sequences, self.mask.device, shared=True)

    @cached_property
    def apart(self) -> Layout:
        """Every sequence in a row of its own."""
        return Layout.of(self.sequences, self.mask.device, shared=False)


@dataclass(frozen=True, slots=True)
class Branch:
    """Tokens that follow a beginning of a sequence, in place of its own.

    Attributes:
        sequence: index of the sequence.
        start: number of the sequence's tokens before the branch, at least 1.
        ids: tokens of the branch.
    """

    sequence: int
    start: int
    ids: tuple[int, ...]


@dataclass(frozen=True)
class Layout:
    """Where the tokens of sequences and branches stand in the R rows of a forward pass, W tokens wide.

    Attributes:
        rows: the tokens of every row; a row of several sequences, or with branches, is a trie.
        outputs: for every sequence its completion tokens, then for every branch its tokens: where the state from which
            each is predicted stands, as an index into the states of all rows, [R W].
        device: where the model runs.
    """

    rows: tuple[TrieTokens, ...]
    outputs: tuple[np.ndarray, ...]
    device: torch.device

    @classmethod
    def of(
        cls,
        sequences: Sequence[TokenSequence],
        device: torch.device,
        branches: Sequence[Branch] = (),
        *,
        shared: bool,
    ) -> Layout:
        """Lay out sequences and branches: in one row, or each sequence with its branches in a row of its own."""
        tries = [Trie()] if shared else [Trie() for _ in sequences]
        places = []  # row, number of the sequence in it, and first token whose state is needed
        for at, sequence in enumerate(sequences):
            row = 0 if shared else at
            places.append((row, tries[row].add(sequence.inputs), len(sequence.prompt) - 1))
        for branch in branches:
            row, number, _ = places[branch.sequence]
            places.append((row, tries[row].add(branch.ids[:-1], (number, branch.start)), branch.start - 1))
        rows = tuple(trie.tokens() for trie in tries)
        width = max(map(len, rows))
        outputs = tuple(row * width + rows[row].indices(number, first) for row, number, first in places)
        return cls(rows, outputs, device)

    @cached_property
    def ids(self) -> Tensor:
        """Token ids, [R, W]."""
        return self._padded([row.ids for row in self.rows])

    @cached_property
    def positions(self) -> Tensor:
        """Position of every token in its sequences, [R, W]."""
        return self._padded([row.positions for row in self.rows])

    @cached_property
    def plan(self) -> TriePlan:
        """How attention over the only row is computed."""
        return TriePlan(self.rows[0], self.device)

    def masks(self, kind: AttentionKind, dtype: torch.dtype) -> Any:
        """Return what the model takes as its ``attention_mask`` where rows are padded.

        Args:
            kind: which masks the model takes.
            dtype: dtype of the model.
        """
        if all(len(row.runs) <= 1 for row in self.rows):
            return self._padded([np.ones(len(row), np.int64) for row in self.rows])
        index = torch.arange(self.ids.shape[1], device=self.device)
        ends = self._padded([row.ends for row in self.rows])[:, None, :]
        visible = (index <= index[:, None]) & (index[:, None] < ends)
        visible |= index == index[:, None]  # padding sees itself: a row of a mask that allows nothing would give NaN
        return kind.masks(visible, self.positions, self.positions, dtype)

    def _padded(self, rows: Sequence[np.ndarray]) -> Tensor:
        return pad_sequence([torch.from_numpy(row) for row in rows], batch_first=True).to(self.device)


def completion_tokens(sequences: Sequence[TokenSequence]) -> list[int]:
    """Return the tokens of the completions of some sequences, one after the other."""
    return [token for sequence in sequences for token in sequence.completion]


def by_token(batch: TokenBatch, values: Tensor) -> Tensor:
    """Return values of ``completion_tokens`` in a row for each sequence, [N, T] float32, 0 where masked."""
    return torch.zeros_like(batch.mask).masked_scatter(batch.mask.bool(), values)


def by_choice(logps: Tensor, choices: Sequence[Sequence[int]]) -> Tensor:
    """Return the log-probabilities of whole choices.

    Args:
        logps: of their tokens, choice by choice and place by place, in one dimension.
        choices: token ids of each choice.

    Returns:
        [places, choices] float64.
    """
    lengths = [len(choice) for choice in choices]
    tokens = torch.split(logps.double().view(-1, sum(lengths)), lengths, dim=1)
    return torch.stack([choice.sum(1) for choice in tokens], dim=1)
