"""The maps satisfy their formulas, and are read from JSON only where they are whole."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

from lovec.calibration import Beta, Isotonic, Platt
from lovec.calibration.maps import MAPS, map_from_dict
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


@pytest.mark.parametrize("kind", list(MAPS.values()), ids=lambda kind: kind.name)
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


# ---------------------------------------------------------------- beta


def beta_odds(c, a, b, m):
    return a * np.log(c) - b * np.log(1 - c) + m


def test_beta_finds_the_curve_that_made_the_labels():
    c = np.tile(np.linspace(0.05, 0.95, 19), 2000)
    f = 1 / (1 + np.exp(-beta_odds(c, 0.4, 1.7, -0.3)))
    fitted = Beta.fit(c, f)
    assert (fitted.a, fitted.b, fitted.intercept) == pytest.approx((0.4, 1.7, -0.3), abs=2e-3)


def test_beta_holds_platt_and_the_identity():
    points = np.linspace(0.01, 0.99, 99)
    assert Beta(1.0, 1.0, 0.0)(points) == pytest.approx(points)
    assert Beta(0.6, 0.6, -0.4)(points) == pytest.approx(Platt(0.6, -0.4)(points))


@pytest.mark.parametrize(("a", "b"), [(-1.0, 0.8), (0.8, -1.0), (-0.7, -0.7), (0.5, 0.5)])
def test_beta_is_the_best_curve_that_does_not_fall(a, b):
    """Against a general solver with bounds, on data whose best curve may have a negative factor."""
    from scipy.optimize import minimize

    from lovec.calibration.logistic import softened

    rng = np.random.default_rng(3)
    c = rng.uniform(0.02, 0.98, 500)
    f = np.clip(1 / (1 + np.exp(-beta_odds(c, a, b, 0.3))) + rng.normal(0, 0.05, 500), 0, 1)
    fitted, target = Beta.fit(c, f), softened(f)

    def entropy(w):
        z = beta_odds(c, *w)
        return (target * np.logaddexp(0, -z) + (1 - target) * np.logaddexp(0, z)).mean()

    bounds = [(0, None), (0, None), (None, None)]
    best = minimize(entropy, [1.0, 1.0, 0.0], bounds=bounds, options={"ftol": 1e-15, "gtol": 1e-10})
    assert entropy((fitted.a, fitted.b, fitted.intercept)) == pytest.approx(best.fun, abs=1e-9)
    assert (np.diff(fitted(np.linspace(0, 1, 101))) >= 0).all()


# ---------------------------------------------------------------- JSON


@pytest.mark.parametrize("kind", list(MAPS.values()), ids=lambda kind: kind.name)
def test_maps_come_back_from_json_as_they_were(kind):
    fitted = kind.fit(*noisy())
    again = map_from_dict(json.loads(json.dumps(fitted.to_dict())))
    assert again == fitted
    points = np.linspace(0, 1, 101)
    assert (np.diff(again(points)) >= 0).all() and (again(points) == fitted(points)).all()
    assert ((again(points) >= 0) & (again(points) <= 1)).all()


def test_an_isotonic_map_keeps_only_the_ends_of_constant_stretches():
    c = np.linspace(0, 1, 5001)
    fitted = Isotonic.fit(c, (c > 0.5).astype(float))
    assert fitted.confidence == (0.0, 0.5, 0.5002, 1.0) and fitted.factuality == (0.0, 0.0, 1.0, 1.0)


@pytest.mark.parametrize(
    ("data", "line"),
    [
        (None, "the kind of a map is None"),
        ([], "the kind of a map is None, expected one of identity, platt, beta, isotonic"),
        ({"kind": ["platt"]}, "the kind of a map is"),
        ({"kind": "pickle"}, "the kind of a map is 'pickle'"),
        ({"kind": "identity", "x": 1}, "has the unknown key 'x'"),
        ({"kind": "platt", "slope": 1, "clip": 0.1}, "a Platt map lacks 'intercept'"),
        ({"kind": "platt", "slope": "1", "intercept": 0, "clip": 0.1}, "slope .* is '1', expected a number"),
        ({"kind": "platt", "slope": -1, "intercept": 0, "clip": 0.1}, "slope .* keeps the order .* is -1"),
        ({"kind": "platt", "slope": math.nan, "intercept": 0, "clip": 0.1}, "slope .* is NaN"),
        ({"kind": "platt", "slope": 1, "intercept": 10**400, "clip": 0.1}, "intercept .* too many digits"),
        ({"kind": "platt", "slope": True, "intercept": 0, "clip": 0.1}, "slope .* is True"),
        ({"kind": "platt", "slope": 1, "intercept": 0, "clip": 0.5}, "clip is 0.5"),
        ({"kind": "beta", "a": -0.1, "b": 1, "intercept": 0, "clip": 0.1}, "a is -0.1, expected at least 0"),
        ({"kind": "beta", "a": 1, "b": math.inf, "intercept": 0, "clip": 0.1}, "b of a beta map is inf"),
        ({"kind": "isotonic", "confidence": [0, 1], "factuality": [1, 0]}, "values that never fall"),
        ({"kind": "isotonic", "confidence": [0.5, 0.5], "factuality": [0, 1]}, "confidences that ascend"),
        ({"kind": "isotonic", "confidence": [0, 1], "factuality": [0]}, "2 confidences and 1 values"),
        ({"kind": "isotonic", "confidence": [], "factuality": []}, "0 confidences and 0 values"),
        ({"kind": "isotonic", "confidence": [0, 2], "factuality": [0, 1]}, "confidence .* is 2.0, expected a number"),
        ({"kind": "isotonic", "confidence": [0] * 50_001, "factuality": [0]}, "a list of 50001 items"),
        ({"kind": "isotonic", "confidence": "01", "factuality": [0]}, "is '01', expected a list"),
    ],
)
def test_what_is_no_map_is_refused(data, line):
    with pytest.raises(LovecError, match=line) as error:
        map_from_dict(data)
    assert "\n" not in str(error.value) and len(str(error.value)) < 300
