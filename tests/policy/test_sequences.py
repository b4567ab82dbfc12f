"""Token sequences as tensors: masks and positions come from lengths, never from ids."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from lovec.policy import TokenBatch, TokenSequence
from lovec.policy.sequences import Branch, Layout

IDS = st.integers(0, 3)
"""Few ids, so that the id that pads is also an ordinary token, the first and the last included."""
SEQUENCES = st.lists(
    st.tuples(st.lists(IDS, min_size=1, max_size=6), st.lists(IDS, max_size=6)), min_size=1, max_size=5
).map(lambda pairs: [TokenSequence(tuple(prompt), tuple(completion)) for prompt, completion in pairs])


@given(SEQUENCES)
def test_masks_come_from_lengths(sequences):
    batch = TokenBatch.of(sequences)
    for row, sequence in enumerate(sequences):
        tokens = len(sequence.completion)
        assert batch.mask[row].tolist() == [1] * tokens + [0] * (batch.targets.shape[1] - tokens)
        assert batch.targets[row, :tokens].tolist() == list(sequence.completion)


@given(SEQUENCES, st.booleans())
def test_outputs_are_where_the_tokens_before_each_stand(sequences, shared):
    """Every completion token, and every token of a branch, is predicted from all that comes before it."""
    branches = [Branch(n, len(s.prompt), (3, 0, 3)) for n, s in enumerate(sequences) if s.completion]
    layout = Layout.of(sequences, torch.device("cpu"), branches, shared=shared)
    rows, width = layout.ids.shape
    assert rows == (1 if shared else len(sequences)) and layout.positions.shape == layout.ids.shape
    texts = [(s.prompt + s.completion, len(s.prompt)) for s in sequences]
    texts += [(sequences[b.sequence].prompt + b.ids, b.start) for b in branches]
    assert len(texts) == len(layout.outputs)
    for (text, start), outputs in zip(texts, layout.outputs, strict=True):
        assert len(outputs) == len(text) - start
        for step, output in enumerate(outputs.tolist()):
            row, last = divmod(output, width)
            ends = torch.from_numpy(layout.rows[row].ends)
            seen = [key for key in range(last + 1) if last < ends[key]]
            assert layout.ids[row, seen].tolist() == list(text[: start + step])
            assert layout.positions[row, seen].tolist() == list(range(start + step))


@given(SEQUENCES)
def test_padding_is_told_by_lengths(sequences):
    layout = TokenBatch.of(sequences).apart
    mask = layout.masks(None, torch.float32)
    assert mask.sum(1).tolist() == [len(sequence.inputs) for sequence in sequences]
    assert all(row[: int(row.sum())].all() for row in mask)
