"""The training loop: exact normalisers, start-of-run reference, checkpoints, results, bad flags."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import pytest
import torch
from lightning.fabric.plugins.precision.precision import _PRECISION_INPUT_STR
from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from peft.tuners.tuners_utils import BaseTunerLayer
from tinyrun import Lengths, Rows, check_same_gradients, fit, loaded, module, records, sft_adapter, trainer
from torch import Tensor

from lovec.core.randomness import seeded
from lovec.datasets.jsonl import read_records
from lovec.datasets.pairs import with_rejected
from lovec.metrics.results import read_results
from lovec.modules import (
    DPO,
    ORPO,
    SFT,
    Batch,
    EvaluationConfig,
    ExpectedReward,
    PolicyConfig,
    PreferenceModule,
    SFTRegression,
    WarmupCosine,
)
from lovec.modules.batching import micro_batches
from lovec.modules.checks import check_trainer
from lovec.policy import Policy, is_adapter
from lovec.policy.checkpoints import read_checkpoint
from lovec.types import LossOutput, LovecError, Record, Sentence, Term


class IPO(PreferenceModule):
    """A user's own objective."""

    def __init__(self, tau: float = 0.1, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.tau = tau

    def preference_loss(self, chosen: Tensor, rejected: Tensor, ref_chosen: Tensor, ref_rejected: Tensor) -> Tensor:
        margin = (chosen - ref_chosen) - (rejected - ref_rejected)
        return (margin - 1 / (2 * self.tau)) ** 2


@pytest.mark.parametrize(("cls", "options"), [(SFT, {}), (DPO, {}), (DPO, {"sft_weight": 0.5}), (IPO, {}), (ORPO, {})])
def test_ragged_micro_batches_equal_one_batch(
    cls: type, options: dict[str, Any], model: str, adapter: str, tmp_path: Path
) -> None:
    # SGD and small steps: Adam's first steps turn rounding in a small gradient into a step of full size, and where a
    # loss is steep, as IPO's is, a large step multiplies the rounding of the gradient before.
    steps: dict[str, Any] = {"sgd": True, "lr": 1e-3}
    whole = fit(tmp_path, module(cls, model, adapter, micro_batch_tokens=10**6, **steps, **options), max_steps=2)
    parts = fit(tmp_path, module(cls, model, adapter, micro_batch_tokens=300, **steps, **options), max_steps=2)
    objective = module(cls, model, adapter, **options)
    trainer(tmp_path, max_steps=0).fit(objective, Rows())
    assert len(micro_batches([objective.example(row) for row in records(4)], 300, True)) > 2
    check_same_gradients(whole, parts)
    for expected, logged in zip(whole.logged, parts.logged, strict=True):
        assert expected.keys() == logged.keys()
        # Rewards and margins are differences of log-probabilities, and have their float32 rounding.
        rounding = 1e-6 * max(1.0, -expected.get("train/rejected_logps", 0.0))
        for name, value in expected.items():
            assert logged[name] == pytest.approx(value, rel=1e-5, abs=rounding), name


def test_a_mean_of_means_would_be_noticed(model: str, tmp_path: Path) -> None:
    """The equality above can fail: the naive normaliser is off by far more than its bound."""

    class Naive(SFT):
        def _total(self, out: LossOutput, counts: Any) -> Tensor:
            term = out.terms["nll"]
            return (term.values * term.mask).sum().double() / term.mask.sum() / 4

    exact = fit(tmp_path, module(SFT, model, micro_batch_tokens=1), max_steps=1).gradients[0]
    naive = fit(tmp_path, module(Naive, model, micro_batch_tokens=1), max_steps=1).gradients[0]
    assert (exact - naive).norm() / exact.norm() > 1e-2


@pytest.mark.parametrize("continued", [False, True])
def test_dpo_starts_at_ln_2(continued: bool, model: str, adapter: str, tmp_path: Path) -> None:
    run = fit(tmp_path, module(DPO, model, adapter if continued else None), max_epochs=6)
    assert run.logged[0]["train/loss"] == pytest.approx(math.log(2), abs=1e-12)
    assert run.logged[0]["train/margin"] == 0.0
    assert run.logged[-1]["train/loss"] < 0.6
    assert run.logged[-1]["train/margin"] > 0


def test_logged_rewards_are_those_of_the_loss(model: str, adapter: str, tmp_path: Path) -> None:
    run = fit(tmp_path, module(DPO, model, adapter, beta=0.3), Rows(batch_size=1), max_steps=5)
    for logged in run.logged:
        margin = logged["train/chosen_reward"] - logged["train/rejected_reward"]
        assert logged["train/margin"] == pytest.approx(margin, abs=1e-9)
        assert logged["train/loss"] == pytest.approx(math.log1p(math.exp(-margin)), rel=1e-9)
    assert abs(run.logged[-1]["train/margin"]) > 1e-3


def test_averaged_log_probs_are_per_token(model: str, adapter: str, tmp_path: Path) -> None:
    class Averaged(IPO):
        average_logps = True
        needs_reference = False

    summed = fit(tmp_path, module(IPO, model, adapter), Rows(1, batch_size=1), max_steps=1).logged[0]
    objective = module(Averaged, model, adapter)
    mean = fit(tmp_path, objective, Rows(1, batch_size=1), max_steps=1).logged[0]
    sequences = objective.example(Rows(1).load("train")[0]).sequences
    for side, sequence in zip(("chosen", "rejected"), sequences, strict=True):
        total = len(sequence.completion) * mean[f"train/{side}_logps"]
        assert total == pytest.approx(summed[f"train/{side}_logps"], rel=1e-6)
        assert mean[f"train/{side}_reward"] == pytest.approx(mean[f"train/{side}_logps"])  # no reference to take off


def test_orpo_needs_no_reference_and_learns(model: str, adapter: str, tmp_path: Path) -> None:
    objective = module(ORPO, model, adapter, odds_weight=0.2)
    run = fit(tmp_path, objective, max_epochs=6)
    assert not objective.policy.continued
    first, last = run.logged[0], run.logged[-1]
    assert first["train/loss"] == pytest.approx(first["train/preference"] + first["train/sft"], rel=1e-6)
    assert 0 < first["train/preference"] < 0.2 * 2 * math.log(2)
    assert last["train/sft"] < first["train/sft"]
    epochs = [run.logged[:3], run.logged[-3:]]  # each holds all rows once
    before, after = ({k: sum(d[k] for d in epoch) / 3 for k in epoch[0]} for epoch in epochs)
    assert after["train/preference"] < before["train/preference"]
    assert after["train/accuracy"] > 0.5 and after["train/margin"] > 0


def test_orpo_without_its_terms_is_sft(model: str, adapter: str, tmp_path: Path) -> None:
    """The SFT term is the completion's, per token: without the odds the gradient is that of SFT."""
    pair = fit(tmp_path, module(ORPO, model, adapter, odds_weight=0.0), max_steps=1)
    alone = fit(tmp_path, module(SFT, model, adapter), max_steps=1)
    torch.testing.assert_close(pair.gradients[0], alone.gradients[0], rtol=1e-4, atol=1e-6)
    assert pair.logged[0]["train/sft"] == pytest.approx(alone.logged[0]["train/nll"], rel=1e-5)


def test_ipo_of_a_users_file_starts_at_its_value(model: str, adapter: str, tmp_path: Path) -> None:
    run = fit(tmp_path, module(IPO, model, adapter, tau=0.5), max_steps=1)
    assert run.logged[0]["train/loss"] == pytest.approx(1.0)


def test_sft_learns_the_format(model: str, tmp_path: Path) -> None:
    run = fit(tmp_path, module(SFT, model, lr=2e-2), max_epochs=8)
    assert run.logged[-1]["train/nll"] < 0.8 * run.logged[0]["train/nll"]


def test_training_ids_are_prompt_and_tagged_sentences(model: str, tmp_path: Path) -> None:
    objective = module(SFT, model)
    trainer(tmp_path, max_steps=0).fit(objective, Rows())
    row = records(3)[2]
    sequence = objective.example(row).sequences[0]
    text = objective.encoder.tokenizer.decode(sequence.prompt + sequence.completion)
    assert text.count("<|begin_of_text|>") == 1
    assert text.count("Rate each sentence.") == 1
    expected = " ".join(f"{s.text} <confidence> {round(10 * s.factuality)} </confidence>" for s in row.sentences)  # type: ignore[operator]
    assert text.endswith(f"<|start_header_id|>assistant<|end_header_id|>\n\n{expected}<|eot_id|>")


def test_other_tag_words_are_trained_and_read(model: str, tmp_path: Path) -> None:
    policy = PolicyConfig(model=model, lora_r=4, instruction="Say [sure X ].", tag_words=("[sure", "]"))
    objective = module(SFT, model, policy=policy)
    trainer(tmp_path, limit_val_batches=1.0).fit(objective, Rows())
    row = records(1)[0]
    ids = objective.example(row).sequences[0]
    assert "Say [sure X ]." in objective.encoder.decode(ids.prompt)
    assert objective.encoder.decode(ids.completion).startswith(f"{row.sentences[0].text} [sure ")
    tagged = objective.evaluator.taggers["iterative"].tag([row])[0]
    assert sum(tagged.sentences[0].distribution) > 0  # type: ignore[arg-type]


def test_long_rows_are_cut_alike_on_both_sides_and_hopeless_ones_named(
    model: str, adapter: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    objective = module(DPO, model, policy=PolicyConfig(model=model, adapter=adapter, max_length=190))
    trainer(tmp_path, max_steps=0).fit(objective, Rows())
    row = next(r for r in records(12) if len(r.sentences) == 3)
    long = replace(row, sentences=tuple(replace(s, text=s.text + "x" * 20) for s in row.sentences))
    example = objective.example(long)
    objective.check_rows([long])
    assert "their last sentences are cut: " in caplog.text and row.id in objective._shortened.ids
    ends = [sequence.completion[-1] == objective.encoder.end_id for sequence in example.sequences]
    assert ends == [False, False]  # the answer goes on where it was cut
    texts = [objective.encoder.decode(s.completion) for s in example.sequences]
    assert texts[0].count("</confidence>") == texts[1].count("</confidence>") == len(example.record.sentences) < 3
    with pytest.raises(LovecError, match=f"{row.id}: prompt and first sentence are longer"):
        objective.example(replace(row, question="q" * 400))


@pytest.mark.parametrize("cls", [SFT, DPO, SFTRegression])
def test_a_row_that_is_far_too_long_is_encoded_a_few_times(cls: type, model: str, tmp_path: Path) -> None:
    """As many sentences are kept as a search from the end would keep."""
    objective = loaded(tmp_path, module(cls, model, policy=PolicyConfig(model=model, lora_r=4, max_length=400)))
    encode, encoded = objective.encode, []
    objective.encode = lambda row: (encoded.append(row), encode(row))[1]
    kept = []
    for n in (1, 2, 3, 4, 5, 6, 7, 8, 9, 300):
        sentences = tuple(Sentence(f"Ada wrote note {i}.", factuality=i % 11 / 10) for i in range(n))
        example = objective.example(row := with_rejected(Record("a", "Who is Ada?", sentences=sentences), 0))
        assert len(encoded) <= math.log2(n) + 2
        kept.append(len(example.record.sentences))
        assert max(map(len, example.sequences)) <= 400 and example.record.sentences == sentences[: kept[-1]]
        if kept[-1] < n:
            more = replace(row, sentences=sentences[: kept[-1] + 1], rejected=row.rejected[: kept[-1] + 1])
            assert max(map(len, encode(replace(more, meta={"finished": False})).sequences)) > 400
        encoded.clear()
    assert 1 < kept[-1] < 9 and kept == [min(n, kept[-1]) for n in (1, 2, 3, 4, 5, 6, 7, 8, 9, 300)]


def test_a_row_with_a_source_keeps_as_many_sentences_as_fit(model: str, tmp_path: Path) -> None:
    """A long source is cut by the sentences: with three of them, the row is shorter than with one."""
    prompts = {"instruction": "Rate.", "grounded": True, "evidence_tokens": 2000, "grounding": "Source: {evidence}"}
    policy = PolicyConfig(model=model, lora_r=4, max_length=1400, **prompts)  # type: ignore[arg-type]
    objective = loaded(tmp_path, module(SFT, model, policy=policy))
    source = "\n".join([*(" ".join([word] * 50) for word in ("aa", "bb", "cc", "dd")), " ".join(["zzzzzzz"] * 100)])
    lengths = []
    for first in ("aa " * 215, "aa " * 245):
        texts = (f"{first}.", "aa " * 18 + ".", "zzzzzzz.", "aa " * 200 + ".")
        row = Record("r", "Who?", evidence=(source,), sentences=tuple(Sentence(text, factuality=1.0) for text in texts))
        begun = (replace(row, sentences=row.sentences[:n], meta={"finished": False}) for n in (1, 2, 3, 4))
        lengths.append([len(objective.encode(part).sequences[0]) for part in begun])
        [sequence] = objective.example(row).sequences
        assert objective.encoder.decode(sequence.completion).count("</confidence>") == 3
        assert len(sequence) == lengths[-1][2] <= 1400
    assert [[length <= 1400 for length in row] for row in lengths] == [
        [True, False, True, False],
        [False, False, True, False],
    ]


def test_an_objective_with_a_wrong_mask_is_refused(model: str, tmp_path: Path) -> None:
    class Forgetful(SFT):
        def loss(self, batch: Batch) -> LossOutput:
            out = super().loss(batch)
            mask = batch.tokens.mask.clone()
            mask[:, 0] = 0
            return LossOutput({"nll": replace(out.terms["nll"], mask=mask)})

    class Unknown(SFT):
        def loss(self, batch: Batch) -> LossOutput:
            return LossOutput({"nll": Term(super().loss(batch).terms["nll"].values, batch.tokens.mask, per="word")})

    with pytest.raises(LovecError, match=r"the mask of the term 'nll' counts .* tokens, but the batch holds"):
        fit(tmp_path, module(Forgetful, model), max_steps=1)
    with pytest.raises(LovecError, match="'nll' is counted per 'word'"):
        fit(tmp_path, module(Unknown, model), max_steps=1)


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ({"accumulate_grad_batches": 2}, "use data.batch_size"),
        ({"gradient_clip_val": 1.0}, "use model.grad_norm"),
        ({"precision": "bf16-true"}, "use 32-true or bf16-mixed"),
        (
            {"val_check_interval": 0},
            "val_check_interval is 0, expected at least 1; trainer.limit_val_batches 0 makes no",
        ),
        ({"val_check_interval": 4, "limit_val_batches": 1}, "is 4, but an epoch has 3 batches; give at most as many"),
        (
            {"val_check_interval": 2, "limit_val_batches": 1, "limit_train_batches": 1},
            "is 2, but an epoch has 1 batch;",
        ),
        ({"overfit_batches": 1}, "give data of these few records alone"),
    ],
)
def test_trainer_flags_that_mean_something_else_are_refused(flags: dict[str, Any], words: str, tmp_path: Path) -> None:
    with pytest.raises(LovecError, match=words):  # before a model is looked for
        trainer(tmp_path, **flags).fit(module(SFT, str(tmp_path / "none")), Rows())


