"""Adapter folders of strangers: nothing in them runs, and a broken or half one is refused in one line."""

from __future__ import annotations

import json
import math
import pickle
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tinyrun import sft_adapter, tiny

from lovec.cli import main
from lovec.policy import Policy, PolicyConfig, check_adapter
from lovec.policy.adapters import lora_options, plain_lora, same_base
from lovec.policy.checkpoints import KEY, AtomicCheckpointIO, adapter_shape, read_checkpoint
from lovec.taggers import open_session
from lovec.taggers.session import base_model
from lovec.types import LovecError

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"


class Canary:
    """Unpickling it writes a file."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)

    def __reduce__(self) -> Any:
        return Path.touch, (Path(self.path),)


@pytest.fixture
def copy(adapter: str, tmp_path: Path) -> Path:
    return Path(shutil.copytree(adapter, tmp_path / "stranger"))


def set_option(folder: Path, **options: Any) -> None:
    config = json.loads((folder / CONFIG).read_text())
    (folder / CONFIG).write_text(json.dumps({**config, **options}))


def refusal(model: str, folder: Path) -> str:
    with pytest.raises(LovecError) as caught:
        Policy(PolicyConfig(model, adapter=str(folder)))
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 600
    return str(caught.value)


def test_pickled_weights_are_never_opened(model: str, copy: Path, tmp_path: Path) -> None:
    canary = tmp_path / "canary"
    for name in ("adapter_model.bin", "adapter_model.pt"):
        (copy / name).write_bytes(pickle.dumps(Canary(canary)))
    Policy(PolicyConfig(model, adapter=str(copy)))
    (copy / WEIGHTS).unlink()
    assert "has no adapter_model.safetensors; other formats of weights are not read" in refusal(model, copy)
    assert not canary.exists()


def weights_of(folder: Path, change: Any) -> None:
    weights = load_file(folder / WEIGHTS)
    weights = {name: weight.clone() for name, weight in weights.items()}
    change(weights)
    save_file(weights, folder / WEIGHTS)


def first(weights: dict[str, Any]) -> str:
    return min(weights)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda w: w.pop(first(w)), "1 of its weights are missing"),
        (lambda w: w.update(foreign=torch.zeros(2)), "1 are unknown (foreign)"),
        (lambda w: w[first(w)].view(-1)[:1].fill_(float("nan")), "no finite numbers"),
        (lambda w: w.update({first(w): w[first(w)].to(torch.float8_e4m3fn)}), "as float8_e4m3fn, expected float32, "),
        (lambda w: w.update({first(w): w[first(w)].to(torch.int8)}), "as int8, expected float32, bfloat16, float16"),
        (lambda w: w[first(w)].view(-1)[:1].fill_(float("-inf")), "no finite numbers"),
        (lambda w: w.update({first(w): torch.zeros(4, 7)}), "has the shape [4, 7], expected [4, 64]"),
        (lambda w: w.clear(), "its weights have rank 0"),
    ],
    ids=["missing", "foreign", "nan", "fp8", "int8", "inf", "shape", "none"],
)
def test_weights_must_be_whole_and_finite(model: str, copy: Path, change: Any, reason: str) -> None:
    weights_of(copy, change)
    assert reason in refusal(model, copy)


def test_cut_off_weights_are_one_line(model: str, copy: Path) -> None:
    data = (copy / WEIGHTS).read_bytes()
    for part in (b"", data[:7], data[: len(data) // 2], b"\xff" * 100):
        (copy / WEIGHTS).write_bytes(part)
        assert "is broken or cut off" in refusal(model, copy)


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "7", '"LORA"', "\xff", "[" * 100_000, " " * 2_000_000], ids=lambda text: str(text[:2])
)
def test_a_broken_configuration_is_one_line(model: str, copy: Path, text: str) -> None:
    (copy / CONFIG).write_bytes(text.encode("latin-1"))
    said = r"/adapter_config\.json (is not JSON|is broken: it holds|has more than) .*; copy it again"
    assert re.search(said, refusal(model, copy))


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"peft_type": "IA3"}, "not a plain LoRA: it sets peft_type"),
        ({"task_type": "SEQ_CLS"}, "task_type"),
        ({"bias": "all"}, "bias"),
        ({"modules_to_save": ["lm_head"]}, "modules_to_save"),
        ({"trainable_token_indices": [1]}, "trainable_token_indices"),
        ({"use_dora": True}, "use_dora"),
        ({"lora_bias": True}, "lora_bias"),
        ({"init_lora_weights": "pissa"}, "init_lora_weights"),
        ({"init_lora_weights": ["x"]}, "init_lora_weights"),
        ({"corda_config": {"cache_file": "/x"}}, "corda_config"),
        ({"eva_config": {"rho": 2}}, "eva_config"),
        ({"loftq_config": {"loftq_bits": 4}}, "loftq_config"),
        ({"megatron_config": {"a": 1}}, "megatron_config"),
        ({"layer_replication": [[0, 1000000]]}, "layer_replication"),
        ({"layers_pattern": "(a+)+$"}, "layers_pattern"),
        ({"from_the_future": 1}, "from_the_future"),
        ({"target_modules": "(.*a)+(.*a)+(.*a)+$"}, "expected a list of names of layers"),
        ({"target_modules": ["(a+)+$"]}, "expected a list of names of layers"),
        ({"target_modules": []}, "names no target_modules"),
        ({"target_modules": 7}, "target_modules"),
        ({"target_modules": ["no_such_layer"]}, "no adapter fits this model"),
        ({"exclude_modules": "(a+)+$"}, "exclude_modules"),
        ({"rank_pattern": {"(a+)+$": 4}}, "rank_pattern"),
        ({"alpha_pattern": {"q_proj": "x"}}, "alpha_pattern"),
        ({"r": 1 << 40}, "its rank is 1099511627776, but its weights have rank 4"),
        ({"r": 0}, "r to '0'"),
        ({"r": "4"}, "expected a whole number"),
        ({"r": True}, "expected a whole number"),
        ({"r": 2}, "has the shape"),
        ({"lora_alpha": float("inf")}, "Infinity is not a number of JSON"),
        ({"lora_dropout": 1.5}, "lora_dropout"),
        ({"use_rslora": "yes"}, "use_rslora"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_options_beyond_a_plain_lora_are_refused(model: str, copy: Path, options: dict[str, Any], reason: str) -> None:
    set_option(copy, **options)
    assert reason in refusal(model, copy)


def test_options_without_an_effect_are_not_passed_on(model: str, copy: Path) -> None:
    set_option(copy, auto_mapping={"base_model_class": "X", "parent_library": "my_evil"}, revision="x",
               megatron_core="my_evil", runtime_config={"ephemeral_gpu_offload": True})  # fmt: skip
    config = Policy(PolicyConfig(model, adapter=str(copy))).peft.peft_config["default"]
    assert config.auto_mapping is None and config.megatron_core != "my_evil" and config.revision is None


def test_the_options_of_every_adapter_are_read_back_alike(model: str) -> None:
    policy = Policy(PolicyConfig(model, lora_r=8, lora_alpha=3))
    options = lora_options(policy.peft.peft_config["default"])
    assert plain_lora(options, "x", {"a.lora_A.b": [8, 64]}) == options == policy.shape["lora"]


@pytest.mark.parametrize(
    ("shape", "reason"),
    [
        ({"lora": {"r": 4, "target_modules": "(a+)+$"}, "reference": False}, "target_modules"),
        ({"lora": {"r": 10**9, "target_modules": ["q_proj"]}, "reference": False}, "its rank is 1000000000"),
        ({"lora": {"r": 4, "target_modules": ["q_proj"], "init_lora_weights": "pissa"}, "reference": False}, "plain"),
        ({"lora": {"r": 4, "target_modules": ["q_proj"], "lora_alpha": math.inf}, "reference": False}, "lora_alpha"),
        ({"lora": [], "reference": False}, "expected names with values"),
        ({"lora": {}, "reference": "yes"}, "not described as lovec writes them"),
        ([], "not described as lovec writes them"),
    ],
)
def test_the_lora_options_of_a_checkpoint_are_checked(tmp_path: Path, shape: Any, reason: str) -> None:
    weights = {"a.lora_A.default.weight": torch.zeros(4, 8)}
    torch.save({KEY: shape, "state_dict": weights, "global_step": 1}, tmp_path / "x.ckpt")
    with pytest.raises(LovecError, match=reason) as caught:
        adapter_shape(read_checkpoint(tmp_path / "x.ckpt"))
    assert "\n" not in str(caught.value)
    with pytest.raises(LovecError, match=r"is not a whole checkpoint: it lacks epoch, pytorch-lightning"):
        AtomicCheckpointIO().load_checkpoint(tmp_path / "x.ckpt")


def test_weights_of_a_checkpoint_are_finite() -> None:
    lora = {"lora": {"r": 4, "target_modules": ["q_proj"]}, "reference": False}
    weight = torch.zeros(4, 8)
    assert adapter_shape({KEY: lora, "state_dict": {"a.lora_A.default.weight": weight}}) == lora
    weight[0, 0] = float("nan")
    with pytest.raises(LovecError, match=r"the checkpoint is broken: .* no finite numbers"):
        adapter_shape({KEY: lora, "state_dict": {"a.lora_A.default.weight": weight}})


# The base model


@pytest.mark.parametrize(
    ("named", "model", "same"),
    [
        ("meta-llama/Llama-3-8B", "meta-llama/Llama-3-8B", True),
        ("meta-llama/Llama-3-8B", "other/Llama-3-8B", False),
        ("meta-llama/Llama-3-8B", "/data/Llama-3-8B", True),
        ("/old/Llama-3-8B", "/new/Llama-3-8B/", True),
        ("/old/Llama-3-8B", "/old/Llama-3-8B-Instruct", False),
        ("meta-llama/Llama-3-8B", "/c/models--meta-llama--Llama-3-8B/snapshots/0a1b", True),
        ("/a/world/world-0123456789ab/model", "/b/world/world-0123456789ab/model", True),
        ("/a/world/world-0123456789ab/model", "/b/world/world-ba9876543210/model", False),
        ("world", "/b/world/world-ba9876543210/model", True),
        ("world", "/b/world/world-small-ba9876543210/model", False),
        ("/a/gguf/smollm2-0123456789ab", "/b/gguf/bfloat16/SmolLM2.Q4_1-0123456789ab", True),
        ("/a/gguf/smollm2-0123456789ab", "/b/gguf/smollm2-ba9876543210", False),
        ("/a/gguf/smollm2-0123456789ab", "/b/SmolLM2-135M", False),
    ],
)
def test_names_of_base_models_are_compared(named: str, model: str, same: bool) -> None:
    assert same_base(named, model) is same


def test_an_adapter_of_another_base_is_refused_by_name_everywhere(
    model: str, copy: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    set_option(copy, base_model_name_or_path="meta-llama/Llama-3-8B")
    assert f"names meta-llama/Llama-3-8B, and the model is {model}" in refusal(model, copy)
    (tmp_path / "page.txt").write_text("Ada wrote notes.")
    words = {
        "tag": ["tag", str(tmp_path / "page.txt"), "--model", model, "--adapter", str(copy)],
        "export": ["export", str(copy), str(tmp_path / "out"), "--model", model],
    }
    for command in words.values():
        assert main(command) == 1
        assert "trained on another base" in capsys.readouterr().err.splitlines()[-1]
        assert main([*command, *(["--any_base"] if command[0] == "export" else ["--any_base", "true"])]) == 0
    own = Policy(PolicyConfig(model))
    with pytest.raises(LovecError, match="trained on another base"), own.with_adapter(str(copy)):
        pass
    open_session(model, str(copy), any_base=True).close()
    Policy(PolicyConfig(model, adapter=str(copy), any_base=True))
    with pytest.raises(LovecError, match="trained on another base"):
        check_adapter(str(copy), model)


@pytest.mark.parametrize("named", ["./model", "../model", "//host/share/model", "https://evil.example/m", "/no/such"])
def test_places_that_an_adapter_names_are_not_loaded(copy: Path, named: str) -> None:
    set_option(copy, base_model_name_or_path=named)
    with pytest.raises(LovecError, match=r"add --model .* if you know that model"):
        base_model(str(copy))


def test_hub_ids_offline_models_and_absolute_folders_are_loaded(model: str, copy: Path, tmp_path: Path) -> None:
    for named, base in (
        ("org/name", "org/name"), ("/x/world/world-small-0123456789ab/model", "world-small"),
        ("/x/tiny/tiny-llama-0123456789ab", "tiny-llama"), (model, model), (None, None),
    ):  # fmt: skip
        set_option(copy, base_model_name_or_path=named)
        assert base_model(str(copy)) == base


def test_code_beside_a_base_model_does_not_run(copy: Path, tmp_path: Path, model: str) -> None:
    base, canary = tmp_path / "base", tmp_path / "canary"
    shutil.copytree(model, base)
    (base / "my_code.py").write_text(f"open({str(canary)!r}, 'w').write('ran')\n")
    config = json.loads((base / "config.json").read_text())
    names = {"AutoConfig": "my_code.C", "AutoModelForCausalLM": "my_code.M"}
    (base / "config.json").write_text(json.dumps({**config, "model_type": "evil", "auto_map": names}))
    set_option(copy, base_model_name_or_path=str(base))
    with pytest.raises(LovecError, match="cannot load the model"):
        open_session(adapter=str(copy))
    assert not canary.exists()


def test_a_half_adapter_does_not_tag(model: str, copy: Path, tmp_path: Path, capsys: Any) -> None:
    weights_of(copy, lambda weights: weights.pop(first(weights)))
    (tmp_path / "page.txt").write_text("Ada wrote notes.")
    assert main(["tag", str(tmp_path / "page.txt"), "--adapter", str(copy)]) == 1
    captured = capsys.readouterr()
    assert captured.out == "" and "1 of its weights are missing" in captured.err.splitlines()[-1]


def test_a_fresh_run_still_writes_a_whole_adapter(tmp_path: Path) -> None:
    model = tiny(tmp_path, "gemma2")
    adapter = sft_adapter(tmp_path / "run", model)
    check_adapter(adapter, model)
    assert base_model(adapter) == model
