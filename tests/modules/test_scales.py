"""Training on other confidence scales than 0 to 10: five words, and 0 to 100."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from tinyrollouts import Distance, Fixed, scripted
from tinyrun import Lengths, Ragged, Recorder, Rows, fit, loaded, module, records, trainer
from torch import Tensor

from lovec.metrics.functional import expected_confidence
from lovec.modules import DPO, GRPO, ORPO, SFT, Batch, ExpectedReward, PolicyConfig, SFTRegression
from lovec.modules.base import ratings
from lovec.rewards import QuadraticReward
from lovec.types import LovecError, Record, Scale, Sentence

FIVE = ["no", "hardly", "perhaps", "likely", "yes"]
HUNDRED = [str(score) for score in range(101)]
SCALES = pytest.mark.parametrize("words", [FIVE, HUNDRED], ids=["five", "hundred"])
ROLLOUTS = {
    "oracle": Lengths(),
    "group_size": 3,
    "max_new_tokens": 10,
    "engine": Ragged(8),
    "reward": QuadraticReward(),
}


UNDEFINED = ("train/entropy", "train/distinct", "train/confidence")
"""Metrics of stated scores, which are NaN where nobody states one."""


def on_scale(cls: type, model: str, words: list[str], **options: Any) -> Any:
    torch.manual_seed(0)  # a fresh adapter is the same, whatever ran before
    policy = PolicyConfig(model=model, lora_r=8, lora_alpha=16, instruction="Rate.", tag_words=("[", "]"), scale=words)
    return module(cls, model, policy=policy, **options)


def trained(folder: Path, objective: Any, **kwargs: Any) -> Recorder:
    """A short training, with every logged value finite (those of scores that nobody stated are NaN)."""
    run = fit(folder, objective, **kwargs)
    for logged in run.logged:
        assert all(math.isfinite(v) for name, v in logged.items() if name not in UNDEFINED)
    assert all(gradient.any() for gradient in run.gradients)
    return run


@SCALES
@pytest.mark.parametrize("cls", [SFT, DPO, ORPO])
def test_objectives_on_given_text_learn(cls: type, words: list[str], model: str, tmp_path: Path) -> None:
    objective = on_scale(cls, model, words, lr=2e-2)
    run = trained(tmp_path, objective, max_epochs=4)
    assert run.logged[-1]["train/loss"] < run.logged[0]["train/loss"]
    scale = Scale(tuple(words))
    assert objective.scale == scale
    for row in records(4, scale=scale):
        truths = ratings(row, scale)
        assert truths == [scale.nearest(s.factuality) for s in row.sentences]
        texts = [objective.encoder.decode(s.completion) for s in objective.example(row).sequences]
        sides = [truths, row.rejected][: len(texts)]
        for text, scores in zip(texts, sides, strict=True):
            tagged = [f"{s.text} [ {words[c]} ]" for s, c in zip(row.sentences, scores, strict=True)]
            assert text == " ".join(tagged)


@SCALES
@pytest.mark.parametrize("cls", [ExpectedReward, SFTRegression])
def test_objectives_over_distributions_learn(cls: type, words: list[str], model: str, tmp_path: Path) -> None:
    objective = on_scale(cls, model, words, lr=2e-2)
    run = trained(tmp_path, objective, max_epochs=3)
    assert run.logged[-1]["train/loss"] < run.logged[0]["train/loss"]
    assert run.logged[-1]["train/malformed"] < run.logged[0]["train/malformed"]


def test_regression_learns_what_lies_between_two_scores(model: str, tmp_path: Path) -> None:
    """On three levels a factuality of 0.74 is not 0.5; the context still states a score of the scale."""
    objective = loaded(tmp_path, on_scale(SFTRegression, model, ["no", "perhaps", "yes"]))
    row = Record("a", "Who is Ada?", answer="One.", sentences=(Sentence("One.", 0.74),))
    example = objective.example(row)
    (target,) = example.ratings
    assert "perhaps" in objective.encoder.decode(example.sequences[0].completion)
    means = torch.tensor([0.5, 0.74, 1.0], dtype=torch.float64)
    probs = torch.stack([1 - means, torch.zeros(3), means], dim=-1).clamp(min=1e-12)
    losses = objective.score_loss(probs.log(), torch.full((3,), target))
    assert losses.argmin() == 1 and losses[1] < 1e-9 and float(losses[0]) == pytest.approx(0.24**2)


@SCALES
def test_expected_reward_by_hand(words: list[str], model: str, tmp_path: Path) -> None:
    objective = loaded(tmp_path, on_scale(ExpectedReward, model, words, text_weight=0.0, context="true"))
    size, top = len(words), len(words) - 1
    assert list(objective.table.shape) == [size + 1, size]
    rows = records(3, scale=objective.scale)
    (examples,) = objective.update_batches(rows)
    batch = Batch.of(examples, objective.policy.device)
    starts = [example.tag_positions for example in examples]
    _, logps = objective.policy.choice_logps(batch.tokens, starts, objective.encoder.choices)
    assert logps.shape[1] == size
    losses = []
    truths = [rating for row in rows for rating in ratings(row, objective.scale)]
    for probs, rating in zip(logps.exp(), truths, strict=True):
        gain = sum(p * 10 * (1 - ((c - rating) / top) ** 2) for c, p in enumerate(probs))
        losses.append(-(gain - 30 * (1 - probs.sum())) / 10)
    out = objective.loss(batch)
    torch.testing.assert_close(out.terms["score"].values, torch.stack(losses))
    mean = (logps.softmax(-1) * torch.arange(size)).sum(-1) / top
    torch.testing.assert_close(out.metrics["confidence"].values, mean.detach())
    torch.testing.assert_close(expected_confidence(logps.softmax(-1)), mean)
    assert out.metrics["factuality"].values.tolist() == pytest.approx([rating / top for rating in truths])


@SCALES
def test_scores_in_the_context_are_drawn_from_the_whole_scale(words: list[str], model: str, tmp_path: Path) -> None:
    class CrossEntropy(ExpectedReward):
        """Makes all scores of the training data probable; those of a random model are mostly the shortest word."""

        def score_loss(self, logps: Tensor, ratings: Tensor) -> Tensor:
            return -logps.gather(-1, ratings[:, None])[:, 0]

    objective = on_scale(CrossEntropy, model, words, lr=3e-2, text_weight=0.0, context="true")
    fit(tmp_path, objective, Rows(8, batch_size=8), max_epochs=16)
    rows = objective.with_own_scores(records(40, scale=objective.scale))
    sentences = [sentence for row in rows for sentence in row.sentences]
    assert {s.levels for s in sentences} == {len(words)}
    scores = {s.score for s in sentences}
    assert scores <= set(range(len(words))) and len(scores) > 2


@SCALES
def test_grpo_trains(words: list[str], model: str, tmp_path: Path) -> None:
    class Length:
        """A reward that a model without any format can earn."""

        def __call__(self, score: int | None, rating: int) -> float:
            return float(rating)

    run = trained(tmp_path, on_scale(GRPO, model, words, **{**ROLLOUTS, "reward": Length()}), max_steps=3)
    top = len(words) - 1
    assert 0 < run.logged[0]["train/reward"] <= top
    assert run.logged[0]["train/reward"] == pytest.approx(top * run.logged[0]["train/factuality"], abs=0.5)


def test_rollouts_are_rewarded_on_the_scale(model: str, tmp_path: Path) -> None:
    answers = ["Ada was born. <c> likely </c>", "Ada was born. <c> yes </c>", "Ada was born. <c> 3 </c>"]
    options = {"reward": Distance(), "oracle": Fixed(Ada=0.5)}
    objective, examples = scripted(tmp_path, model, answers, scale=FIVE, **options)
    assert [example.metrics["reward"] for example in examples] == [-1.0, -2.0, -20.0]
    assert [example.metrics["confidence"] for example in examples] == [0.75, 1.0, None]
    objective, examples = scripted(tmp_path, model, answers, scale=FIVE, **{**options, "reward": QuadraticReward()})
    assert objective.reward.top == 4
    assert [example.metrics["reward"] for example in examples] == pytest.approx([10 * 15 / 16, 10 * 3 / 4, -30.0])


@SCALES
def test_validation_and_test_measure_on_the_scale(words: list[str], model: str, tmp_path: Path) -> None:
    objective = on_scale(SFT, model, words)
    run = trainer(tmp_path, limit_val_batches=1.0)
    run.fit(objective, Rows())
    assert 0 <= float(run.callback_metrics["val/mean_confidence"]) <= 1
    assert float(run.callback_metrics["val/entropy"]) <= math.log(len(words))
    (tagged,) = objective.evaluator.taggers["iterative"].tag(records(1))
    for sentence in tagged.sentences:
        assert sentence.levels == len(sentence.distribution) == len(words)
        assert sentence.confidence == sentence.score / (len(words) - 1)


def test_a_scale_of_one_word_is_refused(model: str) -> None:
    with pytest.raises(LovecError, match=r"the words of the scale are \['sure'\], expected at least two"):
        on_scale(SFT, model, ["sure"])
