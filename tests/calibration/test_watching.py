"""Bets on broken promises and wrong confidences: fair by hand, and nothing is lost in a file."""

from __future__ import annotations

import itertools
import json

import numpy as np
import pytest

from lovec.calibration import Guarantee, Rated, Watch
from lovec.calibration.conformal import Passage
from lovec.calibration.watching import (
    FRACTIONS,
    ZONES,
    Alarm,
    Bets,
    e_values,
    grown,
    map_alarm,
    map_gaps,
    promise_alarm,
    promise_loss,
)
from lovec.types import LovecError

ALL_TRUE = Guarantee("all-true", 0.1, 1.0, 0.5, 0.6, 100, 500, 0.4)
ERRORS = Guarantee("errors", 0.2, 1.0, 0.5, 0.6, 100, 500, 0.4)


def test_one_value_by_hand():
    bets = Bets(0.2).after(1.0)
    assert bets.wealth == pytest.approx([0.5 / 5 * (1 + g * 4) for g in FRACTIONS])
    assert bets.e_value == pytest.approx(0.5 + sum(bets.wealth))
    again = bets.after(0.0)
    assert again.wealth == pytest.approx([(w + 1 / 30) * (1 - g) for w, g in zip(bets.wealth, FRACTIONS, strict=True)])
    assert (again.seen, again.recent) == (2, 0.5)
    assert again.e_value == pytest.approx(1 / 3 + sum(again.wealth))


@pytest.mark.parametrize("limit", [0.1, 0.5])
def test_bets_are_fair_at_the_limit_and_lose_below_it(limit):
    def expected(mean):
        total = 0.0
        for values in itertools.product((0.0, 1.0), repeat=6):
            bets = Bets(limit)
            for value in values:
                bets = bets.after(value)
            total += bets.e_value * np.prod([mean if value else 1 - mean for value in values])
        return total

    assert expected(limit) == pytest.approx(1.0)
    assert expected(limit / 2) < 1.0 < expected(2 * limit)


def test_a_change_is_found_as_soon_after_many_answers_as_the_logarithm_says():
    """Wealth that was all bet from the start would be lost by then, and the change found hundreds of answers later."""

    def answers_until(raised_after: int) -> int:
        alarm = promise_alarm(0.1)
        for number in range(raised_after):
            alarm = alarm.after([float(number % 20 == 0)])
        assert alarm.raised is None
        while alarm.raised is None:
            alarm = alarm.after([float(alarm.seen % 2 == 0)])
        return alarm.raised - raised_after

    assert (answers_until(0), answers_until(100), answers_until(1000), answers_until(10_000)) == (11, 27, 35, 45)


def test_an_alarm_stays_raised_and_is_the_mean_of_its_bets():
    alarm = Alarm(0.1, (Bets(0.1), Bets(0.5)))
    for _ in range(4):
        alarm = alarm.after([1.0, 0.0])
    assert alarm.raised == 3
    first, second = alarm.bets
    assert alarm.e_value == pytest.approx((first.e_value + second.e_value) / 2)
    for _ in range(200):
        alarm = alarm.after([0.0, 0.0])
    assert alarm.raised == 3 and alarm.e_value < 1


def test_wealth_stays_finite():
    wealth = np.zeros(len(FRACTIONS))
    for seen in range(2000):
        wealth = grown(wealth, seen, 1.0, 0.01)
    assert np.isfinite(e_values(wealth, 2000)) and wealth.max() == 1e15
    alarm = promise_alarm(0.01)
    for _ in range(40):
        alarm = alarm.after([1.0])
    assert Alarm.from_dict(json.loads(json.dumps(alarm.to_dict()))) == alarm


def test_the_loss_of_a_promise():
    kept_false = Passage([0.9, 0.7, 0.5, None], [True, False, False, False])
    assert promise_loss(ALL_TRUE, kept_false) == 1.0
    assert promise_loss(ALL_TRUE, Passage([0.9, 0.6], [True, False])) == 0.0  # at the threshold: not kept
    assert promise_loss(ERRORS, kept_false) == 0.25
    share = Guarantee("share", 0.1, 0.5, 0.5, 0.6, 100, 500, 0.4)
    assert promise_loss(share, kept_false) == 0.0


def test_gaps_by_hand():
    gaps = map_gaps([0.9, 0.75, 0.1, 0.5], [0.0, 1.0, 0.5, 0.25], tolerance=0.05)
    means = 2 * gaps.reshape(len(ZONES), 2) - 1.05
    expected = {
        (0.0, 1.0): (-0.9 + 0.25 + 0.4 - 0.25, 4),
        (0.0, 0.25): (0.4, 1),
        (0.25, 0.5): (0.0, 0),
        (0.5, 0.75): (-0.25, 1),
        (0.75, 1.0): (-0.65, 2),
    }
    for row, zone in zip(means, ZONES, strict=True):
        gap, inside = expected[zone]
        assert row == pytest.approx([(gap - 0.05 * inside) / 4, (-gap - 0.05 * inside) / 4]), zone
    assert map_gaps([1.0], [0.0], 0.05)[[1, 9]] == pytest.approx(1.0)  # 1 lies in the last zone
    assert map_gaps([1.0], [0.0], 0.05)[[0, 8]] == pytest.approx(0.0)


def test_a_watch_says_what_is_wrong_and_goes_through_a_file():
    watch = Watch.over([ALL_TRUE, ERRORS])
    right = [Rated(0.9, 0.8, 1.0)] * 9 + [Rated(0.2, 0.3, 0.0)] * 4 + [Rated(0.2, 0.3, 1.0), Rated(None, None, 0.0)]
    for _ in range(200):
        watch = watch.after(right)
    assert watch.problems() == [] and watch.map.seen == 200
    wrong = [Rated(0.9, 0.8, 1.0), Rated(0.9, 0.8, 0.0), Rated(0.2, 0.3, 0.2)]
    for _ in range(300):
        watch = watch.after(wrong)
    first, second, third = watch.problems()
    assert "all kept sentences of an answer are true" in first and "of about the latest 100 rated answers" in first
    assert "are on average at most 0.2 of all" in second and "of their sentences are kept and false" in second
    assert third.startswith("confidences from 0.75 to 1 are too high, by more than 0.05 on average")
    assert Watch.from_dict(json.loads(json.dumps(watch.to_dict()))) == watch
    assert watch.after([]) is watch
    unrated = watch.after([Rated(None, None, 1.0)])
    assert (unrated.map, unrated.promises[0].seen) == (watch.map, 501)


def test_too_low_confidences_are_found_as_well():
    watch = Watch.over([])
    for _ in range(100):
        watch = watch.after([Rated(0.3, None, 1.0), Rated(0.6, None, 1.0)])
    [problem] = watch.problems()
    assert problem.startswith("confidences are too low, by more than 0.05")


@pytest.mark.parametrize("value", [-0.1, 1.1, float("nan")])
def test_values_outside_are_refused(value):
    with pytest.raises(LovecError, match="a value that is bet on"):
        promise_alarm(0.1).after([value])


def test_settings_outside_are_refused():
    with pytest.raises(LovecError, match="limit of bets"):
        promise_alarm(1.0)
    with pytest.raises(LovecError, match="level of an alarm"):
        promise_alarm(0.1, level=0.0)
    with pytest.raises(LovecError, match="tolerance"):
        map_alarm(tolerance=1.0)
