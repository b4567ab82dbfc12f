"""Ranking metrics against scikit-learn, loops over all pairs, and all orders of ties."""

from __future__ import annotations

import math
from itertools import pairwise, permutations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import auc, average_precision_score, roc_auc_score

from lovec.metrics.functional import f1_at_k, log_score
from lovec.metrics.ranking import auarc, auprc, aurc_of, auroc, c_index, prr
from lovec.metrics.risk import aurc
from lovec.metrics.weighted import PairLayout
from lovec.types import LovecError

MANY = st.lists(st.tuples(st.integers(0, 10), st.integers(0, 10)), min_size=1, max_size=40)
FEW = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 10)), min_size=2, max_size=6)
RANKING = {"auroc": auroc, "auprc": auprc, "c_index": c_index, "auarc": auarc, "prr": prr}


def arrays(pairs):
    c, f = (np.array(column) / 10 for column in zip(*pairs, strict=True))
    return c, f


def orders(c, f):
    """Factualities in every order in which no confidence comes after a lower one."""
    items = list(zip(c, f, strict=True))
    return [[truth for _, truth in o] for o in permutations(items) if all(a[0] >= b[0] for a, b in pairwise(o))]


def running_means(truths):
    return np.cumsum(truths) / np.arange(1, len(truths) + 1)


# AUROC, AUPRC


@settings(deadline=None)
@given(MANY, st.sampled_from([0.1, 0.5, 1.0]))
def test_auroc_and_auprc_are_scikit_learns_on_thresholded_labels(pairs, threshold):
    c, f = arrays(pairs)
    true = f >= threshold
    if true.any():
        assert auprc(c, f, threshold).item() == pytest.approx(average_precision_score(true, c), abs=1e-12)
    else:
        assert math.isnan(auprc(c, f, threshold))
    if true.any() and not true.all():
        assert auroc(c, f, threshold).item() == pytest.approx(roc_auc_score(true, c), abs=1e-12)
    else:
        assert math.isnan(auroc(c, f, threshold))


def test_auroc_of_labels_0_and_1_does_not_depend_on_the_threshold():
    rng = np.random.default_rng(0)
    c, f = rng.integers(0, 11, 90) / 10, rng.integers(0, 2, 90).astype(float)
    assert len({auroc(c, f, threshold).item() for threshold in (0.01, 0.5, 1.0)}) == 1
    assert auroc(c, f).item() == pytest.approx(c_index(c, f).item(), abs=1e-15)


def test_a_mean_that_rounds_below_the_threshold_is_on_it():
    below = np.nextafter(0.5, 0)
    assert auroc([0.9, 0.1], [below, 0.2]).item() == 1.0
    assert math.isnan(auroc([0.9, 0.1], [0.499, 0.2]))


@pytest.mark.parametrize("function", [auroc, auprc])
@pytest.mark.parametrize("threshold", [0.0, 1.1, math.nan, "half"])
def test_thresholds_out_of_range_are_refused(function, threshold):
    with pytest.raises(LovecError, match="threshold of true labels is"):
        function([0.5, 0.6], [0.0, 1.0], threshold)


# C-index


@settings(deadline=None)
@given(MANY)
def test_the_c_index_counts_all_pairs(pairs):
    c, f = arrays(pairs)
    truer = [(i, j) for i in range(len(c)) for j in range(len(c)) if f[i] > f[j]]
    expected = np.mean([(c[i] > c[j]) + 0.5 * (c[i] == c[j]) for i, j in truer]) if truer else math.nan
    assert c_index(c, f).item() == pytest.approx(expected, abs=1e-12, nan_ok=True)


@pytest.mark.parametrize("n", [2, 63, 64, 65, 700])
def test_the_c_index_of_continuous_values(n):
    rng = np.random.default_rng(n)
    c, f = rng.random(n), rng.random(n)
    above = (c[:, None] > c) & (f[:, None] > f)
    assert c_index(c, f).item() == pytest.approx(above.sum() / (n * (n - 1) / 2), abs=1e-12)


# AUARC, PRR


@settings(deadline=None)
@given(FEW)
def test_auarc_is_the_mean_over_all_orders_of_ties(pairs):
    c, f = arrays(pairs)
    expected = np.mean([auc(np.linspace(0, 1, len(c)), running_means(order)) for order in orders(c, f)])
    assert auarc(c, f).item() == pytest.approx(expected, abs=1e-12)


@settings(deadline=None)
@given(FEW)
def test_prr_is_lm_polygraphs_formula_over_all_orders(pairs):
    """Quality is scaled to [0, 1]; a score is the mean of the running means of the most certain ones."""
    c, f = arrays(pairs)
    if f.min() == f.max():
        assert math.isnan(prr(c, f))
        return
    quality = (f - f.min()) / (f.max() - f.min())
    given_order = np.mean([running_means(order).mean() for order in orders(c, quality)])
    oracle = running_means(np.sort(quality)[::-1]).mean()
    random = np.mean([running_means(order).mean() for order in permutations(quality)])
    assert prr(c, f).item() == pytest.approx((given_order - random) / (oracle - random), abs=1e-9)


def test_prr_of_many_is_that_of_shuffles():
    rng = np.random.default_rng(0)
    f = rng.random(400)
    c = np.clip(f + rng.normal(0, 0.3, 400), 0, 1) * 0.98 + rng.random(400) * 0.01
    score = running_means(f[np.argsort(-c)]).mean()
    oracle = running_means(np.sort(f)[::-1]).mean()
    random = np.mean([running_means(rng.permutation(f)).mean() for _ in range(1000)])
    assert prr(c, f).item() == pytest.approx((score - random) / (oracle - random), abs=0.02)
    assert auarc(c, f).item() == pytest.approx(auc(np.linspace(0, 1, 400), running_means(f[np.argsort(-c)])), abs=1e-12)


