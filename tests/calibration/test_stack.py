"""Features of a sentence, and the stack that makes one confidence of several."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import numpy as np
import pytest

from lovec.calibration import Isotonic, Stack
from lovec.calibration.features import FEATURES, feature_row
from lovec.types import LovecError, Sentence


def test_features_by_hand():
    logps = tuple(-float(i) for i in range(1, 22))  # -1 to -21: the worst tenth are three tokens
    distribution = (0.0,) * 5 + (0.2,) + (0.0,) * 4 + (0.6,)
    sentence = Sentence("A.", confidence=0.1, score=3, distribution=distribution, token_logps=logps)
    mean, entropy, stated, logp_mean, logp_sum, logp_min, worst = feature_row(sentence, tuple(FEATURES))
    assert (mean, stated) == (pytest.approx(0.875), 0.3)
    assert entropy == pytest.approx(-(0.25 * math.log(0.25) + 0.75 * math.log(0.75)))
    assert (logp_mean, logp_sum, logp_min, worst) == (-11.0, -231.0, -21.0, -20.0)
    single = replace(sentence, token_logps=(-0.5,))
    assert feature_row(single, ("logp_mean", "logp_min", "logp_worst")) == [-0.5] * 3


@pytest.mark.parametrize(
    ("sentence", "names"),
    [
        (Sentence("A."), ("mean",)),
        (Sentence("A."), ("stated",)),
        (Sentence("A.", distribution=(0.0,) * 11), ("entropy",)),
        (Sentence("A.", distribution=(0.0,) * 11), ("mean",)),
        (Sentence("A.", score=3), ("stated", "logp_mean")),
        (Sentence("A.", score=3, token_logps=()), ("logp_min",)),
        (Sentence("A.", score=3, token_logps=(-1.0, -math.inf)), ("stated", "logp_sum")),
        (Sentence("A.", score=3, token_logps=(math.nan,)), ("logp_worst",)),
    ],
)
def test_a_missing_feature_is_none_and_no_guess(sentence, names):
    assert feature_row(sentence, names) is None


@pytest.mark.parametrize("names", [(), ("mode",), ("mean", "mean"), "mean"])
def test_wrong_names_of_features_are_refused(names):
    with pytest.raises(LovecError, match="expected different ones of mean, entropy, stated, logp_mean"):
        feature_row(Sentence("A."), names)


def rows(n=400, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.normal([3.0, -50.0], [0.5, 20.0], (n, 2))
    p = 1 / (1 + np.exp(-(1.5 * (x[:, 0] - 3) / 0.5 - 0.8 * (x[:, 1] + 50) / 20 + 0.3)))
    return x, np.clip(p + rng.normal(0, 0.1, n), 0, 1)


def test_a_stack_is_a_ridge_regression_on_standardised_features():
    linear = pytest.importorskip("sklearn.linear_model")
    x, f = rows()
    standard = (x - x.mean(0)) / x.std(0)
    for strength in (1e-4, 0.1, 1.0):
        fitted = Stack.fit(("mean", "logp_sum"), x, f, strength)
        other = linear.LogisticRegression(C=1 / (strength * len(x)), tol=1e-10, max_iter=10_000)
        labels, weight = [1] * len(x) + [0] * len(x), np.concatenate([f, 1 - f])
        other.fit(np.vstack([standard, standard]), labels, sample_weight=weight)
        assert fitted.weights == pytest.approx(other.coef_[0], abs=1e-4)
        assert fitted.intercept == pytest.approx(other.intercept_[0], abs=1e-4)
        assert fitted(x) == pytest.approx(other.predict_proba(standard)[:, 1], abs=1e-4)


def test_a_stack_is_finite_on_separated_and_constant_data():
    separated = Stack.fit(("mean", "entropy"), [[0.1, 1.0]] * 20 + [[0.9, 1.0]] * 20, [0.0] * 20 + [1.0] * 20, 1e-4)
    assert separated.weights[1] == 0.0  # a constant feature has no say, even where it differs later
    assert separated([[0.5, 1.0]]) == separated([[0.5, -1e6]])
    low, high = separated([[0.1, 1.0], [0.9, 1.0]])
    assert 0 <= low < 0.01 and 0.99 < high <= 1
    equal = Stack.fit(("mean",), [[0.1], [0.9]], [1.0, 1.0], 1.0)
    assert 0.99 < equal([[0.5]])[0] <= 1


def test_a_stack_comes_back_from_json_as_it_was():
    plain = Stack.fit(("mean", "logp_sum"), *rows(), 0.1)
    for fitted in (plain, replace(plain, isotonic=Isotonic((0.0, 1.0), (0.1, 0.9)))):
        again = Stack.from_dict(json.loads(json.dumps(fitted.to_dict())))
        assert again == fitted
        assert (again(rows()[0]) == fitted(rows()[0])).all()
    assert again([[1e6, 1e6]])[0] >= 0.1


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ({"features": ["mean", "mean"]}, "the features of a stack are"),
        ({"features": "mean"}, "features of a stack is 'mean', expected a list"),
        ({"weights": [1.0]}, "a stack has 1 weights, expected 2"),
        ({"scales": [1.0, 0.0]}, "scales of a stack is 0"),
        ({"means": [1.0, math.nan]}, "means of a stack is NaN"),
        ({"strength": 0}, "strength is 0"),
        ({"intercept": None}, "intercept of a stack is None"),
        ({"isotonic": {"kind": "isotonic"}}, "an isotonic map lacks"),
        ({"extra": 1}, "unknown key 'extra'"),
    ],
)
def test_what_is_no_stack_is_refused(change, line):
    data = Stack.fit(("mean", "logp_sum"), *rows(), 0.1).to_dict()
    with pytest.raises(LovecError, match=line):
        Stack.from_dict(data | change)


@pytest.mark.parametrize(
    ("x", "f", "line"),
    [
        ([[0.1]], [0.1], r"shape \[1, 1\] and factuality \[1\], expected \[N, 2\]"),
        (np.zeros((0, 2)), [], r"expected \[N, 2\] and \[N\], N > 0"),
        ([[0.1, 0.2]], [0.1, 0.2], "features have shape"),
        ([[0.1, math.inf]], [0.1], "contain NaN, infinity"),
        ([[0.1, 0.2]], [1.1], "a factuality outside"),
    ],
)
def test_data_without_a_stack_are_refused(x, f, line):
    with pytest.raises(LovecError, match=line):
        Stack.fit(("mean", "entropy"), x, f, 0.1)
