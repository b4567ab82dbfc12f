"""Rollouts of an engine with arithmetic of its own: importance weights, and what is logged of the mismatch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tinyrun import Drifted, Lengths, Ragged, Rows, Truth, fit, module, records, trainer
from torch import Tensor

from lovec.losses import grpo_token_loss, row_means
from lovec.modules import GRPO, Batch, Example, RolloutModule
from lovec.modules.batching import micro_batches
from lovec.types import LovecError


class Copy(Ragged):
    """Says that it is another engine, but has the policy's own arithmetic."""

    shares_model = False


def grpo(model: str, adapter: str | None = None, cls: type = GRPO, **options: Any) -> Any:
    torch.manual_seed(0)
    given = {"reward": Truth(), "oracle": Lengths(), "group_size": 3, "max_new_tokens": 10, "temperature": 0.7}
    return module(cls, model, adapter, **{**given, "engine": Drifted(8), **options})


def loaded(folder: Path, made: Any) -> Any:
    trainer(folder, max_steps=0).fit(made, Rows())
    return made


def gradient(made: Any, loss: Tensor) -> Tensor:
    made.policy.zero_grad()
    loss.backward()
    return torch.cat([p.grad.flatten() for p in made.policy.trainable()])


@pytest.mark.parametrize("cap", [1.2, None])
def test_the_gradient_is_that_of_the_formula(cap: float | None, model: str, adapter: str, tmp_path: Path) -> None:
    """-(w min(ratio A, clip(ratio) A) - beta k3), w = min(pi_old / mu, cap), with pi_old the policy that sampled."""
    made = loaded(tmp_path, grpo(model, adapter, importance_cap=cap, inner_epochs=2))
    examples = made.rollouts(records(4))
    batch = Batch.of(examples, made.policy.device)
    with torch.no_grad():
        old = made.policy.token_logps(batch.tokens, 0.7)
    made.loss(batch)  # the first round keeps the old log-probs; then the policy moves away
    noise = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for p in made.policy.trainable():
            p.add_(0.1 * torch.randn(p.shape, generator=noise))
    out = made.loss(batch)
    found = gradient(made, made._total(out, made.counts(examples)))

    sampler = torch.zeros_like(old)
    for row, example in zip(sampler, examples, strict=True):
        row[: len(example.data["sampler"])] = torch.tensor(example.data["sampler"])
    weights = torch.ones_like(old) if cap is None else torch.minimum((old - sampler).exp(), torch.tensor(cap))
    logps = made.policy.token_logps(batch.tokens, 0.7)
    ref = made.reference_token_logps(batch, 0.7)
    advantages = torch.tensor([example.data["advantages"][0] for example in examples])
    ratio = (logps - old).exp()
    gain = torch.minimum(ratio * advantages[:, None], ratio.clamp(0.8, 1.2) * advantages[:, None])
    k3 = (ref - logps).exp() - (ref - logps) - 1
    mask = batch.tokens.mask
    expected = gradient(made, (((0.04 * k3 - weights * gain) * mask).sum(1) / mask.sum(1)).mean())
    assert float((found - expected).norm() / expected.norm()) < 1e-5
    if cap is not None:
        assert (weights == cap).any() and (weights < 1).any()
        plain = row_means(grpo_token_loss(logps.detach(), old, ref, advantages, 0.2, 0.2, 0.04), mask).mean()
        assert abs(float(out.terms["policy"].values.detach().mean() - plain)) > 1e-3
    else:
        assert "weight" not in out.metrics


def test_the_mismatch_is_logged_over_all_micro_batches(model: str, adapter: str, tmp_path: Path) -> None:
    runs = []
    for tokens in (300, 10**6):
        made = grpo(model, adapter, micro_batch_tokens=tokens, importance_cap=1.5)
        kept: list[Example] = []
        rollouts = made.rollouts
        made.rollouts = lambda rows, rollouts=rollouts, kept=kept: kept.extend(rollouts(rows)) or kept
        runs.append(fit(tmp_path, made, max_steps=1))
        assert (len(micro_batches(kept, tokens)) > 2) == (tokens == 300)
        told = [(example.record.id, token) for example in kept for token in example.sequences[0].completion]
        offsets = torch.tensor([made.engine.drift(*where) for where in told])
        expected = {
            "train/mismatch": float(offsets.abs().mean()),
            "train/mismatch_max": float(offsets.abs().max()),
            "train/weight": float((-offsets).exp().clamp(max=1.5).mean()),
        }
        assert {name: runs[-1].logged[0][name] for name in expected} == pytest.approx(expected, abs=2e-5)
    a, b = (run.gradients[0] for run in runs)
    assert float((a - b).norm() / a.norm()) < 1e-5


