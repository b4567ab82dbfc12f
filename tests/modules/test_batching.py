"""Micro-batches: what shares a forward pass, and how large it may be."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from lovec.modules.batching import Example, micro_batches
from lovec.policy import TokenSequence
from lovec.types import Record


def example(name, lengths, extra):
    sequences = tuple(TokenSequence((1,), (2,) * (length - 1)) for length in lengths)
    return Example(sequences, Record(name, "Who?"), extra_tokens=extra)


SIZES = st.lists(st.tuples(st.lists(st.integers(2, 40), min_size=1, max_size=2), st.integers(0, 10)), max_size=20)


@given(sizes=SIZES, budget=st.integers(1, 300))
def test_micro_batches_keep_to_their_budget(sizes, budget):
    examples = [example(f"r{at}", lengths, extra) for at, (lengths, extra) in enumerate(sizes)]
    groups = micro_batches(examples, budget)
    assert sorted(e.record.id for group in groups for e in group) == sorted(e.record.id for e in examples)
    for group in groups:
        size = sum(len(e.sequences) for e in group) * max(e.length for e in group)
        assert size <= budget or len(group) == 1


def test_rows_share_a_pass_where_they_fit():
    rows = [example(f"r{at}", [10], 0) for at in range(6)]
    assert [len(group) for group in micro_batches(rows, 30)] == [3, 3]
    assert [len(group) for group in micro_batches(rows, 29)] == [2, 2, 2]
