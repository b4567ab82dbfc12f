import pytest
from hypothesis import given
from hypothesis import strategies as st

from lovec.rewards import QuadraticReward, Reward

SCORES = range(11)


@pytest.mark.parametrize(
    ("score", "rating", "expected"),
    [(10, 10, 10.0), (0, 0, 10.0), (10, 0, 0.0), (0, 10, 0.0), (8, 3, 7.5), (5, 6, 9.9)],
)
def test_quadratic_by_hand(score, rating, expected):
    assert QuadraticReward()(score, rating) == pytest.approx(expected)


def test_quadratic_options():
    reward: Reward = QuadraticReward(scale=2.0, malformed=-7.0)
    assert reward(None, 4) == -7.0
    assert reward(5, 10) == pytest.approx(1.5)
    assert QuadraticReward()(None, 10) == -30.0


@pytest.mark.parametrize("tenths", SCORES)
def test_quadratic_is_proper(tenths):
    """Under a yes/no truth with probability q the best score is 10 q."""
    reward, q = QuadraticReward(), tenths / 10
    expected = [q * reward(score, 10) + (1 - q) * reward(score, 0) for score in SCORES]
    assert max(SCORES, key=expected.__getitem__) == tenths
    assert sorted(expected)[-1] > sorted(expected)[-2]


@given(st.lists(st.floats(0.01, 1.0), min_size=11, max_size=11))
def test_quadratic_is_proper_for_ratings_too(weights):
    """For any distribution over ratings the best score is the one nearest its mean."""
    reward = QuadraticReward()
    mean = sum(w * rating for rating, w in enumerate(weights)) / sum(weights)
    expected = [sum(w * reward(score, rating) for rating, w in enumerate(weights)) for score in SCORES]
    best = max(SCORES, key=expected.__getitem__)
    assert abs(best - mean) <= 0.5 + 1e-6


def test_malformed_is_worse_than_any_score():
    reward = QuadraticReward()
    assert all(reward(None, rating) < reward(score, rating) for score in SCORES for rating in SCORES)
