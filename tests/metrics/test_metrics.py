import json
import math
import warnings
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from forks import run_forks
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import entropy as scipy_entropy
from scipy.stats import spearmanr
from sklearn.metrics import brier_score_loss
from torchmetrics import Metric, MetricCollection
from torchmetrics.utilities.data import dim_zero_cat

from lovec.evaluation import EvaluationConfig
from lovec.metrics import (
    AUARC,
    AUPRC,
    AURC,
    AUROC,
    ECEM,
    BrierScore,
    CalibrationSuite,
    CIndex,
    Discrimination,
    F1AtK,
    LogScore,
    Miscalibration,
    PredictionRejectionRatio,
    SmoothECE,
    SpearmanCorrelation,
    Uncertainty,
)
from lovec.metrics.corp import brier_decomposition
from lovec.metrics.functional import (
    brier_score,
    ece_m,
    entropy,
    expected_confidence,
    f1_at_k,
    log_score,
    mean_confidence,
    spearman,
)
from lovec.metrics.ranking import auarc, auprc, auroc, c_index, prr
from lovec.metrics.records import AnswerStatistics, answer_statistics, confidence_of, passage_pairs, sentence_pairs
from lovec.metrics.risk import aurc
from lovec.metrics.smooth import smooth_ece
from lovec.metrics.suite import user_metric_infos
from lovec.metrics.table import METRICS, MetricInfo
from lovec.types import LovecError, Record, Sentence

WIKIBIO = Path(__file__).parents[3] / "shared" / "data" / "wikibio_gpt3_human"
CLASSES = {
    "brier": (BrierScore, {}, brier_score),
    "bins": (ECEM, {}, ece_m),
    "bins5": (ECEM, {"bins": 5}, lambda c, f: ece_m(c, f, bins=5)),
    "levels": (ECEM, {"variant": "levels"}, lambda c, f: ece_m(c, f, "levels")),
    "huang": (ECEM, {"variant": "huang"}, lambda c, f: ece_m(c, f, "huang")),
    "three levels": (ECEM, {"variant": "levels", "levels": 3}, lambda c, f: ece_m(c, f, "levels", levels=3)),
    "spearman": (SpearmanCorrelation, {}, spearman),
    "aurc": (AURC, {}, aurc),
    "auroc": (AUROC, {}, auroc),
    "strict auroc": (AUROC, {"threshold": 0.9}, lambda c, f: auroc(c, f, 0.9)),
    "auprc": (AUPRC, {}, auprc),
    "strict auprc": (AUPRC, {"threshold": 0.9}, lambda c, f: auprc(c, f, 0.9)),
    "c_index": (CIndex, {}, c_index),
    "auarc": (AUARC, {}, auarc),
    "prr": (PredictionRejectionRatio, {}, prr),
    "smooth_ece": (SmoothECE, {}, smooth_ece),
    "miscalibration": (Miscalibration, {}, lambda c, f: brier_decomposition(c, f).miscalibration),
    "discrimination": (Discrimination, {}, lambda c, f: brier_decomposition(c, f).discrimination),
    "uncertainty": (Uncertainty, {}, lambda c, f: brier_decomposition(c, f).uncertainty),
    "log_score": (LogScore, {}, log_score),
    "clipped": (LogScore, {"clip": 0.2}, lambda c, f: log_score(c, f, 0.2)),
}
TENTHS = st.lists(st.tuples(st.integers(0, 10), st.integers(0, 10)), min_size=2, max_size=40)


def tensors(pairs, dtype=torch.float64):
    return (torch.tensor(column, dtype=dtype) for column in zip(*pairs, strict=True))


def random_pairs(n, seed=0):
    rng = np.random.default_rng(seed)
    c = rng.integers(0, 11, n) / 10
    f = np.clip(10 * c + rng.integers(-4, 5, n), 0, 10).round() / 10
    return torch.tensor(c), torch.tensor(f)


def reference_ece(c, f, groups, stated):
    """By the definition, group by group: sum |B|/N |mean f - mean stated|."""
    c, f = np.asarray(c), np.asarray(f)
    return sum(
        (groups == b).mean() * abs(f[groups == b].mean() - np.asarray(stated)[groups == b].mean())
        for b in np.unique(groups)
    )


# ---------------------------------------------------------------- by hand


def test_brier_by_hand():
    c, f = torch.tensor([0.9, 0.3, 0.0, 1.0]), torch.tensor([1.0, 0.5, 0.0, 0.0])
    assert brier_score(c, f).item() == pytest.approx((0.01 + 0.04 + 0 + 1) / 4)


