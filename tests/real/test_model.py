"""What is said of the real model: its name, and its row in docs/models.md."""

from __future__ import annotations

from pathlib import Path

import pytest
from families import FAMILIES

from lovec.encoding import Encoder
from lovec.models import offline_model
from lovec.models.gguf import SMOLLM2
from lovec.policy import PolicyConfig, load_tokenizer

pytestmark = pytest.mark.real


def test_the_real_model_is_known_by_its_folder(smollm2: str) -> None:
    assert offline_model(smollm2) == SMOLLM2
    assert offline_model(f"/elsewhere/{Path(smollm2).name}") == SMOLLM2


def test_the_row_of_its_family_is_true_of_the_real_tokenizer(smollm2: str) -> None:
    encoder = Encoder(load_tokenizer(PolicyConfig(smollm2)), "Rate it.")
    family = next(family for family in FAMILIES if family.arch == "smollm2")
    prompt = encoder.tokenizer.decode(encoder.prompt("Who?"))
    assert prompt.endswith(f"Who?{family.before}") and "Rate it." in prompt
    assert encoder.tokenizer.decode(encoder.completion(["A."], [10])).endswith(f"10 </confidence>{family.end}")
    assert [len(encoder.pieces(f" {score}")) for score in (1, 10)] == [2, 3]  # the space is a token, too
