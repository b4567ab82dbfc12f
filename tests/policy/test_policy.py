"""The policy: log-probabilities, adapters, reference, files."""

from __future__ import annotations

import json
import math
import shutil
import warnings
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from tinyrun import tiny
from transformers import AutoConfig, AutoModelForCausalLM

from lovec.encoding import Encoder
from lovec.engines import TransformersEngine
from lovec.models.tiny import build_tiny
from lovec.policy import Policy, PolicyConfig, TokenBatch, TokenSequence, is_adapter
from lovec.tries import TRIE_ATTENTION
from lovec.types import LovecError

ARCHS = ["llama", "gemma2", "qwen2", "qwen3", "phi3"]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("models")


def make(models: Path, arch: str = "llama", planted: bool = True, **config: object) -> Policy:
    policy = Policy(PolicyConfig(model=tiny(models, arch), lora_r=4, lora_alpha=8, **config))  # type: ignore[arg-type]
    if planted:
        plant(policy)
    return policy


def plant(policy: Policy, seed: int = 0) -> None:
    """A random adapter of full effect (a fresh one is an update of zero)."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p in policy.trainable():
            p.copy_(0.1 * torch.randn(p.shape, generator=generator))


def sequences(seed: int = 0) -> list[TokenSequence]:
    generator = torch.Generator().manual_seed(seed)

    def ids(n: int) -> tuple[int, ...]:
        return tuple(torch.randint(3, 250, (n,), generator=generator).tolist())

    return [TokenSequence(ids(7), ids(5)), TokenSequence(ids(3), ids(11)), TokenSequence(ids(12), ids(1))]


def test_longrope_models_read_no_more_than_in_their_first_training(tmp_path: Path) -> None:
    """Beyond it transformers computes all rows of a batch otherwise, the short ones, too."""
    rope = {"rope_type": "longrope", "short_factor": [1.0] * 16, "long_factor": [4.0] * 16}
    rope |= {"rope_theta": 10000.0, "original_max_position_embeddings": 64}
    folder = str(build_tiny("phi3", tmp_path / "phi3", original_max_position_embeddings=64, rope_parameters=rope))
    policy = Policy(PolicyConfig(folder, lora_r=2)).eval()
    engine = TransformersEngine()
    engine.sync(policy)
    assert policy.max_length == engine.context_length == 64
    ids = torch.randint(3, 250, (80,), generator=torch.Generator().manual_seed(0)).tolist()

    def logps(*lengths: int) -> torch.Tensor:
        rows = [TokenSequence(tuple(ids[:10]), tuple(ids[10:length])) for length in lengths]
        return policy.token_logps(TokenBatch.of(rows))[0, :20]

    torch.testing.assert_close(logps(30, 64), logps(30))
    assert (logps(30, 80) - logps(30)).abs().max() > 0.1


@pytest.mark.parametrize("arch", ARCHS)
def test_token_logps_equal_the_models_own_logits(models: Path, arch: str) -> None:
    policy = make(models, arch).eval()
    for temperature in (1.0, 0.7):
        logps = policy.token_logps(TokenBatch.of(sequences()), temperature)
        for i, s in enumerate(sequences()):
            ids = torch.tensor([s.prompt + s.completion])
            logits = policy.model(input_ids=ids, use_cache=False).logits[0].double() / temperature
            naive = logits.log_softmax(-1)[len(s.prompt) - 1 : -1].gather(-1, ids[0, len(s.prompt) :, None])[:, 0]
            torch.testing.assert_close(logps[i, : len(naive)].double(), naive, atol=1e-5, rtol=1e-5)
            assert not logps[i, len(naive) :].any()


def test_chunked_logps_have_the_same_value_and_gradient(models: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    policy = make(models, "gemma2").train()
    results = []
    for logits in (1 << 26, 4 * policy.model.config.vocab_size):
        monkeypatch.setattr("lovec.policy.head.LOGITS_AT_ONCE", logits)
        policy.zero_grad()
        logps = policy.token_logps(TokenBatch.of(sequences()))
        (logps * torch.arange(logps.numel()).view_as(logps)).sum().backward()
        results.append((logps.detach(), torch.cat([p.grad.flatten() for p in policy.trainable()])))  # type: ignore[union-attr]
    torch.testing.assert_close(results[0][0], results[1][0], atol=1e-6, rtol=1e-6)
    torch.testing.assert_close(results[0][1], results[1][1], atol=1e-5, rtol=1e-5)


def test_logps_ignore_order_and_neighbours(models: Path) -> None:
    policy = make(models).eval()
    rows = sequences()
    logps = policy.token_logps(TokenBatch.of(rows))
    turned = policy.token_logps(TokenBatch.of(rows[::-1]))
    torch.testing.assert_close(logps, turned.flip(0), atol=1e-5, rtol=1e-5)
    other = TokenSequence(tuple(i + 1 for i in rows[1].prompt), tuple(i + 1 for i in rows[1].completion))
    beside = policy.token_logps(TokenBatch.of([rows[0], other, rows[2]]))
    assert torch.equal(logps[[0, 2]], beside[[0, 2]])
    assert not torch.equal(logps[1], beside[1])


def test_masks_come_from_lengths_when_pad_is_the_end_token(models: Path) -> None:
    path = models / "padeos"
    if not path.exists():
        build_tiny("llama", path, pad_is_eos=True)
    encoder = Encoder(Policy(PolicyConfig(model=str(path))).tokenizer, "Rate.")
    assert encoder.end_id == encoder.tokenizer.pad_token_id
    rows = [
        TokenSequence(tuple(encoder.prompt("Q?")), tuple(encoder.completion([t], [10])))
        for t in ("A.", "A longer one.")
    ]
    batch = TokenBatch.of(rows)
    for i, row in enumerate(rows):
        assert int(batch.mask[i].sum()) == len(row.completion)
        last = int(batch.mask[i].sum()) - 1
        assert batch.targets[i, last] == encoder.end_id and batch.mask[i, last] == 1


def test_only_the_adapter_is_trainable_and_every_part_of_it_gets_gradient(models: Path) -> None:
    for checkpointing in (False, True):
        policy = make(models, gradient_checkpointing=checkpointing).train()
        policy.token_logps(TokenBatch.of(sequences())).sum().backward()
        trainable = policy.trainable()
        assert {id(p) for p in trainable} == {id(p) for p in policy.parameters() if p.requires_grad}
        assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in trainable)
        assert all(p.grad is None for name, p in policy.named_parameters() if not is_adapter(name))


def test_no_library_warns_when_an_adapter_is_added(models: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error", FutureWarning)
        make(models)


def test_the_reference_of_a_fresh_adapter_is_the_base(models: Path) -> None:
    policy = make(models).train()
    batch = TokenBatch.of(sequences())
    base = AutoModelForCausalLM.from_pretrained(tiny(models, "llama"))
    with policy.reference():
        reference = policy.token_logps(batch)
    s = sequences()[0]
    logits = base(torch.tensor([s.prompt + s.completion])).logits[0].log_softmax(-1)
    naive = logits[len(s.prompt) - 1 : -1].gather(-1, torch.tensor(s.completion)[:, None])[:, 0]
    torch.testing.assert_close(reference[0, : len(naive)], naive, atol=1e-5, rtol=1e-5)
    assert not reference.requires_grad
    assert not torch.allclose(reference, policy.token_logps(batch), atol=1e-3)


def test_a_continued_adapter_moves_away_from_its_frozen_copy(models: Path, tmp_path: Path) -> None:
    make(models).save_adapter(tmp_path / "adapter")
    policy = make(models, planted=False, adapter=str(tmp_path / "adapter")).train()
    batch = TokenBatch.of(sequences())
    with policy.reference():
        reference = policy.token_logps(batch)
    assert torch.equal(reference, policy.token_logps(batch).detach())
    with policy.without_adapter(), torch.no_grad():
        assert not torch.allclose(reference, policy.token_logps(batch), atol=1e-3)
    optimizer = torch.optim.SGD(policy.trainable(), lr=0.1)
    policy.token_logps(batch).sum().backward()
    optimizer.step()
    assert not torch.allclose(reference, policy.token_logps(batch), atol=1e-3)
    with policy.reference():
        assert torch.equal(reference, policy.token_logps(batch))
    assert [p.requires_grad for n, p in policy.named_parameters() if ".reference." in n].count(True) == 0


def test_the_adapter_loads_in_plain_peft(models: Path, tmp_path: Path) -> None:
    from peft import PeftModel

    policy = make(models, "qwen2").eval()
    policy.save_adapter(tmp_path / "adapter")
    plain = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(tiny(models, "qwen2")), tmp_path / "adapter")
    ids = torch.tensor([sequences()[0].prompt])
    torch.testing.assert_close(plain(ids).logits, policy.model(ids).logits, atol=1e-6, rtol=1e-6)
    make(models, "qwen2", planted=False).save_adapter(tmp_path / "adapter")  # replaced as a whole
    assert sorted(p.name for p in tmp_path.iterdir()) == ["adapter"]


def test_a_failed_write_leaves_the_older_adapter(models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    policy = make(models)
    policy.save_adapter(tmp_path / "adapter", extra_files={"note.txt": "first"})
    before = (tmp_path / "adapter" / "adapter_model.safetensors").read_bytes()
    plant(policy, seed=1)

    def half(folder: str, **options: object) -> None:
        (Path(folder) / "adapter_model.safetensors").write_bytes(b"half")
        raise OSError("no space left on device")

    monkeypatch.setattr(policy.peft, "save_pretrained", half)
    with pytest.raises(LovecError, match=r"no space left.*an older one is untouched"):
        policy.save_adapter(tmp_path / "adapter")
    assert (tmp_path / "adapter" / "adapter_model.safetensors").read_bytes() == before
    assert (tmp_path / "adapter" / "note.txt").read_text() == "first"
    assert [path.name for path in tmp_path.iterdir()] == ["adapter"]


def test_an_adapter_in_temporary_use_is_saved_like_any_other(models: Path, tmp_path: Path) -> None:
    make(models).save_adapter(tmp_path / "first")
    policy = make(models, planted=False)
    with policy.with_adapter(str(tmp_path / "first")):
        assert policy.active_adapter is not None
        policy.save_adapter(tmp_path / "copy", policy.active_adapter)
    first, copy = (tmp_path / name / "adapter_model.safetensors" for name in ("first", "copy"))
    assert copy.read_bytes() == first.read_bytes()
    assert not [path for path in (tmp_path / "copy").iterdir() if path.is_dir()]


def test_dropout_is_on_in_training_only_and_only_if_requested(models: Path) -> None:
    config = PolicyConfig(model=tiny(models, "llama"), lora_r=4, lora_dropout=0.5)
    batch = TokenBatch.of(sequences())
    for dropout, random_ in ((True, True), (False, False)):
        policy = Policy(config, dropout=dropout)
        plant(policy)
        policy.train()
        assert torch.equal(policy.token_logps(batch), policy.token_logps(batch)) is not random_
        policy.eval()
        assert torch.equal(policy.token_logps(batch), policy.token_logps(batch))


def test_bfloat16_base_keeps_a_float32_adapter(models: Path) -> None:
    batch = TokenBatch.of(sequences())
    logps = {}
    for dtype in ("float32", "bfloat16"):
        policy = make(models, dtype=dtype).train()
        assert {p.dtype for p in policy.trainable()} == {torch.float32}
        assert policy.model.get_input_embeddings().weight.dtype == getattr(torch, dtype)
        logps[dtype] = policy.token_logps(batch)
        assert logps[dtype].dtype == torch.float32
        logps[dtype].sum().backward()
        assert all(math.isfinite(float(p.grad.sum())) for p in policy.trainable())  # type: ignore[union-attr]
    assert 0 < (logps["float32"] - logps["bfloat16"]).abs().max() < 0.1


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"adapter": "nowhere/sft/adapter"}, "lovec fit --config sft.yaml"),
        ({"model": "no-such/model"}, "cannot load the model 'no-such/model'"),
        ({"dtype": "float16"}, "expected float32 or bfloat16"),
        ({"chat_template": "missing.jinja"}, "give a Jinja file"),
        ({"target_modules": ["w_q"]}, "policy.target_modules"),
    ],
)
def test_bad_settings_are_one_clear_line(models: Path, config: dict[str, object], words: str) -> None:
    with pytest.raises(LovecError) as error:
        Policy(PolicyConfig(**{"model": tiny(models, "llama"), **config}))  # type: ignore[arg-type]
    assert words in str(error.value) and "\n" not in str(error.value)


def test_weights_that_were_cut_off_are_one_clear_line(models: Path, tmp_path: Path) -> None:
    whole, cut = Path(tiny(models, "llama")), tmp_path / "cut"
    shutil.copytree(whole, cut)
    (cut / "model.safetensors").write_bytes((whole / "model.safetensors").read_bytes()[:5000])
    with pytest.raises(LovecError, match=r"^cannot load the model .*cut': the folder does not hold a whole model"):
        Policy(PolicyConfig(model=str(cut)))


def test_a_model_without_all_weights_is_refused(models: Path, tmp_path: Path) -> None:
    part = tmp_path / "part"
    shutil.copytree(tiny(models, "llama"), part)
    weights = load_file(part / "model.safetensors")
    kept = {name: weight for name, weight in weights.items() if not name.startswith("model.layers.1.")}
    save_file(kept, part / "model.safetensors", {"format": "pt"})
    with pytest.raises(
        LovecError, match=rf"lacks {len(weights) - len(kept)} weights of its model \(model\.layers\.1\."
    ):
        Policy(PolicyConfig(model=str(part)))


def test_an_adapter_of_another_base_is_refused(models: Path, tmp_path: Path) -> None:
    wide = build_tiny("llama", models / "wide", hidden_size=96) if not (models / "wide").exists() else models / "wide"
    make(models).save_adapter(tmp_path / "adapter")
    with pytest.raises(LovecError, match="trained on another base"):
        Policy(PolicyConfig(model=str(wide), adapter=str(tmp_path / "adapter")))


def test_gemma_2_is_loaded_with_attention_that_applies_its_cap(models: Path) -> None:
    assert make(models, "gemma2").model.config._attn_implementation == "eager"
    assert make(models, "llama").model.config._attn_implementation == TRIE_ATTENTION


def test_an_adapter_without_a_reference_holds_one_copy(models: Path, tmp_path: Path) -> None:
    make(models).save_adapter(tmp_path / "a")
    config = PolicyConfig(model=tiny(models, "llama"), adapter=str(tmp_path / "a"))
    assert any(".reference." in name for name, _ in Policy(config).named_parameters())
    assert not any(".reference." in name for name, _ in Policy(config, reference=False).named_parameters())


def test_dropout_of_the_base_and_of_the_reference_is_off(models: Path, tmp_path: Path) -> None:
    path = models / "dropping"
    if not path.exists():
        build_tiny("llama", path, attention_dropout=0.5)
    policy = Policy(PolicyConfig(model=str(path), lora_r=4)).train()
    batch = TokenBatch.of(sequences())
    assert torch.equal(policy.token_logps(batch), policy.token_logps(batch))
    policy.model.get_decoder().drop = torch.nn.Dropout(0.5)
    policy._set_dropout(0.0)
    assert policy.model.get_decoder().drop.p == 0.0
    plant(policy)
    policy.save_adapter(tmp_path / "a")
    config = PolicyConfig(model=str(path), adapter=str(tmp_path / "a"), lora_dropout=0.5)
    policy = Policy(config, dropout=True).train()
    assert not torch.equal(policy.token_logps(batch), policy.token_logps(batch))
    with policy.reference():
        assert torch.equal(policy.token_logps(batch), policy.token_logps(batch))


def foreign(folder: Path, model_type: str, **sizes: object) -> str:
    """A random model of a family that is none of the tiny ones, with the tokenizer of the tiny Llama."""
    path = folder / model_type
    config = json.loads((build_tiny("llama", path) / "config.json").read_text())
    tokens = {name: config[name] for name in ("vocab_size", "bos_token_id", "eos_token_id", "pad_token_id")}
    AutoModelForCausalLM.from_config(AutoConfig.for_model(model_type, **tokens, **sizes)).save_pretrained(path)
    return str(path)


@pytest.mark.parametrize(
    ("model_type", "sizes"),
    [
        (
            "opt",
            {"hidden_size": 32, "word_embed_proj_dim": 32, "ffn_dim": 32, "num_hidden_layers": 2, "layerdrop": 0.5}
            | {"num_attention_heads": 2, "max_position_embeddings": 64},
        ),
        (
            "seed_oss",
            {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
            | {"num_key_value_heads": 1, "head_dim": 16, "residual_dropout": 0.5},
        ),
    ],
)
def test_dropout_under_a_models_own_names_is_off(tmp_path: Path, model_type: str, sizes: dict[str, object]) -> None:
    model = foreign(tmp_path, model_type, **sizes)
    policy = Policy(PolicyConfig(model=model, lora_r=4, lora_dropout=0.5, target_modules=["q_proj"])).train()
    batch = TokenBatch.of(sequences())
    logps = policy.token_logps(batch)
    assert torch.equal(logps, policy.token_logps(batch))
    with policy.reference():
        assert torch.equal(logps, policy.token_logps(batch))  # so DPO begins at ln 2
    plant(policy)
    policy._set_dropout(0.5)
    assert not torch.equal(policy.token_logps(batch), policy.token_logps(batch))  # the adapter's own is what was asked


@pytest.mark.parametrize(
    ("model_type", "sizes"),
    [
        ("bloom", {"hidden_size": 32, "n_layer": 1, "n_head": 2}),
        ("modernbert-decoder", {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1}),
    ],
)
def test_models_whose_code_takes_no_masks_for_single_tokens_are_refused(
    tmp_path: Path, model_type: str, sizes: dict[str, object]
) -> None:
    heads = {"num_attention_heads": 2, "max_position_embeddings": 64, "cls_token_id": 1, "sep_token_id": 1}
    model = foreign(tmp_path, model_type, **(sizes if model_type == "bloom" else sizes | heads))
    with pytest.raises(LovecError, match=f"the code of {model_type} models takes no masks for .*; use another model"):
        Policy(PolicyConfig(model=model), trained=False)


def test_models_that_compute_with_the_mask_are_computed_row_by_row(tmp_path: Path) -> None:
    sizes = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    policy = Policy(PolicyConfig(model=foreign(tmp_path, "doge", **sizes, num_key_value_heads=1), lora_r=2)).eval()
    assert not policy.shares_prefixes
    for sequence, logps in zip(sequences(), policy.token_logps(TokenBatch.of(sequences())), strict=True):
        alone = policy.model(torch.tensor([sequence.prompt + sequence.completion])).logits[0].log_softmax(-1)
        places = torch.arange(len(sequence.prompt) - 1, len(sequence) - 1)
        expected = alone[places, torch.tensor(sequence.completion)]
        assert torch.allclose(logps[: len(expected)], expected, atol=1e-5)


def test_loading_computes_one_layer_of_two_tokens(models: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers.models.llama.modeling_llama import LlamaDecoderLayer

    computed, forward = [], LlamaDecoderLayer.forward

    def counted(layer: object, states: torch.Tensor, **options: object) -> torch.Tensor:
        result = forward(layer, states, **options)  # type: ignore[arg-type]
        computed.append(states.shape[:2].numel())
        return result

    monkeypatch.setattr(LlamaDecoderLayer, "forward", counted)
    make(models, planted=False)
    assert computed == [2]


def test_the_shape_is_enough_to_build_an_adapter_again(models: Path, tmp_path: Path) -> None:
    import json

    make(models).save_adapter(tmp_path / "a")
    settings = json.loads((tmp_path / "a" / "adapter_config.json").read_text())
    (tmp_path / "a" / "adapter_config.json").write_text(json.dumps({**settings, "use_rslora": True}))
    config = PolicyConfig(model=tiny(models, "llama"), adapter=str(tmp_path / "a"))
    policy = Policy(config).eval()
    assert policy.shape["lora"]["use_rslora"] is True
    again = Policy(config, checkpoint_shape=json.loads(json.dumps(policy.shape))).eval()
    again.load_state_dict(policy.state_dict())
    batch = TokenBatch.of(sequences())
    assert torch.equal(policy.token_logps(batch), again.token_logps(batch))
    (tmp_path / "a" / "adapter_config.json").write_text(json.dumps({**settings, "bias": "all"}))
    with pytest.raises(LovecError, match="not a plain LoRA"):
        Policy(config)


def test_models_that_cannot_be_run_correctly_are_refused(models: Path, tmp_path: Path) -> None:
    import json
    import shutil

    scaled = shutil.copytree(tiny(models, "llama"), tmp_path / "scaled")
    settings = json.loads((scaled / "config.json").read_text())
    (scaled / "config.json").write_text(json.dumps({**settings, "logit_scale": 0.5}))
    with pytest.raises(LovecError, match="scales its logits"):
        Policy(PolicyConfig(model=str(scaled)))
    pickled = shutil.copytree(tiny(models, "llama"), tmp_path / "pickled")
    weights = AutoModelForCausalLM.from_pretrained(pickled).state_dict()
    (pickled / "model.safetensors").unlink()
    torch.save(weights, pickled / "pytorch_model.bin")
    with pytest.raises(LovecError, match="whole model with safetensors weights"):
        Policy(PolicyConfig(model=str(pickled)))


def test_random_weights_replace_files(models: Path, tmp_path: Path) -> None:
    import json
    import shutil

    bare = shutil.copytree(tiny(models, "gemma2"), tmp_path / "bare")
    (bare / "model.safetensors").unlink()
    weights = []
    for seed in (0, 0, 1):
        torch.manual_seed(seed)
        policy = Policy(PolicyConfig(model=f"random:{bare}", lora_r=4, dtype="bfloat16"))
        weights.append({name: p for name, p in policy.named_parameters() if not is_adapter(name)})
    real = Policy(PolicyConfig(model=tiny(models, "gemma2"), lora_r=4, dtype="bfloat16"))
    assert {name: (p.shape, p.dtype, p.requires_grad) for name, p in weights[0].items()} == {
        name: (p.shape, p.dtype, p.requires_grad) for name, p in real.named_parameters() if not is_adapter(name)
    }
    assert real.model.config._attn_implementation == policy.model.config._attn_implementation == "eager"
    assert all(torch.equal(p, weights[1][name]) for name, p in weights[0].items())
    assert not all(torch.equal(p, weights[2][name]) for name, p in weights[0].items())
    policy.save_adapter(tmp_path / "adapter")
    settings = json.loads((tmp_path / "adapter" / "adapter_config.json").read_text())
    assert settings["base_model_name_or_path"] == str(bare)
    with pytest.raises(LovecError, match="cannot load the model 'random:nowhere'"):
        Policy(PolicyConfig(model="random:nowhere"))
