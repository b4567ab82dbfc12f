"""Log-probabilities of chosen tokens: equal to those of whole logits, in value and gradient."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from tinyrun import tiny
from torch import nn

from lovec.policy import Policy, PolicyConfig, TokenBatch, TokenSequence
from lovec.policy import head as head_module
from lovec.policy.head import target_logps

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))

from allocated import allocated


def naive(hidden, rows, targets, head, temperature, softcap):
    logits = head(hidden)
    if softcap is not None:
        logits = softcap * torch.tanh(logits / softcap)
    return (logits / temperature).log_softmax(-1)[rows, targets]


@pytest.mark.parametrize("chunk", [1, 3, 100])
@pytest.mark.parametrize(("temperature", "softcap", "bias"), [(1.0, None, False), (0.6, 4.0, True), (1.3, None, True)])
def test_values_and_gradients_equal_those_of_whole_logits(chunk, temperature, softcap, bias, monkeypatch):
    torch.manual_seed(0)
    head = nn.Linear(8, 50, bias=bias).requires_grad_(False)
    monkeypatch.setattr(head_module, "LOGITS_AT_ONCE", 50 * chunk)
    monkeypatch.setattr(head_module, "_TARGETS_AT_ONCE", 4)
    rows = torch.tensor([0, 0, 1, 3, 3, 3, 6, 9])  # states without a target, and with several
    targets = torch.randint(50, (len(rows),))
    weights = torch.randn(len(rows), dtype=torch.float64)
    hidden = torch.randn(10, 8).mul(3).requires_grad_()
    exact = hidden.detach().double().requires_grad_()
    mine = target_logps(hidden, rows, targets, head, temperature, softcap)
    (mine.double() * weights).sum().backward()
    true = naive(exact, rows, targets, head.double(), temperature, softcap)
    (true * weights).sum().backward()
    torch.testing.assert_close(mine.double(), true, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(hidden.grad.double(), exact.grad, atol=1e-5, rtol=1e-5)
    with torch.no_grad():
        assert torch.equal(target_logps(hidden, rows, targets, head.float(), temperature, softcap), mine)


@pytest.mark.parametrize(("temperature", "softcap"), [(1.0, None), (0.6, 40.0)])
@pytest.mark.parametrize("weights", [torch.bfloat16, torch.float32], ids=["bfloat16", "autocast"])
def test_likely_targets_are_learned_in_half_precision(weights, temperature, softcap):
    """What is left to learn where p is above 0.99 is less than the rounding of the mean row of the output layer."""
    torch.manual_seed(0)
    rows = torch.tensor([0, 1, 1, 1, 2, 4, 5, 5])  # a state without a target, and several with the same or with others
    targets = torch.tensor([3, 7, 7, 7, 9, 11, 13, 2])
    head = nn.Linear(64, 50, bias=False, dtype=torch.bfloat16).requires_grad_(False)
    likely = torch.tensor([3, 7, 9, 0, 11, 13])
    hidden = (head.weight[likely].float() * 36 * temperature).bfloat16().requires_grad_()
    exact = hidden.detach().double().requires_grad_()
    true = naive(exact, rows, targets, lambda x: x @ head.weight.double().T, temperature, softcap)
    assert true[:7].exp().min() > 0.99
    true.sum().backward()
    with torch.autocast("cpu", torch.bfloat16, enabled=weights == torch.float32):
        target_logps(hidden, rows, targets, head.to(weights), temperature, softcap).sum().backward()
    for mine, one in zip(hidden.grad.double(), exact.grad, strict=True):
        assert (mine - one).norm() <= 0.1 * one.norm()  # what the rounding of the logits makes of 1 - p


def test_no_logits_are_kept():
    head = nn.Linear(8, 5000, bias=False).requires_grad_(False)
    hidden, rows = torch.randn(20, 8, requires_grad=True), torch.arange(20)
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda x: kept.append(x.numel()) or x, lambda x: x):
        target_logps(hidden * 1, rows, rows, head, 1.0, None)
    assert max(kept) <= 20 * 8


@pytest.mark.parametrize("gradient", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_logits_of_one_chunk_are_in_memory_at_a_time(gradient, dtype, temperature, monkeypatch):
    """In float32, with the copy that their sum takes: 8 bytes each.

    Processors with instructions for bfloat16 get copies of the weights in another layout, for each direction.
    """
    chunk = 16 * 20_000
    monkeypatch.setattr(head_module, "LOGITS_AT_ONCE", chunk)
    head = nn.Linear(8, 20_000, bias=False, dtype=dtype).requires_grad_(False)
    hidden, rows = torch.randn(64, 8, dtype=dtype, requires_grad=gradient), torch.arange(64)
    peak = allocated(lambda: target_logps(hidden, rows, rows, head, temperature, None))
    packed = 2 * head.weight.nbytes if dtype == torch.bfloat16 else 0
    assert 0.98 * 8 * chunk <= peak <= 1.02 * 8 * chunk + packed


def test_an_output_layer_with_an_adapter_is_trained(tmp_path):
    """Its logits are computed again in the backward pass, chunk by chunk."""
    model = tiny(tmp_path, tie_word_embeddings=False)
    policy = Policy(PolicyConfig(model=model, lora_r=4, target_modules=["q_proj", "lm_head"])).train()
    with torch.no_grad():
        for p in policy.trainable():
            p.normal_(std=0.1, generator=torch.Generator().manual_seed(0))
    sequence = TokenSequence((5, 6, 7), (8, 9, 10, 11))
    gradients = []
    for logits in (1 << 26, 2 * policy.model.config.vocab_size):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(head_module, "LOGITS_AT_ONCE", logits)
            logps = policy.token_logps(TokenBatch.of([sequence]), 0.9)
            gradients.append(torch.autograd.grad(logps.sum(), policy.trainable()))
    logits = policy.model(input_ids=torch.tensor([sequence.inputs]), use_cache=False).logits[0, 2:] / 0.9
    true = logits.log_softmax(-1).gather(-1, torch.tensor(sequence.completion)[:, None])[:, 0]
    torch.testing.assert_close(logps[0], true, atol=1e-5, rtol=1e-5)
    gradients.append(torch.autograd.grad(true.sum(), policy.trainable()))
    names = [name for name, p in sorted(policy.named_parameters()) if p.requires_grad]
    assert any("lm_head.lora_B" in name for name in names)
    for computed in gradients[:2]:
        for mine, true in zip(computed, gradients[2], strict=True):
            assert true.norm() > 0
            assert (mine - true).norm() <= 1e-5 * true.norm()
