"""Tiny models: real architectures, a tokenizer that loses nothing, folders that are written whole or not at all."""

import os
import subprocess
import sys

import pytest
import torch
from hypothesis import assume, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM, AutoTokenizer

from lovec.encoding import Encoder
from lovec.models import absolute_name, resolve_model
from lovec.models.tiny import build_tiny, ensure_tiny
from lovec.tags import parse
from lovec.types import LovecError

ARCHS = ("llama", "gemma2", "qwen2", "qwen3", "phi3")


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    root = tmp_path_factory.mktemp("tiny")
    return {arch: build_tiny(arch, root / arch) for arch in ARCHS}


@pytest.fixture(scope="module")
def tokenizers(folders):
    return {arch: AutoTokenizer.from_pretrained(folder) for arch, folder in folders.items()}


@pytest.mark.parametrize("arch", ARCHS)
def test_models_have_the_real_architecture_and_depend_on_their_context(arch, folders, tokenizers):
    model = AutoModelForCausalLM.from_pretrained(folders[arch])
    assert model.config.model_type == arch
    assert model.config.head_dim >= 32 if hasattr(model.config, "head_dim") else True
    assert next(model.parameters()).dtype == torch.float32
    ids = tokenizers[arch]("The capital of Norway is", return_tensors="pt")["input_ids"]
    assert ids.max() < model.config.vocab_size
    other = ids.clone()
    other[0, 2] = 70
    with torch.no_grad():
        first, second = (model(x).logits[0, -1].softmax(-1) for x in (ids, other))
    assert first.max() < 0.9  # neither certain
    assert first.max() > 2.5 / len(first)  # nor uniform
    assert (first - second).abs().sum() > 0.05  # an early token matters at the end


@pytest.mark.parametrize("arch", ["llama", "gemma2", "qwen3"])
@given(text=st.text())
@hypothesis_settings(max_examples=60, deadline=None)
def test_tokenizer_loses_nothing(arch, tokenizers, text):
    tokenizer = tokenizers[arch]
    assume(not any(token in text for token in tokenizer.all_special_tokens))  # those are single tokens, as in any model
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    assert len(ids) == len(text.encode())
    assert tokenizer.decode(ids, clean_up_tokenization_spaces=False) == text


@pytest.mark.parametrize("arch", ARCHS)
def test_an_encoder_gives_tagged_answers_back(arch, tokenizers):
    encoder = Encoder(tokenizers[arch], instruction="Say how sure you are.")
    assert len(encoder.tails[10]) == len(encoder.tails[9]) + 1  # "10" is two tokens
    ids = encoder.completion(["Ann was born in 1953.", "She sang."], [10, 3])
    assert ids[-1] == encoder.end_id
    assert [(s.text, s.score) for s in parse(encoder.decode(ids)).sentences] == [
        ("Ann was born in 1953.", 10),
        ("She sang.", 3),
    ]
    prompt = encoder.prompt("Who is Ann?")
    bos = tokenizers[arch].bos_token_id
    assert prompt.count(bos) == (0 if bos is None else 1)
    text = tokenizers[arch].decode(prompt)
    assert "Say how sure you are." in text
    assert text.endswith(
        {"llama": "\n\n", "gemma2": "model\n", "phi3": "<|assistant|>\n", "qwen3": "</think>\n\n"}.get(
            arch, "assistant\n"
        )
    )


def test_gemma_refuses_a_system_turn_and_ends_turns_without_eos(tokenizers):
    tokenizer = tokenizers["gemma2"]
    with pytest.raises(Exception, match="System role not supported"):
        tokenizer.apply_chat_template([{"role": "system", "content": "x"}], tokenize=False)
    encoder = Encoder(tokenizer)
    assert encoder.end_id == tokenizer.convert_tokens_to_ids("<end_of_turn>") != tokenizer.eos_token_id
    assert set(encoder.stop_ids) == {encoder.end_id, tokenizer.eos_token_id}


@pytest.mark.parametrize("pad_is_eos", [False, True])
def test_the_padding_token_can_be_the_end_token(tmp_path, pad_is_eos):
    tokenizer = AutoTokenizer.from_pretrained(build_tiny("llama", tmp_path / "m", pad_is_eos=pad_is_eos))
    assert (tokenizer.pad_token_id == tokenizer.eos_token_id) is pad_is_eos


def test_weights_are_a_function_of_the_seed_alone(tmp_path):
    before = torch.random.get_rng_state()
    a, b, c = (
        AutoModelForCausalLM.from_pretrained(build_tiny("llama", tmp_path / name, seed=seed, hidden_size=96))
        for name, seed in (("a", 1), ("b", 1), ("c", 2))
    )
    assert torch.equal(before, torch.random.get_rng_state())
    assert a.config.hidden_size == 96
    assert all(torch.equal(x, y) for x, y in zip(a.parameters(), b.parameters(), strict=True))
    assert not torch.equal(a.lm_head.weight, c.lm_head.weight)


def test_a_failed_build_leaves_no_files(tmp_path):
    with pytest.raises(Exception, match="hidden"):
        build_tiny("llama", tmp_path / "m", hidden_size="wide")
    assert list(tmp_path.iterdir()) == []


def test_errors_name_the_choices(tmp_path):
    with pytest.raises(LovecError, match="'gpt9' is unknown, expected one of llama, gemma2"):
        build_tiny("gpt9", tmp_path / "m")
    with pytest.raises(LovecError, match="'llama' is unknown, expected one of tiny-llama"):
        ensure_tiny("llama", tmp_path)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "x").touch()
    with pytest.raises(LovecError, match="not empty"):
        build_tiny("llama", tmp_path / "full")
    assert (tmp_path / "full" / "x").exists()


def test_a_cached_model_is_built_once(tmp_path, monkeypatch):
    monkeypatch.setenv("LOVEC_CACHE", str(tmp_path / "cache"))
    folder = ensure_tiny("tiny-llama")
    assert folder.is_relative_to(tmp_path / "cache" / "tiny")
    stamp = (folder / "model.safetensors").stat().st_mtime_ns
    monkeypatch.setattr("lovec.models.tiny.build_tiny", None)  # a second build would fail
    assert ensure_tiny("tiny-llama") == folder
    assert (folder / "model.safetensors").stat().st_mtime_ns == stamp


def test_importing_tiny_loads_no_torch():
    code = "import sys, lovec.models.tiny; assert not {'torch', 'transformers', 'tokenizers'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)})


def test_a_path_is_named_from_any_folder_and_other_models_by_their_names(tmp_path, monkeypatch):
    for name in ("mine", "world", "tiny-llama", "org/base"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "small.gguf").touch()
    monkeypatch.chdir(tmp_path)
    for path in ("mine", "./mine", "org/../mine/"):
        assert resolve_model(path) == absolute_name(path) == f"{tmp_path}/mine"
        assert resolve_model(f"random:{path}") == f"random:{tmp_path}/mine"
    assert [absolute_name(path) for path in (".", "org/base", "small.gguf", str(tmp_path))] == [
        str(tmp_path), f"{tmp_path}/org/base", f"{tmp_path}/small.gguf", str(tmp_path)
    ]  # fmt: skip
    for name in ("world", "tiny-llama", "random:world", "smollm2", "org/other", "org/other:small.gguf", "org/a@v1"):
        assert absolute_name(name) == name
