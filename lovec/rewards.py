"""What a stated score is worth once the truth of its sentence is known.

Three rules with a common base class, and functions that apply any reward to answers. A score is an index into the
confidence scale and a rating is the factuality on the same scale, both 0..10 by default. None stands for a malformed or
missing tag (score), or for a sentence whose factuality no oracle could tell (rating).
"""

from __future__ import annotations

import copy
import math
from abc import abstractmethod
from collections.abc import Sequence
from typing import Annotated, Any, ClassVar, Protocol, Self, SupportsFloat

from lovec.core.settings import CheckedSettings, Finite, Positive, Setting
from lovec.types import DEFAULT_SCALE, LovecError, Record, Scale


class Reward(Protocol):
    """Reward of one sentence's score.

    A reward is a proper scoring rule if, whatever the probability q that a sentence is true (then its rating is the
    top of the scale, else 0), the expected reward is highest at the score nearest q times the top. Under any other
    reward the policy is paid to state something else than what it believes. ``best_score`` tells whether a reward is
    proper. An implementation should document whether it is.

    A class or function of your own needs no base class, but exactly these names and types of arguments. A method
    ``with_scale(scale)`` is optional: it returns the reward for another confidence scale.
    """

    def __call__(self, score: int | None, rating: int) -> float:
        """Return the reward of one score.

        Args:
            score: the score that the model stated, an index into the confidence scale (0..10 by default); None where
                its tag is malformed or missing.
            rating: the factuality of the sentence on the same scale (see ``lovec.types.Scale.nearest``); 0 where the
                tag is malformed and no oracle could tell.

        Returns:
            The reward, higher is better, in a unit of the implementation's own.
        """


class AnswerReward(Protocol):
    """Reward of a whole answer, which can depend on its text.

    A class or function of your own needs no base class, but exactly this name and type of argument.
    """

    def __call__(self, answer: Record) -> float:
        """Return the reward of one answer.

        Args:
            answer: the question, the text that the model wrote (``answer``), and its ``sentences`` with scores and
                the oracle's factuality; ``meta["finished"]`` is False where the token limit cut it.

        Returns:
            The reward, higher is better, in the unit of the sentences' reward, to which it is added.
        """


class ScoringRule(CheckedSettings, Reward):
    """Base class of rules of the form sign(r) |r|^gamma + bonus f, with r = scale (1 - penalty(c, f)).

    c is the score and f the rating. A bonus adds the same to every score of a sentence, so it never moves the best
    score: it pays for true sentences. A gamma other than 1 bends the reward and may move the best score; each rule
    documents where to.

    Args:
        scale: r where the penalty is 0; above 0.
        malformed: reward of a malformed or missing tag, whatever the rating. Unless it is below the reward of a poor
            score, it pays to leave out the tag.
        bonus: added for each point of the rating. A point is a tenth of the way to the top of the confidence scale,
            whatever that is, so that rewards on all scales are comparable.
        gamma: exponent of the stretch, above 0; 1 leaves r as it is.

    Attributes:
        top: highest score of the confidence scale; see ``with_scale``.

    Raises:
        LovecError: an option is not a finite number, or is out of its range.
    """

    setting_names: ClassVar[str] = "{} of {kind}"
    top: int = DEFAULT_SCALE.top

    def __init__(
        self, scale: Positive = 10.0, malformed: Finite = -30.0, bonus: Finite = 0.0, gamma: Positive = 1.0
    ) -> None:
        self.scale = scale
        self.malformed = malformed
        self.bonus = bonus
        self.gamma = gamma

    @abstractmethod
    def penalty(self, score: int, rating: int) -> float:
        """Return how bad a score is for a rating, both 0..``top``: 0 for a perfect one; r changes its sign at 1."""

    def with_scale(self, scale: Scale) -> Self:
        """Return this rule for the scores and ratings of a confidence scale."""
        rule = copy.copy(self)
        rule.top = scale.top
        return rule

    def __call__(self, score: int | None, rating: int) -> float:
        """Return the reward of one score 0..``top`` (None: malformed or missing) for a rating 0..``top``."""
        if score is None:
            return self.malformed
        plain = self.scale * (1.0 - self.penalty(score, rating))
        return math.copysign(abs(plain) ** self.gamma, plain) + self.bonus * (rating * DEFAULT_SCALE.top / self.top)