def test_ece_m_by_hand():
    # bin 0: (0, .5); bin 3: (.3, 0), (.35, .4); bin 9: (.9, 1), (1, 1), (1, .4)
    c = torch.tensor([0.0, 0.3, 0.35, 0.9, 1.0, 1.0])
    f = torch.tensor([0.5, 0.0, 0.4, 1.0, 1.0, 0.4])
    assert ece_m(c, f).item() == pytest.approx((0.5 + abs(0.4 - 0.65) + abs(2.4 - 2.9)) / 6)
    # levels: 0; .3; .4 (from .35); .9; 1, 1
    assert ece_m(c, f, "levels").item() == pytest.approx((0.5 + 0.3 + 0.05 + 0.1 + abs(1.4 - 2.0)) / 6)
    assert ece_m(c, f, "huang").item() == pytest.approx((0.5 + 0.3 + 0.0 + 0.1 + abs(1.4 - 2.0)) / 6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("score", range(11))
def test_a_score_lands_in_its_own_bin_in_either_precision(score, dtype):
    metric = ECEM()
    metric.update(torch.tensor([score / 10], dtype=dtype), torch.tensor([0.0], dtype=dtype))
    assert metric.sums[0].nonzero().flatten().tolist() == [min(score, 9)]
    levels = ECEM("levels")
    levels.update(torch.tensor([score / 10], dtype=dtype), torch.tensor([0.0], dtype=dtype))
    assert levels.sums[0].nonzero().flatten().tolist() == [score]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_halves_go_to_the_upper_level(dtype):
    metric = ECEM("levels")
    metric.update(torch.arange(10, dtype=dtype) / 10 + 0.05, torch.zeros(10, dtype=dtype))
    assert metric.sums[0].tolist() == [0] + [1] * 10


def test_what_bins_merge_levels_tell_apart():
    c, f = torch.tensor([0.9, 1.0]), torch.tensor([1.0, 0.9])
    assert ece_m(c, f).item() == pytest.approx(0.0, abs=1e-7)
    assert ece_m(c, f, "levels").item() == pytest.approx(0.1)


def test_perfect_and_worst():
    c = torch.arange(11) / 10
    for metric in (brier_score, ece_m):
        assert metric(c, c).item() == 0.0
        assert metric(torch.tensor([0.0, 1.0]), torch.tensor([1.0, 0.0])).item() == 1.0
    assert spearman(c, c).item() == pytest.approx(1.0)
    assert spearman(c, 1 - c).item() == pytest.approx(-1.0)


# ---------------------------------------------------------------- against scipy and scikit-learn


@given(TENTHS)
def test_spearman_equals_scipy_with_ties(pairs):
    c, f = (x / 10 for x in tensors(pairs))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected, ours = spearmanr(c, f).statistic, spearman(c, f).item()
    assert ours == pytest.approx(expected, abs=1e-9, nan_ok=True)


@pytest.mark.parametrize("n", [2, 3, 1000, 20001])
def test_spearman_equals_scipy_on_continuous_values(n):
    rng = np.random.default_rng(n)
    c, f = rng.random(n), rng.random(n)
    ours = spearman(torch.tensor(c), torch.tensor(f)).item()
    assert ours == pytest.approx(spearmanr(c, f).statistic, abs=1e-9)


@given(TENTHS)
def test_ece_m_equals_its_definition(pairs):
    c, f = (x.numpy() / 10 for x in tensors(pairs))
    scores = np.array([p[0] for p in pairs])
    c_t, f_t = torch.tensor(c), torch.tensor(f)
    assert ece_m(c_t, f_t).item() == pytest.approx(reference_ece(c, f, np.minimum(scores, 9), c), abs=1e-9)
    assert ece_m(c_t, f_t, "levels").item() == pytest.approx(reference_ece(c, f, scores, c), abs=1e-9)
    assert ece_m(c_t, f_t, "huang").item() == pytest.approx(reference_ece(c, f, scores, scores / 10), abs=1e-9)


def test_brier_equals_scikit_learn_on_hard_labels():
    rng = np.random.default_rng(0)
    c, f = rng.random(500), rng.integers(0, 2, 500)
    assert brier_score(torch.tensor(c), torch.tensor(f)).item() == pytest.approx(brier_score_loss(f, c), abs=1e-12)


# ---------------------------------------------------------------- batches, precision, edges


@pytest.mark.parametrize("name", CLASSES)
def test_batched_equals_whole_equals_twin(name):
    cls, options, twin = CLASSES[name]
    c, f = random_pairs(101)
    whole, batched = cls(**options), cls(**options)
    whole.update(c, f)
    for part in (slice(0, 1), slice(1, 1), slice(1, 40), slice(40, 101)):
        batched.update(c[part], f[part])
    expected = twin(c, f).item()
    assert 0.0 < expected < 1.0
    assert whole.compute().item() == pytest.approx(expected, abs=1e-12)
    assert batched.compute().item() == pytest.approx(expected, abs=1e-12)
    batched.reset()
    batched.update(c[:50], f[:50])
    assert batched.compute().item() == pytest.approx(twin(c[:50], f[:50]).item(), abs=1e-12)


@pytest.mark.parametrize("name", CLASSES)
def test_merged_states_and_any_order_equal_the_whole(name):
    cls, options, twin = CLASSES[name]
    c, f = random_pairs(101, seed=2)
    expected = twin(c, f).item()
    first, second = cls(**options), cls(**options)
    first.update(c[:30], f[:30])
    second.update(c[30:], f[30:])
    first.merge_state(second)
    assert first.compute().item() == pytest.approx(expected, abs=1e-12)
    order = torch.randperm(101, generator=torch.Generator().manual_seed(0))
    assert twin(c[order], f[order]).item() == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("name", CLASSES)
def test_forward_gives_the_batch_value_and_accumulates(name):
    cls, options, twin = CLASSES[name]
    c, f = random_pairs(60)
    metric = cls(**options)
    assert metric(c[:25], f[:25]).item() == pytest.approx(twin(c[:25], f[:25]).item(), abs=1e-12)
    assert metric(c[25:], f[25:]).item() == pytest.approx(twin(c[25:], f[25:]).item(), abs=1e-12)
    assert metric.compute().item() == pytest.approx(twin(c, f).item(), abs=1e-12)


@pytest.mark.parametrize("name", CLASSES)
def test_float32_equals_float64(name):
    _, _, twin = CLASSES[name]
    c, f = random_pairs(500, seed=1)
    assert twin(c.float(), f.float()).item() == pytest.approx(twin(c, f).item(), abs=1e-6)
    assert twin(c.float(), f.float()).dtype == torch.float64


def test_sums_do_not_lose_small_batches():
    """In float32 a sum of 2e7 no longer moves when 0.25 is added."""
    metric = BrierScore()
    metric.update(torch.tensor([1.0]), torch.tensor([0.0]))
    metric.sums += 2e7
    before = metric.sums[0].item()
    metric.update(torch.tensor([0.5]), torch.tensor([0.0]))
    assert metric.sums[0].item() - before == 0.25


@pytest.mark.filterwarnings("ignore:The ``compute`` method")
@pytest.mark.parametrize("name", CLASSES)
def test_nothing_gives_nan(name):
    cls, options, twin = CLASSES[name]
    assert math.isnan(twin(torch.zeros(0), torch.zeros(0)).item())
    metric = cls(**options)
    assert math.isnan(metric.compute().item())
    metric.update(torch.zeros(0), torch.zeros(0))
    assert math.isnan(metric.compute().item())
    metric.update(torch.tensor([0.1, 0.9]), torch.tensor([0.0, 1.0]))
    assert not math.isnan(metric.compute().item())


@pytest.mark.parametrize(
    ("c", "f", "words"),
    [
        ([0.5, 0.5], [0.0, 1.0], "confidence is constant"),
        ([0.0, 1.0], [0.5, 0.5], "factuality is constant"),
        ([0.5, 0.5], [1.0, 1.0], "confidence and factuality are constant over 2 pairs"),
        ([0.2], [0.3], "there is only one pair"),
    ],
)
def test_spearman_of_a_constant_is_nan_with_one_warning(c, f, words):
    metric = SpearmanCorrelation()
    metric.update(torch.tensor(c), torch.tensor(f))
    with pytest.warns(UserWarning) as caught:
        value = metric.compute()
    assert math.isnan(value.item())
    assert len(caught) == 1 and words in str(caught[0].message)


@pytest.mark.parametrize("name", CLASSES)
@pytest.mark.parametrize(
    ("c", "f", "words"),
    [
        ([0.5, 1.01], [0.0, 0.0], "confidence contains 1.01"),
        ([0.5, 0.5], [0.0, -0.1], "factuality contains -0.1"),
        ([0.5, math.nan], [0.0, 0.0], "confidence contains nan"),
        ([0.5, 0.5], [0.0, math.nan], "factuality contains nan"),
        ([7, 3], [1, 0], "divide scores"),
        ([0.5, 0.5], [0.0], r"shape \[2\] and factuality \[1\]"),
        ([0.5], [0.0, 1.0], r"shape \[1\] and factuality \[2\]"),
        ([], [0.0], r"shape \[0\] and factuality \[1\]"),
        ([[0.5]], [[0.5]], r"shape \[1, 1\]"),
        (0.5, 0.5, r"shape \[\]"),
    ],
)
def test_bad_input_is_refused_by_name(name, c, f, words):
    cls, options, twin = CLASSES[name]
    for call in (cls(**options).update, CalibrationSuite().update, twin):
        with pytest.raises(LovecError, match=words):
            call(torch.tensor(c), torch.tensor(f))


def test_a_refused_batch_leaves_no_trace():
    suite = CalibrationSuite()
    answers = AnswerStatistics(tuple(range(11)), words=(30, 4))
    suite.update(*random_pairs(10), 0, answers)
    before = values(suite)
    with pytest.raises(LovecError):
        suite.update(torch.tensor([0.5]), torch.tensor([2.0]), 5, replace(answers, scores=(0,)))
    assert values(suite) == pytest.approx(before, rel=0, abs=0, nan_ok=True)


def test_unknown_variant_and_bins_are_refused():
    with pytest.raises(LovecError, match="expected one of bins, levels, huang"):
        ECEM("bin")
    with pytest.raises(LovecError, match="bins of ECE-M is 0, expected at least 1"):
        ECEM(bins=0)
    with pytest.raises(LovecError, match="levels of ECE-M is 1, expected at least 2"):
        ECEM("levels", levels=1)
    with pytest.raises(LovecError, match="'soft'"):
        ece_m(torch.zeros(1), torch.zeros(1), "soft")


# ---------------------------------------------------------------- hard labels


@pytest.mark.parametrize("seed", range(5))
def test_auroc_equals_scikit_learn_with_ties(seed):
    from sklearn.metrics import roc_auc_score

    generator = torch.Generator().manual_seed(seed)
    c = torch.randint(0, 11, (57,), generator=generator) / 10
    f = torch.randint(0, 2, (57,), generator=generator).double()
    assert float(auroc(c, f)) == pytest.approx(roc_auc_score(f, c), abs=1e-12)
    metric = AUROC()
    for part in (slice(0, 20), slice(20, 57)):
        metric.update(c[part], f[part])
    assert metric.compute() == auroc(c, f)


def test_auroc_by_hand_and_where_there_is_none():
    c = torch.tensor([0.9, 0.4, 0.4, 0.1])
    assert float(auroc(c, torch.tensor([1.0, 1.0, 0.0, 0.0]))) == 3.5 / 4
    assert float(auroc(torch.full((4,), 0.7), torch.tensor([1.0, 0.0, 0.0, 1.0]))) == 0.5
    assert float(auroc(c, torch.tensor([1.0, 0.5, 0.0, 0.0]))) == 3.5 / 4  # half true is true
    for f in ([1.0, 1.0, 1.0, 1.0], [0.0, 0.0, 0.0, 0.0], [0.4, 0.3, 0.0, 0.0]):
        assert math.isnan(auroc(c, torch.tensor(f)))
    assert math.isnan(auroc(torch.zeros(0), torch.zeros(0)))


# ---------------------------------------------------------------- suite


def values(suite):
    """The metrics of a suite as numbers."""
    return {name: value.item() for name, value in suite.compute().items()}


def test_scores_up_to_ten_are_counted_beside_a_scale_of_few_levels():
    suite = CalibrationSuite(levels=5)
    suite.update(torch.tensor([0.9]), torch.tensor([1.0]), answers=AnswerStatistics(scores=(9,)))
    found = values(suite)
    assert (found["distinct"], found["entropy"]) == (1.0, 0.0)


def test_suite_by_hand():
    suite = CalibrationSuite()
    answers = AnswerStatistics((9, 0, 9), 1, words=(30, 4), ttr=(2.5, 4), abstained=(1.0, 4), f1_at_k=(0.3, 1))
    answers = replace(answers, cut_off=(1.5, 4))
    suite.update(torch.tensor([0.9, 0.3]), torch.tensor([1.0, 0.5]), 1, answers)
    suite.update(
        torch.tensor([0.0]), torch.tensor([0.0]), answers=replace(answers, words=(1, 1), ttr=(0.5, 1), f1_at_k=(0.2, 1))
    )
    suite.update(torch.zeros(0), torch.zeros(0), malformed=1)
    assert all(value.dtype == torch.float64 and value.ndim == 0 for value in suite.compute().values())
    assert values(suite) == pytest.approx(
        {
            "brier": (0.01 + 0.04) / 3,
            "ece_m": 0.1,
            "spearman": 1.0,
            "aurc": (0 + 0.5 / 2 + 1.5 / 3) / 3,
            "auroc": 1.0,
            "auprc": 1.0,
            "c_index": 1.0,
            "order": math.nan,
            "auarc": ((1 + 0.75) / 2 + (0.75 + 0.5) / 2) / 2,
            "prr": 1.0,
            "miscalibration": 0.05 / 3,
            "discrimination": 0.5 / 3,
            "uncertainty": 0.5 / 3,
            "smooth_ece": smooth_ece([0.9, 0.3, 0.0], [1.0, 0.5, 0.0]).item(),
            "log_score": -(math.log(0.9) + 0.5 * math.log(0.3) + 0.5 * math.log(0.7) + math.log(0.99)) / 3,
            "graded": 1 / 3,
            "f1_at_k": (0.3 + 0.2) / 2,
            "malformed": 2 / 5,
            "mean_confidence": 0.4,
            "mean_factuality": 0.5,
            "entropy": math.log(3) / 3 + 2 / 3 * math.log(3 / 2),
            "distinct": 2.0,
            "words": 31 / 5,
            "ttr": 3 / 5,
            "diversity": math.nan,
            "abstained": 2 / 8,
            "cut_off": 3 / 8,
            "ordinality": math.nan,
            "n": 3.0,
        },
        abs=1e-7,
        nan_ok=True,
    )


def test_suite_of_nothing_and_of_malformed_only():
    suite = CalibrationSuite()
    suite.update(torch.zeros(0), torch.zeros(0))
    metrics = values(suite)
    assert metrics.pop("n") == 0.0
    assert all(math.isnan(value) for value in metrics.values())
    suite.update(torch.zeros(0), torch.zeros(0), malformed=4)
    metrics = values(suite)
    assert metrics["malformed"] == 1.0 and math.isnan(metrics["brier"])


def test_the_suite_measures_what_the_functions_do():
    c, f = random_pairs(200, seed=3)
    suite = CalibrationSuite()
    for part in (slice(0, 0), slice(0, 90), slice(90, 200)):
        suite.update(c[part], f[part])
    found = values(suite)
    names = set(CLASSES) & set(found)
    assert len(names) == 13  # all that take pairs, by their names
    for name in names:
        assert found[name] == pytest.approx(CLASSES[name][2](c, f).item(), abs=1e-12), name
    assert found["ece_m"] == pytest.approx(ece_m(c, f).item(), abs=1e-12)
    assert found["graded"] == pytest.approx(((f > 0) & (f < 1)).double().mean().item())


@pytest.mark.filterwarnings("ignore:The ``compute`` method")
def test_f1_at_k_is_a_mean_over_passages():
    metric = F1AtK(k=3)
    assert math.isnan(metric.compute().item())
    metric.update([2, 0, 0], [4, 1, 0])  # the last one has no sentence
    other = F1AtK(k=3)
    other.update(torch.tensor([3.0]), torch.tensor([3.0]))
    metric.merge_state(other)
    metric.update([1], [1])
    assert metric.compute().item() == pytest.approx((f1_at_k([2, 1], [4, 1], 3).sum().item() + 1) / 4)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: AUROC(threshold=0.0), "threshold is 0.0, expected above 0"),
        (lambda: AUPRC(threshold=2.0), "threshold is 2.0, expected above 0 and at most 1"),
        (lambda: LogScore(clip=0.5), "clip is 0.5, expected above 0 and below 0.5"),
        (lambda: F1AtK(k=0), "k is 0, expected at least 1"),
    ],
)
def test_options_out_of_range_are_refused(make, words):
    with pytest.raises(LovecError, match=words):
        make()