@pytest.mark.parametrize("precision", get_args(_PRECISION_INPUT_STR))
def test_a_precision_is_one_that_leaves_adapters_in_float32(precision: str, tmp_path: Path) -> None:
    ours = trainer(tmp_path)
    refused = nullcontext() if precision in ("32-true", "bf16-mixed") else pytest.raises(LovecError, match=precision)
    with pytest.MonkeyPatch.context() as patch, refused:
        patch.setattr(Trainer, "precision", precision)  # many need a GPU, or a package of their own
        check_trainer(ours)


def test_bf16_mixed_trains(model: str, tmp_path: Path) -> None:
    objective = module(SFT, model, policy=PolicyConfig(model=model, lora_r=4, dtype="bfloat16"), lr=2e-2)
    run = fit(tmp_path, objective, precision="bf16-mixed", max_epochs=4)
    assert run.logged[-1]["train/nll"] < run.logged[0]["train/nll"]
    assert {p.dtype for p in objective.policy.trainable()} == {torch.float32}


@pytest.fixture
def casts(monkeypatch: pytest.MonkeyPatch) -> list[torch.dtype]:
    """The types that PEFT has cast inputs of an adapter's layers to."""
    done: list[torch.dtype] = []
    cast = BaseTunerLayer._cast_input_dtype

    def watched(layer: Any, x: Tensor, dtype: torch.dtype) -> Tensor:
        found = cast(layer, x, dtype)
        if found is not x:
            done.append(dtype)
        return found

    monkeypatch.setattr(BaseTunerLayer, "_cast_input_dtype", watched)
    return done


