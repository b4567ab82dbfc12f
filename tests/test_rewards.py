"""Rewards: values by hand, which rules are proper, other scales, whole answers, and classes of the user's own."""

import math
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonargparse import ArgumentParser

from lovec.cli.errors import root_cause
from lovec.rewards import (
    LinearReward,
    LogReward,
    QuadraticReward,
    Reward,
    answer_reward,
    argmax_with_ties,
    best_score,
    mean_reward,
    reward_table,
    sentence_rewards,
    with_scale,
)
from lovec.types import LovecError, Record, Scale

SCORES = range(11)
TENTHS = [tenths / 10 for tenths in SCORES]
RULES = [LogReward, QuadraticReward, LinearReward]

scores = st.integers(0, 10)
ratings = st.integers(0, 10)
probabilities = st.floats(0.0, 1.0)


def best(reward, truths=TENTHS):
    return [best_score(reward, truth) for truth in truths]


def mean_of(reward, scores, ratings):
    return mean_reward(sentence_rewards(reward, scores, ratings))


def nearest(truth):
    """The scores nearest 10 q, two at a tie."""
    distance = [abs(score - 10 * truth) for score in SCORES]
    return [score for score in SCORES if distance[score] <= min(distance) + 1e-9]


# ---------------------------------------------------------------- values


@pytest.mark.parametrize(
    ("score", "rating", "expected"),
    [(10, 10, 33.1228), (0, 0, 31.6228), (10, 0, -31.6228), (0, 10, -30.1228), (5, 5, 27.7346), (8, 3, 24.2419)],
)
def test_log_equals_the_papers_listing(score, rating, expected):
    assert LogReward()(score, rating) == pytest.approx(expected, abs=5e-5)


@pytest.mark.parametrize(
    ("score", "rating", "expected"),
    [(10, 10, 10.0), (0, 0, 10.0), (10, 0, 0.0), (0, 10, 0.0), (8, 3, 7.5), (5, 6, 9.9)],
)
def test_quadratic_by_hand(score, rating, expected):
    assert QuadraticReward()(score, rating) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("score", "rating", "expected"),
    [(10, 10, 10.0), (0, 0, 10.0), (10, 0, 0.0), (0, 10, 0.0), (8, 3, 5.0), (5, 6, 9.0)],
)
def test_linear_by_hand(score, rating, expected):
    assert LinearReward()(score, rating) == pytest.approx(expected)


@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("rating", SCORES)
def test_contrast_two_is_the_rule_of_expected_reward(score, rating):
    expected = 10 * (1 - 2 * (score / 10 - rating / 10) ** 2)
    assert QuadraticReward(contrast=2)(score, rating) == pytest.approx(expected)


# ---------------------------------------------------------------- options


@pytest.mark.parametrize("rule", RULES)
def test_options_that_all_rules_have(rule):
    plain = rule(scale=4, bonus=0, gamma=1)
    for score, rating in [(3, 9), (10, 0), (10, 10), (7, 7)]:
        value = plain(score, rating)
        assert rule(scale=8, bonus=0, gamma=1)(score, rating) == pytest.approx(2 * value)
        assert rule(scale=4, bonus=0.5, gamma=1)(score, rating) == pytest.approx(value + 0.5 * rating)
        bent = math.copysign(value**2, value)
        assert rule(scale=4, bonus=0.5, gamma=2)(score, rating) == pytest.approx(bent + 0.5 * rating)


@pytest.mark.parametrize("rule", RULES)
def test_a_malformed_tag_is_worth_the_same_whatever_the_truth(rule):
    assert {rule()(None, rating) for rating in SCORES} == {-30.0}
    assert {rule(malformed=-7.0, bonus=1.0, gamma=2.0)(None, rating) for rating in SCORES} == {-7.0}


def test_malformed_is_worse_than_any_score_but_the_papers_worst():
    for rule in (QuadraticReward(), LinearReward()):
        assert all(value > rule(None, 0) for row in reward_table(rule) for value in row)
    below = [(c, f) for c, row in enumerate(reward_table(LogReward())) for f, value in enumerate(row) if value < -30]
    assert below == [(0, 10), (10, 0)]


def test_clip_and_worst_of_log():
    by_hand = 10 * (1 - math.log(0.05) / ((math.log(0.05) + math.log(0.95)) / 2))
    assert LogReward(clip=0.05, gamma=1, bonus=0)(10, 0) == pytest.approx(by_hand)
    positive = LogReward(clip=0.05, gamma=1, bonus=0, worst=-math.log(0.05))
    assert positive(10, 0) == pytest.approx(0.0)
    assert positive(10, 10) == pytest.approx(10 * (1 - math.log(0.95) / math.log(0.05)))
    assert min(map(min, reward_table(positive))) > -1e-9
    assert LogReward(clip=0.1)(0, 4) == LogReward(clip=0.1)(1, 4)


