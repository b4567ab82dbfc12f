"""Sequences that begin alike are computed as a trie: exactly what each of them gives alone, in fewer tokens."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tinypolicies import CHOICES, counted, gradient, ids, policies
from tinyrollouts import grpo
from tinyrun import Rows, fit, loaded, module, records, tiny

from lovec.encoding.choices import AttentionKind
from lovec.modules import DPO, ORPO, SFT, Batch, ExpectedReward, PTrueTuned, SFTRegression
from lovec.modules.batching import micro_batches
from lovec.policy import Policy, PolicyConfig, TokenBatch, TokenSequence
from lovec.tries.models import _attention
from lovec.types import LossOutput, LovecError


def sequences() -> list[TokenSequence]:
    """Two questions after one instruction; answers that part early, late, at once, and never."""
    instruction, answer = ids(20, 0), ids(30, 1)
    first, second = instruction + ids(6, 2), instruction + ids(9, 3)
    return [
        TokenSequence(first, answer),
        TokenSequence(first, answer[:12] + ids(15, 4)),
        TokenSequence(first, answer),
        TokenSequence(first, answer[:5]),
        TokenSequence(second, ids(25, 5)),
        TokenSequence(second, ids(3, 6)),
        TokenSequence(ids(4, 7), ids(8, 8)),
    ]


@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize("arch", ["llama", "qwen2", "qwen3", "phi3"])
def test_shared_equals_padded(arch: str, checkpointing: bool, tmp_path: Path) -> None:
    shared, padded = policies(tmp_path, arch, gradient_checkpointing=checkpointing)
    batch = TokenBatch.of(sequences())
    starts = [[2, 9, 20], [1], [], [0, 3], [4, 24], [0], [5]]
    tokens = counted(shared), counted(padded)
    results = []
    for policy in (shared, padded):
        logps = policy.token_logps(batch, 0.8)
        completions, choices = policy.choice_logps(batch, starts, CHOICES)
        results.append(
            (logps.detach(), completions.detach(), choices.detach(), gradient(policy, logps, completions, choices))
        )
    for mine, theirs in zip(*results, strict=True):
        assert (mine - theirs).norm() <= 1e-5 * theirs.norm()
    distinct = {(s.prompt + s.completion)[:n] for s in batch.sequences for n in range(1, len(s))}
    assert tokens[0][0] == len(distinct) < tokens[1][0] / 2


def test_a_choice_is_what_its_sequence_gives(tmp_path: Path) -> None:
    policy = policies(tmp_path, "llama")[0].eval()
    sequence = sequences()[1]
    _, logps = policy.choice_logps(TokenBatch.of([sequence]), [[0, 7]], CHOICES)
    for row, start in zip(logps, (0, 7), strict=True):
        for value, choice in zip(row, CHOICES, strict=True):
            alone = TokenBatch.of([TokenSequence(sequence.prompt + sequence.completion[:start], choice)])
            assert float(value.detach()) == pytest.approx(
                float(policy.token_logps(alone).detach().double().sum()), abs=1e-5
            )


def test_neighbours_change_nothing(tmp_path: Path) -> None:
    """Bitwise: what another sequence says after the shared beginning, however probable, is not seen."""
    policy = policies(tmp_path, "llama")[0].eval()
    rows = sequences()
    logps = policy.token_logps(TokenBatch.of(rows))
    other = replace(rows[1], completion=rows[1].completion[:12] + ids(15, 99))
    perturbed = policy.token_logps(TokenBatch.of([rows[0], other, *rows[2:]]))
    kept = [0, 2, 3, 4, 5, 6]
    assert torch.equal(logps[kept], perturbed[kept])
    assert not torch.equal(logps[1], perturbed[1])


def test_equal_sequences_get_equal_values_and_their_gradients_add_up(tmp_path: Path) -> None:
    policy = policies(tmp_path, "llama")[0]
    row = sequences()[0]
    one, two = (policy.token_logps(TokenBatch.of([row] * n)) for n in (1, 2))
    assert torch.equal(two[0], two[1]) and torch.equal(one[0], two[0])
    alone, twice = (torch.autograd.grad(x.sum(), policy.trainable()) for x in (one, two))
    alone, twice = (torch.cat([g.flatten() for g in gradients]) for gradients in (alone, twice))
    assert (2 * alone - twice).norm() <= 1e-5 * twice.norm()


def test_bfloat16_to_its_precision(tmp_path: Path) -> None:
    exact = policies(tmp_path, "llama")[1].token_logps(TokenBatch.of(sequences())).detach()
    shared, padded = policies(tmp_path, "llama", dtype="bfloat16")
    batch = TokenBatch.of(sequences())
    errors = [float((policy.token_logps(batch).detach() - exact).norm()) for policy in (shared, padded)]
    assert errors[0] <= 1.2 * errors[1]
    shared, padded = policies(tmp_path, "llama")
    with torch.autocast("cpu", torch.bfloat16):
        errors = [float((policy.token_logps(batch).detach().float() - exact).norm()) for policy in (shared, padded)]
    assert errors[0] <= 1.2 * errors[1]


def test_empty_completions_and_prompts_of_one_token(tmp_path: Path) -> None:
    shared, padded = policies(tmp_path, "llama")
    for rows in ([((5,), ())], [((5,), (6,)), ((5,), ())], [((5,), (6,)), ((7,), (8, 9))], [((5, 6), ()), ((5,), ())]):
        batch = TokenBatch.of([TokenSequence(*row) for row in rows])
        torch.testing.assert_close(shared.token_logps(batch), padded.token_logps(batch), atol=1e-5, rtol=1e-5)


def test_models_whose_attention_does_not_allow_it_are_padded(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Gemma-2 caps its attention scores; layers of Nemotron drop arguments; a window matters once it is shorter."""
    with caplog.at_level(logging.INFO):
        capped = loaded(tmp_path, module(SFT, tiny(tmp_path, "gemma2"))).policy
    assert not capped.shares_prefixes and capped.packing_disabled_reason == "its attention is eager, with a mask"
    assert "rows are padded, and shared prefixes are not reused: its attention is eager, with a mask" in caplog.text
    nemotron = Policy(PolicyConfig(model=tiny(tmp_path, "nemotron"), lora_r=4)).eval()
    assert nemotron.packing_disabled_reason == "its code does not pass on what attention over shared tokens needs"
    assert nemotron.model.config._attn_implementation == "sdpa" and not AttentionKind.of(nemotron.model.config).packs
    windowed = tiny(tmp_path / "windowed", "qwen2", use_sliding_window=True, sliding_window=32, max_window_layers=0)
    policy = Policy(PolicyConfig(model=windowed, lora_r=4)).eval()
    assert policy.shares_prefixes
    short, long = (TokenBatch.of([TokenSequence(ids(20, 0), ids(n, 1))] * 2) for n in (12, 60))
    tokens = counted(policy)
    for batch in (short, long):
        logps = policy.token_logps(batch)
        whole = torch.tensor([batch.sequences[0].prompt + batch.sequences[0].completion])
        truth = policy.model(input_ids=whole, use_cache=False).logits[0].log_softmax(-1)[19:-1]
        torch.testing.assert_close(logps[0], truth.gather(-1, batch.targets[0, :, None])[:, 0], atol=1e-5, rtol=1e-5)
    assert (tokens[0], tokens[2]) == (31, 2 * 79)
    plan = short.shared.plan
    plan.longest = 33
    unused = torch.empty(1, 1, 0, 0)
    with pytest.raises(LovecError, match=r"window of 32 tokens.*set policy.share_prefixes to false"):
        policy.model(input_ids=short.shared.ids, attention_mask=unused, position_ids=short.shared.positions, trie=plan)