def trained_in_bf16(cls: type, folder: Path, policy: PolicyConfig, **options: Any) -> list[Tensor]:
    """The weights after three steps under autocast."""
    objective = module(cls, policy.model, policy=policy)
    fit(folder, objective, max_steps=3, precision="bf16-mixed", **options)
    return [p.detach().clone() for p in objective.policy.trainable()]


@pytest.mark.parametrize("checkpointing", [False, True])
def test_casts_that_autocast_undoes_are_left_out(
    checkpointing: bool,
    casts: list[torch.dtype],
    model: str,
    adapter: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    policy = PolicyConfig(model=model, adapter=adapter, dtype="bfloat16", gradient_checkpointing=checkpointing)
    ours = trained_in_bf16(DPO, tmp_path, policy, limit_val_batches=1)
    assert not casts
    monkeypatch.setattr(Policy, "without_casts", lambda _: nullcontext())
    assert all(map(torch.equal, ours, trained_in_bf16(DPO, tmp_path, policy))) and casts


def test_dropout_gets_its_input_cast(
    casts: list[torch.dtype], model: str, adapter: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = PolicyConfig(model=model, adapter=adapter, dtype="bfloat16", lora_dropout=0.1)
    ours = trained_in_bf16(SFT, tmp_path, policy)
    assert casts
    monkeypatch.setattr(Policy, "without_casts", lambda _: nullcontext())
    assert all(map(torch.equal, ours, trained_in_bf16(SFT, tmp_path, policy)))


def test_without_autocast_inputs_are_cast(casts: list[torch.dtype], model: str, tmp_path: Path) -> None:
    objective = module(SFT, model, policy=PolicyConfig(model=model, lora_r=4, dtype="bfloat16"))
    assert fit(tmp_path, objective, max_steps=1).logged and casts
    layers = [layer for layer in objective.policy.peft.modules() if isinstance(layer, BaseTunerLayer)]

    def casting() -> set[bool]:
        return {getattr(layer, "cast_input_dtype_enabled", True) for layer in layers}

    with objective.policy.without_casts():
        assert casting() == {True}
    with torch.autocast("cpu", dtype=torch.bfloat16), objective.policy.without_casts():
        assert casting() == {False}
    assert casting() == {True}


def test_an_infinite_loss_is_named(model: str, tmp_path: Path) -> None:
    class Broken(SFT):
        def loss(self, batch: Batch) -> LossOutput:
            term = super().loss(batch).terms["nll"]
            return LossOutput({"nll": replace(term, values=term.values * float("inf"))})

    with pytest.raises(LovecError, match=r"the loss is .* at step 0, because of the term 'nll' over the records r"):
        fit(tmp_path, module(Broken, model), max_steps=1)


def test_checkpoints_contain_adapters_only(model: str, adapter: str, tmp_path: Path) -> None:
    from lightning.pytorch.callbacks import ModelCheckpoint

    objective = module(DPO, model, adapter)
    callback = ModelCheckpoint(dirpath=tmp_path / "ck", every_n_train_steps=2, save_top_k=-1)
    fit(tmp_path, objective, enable_checkpointing=True, callbacks=[callback])
    path = next((tmp_path / "ck").iterdir())
    checkpoint = read_checkpoint(path)
    assert checkpoint["lovec"]["reference"] is True
    names = set(checkpoint["state_dict"])
    assert names and all(is_adapter(name) for name in names)
    assert {name.split(".")[-2] for name in names} == {"default", "reference"}
    checkpoint["state_dict"].pop(sorted(names)[0])
    torch.save(checkpoint, tmp_path / "short.ckpt")
    with pytest.raises(LovecError, match="1 adapter weights are missing"):
        trainer(tmp_path).fit(module(DPO, model, adapter), Rows(), ckpt_path=tmp_path / "short.ckpt")
    torch.save({"state_dict": {}}, tmp_path / "other.ckpt")
    with pytest.raises(LovecError, match="but not of lovec"):
        read_checkpoint(tmp_path / "other.ckpt")
    (tmp_path / "half.ckpt").write_bytes(path.read_bytes()[:1000])
    with pytest.raises(LovecError, match="not a readable checkpoint"):
        read_checkpoint(tmp_path / "half.ckpt")
    with pytest.raises(LovecError, match="there is no checkpoint"):
        read_checkpoint(tmp_path / "none.ckpt")


def test_seeded_streams_depend_on_the_key_alone() -> None:
    outer = torch.get_rng_state()
    with seeded(1, 2, 3):
        first = torch.rand(2)
    assert torch.equal(outer, torch.get_rng_state())
    torch.rand(5)
    with seeded(1, 2, 3):
        assert torch.equal(first, torch.rand(2))
    with seeded(1, 3, 3):
        assert not torch.equal(first, torch.rand(2))


def test_warmup_cosine_rises_and_falls() -> None:
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=2.0)
    schedule = WarmupCosine(optimizer, warmup=0.2)
    schedule.set_total_steps(10)
    rates = []
    for _ in range(10):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
    assert rates[:3] == pytest.approx([2 / 3, 4 / 3, 2.0])
    assert rates[6] == pytest.approx(1.0)
    assert rates[2:] == sorted(rates[2:], reverse=True)
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.0, abs=1e-12)


