"""Maps from a confidence, or from several features, to a confidence that agrees with how often sentences are true."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Protocol, TypeAlias

import numpy as np
import torch
from numpy.typing import ArrayLike
from scipy.optimize import isotonic_regression
from scipy.special import expit, logit

from lovec.calibration.logistic import Array, fit_logistic, softened
from lovec.core.plain import MOST_NUMBERS, PlainObject, Within, checked_number, checked_numbers, read_object
from lovec.core.settings import Finite, NonNegative, Positive, Setting, check_range, checked
from lovec.metrics.functional import checked_pair
from lovec.types import LovecError

STRENGTHS = (1e-4, 1e-3, 1e-2, 1e-1, 1.0)
"""Strengths of the ridge penalty that a fit chooses from."""


class Calibrator(Protocol):
    """A fitted map from confidences to confidences."""

    def __call__(self, confidence: ArrayLike) -> Array:
        """Return the mapped confidences of confidences [N] in [0, 1]: [N] in [0, 1], float64."""


@dataclass(frozen=True, slots=True)
class Identity(PlainObject):
    """The map that changes nothing: what a calibration holds where no other map does better."""

    name: ClassVar[str] = "identity"
    what: ClassVar[str] = "an identity map"

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


@dataclass(frozen=True, slots=True)
class Isotonic(PlainObject):
    """The non-decreasing map with the lowest Brier score on the data it is fitted to (Zadrozny and Elkan 2002).

    Attributes:
        confidence: different confidences in the data, ascending; of those in the middle of a constant stretch none.
        factuality: the value of the map at each of them; it is linear in between and constant outside.

    Raises:
        LovecError: the two are not equally long, not in [0, 1], or not ascending, or there are none or too many points.
    """

    name: ClassVar[str] = "isotonic"
    what: ClassVar[str] = "an isotonic map"

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


@checked()
@dataclass(frozen=True, slots=True)
class Platt(PlainObject):
    """A logistic curve of the log-odds of the confidence: sigmoid(slope logit(c) + intercept) (Platt 1999).

    Attributes:
        slope: factor of the log-odds; less than 1 makes confidences less extreme, below 0 it reverses their order.
        intercept: added to the log-odds.
        clip: confidences are clipped to [clip, 1 - clip], since the log-odds of 0 and 1 are infinite.
    """

    name: ClassVar[str] = "platt"
    what: ClassVar[str] = "a Platt map"

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

    @classmethod
    def from_dict(cls, data: Any) -> Platt:
        """Return the map that a JSON object holds.

        Raises:
            LovecError: it holds something else, or the curve falls.
        """
        made = read_object(cls, data)
        checked_number(made.slope, "slope of a Platt map that keeps the order of confidences", low=0.0)
        return made


@checked()
@dataclass(frozen=True, slots=True)
class Beta(PlainObject):
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
    what: ClassVar[str] = "a beta map"

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


@checked()
@dataclass(frozen=True, slots=True)
class Stack(PlainObject):
    """Ridge logistic regression on standardised features: c = sigmoid(w (x - mean) / scale + intercept).

    Attributes:
        features: names of the features x, all different.
        means: mean of each feature in the data.
        scales: standard deviation of each, above 0.
        weights: weight of each standardised feature.
        intercept: added to the log-odds.
        strength: of the ridge penalty that the weights were fitted with.
        isotonic: a map that is applied to c; None where there is none.

    Raises:
        LovecError: a name is there twice, the numbers are not as many as the names, or one is out of its range.
    """

    name: ClassVar[str] = "stack"
    what: ClassVar[str] = "a stack"

    features: Annotated[tuple[str, ...], Within(most=100)]
    means: tuple[float, ...]
    scales: tuple[float, ...]
    weights: tuple[float, ...]
    intercept: Finite
    strength: Positive
    isotonic: Isotonic | None = None

    def __post_init__(self) -> None:
        if not self.features or len(set(self.features)) < len(self.features):
            raise LovecError(f"the features of a stack are {list(self.features)}, expected different names")
        for name in ("means", "scales", "weights"):
            numbers = checked_numbers(getattr(self, name), f"{name} of a stack", 1e-300 if name == "scales" else -1e15)
            if len(numbers) != len(self.features):
                raise LovecError(f"a stack has {len(numbers)} {name}, expected {len(self.features)}, one per feature")

    @classmethod
    def fit(cls, features: Sequence[str], rows: ArrayLike, factuality: ArrayLike, strength: float) -> Stack:
        """Find the weights with the lowest mean cross-entropy to soft labels, with a ridge penalty.

        The penalty is strength/2 times the squared length of the weights of the standardised features; the intercept is
        not penalised. A feature that is constant in the data gets the weight 0.

        Args:
            features: names of the features.
            rows: [N, number of features], finite.
            factuality: [N], in [0, 1].
            strength: above 0; see ``STRENGTHS``.

        Raises:
            LovecError: a shape is wrong, a number is not finite or out of its range, or there is no row.
        """
        check_range("strength", strength, above=0)
        x, y = _checked_rows(rows, factuality, len(features))
        means, scales = x.mean(0), x.std(0)
        varies = scales > 1e-12 * np.maximum(1.0, np.abs(means))
        scales = np.where(varies, scales, 1.0)
        standard = np.where(varies, (x - means) / scales, 0.0)
        ridge = np.array([strength] * len(features) + [0.0])
        softest = np.clip(y, 1e-6, 1 - 1e-6)  # equal labels would have an infinite intercept
        weights, _ = fit_logistic(np.vstack([standard.T, np.ones(len(x))]), softest, ridge)
        *slopes, intercept = np.where(np.append(varies, True), weights, 0.0).tolist()
        numbers = (tuple(means.tolist()), tuple(scales.tolist()), tuple(slopes))
        return cls(tuple(features), *numbers, intercept, float(strength))

    def __call__(self, rows: ArrayLike) -> Array:
        """Return the confidences of rows of features [N, number of features]: [N] in [0, 1], float64."""
        x = np.asarray(rows, dtype=np.float64).reshape(-1, len(self.features))
        odds = ((x - np.array(self.means)) / np.array(self.scales)) @ np.array(self.weights) + self.intercept
        confidence = np.asarray(expit(odds))
        return confidence if self.isotonic is None else self.isotonic(confidence)


ConfidenceMap: TypeAlias = Identity | Platt | Beta | Isotonic
"""The maps from one confidence to another."""

FeatureMap: TypeAlias = ConfidenceMap | Stack
"""What a calibration can hold: a map of one readout, or a stack of several features."""

MAPS: Mapping[str, type[ConfidenceMap]] = {kind.name: kind for kind in (Identity, Platt, Beta, Isotonic)}
"""Maps by their names, the simplest first."""


def mapped(fitted: FeatureMap, rows: ArrayLike) -> Array:
    """Return what a map makes of rows of features [N, F], of which only a stack takes several: [N], float64."""
    x = np.asarray(rows, dtype=np.float64)
    return fitted(x) if isinstance(fitted, Stack) else fitted(x[:, 0])


def map_from_dict(data: Any) -> ConfidenceMap:
    """Return the map that a JSON object holds.

    Raises:
        LovecError: it holds no map of ``MAPS``, or one whose numbers are wrong.
    """
    kind = data.get("kind") if isinstance(data, Mapping) else None
    if not isinstance(kind, str) or kind not in MAPS:
        raise LovecError(f"the kind of a map is {repr(kind)[:60]}, expected one of {', '.join(MAPS)}")
    return MAPS[kind].from_dict(data)


def feature_map_from_dict(data: Any) -> FeatureMap:
    """Return the map or the stack that a JSON object holds.

    Raises:
        LovecError: it holds neither.
    """
    is_stack = isinstance(data, Mapping) and data.get("kind") == Stack.name
    return Stack.from_dict(data) if is_stack else map_from_dict(data)


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


def _checked_rows(rows: ArrayLike, factuality: ArrayLike, width: int) -> tuple[Array, Array]:
    """Return both as float64, [N, width] and [N].

    Raises:
        LovecError: a shape is wrong, there is no row, or a number is not finite or outside its range.
    """
    x, y = np.asarray(rows, dtype=np.float64), np.asarray(factuality, dtype=np.float64)
    if x.ndim != 2 or not len(x) or x.shape[1] != width or y.shape != x.shape[:1]:
        raise LovecError(
            f"features have shape {list(x.shape)} and factuality {list(y.shape)}, expected [N, {width}] and [N], N > 0"
        )
    if not np.isfinite(x).all() or not ((y >= 0) & (y <= 1)).all():
        raise LovecError("features or labels contain NaN, infinity or a factuality outside [0, 1]; leave them out")
    return x, y
