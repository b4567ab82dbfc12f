"""Rollouts of an engine whose arithmetic differs: importance weights, and the logged mismatch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tinyrollouts import grpo as base_grpo
from tinyrun import Drifted, Ragged, Rows, fit, loaded, records, trainer
from torch import Tensor

from lovec.losses import grpo_token_loss, row_means
from lovec.modules import GRPO, Batch, Example, RolloutModule
from lovec.modules.batching import micro_batches
from lovec.types import LovecError


class Copy(Ragged):
    """Declares that it is another engine, but has the policy's own arithmetic."""

    shares_model = False


def grpo(model: str, adapter: str | None = None, cls: type = GRPO, **options: Any) -> Any:
    return base_grpo(model, adapter, cls, **{"engine": Drifted(8), "temperature": 0.7, **options})


def gradient(objective: Any, loss: Tensor) -> Tensor:
    objective.policy.zero_grad()
    loss.backward()
    return torch.cat([p.grad.flatten() for p in objective.policy.trainable()])


@pytest.mark.parametrize(
    ("cap", "options", "temperature"),
    [
        (1.2, {}, 0.7),
        (None, {}, 0.7),
        (1.2, {"loss_temperature": 1.0}, 1.0),
        (1.2, {"loss_temperature": 1.0, "engine": Ragged(8)}, 1.0),
        (None, {"loss_temperature": 0.5, "engine": Ragged(8)}, 0.5),
    ],
)
def test_the_gradient_is_that_of_the_formula(
    cap: float | None, options: dict[str, Any], temperature: float, model: str, adapter: str, tmp_path: Path
) -> None:
    """-(w min(ratio A, clip(ratio) A) - beta k3), w = min(pi_old / mu, cap), with pi_old the policy that sampled.

    mu is the distribution that sampled: another engine's, or that of the temperature 0.7.
    """
    objective = loaded(tmp_path, grpo(model, adapter, importance_cap=cap, inner_epochs=2, **options))
    examples = objective.rollouts(records(4))
    batch = Batch.of(examples, objective.policy.device)
    with torch.no_grad():
        old = objective.policy.token_logps(batch.tokens, temperature)
        sampled = objective.policy.token_logps(batch.tokens, 0.7)
    objective.loss(batch)  # the first inner epoch keeps the old log-probs; then the policy moves away
    noise = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for p in objective.policy.trainable():
            p.add_(0.1 * torch.randn(p.shape, generator=noise))
    out = objective.loss(batch)
    computed = gradient(objective, objective._total(out, objective.counts(examples)))

    sampler = torch.zeros_like(old)
    for row, example in zip(sampler, examples, strict=True):
        row[: len(example.sampler_logps)] = torch.tensor(example.sampler_logps)
    if "engine" in options:
        assert float(((sampler - sampled) * batch.tokens.mask).abs().max()) < 1e-4
    weights = torch.ones_like(old) if cap is None else torch.minimum((old - sampler).exp(), torch.tensor(cap))
    logps = objective.policy.token_logps(batch.tokens, temperature)
    ref = objective.reference_token_logps(batch, temperature)
    advantages = torch.tensor([example.advantages[0] for example in examples])
    ratio = (logps - old).exp()
    gain = torch.minimum(ratio * advantages[:, None], ratio.clamp(0.8, 1.2) * advantages[:, None])
    k3 = (ref - logps).exp() - (ref - logps) - 1
    mask = batch.tokens.mask
    expected = gradient(objective, (((0.04 * k3 - weights * gain) * mask).sum(1) / mask.sum(1)).mean())
    assert float((computed - expected).norm() / expected.norm()) < 1e-5
    if cap is not None:
        assert (weights == cap).any() and (weights < 1).any()
        plain = row_means(grpo_token_loss(logps.detach(), old, ref, advantages, 0.2, 0.2, 0.04), mask).mean()
        assert abs(float(out.terms["policy"].values.detach().mean() - plain)) > 1e-3
    else:
        assert "weight" not in out.metrics


def test_the_mismatch_is_logged_over_all_micro_batches(model: str, adapter: str, tmp_path: Path) -> None:
    runs = []
    for tokens in (100, 10**6):
        objective = grpo(model, adapter, micro_batch_tokens=tokens, importance_cap=1.5)
        examples: list[Example] = []
        rollouts = objective.rollouts
        objective.rollouts = lambda rows, f=rollouts, examples=examples: examples.extend(f(rows)) or examples
        runs.append(fit(tmp_path, objective, max_steps=1))
        assert (len(micro_batches(examples, tokens, True)) > 2) == (tokens == 100)
        sampled = [(example.record.id, token) for example in examples for token in example.sequences[0].completion]
        offsets = torch.tensor([objective.engine.drift(*key_and_token) for key_and_token in sampled])
        expected = {
            "train/mismatch": float(offsets.abs().mean()),
            "train/mismatch_max": float(offsets.abs().max()),
            "train/weight": float((-offsets).exp().clamp(max=1.5).mean()),
        }
        assert {name: runs[-1].logged[0][name] for name in expected} == pytest.approx(expected, abs=2e-5)
    a, b = (run.gradients[0] for run in runs)
    assert float((a - b).norm() / a.norm()) < 1e-5


