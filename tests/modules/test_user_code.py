"""Objectives and rewards from a user's own file: sequence-level losses, rewards that read the text."""

from __future__ import annotations

import copy
import importlib.util
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from tinyrollouts import Distance, Fixed, advantages_of, grpo, scripted
from tinyrun import Rows, check_loss, fit, loaded, module, records, trainer
from torch import Tensor

from lovec.losses import group_advantages, k3_kl
from lovec.modules import DPO, GRPO, SFT, Batch, ExpectedReward, WarmupCosine
from lovec.policy.checkpoints import read_checkpoint
from lovec.types import LossOutput, LovecError, Record, Term

GSPO = '''
from torch import Tensor, minimum

from lovec.modules import GRPO


class GSPO(GRPO):
    """Group sequence policy optimisation (Zheng et al. 2025, arXiv 2507.18071, eq. 5 to 7): the ratio of a sequence."""

    def token_loss(
        self, token_logps: Tensor, old_token_logps: Tensor, ref_token_logps: None, advantages: Tensor, mask: Tensor
    ) -> Tensor:
        log_ratio = ((token_logps - old_token_logps) * mask).sum(1, keepdim=True) / mask.sum(1, keepdim=True)
        ratio = log_ratio.exp()
        return -minimum(ratio * advantages, ratio.clamp(1 - self.clip_low, 1 + self.clip_high) * advantages)
'''

MENTIONS = '''
from lovec.types import Record


class Mentions:
    """Pays for answers whose text contains a word."""

    def __init__(self, word: str, bonus: float = 5.0) -> None:
        self.word = word
        self.bonus = bonus

    def __call__(self, answer: Record) -> float:
        return self.bonus * (self.word in answer.answer)
'''

ANSWERS = ["Ada was born. <c> 9 </c> She wrote. <c> 2 </c>", "Ada was born. <c> 4 </c>", "No tag at all", ""]