@settings(deadline=None)
@given(MANY)
def test_aurc_of_draws_is_aurc(pairs):
    c, f = arrays(pairs)
    assert aurc_of(PairLayout.of(c, f).whole()).item() == pytest.approx(aurc(c, f).item(), abs=1e-12)


def test_best_worst_and_no_knowledge():
    f = np.array([0.0, 0.3, 0.5, 0.8, 1.0, 1.0])
    assert prr(f, f).item() == c_index(f, f).item() == auroc(f, f).item() == auprc(f, f).item() == 1.0
    assert c_index(1 - f, f).item() == auroc(1 - f, f).item() == 0.0 and prr(1 - f, f).item() < -0.5
    same = np.full(6, 0.7)
    assert prr(same, f).item() == pytest.approx(0.0, abs=1e-15)
    assert c_index(same, f).item() == auroc(same, f).item() == 0.5
    assert auprc(same, f).item() == 4 / 6 and auarc(same, f).item() == pytest.approx(f.mean())


@settings(deadline=None)
@given(MANY)
def test_reversed_confidences_reverse_the_order(pairs):
    c, f = arrays(pairs)
    for metric in (auroc, c_index):
        assert metric(1 - c, f).item() == pytest.approx(1 - metric(c, f).item(), abs=1e-12, nan_ok=True)
    assert c_index(1 - c, 1 - f).item() == pytest.approx(c_index(c, f).item(), abs=1e-12, nan_ok=True)


@pytest.mark.parametrize("name", RANKING)
def test_only_the_order_counts(name):
    rng = np.random.default_rng(1)
    c, f = rng.integers(0, 11, 80) / 10, rng.integers(0, 11, 80) / 10
    assert RANKING[name](c**3, f).item() == pytest.approx(RANKING[name](c, f).item(), abs=1e-12)


UNDEFINED = {  # nothing, one item, constant confidence, constant labels
    "auroc": (True, True, False, True),
    "auprc": (True, False, False, True),
    "c_index": (True, True, False, True),
    "auarc": (True, True, False, False),
    "prr": (True, True, False, True),
}


@pytest.mark.parametrize("name", RANKING)
def test_what_is_undefined_is_nan(name):
    cases = ([], []), ([0.7], [1.0]), ([0.4] * 3, [1.0, 0.2, 0.5]), ([0.1, 0.5, 0.9], [0.3] * 3)
    assert tuple(math.isnan(RANKING[name](*case)) for case in cases) == UNDEFINED[name]


# Log score, F1@K


def test_the_log_score_by_hand_and_by_scikit_learn():
    from sklearn.metrics import log_loss

    assert log_score([0.8, 0.5], [1.0, 0.3]).item() == pytest.approx(-(math.log(0.8) + math.log(0.5)) / 2)
    assert log_score([1.0], [0.0]).item() == pytest.approx(-math.log(0.01))
    assert log_score([0.0], [0.25], clip=1e-6).item() == pytest.approx(-0.25 * math.log(1e-6), abs=1e-5)
    rng = np.random.default_rng(0)
    c, f = rng.random(200), rng.integers(0, 2, 200)
    assert log_score(c, f.astype(float), clip=1e-9).item() == pytest.approx(log_loss(f, c), abs=1e-9)
    assert math.isnan(log_score([], []))
    for clip in (0.0, 0.5, -1, math.nan):
        with pytest.raises(LovecError, match="clip of the log score is"):
            log_score([0.5], [0.5], clip)


def test_the_log_score_is_lowest_at_the_label():
    for label in (0.1, 0.4, 0.9):
        scores = [log_score([c / 100], [label]).item() for c in range(101)]
        assert np.argmin(scores) == round(100 * label)


def test_f1_at_k_by_hand():
    # 48 of 60 supported, K = 64: precision 0.8, recall 0.75; 100 of 100: recall stops at 1; graded: 1.5 of 2, K = 3
    assert f1_at_k([48, 100, 0], [60, 100, 5]).tolist() == pytest.approx([2 * 0.8 * 0.75 / 1.55, 1.0, 0.0])
    assert f1_at_k([1.5], [2], k=3).item() == pytest.approx(2 * 0.75 * 0.5 / 1.25)
    assert math.isnan(f1_at_k([0], [0]).item()) and f1_at_k([], []).tolist() == []


def test_f1_at_k_is_that_of_the_definition():
    rng = np.random.default_rng(0)
    total = rng.integers(1, 200, 300)
    supported = rng.binomial(total, 0.7)
    for k in (1, 64, 178):
        expected = []
        for s, n in zip(supported.tolist(), total.tolist(), strict=True):
            precision, recall = s / n, min(s / k, 1)
            expected.append(2 * precision * recall / (precision + recall) if s else 0.0)
        assert f1_at_k(torch.tensor(supported), torch.tensor(total), k).tolist() == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize(
    ("supported", "total", "words"),
    [
        ([3], [2], r"supported is \[3.0\] and total \[2.0\]"),
        ([-1], [2], "supported is"),
        ([1, 2], [2], "expected one number per passage"),
        ([math.nan], [2], "supported is"),
        ([None], [2], "supported contains None at index 0"),
    ],
)
def test_f1_at_k_refuses(supported, total, words):
    with pytest.raises(LovecError, match=words):
        f1_at_k(supported, total)
    with pytest.raises(LovecError, match="K of F1@K is 0"):
        f1_at_k([1], [2], k=0)