@pytest.mark.parametrize("length", [10, 20])
def test_a_run_that_goes_on_has_the_rate_that_its_length_gives_the_step(length: int) -> None:
    def run(steps: int, length: int, saved: Any = None) -> tuple[list[float], Any]:
        optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1)
        schedule = WarmupCosine(optimizer, warmup=0.2)
        schedule.set_total_steps(length)
        if saved is not None:
            for part, state in zip((optimizer, schedule), saved, strict=True):
                part.load_state_dict(state)
        rates = []
        for _ in range(steps):
            rates.append(optimizer.param_groups[0]["lr"])
            optimizer.step()
            schedule.step()
        return rates, (optimizer.state_dict(), schedule.state_dict())

    _, saved = run(4, 10)
    assert run(length - 4, length, saved)[0] == run(length, length)[0][4:]


def test_weights_of_terms_clipping_and_noise(model: str, adapter: str, tmp_path: Path) -> None:
    first = fit(tmp_path, module(DPO, model, adapter, sft_weight=0.5), max_steps=1).logged[0]
    expected = first["train/preference"] + 0.5 * first["train/sft"]
    assert first["train/loss"] == pytest.approx(expected, rel=1e-6)

    objective = module(SFT, model, adapter, lr=1.0, sgd=True, grad_norm=1e-3)
    trainer(tmp_path, max_steps=0).fit(objective, Rows())
    before = [p.detach().clone() for p in objective.policy.trainable()]
    fit(tmp_path, objective, max_steps=1)
    moved = sum(float(((a - b) ** 2).sum()) for a, b in zip(before, objective.policy.trainable(), strict=True)) ** 0.5
    assert moved == pytest.approx(1e-3, rel=1e-2)

    seen: list[float] = []

    class Noisy(SFT):
        def loss(self, batch: Batch) -> LossOutput:
            seen.append(float(torch.rand(())))
            return super().loss(batch)

    fit(tmp_path, module(Noisy, model, micro_batch_tokens=10**6), max_steps=3)
    assert len(set(seen)) == 3
    fit(tmp_path, module(Noisy, model, micro_batch_tokens=10**6), max_steps=3)
    assert seen[3:] == seen[:3]