def user_file(folder: Path, text: str) -> ModuleType:
    """A user's file, imported."""
    path = folder / "mine.py"
    path.write_text(text)
    spec = importlib.util.spec_from_file_location("mine", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_gspo_is_ten_lines_and_its_loss_is_that_of_the_paper(model: str, adapter: str, tmp_path: Path) -> None:
    """-1/G sum of min(s A, clip(s) A), s the geometric mean of a sequence's token ratios."""
    cls = user_file(tmp_path, GSPO).GSPO
    gspo = loaded(tmp_path, grpo(model, adapter, cls, beta=0.0, clip_low=0.02, clip_high=0.03, inner_epochs=2))
    examples = gspo.rollouts(records(4))
    batch = Batch.of(examples, gspo.policy.device)
    with torch.no_grad():
        old = gspo.policy.token_logps(batch.tokens, 1.2)
    on_policy = gspo.loss(batch).terms["policy"].values
    advantages = torch.tensor([example.advantages[0] for example in examples])
    torch.testing.assert_close(on_policy.float(), -advantages)
    noise = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for p in gspo.policy.trainable():
            p.add_(0.03 * torch.randn(p.shape, generator=noise))

    logps = gspo.policy.token_logps(batch.tokens, 1.2)
    ratios, losses = [], []
    for i, example in enumerate(examples):
        steps = len(example.sequences[0].completion)
        ratios.append((logps[i, :steps] - old[i, :steps]).mean().exp())
        gains = (ratios[i] * advantages[i], ratios[i].clamp(0.98, 1.03) * advantages[i])
        losses.append(-torch.minimum(*gains))
    expected = torch.stack(losses).mean()
    clipped = torch.stack(losses).detach() != -torch.stack(ratios).detach() * advantages
    assert clipped.any() and not clipped.all()
    check_loss(gspo, examples, expected)
    assert fit(tmp_path, grpo(model, adapter, cls, beta=0.0), max_steps=2).gradients[0].any()


def test_answer_credit_compares_the_whole_batch_in_one_call(model: str, tmp_path: Path) -> None:
    shapes: list[list[int]] = []

    class Watch(GRPO):
        def advantages(self, rewards: Tensor) -> Tensor:
            shapes.append(list(rewards.shape))
            assert rewards.dtype == torch.float64
            return super().advantages(rewards)

    groups = [ANSWERS, ANSWERS[::-1], ANSWERS]
    scripted(tmp_path, model, *groups, cls=Watch, reward=Distance(), oracle=Fixed())
    assert shapes == [[3, 4]]
    shapes.clear()
    groups[1] = [ANSWERS[1]] * 4
    scripted(tmp_path, model, *groups, cls=Watch, reward=Distance(), oracle=Fixed(), credit="sentence")
    assert shapes == [[1, 5], [1, 4], [1, 5]]


def test_a_baseline_over_the_whole_batch_is_possible(model: str, tmp_path: Path) -> None:
    """Advantages against the mean of all answers of the batch, as REINFORCE++ has them."""

    class Global(GRPO):
        def advantages(self, rewards: Tensor) -> Tensor:
            return rewards - rewards.mean()

    groups = [["Ada. <c> 9 </c>", "Ada. <c> 8 </c>"], ["Ada. <c> 3 </c>", "Ada. <c> 4 </c>"]]
    _, examples = scripted(tmp_path, model, *groups, cls=Global, reward=Distance(), oracle=Fixed())
    assert [row[0] for row in advantages_of(examples)] == [3.0, 2.0, -3.0, -2.0]


def test_an_answer_reward_of_a_users_file_reads_the_text_and_is_added_to_the_mean(model: str, tmp_path: Path) -> None:
    mentions = user_file(tmp_path, MENTIONS).Mentions("born")
    options = {"reward": Distance(), "oracle": Fixed(She=0.5), "empty": -60.0}
    _, examples = scripted(tmp_path, model, ANSWERS, answer_reward=mentions, **options)
    rewards = [(-1 - 3) / 2 + 5, -6.0 + 5, -20.0, -60.0]
    assert [example.metrics["reward"] for example in examples] == rewards
    expected = group_advantages(torch.tensor([rewards], dtype=torch.float64))[0].tolist()
    assert [row[0] for row in advantages_of(examples)] == pytest.approx(expected)


def test_an_answer_reward_is_added_to_every_sentence_under_sentence_credit(model: str, tmp_path: Path) -> None:
    mentions = user_file(tmp_path, MENTIONS).Mentions("born", bonus=2.0)
    options = {"reward": Distance(), "oracle": Fixed(She=0.5), "empty": -60.0, "credit": "sentence"}
    module, examples = scripted(tmp_path, model, ANSWERS, answer_reward=mentions, **options)
    pooled = [-1.0 + 2, -3.0 + 2, -6.0 + 2, -20.0, -60.0]
    expected = group_advantages(torch.tensor([pooled], dtype=torch.float64))[0].tolist()
    second = len(module.encoder.pieces("Ada was born. <c> 9 </c>"))
    advantages = advantages_of(examples)
    assert [advantages[0][0], advantages[0][second], *(row[0] for row in advantages[1:])] == pytest.approx(expected)
    assert examples[0].metrics["reward"] == 0.0  # the mean of its sentences, the answer's reward included


def test_an_answer_reward_leaves_answers_without_labels_alone(model: str, tmp_path: Path) -> None:
    mentions = user_file(tmp_path, MENTIONS).Mentions("born")
    answers = ["Who was born? <c> 9 </c>", "Ada was born. <c> 9 </c>", "Ada. <c> 9 </c>"]
    oracle = Fixed(Who=None)
    _, examples = scripted(tmp_path, model, answers, answer_reward=mentions, reward=Distance(), oracle=oracle)
    assert [example.metrics["reward"] for example in examples] == [None, 4.0, -1.0]
    assert advantages_of(examples)[0] == pytest.approx([0.0] * len(advantages_of(examples)[0]))


@pytest.mark.parametrize("credit", ["answer", "sentence"])
def test_an_answer_reward_that_is_not_finite_is_refused_by_name(credit: str, model: str, tmp_path: Path) -> None:
    def broken(answer: Record) -> float:
        return float("inf") if "born" in answer.answer else 0.0

    with pytest.raises(LovecError, match="broken gives inf for an answer to 'r0', expected a finite number"):
        scripted(tmp_path, model, ANSWERS, answer_reward=broken, oracle=Fixed(), credit=credit)


def test_a_loss_changes_nothing_in_its_batch(model: str, adapter: str, tmp_path: Path) -> None:
    """Old log-probs for later inner epochs are kept by the module, and dropped with the next rollouts."""
    module = loaded(tmp_path, grpo(model, adapter, inner_epochs=2))
    examples = module.rollouts(records(2))
    before = copy.deepcopy(examples)
    batch = Batch.of(examples, module.policy.device)
    tensors = {
        name: value.clone() for name in vars(batch.tokens) if isinstance(value := getattr(batch.tokens, name), Tensor)
    }
    module.loss(batch)
    assert examples == before and tensors
    for name, value in tensors.items():
        torch.testing.assert_close(getattr(batch.tokens, name), value, rtol=0, atol=0)
    assert set(module._old_logps) == set(range(6))
    module.rollouts(records(2))
    assert not module._old_logps


class NearStart(SFT):
    """SFT with a KL penalty to the policy that the run started from."""

    def __init__(self, weight: float = 0.1, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.weight = weight

    def loss(self, batch: Batch[Any]) -> LossOutput:
        kl = k3_kl(self.token_logps(batch), self.reference_token_logps(batch))
        terms = super().loss(batch).terms
        return LossOutput({**terms, "kl": Term(kl, batch.tokens.mask, per="token", weight=self.weight)})


def test_the_reference_is_the_start_of_the_run_or_refused(model: str, adapter: str, tmp_path: Path) -> None:
    class Declared(NearStart):
        needs_reference = True

    run = fit(tmp_path, module(Declared, model, adapter), max_steps=2)
    assert run.logged[0]["train/kl"] == 0.0 < run.logged[1]["train/kl"]
    with pytest.raises(LovecError, match=r"NearStart asks for .* set needs_reference = True"):
        fit(tmp_path, module(NearStart, model, adapter), max_steps=1)


class Halves(SFT):
    """Two optimiser steps for a batch of rows."""

    def update_batches(self, rows: Sequence[Record]) -> Iterator[Sequence[Any]]:
        for part in (rows[:2], rows[2:]):
            yield [self.example(row) for row in part]


def test_the_steps_of_a_batch_are_counted_or_refused(model: str, tmp_path: Path) -> None:
    class Declared(Halves):
        updates_per_batch = 2

    run = trainer(tmp_path, max_epochs=2)
    run.fit(module(Declared, model, lr_scheduler=WarmupCosine), Rows())
    assert run.global_step == 12
    assert run.optimizers[0].param_groups[0]["lr"] == pytest.approx(0.0, abs=1e-9)
    with pytest.raises(
        LovecError, match=r"Halves\.update_batches yields more than 1 set of .* set updates_per_batch to"
    ):
        fit(tmp_path, module(Halves, model))
    with pytest.raises(LovecError, match="max_steps is 3, expected a multiple of 2"):
        fit(tmp_path, module(Declared, model), max_steps=3)


def test_parts_of_rollouts_are_compared_with_the_policy_that_sampled_them(
    model: str, adapter: str, tmp_path: Path
) -> None:
    """A step on the second half takes the ratio to the policy before the step on the first, as PPO has it."""
    sampled: dict[int, Tensor] = {}
    compared: list[float] = []

    class Parts(GRPO):
        def __init__(self, **kwargs: Any) -> None:
            super().__init__(**kwargs)
            self.updates_per_batch = 4

        def update_batches(self, rows: Sequence[Record]) -> Iterator[Sequence[Any]]:
            examples = self.rollouts(rows)
            batch = Batch.of(examples, self.device)
            with torch.no_grad():
                logps = self.token_logps(batch, self.loss_temperature)
            sampled.update((example.number, row) for example, row in zip(examples, logps, strict=True))
            yield from (examples[0::2], examples[1::2]) * 2

        def _old_token_logps(self, batch: Batch[Any], token_logps: Tensor) -> Tensor:
            old = super()._old_token_logps(batch, token_logps)
            rows = [sampled[example.number][: old.shape[1]] for example in batch.examples]
            compared.append(max(float((a - b[: len(a)]).abs().max()) for a, b in zip(rows, old, strict=True)))
            return old

    objective = grpo(model, adapter, Parts, lr=5e-2, micro_batch_tokens=60)
    fit(tmp_path, objective, max_steps=8)
    assert len(compared) > 8 and max(compared) < 1e-4


def test_a_batch_may_have_nothing_to_learn_from(model: str, adapter: str, tmp_path: Path) -> None:
    class Dynamic(GRPO):
        """Leaves out groups whose rewards are all equal, as DAPO does."""

        def update_batches(self, rows: Sequence[Record]) -> Iterator[Sequence[Any]]:
            yield [example for example in self.rollouts(rows) if not example.metrics["zero_variance"]]

    class Constant:
        def __call__(self, score: int | None, rating: int) -> float:
            return 1.0

    objective = grpo(model, adapter, Dynamic, reward=Constant())
    run = trainer(tmp_path, max_steps=2)
    run.fit(objective, Rows())
    assert run.global_step == 2
    assert {float(run.callback_metrics[f"train/{name}"]) for name in ("loss", "grad_norm")} == {0.0}


class Margin(DPO):
    """DPO over a margin that is learned, less a running mean."""

    def __init__(self, decay: float = 0.9, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.decay = decay
        self.offset = torch.nn.Parameter(torch.zeros(()))
        self.register_buffer("mean", torch.zeros((), dtype=torch.float64))

    def preference_loss(self, chosen: Tensor, rejected: Tensor, ref_chosen: Tensor, ref_rejected: Tensor) -> Tensor:
        margin = (chosen - ref_chosen) - (rejected - ref_rejected)
        self.mean.lerp_(margin.detach().mean(), 1 - self.decay)
        return -torch.nn.functional.logsigmoid(self.beta * (margin - self.mean) - self.offset)


def test_what_a_subclass_has_of_its_own_is_trained_and_kept(model: str, adapter: str, tmp_path: Path) -> None:
    saver = ModelCheckpoint(dirpath=tmp_path / "ck", filename="half", every_n_train_steps=2)

    def run(steps: int, ckpt: str | None = None, **kwargs: Any) -> Any:
        objective = module(Margin, model, adapter)
        trainer(tmp_path, max_steps=steps, max_epochs=-1, **kwargs).fit(objective, Rows(), ckpt_path=ckpt)
        return objective

    whole = run(4)
    half = run(2, enable_checkpointing=True, callbacks=[saver])
    path = str(tmp_path / "ck" / "half.ckpt")
    assert half.offset != 0 != half.mean
    rest = run(4, path)
    assert torch.equal(whole.mean, rest.mean) and torch.equal(whole.offset, rest.offset)
    assert all(torch.equal(a, b) for a, b in zip(whole.policy.trainable(), rest.policy.trainable(), strict=True))

    checkpoint = read_checkpoint(path)
    del checkpoint["state_dict"]["mean"]
    torch.save(checkpoint, path)
    with pytest.raises(LovecError, match=r"does not fit this module: 1 weights are missing \(mean\)"):
        run(4, path)
    trainer(tmp_path).validate(module(Margin, model, adapter), Rows(), ckpt_path=path)


def test_what_a_module_is_given_is_not_its_own(model: str, adapter: str, tmp_path: Path) -> None:
    class Judge(torch.nn.Module):
        """An oracle with weights."""

        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(2, 2)

        def rate(self, records: Sequence[Record]) -> list[list[float | None]]:
            return [[0.5] * len(record.sentences) for record in records]

    class Both(SFT):
        def __init__(self, **kwargs: Any) -> None:
            super().__init__(**kwargs)
            self.head = torch.nn.Linear(2, 1)
            self.frozen = torch.nn.Linear(2, 1).requires_grad_(False)

    objective = loaded(tmp_path, module(Both, model, adapter, oracle=Judge()))
    assert objective.own_names() == {"head.weight", "head.bias"}
    assert len(objective.trained_parameters()) == len(objective.policy.trainable()) + 2
    assert loaded(tmp_path, module(DPO, model, adapter, oracle=Judge())).own_names() == set()


def test_what_the_measuring_of_a_step_does_to_a_buffer_is_undone(model: str, adapter: str, tmp_path: Path) -> None:
    objective = loaded(tmp_path, module(Margin, model, adapter))
    objective.costs.trial(records(4))
    assert objective.mean == 0 and objective.costs.estimate.rate_guess
    assert all(p.grad is None for p in objective.trained_parameters())


def test_hyperparameters_do_not_make_a_checkpoint_unreadable(model: str, tmp_path: Path) -> None:
    class Saved(SFT):
        def __init__(self, **kwargs: Any) -> None:
            super().__init__(**kwargs)
            self.save_hyperparameters()

    saver = ModelCheckpoint(dirpath=tmp_path / "ck", filename="last", every_n_train_steps=1)
    fit(tmp_path, module(Saved, model), max_steps=1, enable_checkpointing=True, callbacks=[saver])
    assert read_checkpoint(tmp_path / "ck" / "last.ckpt")["global_step"] == 1


def test_a_checkpoint_that_nobody_can_read_is_warned_of(model: str, tmp_path: Path) -> None:
    class Odd(SFT):
        def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
            super().on_save_checkpoint(checkpoint)
            checkpoint["seen"] = Path("a")

    saver = ModelCheckpoint(dirpath=tmp_path / "ck", filename="last", every_n_train_steps=1)
    with pytest.warns(UserWarning, match=r"no run can go on from .*last.ckpt: it holds a pathlib\."):
        fit(tmp_path, module(Odd, model), max_steps=1, enable_checkpointing=True, callbacks=[saver])


def test_a_loss_of_ones_own_reads_the_scores_that_are_drawn(model: str, adapter: str, tmp_path: Path) -> None:
    """Not the longest ones, which stand in their place where scores are drawn in the forward pass of the loss."""
    read: list[Sequence[int]] = []

    class Watched(ExpectedReward):
        def loss(self, batch: Batch[Any]) -> LossOutput:
            read.extend([s.score for s in example.record.sentences] for example in batch.examples)
            assert all(getattr(example, "drawn_by", None) is None for example in batch.examples)
            return super().loss(batch)

    fit(tmp_path, module(Watched, model, adapter), max_steps=2)
    assert len({score for scores in read for score in scores}) > 2
