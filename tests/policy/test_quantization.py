"""Base models in 4 bits: exact gradients, resuming, adapters, exports, and what is refused."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from safetensors.torch import load_file
from tinyrun import Rows, fit, module, tiny, trainer
from torch import nn
from transformers import AutoModelForCausalLM, AutoTokenizer

from lovec.cli import main
from lovec.modules import DPO
from lovec.policy import Policy, PolicyConfig, TokenBatch, TokenSequence
from lovec.policy.quantization import quantization_options
from lovec.taggers import open_session
from lovec.taggers.session import trained_quantization
from lovec.types import LovecError

pytestmark = pytest.mark.quant
BATCH = TokenBatch.of([TokenSequence((1, 5, 9, 11), (7, 8, 9, 10, 12)), TokenSequence((1, 5, 9, 11), (7, 8, 4))])
WITHOUT = """
import sys
sys.modules["bitsandbytes"] = None
from lovec.cli import main
raise SystemExit(main({words!r}))
"""


@pytest.fixture(scope="module")
def bnb() -> Any:
    return pytest.importorskip("bitsandbytes", reason="the extra quant is not installed")


@pytest.fixture(scope="module")
def stored(model: str, bnb: Any, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A folder whose weights are stored in NF4."""
    folder = tmp_path_factory.mktemp("stored") / "in-4-bits"
    options = quantization_options(torch.float32)
    AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32, **options).save_pretrained(folder)
    AutoTokenizer.from_pretrained(model).save_pretrained(folder)
    return str(folder)


def planted(model: str, **config: Any) -> Policy:
    """A policy with a random adapter of full effect."""
    policy = Policy(PolicyConfig(model, lora_r=4, lora_alpha=8, **config))
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in policy.trainable():
            parameter.copy_(0.1 * torch.randn(parameter.shape, generator=generator))
    return policy.train()


def gradient(policy: Policy) -> torch.Tensor:
    for parameter in policy.trainable():
        parameter.grad = None
    policy.token_logps(BATCH).sum().backward()
    return torch.cat([p.grad.flatten() for p in policy.trainable() if p.grad is not None])


def unpacked(policy: Policy, bnb: Any) -> Policy:
    """The same policy, its 4-bit layers replaced by plain ones that hold the numbers they stand for."""
    for layer in policy.modules():
        base = getattr(layer, "base_layer", None)
        if isinstance(base, bnb.nn.Linear4bit):
            plain = nn.Linear(base.in_features, base.out_features, base.bias is not None)
            numbers = bnb.functional.dequantize_4bit(base.weight.data, base.weight.quant_state)
            plain.weight, plain.bias = nn.Parameter(numbers.float(), requires_grad=False), base.bias
            layer.base_layer = plain  # type: ignore[assignment]
    return policy


@pytest.mark.parametrize("hidden", [64, 72])  # outputs whose number 32 does not divide
@pytest.mark.parametrize("kind", ["loaded", "random"])
def test_gradients_are_those_of_the_numbers_that_the_bits_stand_for_before_and_after_a_forward_pass_without_gradient(
    hidden: int, kind: str, bnb: Any, tmp_path: Path
) -> None:
    model = tiny(tmp_path, hidden_size=hidden, intermediate_size=2 * hidden + 8)
    policy = planted(f"random:{model}" if kind == "random" else model, quantization="nf4")
    layers = [m for m in policy.modules() if isinstance(m, bnb.nn.Linear4bit)]
    assert len(layers) == 7 * policy.model.config.num_hidden_layers
    assert type(policy.model.get_output_embeddings()) is nn.Linear
    assert all(layer.weight.element_size() * layer.weight.numel() * 2 == layer.in_features * layer.out_features
               for layer in layers)  # fmt: skip
    before = gradient(policy)
    with torch.no_grad():
        policy.eval().model(torch.tensor([[1, 5, 9]]))
    after = gradient(policy.train())
    torch.testing.assert_close(after, before, rtol=0, atol=0)
    expected = gradient(unpacked(policy, bnb))
    assert torch.nn.functional.cosine_similarity(before, expected, dim=0) > 1 - 1e-6
    torch.testing.assert_close(before, expected, rtol=1e-3, atol=1e-3 * expected.abs().max().item())


def test_products_are_in_the_precision_of_the_base(model: str, bnb: Any) -> None:
    policy = planted(model, quantization="nf4", dtype="bfloat16")
    layer = next(m for m in policy.modules() if isinstance(m, bnb.nn.Linear4bit))
    assert (layer.compute_dtype, layer.weight.dtype) == (torch.bfloat16, torch.bfloat16)
    assert {p.dtype for p in policy.trainable()} == {torch.float32}


def trained(model: str, folder: Path, steps: int, quantization: Any = "nf4", **more: Any) -> torch.Tensor:
    """The weights of DPO after some steps with an optimiser of 8-bit states; every second one has a checkpoint."""
    from bitsandbytes.optim import PagedAdamW8bit

    policy = PolicyConfig(model, lora_r=4, lora_alpha=8, quantization=quantization)
    objective = module(DPO, model, policy=policy)
    objective.optimizer = lambda parameters: PagedAdamW8bit(parameters, lr=1e-2, min_8bit_size=0)
    saver = ModelCheckpoint(dirpath=folder / "ck", filename="{step}", every_n_train_steps=2, save_top_k=-1)
    options = {"callbacks": [saver], "enable_checkpointing": True, "max_steps": steps, "max_epochs": 9}
    trainer(folder, **options).fit(objective, Rows(), **more)
    return torch.cat([p.detach().flatten() for p in objective.policy.trainable()])