@pytest.mark.filterwarnings("ignore:The ``compute`` method")
def test_the_suite_measures_what_the_table_lists():
    of_others = {"reward", "loss", "seconds", "span_iou", "span_correlation"}
    assert values(CalibrationSuite()).keys() - {"n"} == METRICS.keys() - of_others


def test_an_empty_first_batch_merges_no_metrics():
    """Metrics that look alike after an empty batch must still count on their own."""
    suite = CalibrationSuite()
    suite.update(torch.zeros(0), torch.zeros(0))
    suite.update(torch.tensor([0.9, 0.3]), torch.tensor([1.0, 0.5]), 1)
    assert suite.compute()["mean_confidence"].item() == pytest.approx(0.6)
    assert suite.compute()["mean_factuality"].item() == pytest.approx(0.75)


# ---------------------------------------------------------------- metrics of the user's own


class AbsoluteError(Metric):
    """Mean |c - f|, as a user may write it: unfit for batches without pairs."""

    higher_is_better = False
    heading = "MAE"
    unit = "percent"
    digits = 2

    def __init__(self):
        super().__init__()
        self.add_state("total", torch.zeros((), dtype=torch.float64), dist_reduce_fx="sum")
        self.add_state("count", torch.zeros(()), dist_reduce_fx="sum")

    def update(self, confidence, factuality):
        self.total += (confidence - factuality).abs().mean() * len(confidence)
        self.count += len(confidence)

    def compute(self):
        return self.total / self.count


