"""The maps satisfy their formulas, and are read from JSON only where they are whole."""

from __future__ import annotations

import math

import numpy as np
import pytest

from lovec.calibration import Isotonic, Platt
from lovec.types import LovecError


def noisy(n=400, levels=10, seed=0):
    """Return confidences on a grid, and lower soft labels."""
    rng = np.random.default_rng(seed)
    c = rng.integers(0, levels + 1, n) / levels
    return c, np.clip(0.7 * c**1.5 + rng.normal(0, 0.2, n), 0, 1)


def logit(p):
    return math.log(p / (1 - p))


# ---------------------------------------------------------------- isotonic


def test_isotonic_by_hand():
    # 0.2 and 0.5 are out of order: they pool to (3 * 0.4 + 1 * 0.2) / 4 = 0.35, weighed by their counts
    fitted = Isotonic.fit([0.5, 0.2, 0.9, 0.2, 0.2], [0.2, 0.3, 1.0, 0.4, 0.5])
    assert fitted.confidence == (0.2, 0.5, 0.9)
    assert fitted.factuality == pytest.approx((0.35, 0.35, 1.0))
    assert fitted([0.0, 0.2, 0.4, 0.7, 0.9, 1.0]) == pytest.approx([0.35, 0.35, 0.35, 0.675, 1.0, 1.0])


@pytest.mark.parametrize("levels", [10, 10**6])
def test_isotonic_equals_scikit_learn(levels):
    isotonic = pytest.importorskip("sklearn.isotonic")
    c, f = noisy(levels=levels)
    other = isotonic.IsotonicRegression(out_of_bounds="clip").fit(c, f)
    points = np.linspace(0, 1, 1001)
    assert Isotonic.fit(c, f)(points) == pytest.approx(other.predict(points), abs=1e-9)


def test_isotonic_keeps_calibrated_data_and_never_harms_the_data_it_is_fitted_to():
    grid = [0.0, 0.3, 0.8, 1.0]
    assert Isotonic.fit(grid, grid)(grid) == pytest.approx(grid)
    c, f = noisy()
    mapped = Isotonic.fit(c, f)(c)
    assert ((mapped - f) ** 2).mean() < ((c - f) ** 2).mean() - 0.01
    assert abs(mapped.mean() - f.mean()) < 1e-12  # the means agree, block by block


# ---------------------------------------------------------------- Platt


def test_platt_by_hand():
    # One answer at each of c and 1 - c, labelled 0 and 1: targets 1/3 and 2/3, met exactly by a slope without intercept
    fitted = Platt.fit([0.2, 0.8], [0.0, 1.0])
    assert (fitted.slope, fitted.intercept) == pytest.approx((logit(2 / 3) / logit(0.8), 0.0), abs=1e-7)
    assert fitted([0.2, 0.5, 0.8]) == pytest.approx([1 / 3, 0.5, 2 / 3])


def test_platt_finds_the_curve_that_made_the_labels():
    c = np.tile(np.linspace(0.05, 0.95, 19), 2000)  # so many that the labels are hardly drawn in
    f = 1 / (1 + np.exp(-(0.6 * np.log(c / (1 - c)) - 0.4)))
    fitted = Platt.fit(c, f)
    assert (fitted.slope, fitted.intercept) == pytest.approx((0.6, -0.4), abs=1e-3)


def test_platt_is_a_logistic_regression_on_both_outcomes_of_a_soft_label():
    linear = pytest.importorskip("sklearn.linear_model")
    c, f = noisy()
    n, m = f.sum(), (1 - f).sum()
    target = f * (n + 1) / (n + 2) + (1 - f) / (m + 2)
    odds = np.log(np.clip(c, 0.01, 0.99) / (1 - np.clip(c, 0.01, 0.99)))[:, None]
    other = linear.LogisticRegression(C=np.inf, tol=1e-10, max_iter=10000)
    other.fit(np.vstack([odds, odds]), [1] * len(c) + [0] * len(c), sample_weight=np.concatenate([target, 1 - target]))
    fitted = Platt.fit(c, f)
    assert (fitted.slope, fitted.intercept) == pytest.approx((other.coef_[0, 0], other.intercept_[0]), abs=1e-4)


def test_platt_is_finite_at_the_edges_and_uses_its_clip():
    c, f = noisy()
    fitted = Platt.fit(c, f, clip=0.1)
    assert fitted([0.0, 1.0]) == pytest.approx(fitted([0.1, 0.9]))
    assert 0 < fitted([0.0])[0] < fitted([1.0])[0] < 1
    separable = Platt.fit([0.1] * 50 + [0.9] * 50, [0.0] * 50 + [1.0] * 50)
    assert separable([0.1, 0.9]) == pytest.approx([1 / 52, 51 / 52])
    with pytest.raises(LovecError, match=r"clip is 0\.5, expected above 0 and below 0\.5"):
        Platt.fit(c, f, clip=0.5)


# ---------------------------------------------------------------- both


@pytest.mark.parametrize("kind", [Isotonic, Platt])
@pytest.mark.parametrize(
    ("confidence", "factuality", "line"),
    [
        ([], [], "got 0 labelled confidences, 0 of them different, expected at least two"),
        ([0.3], [1.0], "got 1 labelled confidences, 1 of them different"),
        ([1.0, 1.0, 1.0], [0.0, 0.5, 1.0], "got 3 labelled confidences, 1 of them different"),
        ([0.1, 0.2], [0.1], r"confidence has shape \[2\] and factuality \[1\]"),
        ([0.1, math.nan], [0.1, 0.2], "confidence contains nan"),
        ([0.1, 0.2], [0.1, 7], "factuality contains 7"),
    ],
)
def test_data_without_a_map_are_refused(kind, confidence, factuality, line):
    with pytest.raises(LovecError, match=line):
        kind.fit(confidence, factuality)
