"""What decides a score, compared in words."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from lovec.provenance import Provenance, provenance_of, weights_digest
from lovec.tags import DEFAULT_TAGS, TagFormat
from lovec.types import LovecError


@pytest.fixture
def base(tmp_path: Path) -> Path:
    folder = tmp_path / "base"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"model_type": "llama", "dtype": "float32"}))
    (folder / "tokenizer.json").write_text("{}")
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": "{{ messages }}"}))
    (folder / "model.safetensors").write_bytes(b"weights")
    return folder


@pytest.fixture
def adapter(tmp_path: Path) -> Path:
    folder = tmp_path / "adapter"
    folder.mkdir()
    options = {"r": 8, "lora_alpha": 16, "target_modules": ["v_proj", "q_proj"], "use_dora": False, "peft_version": "1"}
    (folder / "adapter_config.json").write_text(json.dumps(options))
    (folder / "adapter_model.safetensors").write_bytes(b"lora")
    return folder


def found(base: Path | None, adapter: Path | None, name: str = "org/model", **changes: Any) -> Provenance:
    return provenance_of(
        name, base, adapter, **{"instruction": "Rate.", "tags": DEFAULT_TAGS, "scoring": "exact", **changes}
    )


def test_what_changes_no_score_makes_no_difference(base: Path, adapter: Path, tmp_path: Path) -> None:
    before = found(base, adapter)
    (base / "config.json").write_text(json.dumps({"dtype": "bfloat16", "model_type": "llama", "_name": "x"}))
    (base / "tokenizer_config.json").write_text("{}")
    (base / "chat_template.jinja").write_text("{{ messages }}")  # where newer versions of transformers keep it
    (base / "README.md").write_text("A model.")
    options = {"lora_alpha": 16, "r": 8, "target_modules": ["q_proj", "v_proj"], "use_rslora": False, "bias": "none"}
    (adapter / "adapter_config.json").write_text(json.dumps({**options, "peft_version": "2", "lora_dropout": 0.5}))
    after = found(base.rename(tmp_path / "moved"), adapter, name="/somewhere/moved")
    assert before.differences(after) == [] == before.unchecked(after)
    assert "somewhere" not in json.dumps(after.to_dict())
    assert Provenance.from_dict(json.loads(json.dumps(before.to_dict()))) == before


@pytest.mark.parametrize("option", ["alpha_pattern", "rank_pattern", "use_dora", "use_rslora", "layers_to_transform"])
def test_every_option_of_an_adapter_counts(base: Path, adapter: Path, option: str) -> None:
    before, path = found(base, adapter), adapter / "adapter_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), option: {"q_proj": 4}}))
    assert before.differences(found(base, adapter)) == [f'{option}: none there, {{"q_proj": 4}} here']


def test_differences_are_said_in_words(base: Path, adapter: Path, tmp_path: Path) -> None:
    before = found(base, adapter)
    (tmp_path / "own.jinja").write_text("other")
    other = found(
        base,
        None,
        instruction="Rate" + " every sentence of the answer with a confidence" * 3 + " please.",
        tags=TagFormat("<b>", "</b>"),
        chat_template=str(tmp_path / "own.jinja"),
        quantization="nf4",
        scoring="prefix",
    )
    said = "\n".join(before.differences(other, ("then", "now")))
    for words in (
        "adapter: one then, none now",
        'instruction: "Rate." then, "Rate every',
        'tag words: ["<confidence>", "</confidence>"] then, ["<b>", "</b>"] now',
        "the chat template: ",
        "quantization: none then, nf4 now",
        "what is scored at a tag: exact then, prefix now",
    ):
        assert words in said
    (base / "model.safetensors").write_bytes(b"others")
    digests = [weights_digest(base)[:12], before.parts["base"]["weights"][:12]]
    assert before.differences(found(base, adapter)) == [
        f"the weights of the base model: {digests[1]} there, {digests[0]} here"
    ]
    assert before.differences(found(base, adapter, "org/other")) == ["the base model: org/model there, org/other here"]


def test_what_is_not_known_is_not_compared_and_said(base: Path, adapter: Path) -> None:
    here, there = found(base, adapter), found(None, adapter)
    assert here.differences(there) == []
    assert here.unchecked(there) == [
        "the configuration of the base model",
        "the tokenizer",
        "the weights of the base model",
        "the chat template",
    ]
    assert here.differences(found(None, adapter, "org/other")) == ["the base model: org/model there, org/other here"]
    plain = here.without_tags()
    assert plain.differences(found(base, adapter, instruction="Other.", scoring="prefix")) == []


@pytest.mark.parametrize(
    ("data", "line"),
    [
        (5, "a provenance is 5, expected an object"),
        ({}, "a provenance lacks"),
        ({"base": [], "adapter": {}, "prompt": {}, "computing": {}}, "base of a provenance is a list"),
        ({"base": {"a\nb": 1}, "adapter": {}, "prompt": {}, "computing": {}}, "a name in base of a provenance is"),
        ({"base": {}, "adapter": {"r": "9" * 99_999}, "prompt": {}, "computing": {}}, "r of a provenance is"),
    ],
)
def test_what_is_no_provenance_is_refused(data: Any, line: str) -> None:
    with pytest.raises(LovecError, match=line):
        Provenance.from_dict(data)


def test_hostile_text_is_printable(base: Path, adapter: Path) -> None:
    (said,) = found(base, adapter).differences(found(base, adapter, instruction="\x1b[31mred\x9b\n"))
    assert said.isprintable() and "\n" not in said