class LogReward(ScoringRule):
    """Log-likelihood of the truth, as in LoVeC (appendix "GRPO Loss Design"; the defaults are its listing's).

    penalty = nll / worst, nll = -(y log p + (1 - y) log(1 - p)), y = f / top, p = c / top clipped to [clip, 1 - clip]

    On the scale 0 to 10, with gamma = 1 and a clip below 0.1, the rule is proper: under a yes/no truth the best score
    is exactly 10 q at q = 0, 0.1, ..., 1. The paper's gamma of 1.5 with its clip keeps that, but between the tenths the
    best score leans away from 0.5 in the middle (0.55 -> 6, 0.75 -> 8, 0.85 -> 9). At the ends it leans inward (0.95 ->
    9, 0.05 -> 1), with either gamma: 0 and 10 cost so much where they are wrong, -31.6, a little worse than a malformed
    tag. With another clip, a gamma other than 1 need not be proper at the tenths either (1.5 with clip 0.05: 0.6 -> 8).

    Args:
        scale: reward, before the stretch, of a score that is certain and right.
        malformed: reward of a malformed or missing tag.
        bonus: reward of each point of the rating, see ``ScoringRule``.
        gamma: exponent of the stretch.
        clip: keeps the logarithms finite, in (0, 0.5). A larger one softens the fall at the lowest and the highest
            score. From 1 / top on (0.1 on the scale 0 to 10) some scores are clipped to the same p and worth the same.
        worst: the nll (in nats, above 0) whose reward is 0 before the stretch; None is the paper's
            -(log clip + log(1 - clip)) / 2, about half of the largest nll. With -log(clip) no reward is negative.

    Raises:
        LovecError: an option is out of its range.
    """

    def __init__(
        self,
        scale: Positive = 10.0,
        malformed: Finite = -30.0,
        bonus: Finite = 0.15,
        gamma: Positive = 1.5,
        clip: Annotated[float, Setting(above=0, below=0.5)] = 1e-6,
        worst: Positive | None = None,
    ) -> None:
        super().__init__(scale, malformed, bonus, gamma)
        self.clip = clip
        self.worst = -(math.log(clip) + math.log(1.0 - clip)) / 2 if worst is None else worst

    def penalty(self, score: int, rating: int) -> float:
        """Return the negative log-likelihood of the rating, in units of ``worst``."""
        p, y = min(max(score / self.top, self.clip), 1.0 - self.clip), rating / self.top
        return -(y * math.log(p) + (1.0 - y) * math.log(1.0 - p)) / self.worst


class QuadraticReward(ScoringRule):
    """Brier rule: penalty = contrast (c - f)^2 / top^2.

    Up to scale and constant the reward is the Brier score, whatever the contrast, and so it is proper: under a yes/no
    truth the best score is the one nearest 10 q (on the scale 0 to 10), under graded ratings the one nearest their
    mean. A gamma above 1 makes it pay to overstate (1.5: q = 0.8 -> 9), one below 1 to understate (0.5: q = 0.9 -> 8).

    Args:
        scale: reward of an exact score, before the stretch.
        malformed: reward of a malformed or missing tag.
        bonus: reward of each point of the rating, see ``ScoringRule``.
        gamma: exponent of the stretch.
        contrast: how far the reward falls, in units of ``scale``, from an exact score to the worst one (the top
            against 0), above 0: with 1 the worst is worth 0, with 2 it is worth -scale.

    Raises:
        LovecError: an option is out of its range.
    """

    def __init__(
        self,
        scale: Positive = 10.0,
        malformed: Finite = -30.0,
        bonus: Finite = 0.0,
        gamma: Positive = 1.0,
        contrast: Positive = 1.0,
    ) -> None:
        super().__init__(scale, malformed, bonus, gamma)
        self.contrast = contrast

    def penalty(self, score: int, rating: int) -> float:
        """Return the squared distance in units of the whole scale, times ``contrast``."""
        return self.contrast * (score - rating) ** 2 / self.top**2


class LinearReward(ScoringRule):
    """Absolute distance: penalty = |c - f| / top.

    Not proper. Under a yes/no truth the best score is 0 for every q below 0.5 and the top for every q above (at 0.5 all
    are alike), under graded ratings it is their median: the policy is paid to overstate. A gamma above 1 does not
    change that; one below 1 softens the jump (0.5: q = 0.6 -> 7 on the scale 0 to 10) without making the rule proper.

    Before the stretch an exact score is worth ``scale``, and the worst score (the top against 0) is worth 0. The
    options are those of ``ScoringRule``.
    """

    def penalty(self, score: int, rating: int) -> float:
        """Return the distance in units of the whole scale."""
        return abs(score - rating) / self.top


