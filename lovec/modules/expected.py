"""The expected reward of a stated score, summed over all eleven instead of sampled."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from lovec.modules.batching import Example
from lovec.modules.scores import ScoreModule
from lovec.rewards import QuadraticReward, Reward, reward_table, sentence_rewards
from lovec.taggers.scoring import Passage, Step, distribution, score_passages
from lovec.types import N_SCORES, LovecError, Record

Context = Literal["own", "true"]


class ExpectedReward(ScoreModule):
    """Maximises sum over c of pi(c | q, s_<=i, c_<i) r(c, f_i) + (1 - sum over c of pi(c)) r(malformed), exactly.

    On fixed text the action is one of eleven scores, so the expectation that policy-gradient methods estimate from
    samples is a sum. The earlier scores in the context are drawn from the policy itself, anew for every batch: true
    ones would leak how good the answer is so far. ConfTuner (Li et al. 2025, arXiv 2508.18847) is the nearest
    relative: the Brier rule over the tokens of one score an answer.

    Args:
        reward: what a score is worth; a proper rule makes the true probability the best score. Null is the Brier rule.
        reward_scale: what rewards are divided by in the loss.
        context: earlier scores in the context: the policy's "own", or the "true" ones.
        kwargs: arguments of ``ScoreModule``.
    """

    table: Tensor

    def __init__(
        self,
        reward: Reward | None = None,
        reward_scale: float = 10.0,
        context: Context = "own",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        if context not in get_args(Context):
            raise LovecError(f"context is {context!r}, expected one of {', '.join(get_args(Context))}")
        self.reward_scale = reward_scale
        self.context = context
        reward = reward or QuadraticReward()
        malformed = sentence_rewards(reward, [None] * N_SCORES, range(N_SCORES))
        table = torch.tensor([*reward_table(reward), malformed], dtype=torch.float64)
        self.register_buffer("table", table / reward_scale, persistent=False)  # [11 scores and malformed, 11 ratings]

    def update_batches(self, rows: Sequence[Record]) -> Iterator[Sequence[Example]]:
        """The rows once, with the policy's own scores in their contexts, or the true ones."""
        if self.context == "true":
            yield from super().update_batches(rows)
        else:
            yield [self.example(row) for row in self.with_own_scores(rows)]

    def with_own_scores(self, rows: Sequence[Record]) -> list[Record]:
        """Rows whose sentences carry scores drawn from the policy, each given those before it."""
        passages = []
        for row in rows:
            steps = [Step(sentence.text) for sentence in row.sentences]
            draw = _drawing(f"{self.seed}/{self.global_step}/{row.id}")
            passages.append(Passage(row.id, self.encoder.prompt(row.question), steps, draw))
        self.engine.sync(self.policy)
        score_passages(self.engine, self.encoder, passages)
        return [
            replace(row, sentences=tuple(replace(s, score=c) for s, c in zip(row.sentences, p.chosen, strict=True)))
            for row, p in zip(rows, passages, strict=True)
        ]

    def score_loss(self, logps: Tensor, ratings: Tensor) -> Tensor:
        """Minus the expected reward of every sentence, [M]."""
        probs = logps.exp()
        probs = torch.cat([probs, 1.0 - probs.sum(-1, keepdim=True)], dim=-1)
        return -(probs * self.table.T[ratings]).sum(-1)


def _drawing(key: str) -> Callable[[Sequence[float]], int]:
    """Draws scores from log-probabilities; the stream is a function of the key alone."""
    stream = random.Random(key)
    return lambda logps: stream.choices(range(N_SCORES), distribution(logps))[0]
