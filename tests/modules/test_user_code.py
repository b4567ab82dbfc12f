"""Objectives and rewards from a user's own file: sequence-level losses, rewards that read the text."""

from __future__ import annotations

import copy
import importlib.util
from pathlib import Path
from types import ModuleType

import pytest
import torch
from tinyrollouts import Distance, Fixed, advantages_of, grpo, scripted
from tinyrun import check_loss, fit, loaded, records
from torch import Tensor

from lovec.losses import group_advantages
from lovec.modules import GRPO, Batch
from lovec.types import LovecError, Record

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
