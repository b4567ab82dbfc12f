"""What a score is worth once the truth of its sentence is known."""

from __future__ import annotations

from typing import Protocol


class Reward(Protocol):
    """Reward of one sentence's score.

    A reward is a proper scoring rule if, whatever the probability q that a sentence is true (rating 10, else 0), the
    expected reward is highest at the score that says so, 10 q. An implementation should say whether it is one: under
    any other the policy is paid to say something else than what it believes.
    """

    def __call__(self, score: int | None, rating: int) -> float:
        """Reward of one score.

        Args:
            score: the confidence that the model stated, 0..10; None where its tag is malformed or missing.
            rating: the factuality of the sentence, 0..10 (see ``lovec.types.to_rating``).

        Returns:
            The reward, higher is better; the unit is the implementation's own.
        """


class QuadraticReward:
    """Brier rule: scale (1 - (c - f)^2 / 100), with score c and rating f. A proper scoring rule.

    Args:
        scale: reward of an exact score; the worst score of a sentence (10 against 0) gets 0.
        malformed: reward of a malformed or missing tag; below 0, or leaving the tag out pays.
    """

    def __init__(self, scale: float = 10.0, malformed: float = -30.0) -> None:
        self.scale = scale
        self.malformed = malformed

    def __call__(self, score: int | None, rating: int) -> float:
        """Reward of one score 0..10 (None: malformed or missing) against a rating 0..10."""
        if score is None:
            return self.malformed
        return self.scale * (1.0 - (score - rating) ** 2 / 100.0)