@pytest.mark.parametrize("first", [0, 20], ids=["nothing", "tenths"])
def test_a_collection_of_torchmetrics_keeps_metrics_apart(first):
    """It takes metrics whose states are equal after the first batch for one."""
    collection = MetricCollection({name: kind(**options) for name, (kind, options, _) in CLASSES.items()})
    c, f = random_pairs(101)
    c[first:] = 0.97 * c[first:] + 0.01  # tenths alone are in the same groups of several variants
    for part in (slice(0, first), slice(first, 101)):
        collection.update(c[part], f[part])
    assert values(collection) == pytest.approx({name: of(c, f).item() for name, (_, _, of) in CLASSES.items()})


def test_user_metrics_are_measured_beside_the_others():
    suite = CalibrationSuite([AbsoluteError()])
    for part in (slice(0, 0), slice(0, 40), slice(40, 101)):
        suite.update(*(x[part] for x in random_pairs(101)))
    c, f = random_pairs(101)
    assert values(suite)["absolute_error"] == pytest.approx((c - f).abs().mean().item(), abs=1e-12)
    suite.reset()
    suite.update(torch.zeros(0), torch.zeros(0), malformed=1)
    assert math.isnan(values(suite)["absolute_error"])


def test_user_metrics_say_how_they_are_shown():
    class R2Score(Metric):
        higher_is_better = True

        def update(self, confidence, factuality): ...

        def compute(self):
            return 0.5

    infos = user_metric_infos([AbsoluteError(), R2Score()])
    assert infos == {
        "absolute_error": MetricInfo("absolute_error", "MAE", "lower", "percent", 2, "always", False, True),
        "r2_score": MetricInfo("r2_score", "r2 score", "higher", "number", 3, "always", False, True),
    }


