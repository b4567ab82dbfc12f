"""Scores that are known from writing: where they are told, and where they are not."""

from __future__ import annotations

import math
import random

import pytest

from lovec.encoding.written import NEGLIGIBLE, choice_logps, steps_behind

BLANK, ONE, ZERO, NINE, CLOSE = 7, 1, 0, 9, 5
DIGITS = [[BLANK, ZERO], [BLANK, ONE, CLOSE], [BLANK, NINE], [BLANK, ONE, ZERO]]
"""The scores 0, 1, 9 and 10 with a token per digit."""


def steps(*places: tuple[int, dict[int, float]]) -> list[tuple[int, dict[int, float]]]:
    """Steps from probabilities."""
    return [(token, {other: math.log(p) for other, p in found.items()}) for token, found in places]


def probabilities(choices: list[list[int]], written: list[tuple[int, dict[int, float]]]) -> list[float] | None:
    found = choice_logps(choices, written)
    return None if found is None else [math.exp(logp) for logp in found]


def test_first_tokens_are_told_by_the_place_behind_the_context() -> None:
    written = steps((9, {1: 0.2, 2: 0.3, 3: 0.05}), (5, {1: 0.9, 2: 0.9, 3: 0.9}))  # the 9 is none of them
    assert probabilities([[1], [2], [3]], written) == pytest.approx([0.2, 0.3, 0.05])
    assert choice_logps([[1], [4]], written) is None
    assert choice_logps([[1]], []) is None


def test_a_digit_more_is_told_where_the_model_wrote_the_one_before() -> None:
    blank, digit = (BLANK, {BLANK: 0.8}), {ZERO: 0.1, ONE: 0.5, NINE: 0.4}
    last = (ZERO, {ZERO: 0.7, CLOSE: 0.2})
    expected = [0.8 * 0.1, 0.8 * 0.5 * 0.2, 0.8 * 0.4, 0.8 * 0.5 * 0.7]
    assert probabilities(DIGITS, steps(blank, (ONE, digit), last)) == pytest.approx(expected)
    assert choice_logps(DIGITS, steps(blank, (NINE, digit), last)) is None  # what follows a 1 was not seen
    assert choice_logps(DIGITS, steps(blank, (ONE, digit))) is None  # nor here: nothing follows yet
    assert choice_logps(DIGITS, steps((3, {BLANK: 0.8}), (ONE, digit), last)) is None  # it wrote no blank


@pytest.mark.parametrize(("share", "known"), [(0.9, True), (1.1, False)])
def test_what_is_not_told_apart_is_shared_out_only_where_it_is_negligible(share: float, known: bool) -> None:
    rest = share * NEGLIGIBLE
    for total in (1.0, 1e-6):  # shares count: confidences are those of the distribution over scores alone
        probability = {ZERO: 0.1 * total, ONE: rest * total, NINE: 0.9 * total}
        found = probabilities(DIGITS, steps((BLANK, {BLANK: 1.0}), (NINE, probability)))
        assert (found is not None) == known
        if found is not None:
            assert found == pytest.approx([0.1 * total, rest * total / 2, 0.9 * total, rest * total / 2])
    twice = [*DIGITS, [BLANK, NINE, CLOSE, 2], [BLANK, NINE, CLOSE, 3]]  # the bound holds for all of them together
    half = steps((BLANK, {BLANK: 1.0}), (NINE, {ZERO: 1.0, ONE: rest / 2, NINE: 0.1}), (CLOSE, {CLOSE: 5 * rest}))
    assert (probabilities([choice for choice in twice if choice != [BLANK, NINE]], half) is not None) == known


def test_no_probability_is_off_by_more_than_what_is_negligible() -> None:
    draw = random.Random(0)
    told = 0
    for _ in range(300):
        ones = draw.choice((0.4, 1e-4, 1e-5))
        close = draw.random()
        zero = draw.random() * (1 - ones)
        right = [zero, ones * close, 1 - ones - zero, ones * (1 - close)]
        digit = {ZERO: zero, ONE: ones, NINE: 1 - ones - zero}
        written = draw.choice((ONE, NINE))
        found = probabilities(
            DIGITS, steps((BLANK, {BLANK: 1.0}), (written, digit), (CLOSE, {CLOSE: close, ZERO: 1 - close}))
        )
        if found is not None:
            told += 1
            assert max(abs(one - other) for one, other in zip(found, right, strict=True)) <= NEGLIGIBLE
    assert 150 < told < 300


def test_steps_are_what_was_written_behind_a_context_and_nothing_where_it_was_not() -> None:
    prompt, ids, watched = [1, 2], (3, 4, 5), [{9: -1.0}, {9: -2.0}, {9: -3.0}]
    assert steps_behind([1, 2, 3], prompt, ids, watched) == [(4, {9: -2.0}), (5, {9: -3.0})]
    assert steps_behind([1, 2], prompt, ids, watched)[0] == (3, {9: -1.0})
    assert list(steps_behind([1, 2, 3, 4, 5], prompt, ids, watched)) == []  # nothing is behind it yet
    for context in ([1, 2, 9], [1, 7, 3], [1], [1, 2, 3, 4, 5, 6]):
        assert list(steps_behind(context, prompt, ids, watched)) == []
    assert list(steps_behind([1, 2, 3], prompt, ids, watched[:1])) == []  # it is not known what stood there
