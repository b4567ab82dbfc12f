"""Which layers get a LoRA: what PEFT matches, fused layers for their parts, and no training on half of a request."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from peft.tuners.lora import LoraLayer
from safetensors.torch import load_file
from tinyrun import Rows, module, sft_adapter, tiny, trainer
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from lovec.export.exporting import ExportSource, export_merged
from lovec.modules import SFT
from lovec.policy import Policy, PolicyConfig, TokenBatch, TokenSequence
from lovec.policy.adapters import fresh_adapter
from lovec.policy.targets import Targets
from lovec.taggers import open_session
from lovec.types import LovecError

DEFAULT = PolicyConfig().target_modules
MLP = ["gate_proj", "up_proj", "down_proj"]
BATCH = TokenBatch.of([TokenSequence((3, 4, 5), (6, 7))])
SMALL = {"vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 48}


@pytest.fixture(scope="module")
def phi3(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A random Phi-3: qkv_proj, o_proj, gate_up_proj and down_proj."""
    return tiny(tmp_path_factory.mktemp("models"), "phi3")


@pytest.fixture(scope="module")
def base(phi3: str) -> Any:
    return AutoModelForCausalLM.from_pretrained(phi3)


def random_model(kind: str, **sizes: Any) -> Any:
    return AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **{**SMALL, **sizes}))


def adapted(model: Any) -> set[str]:
    """The layers that have a LoRA, by their last names."""
    return {name.rpartition(".")[2] for name, module in model.named_modules() if isinstance(module, LoraLayer)}


def refusal(base: Any, names: Any) -> str:
    with pytest.raises(LovecError) as caught:
        Targets.of(base, names, trained=True)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("name", ["lm_head", "embed_tokens", "model.embed_tokens"])
def test_embeddings_get_no_lora(tmp_path: Path, name: str) -> None:
    model = tiny(tmp_path, tie_word_embeddings=True)
    with pytest.raises(LovecError, match=rf"policy.target_modules puts a LoRA on {name}, expected .*'\[q_proj\]'"):
        Policy(PolicyConfig(model, lora_r=2, target_modules=["q_proj", name]))
    stranger = get_peft_model(AutoModelForCausalLM.from_pretrained(model), LoraConfig(r=2, target_modules=[name]))
    stranger.save_pretrained(tmp_path / "stranger")
    line = f"the adapter in {tmp_path / 'stranger'} puts a LoRA on {name}, expected"
    with pytest.raises(LovecError, match=line):
        Policy(PolicyConfig(model, adapter=str(tmp_path / "stranger"), any_base=True))
    policy = Policy(PolicyConfig(model, lora_r=2, any_base=True))
    with pytest.raises(LovecError, match=line), policy.with_adapter(str(tmp_path / "stranger")):
        pass


def test_an_adapter_of_an_output_layer_of_its_own_is_small_and_can_be_read(tmp_path: Path) -> None:
    model = tiny(tmp_path, tie_word_embeddings=False)
    policy = Policy(PolicyConfig(model, lora_r=2, target_modules=["q_proj", "lm_head"]))
    with torch.no_grad():
        for parameter in policy.trainable():
            parameter.normal_(std=0.1)
    policy.save_adapter(tmp_path / "adapter")
    assert all(".lora_" in name for name in load_file(tmp_path / "adapter" / "adapter_model.safetensors"))
    read = Policy(PolicyConfig(model, adapter=str(tmp_path / "adapter")))
    torch.testing.assert_close(read.token_logps(BATCH), policy.token_logps(BATCH))
    export_merged(ExportSource.find(str(tmp_path / "adapter")), tmp_path / "merged", "")
    merged = Policy(PolicyConfig(str(tmp_path / "merged"), lora_r=2))
    torch.testing.assert_close(merged.token_logps(BATCH), policy.token_logps(BATCH), atol=1e-5, rtol=1e-5)
    policy.peft.save_pretrained(str(tmp_path / "whole"))  # as PEFT does
    with pytest.raises(LovecError, match=r"holds a whole layer \(.*lm_head.*save_embedding_layers=False"):
        Policy(PolicyConfig(model, adapter=str(tmp_path / "whole")))