class Brier(AbsoluteError):
    """Has the name of a built-in metric."""


class Confidence(AbsoluteError):
    """Is logged as "mean_confidence" where the mean readout is measured."""


class MeanBrier(AbsoluteError):
    """Is logged under the name of the Brier score of the mean readout."""


class PassageAbsoluteError(AbsoluteError):
    """Is logged under the name of the absolute error at passage level."""


class MeanPassageAbsoluteError(AbsoluteError):
    """Is logged as that is for the mean readout."""


class Single(AbsoluteError):
    """Does not take a pair."""

    def update(self, values):
        pass


@pytest.mark.parametrize(
    ("metrics", "message"),
    [
        ([Brier()], "the name 'brier' of the metric Brier is taken"),
        ([Confidence()], "the name 'confidence' of the metric Confidence is taken"),
        ([AbsoluteError(), AbsoluteError()], "the name 'absolute_error' of the metric AbsoluteError is taken"),
        ([MeanBrier()], "the name 'mean_brier' of the metric MeanBrier is taken"),
        ([AbsoluteError(), PassageAbsoluteError()], "the name 'passage_absolute_error' of the metric"),
        ([PassageAbsoluteError(), AbsoluteError()], "the name 'absolute_error' of the metric AbsoluteError is taken"),
        ([MeanPassageAbsoluteError(), PassageAbsoluteError()], "the name 'passage_absolute_error' of the metric"),
        ([Single()], r"Single has update\(values\), expected update\(confidence, factuality\)"),
    ],
)
def test_user_metrics_that_cannot_be_used_are_refused(metrics, message):
    with pytest.raises(LovecError, match=message) as error:
        CalibrationSuite(metrics)
    assert "\n" not in str(error.value)


