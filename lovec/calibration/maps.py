"""Maps from confidences to confidences that agree with how often sentences are true, fitted on labelled answers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Protocol, TypeAlias

import numpy as np
import torch
from numpy.typing import ArrayLike
from scipy.optimize import isotonic_regression
from scipy.special import expit, logit

from lovec.calibration.logistic import Array, fit_logistic, softened
from lovec.metrics.functional import checked_pair
from lovec.plain import MOST_NUMBERS, checked_number, checked_numbers, checked_object
from lovec.settings import Finite, NonNegative, Setting, check_range, checked
from lovec.types import LovecError


class Calibrator(Protocol):
    """A fitted map from confidences to confidences."""

    def __call__(self, confidence: ArrayLike) -> Array:
        """Return the mapped confidences of confidences [N] in [0, 1]: [N] in [0, 1], float64."""


@dataclass(frozen=True, slots=True)
class Identity:
    """The map that changes nothing: what a calibration holds where no other map does better."""

    name: ClassVar[str] = "identity"

    @classmethod
    def fit(cls, confidence: ArrayLike, factuality: ArrayLike) -> Identity:
        """Return the map, after checking the data as for every other map.

        Raises:
            LovecError: the shapes differ, a value is NaN or outside [0, 1], or no two confidences differ.
        """
        _checked(confidence, factuality)
        return cls()

    def __call__(self, confidence: ArrayLike) -> Array:
        """Return the confidences: [N], float64."""
        return np.asarray(confidence, dtype=np.float64)

    def to_dict(self) -> dict[str, Any]:
        """Return the map as a plain JSON object."""
        return {"kind": self.name}

    @classmethod
    def from_dict(cls, data: Any) -> Identity:
        """Return the map that a JSON object holds.

        Raises:
            LovecError: it holds something else.
        """
        checked_object(data, "an identity map", {"kind"})
        return cls()


@dataclass(frozen=True, slots=True)
class Isotonic:
    """The non-decreasing map with the lowest Brier score on the data it is fitted to (Zadrozny and Elkan 2002).

    Attributes:
        confidence: different confidences in the data, ascending; of those in the middle of a constant stretch none.
        factuality: the value of the map at each of them; it is linear in between and constant outside.

    Raises:
        LovecError: the two are not equally long, not in [0, 1], or not ascending, or there are none or too many points.
    """

    name: ClassVar[str] = "isotonic"

    confidence: tuple[float, ...]
    factuality: tuple[float, ...]

    def __post_init__(self) -> None:
        for side in ("confidence", "factuality"):
            checked_numbers(getattr(self, side), f"{side} of an isotonic map", 0.0, 1.0)
        steps = np.diff(self.confidence), np.diff(self.factuality)
        lengths = len(self.confidence), len(self.factuality)
        if lengths[0] != lengths[1] or not lengths[0] or (steps[0] <= 0).any() or (steps[1] < 0).any():
            raise LovecError(
                f"an isotonic map has {lengths[0]} confidences and {lengths[1]} values, expected equally many, at "
                "least one, confidences that ascend and values that never fall"
            )

    @classmethod
    def fit(cls, confidence: ArrayLike, factuality: ArrayLike) -> Isotonic:
        """Fit the map to soft labels; equal confidences become one point, weighted by their number.

        Args:
            confidence: [N], in [0, 1].
            factuality: [N], in [0, 1].

        Raises:
            LovecError: the shapes differ, a value is NaN or outside [0, 1], no two confidences differ, or the map has
                more than ``MOST_NUMBERS`` points.
        """
        x, y = _checked(confidence, factuality)
        points, place, count = np.unique(x, return_inverse=True, return_counts=True)
        means = np.bincount(place, weights=y) / count
        fitted = isotonic_regression(means, weights=count).x.clip(0.0, 1.0)
        middle = np.zeros(len(points), dtype=bool)  # equal to both neighbours, so that the line passes through it
        middle[1:-1] = (fitted[1:-1] == fitted[:-2]) & (fitted[1:-1] == fitted[2:])
        if (size := int((~middle).sum())) > MOST_NUMBERS:
            raise LovecError(
                f"an isotonic map of these data has {size} points, expected at most {MOST_NUMBERS}; round the "
                "confidences, or fit a Platt or beta map"
            )
        return cls(tuple(points[~middle].tolist()), tuple(fitted[~middle].tolist()))

    def __call__(self, confidence: ArrayLike) -> Array:
        """Return the mapped confidences: [N], float64."""
        return np.interp(np.asarray(confidence, dtype=np.float64), self.confidence, self.factuality)

    def to_dict(self) -> dict[str, Any]:
        """Return the map as a plain JSON object."""
        return {"kind": self.name, "confidence": list(self.confidence), "factuality": list(self.factuality)}

    @classmethod
    def from_dict(cls, data: Any) -> Isotonic:
        """Return the map that a JSON object holds.

        Raises:
            LovecError: it holds something else; see also the class.
        """
        found = checked_object(data, "an isotonic map", {"kind", "confidence", "factuality"})
        return cls(*(checked_numbers(found[side], f"{side} of a map") for side in ("confidence", "factuality")))


@checked()
@dataclass(frozen=True, slots=True)
class Platt:
    """A logistic curve of the log-odds of the confidence: sigmoid(slope logit(c) + intercept) (Platt 1999).

    Attributes:
        slope: factor of the log-odds; less than 1 makes confidences less extreme, below 0 it reverses their order.
        intercept: added to the log-odds.
        clip: confidences are clipped to [clip, 1 - clip], since the log-odds of 0 and 1 are infinite.
    """

    name: ClassVar[str] = "platt"

    slope: Finite
    intercept: Finite
    clip: Annotated[float, Setting(above=0, below=0.5)] = 0.01

    @classmethod
    def fit(cls, confidence: ArrayLike, factuality: ArrayLike, clip: float = 0.01) -> Platt:
        """Fit the curve with the lowest cross-entropy to soft labels, softened as ``softened`` says.

        Args:
            confidence: [N], in [0, 1].
            factuality: [N], in [0, 1].
            clip: in (0, 0.5), see the class.

        Raises:
            LovecError: the shapes differ, a value is NaN or outside [0, 1], ``clip`` is outside (0, 0.5), or no two
                confidences differ after clipping.
        """
        x, y = _clipped(confidence, factuality, clip)
        (slope, intercept), _ = fit_logistic(np.stack([logit(x), np.ones_like(x)]), softened(y))
        return cls(float(slope), float(intercept), clip)

    def __call__(self, confidence: ArrayLike) -> Array:
        """Return the mapped confidences: [N], float64."""
        x = np.clip(np.asarray(confidence, dtype=np.float64), self.clip, 1.0 - self.clip)
        return np.asarray(expit(self.slope * logit(x) + self.intercept))

    def to_dict(self) -> dict[str, Any]:
        """Return the map as a plain JSON object."""
        return {"kind": self.name, "slope": self.slope, "intercept": self.intercept, "clip": self.clip}

    @classmethod
    def from_dict(cls, data: Any) -> Platt:
        """Return the map that a JSON object holds.

        Raises:
            LovecError: it holds something else, or the curve falls.
        """
        found = checked_object(data, "a Platt map", {"kind", "slope", "intercept", "clip"})
        slope = checked_number(found["slope"], "slope of a Platt map that keeps the order of confidences", low=0.0)
        return cls(slope, *(checked_number(found[name], f"{name} of a Platt map") for name in ("intercept", "clip")))


@checked()
@dataclass(frozen=True, slots=True)
class Beta:
    """Beta calibration: logit p = a log c - b log(1 - c) + m (Kull, Silva Filho and Flach 2017).

    With a = b it is Platt's map, and with a = b = 1, m = 0 the identity; unlike Platt's, it can bend the two ends of
    the scale differently.

    Attributes:
        a: factor of log c, at least 0, so that the map does not fall.
        b: factor of -log(1 - c), at least 0.
        intercept: m, added to the log-odds.
        clip: confidences are clipped to [clip, 1 - clip], since the logarithms of 0 are infinite.
    """

    name: ClassVar[str] = "beta"

    a: NonNegative
    b: NonNegative
    intercept: Finite
    clip: Annotated[float, Setting(above=0, below=0.5)] = 0.01

    @classmethod
    def fit(cls, confidence: ArrayLike, factuality: ArrayLike, clip: float = 0.01) -> Beta:
        """Fit the curve with the lowest cross-entropy to soft labels, softened as ``softened`` says, with a, b >= 0.

        The function is convex and has two bounds, so its minimum is that of the best of four problems without bounds:
        with both factors, with one of them, and with none.

        Args:
            confidence: [N], in [0, 1].
            factuality: [N], in [0, 1].
            clip: in (0, 0.5), see the class.

        Raises:
            LovecError: the shapes differ, a value is NaN or outside [0, 1], ``clip`` is outside (0, 0.5), or no two
                confidences differ after clipping.
        """
        x, y = _clipped(confidence, factuality, clip)
        design, target = np.stack([np.log(x), -np.log1p(-x), np.ones_like(x)]), softened(y)
        best: tuple[float, Array] | None = None
        for used in ([0, 1, 2], [0, 2], [1, 2], [2]):
            weights = np.zeros(3)
            weights[used], value = fit_logistic(design[used], target)
            if (weights[:2] >= 0).all() and (best is None or value < best[0]):
                best = value, weights
        assert best is not None  # the last problem has no factor that could be negative
        a, b, intercept = best[1].tolist()
        return cls(a, b, intercept, clip)

    def __call__(self, confidence: ArrayLike) -> Array:
        """Return the mapped confidences: [N], float64."""
        x = np.clip(np.asarray(confidence, dtype=np.float64), self.clip, 1.0 - self.clip)
        return np.asarray(expit(self.a * np.log(x) - self.b * np.log1p(-x) + self.intercept))

    def to_dict(self) -> dict[str, Any]:
        """Return the map as a plain JSON object."""
        return {"kind": self.name, "a": self.a, "b": self.b, "intercept": self.intercept, "clip": self.clip}

    @classmethod
    def from_dict(cls, data: Any) -> Beta:
        """Return the map that a JSON object holds.

        Raises:
            LovecError: it holds something else.
        """
        names = ("a", "b", "intercept", "clip")
        found = checked_object(data, "a beta map", {"kind", *names})
        return cls(*(checked_number(found[name], f"{name} of a beta map") for name in names))


ConfidenceMap: TypeAlias = Identity | Platt | Beta | Isotonic
"""The maps from one confidence to another."""

MAPS: Mapping[str, type[ConfidenceMap]] = {kind.name: kind for kind in (Identity, Platt, Beta, Isotonic)}
"""Maps by their names, the simplest first."""


def map_from_dict(data: Any) -> ConfidenceMap:
    """Return the map that a JSON object holds.

    Raises:
        LovecError: it holds no map of ``MAPS``, or one whose numbers are wrong.
    """
    kind = data.get("kind") if isinstance(data, Mapping) else None
    if not isinstance(kind, str) or kind not in MAPS:
        raise LovecError(f"the kind of a map is {repr(kind)[:60]}, expected one of {', '.join(MAPS)}")
    return MAPS[kind].from_dict(data)


def _clipped(confidence: ArrayLike, factuality: ArrayLike, clip: float) -> tuple[Array, Array]:
    check_range("clip", clip, above=0, below=0.5)
    return _checked(np.clip(np.asarray(confidence, dtype=np.float64), clip, 1.0 - clip), factuality)


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
