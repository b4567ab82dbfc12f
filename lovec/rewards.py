"""What a score is worth once the truth of its sentence is known.

Three rules, one base that they share, and functions for whoever uses a reward. Scores and ratings are integers 0..10;
None stands for a malformed or missing tag (score) or for a label that no oracle could give (rating).
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence
from typing import Protocol

from lovec.types import N_SCORES, LovecError


class Reward(Protocol):
    """Reward of one sentence's score.

    A reward is a proper scoring rule if, whatever the probability q that a sentence is true (rating 10, else 0), the
    expected reward is highest at the score that says so, 10 q. An implementation should say whether it is one: under
    any other the policy is paid to say something else than what it believes. ``best_score`` tells.

    A class or function of one's own needs no base, but these names and types of arguments.
    """

    def __call__(self, score: int | None, rating: int) -> float:
        """Reward of one score.

        Args:
            score: the confidence that the model stated, 0..10; None where its tag is malformed or missing.
            rating: the factuality of the sentence, 0..10 (see ``lovec.types.to_rating``); 0 where its tag is malformed
                and no oracle could say.

        Returns:
            The reward, higher is better; the unit is the implementation's own.
        """


class ScoringRule(Reward):
    """What the rules share: sign(r) |r|^gamma + bonus f, with r = scale (1 - penalty(c, f)), score c and rating f.

    A bonus adds the same to every score of a sentence, so it never moves the best one: it pays for true sentences.
    A gamma other than 1 bends the reward and may move the best score; each rule says where to.

    Args:
        scale: r where the penalty is 0; above 0.
        malformed: reward of a malformed or missing tag, whatever the rating; if it is not below what a poor score
            gets, leaving the tag out pays.
        bonus: reward of each point of the rating.
        gamma: exponent of the stretch, above 0; 1 leaves r as it is.

    Raises:
        LovecError: an option is not a finite number, or is out of its range.
    """

    def __init__(self, scale: float, malformed: float, bonus: float, gamma: float) -> None:
        self.scale = self._above_zero("scale", scale)
        self.malformed = self._finite("malformed", malformed)
        self.bonus = self._finite("bonus", bonus)
        self.gamma = self._above_zero("gamma", gamma)

    @abstractmethod
    def penalty(self, score: int, rating: int) -> float:
        """How bad a score 0..10 is for a rating 0..10: 0 for a perfect one, r changes its sign at 1."""

    def __call__(self, score: int | None, rating: int) -> float:
        """Reward of one score 0..10 (None: malformed or missing) against a rating 0..10."""
        if score is None:
            return self.malformed
        plain = self.scale * (1.0 - self.penalty(score, rating))
        return math.copysign(abs(plain) ** self.gamma, plain) + self.bonus * rating

    def _finite(self, name: str, value: float) -> float:
        if not math.isfinite(value):
            raise LovecError(f"{type(self).__name__} got {name}={value}, expected a finite number")
        return value

    def _above_zero(self, name: str, value: float) -> float:
        if self._finite(name, value) <= 0:
            raise LovecError(f"{type(self).__name__} got {name}={value}, expected a number above 0")
        return value


class LogReward(ScoringRule):
    """Log-likelihood of the truth, as in LoVeC (appendix "GRPO Loss Design"; the defaults are its listing's).

    penalty = nll / worst, nll = -(y log p + (1 - y) log(1 - p)), y = f / 10, p = c / 10 clipped to [clip, 1 - clip]

    With gamma = 1 and a clip below 0.1 it is proper: under a yes/no truth the best score is exactly 10 q at q = 0,
    0.1, ..., 1. The paper's gamma of 1.5 with its clip keeps that, but between the tenths the best score leans away
    from 0.5 in the middle (0.55 -> 6, 0.75 -> 8, 0.85 -> 9). At the ends it leans inward (0.95 -> 9, 0.05 -> 1), with
    either gamma: 0 and 10 cost so much where they are wrong, -31.6, a little worse than a malformed tag. With another
    clip a gamma other than 1 need not be proper at the tenths either (1.5 with clip 0.05: 0.6 -> 8).

    Args:
        scale: reward, before the stretch, of a score that is certain and right.
        malformed: reward of a malformed or missing tag.
        bonus: reward of each point of the rating.
        gamma: exponent of the stretch.
        clip: keeps the logarithms finite, in (0, 0.5). A larger one softens the fall at 0 and 10; from 0.1 on some
            scores are clipped to one p and worth the same.
        worst: the nll (in nats, above 0) that is worth 0 before the stretch; None is the paper's
            -(log clip + log(1 - clip)) / 2, about half of the worst there is. With -log(clip) none is negative.

    Raises:
        LovecError: an option is out of its range.
    """

    def __init__(
        self,
        scale: float = 10.0,
        malformed: float = -30.0,
        bonus: float = 0.15,
        gamma: float = 1.5,
        clip: float = 1e-6,
        worst: float | None = None,
    ) -> None:
        super().__init__(scale, malformed, bonus, gamma)
        if not 0.0 < clip < 0.5:
            raise LovecError(f"LogReward got clip={clip}, expected a number in (0, 0.5), such as the paper's 1e-6")
        self.clip = clip
        self.worst = -(math.log(clip) + math.log(1.0 - clip)) / 2 if worst is None else self._above_zero("worst", worst)

    def penalty(self, score: int, rating: int) -> float:
        """Negative log-likelihood of the rating, in units of ``worst``."""
        p, y = min(max(score / 10, self.clip), 1.0 - self.clip), rating / 10
        return -(y * math.log(p) + (1.0 - y) * math.log(1.0 - p)) / self.worst


class QuadraticReward(ScoringRule):
    """Brier rule: penalty = contrast (c - f)^2 / 100.

    Up to scale and constant the reward is the Brier score, whatever the contrast, and so it is proper: under a yes/no
    truth the best score is the one nearest 10 q, under graded ratings the one nearest their mean. A gamma above 1 makes
    it pay to overstate (1.5: q = 0.8 -> 9), one below 1 to understate (0.5: q = 0.9 -> 8).

    Args:
        scale: reward of an exact score, before the stretch.
        malformed: reward of a malformed or missing tag.
        bonus: reward of each point of the rating.
        gamma: exponent of the stretch.
        contrast: how far the reward falls, in units of ``scale``, from an exact score to the worst (10 against 0),
            above 0: with 1 the worst is worth 0, with 2 it is worth -scale.

    Raises:
        LovecError: an option is out of its range.
    """

    def __init__(
        self,
        scale: float = 10.0,
        malformed: float = -30.0,
        bonus: float = 0.0,
        gamma: float = 1.0,
        contrast: float = 1.0,
    ) -> None:
        super().__init__(scale, malformed, bonus, gamma)
        self.contrast = self._above_zero("contrast", contrast)

    def penalty(self, score: int, rating: int) -> float:
        """Squared distance in units of the whole scale, times ``contrast``."""
        return self.contrast * (score - rating) ** 2 / 100.0


class LinearReward(ScoringRule):
    """Absolute distance: penalty = |c - f| / 10.

    Not proper. Under a yes/no truth the best score is 0 for every q below 0.5 and 10 for every q above (at 0.5 all are
    alike), under graded ratings it is their median: the policy is paid to overstate. A gamma above 1 changes nothing
    about that, one below 1 softens the jump (0.5: q = 0.6 -> 7) but makes no proper rule of it.

    Args:
        scale: reward of an exact score, before the stretch; the worst score of a sentence (10 against 0) gets 0.
        malformed: reward of a malformed or missing tag.
        bonus: reward of each point of the rating.
        gamma: exponent of the stretch.

    Raises:
        LovecError: an option is out of its range.
    """

    def __init__(self, scale: float = 10.0, malformed: float = -30.0, bonus: float = 0.0, gamma: float = 1.0) -> None:
        super().__init__(scale, malformed, bonus, gamma)

    def penalty(self, score: int, rating: int) -> float:
        """Distance in units of the whole scale."""
        return abs(score - rating) / 10.0


def answer_reward(reward: Reward, scores: Sequence[int | None], ratings: Sequence[int | None]) -> float | None:
    """Reward of an answer: the mean over its sentences.

    A sentence without a rating (no oracle could say) is left out, unless its tag is malformed: that needs no label, and
    the reward is asked with the rating 0.

    Args:
        reward: of one sentence.
        scores: one a sentence, 0..10; None where the tag is malformed or missing.
        ratings: one a sentence, 0..10; None where there is no label.

    Returns:
        The mean, in the reward's unit; None where no sentence counts.

    Raises:
        LovecError: there are not as many ratings as scores, or a reward is not a finite number.
    """
    rewards = [value for value in sentence_rewards(reward, scores, ratings) if value is not None]
    return math.fsum(rewards) / len(rewards) if rewards else None


def sentence_rewards(reward: Reward, scores: Sequence[int | None], ratings: Sequence[int | None]) -> list[float | None]:
    """Reward of every sentence of an answer; None where it has a score but no rating. See ``answer_reward``."""
    if len(scores) != len(ratings):
        raise LovecError(
            f"an answer has {len(scores)} scores and {len(ratings)} ratings, expected one of each a sentence"
        )
    return [
        _asked(reward, score, rating or 0) if score is None or rating is not None else None
        for score, rating in zip(scores, ratings, strict=True)
    ]


def reward_table(reward: Reward) -> list[list[float]]:
    """Rewards of all scores against all ratings, [score][rating], both 0..10.

    Raises:
        LovecError: a reward is not a finite number.
    """
    return [[_asked(reward, score, rating) for rating in range(N_SCORES)] for score in range(N_SCORES)]


def best_score(reward: Reward, truth: float) -> int:
    """The score that pays best for a sentence that is true (rating 10) with a given probability, and else false (0).

    A rule is proper if the best scores of the truths 0, 0.1, ..., 1 are 0, 1, ..., 10.

    Args:
        reward: of one sentence.
        truth: the probability, in [0, 1].

    Returns:
        The score 0..10, the lowest one where several pay the same.

    Raises:
        LovecError: ``truth`` is out of its range, or a reward is not a finite number.
    """
    if not 0.0 <= truth <= 1.0:
        raise LovecError(f"the probability that a sentence is true is {truth}, expected a number in [0, 1]")
    scores = range(N_SCORES)
    return worth_most([truth * _asked(reward, c, 10) + (1.0 - truth) * _asked(reward, c, 0) for c in scores])[0]


def worth_most(values: Sequence[float]) -> list[int]:
    """Where the highest value is, from the left; several places where values differ by rounding alone."""
    most = max(values)
    return [place for place, value in enumerate(values) if math.isclose(value, most, rel_tol=1e-9, abs_tol=1e-12)]


def _asked(reward: Reward, score: int | None, rating: int) -> float:
    """What a reward says, as a finite float; rewards may be anybody's."""
    value = reward(score, rating)
    if not math.isfinite(value):
        name = getattr(reward, "__name__", type(reward).__name__)
        raise LovecError(
            f"{name} gives {value} for the score {score} and the rating {rating}, expected a finite number; "
            "mend the reward"
        )
    return float(value)
