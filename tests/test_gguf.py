"""Bases in GGUF files: dequantised once, then models like others."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from lovec.core.provenance import provenance_of
from lovec.encoding import prompt_settings
from lovec.models import resolve_model
from lovec.models.gguf import SMOLLM2, ensure_dequantised, is_gguf
from lovec.policy import Policy, PolicyConfig, check_adapter
from lovec.policy.adapters import same_base
from lovec.policy.loading import load_base
from lovec.taggers.session import base_model
from lovec.tags import DEFAULT_TAGS
from lovec.types import LovecError

WORDS = 40


def write_gguf(path: Path, arch: str = "qwen2", seed: int = 0, layers: int = 1, parts: int = 0) -> Path:
    """Write a model with random weights as GGUF: the first of so many layers, and of so many parts if there are any."""
    gguf = pytest.importorskip("gguf", reason="the extra real is not installed")
    path.parent.mkdir(exist_ok=True)
    generator = torch.Generator().manual_seed(seed)
    width, inner = 8, 16
    writer = gguf.GGUFWriter(path, arch)
    writer.add_block_count(layers)
    if parts:
        writer.add_uint16("split.count", parts)
    writer.add_context_length(64)
    writer.add_embedding_length(width)
    writer.add_feed_forward_length(inner)
    writer.add_head_count(2)
    writer.add_head_count_kv(1)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_rope_freq_base(10000.0)
    writer.add_vocab_size(WORDS)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list(
        ["<|im_end|>", *(chr(97 + at) for at in range(26)), "ab", *(f"{at}" for at in range(WORDS - 28))]
    )
    writer.add_token_merges(["a b"])
    writer.add_token_types([3] + [1] * (WORDS - 1))
    writer.add_eos_token_id(0)
    writer.add_chat_template("{% for m in messages %}{{ m.content }}<|im_end|>{% endfor %}")
    shapes = {
        "token_embd.weight": (WORDS, width),
        "output.weight": (WORDS, width),
        "output_norm.weight": (width,),
        "blk.0.attn_norm.weight": (width,),
        "blk.0.ffn_norm.weight": (width,),
        "blk.0.attn_q.weight": (width, width),
        "blk.0.attn_q.bias": (width,),
        "blk.0.attn_k.weight": (width // 2, width),
        "blk.0.attn_k.bias": (width // 2,),
        "blk.0.attn_v.weight": (width // 2, width),
        "blk.0.attn_v.bias": (width // 2,),
        "blk.0.attn_output.weight": (width, width),
        "blk.0.ffn_gate.weight": (inner, width),
        "blk.0.ffn_up.weight": (inner, width),
        "blk.0.ffn_down.weight": (width, inner),
    }
    for name, shape in shapes.items():
        writer.add_tensor(name, torch.randn(shape, generator=generator).numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.mark.real
def test_a_file_is_dequantised_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    file = write_gguf(tmp_path / "small.gguf")
    folder = ensure_dequantised(str(file), cache_dir=tmp_path / "cache")
    said = capsys.readouterr().err
    assert "small.gguf" in said and str(folder) in said and "it/s" not in said
    there = {path.name: path.stat().st_mtime_ns for path in folder.iterdir()}
    assert {"model.safetensors", "config.json", "tokenizer.json", "chat_template.jinja"} <= there.keys()
    assert ensure_dequantised(str(file), cache_dir=tmp_path / "cache") == folder
    assert {path.name: path.stat().st_mtime_ns for path in folder.iterdir()} == there and not capsys.readouterr().err
    model = AutoModelForCausalLM.from_pretrained(folder)
    direct = AutoModelForCausalLM.from_pretrained(tmp_path, gguf_file=file.name, dtype=torch.float32)
    ids = torch.arange(WORDS)[None]
    assert torch.equal(model(ids).logits, direct(ids).logits)
    assert AutoTokenizer.from_pretrained(folder).eos_token == "<|im_end|>"
    assert not hasattr(model.config, "quantization_config")


@pytest.mark.real
def test_other_weights_have_a_folder_of_their_own(tmp_path: Path) -> None:
    first = ensure_dequantised(str(write_gguf(tmp_path / "a.gguf")), cache_dir=tmp_path)
    other = ensure_dequantised(str(write_gguf(tmp_path / "a.gguf", seed=1)), cache_dir=tmp_path)
    assert first != other and first.parent == other.parent


@contextmanager
def warnings_of_transformers() -> Iterator[list[str]]:
    """Collect what transformers warns of; its messages do not reach the root logger."""
    said: list[str] = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: said.append(record.getMessage())  # type: ignore[method-assign]
    logger = logging.getLogger("transformers")
    logger.addHandler(handler)
    try:
        yield said
    finally:
        logger.removeHandler(handler)


@pytest.mark.real
def test_a_file_may_be_kept_in_bfloat16(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = str(write_gguf(tmp_path / "small.gguf"))
    with warnings_of_transformers() as said:
        rounded = ensure_dequantised(file, "bfloat16", tmp_path / "a")
    assert "to bfloat16" in capsys.readouterr().err and said == []
    exact = ensure_dequantised(file, "float32", tmp_path / "a")
    assert exact != rounded and exact.name == rounded.name and same_base(str(exact), str(rounded))
    sizes = [(folder / "model.safetensors").stat().st_size for folder in (exact, rounded)]
    assert sizes[1] < 0.7 * sizes[0]
    assert ensure_dequantised(file, "bfloat16", tmp_path / "a") == exact  # no third copy
    for dtype in ("float32", "bfloat16"):
        one, two = (load_base(PolicyConfig(str(folder), dtype=dtype)).state_dict() for folder in (exact, rounded))
        assert dtype == "float32" or all(torch.equal(one[name], two[name]) for name in one)
        assert all(torch.equal(one[name].bfloat16(), two[name].bfloat16()) for name in one)


PROMPT = prompt_settings("Rate it.", DEFAULT_TAGS)


@pytest.mark.real
def test_precision_is_no_part_of_what_a_file_is_and_weights_are(tmp_path: Path) -> None:
    file, other = (str(write_gguf(tmp_path / f"{seed}/small.gguf", seed=seed)) for seed in (0, 1))
    folders = [ensure_dequantised(file, dtype, tmp_path / dtype) for dtype in ("float32", "bfloat16")]
    exact, rounded = (provenance_of("small", folder, None, PROMPT, "prefix") for folder in folders)
    assert exact.differences(rounded) == [] == exact.unchecked(rounded)
    unlike = provenance_of("small", ensure_dequantised(other, "float32", tmp_path), None, PROMPT, "prefix")
    assert list(exact.changes(unlike)) == ["the digest of the model's weights"]
    weights = (
        folders[0] / "model.safetensors"
    )  # changed since, as by training them on: the note beside them is not a proof
    save_file({name: value + 1 for name, value in load_file(weights).items()}, weights, {"format": "pt"})
    changed = provenance_of("small", folders[0], None, PROMPT, "prefix")
    assert list(rounded.changes(changed)) == ["the digest of the model's weights"]


@pytest.mark.real
def test_an_adapter_finds_its_file_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = write_gguf(tmp_path / "small.gguf")
    monkeypatch.setenv("LOVEC_CACHE", str(tmp_path / "cache"))
    policy = Policy(PolicyConfig(resolve_model(str(file)), lora_r=2))
    settings = {"instruction": "Rate it.", "tag_words": ["<c>", "</c>"], "base": {"name": str(file)}}
    adapter = tmp_path / "adapter"
    policy.save_adapter(adapter, extra_files={"lovec.json": json.dumps(settings)})
    assert base_model(str(adapter)) == resolve_model(str(file))
    monkeypatch.setenv("LOVEC_CACHE", str(tmp_path / "elsewhere"))
    (tmp_path / "cache").rename(tmp_path / "gone")
    assert base_model(str(adapter)) == str(file)  # by the name that was given
    check_adapter(str(adapter), resolve_model(str(file)))
    file.rename(tmp_path / "moved.gguf")
    assert base_model(str(adapter)) == str(ensure_dequantised(str(write_gguf(file))))  # this machine's cache
    write_gguf(file, seed=1)
    with pytest.raises(LovecError, match="was trained on another base"):
        check_adapter(str(adapter), resolve_model(str(file)))
    (tmp_path / "elsewhere").rename(tmp_path / "gone too")
    file.unlink()
    with pytest.raises(LovecError, match=r"small-[0-9a-f]{12}.*add --model"):
        base_model(str(adapter))


@pytest.mark.real
@pytest.mark.parametrize("arch", ["gptneox99", "clip"])
def test_an_architecture_that_cannot_be_read_is_refused_by_name(arch: str, tmp_path: Path) -> None:
    file = write_gguf(tmp_path / "odd.gguf", arch)
    with pytest.raises(LovecError, match=rf"odd.gguf.*{arch}.*safetensors"):
        ensure_dequantised(str(file), cache_dir=tmp_path / "cache")
    assert not [*(tmp_path / "cache/gguf").glob("odd-*/*")]


@pytest.mark.real
def test_a_file_that_was_cut_is_refused(tmp_path: Path) -> None:
    file = write_gguf(tmp_path / "cut.gguf")
    file.write_bytes(file.read_bytes()[:-500])
    with pytest.raises(LovecError, match=r"cannot read .*cut\.gguf"):
        ensure_dequantised(str(file), cache_dir=tmp_path / "cache")


@pytest.mark.real
def test_a_file_without_all_weights_is_refused(tmp_path: Path) -> None:
    file, split = write_gguf(tmp_path / "part.gguf", layers=2), write_gguf(tmp_path / "split.gguf", parts=3)
    with pytest.raises(
        LovecError, match=r"part\.gguf lacks \d+ weights of its model \(model\.layers\.1\..*, \.\.\.\); "
    ):
        ensure_dequantised(str(file), cache_dir=tmp_path / "cache")
    with pytest.raises(LovecError, match=r"split\.gguf is one of 3 parts .*llama-gguf-split --merge"):
        ensure_dequantised(str(split), cache_dir=tmp_path / "cache")
    assert not [path for path in (tmp_path / "cache").rglob("*") if path.suffix in (".json", ".safetensors")]
    whole = write_gguf(tmp_path / "whole.gguf", parts=1)
    assert (ensure_dequantised(str(whole), cache_dir=tmp_path / "cache") / "model.safetensors").is_file()


def test_what_is_no_such_file_is_said(tmp_path: Path) -> None:
    (tmp_path / "text.gguf").write_text("no weights")
    with pytest.raises(LovecError, match=r"text\.gguf is not a GGUF file"):
        ensure_dequantised(str(tmp_path / "text.gguf"))
    with pytest.raises(LovecError, match="there is no file"):
        ensure_dequantised(str(tmp_path / "none.gguf"))


def test_names() -> None:
    assert all(map(is_gguf, (SMOLLM2, "a/b.gguf", "org/name:file.gguf", "org/name@main:folder/file.gguf")))
    assert not any(map(is_gguf, ("world", "org/name", "smollm", "a/gguf")))
