"""How long a training takes is told from medians of what was measured, and one-time costs count once."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest

from lovec.callbacks.estimate import PROBE, VALIDATION, Left, RunEstimate, due_before, typical, validations_before
from lovec.callbacks.progress import planned_batches


class Clock:
    """A clock that is put forward by hand."""

    def __init__(self) -> None:
        self.time = 100.0

    def __call__(self) -> float:
        return self.time

    def passes(self, seconds: float) -> None:
        self.time += seconds


def trained(clock: Clock, estimate: RunEstimate, steps: list[tuple[float, float]], probe: float = 0.0) -> None:
    """Let steps of (seconds, work) go by, the first of them behind a probe."""
    estimate.steps_begin()
    if probe:
        with estimate.aside(PROBE):
            clock.passes(probe)
    for seconds, work in steps:
        estimate.step_begins()
        clock.passes(seconds)
        estimate.step_ends(work)


def test_a_run_of_38_minutes_is_said_to_be_one() -> None:
    """Half a minute to load, a probe of 240 s, a first step that takes twice as long, then steps of 15 s."""
    clock = Clock()
    estimate = RunEstimate(clock)
    clock.passes(30)
    trained(clock, estimate, [(30, 3200), (15, 3200), (16, 3200), (14, 3200)], probe=20)
    left = Left(134 * 3200, {VALIDATION: 3, PROBE: 2})
    estimate.guesses[VALIDATION] = 40
    assert estimate.settled and estimate.rate == pytest.approx(15 / 3200)
    assert estimate.left(left) == pytest.approx(134 * 15 + 3 * 40 + 2 * 20)
    # 30 + 20 + 75 are gone; without what happens once it would be 125 / 4 * 134 = 70 min.
    assert estimate.summary(left, 138) == "about 38 min: 138 steps of 15 s, 3 validations of 40 s, probes 60 s"


def test_steps_cost_what_they_hold() -> None:
    clock = Clock()
    estimate = RunEstimate(clock)
    trained(clock, estimate, [(50, 10), (10, 100), (40, 400), (2, 20)])
    assert estimate.rate == pytest.approx(0.1)
    assert estimate.left(Left(1000.0, {})) == pytest.approx(100.0)


def test_validations_and_probes_count_for_no_step_and_replace_guesses() -> None:
    clock = Clock()
    estimate = RunEstimate(clock)
    estimate.guesses[VALIDATION] = 7.0
    assert estimate.each(VALIDATION) == 7.0 and estimate.each(PROBE) == 0.0
    trained(clock, estimate, [(2, 1), (2, 1)])
    with estimate.aside(VALIDATION):
        clock.passes(5)
        assert estimate.aside_left(VALIDATION) == 2.0 and estimate.aside_left(PROBE) is None
        clock.passes(28)
        assert estimate.aside_left(VALIDATION) == 0.0
    clock.passes(1)  # a checkpoint is written
    estimate.step_begins()
    clock.passes(2)
    assert estimate.step_left(1) == 0.0 and estimate.step_left(4) == pytest.approx(6.0)
    estimate.step_ends(1)
    assert estimate.rate == pytest.approx(2.5)  # of 2 and 3; the first one has one-time costs
    assert estimate.each(VALIDATION) == 33 and estimate.done(VALIDATION) == 1 and estimate.spent(VALIDATION) == 33
    assert estimate.seconds == pytest.approx(40)


def test_before_any_step_there_is_a_guess_or_nothing() -> None:
    estimate = RunEstimate(Clock())
    assert estimate.left(Left(5.0, {})) is None and estimate.step_left(1.0) is None and not estimate.settled
    estimate.rate_guess = 2.0
    assert estimate.left(Left(5.0, {})) == 10.0


@pytest.mark.parametrize(("steps", "settled"), [([90], False), ([40, 19], False), ([40, 21], True), ([1, 1, 1], True)])
def test_two_long_steps_or_three_short_ones_are_enough(steps: list[float], settled: bool) -> None:
    clock = Clock()
    estimate = RunEstimate(clock)
    trained(clock, estimate, [(seconds, 1) for seconds in steps])
    assert estimate.settled == settled


def test_only_recent_steps_count() -> None:
    """A machine that others begin to use becomes slower."""
    clock = Clock()
    estimate = RunEstimate(clock)
    trained(clock, estimate, [(1, 1)] * 100 + [(3, 1)] * 100)
    assert estimate.rate == pytest.approx(3.0)


def test_the_typical_time_leaves_out_the_first() -> None:
    assert typical([]) is None and typical([9.0]) == 9.0 and typical([9.0, 2.0]) == 2.0
    assert typical([9.0, 2.0, 3.0, 100.0]) == 3.0


@pytest.mark.parametrize(
    ("batches", "every", "expected"), [(0, 50, 0), (1, 50, 1), (50, 50, 1), (51, 50, 2), (9, 0, 0)]
)
def test_probes_before_a_batch(batches: int, every: int, expected: int) -> None:
    assert due_before(batches, every) == expected


def lightning(**options: Any) -> Any:
    defaults = {"val_check_batch": 10, "num_training_batches": 10, "num_val_batches": [2], "check_val_every_n_epoch": 1}
    return SimpleNamespace(**{**defaults, "max_epochs": 3, "max_steps": -1, **options})


@pytest.mark.parametrize(
    ("options", "batches", "expected"),
    [
        ({}, 30, 3),
        ({}, 29, 2),
        ({"val_check_batch": 4}, 30, 6),
        ({"val_check_batch": 4}, 14, 3),
        ({"check_val_every_n_epoch": 2}, 30, 1),
        ({"check_val_every_n_epoch": 2}, 20, 1),
        ({"check_val_every_n_epoch": None, "val_check_batch": 7}, 30, 4),
        ({"num_val_batches": []}, 30, 0),
        ({"num_val_batches": [0]}, 30, 0),
        ({"val_check_batch": math.inf, "num_training_batches": math.inf}, 30, 0),
    ],
)
def test_validations_before_a_batch(options: dict[str, Any], batches: int, expected: int) -> None:
    assert validations_before(lightning(**options), batches) == expected


@pytest.mark.parametrize(
    ("options", "updates", "expected"),
    [
        ({}, 1, 30),
        ({"max_steps": 12}, 1, 12),
        ({"max_steps": 12}, 2, 6),  # steps of the optimiser, two a batch
        ({"max_steps": 12, "max_epochs": 1}, 1, 10),
        ({"max_steps": 12, "max_epochs": -1}, 1, 12),
        ({"max_epochs": -1}, 1, math.inf),
        ({"max_epochs": 0, "num_training_batches": math.inf}, 1, 0),
    ],
)
def test_the_number_of_batches(options: dict[str, Any], updates: int, expected: float) -> None:
    assert planned_batches(lightning(**options), updates) == expected
