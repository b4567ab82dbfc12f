"""Risk and coverage: against every order of ties, by hand, and what a threshold keeps."""

import math
from itertools import pairwise, permutations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lovec.metrics import AURC, CalibrationSuite
from lovec.metrics.risk import aurc, risk_coverage, thresholds
from lovec.types import LovecError

FEW = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 10)), min_size=1, max_size=6)
MANY = st.lists(st.tuples(st.integers(0, 10), st.integers(0, 10)), min_size=1, max_size=40)


def tensors(pairs, dtype=torch.float64):
    return (torch.tensor(column, dtype=dtype) / 10 for column in zip(*pairs, strict=True))


def area(order):
    """Mean over k of the risk of the first k: the definition, for one order of (confidence, factuality)."""
    losses = [1 - f for _, f in order]
    return sum(sum(losses[:k]) / k for k in range(1, len(losses) + 1)) / len(losses)


@given(FEW)
def test_aurc_is_the_mean_over_all_orders_of_ties(pairs):
    c, f = tensors(pairs)
    items = list(zip(c.tolist(), f.tolist(), strict=True))
    orders = [o for o in permutations(items) if all(a[0] >= b[0] for a, b in pairwise(o))]
    assert aurc(c, f).item() == pytest.approx(sum(map(area, orders)) / len(orders), abs=1e-12)


def test_by_hand():
    c = torch.tensor([0.9, 0.5, 0.9, 0.1])
    f = torch.tensor([1.0, 0.5, 0.4, 0.0])
    coverage, risk = risk_coverage(c, f)
    assert coverage.tolist() == [0.5, 0.75, 1.0]
    assert risk.tolist() == pytest.approx([0.3, 1.1 / 3, 2.1 / 4])
    # one of the two most confident loses 0, the other 0.6: 0.3 in expectation, then 0.6/2, 1.1/3, 2.1/4
    assert aurc(c, f).item() == pytest.approx((0.3 + 0.3 + 1.1 / 3 + 2.1 / 4) / 4)


def test_a_constant_knows_nothing_and_the_best_order_is_the_truths():
    f = torch.tensor([0.3, 1.0, 0.0, 0.5, 0.5])
    assert aurc(torch.full((5,), 0.7), f).item() == pytest.approx(1 - f.mean().item())
    best = aurc(f, f).item()
    assert best == pytest.approx(min(area([(0, x) for x in order]) for order in permutations(f.tolist())))
    assert aurc(1 - f, f).item() == pytest.approx(max(area([(0, x) for x in o]) for o in permutations(f.tolist())))


@given(MANY)
def test_the_curve_is_what_thresholds_keep(pairs):
    """Each point of the curve is what lies at or above one of the different confidences."""
    c, f = tensors(pairs)
    coverage, risk = risk_coverage(c, f)
    levels = sorted(set(c.tolist()), reverse=True)
    assert coverage.tolist() == pytest.approx([(c >= level).double().mean().item() for level in levels])
    assert risk.tolist() == pytest.approx([1 - f[c >= level].mean().item() for level in levels], abs=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_thresholds_keep_their_own_score(dtype):
    c = torch.arange(11, dtype=dtype) / 10
    kept, truth = thresholds(c, 1 - c)
    assert kept.tolist() == pytest.approx([(11 - score) / 11 for score in range(11)])
    assert truth.tolist() == pytest.approx([(10 - score) / 20 for score in range(11)], abs=1e-6)


def test_thresholds_of_another_scale():
    kept, truth = thresholds(torch.tensor([0.0, 0.5, 1.0, 1.0]), torch.tensor([0.0, 0.4, 1.0, 0.8]), levels=3)
    assert kept.tolist() == [1.0, 0.75, 0.5]
    assert truth.tolist() == pytest.approx([0.55, 2.2 / 3, 0.9])


def test_thresholds_above_all_that_is_said_keep_nothing():
    kept, truth = thresholds(torch.tensor([0.65, 0.2]), torch.tensor([0.8, 0.0]))
    assert kept.tolist() == [1.0] * 3 + [0.5] * 4 + [0.0] * 4
    assert truth[:7].tolist() == pytest.approx([0.4] * 3 + [0.8] * 4)
    assert truth[7:].isnan().all()


def test_nothing_is_nan_and_nonsense_is_refused():
    nothing = torch.zeros(0)
    assert math.isnan(aurc(nothing, nothing).item())
    assert [part.numel() for part in risk_coverage(nothing, nothing)] == [0, 0]
    for part in thresholds(nothing, nothing):
        assert part.isnan().all()
    for function in (aurc, risk_coverage, thresholds):
        with pytest.raises(LovecError, match=r"confidence contains 1\.2"):
            function(torch.tensor([1.2]), torch.tensor([1.0]))


def test_float32_equals_float64_and_batches_equal_the_whole():
    torch.manual_seed(0)
    c, f = torch.randint(0, 11, (101,)) / 10, torch.randint(0, 11, (101,)) / 10
    whole = aurc(c.double(), f.double()).item()
    assert aurc(c, f).item() == pytest.approx(whole, abs=1e-7)
    metric, suite = AURC(), CalibrationSuite()
    for part in (slice(0, 40), slice(40, 40), slice(40, 101)):
        metric.update(c[part], f[part])
        suite.update(c[part], f[part])
    assert metric.compute().item() == pytest.approx(aurc(c, f).item(), abs=1e-12)
    assert suite.compute()["aurc"].item() == pytest.approx(aurc(c, f).item(), abs=1e-12)
