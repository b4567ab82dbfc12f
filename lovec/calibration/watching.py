"""Whether a promise still holds and confidences still agree with the truth, asked again after every rated answer.

A test that is repeated finds something sooner or later, unless it is made for that. These are bets (Waudby-Smith and
Ramdas 2024, arXiv 2010.09686): somebody who owns 1 bets, answer by answer, that a mean lies above a limit. Unless it
does, their wealth is not expected to grow, so it ever reaches 1 / level with a probability of at most the level (Ville
1939). It may therefore be looked at after every answer, and for ever.

What is bet on is one number per answer, since the sentences of an answer depend on each other.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from lovec.calibration.conformal import Guarantee, Passage, holds, retention
from lovec.calibration.drift import LEVEL
from lovec.calibration.logistic import Array
from lovec.core.plain import PlainObject, Share, Within
from lovec.core.settings import LARGEST, check_range
from lovec.types import LovecError

TOLERANCE = 0.05
"""How far confidences may lie from the share that is true, on average, before that is called drift."""

ZONES = ((0.0, 1.0), (0.0, 0.25), (0.25, 0.5), (0.5, 0.75), (0.75, 1.0))
"""Ranges of confidences that are looked at each by itself: all, and quarters."""

RECENT = 100
"""About how many of the latest answers the mean in a message is of."""

FRACTIONS = (0.9, 0.45, 0.22, 0.11, 0.05)
"""Shares of a wealth that an answer can cost at most. Each is about half of the one before, so that one of them is near
the best bet, whatever that is."""

_SIDES = (1, -1)  # sentences are true more often than their confidences say, and less often


def grown(wealth: ArrayLike, seen: int, values: ArrayLike, limits: ArrayLike) -> Array:
    """Return the wealth of bets after one more value.

    The bet with the fraction g multiplies what it owns by 1 + g (value / limit - 1): on average by at most 1 where the
    mean of the value, given all before, is at most the limit. Half of the wealth of 1 is bet from the first value on, a
    sixth from the second on, and 1 / (t (t + 1)) from value t on, in equal parts by each of `FRACTIONS`. What is lost
    on values before a change thus leaves enough for those after it: the number of values until a change is found grows
    only with the logarithm of how late it comes.

    Args:
        wealth: what the bets that have begun own, [..., number of `FRACTIONS`]; at first 0.
        seen: number of values before.
        values: the values [...], in [0, 1].
        limits: the limits [...], in (0, 1).

    Returns:
        The wealth, of the shape of the old one; no more than `LARGEST`, which only makes it less.
    """
    begun = 1.0 / ((seen + 1) * (seen + 2) * len(FRACTIONS))
    odds = (np.asarray(values, dtype=np.float64) / np.asarray(limits) - 1.0)[..., None]
    found: Array = np.minimum((np.asarray(wealth) + begun) * (1.0 + np.array(FRACTIONS) * odds), LARGEST)
    return found


def e_values(wealth: ArrayLike, seen: int) -> Array:
    """Return the whole wealth [...], that of bets that have begun [..., number of `FRACTIONS`] and what is left."""
    return np.asarray(np.asarray(wealth).sum(-1) + 1.0 / (seen + 1))


def map_gaps(confidences: ArrayLike, factuality: ArrayLike, tolerance: float = TOLERANCE) -> Array:
    """Return what the bets of `map_alarm` are on, for the sentences of one answer.

    For a zone Z and a side s (1 or -1) it is y = mean of (s (f - c) - tolerance) 1[c in Z] over the sentences, which is
    at most 0 on average if f - c, for confidences in the zone, is on average at most the tolerance on this side. It
    lies between -1 - tolerance and 1 - tolerance, and is returned as (y + 1 + tolerance) / 2.

    Args:
        confidences: c, [..., S], in [0, 1], at least one.
        factuality: f, [..., S], in [0, 1].
        tolerance: as for `map_alarm`.

    Returns:
        [..., 2 * number of `ZONES`], in [0, 1]: of each zone its upper and its lower side.
    """
    c, f = np.asarray(confidences, dtype=np.float64), np.asarray(factuality, dtype=np.float64)
    found = []
    for low, high in ZONES:
        inside = (c >= low) & ((c < high) | (high == 1.0))
        found += [((side * (f - c) - tolerance) * inside).mean(-1) for side in _SIDES]
    return ((np.stack(found, -1) + 1.0 + tolerance) / 2.0).clip(0.0, 1.0)


class Rated(NamedTuple):
    """A sentence of which somebody has said how true it is.

    Attributes:
        confidence: the confidence that users got, in [0, 1]; None where it had none.
        rank: the number in [0, 1] that thresholds are on, see ``Calibration.rank``; None where it had none.
        factuality: how true it is, in [0, 1].
    """

    confidence: float | None
    rank: float | None
    factuality: float


@dataclass(frozen=True, slots=True)
class Bets(PlainObject):
    """Bets that values in [0, 1] are above a limit on average, see `grown`.

    Attributes:
        limit: the largest mean under which the wealth is not expected to grow, in (0, 1).
        seen: number of values.
        wealth: what the bets that have begun own, by fraction.
        recent: mean of the values, of which about the latest ``RECENT`` count; 0 without any.
    """

    what: ClassVar[str] = "bets"

    limit: Share
    seen: int = 0
    wealth: Annotated[tuple[float, ...], Within(0.0, LARGEST, len(FRACTIONS))] = (0.0,) * len(FRACTIONS)
    recent: Share = 0.0

    def __post_init__(self) -> None:
        check_range("limit of bets", self.limit, above=0, below=1)
        if len(self.wealth) != len(FRACTIONS):
            raise LovecError(f"bets have {len(self.wealth)} wealths, expected {len(FRACTIONS)}")

    @property
    def e_value(self) -> float:
        """The whole wealth, begun and not: the evidence that the mean was above the limit at some time."""
        return float(e_values(self.wealth, self.seen))

    def after(self, value: float) -> Bets:
        """Return the bets after one more value in [0, 1].

        Raises:
            LovecError: the value is outside [0, 1].
        """
        check_range("a value that is bet on", value, at_least=0, at_most=1)
        wealth = grown(self.wealth, self.seen, value, self.limit)
        recent = self.recent + (value - self.recent) / min(self.seen + 1, RECENT)
        return Bets(self.limit, self.seen + 1, tuple(wealth.tolist()), min(max(recent, 0.0), 1.0))


@dataclass(frozen=True, slots=True)
class Alarm(PlainObject):
    """Whether the mean of several bets' wealths has ever reached 1 / level, which has a probability of at most level.

    Attributes:
        level: in (0, 1).
        bets: what is bet on; their limits all hold where nothing is wrong.
        raised: number of answers after which the alarm was raised, and stays so; None where it was not.
    """

    what: ClassVar[str] = "an alarm"

    level: Share
    bets: Annotated[tuple[Bets, ...], Within(most=2 * len(ZONES))]
    raised: int | None = None

    def __post_init__(self) -> None:
        check_range("level of an alarm", self.level, above=0, below=1)
        if not self.bets:
            raise LovecError("an alarm has no bets, expected at least one")

    @property
    def seen(self) -> int:
        """Number of answers."""
        return self.bets[0].seen

    @property
    def e_value(self) -> float:
        """The evidence so far, expected to be at most 1 where nothing is wrong."""
        return math.fsum(bets.e_value for bets in self.bets) / len(self.bets)

    def after(self, values: Sequence[float]) -> Alarm:
        """Return the alarm after one more answer.

        Args:
            values: what each of the bets is on, in [0, 1].

        Raises:
            LovecError: a value is outside [0, 1].
        """
        made = replace(self, bets=tuple(bets.after(value) for bets, value in zip(self.bets, values, strict=True)))
        reached = made.raised is None and made.e_value >= 1.0 / made.level
        return replace(made, raised=made.seen) if reached else made


def promise_alarm(alpha: float, level: float = LEVEL) -> Alarm:
    """Return the alarm for a promise: the mean of `promise_loss` is above alpha.

    Args:
        alpha: how often the promise may fail, or the bound on the share of errors; in (0, 1).
        level: the highest probability of an alarm, at any time, where the mean is never above alpha.
    """
    return Alarm(level, (Bets(alpha),))


def promise_loss(promised: Guarantee, passage: Passage) -> float:
    """Return how far an answer breaks a promise, in [0, 1].

    Args:
        promised: the promise, and its threshold.
        passage: the sentences of the answer that could be judged.

    Returns:
        For "errors" the number of kept false sentences divided by that of all, else 1 where the promise is broken.
    """
    if promised.kind == "errors":
        return retention([passage], promised.threshold).errors
    return float(not holds(passage, promised.threshold, promised.share))


def map_alarm(level: float = LEVEL, tolerance: float = TOLERANCE) -> Alarm:
    """Return the alarm for a map: labels differ from the confidences by more than a tolerance, up or down, somewhere.

    Its bets are in the order of `map_gaps`.

    Args:
        level: the highest probability of an alarm, at any time, where the means differ nowhere by more.
        tolerance: see `TOLERANCE`; in [0, 1).
    """
    check_range("tolerance", tolerance, at_least=0, below=1)
    return Alarm(level, (Bets((1.0 + tolerance) / 2.0),) * (2 * len(ZONES)))


@dataclass(frozen=True, slots=True)
class Watch(PlainObject):
    """All that is watched of answers that are tagged in one way.

    Attributes:
        guarantees: the promises.
        promises: the alarm of each.
        map: the alarm of the map.
        answers: number of answers.
    """

    what: ClassVar[str] = "a watch"

    guarantees: Annotated[tuple[Guarantee, ...], Within(most=100)]
    promises: Annotated[tuple[Alarm, ...], Within(most=100)]
    map: Alarm
    answers: int = 0

    @classmethod
    def over(cls, guarantees: Sequence[Guarantee]) -> Watch:
        """Return a watch that has seen nothing yet."""
        return cls(tuple(guarantees), tuple(promise_alarm(found.alpha) for found in guarantees), map_alarm())

    def after(self, rated: Sequence[Rated]) -> Watch:
        """Return the watch after one more answer.

        Args:
            rated: those sentences of the answer that could be judged; without any nothing changes, and without any that
                has a confidence the map's alarm stays as it is.
        """
        if not rated:
            return self
        promises = []
        for promised, alarm in zip(self.guarantees, self.promises, strict=True):
            passage = Passage([one.rank for one in rated], [one.factuality >= promised.true_from for one in rated])
            promises.append(alarm.after([promise_loss(promised, passage)]))
        pairs = [(one.confidence, one.factuality) for one in rated if one.confidence is not None]
        moved = self.map.after(map_gaps([c for c, _ in pairs], [f for _, f in pairs]).tolist()) if pairs else self.map
        return Watch(self.guarantees, tuple(promises), moved, self.answers + 1)

    def problems(self) -> list[str]:
        """Return in one sentence each what is wrong; none where no alarm was raised."""
        found = []
        for promised, alarm in zip(self.guarantees, self.promises, strict=True):
            if alarm.raised is not None:
                verb = "of their sentences are kept and false" if promised.kind == "errors" else "break it"
                found.append(
                    f"a promise does not hold: {promised.promise()}; of about the latest "
                    f"{min(alarm.seen, RECENT)} rated answers {100 * alarm.bets[0].recent:.0f} % {verb} (found after "
                    f"{alarm.raised} answers, e-value {alarm.e_value:.3g}); calibrate again"
                )
        if self.map.raised is not None:
            best = max(range(len(self.map.bets)), key=lambda at: self.map.bets[at].e_value)
            (low, high), side = ZONES[best // 2], _SIDES[best % 2]
            which = "" if (low, high) == ZONES[0] else f" from {low:g} to {high:g}"
            found.append(
                f"confidences{which} are too {'low' if side > 0 else 'high'}, by more than {TOLERANCE:g} on average "
                f"(found after {self.map.raised} rated answers, e-value {self.map.e_value:.3g}); calibrate again"
            )
        return found
