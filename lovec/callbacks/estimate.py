"""How long a training takes: from the median of its measured steps, without what happens once."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import median
from typing import Any

from lovec.core.notices import counted
from lovec.core.progress import rounded_time

VALIDATION, PROBE = "validation", "probe"

_ENOUGH_STEPS = 3  # the first one has one-time costs
_ENOUGH_SECONDS = 60.0  # after which two of them are enough
_RECENT = 100  # steps whose median counts: a machine may become slower


@dataclass(frozen=True, slots=True)
class Left:
    """What is still to be done of a training.

    Attributes:
        work: work of the steps that are left, in any unit that their cost is proportional to.
        counts: how many validations and probes are left.
    """

    work: float
    counts: Mapping[str, int]


def typical(seconds: list[float]) -> float | None:
    """Return the median of measured times, the first of which is left out as soon as there is another.

    None where nothing was measured.
    """
    return median(seconds[1:] or seconds) if seconds else None


class RunEstimate:
    """Measures the steps, validations and probes of a training, and tells how long the rest of it takes.

    The time of a step is that from the end of the step before, so that checkpoints and logs count, without that of
    validations and probes in between. It is measured per unit of work, since steps differ in what they hold.

    Args:
        now: the clock, in seconds.

    Attributes:
        guesses: seconds of one validation or one probe, for as long as none was measured.
        rate_guess: seconds of a step per unit of work, for as long as no step was measured; None is unknown.
    """

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._begun = self._last = now()
        self._aside = 0.0
        self._rates: list[float] = []
        self._steps: list[float] = []
        self._times: dict[str, list[float]] = {VALIDATION: [], PROBE: []}
        self._step_begun: float | None = None
        self._aside_begun = self._begun
        self.guesses: dict[str, float] = {}
        self.rate_guess: float | None = None

    def steps_begin(self) -> None:
        """Begin to measure steps; what was done before has happened once."""
        self._last, self._aside = self._now(), 0.0

    @contextmanager
    def aside(self, kind: str) -> Iterator[None]:
        """Measure a validation or a probe, and count it for no step."""
        begin = self._aside_begun = self._now()
        yield
        seconds = self._now() - begin
        self._times[kind].append(seconds)
        self._aside += seconds

    def step_begins(self) -> None:
        """Note when the step under way has begun."""
        self._step_begun = self._now()

    def step_ends(self, work: float) -> None:
        """Count a step.

        Args:
            work: its work, above 0.
        """
        now = self._now()
        seconds = now - self._last - self._aside
        self._steps.append(seconds)
        self._rates.append(seconds / work)
        del self._steps[1:-_RECENT], self._rates[1:-_RECENT]  # the first one stays, to be left out
        self._last, self._aside, self._step_begun = now, 0.0, None

    @property
    def seconds(self) -> float:
        """Time since the training began, preparations included."""
        return self._now() - self._begun

    def done(self, kind: str) -> int:
        """Return how many validations or probes were measured."""
        return len(self._times[kind])

    def spent(self, kind: str) -> float:
        """Return the seconds of all validations or probes so far."""
        return sum(self._times[kind])

    @property
    def rate(self) -> float | None:
        """Seconds of a step per unit of work; a guess before the first step, and None without one."""
        found = typical(self._rates)
        return self.rate_guess if found is None else found

    @property
    def settled(self) -> bool:
        """Whether enough was measured to say how long the training takes."""
        enough = 2 if self.seconds > _ENOUGH_SECONDS else _ENOUGH_STEPS
        return len(self._steps) >= enough

    def each(self, kind: str) -> float:
        """Return the seconds that the next validation or probe takes; 0 where nothing is known."""
        measured = self._times[kind]
        return median(measured) if measured else self.guesses.get(kind, 0.0)

    def aside_left(self, kind: str) -> float | None:
        """Return how many seconds the validation or probe under way still takes; None where it is not known."""
        expected = self.each(kind)
        return max(0.0, expected - (self._now() - self._aside_begun)) if expected else None

    def left(self, left: Left) -> float | None:
        """Return how many seconds the rest takes; None before anything was measured."""
        if (rate := self.rate) is None:
            return None
        return left.work * rate + sum(number * self.each(kind) for kind, number in left.counts.items())

    def step_left(self, work: float) -> float | None:
        """Return how many seconds the step under way still takes; None where it is not known.

        Args:
            work: its work.
        """
        if self._step_begun is None or not self._rates:
            return None
        return max(0.0, work * (self.rate or 0.0) - (self._now() - self._step_begun))

    def summary(self, left: Left, steps: int, seconds_left: float | None = None) -> str:
        """Return how long the training takes and what of, such as "about 38 min: 138 steps of 15 s, probes 1 min".

        Args:
            left: what is still to be done.
            steps: number of the steps of this process, those that are done included.
            seconds_left: how long the rest takes, where it is less than all that is left to do; None is just that.
        """
        rest = self.left(left) if seconds_left is None else seconds_left
        parts = [f"{counted(steps, 'step')} of {rounded_time(typical(self._steps) or 0.0)}"]
        if number := self.done(VALIDATION) + left.counts.get(VALIDATION, 0):
            parts.append(f"{counted(number, 'validation')} of {rounded_time(self.each(VALIDATION))}")
        probes = left.counts.get(PROBE, 0)
        if self.done(PROBE) + probes:
            parts.append(f"probes {rounded_time(self.spent(PROBE) + probes * self.each(PROBE))}")
        return f"about {rounded_time(self.seconds + (rest or 0.0))}: {', '.join(parts)}"


def due_before(batches: int, every: int) -> int:
    """Return how many of the batches 0 to ``batches`` - 1 have a number that ``every`` divides; 0 divides none."""
    return -(-batches // every) if every > 0 else 0


def validations_before(trainer: Any, batches: int) -> int:
    """Return how many validations a training makes in its first batches.

    Args:
        trainer: the Lightning trainer, whose loaders are set up.
        batches: number of batches, over all epochs.
    """
    interval, per_epoch = trainer.val_check_batch, trainer.num_training_batches
    if not sum(trainer.num_val_batches) or not interval or interval == float("inf"):
        return 0
    if trainer.check_val_every_n_epoch is None:
        return int(batches // interval)
    if per_epoch == float("inf"):
        return 0
    epochs, rest = divmod(batches, int(per_epoch))
    every = trainer.check_val_every_n_epoch
    found: int = epochs // every * int(per_epoch // interval)
    return found + (int(rest // interval) if (epochs + 1) % every == 0 else 0)
