"""What one step must not leave to the next, and settings that only some runs have."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback
from tinyrollouts import grpo
from tinyrun import Ragged, Rows, fit, module, trainer
from torch import Tensor

from lovec.modules import DPO, ORPO, SFT, WarmupCosine
from lovec.types import LovecError


def test_a_step_begins_without_the_gradients_of_the_last(model: str, adapter: str, tmp_path: Path) -> None:
    """At rate 0 every step over the same rows has the same gradient."""
    run = fit(tmp_path, module(DPO, model, adapter, lr=0.0, sgd=True), Rows(4, batch_size=4), max_epochs=3)
    norms = [logged["train/grad_norm"] for logged in run.logged]
    assert len(norms) == 3 and norms == pytest.approx([norms[0]] * 3, rel=1e-4)
    assert norms[0] > 0


def test_an_infinite_gradient_of_one_weight_is_named(model: str, tmp_path: Path) -> None:
    class Overflow(SFT):
        def loss(self, batch: Any) -> Any:
            self.policy.trainable()[0].register_hook(lambda grad: torch.full_like(grad, float("inf")))
            return super().loss(batch)

    with pytest.raises(LovecError, match="is inf at step 0"):
        fit(tmp_path, module(Overflow, model), max_steps=1)


def test_orpo_compares_means_over_tokens(model: str, adapter: str, tmp_path: Path) -> None:
    objective = module(ORPO, model, adapter)
    logged = fit(tmp_path, objective, Rows(1, batch_size=1), max_steps=1).logged[0]
    summed = fit(tmp_path, module(DPO, model, adapter), Rows(1, batch_size=1), max_steps=1).logged[0]
    tokens = len(objective.example(Rows(1).load("train")[0]).sequences[0].completion)
    assert logged["train/chosen_logps"] * tokens == pytest.approx(summed["train/chosen_logps"], rel=1e-6)


def test_every_batch_of_rollouts_is_sampled_after_a_sync(model: str, tmp_path: Path) -> None:
    """An engine that runs a copy of the policy has the newest weights only if it is told."""
    happened: list[str] = []

    class Watched(Ragged):
        def sync(self, policy: Any) -> None:
            happened.append("sync")
            super().sync(policy)

        def generate(self, *args: Any, **kwargs: Any) -> Any:
            happened.append("generate")
            return super().generate(*args, **kwargs)

    fit(tmp_path, grpo(model, engine=Watched(8)), max_steps=3)
    before = [happened[at - 1] for at, what in enumerate(happened) if what == "generate"]
    assert before == ["sync"] * 3


def test_the_upper_clip_is_the_lower_one_unless_given(model: str) -> None:
    values = torch.tensor([[0.5]]), torch.tensor([[0.0]]), None, torch.tensor([[1.0]]), torch.ones(1, 1)

    def gain(**options: Any) -> Tensor:
        return -grpo(model, beta=0.0, clip_low=0.2, **options).token_loss(*values)

    assert float(gain()) == pytest.approx(1.2)
    assert float(gain(clip_high=0.4)) == pytest.approx(1.4)


def test_the_rate_falls_over_all_inner_epochs(model: str, tmp_path: Path) -> None:
    """Lightning counts batches, of which each has two steps here."""
    rates: list[float] = []

    class Rates(Callback):
        def on_train_batch_end(self, trainer: Any, *args: Any) -> None:
            rates.append(trainer.optimizers[0].param_groups[0]["lr"])

    trainer(tmp_path, max_epochs=2, callbacks=[Rates()]).fit(
        grpo(model, inner_epochs=2, lr_scheduler=WarmupCosine), Rows()
    )
    assert len(rates) == 6 and rates[-1] == pytest.approx(0.0, abs=1e-9)
    assert all(later < earlier for earlier, later in itertools.pairwise(rates)) and rates[-2] > 0


def test_the_state_of_a_schedule_is_plain() -> None:
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    state = WarmupCosine(optimizer, warmup=0.5).state_dict()
    assert state["last_epoch"] == 0 and json.loads(json.dumps(state)) == state  # a checkpoint holds it