def test_a_user_metric_must_be_one_number():
    class Pair(AbsoluteError):
        def compute(self):
            return torch.ones(2)

    class Text(AbsoluteError):
        def compute(self):
            return "0.5"

    class Late(AbsoluteError):
        def compute(self):
            return torch.ones(2 if self.count == 3 else 1)

    for metric, found in ((Pair(), "tensor.*"), (Text(), "'0.5'")):
        with pytest.raises(
            LovecError, match=f"{type(metric).__name__} computes {found}, expected a number or a tensor"
        ):
            EvaluationConfig(metrics=[metric])  # before any record is tagged
    suite = CalibrationSuite([Late()])
    suite.update(*random_pairs(3))
    with pytest.raises(LovecError, match=r"Late computes tensor.*, expected a number or a tensor of one number"):
        suite.compute()


@pytest.mark.parametrize("kind", [float, np.float32, lambda value: value.float()])
def test_a_user_metric_may_compute_any_kind_of_number(kind):
    class Number(AbsoluteError):
        def compute(self):
            return kind(super().compute())

    metric = Number()
    suite = CalibrationSuite([metric])
    assert not metric.update_called and not suite["number"].metric.update_called  # it was tried on a copy
    suite.update(*random_pairs(101))
    c, f = random_pairs(101)
    assert values(suite)["number"] == pytest.approx((c - f).abs().mean().item(), abs=1e-6)


class GapQuantile(Metric):
    """Keeps something of every pair, as a user may write it: in types and shapes of its own."""

    def __init__(self):
        super().__init__()
        for name in ("gaps", "tenths", "both", "means"):
            self.add_state(name, [], dist_reduce_fx="cat")

    def update(self, confidence, factuality):
        gaps = (confidence - factuality).abs()
        self.gaps.append(gaps)
        self.tenths.append((10 * gaps).long())
        self.both.append(torch.stack([confidence, factuality], 1).float())
        self.means.append(gaps.mean())

    def compute(self):
        kept = [dim_zero_cat(x) for x in (self.gaps, self.tenths, self.both, self.means)]
        return sum(x.double().flatten().quantile(0.9) for x in kept)


# What each of two processes sees, by case: unequal batches, and nothing at all for one of them.
SHARES = {
    "ragged": ([slice(0, 7), slice(7, 30)], [slice(30, 31)]),
    "one empty": ([], [slice(0, 12)]),
}


