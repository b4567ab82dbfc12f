"""The expected reward of the stated score, summed over all levels of the scale instead of sampled."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from lovec.core.settings import NonNegative, Positive
from lovec.losses import score_entropy, score_variance
from lovec.modules.scores import Context, ScoreModule
from lovec.rewards import QuadraticReward, Reward, reward_table, sentence_rewards, with_scale
from lovec.types import LovecError


class ExpectedReward(ScoreModule):
    """Maximises sum over c of pi(c | q, s_<=i, c_<i) r(c, f_i) + (1 - sum over c of pi(c)) r(malformed), exactly.

    On fixed text the action is one of a few scores (11 by default), so the expectation that policy-gradient methods
    estimate from samples is a sum. The earlier scores in the context are the policy's own by default: the true ones
    would leak how good the answer is so far. ConfTuner (Li et al. 2025, arXiv 2508.18847) is the nearest relative: the
    Brier rule over the tokens of one score per answer.

    Under the Brier rule the loss of a sentence is, up to scale and constant, E (c - f)^2 = (E c - f)^2 + Var c: the
    squared error of the mean score, and the spread of the scores about it. ``variance_weight`` w weighs the spread,
    (E c - f)^2 + w Var c. Let mu be the mean of f over all sentences that look alike to the model, g the score below
    mu and a = mu - g in [0, 1). No distribution with a mean between g and g + 1 varies less than that over g and g + 1
    alone; with the probability x of g + 1 the loss is (x - a)^2 + w x (1 - x) and a constant, whose minimum is at

    - w >= 1: x = 0 or 1, the nearer one: a single score is stated with certainty.
    - 0 < w < 1: x = (a - w / 2) / (1 - w), cut off at 0 and 1: two neighbouring scores share the probability. The
      nearer one has more of it, so the most probable score is the same as for w = 1.
    - w = 0: every distribution with the mean mu is a minimum, however wide, and the most probable score is undefined.

    So w moves the minimum of the stated score nowhere, but the way there. At w = 1 the loss is linear in the
    probabilities, and the gradient of a score's logit is its probability times its advantage, the loss of all less its
    own: a score that has become rare hardly comes back, so the scores that are frequent at the start win first, even
    where others are worth more (Mei et al. 2020, arXiv 2005.06392). With a small w the mean is corrected while the
    distribution is still wide, and narrows about it later.

    ``entropy_weight`` t is the usual remedy of policy gradients: it adds t times the entropy of the scores (in nats) to
    the reward, divided by ``reward_scale``. Then no score becomes too rare to learn of. Under the Brier rule with w = 1
    the best distribution of a sentence is p(c) ~ exp(-a (c - mu)^2 / t), with a the loss of one point's distance (1 /
    100 on the scale 0 to 10 with the defaults): normal about mu with a variance of t / (2 a), 50 t points. Its most
    probable score is the one nearest mu.

    Args:
        reward: what a score is worth; with a proper rule the true probability is the best score. Null is the Brier
            rule.
        reward_scale: the loss divides rewards by this number, above 0.
        context: see ``ScoreModule``.
        variance_weight: weight w of the spread of the scores, 0 or more; 1 is the reward as it is. Other values need a
            reward that is quadratic in the score.
        entropy_weight: weight of the entropy of the scores, in units of the scaled reward per nat; 0 leaves it out.
        kwargs: arguments of ``ScoreModule``.
    """

    table: Tensor

    def __init__(
        self,
        reward: Reward | None = None,
        reward_scale: Positive = 10.0,
        context: Context = "own",
        variance_weight: NonNegative = 1.0,
        entropy_weight: NonNegative = 0.0,
        **kwargs: Any,
    ) -> None:
        super().__init__(context=context, **kwargs)
        self.reward_scale = reward_scale
        size = self.scale.size
        reward = with_scale(reward or QuadraticReward(), self.scale)
        rewards = reward_table(reward, self.scale)
        self.variance_weight = variance_weight
        self.entropy_weight = entropy_weight
        self.curvature = 0.0 if variance_weight == 1.0 else _curvature(reward, rewards) / reward_scale
        malformed = sentence_rewards(reward, [None] * size, range(size))
        table = torch.tensor([*rewards, malformed], dtype=torch.float64)
        self.register_buffer("table", table / reward_scale, persistent=False)  # [K scores and malformed, K ratings]

    def score_loss(self, logps: Tensor, ratings: Tensor) -> Tensor:
        """Compute minus the expected reward of every sentence, with its weights of spread and entropy, [M]."""
        probs = logps.exp()
        probs = torch.cat([probs, 1.0 - probs.sum(-1, keepdim=True)], dim=-1)
        loss = -(probs * self.table.T[ratings]).sum(-1)
        if self.variance_weight != 1.0:
            loss = loss + (self.variance_weight - 1.0) * self.curvature * score_variance(logps)
        if self.entropy_weight:
            loss = loss - self.entropy_weight * score_entropy(logps)
        return loss


def _curvature(reward: Reward, table: Sequence[Sequence[float]]) -> float:
    """Return a of a reward of the form b - a (c - g)^2, where b and g may depend on the rating and a does not.

    Args:
        reward: the reward, for its name.
        table: its values, ``[score][rating]``.

    Raises:
        LovecError: the reward does not have this form with an a above 0, or the scale has fewer than three scores, so
            that its form cannot be seen.
    """
    rows = list(zip(table, table[1:], table[2:], strict=False))
    bends = [high + low - 2 * middle for three in rows for low, middle, high in zip(*three, strict=True)]
    largest = max((abs(value) for row in table for value in row), default=0.0)
    if not bends or max(bends) - min(bends) > 1e-9 * largest or bends[0] >= -1e-9 * largest:
        name = getattr(reward, "__name__", type(reward).__name__)
        raise LovecError(
            f"variance_weight is not 1 and the reward is {name}, which is not quadratic in the score; expected "
            "QuadraticReward with gamma 1, or another reward b - a (c - g)^2 on three scores or more"
        )
    return -bends[0] / 2
