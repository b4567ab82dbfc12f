"""The expected reward of the stated score, summed over all levels of the scale instead of sampled."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Literal

import torch
from torch import Tensor

from lovec.modules.batching import Example
from lovec.modules.scores import ScoreModule
from lovec.rewards import QuadraticReward, Reward, reward_table, sentence_rewards, with_scale
from lovec.taggers.scoring import Passage, Step, distribution, score_passages
from lovec.types import Record, check_choice, check_range

Context = Literal["own", "true"]


class ExpectedReward(ScoreModule):
    """Maximises sum over c of pi(c | q, s_<=i, c_<i) r(c, f_i) + (1 - sum over c of pi(c)) r(malformed), exactly.

    On fixed text the action is one of a few scores (11 by default), so the expectation that policy-gradient methods
    estimate from samples is a sum. The earlier scores in the context are drawn from the policy itself, anew for every
    batch: the true ones would leak how good the answer is so far. ConfTuner (Li et al. 2025, arXiv 2508.18847) is the
    nearest relative: the Brier rule over the tokens of one score per answer.

    Args:
        reward: what a score is worth; with a proper rule the true probability is the best score. Null is the Brier
            rule.
        reward_scale: the loss divides rewards by this number, above 0.
        context: earlier scores in the context: the policy's "own", or the "true" ones.
        kwargs: arguments of ``ScoreModule``.
    """

    table: Tensor

    def __init__(
        self, reward: Reward | None = None, reward_scale: float = 10.0, context: Context = "own", **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        check_choice("context", context, Context)
        check_range("reward_scale", reward_scale, above=0)
        self.reward_scale = reward_scale
        self.context = context
        size = self.scale.size
        reward = with_scale(reward or QuadraticReward(), self.scale)
        malformed = sentence_rewards(reward, [None] * size, range(size))
        table = torch.tensor([*reward_table(reward, self.scale), malformed], dtype=torch.float64)
        self.register_buffer("table", table / reward_scale, persistent=False)  # [K scores and malformed, K ratings]

    def update_batches(self, rows: Sequence[Record]) -> Iterator[Sequence[Example]]:
        """Yield the rows once, with the policy's own scores in their contexts, or the true ones."""
        if self.context == "true":
            yield from super().update_batches(rows)
        else:
            yield [self.example(row) for row in self.with_own_scores(rows)]

    def with_own_scores(self, rows: Sequence[Record]) -> list[Record]:
        """Return the rows with scores drawn from the policy, each given those of the sentences before it."""
        passages = []
        for row in rows:
            steps = [Step(sentence.text) for sentence in row.sentences]
            choose = _sampler(f"{self.seed}/{self.global_step}/{row.id}")
            passages.append(Passage(row.id, self.encoder.prompt(row.question), steps, choose))
        self.engine.sync(self.policy)
        score_passages(self.engine, self.encoder, passages)
        scored = []
        for row, passage in zip(rows, passages, strict=True):
            drawn = zip(row.sentences, passage.chosen, strict=True)
            sentences = tuple(replace(s, score=score, levels=self.scale.size) for s, score in drawn)
            scored.append(replace(row, sentences=sentences))
        return scored

    def score_loss(self, logps: Tensor, ratings: Tensor) -> Tensor:
        """Compute minus the expected reward of every sentence, [M]."""
        probs = logps.exp()
        probs = torch.cat([probs, 1.0 - probs.sum(-1, keepdim=True)], dim=-1)
        return -(probs * self.table.T[ratings]).sum(-1)


def _sampler(key: str) -> Callable[[Sequence[float]], int]:
    """Return a function that draws scores from log-probabilities; its random stream is a function of the key alone."""
    stream = random.Random(key)
    return lambda logps: stream.choices(range(len(logps)), distribution(logps))[0]
