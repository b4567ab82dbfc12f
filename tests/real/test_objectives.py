"""Every recipe trains the real model for two steps."""

from __future__ import annotations

import csv
import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from realrun import LABELLED, brief
from safetensors.torch import load_file

from lovec.cli import main

pytestmark = pytest.mark.real

MEMORY = 5.5e9
"""Bytes that training may take on a machine of 8 GB."""


def weights(adapter: str) -> dict[str, torch.Tensor]:
    return load_file(Path(adapter) / "adapter_model.safetensors")


def losses(folder: Path) -> list[float]:
    with open(folder / "logs" / "version_0" / "metrics.csv") as file:
        return [float(row["train/loss"]) for row in csv.DictReader(file) if row["train/loss"]]


def test_sft_fits_a_small_machine_and_says_what_it_trains(run: Any) -> None:
    assert run.memory < MEMORY
    assert "SFT trains 1.8 million weights" in run.said and "warning" not in run.said.lower()
    settings = json.loads(Path(run.adapter, "lovec.json").read_text())
    assert settings["base"]["name"] == "smollm2"
    assert any(weight.abs().max() > 0 for name, weight in weights(run.adapter).items() if "lora_B" in name)


PAIRS = ("--data", "Preferences", *LABELLED[2:])
ORACLE = ("--model.oracle", "tinyrun.Lengths")
RECIPES = {
    "sft2": LABELLED,
    "sft-regression": LABELLED,
    "p-true": LABELLED,
    "orpo": PAIRS,
    "dpo": PAIRS,
    "grpo": (*LABELLED, *ORACLE, "--model.group_size", "2", "--model.max_new_tokens", "24"),
    "expected": LABELLED,
    "expected, first tokens": (*LABELLED, "--model.policy.scoring", "prefix"),
    "distil": (*LABELLED, "--model.teacher", "lovec.teachers.PolicyMean"),
}
FRESH = ("sft-regression", "p-true")


@pytest.mark.parametrize("name", RECIPES)
def test_two_steps(name: str, run: Any, tmp_path: Path) -> None:
    recipe = name.partition(",")[0]
    start = () if recipe in FRESH else ("--model.policy.adapter", run.adapter)
    main(["fit", "--config", f"{recipe}.yaml", *brief(tmp_path), *RECIPES[name], *start])
    found = losses(tmp_path)
    assert len(found) == 2 and all(map(math.isfinite, found))
    after = weights(str(tmp_path / "adapter"))
    assert all(bool(weight.isfinite().all()) for weight in after.values())
    if start and recipe != "grpo":  # its short answers have no tags, and so all the same reward
        before = weights(run.adapter)
        assert any(not torch.equal(before[key], after[key]) for key in before)


def test_a_reader_of_another_model_s_answers(run: Any, tmp_path: Path) -> None:
    """The commands of docs/recipes.md: the teacher is a probe, since there is one answer to a question."""
    words = ["--config", "reader.yaml", *LABELLED[2:]]
    teacher = ["lovec.teachers.BaselineTeacher", "--model.teacher.baseline", "lovec.baselines.LinearProbe"]
    start = ["--model.policy.adapter", run.adapter, "--model.teacher", *teacher]
    assert main(["fit", "--config", "distil.yaml", *words, *brief(tmp_path), *start]) == 0
    assert len(losses(tmp_path)) == 2 and all(map(math.isfinite, losses(tmp_path)))
