"""From rows to micro-batches: what one row contributes to a batch, and which rows share a forward pass."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

from lovec.policy import TokenBatch, TokenSequence
from lovec.tries import Trie
from lovec.types import LovecError, Record

MOST_TOKENS = 16384
"""The most tokens of a micro-batch where no number is given."""

_ACTIVATIONS = 4e9  # bytes that a micro-batch may take on a CPU: with model and Python it fits a machine of 8 GB
_SHARE = 0.5  # of the memory of a GPU that its model leaves; the rest is for optimiser, caches and fragmentation
_VALUES = 32  # kept by a layer for each of its hidden values: SmolLM2-135M takes 2.8 MB a token in float32
_LOGITS = 3  # copies of the logits: they, their log-probabilities and a gradient


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


def fitting_tokens(
    layers: int, width: int, words: int, room: float = _ACTIVATIONS, element: int = 4, checkpointing: bool = False
) -> int:
    """Return how many tokens of a micro-batch fit some memory, forward and backward, roughly.

    Args:
        layers: layers of the model.
        width: its hidden size.
        words: size of its vocabulary.
        room: bytes for activations; those of a CPU fit a machine of 8 GB.
        element: bytes of a number.
        checkpointing: whether only the input of every layer is kept, and one layer at a time computed again.

    Returns:
        From 1 to ``MOST_TOKENS``, which all models of the embedded world reach.
    """
    kept = (layers + _VALUES if checkpointing else layers * _VALUES) * width
    return max(1, min(MOST_TOKENS, int(room / (element * (kept + words * _LOGITS)))))


def default_budget(model: Any, device: torch.device, checkpointing: bool = False) -> int:
    """Return the most tokens of a micro-batch of a transformers model on a device, where no number is given.

    It depends on nothing that changes while a run goes on, so the same rows are computed together after a kill.

    Args:
        model: the model.
        device: where it runs.
        checkpointing: see ``fitting_tokens``.
    """
    settings = model.config.get_text_config()
    sizes = settings.num_hidden_layers, settings.hidden_size, settings.vocab_size
    if device.type == "cpu":
        return fitting_tokens(*sizes, checkpointing=checkpointing)
    if device.type != "cuda":
        return MOST_TOKENS
    held = sum(_own_part(p).nbytes for p in model.parameters())
    left = torch.cuda.get_device_properties(device).total_memory - held
    return fitting_tokens(*sizes, _SHARE * left, model.dtype.itemsize, checkpointing)


def _own_part(weight: Any) -> Any:
    """Return what this process holds of a weight, which may be split over several."""
    return weight.to_local() if hasattr(weight, "to_local") else weight


@contextmanager
def enough_memory(tokens: int) -> Iterator[None]:
    """Say what to do where a device has too little memory for a micro-batch.

    Args:
        tokens: the most tokens of a micro-batch.

    Raises:
        LovecError: torch finds no memory inside the block.
    """
    try:
        yield
    except torch.OutOfMemoryError as error:
        raise LovecError(
            f"a micro-batch of up to {tokens:,} tokens does not fit the memory of the device; give a lower "
            "--model.micro_batch_tokens, which changes rounding only, or --model.policy.gradient_checkpointing true"
        ) from error


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


class _SharedSize:
    """Tokens of a micro-batch in which what sequences begin with is computed once."""

    def __init__(self) -> None:
        self._trie = Trie()
        self._extra = 0

    def add(self, example: Example) -> int:
        """Add an example and return the number of all tokens."""
        for sequence in example.sequences:
            self._trie.add(sequence.inputs)
        self._extra += len(example.sequences) * example.extra_tokens
        return self._trie.size + self._extra


class _PaddedSize:
    """Tokens of a micro-batch whose sequences are padded to the length of the longest one."""

    def __init__(self) -> None:
        self._sequences = self._longest = 0

    def add(self, example: Example) -> int:
        """Add an example and return the number of all tokens, padding included."""
        self._sequences += len(example.sequences)
        self._longest = max(self._longest, example.length)
        return self._sequences * self._longest


def micro_batches(examples: Sequence[ExampleT], budget: int, shared: bool) -> list[list[ExampleT]]:
    """Split examples into groups of at most ``budget`` tokens in the forward pass; an example alone may exceed it.

    The largest groups come first, so that a batch that is too large for the memory fails at once.

    Args:
        examples: what is split.
        budget: the most tokens of a group.
        shared: whether tokens with which sequences of a group begin are computed once. If so, sequences that begin
            alike come together; if not, sequences of similar length do, which keeps padding small.
    """
    counter: type[_SharedSize | _PaddedSize] = _SharedSize if shared else _PaddedSize
    key: Callable[[Example], Any] = (lambda e: e.sequences[0].inputs) if shared else (lambda e: -e.length)
    groups: list[tuple[int, list[ExampleT]]] = []
    tokens = counter()
    for example in sorted(examples, key=key):
        size = tokens.add(example)
        if groups and size <= budget:
            groups[-1] = (size, [*groups[-1][1], example])
        else:
            tokens = counter()
            groups.append((tokens.add(example), [example]))
    return [group for _, group in sorted(groups, key=lambda group: -group[0])]