def test_the_schedule_reaches_the_optimiser_and_a_longer_resume(model: str, tmp_path: Path) -> None:
    from lightning.pytorch.callbacks import ModelCheckpoint

    objective = module(SFT, model, lr_scheduler=WarmupCosine)
    saver = ModelCheckpoint(dirpath=tmp_path / "ck", every_n_train_steps=1)
    run = trainer(tmp_path, enable_checkpointing=True, callbacks=[saver])
    run.fit(objective, Rows())
    assert run.optimizers[0].param_groups[0]["lr"] == pytest.approx(0.0, abs=1e-9)
    rates: list[float] = []

    class Watch(SFT):
        def loss(self, batch: Batch) -> LossOutput:
            rates.append(self.trainer.optimizers[0].param_groups[0]["lr"])
            return super().loss(batch)

    longer = module(Watch, model, lr_scheduler=WarmupCosine, micro_batch_tokens=10**6)
    longer.ckpt_despite = frozenset({"objective"})  # a subclass might have another loss
    trainer(tmp_path, max_epochs=3).fit(longer, Rows(), ckpt_path=saver.best_model_path)
    assert len(rates) == 6 and min(rates) > 1e-4
    whole = module(Watch, model, lr_scheduler=WarmupCosine, micro_batch_tokens=10**6)
    trainer(tmp_path, max_epochs=3).fit(whole, Rows())
    assert rates[:6] == rates[9:]
    with pytest.raises(LovecError, match="needs the length of the run"):
        trainer(tmp_path, max_epochs=-1).fit(module(SFT, model, lr_scheduler=WarmupCosine), Rows())


