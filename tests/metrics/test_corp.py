"""The CORP curve, its band and the parts of the Brier score, against scikit-learn and against drawing one by one."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.isotonic import IsotonicRegression

from lovec.metrics.corp import brier_decomposition, corp_reliability
from lovec.metrics.functional import brier_score
from lovec.types import LovecError

TENTHS = st.lists(st.tuples(st.integers(0, 10), st.integers(0, 10)), min_size=1, max_size=40)


def simulated(n, levels=None, hard=False, power=1.0, noise=0.2, seed=0):
    """Pairs whose mean label at a confidence c is about c ** power."""
    rng = np.random.default_rng(seed)
    c = rng.random(n) if levels is None else rng.integers(0, levels + 1, n) / levels
    truth = c**power
    f = (rng.random(n) < truth).astype(float) if hard else np.clip(truth + rng.normal(0, noise, n), 0, 1).round(1)
    return c, f


def parts_by_scikit_learn(c, f):
    r = IsotonicRegression(y_min=0, y_max=1).fit(c, f).predict(c)
    recalibrated, uncertainty = np.mean((r - f) ** 2), np.var(f)
    return np.mean((c - f) ** 2) - recalibrated, uncertainty - recalibrated, uncertainty


def parts(c, f):
    found = brier_decomposition(c, f)
    return [float(found.miscalibration), float(found.discrimination), float(found.uncertainty)]


@settings(deadline=None)
@given(TENTHS)
def test_the_parts_are_those_of_scikit_learns_isotonic_regression(pairs):
    c, f = (np.array(column) / 10 for column in zip(*pairs, strict=True))
    assert parts(c, f) == pytest.approx(parts_by_scikit_learn(c, f), abs=1e-12)


@pytest.mark.parametrize("hard", [False, True])
@pytest.mark.parametrize("levels", [None, 10])
def test_the_parts_give_the_brier_score(levels, hard):
    for power in (0.5, 1.0, 3.0):
        c, f = simulated(500, levels, hard, power)
        mcb, dsc, unc = parts(c, f)
        assert mcb - dsc + unc == pytest.approx(float(brier_score(c, f)), abs=1e-14)
        assert min(mcb, dsc, unc) >= 0 and unc <= 0.25
        assert [mcb, dsc, unc] == pytest.approx(parts_by_scikit_learn(c, f), abs=1e-12)
        mean = f.mean()
        assert (unc == pytest.approx(mean * (1 - mean))) == hard  # graded labels vary less than labels 0 and 1


def test_parts_by_hand():
    # 0.2 -> 0.5, 0.6 -> 0.25: out of order, so pooled: (0.5 + 0 + 0.5) / 3; 0.9 -> 1
    c, f = [0.2, 0.6, 0.6, 0.9], [0.5, 0.0, 0.5, 1.0]
    curve = corp_reliability(c, f)
    assert curve.x.tolist() == [0.2, 0.6, 0.9] and curve.count.tolist() == [1, 2, 1] and curve.n == 4
    assert curve.recalibrated.tolist() == pytest.approx([1 / 3, 1 / 3, 1.0])
    recalibrated = (1 / 36 + 1 / 9 + 1 / 36) / 4
    brier, variance = (0.09 + 0.36 + 0.01 + 0.01) / 4, 0.125
    assert curve.brier == pytest.approx(brier)
    assert curve.miscalibration == pytest.approx(brier - recalibrated)
    assert curve.discrimination == pytest.approx(variance - recalibrated)
    assert curve.uncertainty == pytest.approx(variance)


def test_constants_and_single_pairs():
    assert parts([0.7] * 4, [1.0, 0.0, 0.5, 0.5]) == pytest.approx([0.04, 0.0, 0.125], abs=1e-15)
    assert parts([0.7], [0.4]) == pytest.approx([0.09, 0.0, 0.0], abs=1e-15)
    assert parts([0.1, 0.5, 0.9], [0.3] * 3) == pytest.approx([(0.04 + 0.04 + 0.36) / 3, 0.0, 0.0], abs=1e-15)
    c = np.arange(11) / 10
    assert parts(c, c) == pytest.approx([0.0, 0.1, 0.1], abs=1e-15)
    assert parts(c, 1 - c)[1] == 0.0  # an order that is all wrong discriminates nothing


def test_nothing_and_nonsense():
    assert all(map(math.isnan, parts([], [])))
    curve = corp_reliability([], [])
    assert [len(column) for column in (curve.x, curve.recalibrated, curve.low, curve.high, curve.count)] == [0] * 5
    assert curve.n == 0 and math.isnan(curve.brier) and math.isnan(curve.miscalibration)
    for function in (brier_decomposition, corp_reliability):
        with pytest.raises(LovecError, match=r"confidence contains 1\.2"):
            function([1.2], [1.0])
    for options, words in (
        ({"level": 1.0}, "level is 1.0"),
        ({"draws": 0}, "draws is 0"),
        ({"seed": -1}, "seed is -1"),
    ):
        with pytest.raises(LovecError, match=words):
            corp_reliability([0.5], [0.5], **options)


def test_flipping_both_sides_flips_the_curve():
    c, f = simulated(200, 10)
    assert parts(1 - c, 1 - f) == pytest.approx(parts(c, f), abs=1e-12)
    curve, flipped = corp_reliability(c, f, draws=1), corp_reliability(1 - c, 1 - f, draws=1)
    assert (1 - flipped.recalibrated.flip(0)).tolist() == pytest.approx(curve.recalibrated.tolist())


@pytest.mark.parametrize("hard", [False, True])
def test_the_curve_is_scikit_learns(hard):
    c, f = simulated(300, hard=hard, power=2.0)
    curve = corp_reliability(c, f, draws=1)
    expected = IsotonicRegression(y_min=0, y_max=1).fit(c, f).predict(np.sort(c))
    assert curve.recalibrated.tolist() == pytest.approx(expected.tolist(), abs=1e-12)
    assert bool((curve.recalibrated.diff() >= 0).all())


def band_one_by_one(c, f, draws, seed):
    """Sentence by sentence: pairs drawn with replacement, with labels of mean c, through scikit-learn."""
    rng = np.random.default_rng(seed)
    x = np.unique(c)
    fitted = IsotonicRegression(y_min=0, y_max=1).fit(c, f).predict(c)
    spread = np.sum((f - fitted) ** 2) / np.sum(fitted * (1 - fitted))
    curves = []
    for _ in range(draws):
        drawn = rng.choice(c, len(c))
        labels = np.where(rng.random(len(c)) < spread, rng.random(len(c)) < drawn, drawn)
        there = np.unique(drawn)
        again = IsotonicRegression(y_min=0, y_max=1).fit(drawn, labels).predict(there)
        curves.append(np.interp(x, there, again))
    return np.quantile(curves, [0.05, 0.95], axis=0), spread


@pytest.mark.parametrize(("hard", "levels"), [(True, 10), (False, 10), (True, None)])
def test_the_band_is_that_of_sentences_drawn_one_by_one(hard, levels):
    c, f = simulated(150, levels, hard)
    curve = corp_reliability(c, f, level=0.9, draws=600)
    (low, high), spread = band_one_by_one(c, f, 600, seed=1)
    assert (spread == pytest.approx(1.0, abs=1e-12)) == hard
    assert np.abs(curve.low.numpy() - low).mean() < 0.02 and np.abs(curve.high.numpy() - high).mean() < 0.02


def test_the_band_holds_calibrated_confidences_and_leaves_out_others():
    shares = []
    for seed in range(20):
        curve = corp_reliability(*simulated(300, 20, hard=True, seed=seed), draws=200)
        shares.append(((curve.low <= curve.recalibrated) & (curve.recalibrated <= curve.high)).double().mean().item())
    assert 0.88 < np.mean(shares) < 0.99
    off = corp_reliability(*simulated(300, 20, hard=True, power=4.0), draws=200)
    middle = (off.x > 0.4) & (off.x < 0.9)
    assert bool((off.recalibrated < off.low)[middle].all())
    graded, hard = (corp_reliability(*simulated(300, 20, hard, noise=0.1), draws=200) for hard in (False, True))
    assert (graded.high - graded.low).mean() < 0.7 * (hard.high - hard.low).mean()


def test_a_band_is_drawn_again_by_its_seed():
    c, f = simulated(60, 10)
    first, again, other = (corp_reliability(c, f, draws=50, seed=seed) for seed in (3, 3, 4))
    assert torch.equal(first.low, again.low) and torch.equal(first.high, again.high)
    assert not torch.equal(first.low, other.low)
    narrow = corp_reliability(c, f, draws=50, seed=3, level=0.5)
    assert bool((narrow.low >= first.low).all() and (narrow.high <= first.high).all())
    order = np.random.default_rng(0).permutation(60)
    mixed = corp_reliability(c[order], f[order], draws=50, seed=3)
    assert mixed.low.tolist() == pytest.approx(first.low.tolist(), abs=1e-9)
