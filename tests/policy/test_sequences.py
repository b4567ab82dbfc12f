"""Token sequences as tensors: masks and positions come from lengths, never from ids."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from lovec.policy import TokenBatch, TokenSequence

IDS = st.integers(0, 3)
"""Few ids, so that the id that pads is also an ordinary token, the first and the last included."""
SEQUENCES = st.lists(
    st.tuples(st.lists(IDS, min_size=1, max_size=6), st.lists(IDS, max_size=6)), min_size=1, max_size=5
)


@given(SEQUENCES)
def test_masks_and_positions_come_from_lengths(pairs):
    sequences = [TokenSequence(tuple(prompt), tuple(completion)) for prompt, completion in pairs]
    batch = TokenBatch.of(sequences)
    for row, sequence in enumerate(sequences):
        length, tokens = len(sequence), len(sequence.completion)
        assert batch.attention_mask[row].tolist() == [1] * length + [0] * (batch.input_ids.shape[1] - length)
        assert batch.mask[row].tolist() == [1] * tokens + [0] * (batch.targets.shape[1] - tokens)
        assert batch.input_ids[row, :length].tolist() == [*sequence.prompt, *sequence.completion]
        assert batch.targets[row, :tokens].tolist() == list(sequence.completion)
        after = batch.positions[row, :tokens] + 1  # the token that is predicted stands behind the one that predicts it
        assert torch.equal(batch.input_ids[row, after], batch.targets[row, :tokens])