@pytest.mark.parametrize(
    "saver", [{"every_n_train_steps": 100}, {"every_n_epochs": 1, "save_on_train_epoch_end": True}]
)
@pytest.mark.parametrize("lengths", [(3, 5, 6), (9, 13), (7, 10)])  # 7 steps are an epoch
def test_a_run_that_ended_inside_an_epoch_is_lengthened(
    lengths: tuple[int, ...], saver: dict[str, Any], model: str, tmp_path: Path
) -> None:
    def trained(folder: Path, length: int, ckpt: str | None) -> tuple[int, list[Tensor]]:
        torch.manual_seed(0)  # of the fresh adapter
        objective = module(SFT, model)
        last = ModelCheckpoint(dirpath=folder, save_last=True, enable_version_counter=False, **saver)
        run = trainer(folder, max_epochs=2, max_steps=length, enable_checkpointing=True, callbacks=[last])
        run.fit(objective, Rows(28), ckpt_path=ckpt)
        return run.global_step, [weight.detach() for weight in objective.policy.trainable()]

    _, whole = trained(tmp_path / "whole", lengths[-1], None)
    for length, ckpt in zip(lengths, (None, *(str(tmp_path / "cut" / "last.ckpt"),) * len(lengths)), strict=False):
        steps, cut = trained(tmp_path / "cut", length, ckpt)
        assert steps == length
    assert all(torch.equal(a, b) for a, b in zip(whole, cut, strict=True))


