"""Several features of a sentence to one confidence."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import expit

from lovec.calibration.features import check_names
from lovec.calibration.logistic import Array, fit_logistic
from lovec.calibration.maps import Isotonic
from lovec.plain import checked_list, checked_number, checked_numbers, checked_object, checked_text
from lovec.settings import Finite, Positive, check_range, checked
from lovec.types import LovecError

STRENGTHS = (1e-4, 1e-3, 1e-2, 1e-1, 1.0)
"""Strengths of the ridge penalty that a fit chooses from."""


@checked()
@dataclass(frozen=True, slots=True)
class Stack:
    """Ridge logistic regression on standardised features: c = sigmoid(w (x - mean) / scale + intercept).

    Attributes:
        features: names of the features x, see ``lovec.calibration.features.FEATURES``.
        means: mean of each feature in the data.
        scales: standard deviation of each, above 0.
        weights: weight of each standardised feature.
        intercept: added to the log-odds.
        strength: of the ridge penalty that the weights were fitted with.
        isotonic: a map that is applied to c; None where there is none.

    Raises:
        LovecError: a name is unknown, the numbers are not as many as the names, or one is out of its range.
    """

    name: ClassVar[str] = "stack"

    features: tuple[str, ...]
    means: tuple[float, ...]
    scales: tuple[float, ...]
    weights: tuple[float, ...]
    intercept: Finite
    strength: Positive
    isotonic: Isotonic | None = None

    def __post_init__(self) -> None:
        check_names(self.features)
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
        x, y = _checked(rows, factuality, len(features))
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

    def to_dict(self) -> dict[str, Any]:
        """Return the stack as a plain JSON object."""
        return {
            "kind": self.name,
            "features": list(self.features),
            "means": list(self.means),
            "scales": list(self.scales),
            "weights": list(self.weights),
            "intercept": self.intercept,
            "strength": self.strength,
            "isotonic": None if self.isotonic is None else self.isotonic.to_dict(),
        }

    @classmethod
    def from_dict(cls, data: Any) -> Stack:
        """Return the stack that a JSON object holds.

        Raises:
            LovecError: it holds something else.
        """
        keys = {"kind", "features", "means", "scales", "weights", "intercept", "strength", "isotonic"}
        found = checked_object(data, "a stack", keys)
        features = checked_list(found["features"], "features of a stack", 100)
        return cls(
            features=tuple(checked_text(name, "a feature of a stack") for name in features),
            means=checked_numbers(found["means"], "means of a stack"),
            scales=checked_numbers(found["scales"], "scales of a stack"),
            weights=checked_numbers(found["weights"], "weights of a stack"),
            intercept=checked_number(found["intercept"], "intercept of a stack"),
            strength=checked_number(found["strength"], "strength of a stack"),
            isotonic=None if found["isotonic"] is None else Isotonic.from_dict(found["isotonic"]),
        )


def _checked(rows: ArrayLike, factuality: ArrayLike, width: int) -> tuple[Array, Array]:
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
