"""What is said of the real model: its name, and its row in docs/models.md."""

from __future__ import annotations

from pathlib import Path

import pytest
from families import FAMILIES
from scripts import load_script

from lovec.encoding import Encoder
from lovec.models import offline_model, resolve_model
from lovec.models.gguf import SMOLLM2
from lovec.policy import PolicyConfig, load_tokenizer

pytestmark = pytest.mark.real
second = load_script("second_model")


def test_the_real_model_is_known_by_its_folder(smollm2: str) -> None:
    assert offline_model(smollm2) == SMOLLM2
    assert offline_model(f"/elsewhere/{Path(smollm2).name}") == SMOLLM2


@pytest.mark.parametrize("arch", ["smollm2", "qwen2"])
def test_the_row_of_its_family_is_true_of_the_real_tokenizer(arch: str, smollm2: str) -> None:
    model = smollm2
    if arch == "qwen2":
        if not (file := second.qwen_file()).exists():
            pytest.skip(f"there is no {file}; python benchmarks/second_model.py fetches it")
        model = resolve_model(str(file))
    encoder = Encoder(load_tokenizer(PolicyConfig(model)), "Rate it.")
    family = next(family for family in FAMILIES if family.arch == arch)
    prompt = encoder.tokenizer.decode(encoder.prompt("Who?"))
    assert prompt.endswith(f"Who?{family.before}") and "Rate it." in prompt
    assert encoder.tokenizer.decode(encoder.completion(["A."], [10])).endswith(f"10 </confidence>{family.end}")
    assert [len(encoder.pieces(f" {score}")) for score in (1, 10)] == [2, 3]  # the space is a token, too