def test_an_engine_that_runs_the_policys_model_is_left_as_it_was(model: str, adapter: str, tmp_path: Path) -> None:
    """No weights whatever the cap, to the last bit; nor with an engine of its own where they are turned off."""
    runs = [
        fit(tmp_path, grpo(model, adapter, **options), max_steps=2)
        for options in (
            {"engine": Ragged(8)},
            {"engine": Ragged(8), "importance_cap": 1e-3},
            {"engine": Drifted(8), "importance_cap": None},
            {"engine": Drifted(8)},
        )
    ]
    own, capped, off, weighted = runs
    for run in (capped, off):
        assert all(torch.equal(a, b) for a, b in zip(own.gradients, run.gradients, strict=True))
        assert run.logged[0]["train/loss"] == own.logged[0]["train/loss"]
    assert not torch.allclose(own.gradients[0], weighted.gradients[0], rtol=1e-2)
    assert not {"train/mismatch", "train/mismatch_max", "train/weight"} & (
        own.logged[0].keys() | capped.logged[0].keys()
    )
    assert "train/mismatch" in off.logged[0] and "train/weight" not in off.logged[0]


def test_log_probs_are_compared_at_one_temperature(model: str, adapter: str, tmp_path: Path) -> None:
    """An engine with the policy's arithmetic has weights of 1, also when the policy has moved between rounds."""
    run = fit(tmp_path, grpo(model, adapter, engine=Copy(8), inner_epochs=2, lr=5e-2), max_steps=4)
    for logged in run.logged:
        assert logged["train/mismatch_max"] < 1e-4
        assert logged["train/weight"] == pytest.approx(1.0, abs=1e-5)
    own = fit(tmp_path, grpo(model, adapter, engine=Ragged(8), inner_epochs=2, lr=5e-2), max_steps=2)
    assert float((run.gradients[0] - own.gradients[0]).norm() / own.gradients[0].norm()) < 1e-4


def test_an_objective_of_ones_own_is_weighted_too(model: str, adapter: str, tmp_path: Path) -> None:
    """With w = pi / mu the gradient is that of samples as likely as the engine says."""

    class Reinforce(RolloutModule):
        def advantages(self, rewards: Tensor) -> Tensor:
            return rewards - rewards.mean(1, keepdim=True)

        def token_loss(self, token_logps: Tensor, old: Tensor, ref: Any, advantages: Tensor) -> Tensor:
            return -advantages * token_logps

    made = loaded(tmp_path, grpo(model, adapter, cls=Reinforce, importance_cap=10.0))
    examples = made.rollouts(records(2))
    batch = Batch.of(examples, made.policy.device)
    values = made.loss(batch).terms["policy"].values
    logps = made.policy.token_logps(batch.tokens, 0.7)
    for i, example in enumerate(examples):
        own = logps[i][: len(example.data["sampler"])].detach()
        weights = (own - torch.tensor(example.data["sampler"])).exp()
        expected = -(weights * example.data["advantages"][0] * own).mean()
        assert float(values[i]) == pytest.approx(float(expected), rel=1e-4, abs=1e-5)


@pytest.mark.parametrize("cap", [0.0, -1.0, float("nan")])
def test_a_cap_that_leaves_no_weight_is_refused(cap: float, model: str) -> None:
    with pytest.raises(LovecError, match=r"importance_cap is .*, expected a number above 0, or null for no weights"):
        grpo(model, importance_cap=cap)


def test_the_largest_of_all_processes_is_logged(
    model: str, adapter: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other process, stood in for, has seen a larger difference; its sums are as if it had seen nothing."""
    made = grpo(model, adapter)
    alone = made._everywhere
    monkeypatch.setattr(
        made,
        "_everywhere",
        lambda values: [*alone(values), dict.fromkeys(values, 77.0)] if "mismatch_max" in values else alone(values),
    )
    logged: dict[str, float] = {}
    monkeypatch.setattr(made, "log_dict", lambda values, **_: logged.update(values))
    trainer(tmp_path, max_steps=1).fit(made, Rows())
    assert logged["train/mismatch_max"] == 77.0 > logged["train/mismatch"]