@pytest.mark.parametrize(
    ("rule", "options"),
    [
        *[(rule, {name: value}) for rule in RULES for name in ("scale", "gamma") for value in (0.0, -1.0, math.nan)],
        *[(rule, {name: math.inf}) for rule in RULES for name in ("malformed", "bonus", "scale")],
        *[(LogReward, {"clip": value}) for value in (0.0, 0.5, -1.0, 1.0, math.nan)],
        *[(LogReward, {"worst": value}) for value in (0.0, -2.0)],
        (QuadraticReward, {"contrast": 0.0}),
    ],
)
def test_a_bad_option_is_named(rule, options):
    ((name, value),) = options.items()
    with pytest.raises(LovecError, match=rf"^{name} of {rule.__name__} is {value}, expected "):
        rule(**options)


# ---------------------------------------------------------------- which score pays best

FINE = [step / 1000 for step in range(1001)]


@pytest.mark.parametrize(
    "reward",
    [QuadraticReward(), QuadraticReward(contrast=2), QuadraticReward(scale=3, bonus=2, malformed=1, contrast=0.3)],
    ids=["default", "contrast", "others"],
)
def test_quadratic_is_proper(reward):
    assert best(reward) == list(SCORES)
    assert all(best_score(reward, truth) in nearest(truth) for truth in FINE)


@given(st.lists(st.floats(0.01, 1.0), min_size=11, max_size=11), st.sampled_from([1.0, 2.0]))
def test_quadratic_is_proper_for_graded_ratings(weights, contrast):
    """For any distribution over ratings the best score is the one nearest its mean."""
    reward = QuadraticReward(contrast=contrast)
    mean = sum(w * rating for rating, w in enumerate(weights)) / sum(weights)
    expected = [sum(w * reward(score, rating) for rating, w in enumerate(weights)) for score in SCORES]
    assert all(abs(score - mean) <= 0.5 + 1e-6 for score in argmax_with_ties(expected))


def test_the_papers_log_is_proper_at_the_tenths_and_leans_between():
    assert best(LogReward()) == list(SCORES)
    assert best(LogReward(), [0.55, 0.75, 0.85, 0.95, 0.05]) == [6, 8, 9, 9, 1]
    assert best(LogReward(), [0.45, 0.25, 0.15]) == [4, 2, 1]
    # halfway between two scores it goes to the outer one, but for the ends
    assert best(LogReward(), [(score + 0.5) / 10 for score in SCORES[:-1]]) == [1, 1, 2, 3, 4, 6, 7, 8, 9, 9]


@pytest.mark.parametrize("clip", [1e-6, 1e-3, 0.05, 0.099])
@pytest.mark.parametrize("worst", [None, 3.0])
def test_log_without_stretch_is_proper(clip, worst):
    assert best(LogReward(gamma=1, clip=clip, worst=worst)) == list(SCORES)


def test_log_is_not_proper_with_another_clip_and_a_stretch():
    assert best(LogReward(clip=0.05), [0.6]) == [8]
    assert best(LogReward(clip=0.1, gamma=1), [0.0, 0.1]) == [0, 0]  # 0 and 1 are worth the same


def test_linear_is_not_proper():
    assert best(LinearReward(), [truth for truth in FINE if truth < 0.5]) == [0] * 500
    assert best(LinearReward(), [truth for truth in FINE if truth > 0.5]) == [10] * 500
    half = [0.5 * LinearReward()(score, 10) + 0.5 * LinearReward()(score, 0) for score in SCORES]
    assert argmax_with_ties(half) == list(SCORES)
    assert best(LinearReward(gamma=2)) == best(LinearReward())
    assert best(LinearReward(gamma=0.5), [0.6, 0.7]) == [7, 8]


def test_a_stretch_moves_the_best_score_of_quadratic():
    assert best(QuadraticReward(gamma=1.5), [0.8, 0.2]) == [9, 1]
    assert best(QuadraticReward(gamma=0.5), [0.9, 0.1]) == [8, 2]


@given(st.sampled_from(RULES), st.floats(-5, 5), st.sampled_from([0.5, 1.0, 1.5]), st.integers(0, 100))
def test_a_bonus_never_moves_the_best_score(rule, bonus, gamma, percent):
    without, with_bonus = rule(gamma=gamma, bonus=0), rule(gamma=gamma, bonus=bonus)
    expected = [percent / 100 * without(c, 10) + (1 - percent / 100) * without(c, 0) for c in SCORES]
    assert best_score(with_bonus, percent / 100) in [c for c in SCORES if expected[c] > max(expected) - 1e-7]