@pytest.mark.parametrize("arch", ["llama", "gemma2", "qwen2", "qwen3"])
def test_models_with_all_layers_get_a_lora_on_exactly_those(tmp_path: Path, arch: str) -> None:
    policy = Policy(PolicyConfig(tiny(tmp_path, arch), lora_r=2))
    names = {name.split(".layers.")[1].split(".lora_")[0] for name, p in policy.named_parameters() if p.requires_grad}
    assert names == {f"{layer}.self_attn.{name}" for layer in (0, 1) for name in DEFAULT}
    assert policy.adapted_note is None
    assert policy.shape["lora"]["target_modules"] == sorted(DEFAULT)


def test_the_default_adapts_the_whole_attention_of_phi_3(phi3: str) -> None:
    policy = Policy(PolicyConfig(phi3, lora_r=2))
    assert adapted(policy.model) == {"qkv_proj", "o_proj"}
    assert policy.adapted_note == (
        "LoRA on o_proj, qkv_proj (this model has qkv_proj instead of q_proj, k_proj, v_proj)"
    )
    policy.token_logps(BATCH).sum().backward()
    reached = {name.split(".")[-4] for name, p in policy.named_parameters() if p.grad is not None and p.grad.any()}
    assert reached == {"qkv_proj", "o_proj"}


@pytest.mark.parametrize(
    ("asked", "names"),
    [
        (MLP, {"gate_up_proj", "down_proj"}),
        ([*DEFAULT, *MLP], {"qkv_proj", "o_proj", "gate_up_proj", "down_proj"}),
        (["q_proj", "k_proj", "v_proj"], {"qkv_proj"}),
        (["q_proj", "k_proj", "v_proj", "qkv_proj"], {"qkv_proj"}),
        (["qkv_proj"], {"qkv_proj"}),
    ],
)
def test_a_fused_layer_stands_for_all_of_its_parts(base: Any, asked: list[str], names: set[str]) -> None:
    assert set(Targets.of(base, asked, trained=True).names) == names


def test_names_with_dots_and_duplicates_are_compared_as_peft_does(base: Any) -> None:
    for asked in (["self_attn.qkv_proj"], ["model.layers.0.mlp.down_proj"], ["layers.1.self_attn.o_proj"]):
        assert Targets.of(base, asked * 2, trained=True) == Targets(asked)
    for name in ("kv_proj", "attn.qkv_proj", "QKV_PROJ", "qkv_proj.", "qkv.*", "all-linear", ""):  # no end after a dot
        assert f"no layers {name} to train" in refusal(base, [name])


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        (["q_proj", "v_proj"], ["no layers q_proj, v_proj to train", "target_modules '[qkv_proj]'"]),
        (["o_proj", "q_proj"], ["no layers q_proj to train a LoRA on, only o_proj;", "'[o_proj,qkv_proj]'"]),
        (["gate_proj", "down_proj"], ["no layers gate_proj to train", "only down_proj;", "'[down_proj,gate_up_proj]'"]),
        ([*DEFAULT, "w_q"], ["no layers w_q to train a LoRA on, only o_proj, qkv_proj;"]),
        (["w_q"], ["no layers w_q to train a LoRA on; its", "'[o_proj,qkv_proj,gate_up_proj,down_proj]'"]),
        ("all-linear", ["is 'all-linear', expected a list of names"]),
    ],
)
def test_half_of_a_request_is_refused_with_the_names_that_exist(base: Any, asked: Any, words: list[str]) -> None:
    error = refusal(base, asked)
    assert all(word in error for word in [*words, "--model.policy.target_modules"])
    assert isinstance(asked, str) or "its linear layers are o_proj, qkv_proj, gate_up_proj, down_proj:" in error


def test_the_names_in_a_refusal_are_taken(base: Any) -> None:
    example = refusal(base, ["o_proj", "q_proj"]).rpartition("'[")[2].removesuffix("]'").split(",")
    assert Targets.of(base, example, trained=True) == Targets(["o_proj", "qkv_proj"])


