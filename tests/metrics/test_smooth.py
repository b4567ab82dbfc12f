"""Smooth ECE against the integral written out, and against the authors' own package where it is installed."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from lovec.metrics.functional import ece_m
from lovec.metrics.smooth import smooth_ece, smooth_ece_of
from lovec.metrics.weighted import PairLayout, WeightedPairs
from lovec.types import LovecError


def written_out(c, f, bandwidth, steps=8000):
    """The integral of abs(sum of residuals x Gaussians) / n, each Gaussian with its mirror images at 0 and 1."""
    t = (np.arange(steps) + 0.5) / steps
    total = np.zeros(steps)
    for confidence, residual in zip(c, f - c, strict=True):
        for centre in (2 * turn + sign * confidence for turn in range(-4, 5) for sign in (1, -1)):
            total += residual * np.exp(-0.5 * ((t - centre) / bandwidth) ** 2)
    return np.abs(total).mean() / (len(c) * bandwidth * math.sqrt(2 * math.pi))


def pairs(n, levels, noise, seed=0, hard=False):
    rng = np.random.default_rng(seed)
    c = rng.integers(0, levels + 1, n) / levels
    f = np.clip(c + rng.normal(0, noise, n), 0, 1)
    return c, (rng.random(n) < f).astype(float) if hard else f


CASES = [(1, 10, 0.3), (2, 10, 0.5), (60, 10, 0.2), (60, 10**6, 0.3), (150, 100, 0.05)]


@pytest.mark.parametrize("hard", [False, True])
@pytest.mark.parametrize(("n", "levels", "noise"), CASES)
def test_it_is_the_integral_written_out(n, levels, noise, hard):
    c, f = pairs(n, levels, noise, hard=hard)
    for bandwidth in (0.02, 0.1, 0.6):
        expected = written_out(c, f, bandwidth)
        assert smooth_ece(c, f, bandwidth).item() == pytest.approx(expected, abs=1e-4)
    own = smooth_ece(c, f).item()
    assert own == pytest.approx(written_out(c, f, max(own, 1e-3)), abs=1e-4)
    if own > 1e-3:
        assert smooth_ece(c, f, own).item() == pytest.approx(own, abs=1e-9)  # the bandwidth that equals its smECE


def test_the_bandwidth_is_found_whatever_the_data():
    for seed in range(100):
        rng = np.random.default_rng(seed)
        c, f = pairs(
            int(rng.integers(1, 60)), int(rng.choice([1, 10, 100, 10**6])), rng.choice([0.001, 0.01, 0.1, 1]), seed
        )
        own = smooth_ece(c, f).item()
        assert smooth_ece(c, f, max(own, 1e-3)).item() == pytest.approx(own, abs=1e-6)


def test_a_draw_has_the_value_that_it_has_alone():
    """Each draw has its own bandwidth, and so its own number of steps: those of the others change nothing."""
    c, f = pairs(200, 100, 0.3)
    f[:100] = c[:100] + 1e-3 * (1 - 2 * c[:100])  # the first half is nearly calibrated
    weight = torch.zeros(4, 200, dtype=torch.float64)
    weight[0, :100], weight[1, 100:], weight[2] = 1, 1, 1
    found = smooth_ece_of(WeightedPairs(PairLayout.of(c, f), weight))
    alone = [smooth_ece(c[part], f[part]).item() for part in (slice(100), slice(100, None), slice(None))]
    assert alone[0] < 0.003 < 0.03 < min(alone[1:])
    assert found[:3].tolist() == pytest.approx(alone, abs=1e-11) and found[3].isnan()


def test_known_values():
    assert smooth_ece([0.0] * 3, [0.5] * 3).item() == pytest.approx(0.5, abs=1e-9)  # all residuals of one sign
    assert smooth_ece([0.3, 0.3], [0.2, 0.4]).item() == pytest.approx(0.0, abs=1e-12)
    assert smooth_ece([0.1, 0.5, 1.0], [0.1, 0.5, 1.0]).item() == 0.0
    assert math.isnan(smooth_ece([], []).item())
    # 0 for true, 1 for false: the residuals +-1 at the ends
    assert smooth_ece([0.0, 1.0], [1.0, 0.0]).item() == pytest.approx(0.4561, abs=1e-4)


def test_it_falls_with_the_bandwidth_between_its_bounds():
    c, f = pairs(200, 10, 0.2)
    values = [smooth_ece(c, f, bandwidth).item() for bandwidth in (0.001, 0.01, 0.05, 0.2, 0.5, 1.0)]
    assert values == sorted(values, reverse=True)
    assert values[0] == pytest.approx(ece_m(c, f, "levels").item(), abs=1e-4)  # a narrow kernel tells all levels apart
    assert values[-1] == pytest.approx(abs(f.mean() - c.mean()), abs=1e-3)  # a wide one sees the bias alone


def test_it_is_the_same_from_the_other_end():
    c, f = pairs(100, 10, 0.3)
    assert smooth_ece(1 - c, 1 - f).item() == pytest.approx(smooth_ece(c, f).item(), abs=1e-9)


@pytest.mark.parametrize("n", [500, 4000])
def test_it_is_that_of_the_authors(n):
    """Their code folds what lies exactly on 0 and 1 with half its weight, and ends its search at 1/1024."""
    relplot = pytest.importorskip("relplot", reason="relplot, the authors' package, is not installed")
    rng = np.random.default_rng(n)
    c = rng.random(n)
    for power in (1.0, 1.5):
        f = (rng.random(n) < c**power).astype(float)
        assert smooth_ece(c, f, 0.05).item() == pytest.approx(relplot.smECE_sigma(c, f, 0.05), abs=1e-3)
        assert smooth_ece(c, f).item() == pytest.approx(relplot.smECE(c, f), abs=2e-3)


@pytest.mark.parametrize("bandwidth", [0.0, 1e-4, 1.5, math.nan, "wide"])
def test_a_bandwidth_out_of_range_is_refused(bandwidth):
    with pytest.raises(LovecError, match="bandwidth is"):
        smooth_ece([0.5], [0.5], bandwidth)
    with pytest.raises(LovecError, match=r"factuality contains 1\.5"):
        smooth_ece(torch.tensor([0.5]), torch.tensor([1.5]))
