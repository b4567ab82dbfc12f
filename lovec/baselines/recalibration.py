"""Post-hoc recalibration: maps from confidences to confidences, fitted on held-out answers with labels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import isotonic_regression, minimize
from scipy.special import expit, log_expit, logit

from lovec.baselines.base import with_confidences
from lovec.metrics.functional import checked_pair
from lovec.metrics.records import confidence_of
from lovec.types import LovecError, Readout, Record, Sentence, check_range

Array = NDArray[np.float64]


class Calibrator(Protocol):
    """A fitted map from confidences to confidences."""

    def __call__(self, confidence: ArrayLike) -> Array:
        """Return the mapped confidences of confidences [N] in [0, 1]: [N] in [0, 1], float64."""


@dataclass(frozen=True, slots=True)
class Isotonic:
    """The non-decreasing map with the lowest Brier score on the data it is fitted to (Zadrozny and Elkan 2002).

    Attributes:
        confidence: the different confidences in the data, ascending.
        factuality: the value of the map at each of them; it is linear in between and constant outside.
    """

    confidence: tuple[float, ...]
    factuality: tuple[float, ...]

    @classmethod
    def fit(cls, confidence: ArrayLike, factuality: ArrayLike) -> Isotonic:
        """Fit the map to soft labels; equal confidences become one point, weighted by their number.

        Args:
            confidence: [N], in [0, 1].
            factuality: [N], in [0, 1].

        Raises:
            LovecError: the shapes differ, a value is NaN or outside [0, 1], or no two confidences differ.
        """
        x, y = _checked(confidence, factuality)
        points, place, count = np.unique(x, return_inverse=True, return_counts=True)
        means = np.bincount(place, weights=y) / count
        fitted = isotonic_regression(means, weights=count).x.clip(0.0, 1.0)
        return cls(tuple(points.tolist()), tuple(fitted.tolist()))

    def __call__(self, confidence: ArrayLike) -> Array:
        """Return the mapped confidences: [N], float64."""
        return np.interp(np.asarray(confidence, dtype=np.float64), self.confidence, self.factuality)


@dataclass(frozen=True, slots=True)
class Platt:
    """A logistic curve of the log-odds of the confidence: sigmoid(slope logit(c) + intercept) (Platt 1999).

    Attributes:
        slope: factor of the log-odds; less than 1 makes confidences less extreme, below 0 it reverses their order.
        intercept: added to the log-odds.
        clip: confidences are clipped to [clip, 1 - clip], since the log-odds of 0 and 1 are infinite.
    """

    slope: float
    intercept: float
    clip: float = 0.01

    def __post_init__(self) -> None:
        check_range("slope", self.slope)
        check_range("intercept", self.intercept)
        check_range("clip", self.clip, above=0, below=0.5)

    @classmethod
    def fit(cls, confidence: ArrayLike, factuality: ArrayLike, clip: float = 0.01) -> Platt:
        """Fit the curve with the lowest cross-entropy to soft labels.

        Labels are moved a little towards the middle, as Platt does for yes/no labels: 1 becomes (n + 1)/(n + 2) and 0
        becomes 1/(m + 2), with n and m the sums of f and of 1 - f. Otherwise the slope would grow without bound on
        data that a threshold separates.

        Args:
            confidence: [N], in [0, 1].
            factuality: [N], in [0, 1].
            clip: in (0, 0.5), see the class.

        Raises:
            LovecError: the shapes differ, a value is NaN or outside [0, 1], ``clip`` is outside (0, 0.5), or no two
                confidences differ after clipping.
        """
        check_range("clip", clip, above=0, below=0.5)
        x, y = _checked(np.clip(np.asarray(confidence, dtype=np.float64), clip, 1.0 - clip), factuality)
        odds = logit(x)
        target = y * (y.sum() + 1.0) / (y.sum() + 2.0) + (1.0 - y) / ((1.0 - y).sum() + 2.0)
        design = np.stack([odds, np.ones_like(odds)])

        def entropy(parameters: Array) -> tuple[float, Array]:
            z = parameters @ design
            value = -(target * log_expit(z) + (1.0 - target) * log_expit(-z)).mean()
            return float(value), design @ (expit(z) - target) / len(z)

        def curvature(parameters: Array) -> Array:
            p = expit(parameters @ design)
            return np.asarray((design * (p * (1.0 - p))) @ design.T / len(p))

        solution = minimize(
            entropy, np.array([1.0, 0.0]), jac=True, hess=curvature, method="trust-exact", options={"gtol": 1e-10}
        )
        slope, intercept = solution.x.tolist()
        return cls(slope, intercept, clip)

    def __call__(self, confidence: ArrayLike) -> Array:
        """Return the mapped confidences: [N], float64."""
        x = np.clip(np.asarray(confidence, dtype=np.float64), self.clip, 1.0 - self.clip)
        return np.asarray(expit(self.slope * logit(x) + self.intercept))


def recalibrate(records: Sequence[Record], calibrator: Calibrator, readout: Readout) -> list[Record]:
    """Map the confidences of tagged records.

    Args:
        records: tagged records.
        calibrator: the map.
        readout: the confidence to map, "stated" or "mean", see ``lovec.metrics.records.confidence_of``.

    Returns:
        The records with mapped confidences, None where a sentence has none, and without scores and distributions:
        the map is defined for a confidence only.

    Raises:
        LovecError: the readout is unknown.
    """
    return [with_confidences(r, (_mapped(s, calibrator, readout) for s in r.sentences)) for r in records]


def _mapped(sentence: Sentence, calibrator: Calibrator, readout: Readout) -> float | None:
    confidence = confidence_of(sentence, readout)
    return None if confidence is None else float(calibrator([confidence])[0])


def _checked(confidence: ArrayLike, factuality: ArrayLike) -> tuple[Array, Array]:
    """Return both as float64 [N].

    Raises:
        LovecError: the shapes differ, a value is NaN or outside [0, 1], or no two confidences differ.
    """
    pair = checked_pair(*(torch.as_tensor(np.asarray(values, dtype=np.float64)) for values in (confidence, factuality)))
    x, y = (values.numpy() for values in pair)
    if (different := np.unique(x).size) < 2:
        raise LovecError(
            f"recalibration got {x.size} labelled confidences, {different} of them different, expected at least two "
            "different ones; give more validation records, or compare with the best constant instead"
        )
    return x, y