def _feed(metrics, parts):
    c, f = random_pairs(31)
    for part in parts:
        scores = tuple((10 * c[part]).round().long().tolist())
        totals = {"ttr": (part.stop / 7, 2), "diversity": (0.3, 1), "abstained": (1.0, 2), "ordinality": (2.2, 3)}
        totals["f1_at_k"] = (0.4, 2)
        answers = AnswerStatistics(scores, missing=2, words=(7 * part.stop, 2), **totals)
        for metric in metrics:
            suite = isinstance(metric, CalibrationSuite)
            metric.update(c[part], f[part], *((2, answers) if suite else ()))


def _values(metrics):
    return [values(metric) if isinstance(metric, CalibrationSuite) else metric.compute().item() for metric in metrics]


def _all_metrics():
    suites = [CalibrationSuite(), CalibrationSuite([AbsoluteError(), GapQuantile()])]
    return [*suites, BrierScore(), ECEM(), ECEM("levels"), SpearmanCorrelation(), AURC(), AUROC(), LogScore()]


def _process(rank, folder):
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/init", rank=rank, world_size=2)
    by_case = {}
    for case, shares in SHARES.items():
        metrics = _all_metrics()
        _feed(metrics, shares[rank])
        by_case[case] = _values(metrics)
    Path(folder, f"{rank}.json").write_text(json.dumps(by_case))
    torch.distributed.destroy_process_group()


def test_two_processes_equal_one(tmp_path):
    for code, printed in run_forks(*(partial(_process, rank, str(tmp_path)) for rank in range(2))):
        assert code == 0, printed
    for rank in range(2):
        by_case = json.loads((tmp_path / f"{rank}.json").read_text())
        for case, shares in SHARES.items():
            one = _all_metrics()
            _feed(one, [part for share in shares for part in share])
            for ours, whole in zip(by_case[case], _values(one), strict=True):
                assert ours == pytest.approx(whole, abs=1e-12, nan_ok=True)


def test_a_group_of_one_process_is_not_asked(tmp_path, monkeypatch):
    """As vLLM opens one on a GPU, whose backend takes no tensors of the CPU."""

    def gather(*args, **kwargs):
        raise RuntimeError("no backend for tensors of the CPU")

    monkeypatch.setattr(torch.distributed, "all_gather", gather)
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/init", rank=0, world_size=1)
    try:
        metrics = _all_metrics()
        _feed(metrics, [slice(0, 12)])
        found = _values(metrics)
    finally:
        torch.distributed.destroy_process_group()
    alone = _all_metrics()
    _feed(alone, [slice(0, 12)])
    assert str(found) == str(_values(alone))  # NaN included


# ---------------------------------------------------------------- records


def one_hot(score, mass=1.0):
    return tuple(mass if i == score else 0.0 for i in range(11))


def test_confidence_of():
    assert confidence_of(Sentence("a", score=7, confidence=0.2), "stated") == 0.7
    assert confidence_of(Sentence("a", confidence=0.25), "stated") == 0.25
    assert confidence_of(Sentence("a", score=0), "stated") == 0.0
    assert confidence_of(Sentence("a", distribution=one_hot(3)), "stated") is None
    assert confidence_of(Sentence("a", score=7, confidence=0.7), "mean") is None
    half = tuple(0.2 if i in (4, 8) else 0.0 for i in range(11))  # 0.6 of the mass is elsewhere
    assert confidence_of(Sentence("a", score=4, distribution=half), "mean") == pytest.approx(0.6)
    assert confidence_of(Sentence("a", distribution=one_hot(10, 0.405)), "mean") == 1.0
    assert confidence_of(Sentence("a", distribution=(0.0,) * 11), "mean") is None


def test_confidences_of_another_scale():
    assert confidence_of(Sentence("a", score=2, levels=5), "stated") == 0.5
    assert confidence_of(Sentence("a", distribution=(0.1, 0.0, 0.1), levels=3), "mean") == 0.5
    with pytest.raises(LovecError, match="has 11 entries, expected 3, one per level of the scale"):
        confidence_of(Sentence("a", distribution=one_hot(3), levels=3), "mean")


def test_expected_confidence_by_hand_and_in_any_shape():
    weights = torch.tensor([[[0.0, 0.0, 7.0], [1.0, 0.0, 1.0]]], dtype=torch.float64, requires_grad=True)
    found = expected_confidence(weights)
    assert found.tolist() == [[1.0, 0.5]]
    assert torch.autograd.gradcheck(expected_confidence, (weights + 0.1,))
    assert expected_confidence(torch.zeros(2, 11)).isnan().all()
    assert mean_confidence([0.0] * 11) is None
    assert mean_confidence([0.25, 0.25, 0.5]) == pytest.approx(0.625)