def test_a_schedule_with_a_length_of_its_own_keeps_it(model: str, tmp_path: Path) -> None:
    def schedule(optimizer: torch.optim.Optimizer) -> WarmupCosine:
        return WarmupCosine(optimizer, warmup=0.0, total_steps=100)

    run = trainer(tmp_path, max_steps=2)
    run.fit(module(SFT, model, lr=0.01, lr_scheduler=schedule), Rows())
    rate = run.optimizers[0].param_groups[0]["lr"]
    assert rate == pytest.approx(0.005 * (1 + math.cos(math.pi * 2 / 100)), rel=1e-6)


def test_validation_logs_the_first_domain_and_a_test_every_one(model: str, tmp_path: Path) -> None:
    class Half(Rows):
        """Even rows are true and of domain 3, odd ones false and of a domain with a dot."""

        def load(self, split: str) -> list[Record]:
            rows = []
            for i, row in enumerate(super().load(split)):
                truth = 0.0 if i % 2 else 1.0
                sentences = tuple(replace(s, factuality=truth) for s in row.sentences)
                rows.append(replace(row, sentences=sentences, meta={"domain": "en.wiki" if i % 2 else 3}))
            return rows

    objective = module(SFT, model)
    run = trainer(tmp_path, limit_val_batches=1.0)
    run.fit(objective, Half())
    assert float(run.callback_metrics["val/mean_factuality"]) == 1.0
    trainer(tmp_path).test(objective, Half(), verbose=False)
    means = {(row.method, row.domain): row.metrics["mean_factuality"] for row in objective.results}
    assert means["SFT", "3"] == 1.0 and means["SFT", "en.wiki"] == 0.0
    with pytest.raises(LovecError, match="free-form answers need an oracle"):
        alone = module(SFT, model)
        alone.evaluation.modes = ["free-form"]
        trainer(tmp_path).test(alone, Half())


def test_an_oracle_judges_every_method_in_the_precision_of_the_test(model: str, tmp_path: Path) -> None:
    """Labels of the method are made within Lightning's step, those of the base model after all steps."""

    class Watching(Lengths):
        def rate(self, records: Sequence[Record]) -> list[list[float | None]]:
            seen.append(torch.is_autocast_enabled("cpu"))
            return super().rate(records)

    seen: list[bool] = []
    evaluation = EvaluationConfig(max_new_tokens=8, rows=8, modes=["free-form"], adapter=sft_adapter(tmp_path, model))
    objective = module(SFT, model, oracle=Watching(), evaluation=evaluation)
    trainer(tmp_path, precision="bf16-mixed").test(objective, Rows(), verbose=False)
    assert len(seen) > 1 and all(seen)


def test_the_constant_comes_from_validation_and_labels_from_the_oracle(
    model: str, adapter: str, tmp_path: Path
) -> None:
    class Doubtful(Rows):
        def load(self, split: str) -> list[Record]:
            rows = super().load(split)
            if split == "validation":
                rows = [replace(r, sentences=tuple(replace(s, factuality=0.0) for s in r.sentences)) for r in rows]
            return rows

    class Third:
        def rate(self, records: Sequence[Record]) -> list[list[float | None]]:
            return [[0.3] * len(record.sentences) for record in records]

    objective = module(SFT, model, oracle=Third(), policy=PolicyConfig(model=model, adapter="nowhere", lora_r=4))
    objective.evaluation.adapter = adapter  # the run's own, or this one; never the one training starts from
    trainer(tmp_path).test(objective, Doubtful(), verbose=False)
    constant = list(read_records(tmp_path / "test" / "rows" / "best-constant.iterative.jsonl"))
    assert {s.score for record in constant for s in record.sentences} == {0}
    free = list(read_records(tmp_path / "test" / "rows" / "sft.free-form.jsonl"))
    assert {s.factuality for record in free for s in record.sentences} == {0.3}