def with_scale(reward: Reward, scale: Scale) -> Reward:
    """Return the reward for a confidence scale: ``reward.with_scale(scale)``, or itself if it has no such method."""
    method: Any = getattr(reward, "with_scale", None)
    adapted: Reward = reward if method is None else method(scale)
    return adapted


def sentence_rewards(reward: Reward, scores: Sequence[int | None], ratings: Sequence[int | None]) -> list[float | None]:
    """Compute the reward of every sentence of an answer.

    A sentence without a rating (no oracle could tell) has no reward, unless its tag is malformed: that reward needs no
    label, and is computed with the rating 0.

    Args:
        reward: the reward of one sentence.
        scores: one per sentence; None where the tag is malformed or missing.
        ratings: one per sentence, on the same scale; None where there is no label.

    Returns:
        One per sentence, in the reward's unit; None where it has a score but no rating.

    Raises:
        LovecError: there are not as many ratings as scores, or a reward is not a finite number.
    """
    if len(scores) != len(ratings):
        raise LovecError(
            f"an answer has {len(scores)} scores and {len(ratings)} ratings, expected one of each per sentence"
        )
    return [
        _checked(reward, score, rating or 0) if score is None or rating is not None else None
        for score, rating in zip(scores, ratings, strict=True)
    ]


def mean_reward(rewards: Sequence[float | None]) -> float | None:
    """Compute the mean of the rewards of an answer's sentences that have one; None where none has."""
    known = [reward for reward in rewards if reward is not None]
    return math.fsum(known) / len(known) if known else None


def answer_reward(reward: AnswerReward, answer: Record) -> float:
    """Compute the reward of a whole answer.

    Raises:
        LovecError: it is not a finite number.
    """
    return _finite(reward, reward(answer), f"an answer to {answer.id!r}")


def reward_table(reward: Reward, scale: Scale = DEFAULT_SCALE) -> list[list[float]]:
    """Compute the rewards of all scores for all ratings of a confidence scale, ``[score][rating]``.

    Args:
        reward: the reward of one sentence; it is adapted to the scale, see ``with_scale``.
        scale: the confidence scale.

    Raises:
        LovecError: a reward is not a finite number.
    """
    reward = with_scale(reward, scale)
    return [[_checked(reward, score, rating) for rating in range(scale.size)] for score in range(scale.size)]


def best_score(reward: Reward, truth: float, scale: Scale = DEFAULT_SCALE) -> int:
    """Return the score that pays best for a sentence that is true with a given probability, and else false.

    A true sentence has the top rating, a false one the rating 0. On the scale 0 to 10 a rule is proper if the best
    scores of the probabilities 0, 0.1, ..., 1 are 0, 1, ..., 10.

    Args:
        reward: the reward of one sentence; it is adapted to the scale, see ``with_scale``.
        truth: the probability, in [0, 1].
        scale: the confidence scale.

    Returns:
        The score, the lowest one where several pay the same.

    Raises:
        LovecError: ``truth`` is out of its range, or a reward is not a finite number.
    """
    if not 0.0 <= truth <= 1.0:
        raise LovecError(f"the probability that a sentence is true is {truth}, expected a number in [0, 1]")
    reward, top = with_scale(reward, scale), scale.top
    expected = [
        truth * _checked(reward, score, top) + (1.0 - truth) * _checked(reward, score, 0) for score in range(scale.size)
    ]
    return argmax_with_ties(expected)[0]


def argmax_with_ties(values: Sequence[float]) -> list[int]:
    """Return the indices of the highest value; there are several where values differ by rounding only."""
    most = max(values)
    return [index for index, value in enumerate(values) if math.isclose(value, most, rel_tol=1e-9, abs_tol=1e-12)]


def _checked(reward: Reward, score: int | None, rating: int) -> float:
    """Compute the reward of one score and check that it is finite."""
    return _finite(reward, reward(score, rating), f"the score {score} and the rating {rating}")


def _finite(reward: object, value: float, subject: str) -> float:
    """Check the value of a reward, which may be the user's own."""
    if not isinstance(value, SupportsFloat) or not math.isfinite(value):
        name = getattr(reward, "__name__", type(reward).__name__)
        raise LovecError(f"{name} gives {value} for {subject}, expected a finite number; fix the reward")
    return float(value)