@pytest.mark.parametrize("kind", ["gpt_neox", "falcon", "persimmon"])
def test_query_key_value_and_dense_are_the_attention_of_older_models(kind: str) -> None:
    model = random_model(kind)
    targets = Targets.of(model, DEFAULT, trained=True)
    assert Targets.of(model, ["q_proj", "k_proj", "v_proj"], trained=True).names == ["query_key_value"]
    assert adapted(fresh_adapter(model, {"r": 2, "target_modules": targets.names}, False)) == {
        "query_key_value",
        "dense",
    }
    assert "dense_h_to_4h" in refusal(random_model(kind), ["up_proj"])


def test_a_dense_layer_beside_separate_projections_is_not_guessed() -> None:
    phi = random_model("phi")
    assert "no layers o_proj to train a LoRA on, only k_proj, q_proj, v_proj;" in refusal(phi, DEFAULT)
    assert "q_proj, k_proj, v_proj, dense, fc1, fc2" in refusal(phi, DEFAULT)


def test_gate_up_proj_beside_separate_projections() -> None:
    glm = random_model("glm", num_key_value_heads=1, head_dim=16, pad_token_id=0)
    assert Targets.of(glm, DEFAULT, trained=True) == Targets(sorted(DEFAULT))
    assert Targets.of(glm, [*DEFAULT, *MLP], trained=True).names == sorted([*DEFAULT, "gate_up_proj", "down_proj"])


def test_nothing_is_trained_on_half_of_a_request(phi3: str, tmp_path: Path) -> None:
    half = module(SFT, phi3, policy=PolicyConfig(phi3, target_modules=["q_proj", "v_proj", "o_proj"]))
    with pytest.raises(LovecError, match=r"no layers q_proj, v_proj to train a LoRA on, only o_proj; .*qkv_proj"):
        trainer(tmp_path, max_steps=1).fit(half, Rows(4, 2))
    assert not (tmp_path / "adapter").exists()


def test_training_says_what_it_adapts_and_its_adapter_loads(
    phi3: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        folder = sft_adapter(tmp_path, phi3)
    assert [r.message for r in caplog.records if "LoRA on" in r.message] == [
        "LoRA on o_proj, qkv_proj (this model has qkv_proj instead of q_proj, k_proj, v_proj)"
    ]
    saved = json.loads((Path(folder) / "adapter_config.json").read_text())
    assert sorted(saved["target_modules"]) == ["o_proj", "qkv_proj"]
    policy = Policy(PolicyConfig(phi3, adapter=folder, target_modules=["not_read"]))
    assert adapted(policy.model) == {"qkv_proj", "o_proj"} and policy.adapted_note is None


def test_an_older_adapter_of_half_a_request_still_loads(phi3: str, tmp_path: Path) -> None:
    made = Policy(PolicyConfig(phi3, lora_r=2, target_modules=DEFAULT), trained=False)
    assert made.adapted_note is not None
    lora = {"r": 2, "target_modules": DEFAULT}  # as it was trained, on o_proj only
    old = Policy(PolicyConfig(phi3), checkpoint_shape={"lora": lora, "reference": False})
    with torch.no_grad():
        for p in old.trainable():
            p.normal_()
    old.save_adapter(tmp_path / "old")
    loaded = Policy(PolicyConfig(phi3, adapter=str(tmp_path / "old")))
    assert adapted(loaded.model) == {"o_proj"}
    assert torch.equal(loaded.eval().token_logps(BATCH), old.eval().token_logps(BATCH))
    with made.eval().with_adapter(str(tmp_path / "old")):
        assert torch.equal(made.token_logps(BATCH), old.token_logps(BATCH))


def test_a_model_without_an_adapter_tags_whatever_its_layers_are_called(phi3: str, tmp_path: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(phi3)
    model = random_model("phi", vocab_size=len(tokenizer))
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    with pytest.raises(LovecError, match="no layers o_proj to train"):
        Policy(PolicyConfig(str(tmp_path)))
    policy = open_session(str(tmp_path)).policy
    assert policy is not None and adapted(policy.model) == {"q_proj", "k_proj", "v_proj"}
    logps = model.eval()(torch.tensor([[3, 4, 5, 6, 7]])).logits[0].log_softmax(-1)
    torch.testing.assert_close(policy.token_logps(BATCH)[0], torch.stack([logps[2, 6], logps[3, 7]]))
