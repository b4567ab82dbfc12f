"""Checks that matter on a GPU, in the precision of real runs: a base in bfloat16, an adapter in float32.

`make test-gpu` runs these where there is a CUDA device; elsewhere they are skipped. With LOVEC_TEST_DEVICE=cpu the same
tests run on the CPU, and a few of them always do.
"""

from __future__ import annotations

import importlib.util
import json
import math
import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from tinyrun import Lengths, Ragged, Recorder, Rows, Truth, module, records, tiny, trainer
from torch import Tensor

from lovec.encoding import Encoder
from lovec.engines import TransformersEngine
from lovec.modules import DPO, GRPO, ORPO, SFT, ExpectedReward, PolicyConfig, SFTRegression
from lovec.modules.batching import micro_batches
from lovec.policy import Policy, TokenBatch, TokenSequence, is_adapter, load_base, load_tokenizer
from lovec.policy.checkpoints import read_checkpoint
from lovec.types import Sampling

ROOT = Path(__file__).resolve().parents[1]
DEVICE = os.environ.get("LOVEC_TEST_DEVICE", "cuda")
GPU = pytest.param(
    DEVICE,
    marks=[
        pytest.mark.gpu,
        pytest.mark.skipif(
            DEVICE == "cuda" and not torch.cuda.is_available(),
            reason="there is no CUDA device; LOVEC_TEST_DEVICE=cpu runs this test on the CPU",
        ),
    ],
)
on_gpu = pytest.mark.parametrize("device", [GPU])
everywhere = pytest.mark.parametrize("device", ["cpu", GPU])

ARCHS = ["llama", "gemma2", "qwen2", "qwen3"]
DTYPES = ["float32", "bfloat16"]
OBJECTIVES: dict[str, Callable[[], tuple[type, dict[str, Any]]]] = {
    "SFT": lambda: (SFT, {}),
    "SFTRegression": lambda: (SFTRegression, {}),
    "DPO": lambda: (DPO, {"sft_weight": 0.5}),
    "ORPO": lambda: (ORPO, {}),
    "GRPO": lambda: (GRPO, sampled()),
    "ExpectedReward": lambda: (ExpectedReward, {}),
}
UNDEFINED = {"train/entropy", "train/distinct", "train/confidence"}
"""What has no value where no answer states a score, as random answers do not."""
every_objective = pytest.mark.parametrize("objective", OBJECTIVES)


def on_gpu_with_every_model(test: Callable[..., None]) -> Callable[..., None]:
    """Run a test with every architecture in every data type."""
    return on_gpu(pytest.mark.parametrize("arch", ARCHS)(pytest.mark.parametrize("dtype", DTYPES)(test)))


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("models")