def test_a_run_goes_on_with_the_same_weights_and_not_on_another_base(model: str, bnb: Any, tmp_path: Path) -> None:
    whole = trained(model, tmp_path / "whole", 6)
    ckpt = str(next((tmp_path / "whole" / "ck").glob("*step=2.ckpt")))
    resumed = trained(model, tmp_path / "resumed", 6, ckpt_path=ckpt)
    assert torch.equal(resumed, whole)
    with pytest.raises(LovecError, match="other config and weights and quantization"):
        trained(model, tmp_path / "other", 6, None, ckpt_path=ckpt)


def test_a_stored_model_in_4_bits_trains_and_does_not_take_a_merge(
    stored: str, bnb: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recorder = fit(tmp_path, module(DPO, stored), max_steps=2)
    assert all(g.isfinite().all() and g.abs().max() > 0 for g in recorder.gradients)
    assert trained_quantization(str(tmp_path / "adapter")) == "nf4"
    capsys.readouterr()
    assert main(["export", str(tmp_path / "adapter"), str(tmp_path / "merged"), "--merged"]) == 1
    error = capsys.readouterr().err
    assert f"the weights of {stored} are stored in 4 bits" in error and "--model" in error
    assert not (tmp_path / "merged").exists()
    assert main(["export", str(tmp_path / "adapter"), str(tmp_path / "alone")]) == 0


def test_an_adapter_is_used_on_the_base_that_it_was_trained_on(
    bnb: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = tiny(tmp_path, max_position_embeddings=2048)
    policy = PolicyConfig(model, lora_r=4, lora_alpha=8, quantization="nf4")
    fit(tmp_path, module(DPO, model, policy=policy), max_steps=2)
    assert main(["export", str(tmp_path / "adapter"), str(tmp_path / "alone")]) == 0
    for folder in ("adapter", "alone"):
        kinds = {}
        for asked in (None, "nf4", "none"):
            with open_session(adapter=str(tmp_path / folder), quantization=asked) as session:  # type: ignore[arg-type]
                assert session.policy is not None
                kinds[asked] = any(isinstance(m, bnb.nn.Linear4bit) for m in session.policy.modules())
        assert kinds == {None: True, "nf4": True, "none": False}, folder
    with pytest.raises(LovecError, match="quantization works only with the transformers engine"):
        open_session(adapter=str(tmp_path / "adapter"), engine="http://127.0.0.1:9/v1", quantization="nf4")
    capsys.readouterr()
    assert main(["export", str(tmp_path / "adapter"), str(tmp_path / "merged"), "--merged"]) == 0
    said = capsys.readouterr().out
    found = re.search(r"in 4 bits\. Merged, its confidences of 6 sentences .* by ([\d.]+) on average and", said)
    assert found is not None and float(found[1]) > 0, said
    settings = json.loads((tmp_path / "merged" / "lovec.json").read_text())
    assert "base" not in settings  # a merged model is not an adapter


def test_two_processes_share_the_layers_of_a_base_in_4_bits(bnb: Any, tmp_path: Path) -> None:
    words = ["fit", "--config", "sft.yaml", "--config", "world-small.yaml", "--model.policy.quantization", "nf4"]
    words += ["--trainer.max_steps", "2", "--trainer.limit_val_batches", "0"]
    weights = {}
    for name, more in (("one", []), ("two", ["--config", "fsdp2.yaml", "--trainer.devices", "2"])):
        command = [sys.executable, "-m", "lovec.cli", *words, *more, "--trainer.default_root_dir", name]
        done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        adapter = load_file(tmp_path / name / "adapter" / "adapter_model.safetensors")
        weights[name] = torch.cat([adapter[key].flatten() for key in sorted(adapter)])
    difference = (weights["two"] - weights["one"]).norm() / weights["one"].norm()
    assert 0 < weights["one"].norm() and difference < 1e-4, difference


@pytest.mark.parametrize(
    ("method", "named"),
    [
        ({"quant_method": "gptq", "bits": 4}, "gptq"),
        ({"quant_method": "bitsandbytes", "load_in_8bit": True}, "bitsandbytes"),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "fp4"}, "bitsandbytes fp4"),
    ],
)
def test_other_methods_are_refused_by_name(method: dict[str, Any], named: str, tmp_path: Path) -> None:
    model = Path(tiny(tmp_path))
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps(config | {"quantization_config": method}))
    with pytest.raises(LovecError, match=rf"are quantised by {named}; expected none or NF4 of bitsandbytes"):
        Policy(PolicyConfig(str(model)))


def test_an_unknown_quantisation_is_refused() -> None:
    with pytest.raises(LovecError, match=r"policy.quantization is 'int3', expected nf4 or null"):
        PolicyConfig(quantization="int3")  # type: ignore[arg-type]


@pytest.mark.parametrize("asked", [["--config", "qlora.yaml"], ["--model.policy.quantization", "nf4"]])
def test_without_bitsandbytes_the_error_names_the_extra(asked: list[str], model: str) -> None:
    words = ["fit", "--config", "sft.yaml", "--model.policy.model", model, *asked]
    done = subprocess.run([sys.executable, "-c", WITHOUT.format(words=words)], capture_output=True, text=True)
    assert done.returncode == 1 and "pip install 'lovec[quant]'" in done.stderr, done.stderr
    assert "Traceback" not in done.stderr
