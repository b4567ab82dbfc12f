"""Whether confidences are distributed as those that a calibration was fitted to."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from lovec.core.plain import PlainObject, Share, checked_number
from lovec.types import LovecError

BINS = 20
"""Number of equal bins of a histogram."""

LEAST_NEW = 30
"""Number of new confidences below which nothing is said."""

LEVEL = 0.01
"""Share of texts like the fitted ones, at most, that are called different."""


@dataclass(frozen=True, slots=True)
class Histogram(PlainObject):
    """The confidences that a calibration was fitted to.

    Attributes:
        counts: number in each of ``BINS`` equal bins of [0, 1]; 1 lies in the last one.
        mean: their mean.
        likeness: intraclass correlation: share of their variance that lies between passages, in [0, 1].
        effective: number of independent confidences that say as much: n / (1 + (m - 1) likeness), with m the mean
            number of sentences per passage that a sentence meets (Kish 1965).
    """

    what: ClassVar[str] = "a histogram"

    counts: tuple[int, ...]
    mean: Share
    likeness: Share
    effective: float

    @classmethod
    def of(cls, passages: Sequence[Sequence[float]]) -> Histogram:
        """Count confidences in [0, 1], passage by passage.

        Raises:
            LovecError: there are none.
        """
        values = np.array([value for passage in passages for value in passage], dtype=np.float64)
        if not values.size:
            raise LovecError("a histogram got no confidence, expected those that a calibration was fitted to")
        likeness = _intraclass(passages)
        counts = tuple(np.bincount(_bins(values), minlength=BINS).tolist())
        return cls(counts, float(values.mean()), likeness, _effective(passages, likeness))

    def unlike(self, passages: Sequence[Sequence[float]], item: str = "sentence") -> str | None:
        """Return in one sentence how new confidences differ from the fitted ones, or None where that is not shown.

        A two-sample test of Kolmogorov and Smirnov on the binned confidences: the largest gap between the two
        distribution functions is compared with sqrt(-ln(LEVEL / 2) / 2 (1/n + 1/m)). Sentences of a passage resemble
        each other, so n and m are the effective numbers, with the likeness of the fitted passages for both. Bins and
        the asymptotic formula make the test cautious: it raises fewer false alarms than ``LEVEL``.

        Args:
            passages: new confidences in [0, 1], passage by passage; fewer than ``LEAST_NEW`` are not tested.
            item: what the message calls what they are about.
        """
        values = np.array([value for passage in passages for value in passage], dtype=np.float64)
        if values.size < LEAST_NEW:
            return None
        fitted = np.array(self.counts).cumsum() / sum(self.counts)
        found = np.bincount(_bins(values), minlength=BINS).cumsum() / values.size
        gap = float(np.abs(fitted - found).max())
        effective = 1.0 / (1.0 / self.effective + 1.0 / _effective(passages, self.likeness))
        limit = math.sqrt(-math.log(LEVEL / 2.0) / 2.0 / effective)
        if gap <= limit:
            return None
        return (
            f"these {values.size} {item}s look unlike those that the calibration was fitted to: their mean readout "
            f"is {values.mean():.2f} instead of {self.mean:.2f}, and the distributions differ by {gap:.2f}, where "
            f"chance allows {limit:.2f}; calibrate on texts like these, or trust the confidences less"
        )

    def __post_init__(self) -> None:
        total = sum(self.counts)
        if len(self.counts) != BINS or not total:
            raise LovecError(
                f"a histogram has {len(self.counts)} counts with the sum {total}, expected {BINS}, not all 0"
            )
        checked_number(self.effective, "effective number of a histogram", 1e-9, float(total))


def _bins(values: Any) -> Any:
    return np.minimum((values * BINS + 1e-9).astype(np.int64), BINS - 1)


def _intraclass(passages: Sequence[Sequence[float]]) -> float:
    """Return the intraclass correlation by one-way analysis of variance (Fisher 1925), in [0, 1]; 1 where unknown."""
    groups = [np.asarray(passage, dtype=np.float64) for passage in passages if len(passage)]
    sizes = np.array([len(group) for group in groups], dtype=np.float64)
    n, k = sizes.sum(), len(groups)
    if k < 2 or n == k:
        return 1.0 if k < 2 else 0.0
    means = np.array([group.mean() for group in groups])
    between = float(sizes @ (means - sizes @ means / n) ** 2) / (k - 1)
    within = sum(float(((group - group.mean()) ** 2).sum()) for group in groups) / (n - k)
    size = float(n - (sizes**2).sum() / n) / (k - 1)
    total = between + (size - 1.0) * within
    return min(max((between - within) / total, 0.0), 1.0) if total > 0 else 1.0


def _effective(passages: Sequence[Sequence[float]], likeness: float) -> float:
    sizes = np.array([len(passage) for passage in passages], dtype=np.float64)
    met = float((sizes**2).sum() / sizes.sum())
    return float(sizes.sum() / (1.0 + (met - 1.0) * likeness))
