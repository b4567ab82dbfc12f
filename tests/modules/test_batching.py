"""Micro-batches: what shares a forward pass, and how large it may be."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lovec.modules.batching import (
    MOST_TOKENS,
    Example,
    default_budget,
    enough_memory,
    fitting_tokens,
    micro_batches,
)
from lovec.modules.sums import BatchSums
from lovec.policy import TokenSequence
from lovec.types import LossOutput, LovecError, Record, Term


def example(name, lengths, extra, first=1):
    sequences = tuple(TokenSequence((first,), (2,) * (length - 1)) for length in lengths)
    return Example(sequences, Record(name, "Who?"), extra_tokens=extra)


SIZES = st.lists(
    st.tuples(st.lists(st.integers(2, 40), min_size=1, max_size=2), st.integers(0, 10), st.integers(1, 3)), max_size=20
)


@given(sizes=SIZES, budget=st.integers(1, 300))
def test_padded_micro_batches_keep_to_their_budget(sizes, budget):
    examples = [example(f"r{at}", *size) for at, size in enumerate(sizes)]
    groups = micro_batches(examples, budget, False)
    assert sorted(e.record.id for group in groups for e in group) == sorted(e.record.id for e in examples)
    for group in groups:
        size = sum(len(e.sequences) for e in group) * max(e.length for e in group)
        assert size <= budget or len(group) == 1


@given(sizes=SIZES, budget=st.integers(1, 300))
def test_shared_micro_batches_keep_to_their_budget_of_distinct_tokens(sizes, budget):
    examples = [example(f"r{at}", *size) for at, size in enumerate(sizes)]
    groups = micro_batches(examples, budget, True)
    assert sorted(e.record.id for group in groups for e in group) == sorted(e.record.id for e in examples)
    totals = []
    for group in groups:
        distinct = {s.inputs[: n + 1] for e in group for s in e.sequences for n in range(len(s.inputs))}
        totals.append(len(distinct) + sum(e.extra_tokens * len(e.sequences) for e in group))
        assert totals[-1] <= budget or len(group) == 1
    assert totals == sorted(totals, reverse=True)


def test_rows_share_a_pass_where_they_fit():
    rows = [example(f"r{at}", [10], 0) for at in range(6)]
    assert [len(group) for group in micro_batches(rows, 30, False)] == [3, 3]
    assert [len(group) for group in micro_batches(rows, 29, False)] == [2, 2, 2]
    assert [len(group) for group in micro_batches(rows, 9, True)] == [6]  # equal rows cost nothing


def test_what_begins_alike_comes_together():
    mixed = [example(f"r{at}", [10 + at], 0, first=1 + at % 2) for at in range(6)]
    groups = micro_batches(mixed, 20, True)
    assert [{e.sequences[0].prompt for e in group} for group in groups] == [{(2,)}, {(1,)}]


def test_a_large_model_on_a_cpu_has_fewer_tokens_at_once():
    assert fitting_tokens(layers=4, width=128, words=1000) == MOST_TOKENS  # the embedded world's
    smollm2 = fitting_tokens(layers=30, width=576, words=49152)
    assert 1000 < smollm2 < 2000
    assert fitting_tokens(60, 576, 49152) < smollm2 > fitting_tokens(30, 576, 200_000)
    assert fitting_tokens(10**6, 10**6, 1) == 1


def test_a_gpu_holds_what_its_model_leaves(monkeypatch: pytest.MonkeyPatch) -> None:
    """Llama-3-8B in bfloat16 keeps some 9 MB a token for the backward pass, and 1.3 MB where layers run again."""
    sizes = SimpleNamespace(num_hidden_layers=32, hidden_size=4096, vocab_size=128_256)
    weights = [SimpleNamespace(nbytes=16 * 10**9)]
    model: Any = SimpleNamespace(
        config=SimpleNamespace(get_text_config=lambda: sizes), parameters=lambda: weights, dtype=torch.bfloat16
    )
    for gigabytes, plain, checkpointed in ((80, 3497, MOST_TOKENS), (24, 437, 3100)):
        card = SimpleNamespace(total_memory=gigabytes * 10**9)
        monkeypatch.setattr("torch.cuda.get_device_properties", lambda _, card=card: card)
        found = [default_budget(model, torch.device("cuda"), kept) for kept in (False, True)]
        assert found == pytest.approx([plain, checkpointed], rel=0.01)
    assert default_budget(model, torch.device("cpu")) < 437


def test_a_gpu_holds_only_its_part_of_a_model_that_is_split(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same room as with a quarter of each weight that is whole."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor
    from torch.testing._internal.distributed.fake_pg import FakeStore

    sizes = SimpleNamespace(num_hidden_layers=32, hidden_size=4096, vocab_size=128_256)
    monkeypatch.setattr("torch.cuda.get_device_properties", lambda _: SimpleNamespace(total_memory=10**9))
    torch.distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=4)
    try:
        mesh = init_device_mesh("cpu", (4,))
        split = distribute_tensor(torch.zeros(4 * 10**7), mesh, [Shard(0)])
        budgets = [
            default_budget(
                SimpleNamespace(
                    config=SimpleNamespace(get_text_config=lambda: sizes),
                    parameters=lambda weights=weights: [torch.zeros(10**6), weights],
                    dtype=torch.bfloat16,
                ),
                torch.device("cuda"),
                checkpointing=True,
            )
            for weights in (split, torch.zeros(10**7), torch.zeros(4 * 10**7))
        ]
    finally:
        torch.distributed.destroy_process_group()
    assert budgets[0] == budgets[1] > budgets[2]


def test_too_little_memory_says_what_to_change() -> None:
    with pytest.raises(LovecError, match=r"up to 4,096 tokens .* --model.micro_batch_tokens"), enough_memory(4096):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20 GiB")


def test_a_metric_that_nothing_has_is_not_a_number() -> None:
    def term(*mask: float) -> Term:
        return Term(torch.tensor([0.5, 0.25]), torch.tensor(mask), per="row")

    sums = BatchSums()
    for known in (0.0, 1.0):
        metrics = {"once": term(0.0, known), "never": term(0.0, 0.0)}
        sums.add(torch.tensor(1.0), LossOutput({"nll": term(1.0, 1.0)}, metrics))
    assert sums.metrics() == pytest.approx({"loss": 2.0, "nll": 0.375, "once": 0.25, "never": math.nan}, nan_ok=True)