@given(st.lists(st.floats(0, 1), min_size=11, max_size=11))
def test_a_mean_is_a_confidence(distribution):
    value = confidence_of(Sentence("a", distribution=tuple(distribution)), "mean")
    assert value is None if sum(distribution) == 0 else 0.0 <= value <= 1.0


def test_confidence_of_refuses():
    with pytest.raises(LovecError, match="'max'"):
        confidence_of(Sentence("a", score=7), "max")
    with pytest.raises(LovecError, match="has 10 entries"):
        confidence_of(Sentence("a", distribution=(0.1,) * 10), "mean")


RECORDS = [
    Record("1", "q", sentences=(Sentence("a", 1.0, score=9), Sentence("b", 0.5, score=4), Sentence("c", 0.0))),
    Record("2", "q", sentences=(Sentence("d", None, score=9), Sentence("e", 0.2, score=3))),
    Record("3", "q", sentences=(Sentence("f", None, score=8),)),
    Record("4", "q", sentences=(Sentence("g", 0.7), Sentence("h", None))),
    Record("5", "q"),
]


def test_sentence_pairs():
    assert sentence_pairs(RECORDS, "stated") == ([0.9, 0.4, 0.3], [1.0, 0.5, 0.2], 2)
    assert sentence_pairs(RECORDS, "mean") == ([], [], 5)


def test_answer_statistics_count_sentences_with_and_without_labels():
    statistics = answer_statistics(RECORDS)
    f1 = f1_at_k([1.5, 0.2], [2, 1]).sum().item()  # of the sentences with a confidence and a factuality
    assert statistics == AnswerStatistics((9, 4, 9, 3, 8), missing=4, words=(8, 5), ttr=(4.0, 4), f1_at_k=(f1, 2))
    assert answer_statistics(RECORDS[:2]).scores + answer_statistics(RECORDS[2:]).scores == statistics.scores
    record = Record("r", "q", sentences=(Sentence(" two  words\n"), Sentence("")))
    assert answer_statistics([record]).words == (2, 1)
    assert answer_statistics([]) == AnswerStatistics()


def test_entropy_by_hand_and_by_scipy():
    assert entropy(torch.tensor([0, 5, 0])).item() == 0.0
    assert math.copysign(1.0, entropy(torch.tensor([3])).item()) == 1.0  # 0, not -0: it is printed
    assert entropy(torch.ones(11, dtype=torch.int64)).item() == pytest.approx(math.log(11))
    assert math.isnan(entropy(torch.zeros(11, dtype=torch.int64)).item())
    counts = [3, 0, 1, 8, 2]
    assert entropy(torch.tensor(counts)).item() == pytest.approx(scipy_entropy(counts), abs=1e-12)


def test_equal_passage_means_tie_however_they_round():
    for n in range(1, 40):
        constant = [Record(f"r{n}", "Q?", sentences=(Sentence("S.", factuality=0.3, score=7),) * n)]
        assert passage_pairs(constant, "stated") == ([0.7], [0.3], 0)


def test_passage_pairs():
    confidences, factualities, malformed = passage_pairs(RECORDS, "stated")
    assert confidences == pytest.approx([0.65, 0.3])
    assert factualities == pytest.approx([0.75, 0.2])
    assert malformed == 2  # the fourth has labels only, the fifth no sentence; the third has no label
    assert passage_pairs(RECORDS, "mean") == ([], [], 4)


# ---------------------------------------------------------------- human labels


def test_known_values_on_human_labels():
    """SelfCheck-NLI confidences against people's labels of 959 sentences of 119 GPT-3 passages (WikiBio)."""
    if not WIKIBIO.is_dir():
        pytest.skip("no shared/data/wikibio_gpt3_human beside the checkout")
    soft = {"accurate": 1.0, "minor_inaccurate": 0.5, "major_inaccurate": 0.0}
    rows = json.loads((WIKIBIO / "selfcheck_reference_scores.json").read_text())
    records = [
        Record(
            id=str(row["dataset_idx"]),
            question="",
            sentences=tuple(
                Sentence("s", factuality=soft[label], confidence=1 - nli)
                for label, nli in zip(row["annotation"], row["scores"]["nli"], strict=True)
            ),
        )
        for row in rows
    ]
    suites = CalibrationSuite(), CalibrationSuite()
    for suite, pairs in zip(suites, (sentence_pairs, passage_pairs), strict=True):
        confidences, factualities, malformed = pairs(records, "stated")
        suite.update(torch.tensor(confidences), torch.tensor(factualities), malformed)
    sentences, passages = map(values, suites)
    assert (sentences["n"], passages["n"]) == (959, 119)
    assert sentences["malformed"] == passages["malformed"] == 0.0
    assert sentences["brier"] == pytest.approx(0.1554, abs=5e-5)
    assert sentences["ece_m"] == pytest.approx(0.2092, abs=5e-5)
    assert sentences["spearman"] == pytest.approx(0.5516, abs=5e-5)
    assert passages["spearman"] == pytest.approx(0.7792, abs=5e-5)