@pytest.fixture(scope="module")
def adapter(models: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    """An adapter of full effect: every part gets gradient at the first step, and the base is not the reference."""
    policy = Policy(PolicyConfig(model=tiny(models), lora_r=4, lora_alpha=8))
    plant(policy)
    folder = tmp_path_factory.mktemp("adapters") / "adapter"
    policy.save_adapter(folder)
    return str(folder)


def plant(policy: Policy) -> None:
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for p in policy.trainable():
            p.copy_(0.1 * torch.randn(p.shape, generator=generator))


def sampled() -> dict[str, Any]:
    """Options under which a random model's answers are ragged and earn different rewards."""
    return {
        "reward": Truth(),
        "oracle": Lengths(),
        "group_size": 3,
        "temperature": 1.2,
        "max_new_tokens": 10,
        "engine": Ragged(max_rows=8),
    }


def build(objective: str | type, model: str, adapter: str | None = None, **options: Any) -> Any:
    """A module whose base is in bfloat16, unless the options say otherwise."""
    cls, defaults = OBJECTIVES[objective]() if isinstance(objective, str) else (objective, {})
    names = ("dtype", "gradient_checkpointing", "lora_dropout")
    policy = {"dtype": "bfloat16", **{name: options.pop(name) for name in names if name in options}}
    config = PolicyConfig(model=model, adapter=adapter, lora_r=4, lora_alpha=8, **policy)
    return module(cls, model, policy=config, **{**defaults, **options})


def fit(folder: Path, policy_module: Any, device: str, precision: str = "bf16-mixed", **settings: Any) -> Recorder:
    """Train on the device; the module comes back to it (Lightning leaves modules on the CPU)."""
    recorder = Recorder(policy_module)
    trainer(folder, accelerator=device, devices=1, precision=precision, **settings).fit(policy_module, Rows())
    policy_module.to(device)
    return recorder


def loaded(folder: Path, policy_module: Any, device: str) -> Any:
    """The module on the device, with its policy, and nothing trained."""
    trainer(folder, accelerator=device, devices=1, max_steps=0).fit(policy_module, Rows())
    return policy_module.to(device)


def weights(policy: Policy) -> dict[str, Tensor]:
    return {name: p.detach().cpu().clone() for name, p in policy.named_parameters()}


def off(a: Tensor, b: Tensor) -> float:
    """How far two vectors are apart, in units of the first."""
    return float((a - b).norm() / a.norm())


# A step


@on_gpu
@every_objective
@pytest.mark.parametrize("precision", ["bf16-mixed", "32-true"])
def test_a_step_moves_the_whole_adapter_and_nothing_else(
    precision: str, objective: str, device: str, models: Path, adapter: str, tmp_path: Path
) -> None:
    policy_module = loaded(tmp_path, build(objective, tiny(models), adapter), device)
    before = weights(policy_module.policy)
    run = fit(tmp_path, policy_module, device, precision, max_steps=2)
    after = weights(policy_module.policy)
    trained = {name for name, p in policy_module.policy.named_parameters() if p.requires_grad}
    for gradient in run.gradients:
        assert gradient.device.type == device and gradient.dtype == torch.float32
        parts = gradient.split([p.numel() for p in policy_module.policy.trainable()])
        assert all(part.isfinite().all() and part.any() for part in parts)
    assert trained == {name for name in before if is_adapter(name) and ".default." in name}
    for name, old in before.items():
        assert old.dtype == (torch.float32 if is_adapter(name) else torch.bfloat16), name
        assert torch.equal(old, after[name]) is (name not in trained), name
    for logged in run.logged:
        assert {name for name, v in logged.items() if not math.isfinite(v)} <= UNDEFINED


@on_gpu
@pytest.mark.parametrize("arch", ARCHS)
def test_every_architecture_learns(arch: str, device: str, models: Path, tmp_path: Path) -> None:
    policy_module = build(SFT, tiny(models, arch), lr=3e-2, gradient_checkpointing=True)
    run = fit(tmp_path, policy_module, device, max_epochs=4)
    assert run.logged[-1]["train/nll"] < run.logged[0]["train/nll"]


@everywhere
@pytest.mark.parametrize("continued", [False, True])
@pytest.mark.parametrize("checkpointing", [False, True])
def test_dpo_starts_at_ln_2(
    checkpointing: bool, continued: bool, device: str, models: Path, adapter: str, tmp_path: Path
) -> None:
    """Exactly: policy and reference are one model, and their forward passes one computation, also in bfloat16."""
    start = adapter if continued else None
    policy_module = build(DPO, tiny(models), start, gradient_checkpointing=checkpointing, micro_batch_tokens=300)
    logged = fit(tmp_path, policy_module, device, max_steps=2).logged
    assert logged[0]["train/loss"] == pytest.approx(math.log(2), abs=1e-12)
    assert logged[0]["train/margin"] == 0.0
    assert logged[1]["train/margin"] != 0.0


@everywhere
def test_grpo_starts_on_policy(device: str, models: Path, adapter: str, tmp_path: Path) -> None:
    """Ratio 1 and KL 0, to the last bit; and the sampler's log-probs are those of training, but for rounding."""
    seen: list[tuple[Tensor, Tensor]] = []

    class Watch(GRPO):
        def token_loss(self, token_logps: Tensor, old: Tensor, ref: Any, advantages: Tensor, mask: Tensor) -> Tensor:
            seen.append((token_logps.detach(), old))
            return super().token_loss(token_logps, old, ref, advantages, mask)

    policy_module = build(Watch, tiny(models), adapter, lr=5e-2, **sampled())
    drawn: list[Any] = []
    generate = policy_module.engine.generate
    policy_module.engine.generate = lambda *args, **kwargs: drawn.append(generate(*args, **kwargs)) or drawn[-1]
    logged = fit(tmp_path, policy_module, device, max_steps=2).logged
    assert logged[0]["train/kl"] == 0.0 and logged[0]["train/clipped"] == 0.0 and logged[0]["train/zero_variance"] < 1
    assert logged[1]["train/kl"] > 0.0
    assert all(torch.equal(token_logps, old) for token_logps, old in seen)
    sums = [sum(completion.logps) for group in drawn[-1] for completion in group]
    assert sorted(sums) == pytest.approx(sorted(seen[-1][0].sum(-1).tolist()), abs=0.5)


@on_gpu
@every_objective
def test_checkpointing_changes_no_gradient(
    objective: str, device: str, models: Path, adapter: str, tmp_path: Path
) -> None:
    gradients = []
    for checkpointing in (False, True):
        policy_module = build(objective, tiny(models), adapter, gradient_checkpointing=checkpointing)
        gradients.append(fit(tmp_path, policy_module, device, max_steps=1).gradients[0])
        assert policy_module.policy.model.is_gradient_checkpointing is checkpointing
    assert off(*gradients) < 2e-2


@on_gpu
@every_objective
@pytest.mark.parametrize("dtype", DTYPES)
def test_ragged_micro_batches_equal_one_batch(
    dtype: str, objective: str, device: str, models: Path, adapter: str, tmp_path: Path
) -> None:
    precision, bound = ("32-true", 1e-4) if dtype == "float32" else ("bf16-mixed", 0.15)
    runs = []
    for budget in (10**6, 300):
        policy_module = build(objective, tiny(models), adapter, dtype=dtype, sgd=True, micro_batch_tokens=budget)
        runs.append(fit(tmp_path, policy_module, device, precision, max_steps=1))
    if objective != "GRPO":
        assert len(micro_batches([policy_module.example(row) for row in records(4)], 300, True)) > 2
    assert off(runs[0].gradients[0], runs[1].gradients[0]) < bound
    assert runs[1].logged[0]["train/loss"] == pytest.approx(runs[0].logged[0]["train/loss"], rel=bound, abs=bound)


# Scores


def tagged_answers(policy: Policy) -> tuple[list[TokenSequence], list[list[int]], list[list[int]]]:
    """Tagged answers as token ids, where their scores begin, and the scores as token ids."""
    encoder = Encoder(policy.tokenizer, "Rate each sentence.")
    rows, marks = [], []
    for i, row in enumerate(records(5)):
        completion, at = encoder.completion_with_marks([s.text for s in row.sentences], [i] * len(row.sentences))
        rows.append(TokenSequence(tuple(encoder.prompt(row.question)), tuple(completion)))
        marks.append(at)
    return rows, marks, encoder.tails


def planted(models: Path, arch: str, dtype: str, device: str) -> Policy:
    policy = Policy(PolicyConfig(model=tiny(models, arch), lora_r=4, lora_alpha=8, dtype=dtype))
    plant(policy)
    return policy.train().to(device)


def scored(policy: Policy) -> tuple[Tensor, list[list[int]], list[list[int]]]:
    """An engine's log-probability of every score at every tag, [M, 11]; the contexts; the scores."""
    rows, marks, tails = tagged_answers(policy)
    contexts = [[*row.prompt, *row.completion[:mark]] for row, at in zip(rows, marks, strict=True) for mark in at]
    engine = TransformersEngine(max_rows=4)
    engine.sync(policy)
    return torch.tensor(engine.score(contexts, tails)), contexts, tails


def agree(one: Tensor, other: Tensor, models: Path, arch: str, dtype: str) -> None:
    """Two ways to the log-probabilities of whole scores differ by rounding, far less than the contexts do.

    In bfloat16 that is a few times what the precision itself costs, which is bounded as well (16 tokens a score).
    """
    bound = 5e-4
    if dtype == "bfloat16":
        noise = float((one - scored(planted(models, arch, "float32", "cpu"))[0]).abs().max())
        assert 0 < noise < 1.5
        bound = 3 * noise
    assert (one - other.cpu()).abs().max() < bound < one.std(0).min()


@on_gpu_with_every_model
def test_the_engine_scores_as_training_does(dtype: str, arch: str, device: str, models: Path) -> None:
    policy = planted(models, arch, dtype, device)
    scores, contexts, tails = scored(policy)
    plain = [TokenSequence(tuple(context), tuple(tail)) for context in contexts for tail in tails]
    with torch.no_grad():
        logps = policy.token_logps(TokenBatch.of(plain, device)).double().sum(-1).view(len(contexts), -1)
    assert logps.device.type == device
    agree(scores, logps, models, arch, dtype)


@on_gpu_with_every_model
def test_choices_beside_a_sequence_score_as_the_engine_does(dtype: str, arch: str, device: str, models: Path) -> None:
    policy = planted(models, arch, dtype, device)
    rows, marks, tails = tagged_answers(policy)
    _, logps = policy.choice_logps(TokenBatch.of(rows, device), marks, tails)
    assert logps.device.type == device and logps.requires_grad
    agree(scored(policy)[0], logps.detach(), models, arch, dtype)


@on_gpu_with_every_model
def test_log_probs_and_gradients_are_those_of_the_cpu(dtype: str, arch: str, device: str, models: Path) -> None:
    """Of the CPU in float32, whatever attention kernel the device and the precision choose."""
    results = []
    for place, kind in (("cpu", "float32"), (device, dtype)):
        policy = planted(models, arch, kind, place)
        logps = policy.token_logps(TokenBatch.of(tagged_answers(policy)[0], place))
        logps.sum().backward()
        gradient = torch.cat([p.grad.flatten() for p in policy.trainable()])  # type: ignore[union-attr]
        results.append((logps.detach().cpu(), gradient.cpu()))
    (logps, gradient), (other, turned) = results
    assert (logps - other).abs().max() < (1e-4 if dtype == "float32" else 0.75)
    assert off(gradient, turned) < (1e-3 if dtype == "float32" else 0.15)


@on_gpu
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_samples_are_a_function_of_the_seed(temperature: float, device: str, models: Path) -> None:
    policy = planted(models, "llama", "bfloat16", device)
    engine = TransformersEngine(max_rows=8)
    prompts = [row.prompt for row in tagged_answers(policy)[0]]

    def sample(seed: int) -> Any:
        engine.sync(policy)
        return engine.generate(prompts, Sampling(12, temperature, 2, seed), [])

    assert sample(1) == sample(1)
    assert (sample(1) == sample(2)) is (temperature == 0)
    assert all(len(c.ids) == 12 for group in sample(1) for c in group)


# Runs


@on_gpu
@pytest.mark.parametrize("objective", ["SFT", "GRPO"])
def test_a_run_resumes(objective: str, device: str, models: Path, adapter: str, tmp_path: Path) -> None:
    """Dropout, order, optimiser, rollouts: bit for bit as if never stopped on the CPU, up to rounding on a GPU."""

    def new_module() -> Any:
        return build(objective, tiny(models), adapter, dtype="float32", lora_dropout=0.3, seed=5)

    settings: dict[str, Any] = {"precision": "32-true", "max_steps": 4, "max_epochs": 2}
    saver = ModelCheckpoint(dirpath=tmp_path / "ck", every_n_train_steps=2, save_top_k=-1)
    whole = new_module()
    fit(tmp_path / "whole", whole, device, enable_checkpointing=True, callbacks=[saver], **settings)
    path = next((tmp_path / "ck").glob("*step=2.ckpt"))
    again = new_module()
    settings |= {"accelerator": device, "devices": 1}
    run = trainer(tmp_path / "again", **settings)
    run.fit(again, Rows(), ckpt_path=path)
    assert run.global_step == 4
    saved = {name.removeprefix("policy."): p for name, p in read_checkpoint(path)["state_dict"].items()}
    ends = [weights(policy_module.policy) for policy_module in (whole, again)]
    start, end, resumed = (torch.cat([x[n].flatten() for n in saved if ".default." in n]) for x in (saved, *ends))
    assert off(end - start, resumed - start) <= (0.0 if device == "cpu" else 1e-2)


@on_gpu
def test_metrics_are_those_of_the_cpu(device: str, models: Path, tmp_path: Path) -> None:
    """An adapter trained on a GPU has the same metrics on both."""
    fit(tmp_path, build(SFT, tiny(models), dtype="float32"), device, "32-true", limit_val_batches=1)
    results = []
    for place in (device, "cpu"):
        policy_module = build(SFT, tiny(models), dtype="float32", oracle=Lengths())
        policy_module.evaluation.modes = ["iterative"]
        trainer(tmp_path, accelerator=place, devices=1).test(policy_module, Rows(), verbose=False)
        results.append([row for row in policy_module.results if row.readout == "mean" and row.level == "sentence"])
    assert {row.method for row in results[0]} == {"SFT", "Vanilla"}
    for one, other in zip(*results, strict=True):
        assert one.n == other.n > 0
        for name in ("brier", "mean_confidence", "mean_factuality"):
            assert one.metrics[name] == pytest.approx(other.metrics[name], abs=1e-3), name


# The benchmark


def benchmark(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    spec = importlib.util.spec_from_file_location("gpu_benchmark", ROOT / "benchmarks" / "gpu.py")
    assert spec is not None and spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, script)
    spec.loader.exec_module(script)
    return script


@everywhere
@pytest.mark.slow
@pytest.mark.skipif(DEVICE not in ("cpu", "cuda"), reason="it times CUDA devices and the CPU")
def test_the_benchmark_measures_every_objective(device: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    benchmark(monkeypatch).main(["--shape", "tiny", "--device", device, "--out", str(tmp_path / "gpu.json")])
    results = json.loads((tmp_path / "gpu.json").read_text())
    assert ("no GPU" in results["machine"]) is not torch.cuda.is_available()
    rows = {(row["objective"], row["side"]): row for row in results["rows"]}
    sequences = {"SFT": 3, "DPO": 6, "GRPO": 3, "ExpectedReward": 3}
    peers = [(name, "TRL") for name in sequences if name != "ExpectedReward"]
    assert {*rows} == {(name, side) for name in sequences for side in ("lovec", "lovec padded")} | {*peers}
    assert rows["GRPO", "lovec"]["completion_tokens"] == 3 * 8
    for (objective, side), row in rows.items():
        if side == "TRL" and "skipped" in row:
            assert row["skipped"].endswith("is not installed")
            continue
        assert row["sequences"] == sequences[objective]
        assert row["tokens"] > row["completion_tokens"] > 0 and row["tokens_per_second"] > 0
        assert (row["peak_gb"] is None) is (device == "cpu")
        if side != "TRL":
            phases = row["phases"]
            assert ("reference" in phases) == (objective in ("DPO", "GRPO"))
            assert row["update_seconds"] == pytest.approx(sum(phases.values()) - phases["rollout"], abs=1e-4)
            assert all(phases[name] > 0 for name in ("rollout", "forward", "backward", "optimiser"))


def test_the_benchmarks_model_has_the_shape_of_llama_3_8b(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = benchmark(monkeypatch)
    name = gpu.write_shape(gpu.SHAPES["llama-3-8b"], tmp_path / "model")
    with torch.device("meta"):
        base = load_base(PolicyConfig(model=name, dtype="bfloat16"))
    assert sum(p.numel() for p in base.parameters()) == 8_030_261_248  # as published
    assert {(p.dtype, p.requires_grad) for p in base.parameters()} == {(torch.bfloat16, False)}
    assert base.config.rope_parameters["rope_theta"] == 500000.0
    tokenizer = load_tokenizer(PolicyConfig(model=name))
    assert len(tokenizer) == base.config.vocab_size
    assert tokenizer.decode([300, 128255]) == " w300 w128255"  # whatever is sampled is a text that can be rated


def test_the_benchmark_has_the_lengths_that_it_documents(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A failed objective or one that is too big is an error; other results are kept, and what is left out is named."""
    gpu = benchmark(monkeypatch)
    model = gpu.write_shape(gpu.SHAPES["tiny"], tmp_path / "model")
    policy_module = gpu.objectives(gpu.SHAPES["tiny"], model)["SFT"]()
    trainer(tmp_path, max_steps=0).fit(policy_module, gpu.Rows(3))
    sequences = [policy_module.example(gpu.record(i)).sequences[0] for i in range(32)]
    assert all(150 <= len(s.prompt) <= 190 and 200 <= len(s.completion) <= 256 for s in sequences)

    def measure(make: Any, batch_size: int, *args: Any) -> tuple[dict[str, Any], None]:
        if make.func is DPO:
            raise RuntimeError("out of memory")
        return {"peak_gb": 81.0 if make.func is GRPO else 20.0}, None

    monkeypatch.setattr(gpu, "measure", measure)
    monkeypatch.setattr(gpu, "line", str)
    with pytest.raises(SystemExit, match=r"DPO \(lovec\) failed, .*GRPO took 81\.0 GB; expected"):
        gpu.main(["--shape", "tiny", "--device", "cpu", "--out", str(tmp_path / "gpu.json")])
    rows = json.loads((tmp_path / "gpu.json").read_text())["rows"]
    assert rows[2] == {"objective": "DPO", "side": "lovec", "failed": "RuntimeError: out of memory"}
    assert [row.get("peak_gb") for row in rows] == [20.0, 20.0, None, None, 81.0, 81.0, 20.0, 20.0]
    gpu.main(["--shape", "tiny", "--device", "cpu", "--minutes", "0", "--out", str(tmp_path / "gpu.json")])
    rows = json.loads((tmp_path / "gpu.json").read_text())["rows"]
    assert len(rows) == 8 and {row["skipped"] for row in rows} == {"0 minutes are over"}