@pytest.mark.parametrize("rule", [rule() for rule in RULES], ids=lambda rule: type(rule).__name__)
def test_the_best_score_of_a_known_rating_is_that_rating(rule):
    by_rating = zip(*reward_table(rule), strict=True)
    assert [argmax_with_ties(row) for row in by_rating] == [[rating] for rating in SCORES]


# ---------------------------------------------------------------- properties

options = st.fixed_dictionaries(
    {"scale": st.floats(0.1, 50), "gamma": st.floats(0.3, 3), "bonus": st.floats(-1, 1), "malformed": st.floats(-99, 0)}
)


@given(st.sampled_from(RULES), options, st.none() | scores, ratings)
def test_rewards_are_finite_floats(rule, options, score, rating):
    value = rule(**options)(score, rating)
    assert isinstance(value, float)
    assert math.isfinite(value)
    if score is None:
        assert value == options["malformed"]


@given(st.sampled_from([QuadraticReward, LinearReward]), options, scores, scores, ratings)
def test_the_nearer_the_better(rule, options, one, other, rating):
    reward = rule(**options)
    if abs(one - rating) < abs(other - rating):
        assert reward(one, rating) > reward(other, rating)
    elif abs(one - rating) == abs(other - rating):
        assert reward(one, rating) == reward(other, rating)


@given(options, st.floats(1e-9, 0.49), scores, ratings)
def test_log_falls_to_either_side_of_the_truth(options, clip, score, rating):
    reward = LogReward(**options, clip=clip)
    towards = score + (rating > score) - (rating < score)
    assert reward(towards, rating) >= reward(score, rating) - 1e-9


@given(st.floats(1e-9, 0.49), scores, ratings)
def test_log_treats_true_and_false_alike(clip, score, rating):
    reward = LogReward(bonus=0, clip=clip)
    assert reward(score, rating) == pytest.approx(reward(10 - score, 10 - rating), abs=1e-6)


# ---------------------------------------------------------------- other scales

FIVE = Scale(("no", "hardly", "perhaps", "likely", "yes"))
HUNDRED = Scale(tuple(map(str, range(101))))


