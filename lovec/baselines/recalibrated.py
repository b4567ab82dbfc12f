"""Recalibration after the fact: what a confidence turns out to be worth on held-out answers, learnt and then said."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import isotonic_regression, minimize
from scipy.special import expit, log_expit, logit

from lovec.metrics.records import confidence_of
from lovec.types import LovecError, Record, Sentence, Tagger

Array = NDArray[np.float64]


class Calibrator(Protocol):
    """A fitted map from confidences to confidences."""

    def __call__(self, confidence: ArrayLike) -> Array:
        """Confidences [N] in [0, 1], mapped: [N] in [0, 1], float64."""


@dataclass(frozen=True, slots=True)
class Isotonic:
    """The non-decreasing map with the least Brier score on the data it is fitted on (Zadrozny and Elkan 2002).

    Attributes:
        confidence: the different confidences seen in fitting, ascending.
        factuality: what they are mapped to; in between the map is linear, outside it is flat.
    """

    confidence: tuple[float, ...]
    factuality: tuple[float, ...]

    @classmethod
    def fit(cls, confidence: ArrayLike, factuality: ArrayLike) -> Isotonic:
        """The map for soft labels; equal confidences are one point that weighs as many.

        Args:
            confidence: [N], in [0, 1].
            factuality: [N], in [0, 1].

        Raises:
            LovecError: see ``_checked``.
        """
        x, y = _checked(confidence, factuality)
        points, place, count = np.unique(x, return_inverse=True, return_counts=True)
        means = np.bincount(place, weights=y) / count
        fitted = isotonic_regression(means, weights=count).x.clip(0.0, 1.0)
        return cls(tuple(points.tolist()), tuple(fitted.tolist()))

    def __call__(self, confidence: ArrayLike) -> Array:
        """Confidences [N], mapped: [N], float64."""
        return np.interp(np.asarray(confidence, dtype=np.float64), self.confidence, self.factuality)


@dataclass(frozen=True, slots=True)
class Platt:
    """A logistic curve on the log-odds of the confidence: sigmoid(slope logit(c) + intercept) (Platt 1999).

    Attributes:
        slope: 1 keeps the log-odds' scale, less draws them together; below 0 confidence and factuality run apart.
        intercept: added to the log-odds.
        clip: confidences are kept this far from 0 and 1, whose log-odds are infinite.
    """

    slope: float
    intercept: float
    clip: float = 0.01

    @classmethod
    def fit(cls, confidence: ArrayLike, factuality: ArrayLike, clip: float = 0.01) -> Platt:
        """The curve with the least cross-entropy to soft labels.

        Labels are drawn in a little, as Platt does for yes/no labels: 1 becomes (n + 1)/(n + 2) and 0 becomes
        1/(m + 2), with n and m the sums of f and of 1 - f. Without it, data that a threshold tells apart have no
        finite solution.

        Args:
            confidence: [N], in [0, 1].
            factuality: [N], in [0, 1].
            clip: in (0, 0.5), see above.

        Raises:
            LovecError: see ``_checked``; ``clip`` is outside (0, 0.5), or no two confidences differ after clipping.
        """
        if not 0.0 < clip < 0.5:
            raise LovecError(f"Platt scaling got clip={clip:g}, expected a number between 0 and 0.5, such as 0.01")
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

        found = minimize(
            entropy, np.array([1.0, 0.0]), jac=True, hess=curvature, method="trust-exact", options={"gtol": 1e-10}
        )
        slope, intercept = found.x.tolist()
        return cls(slope, intercept, clip)

    def __call__(self, confidence: ArrayLike) -> Array:
        """Confidences [N], mapped: [N], float64."""
        x = np.clip(np.asarray(confidence, dtype=np.float64), self.clip, 1.0 - self.clip)
        return np.asarray(expit(self.slope * logit(x) + self.intercept))


class Recalibrated:
    """Another tagger's confidences, mapped. The map is a number's alone: score and distribution are dropped.

    Args:
        tagger: says what is mapped.
        calibrator: the map, fitted on validation records that the same tagger tagged.
        readout: what of a sentence is mapped: "stated", the stated score, or "mean", that of the distribution.
    """

    def __init__(self, tagger: Tagger, calibrator: Calibrator, readout: str = "stated") -> None:
        self.tagger = tagger
        self.calibrator = calibrator
        self.readout = readout

    def tag(self, records: Sequence[Record]) -> list[Record]:
        """Records with mapped confidences, in the order the tagger gives them; see ``recalibrated``."""
        return recalibrated(self.tagger.tag(records), self.calibrator, self.readout)


def recalibrated(records: Sequence[Record], calibrator: Calibrator, readout: str) -> list[Record]:
    """Tagged records with ``confidence`` mapped and neither score nor distribution; one without a confidence has none.

    Args:
        records: tagged.
        calibrator: the map.
        readout: "stated" or "mean", see ``lovec.metrics.records.confidence_of``.

    Raises:
        LovecError: an unknown readout.
    """
    return [
        replace(record, sentences=tuple(_mapped(sentence, calibrator, readout) for sentence in record.sentences))
        for record in records
    ]


def _mapped(sentence: Sentence, calibrator: Calibrator, readout: str) -> Sentence:
    said = confidence_of(sentence, readout)
    confidence = None if said is None else float(calibrator([said])[0])
    return replace(sentence, confidence=confidence, score=None, distribution=None)


def _checked(confidence: ArrayLike, factuality: ArrayLike) -> tuple[Array, Array]:
    """Both as float64 [N].

    Raises:
        LovecError: the lengths differ, a value is NaN or outside [0, 1], or no two confidences differ.
    """
    x, y = np.asarray(confidence, dtype=np.float64), np.asarray(factuality, dtype=np.float64)
    if x.ndim != 1 or x.shape != y.shape:
        raise LovecError(
            f"recalibration got confidence of shape {list(x.shape)} and factuality of shape {list(y.shape)}, "
            "expected the same [N] for both; leave out what has no label or no confidence"
        )
    for name, values in (("confidence", x), ("factuality", y)):
        if (wrong := values[~((values >= 0.0) & (values <= 1.0))]).size:
            raise LovecError(f"recalibration got a {name} of {wrong[0]:g}, expected numbers in [0, 1] without NaN")
    if (different := np.unique(x).size) < 2:
        raise LovecError(
            f"recalibration got {x.size} labelled confidences of which {different} differ, expected at least two "
            "different ones; give more validation records, or compare with the best constant instead"
        )
    return x, y