def test_an_engine_that_runs_the_policys_model_needs_no_weights(model: str, adapter: str, tmp_path: Path) -> None:
    """There are none whatever the cap, to the last bit; nor for another engine where they are turned off."""
    runs = [
        fit(tmp_path, grpo(model, adapter, **options), max_steps=2)
        for options in (
            {"engine": Ragged(8)},
            {"engine": Ragged(8), "importance_cap": 1e-3, "loss_temperature": 0.7},
            {"engine": Drifted(8), "importance_cap": None},
            {"engine": Drifted(8)},
        )
    ]
    same_model, capped, off, weighted = runs
    for run in (capped, off):
        assert all(torch.equal(a, b) for a, b in zip(same_model.gradients, run.gradients, strict=True))
        assert run.logged[0]["train/loss"] == same_model.logged[0]["train/loss"]
    assert not torch.allclose(same_model.gradients[0], weighted.gradients[0], rtol=1e-2)
    assert not {"train/mismatch", "train/mismatch_max", "train/weight"} & (
        same_model.logged[0].keys() | capped.logged[0].keys()
    )
    assert "train/mismatch" in off.logged[0] and "train/weight" not in off.logged[0]


def test_log_probs_are_compared_at_one_temperature(model: str, adapter: str, tmp_path: Path) -> None:
    """An engine with the policy's arithmetic has weights of 1, also when the policy has moved between inner epochs."""
    run = fit(tmp_path, grpo(model, adapter, engine=Copy(8), inner_epochs=2, lr=5e-2), max_steps=4)
    for logged in run.logged:
        assert logged["train/mismatch_max"] < 1e-4
        assert logged["train/weight"] == pytest.approx(1.0, abs=1e-5)
    same_model = fit(tmp_path, grpo(model, adapter, engine=Ragged(8), inner_epochs=2, lr=5e-2), max_steps=2)
    assert float((run.gradients[0] - same_model.gradients[0]).norm() / same_model.gradients[0].norm()) < 1e-4


def test_a_users_objective_is_weighted_too(model: str, adapter: str, tmp_path: Path) -> None:
    """With w = pi / mu the gradient is that of samples as likely as the engine says."""

    class Reinforce(RolloutModule):
        def advantages(self, rewards: Tensor) -> Tensor:
            return rewards - rewards.mean(1, keepdim=True)

        def token_loss(self, token_logps: Tensor, old: Tensor, ref: Any, advantages: Tensor, mask: Tensor) -> Tensor:
            return -advantages * token_logps

    objective = loaded(tmp_path, grpo(model, adapter, cls=Reinforce, importance_cap=10.0))
    examples = objective.rollouts(records(2))
    batch = Batch.of(examples, objective.policy.device)
    values = objective.loss(batch).terms["policy"].values
    logps = objective.policy.token_logps(batch.tokens, 0.7)
    for i, example in enumerate(examples):
        row = logps[i][: len(example.sampler_logps)].detach()
        weights = (row - torch.tensor(example.sampler_logps)).exp()
        expected = -(weights * example.advantages[0] * row).mean()
        assert float(values[i].detach()) == pytest.approx(float(expected), rel=1e-4, abs=1e-5)


@pytest.mark.parametrize("cap", [0.0, -1.0, float("nan")])
def test_a_cap_that_leaves_no_weight_is_refused(cap: float, model: str) -> None:
    with pytest.raises(LovecError, match=r"importance_cap is .*, expected above 0"):
        grpo(model, importance_cap=cap)


def test_the_largest_of_all_processes_is_logged(
    model: str, adapter: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second process, which is simulated, has seen a larger mismatch; its sums are as if it had seen nothing."""
    objective = grpo(model, adapter)
    monkeypatch.setattr(
        "lovec.evaluation.processes.gather",
        lambda trainer, part: [part, dict.fromkeys(part, 77.0)] if "mismatch_max" in part else [part],
    )
    logged: dict[str, float] = {}
    monkeypatch.setattr(objective, "log_dict", lambda values, **_: logged.update(values))
    trainer(tmp_path, max_steps=1).fit(objective, Rows())
    assert logged["train/mismatch_max"] == 77.0 > logged["train/mismatch"]