def test_results_and_tagged_records_of_a_test(model: str, tmp_path: Path) -> None:
    objective = module(SFT, model)
    rows = Rows()
    trainer(tmp_path, limit_val_batches=1).fit(objective, rows)
    fresh = module(SFT, model)
    run = trainer(tmp_path)
    run.test(fresh, rows, verbose=False)
    results = read_results(tmp_path / "test" / "rows" / "results.json").rows
    assert results == tuple(fresh.results)
    assert {row.method for row in results} == {"SFT", "Vanilla", "Best constant"}
    assert all({"brier", "ece_m", "spearman", "malformed"} <= row.metrics.keys() for row in results)
    tagged = list(read_records(tmp_path / "test" / "rows" / "sft.iterative.jsonl"))
    assert [r.id for r in tagged] == [r.id for r in rows.load("test")]
    assert all(s.score in range(11) and len(s.distribution or ()) == 11 for r in tagged for s in r.sentences)
    row = next(r for r in results if (r.method, r.level, r.readout) == ("SFT", "sentence", "stated"))
    gaps = [(s.score / 10 - s.factuality) ** 2 for r in tagged for s in r.sentences]  # type: ignore[operator]
    assert row.metrics["brier"] == pytest.approx(sum(gaps) / len(gaps)) and row.n == len(gaps)
    vanilla = list(read_records(tmp_path / "test" / "rows" / "vanilla.iterative.jsonl"))
    assert [s.distribution for r in vanilla for s in r.sentences] != [
        s.distribution for r in tagged for s in r.sentences
    ]


def test_predictions_are_written_in_order(model: str, adapter: str, tmp_path: Path) -> None:
    class Mixed(Rows):
        def load(self, split: str) -> list[Record]:
            rows = super().load(split)
            return [replace(row, sentences=(), answer="") if i % 2 else row for i, row in enumerate(rows)]

    objective = module(SFT, model)
    objective.evaluation.adapter = adapter
    trainer(tmp_path).predict(objective, Mixed())
    tagged = list(read_records(tmp_path / "predictions" / "rows.jsonl"))
    questions = Mixed().load("test")
    assert [r.id for r in tagged] == [r.id for r in questions]
    assert [s.text for s in tagged[0].sentences] == [s.text for s in questions[0].sentences]
    assert all(s.score is not None for s in tagged[0].sentences)
    assert tagged[1].meta["finished"] in (True, False) and tagged[1].answer  # written by the model


def test_predictions_of_records_that_share_an_id_are_all_there(model: str, adapter: str, tmp_path: Path) -> None:
    class Alike(Rows):
        def load(self, split: str) -> list[Record]:
            return [replace(row, id="x") for row in super().load(split)]

    objective = module(SFT, model)
    objective.evaluation.adapter = adapter
    (found,) = trainer(tmp_path).predict(objective, Alike())
    texts = [[s.text for s in row.sentences] for row in Alike().load("test")]
    assert [[s["text"] for s in row["sentences"]] for row in found] == texts
    assert len((tmp_path / "predictions" / "rows.jsonl").read_text().splitlines()) == len(texts)


def test_a_checkpoint_is_enough_for_a_test_from_python(model: str, adapter: str, tmp_path: Path) -> None:
    """Lightning names the checkpoint only after the model is built; the shape then comes from the checkpoint."""
    from lightning.pytorch.callbacks import ModelCheckpoint

    objective = module(DPO, model, adapter)
    callback = ModelCheckpoint(dirpath=tmp_path / "ck", every_n_train_steps=1)
    trainer(tmp_path, enable_checkpointing=True, callbacks=[callback]).fit(objective, Rows())
    fresh = module(DPO, model, adapter, policy=PolicyConfig(model=model, lora_r=2))
    fresh.needs_reference = False
    trainer(tmp_path).test(fresh, Rows(), ckpt_path=callback.best_model_path, verbose=False)
    for a, b in zip(objective.policy.trainable(), fresh.policy.trainable(), strict=True):
        assert torch.equal(a, b)


def test_a_run_without_an_adapter_is_one_clear_line(model: str, tmp_path: Path) -> None:
    with pytest.raises(LovecError, match=r"make it with: lovec fit --config dpo\.yaml"):
        trainer(tmp_path / "dpo").test(module(DPO, model), Rows())


def test_rows_without_labels_are_named(model: str, tmp_path: Path) -> None:
    objective = module(SFT, model)
    trainer(tmp_path, max_steps=0).fit(objective, Rows())
    row: Record = records(1)[0]
    bare: Sequence[Any] = tuple(replace(s, factuality=None) for s in row.sentences)
    with pytest.raises(LovecError, match="r0: a sentence has no factuality"):
        objective.example(replace(row, sentences=bare))


@pytest.mark.parametrize("cls", [SFT, DPO, ORPO, SFTRegression, ExpectedReward])
def test_only_whole_answers_teach_to_end(cls: type, model: str, adapter: str, tmp_path: Path) -> None:
    objective = module(cls, model, adapter)
    trainer(tmp_path, limit_train_batches=0).fit(objective, Rows())
    whole = records(1)[0]
    cut = replace(whole, meta={"finished": False})
    end = objective.encoder.end_id
    for one, other in zip(objective.example(whole).sequences, objective.example(cut).sequences, strict=True):
        assert one.completion == (*other.completion, end) and end not in other.completion