@pytest.mark.parametrize("rule", RULES)
def test_a_rule_is_worth_the_same_at_the_same_confidence_on_any_scale(rule):
    reward = rule(bonus=0.5, gamma=1.5)
    five, hundred = (with_scale(reward, scale) for scale in (FIVE, HUNDRED))
    assert type(five) is rule and five.malformed == reward.malformed
    for score, rating in [(0, 0), (10, 0), (0, 10), (10, 10), (5, 10), (5, 0)]:
        assert five(score * 4 // 10, rating * 4 // 10) == pytest.approx(reward(score, rating))
    for score, rating in [(0, 0), (10, 3), (7, 7), (1, 9)]:
        assert hundred(10 * score, 10 * rating) == pytest.approx(reward(score, rating))
    assert reward(10, 10) == rule(bonus=0.5, gamma=1.5)(10, 10)  # it is unchanged


@pytest.mark.parametrize("scale", [FIVE, HUNDRED], ids=["five", "hundred"])
def test_quadratic_is_proper_on_any_scale(scale):
    truths = [score / scale.top for score in range(scale.size)]
    assert [best_score(QuadraticReward(), truth, scale) for truth in truths] == list(range(scale.size))
    assert best_score(LinearReward(), 0.6, scale) == scale.top


def test_the_table_of_another_scale_has_its_size():
    table = reward_table(QuadraticReward(), FIVE)
    assert [len(row) for row in table] == [5] * 5
    assert table[1][3] == 10 * (1 - (2 / 4) ** 2)


def test_a_users_reward_gets_scores_of_the_scale():
    def distance(score, rating):
        return -abs(score - rating)

    assert with_scale(distance, FIVE) is distance
    assert reward_table(distance, FIVE)[0] == [0, -1, -2, -3, -4]


# ---------------------------------------------------------------- whole answers


def test_the_reward_of_an_answer_is_the_mean_over_sentences():
    assert mean_of(QuadraticReward(), [10, 5, 0], [10, 6, 10]) == pytest.approx((10 + 9.9 + 0) / 3)
    assert mean_of(QuadraticReward(), [10, None], [10, 6]) == pytest.approx((10 - 30) / 2)


def test_a_sentence_without_a_label_counts_only_if_it_is_malformed():
    assert mean_of(QuadraticReward(), [10, 3], [10, None]) == 10.0
    assert mean_of(QuadraticReward(), [10, None], [10, None]) == -10.0
    assert mean_of(QuadraticReward(), [None], [None]) == -30.0
    assert mean_of(QuadraticReward(), [3, 4], [None, None]) is None
    assert mean_of(QuadraticReward(), [], []) is None
    assert mean_of(QuadraticReward(), [0], [0]) == 10.0  # a rating of 0 is a label


@given(st.lists(st.tuples(st.none() | scores, st.none() | ratings)))
def test_the_reward_of_an_answer_does_not_depend_on_order(pairs):
    def of(pairs):
        return mean_of(LogReward(), [score for score, _ in pairs], [rating for _, rating in pairs])

    assert of(pairs) == of(pairs[::-1])


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_reward_that_is_not_finite_is_named(value):
    def peculiar(score, rating):
        return value if score == 4 else 1.0

    for ask in (lambda: mean_of(peculiar, [3, 4], [1, 7]), lambda: reward_table(peculiar)):
        with pytest.raises(LovecError, match=rf"^peculiar gives {value} for the score 4 and the rating [07], expected"):
            ask()
    assert mean_of(peculiar, [3, 4], [1, None]) == 1.0  # it is not called for the second sentence


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_an_answer_reward_that_is_not_finite_is_named(value):
    def peculiar(answer):
        return value if answer.answer else 2

    assert answer_reward(peculiar, Record("r1", "Who?")) == 2.0
    with pytest.raises(LovecError, match=rf"^peculiar gives {value} for an answer to 'r1', expected a finite number"):
        answer_reward(peculiar, Record("r1", "Who?", answer="Ada."))


def test_rewards_of_sentences_keep_their_places():
    rewards = sentence_rewards(QuadraticReward(), [10, 3, None, None, 0], [10, None, None, 7, 10])
    assert rewards == [10.0, None, -30.0, -30.0, 0.0]


def test_scores_and_ratings_must_match():
    with pytest.raises(LovecError, match="2 scores and 1 ratings, expected one of each per sentence"):
        sentence_rewards(QuadraticReward(), [1, 2], [3])


def test_the_table_is_by_score_then_rating():
    table = reward_table(LogReward())
    assert [len(row) for row in table] == [11] * 11
    assert table[8][3] == LogReward()(8, 3) != LogReward()(3, 8)


@pytest.mark.parametrize("truth", [-0.1, 1.1, math.nan])
def test_a_truth_is_a_probability(truth):
    with pytest.raises(LovecError, match=r"expected a number in \[0, 1\]"):
        best_score(LinearReward(), truth)


def test_equal_up_to_rounding_is_equal():
    assert argmax_with_ties([0.1 + 0.2, 0.2, 0.3]) == [0, 2]
    assert argmax_with_ties([-1.0, -2.0]) == [0]


# ---------------------------------------------------------------- by class path

USER_FILE = """
class Cautious:
    def __init__(self, fine: float = 1.0) -> None:
        self.fine = fine

    def __call__(self, score: int | None, rating: int) -> float:
        return -9.0 if score is None else -self.fine * max(score - rating, 0)


def constant(score: int | None, rating: int) -> float:
    return 3.0
"""


class Learner:
    """A class that takes a reward as an option."""

    def __init__(self, reward: Reward | None = None, steps: int = 1) -> None:
        self.reward = reward


def parsed(*words):
    parser = ArgumentParser(exit_on_error=False)
    parser.add_class_arguments(Learner, "model")
    return parser.instantiate(parser.parse_args(list(words))).model.reward


def test_rules_come_by_class_path_with_their_options():
    reward = parsed("--model.reward", "lovec.rewards.LogReward", "--model.reward.clip", "1e-3")
    assert (type(reward), reward.clip, reward.gamma) == (LogReward, 1e-3, 1.5)
    assert parsed("--model.reward", "QuadraticReward", "--model.reward.contrast", "2")(10, 0) == -10.0
    with pytest.raises(ValueError, match=r"clip of LogReward is 0\.5, expected above 0 and below 0\.5") as error:
        parsed("--model.reward", "LogReward", "--model.reward.clip", "0.5")
    assert isinstance(root_cause(error.value), LovecError)  # what the command prints


def test_a_users_reward_needs_no_base_class(tmp_path, monkeypatch):
    (tmp_path / "cautious.py").write_text(USER_FILE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "cautious", raising=False)
    reward = parsed("--model.reward", "cautious.Cautious", "--model.reward.fine", "2")
    assert mean_of(reward, [9, None, 2], [4, None, 5]) == pytest.approx((-10 - 9 + 0) / 3)
    assert best(reward) == [0] * 11
    assert parsed("--model.reward", "cautious.constant")(None, 0) == 3.0