def test_rows_longer_than_a_window_are_split_with_their_padding(tmp_path: Path) -> None:
    tokens: list[list[int]] = []

    class Watched(SFT):
        def loss(self, batch: Batch[Any]) -> LossOutput:
            tokens.extend([] if tokens else [counted(self.policy)])
            return super().loss(batch)

    windowed = tiny(tmp_path, "qwen2", use_sliding_window=True, sliding_window=32, max_window_layers=0)
    objective = module(Watched, windowed, micro_batch_tokens=900)
    fit(tmp_path, objective, Rows(8, batch_size=8), max_steps=1)
    assert objective.policy.shares_prefixes
    assert 1 < len(tokens[0]) < 8 and max(tokens[0]) <= 900


class Greedy(ExpectedReward):
    """Takes the true scores as context, so that equal runs draw nothing."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(context="true", **kwargs)


@pytest.mark.parametrize("cls", [SFT, DPO, ORPO, Greedy, SFTRegression, PTrueTuned, "GRPO"])
def test_every_objective_learns_the_same(cls: Any, model: str, adapter: str, tmp_path: Path) -> None:
    recorded, sizes = [], []
    for share in (True, False):
        policy = PolicyConfig(model=model, adapter=adapter, lora_r=4, lora_alpha=8, share_prefixes=share)
        options = {"policy": policy, "sgd": True, "micro_batch_tokens": 900}
        objective = grpo(model, **options) if cls == "GRPO" else module(cls, model, **options)
        counts: list[int] = []
        setup = objective.configure_model

        def configure_model(setup: Any = setup, objective: Any = objective, counts: list[int] = counts) -> None:
            setup()
            if not counts:
                counts.append(0)
                decoder = objective.policy.model.get_decoder()
                decoder.register_forward_pre_hook(
                    lambda m, args, kw: counts.append(kw["input_ids"].numel() if m.training else 0), with_kwargs=True
                )

        objective.configure_model = configure_model
        recorded.append(fit(tmp_path, objective, max_steps=2))
        sizes.append(sum(counts))
    # Byte-level tags make most tokens of the objectives with choices; these are distinct.
    assert sizes[0] < (0.98 if cls in (Greedy, SFTRegression) else 0.8) * sizes[1]
    for mine, theirs in zip(recorded[0].gradients, recorded[1].gradients, strict=True):
        assert theirs.norm() > 0
        assert (mine - theirs).norm() <= 1e-5 * theirs.norm()
    for mine, theirs in zip(recorded[0].logged, recorded[1].logged, strict=True):
        for name, value in theirs.items():
            assert mine[name] == pytest.approx(value, rel=1e-4, abs=1e-5, nan_ok=True), name


def test_micro_batches_keep_bundles_together(model: str, tmp_path: Path) -> None:
    """Answers to one question share a forward pass where the budget allows, whatever order they come in."""
    objective = loaded(tmp_path, module(DPO, model))
    examples = [objective.example(row) for row in records(9)]
    mixed = examples[::2] + examples[1::2]
    groups = micro_batches(mixed, 700, True)
    assert sorted(e.record.id for g in groups for e in g) == sorted(e.record.id for e in examples)

    def size(group: Sequence[Any]) -> int:
        return len({s.inputs[: n + 1] for e in group for s in e.sequences for n in range(len(s.inputs))})

    assert all(size(group) <= 700 for group in groups)
    assert [size(group) for group in groups] == sorted(map(size, groups), reverse=True)
    assert len(groups) < len(micro_batches(mixed, 700, False))


def test_heads_that_share_keys_are_given_no_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    """Under a mask, on a CPU: the same numbers as transformers gives, which copies keys for every head."""
    from transformers.integrations import sdpa_attention

    torch.manual_seed(0)
    query, key, value = torch.randn(2, 9, 5, 8), torch.randn(2, 3, 12, 8), torch.randn(2, 3, 12, 8)
    mask = torch.rand(2, 1, 5, 12) > 0.3
    mask[..., -1] = True
    module = torch.nn.Module()
    module.num_key_value_groups = 3
    with torch.inference_mode():
        expected, _ = sdpa_attention.sdpa_attention_forward(module, query, key, value, mask, scaling=0.3)

    def refused(*_: object, **__: object) -> None:
        raise AssertionError("transformers was asked")

    monkeypatch.setattr(sdpa_attention, "sdpa_attention_forward", refused)
    with torch.inference_mode():
        found, _ = _attention(module, query, key, value, mask, scaling=0.3)
        assert torch.equal(found, expected)
        for other in ({"softcap": 30.0}, {"position_bias": torch.zeros(())}):  # what this attention does not know
            with pytest.raises(AssertionError, match="transformers was asked"):
                _attention(module, query, key, value, mask, scaling=0.3, **other)
    with pytest.raises(AssertionError, match="transformers was asked"):  # in training
        _attention(module, query, key, value, mask, scaling=0.3)
