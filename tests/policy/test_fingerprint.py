"""Fingerprints: what tells base models and runs apart, and how a difference is said."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import nn

from lovec.models.tiny import build_tiny
from lovec.policy.fingerprint import base_part, differences, loaded_digest, settings_part

RECIPE: dict[str, Any] = {
    "trainer": {"precision": "32-true", "max_steps": 4, "devices": 1},
    "model": {
        "class_path": "lovec.modules.DPO",
        "init_args": {
            "policy": {"model": "world", "instruction": None, "lora_r": 4, "gradient_checkpointing": False},
            "optimizer": {"class_path": "torch.optim.AdamW", "init_args": {"lr": 0.1, "betas": [0.9, 0.99]}},
            "oracle": {"class_path": "lovec.oracles.OpenAIOracle", "init_args": {"model": "m", "max_cost": 3}},
            "evaluation": {"modes": ["iterative"]},
            "micro_batch_tokens": 10,
            "beta": 0.1,
        },
    },
    "data": {"class_path": "Preferences", "init_args": {"path": "a.jsonl"}},
}


class Scaled(nn.Module):
    """One large weight, of which a sample is hashed."""

    def __init__(self, last: float = 0.0) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1 << 18))
        self.weight.data[:: 1 << 2] = torch.arange(1 << 16) / 7
        self.weight.data[-4] += last


def test_weights_of_one_shape_are_told_apart_and_precision_is_not() -> None:
    digest = loaded_digest(Scaled())
    assert digest == loaded_digest(Scaled()) == loaded_digest(Scaled().to(torch.bfloat16))
    assert digest != loaded_digest(Scaled(last=100.0))


def test_adapters_are_no_part_of_the_base(tmp_path: Path) -> None:
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    build_tiny("llama", tmp_path / "llama")
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "llama")
    before = base_part("tiny", model)
    adapted = get_peft_model(model, LoraConfig(r=4, target_modules=["q_proj"], task_type="CAUSAL_LM"))
    assert base_part("tiny", adapted.get_base_model()) == before
    model.config.rope_theta = 7.0  # the same weights, another model
    assert base_part("tiny", model)["config"] != before["config"]


def test_settings_are_those_that_decide_what_is_learned() -> None:
    assert settings_part(RECIPE) == {
        "trainer.precision": "32-true",
        "model.policy.lora_r": 4,
        "model.optimizer": "torch.optim.AdamW",
        "model.optimizer.lr": 0.1,
        "model.optimizer.betas": [0.9, 0.99],
        "model.oracle": "lovec.oracles.OpenAIOracle",
        "model.oracle.model": "m",
        "model.beta": 0.1,
        "data": "Preferences",
        "data.path": "a.jsonl",
    }


def test_differences_are_named() -> None:
    saved = {
        "base": {"name": "a", "config": "1", "weights": "2"},
        "data": {"records": 3},
        "settings": {"model.beta": 0.1, "data.path": "a.jsonl", "model.gone": 1},
    }
    now = {
        "base": {"name": "b", "config": "1", "weights": "2"},
        "data": {"records": 3},
        "settings": {"model.beta": 0.1, "data.path": "copy-of-a.jsonl", "model.new": 2},
    }
    assert differences(saved, now) == {}  # other names of the same things
    now["base"]["weights"], now["data"]["records"], now["settings"]["model.beta"] = "3", 4, 0.2
    assert differences(saved, now) == {
        "base": "it was a, is b with other weights",
        "data": "data.path was a.jsonl, is copy-of-a.jsonl, records was 3, is 4",
        "settings": "model.beta was 0.1, is 0.2",
    }
    assert set(differences(None, now)) == set(now)
    assert differences({"base": [], "data": None}, {"base": {}}) == {"base": "the checkpoint does not say"}
