"""A test on another confidence scale than 0 to 10."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from tinyrun import Lengths, Rows, module, trainer

from lovec.datasets.jsonl import read_records
from lovec.modules import SFT, EvaluationConfig, PolicyConfig
from lovec.types import LovecError, Scale

WORDS = ["surely not", "maybe", "surely"]


def test_a_test_measures_on_the_scale_of_the_policy(model: str, adapter: str, tmp_path: Path) -> None:
    adapter = shutil.copytree(adapter, tmp_path / "own")
    (adapter / "lovec.json").unlink()  # which says that it was trained on 0 to 10
    config = EvaluationConfig(rows=8, max_new_tokens=8, adapter=str(adapter), recalibrated=True, modes=["iterative"])
    policy = PolicyConfig(model=model, lora_r=4, scale=WORDS, scoring="exact")
    sft = module(SFT, model, policy=policy, evaluation=config, oracle=Lengths())
    trainer(tmp_path).test(sft, Rows(), verbose=False)
    assert sft.scale == sft.encoder.scale == Scale(tuple(WORDS))
    for method in ("sft", "best-constant"):
        records = list(read_records(tmp_path / "test" / "rows" / f"{method}.iterative.jsonl"))
        sentences = [sentence for record in records for sentence in record.sentences]
        assert {s.levels for s in sentences} == {3} and {s.score for s in sentences} <= {0, 1, 2}
        rows = {(row.method, row.level, row.readout): row for row in sft.results}
        row = rows["SFT" if method == "sft" else "Best constant", "sentence", "stated"]
        errors = [(s.score / 2 - s.factuality) ** 2 for s in sentences]
        assert row.n == len(sentences) and row.metrics["brier"] == pytest.approx(sum(errors) / len(errors))
        assert 1 <= row.metrics["distinct"] <= 3
    assert {row.method for row in sft.results} >= {"SFT", "SFT + isotonic", "SFT + Platt", "Vanilla", "Best constant"}


def test_a_scale_whose_words_are_equal_is_refused(model: str) -> None:
    with pytest.raises(LovecError, match=r"the words of the scale are \['yes', 'yes'\]"):
        module(SFT, model, policy=PolicyConfig(model=model, scale=["yes", "yes"]))
