"""Metrics are exact whatever the precision of their inputs and of the module that they belong to."""

from __future__ import annotations

import numpy as np
import pandas
import pytest
import torch
from lightning.pytorch import LightningModule, Trainer
from torch.utils.data import DataLoader

from lovec.metrics import AURC, AUROC, ECEM, BrierScore, CalibrationSuite, SpearmanCorrelation
from lovec.metrics.bootstrap import intervals, resample
from lovec.metrics.functional import brier_score, ece_m, exact_values, float64_device, group_of, log_score, spearman
from lovec.metrics.ranking import auarc, auprc, auroc, c_index, prr
from lovec.metrics.records import AnswerStatistics
from lovec.metrics.risk import aurc, risk_coverage, thresholds
from lovec.metrics.smooth import smooth_ece
from lovec.types import LovecError

HALVES = [torch.bfloat16, torch.float16]
METRICS = {
    "brier": (BrierScore, {}, brier_score),
    "bins": (ECEM, {}, ece_m),
    "levels": (ECEM, {"variant": "levels"}, lambda c, f: ece_m(c, f, "levels")),
    "huang": (ECEM, {"variant": "huang"}, lambda c, f: ece_m(c, f, "huang")),
    "spearman": (SpearmanCorrelation, {}, spearman),
    "aurc": (AURC, {}, aurc),
    "auroc": (AUROC, {}, auroc),
}
CASTS = {
    "to": lambda module, dtype: module.to(dtype),
    "to on a device": lambda module, dtype: module.to("cpu", dtype),
    "half or bfloat16": lambda module, dtype: module.half() if dtype == torch.float16 else module.bfloat16(),
    "set_dtype": lambda module, dtype: (module.set_dtype(dtype), module)[1],
}


def pairs(n, hard=False, seed=0):
    """Scores and ratings in tenths; the labels are 0 and 1 where ``hard``."""
    generator = torch.Generator().manual_seed(seed)
    c = torch.randint(0, 11, (n,), generator=generator).double() / 10
    f = (10 * c + torch.randint(-4, 5, (n,), generator=generator)).clamp(0, 10) / 10
    return c, (f > 0.5).double() if hard else f


@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("name", METRICS)
def test_a_million_half_precision_pairs_equal_double_precision(name, dtype):
    cls, options, twin = METRICS[name]
    c, f = pairs(1_000_000, hard=name == "auroc")
    metric = cls(**options).to(dtype)
    for at in range(0, len(c), 250_000):
        metric.update(c[at : at + 250_000].to(dtype), f[at : at + 250_000].to(dtype))
    expected = twin(c, f).item()
    assert metric.compute().item() == pytest.approx(expected, abs=1e-6)
    assert metric.compute().dtype == torch.float64
    assert twin(c.to(dtype), f.to(dtype)).item() == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("cast", CASTS)
@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_a_cast_leaves_what_was_measured(cast, dtype):
    suite, untouched = CalibrationSuite(), CalibrationSuite()
    answers = AnswerStatistics(tuple(range(11)), words=(30, 4))
    for c, f in (pairs(1001), pairs(57, seed=1)):  # the second batch comes after the cast
        suite.update(c, f, 3, answers)
        untouched.update(c, f, 3, answers)
        if cast == "set_dtype":
            for metric in suite.values():
                CASTS[cast](metric, dtype)
        else:
            CASTS[cast](torch.nn.ModuleList([suite]), dtype)  # as a part of a module
    values, expected = suite.compute(), untouched.compute()
    assert {name: v.item() for name, v in values.items()} == pytest.approx(
        {name: v.item() for name, v in expected.items()}, abs=0, rel=0, nan_ok=True
    )
    assert {v.dtype for v in values.values()} == {torch.float64}
    assert {metric.dtype for metric in suite.values()} == {torch.float64}  # what a process without pairs sends


class Measures(LightningModule):
    """Gives a suite the pairs of a data loader, in the precision of its weights."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(1))
        self.suite = CalibrationSuite()

    def validation_step(self, batch):
        c, f = (part.to(self.weight.dtype) for part in batch)
        self.suite.update(c, f)


def test_under_a_trainer_in_bf16_true():
    c, f = pairs(20_000)
    trainer = Trainer(
        precision="bf16-true", accelerator="cpu", logger=False, enable_progress_bar=False, enable_model_summary=False
    )
    module = Measures()
    trainer.validate(module, DataLoader(list(zip(c, f, strict=True)), batch_size=5000), verbose=False)
    assert module.weight.dtype == torch.bfloat16
    values = module.suite.compute()
    for name, twin in (("brier", brier_score), ("ece_m", ece_m), ("spearman", spearman), ("aurc", aurc)):
        assert values[name].item() == pytest.approx(twin(c, f).item(), abs=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, *HALVES], ids=str)
@pytest.mark.parametrize("top", [10, 100])
def test_decimals_come_back_whole(dtype, top):
    """Every level of a scale, as every precision stores it, at the edges of bins as elsewhere."""
    values = torch.arange(top + 1, dtype=torch.float64) / top
    assert torch.equal(exact_values(values.to(dtype)), values)


@pytest.mark.parametrize("score", range(1, 11))
def test_a_rounding_error_below_a_tenth_changes_no_bin(score):
    """Sums and differences of tenths, such as 1 - 0.9 + 0.6, may lie a little below the tenth that they are."""
    tenth = torch.tensor([score / 10], dtype=torch.float64)
    below = torch.nextafter(tenth, torch.zeros(1, dtype=torch.float64))
    for variant in ("bins", "levels"):
        assert group_of(below, variant).item() == group_of(tenth, variant).item()
    assert torch.equal(thresholds(below, below)[0], thresholds(tenth, tenth)[0])


def test_numbers_between_decimals_stay():
    values = torch.rand(1000, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    assert torch.equal(exact_values(values), values)
    assert exact_values(values.float()).sub(values).abs().max() < 1e-7
    tiny = torch.tensor([2.0**-20], dtype=torch.float16)
    assert exact_values(tiny).item() == 2.0**-20


def test_batches_of_several_precisions_tie():
    c = torch.tensor([0.7, 0.3], dtype=torch.float64)
    metric = SpearmanCorrelation()
    for dtype in (torch.float64, torch.float32, *HALVES):
        metric.update(c.to(dtype), torch.tensor([1.0, 0.0], dtype=dtype))
    assert metric.compute().item() == pytest.approx(1.0, abs=1e-12)  # 0.98 where the precisions do not tie


def test_a_device_without_float64_is_replaced_by_the_cpu():
    assert float64_device(torch.device("cpu")) == torch.device("cpu")
    if not torch.backends.mps.is_available():  # a device that this machine lacks has no float64 either
        assert float64_device(torch.device("mps")) == torch.device("cpu")


@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_half_precision_changes_no_ranking(dtype):
    c, f = pairs(20_000)
    for twin in (auroc, auprc, c_index, auarc, prr, smooth_ece, log_score):
        assert twin(c.to(dtype), f.to(dtype)).item() == pytest.approx(twin(c, f).item(), abs=1e-9), twin.__name__


@pytest.mark.parametrize(
    "twin",
    [
        *(brier_score, ece_m, spearman, aurc, risk_coverage, thresholds),
        *(auroc, auprc, c_index, auarc, prr, smooth_ece, log_score),
    ],
)
def test_sequences_and_arrays_are_taken_as_tensors_are(twin):
    c, f = [0.1, 0.7, 0.9], [0.0, 0.5, 1.0]
    expected = twin(torch.tensor(c, dtype=torch.float64), torch.tensor(f, dtype=torch.float64))
    made = (
        *(list, tuple, np.array, lambda v: np.array(v, dtype=np.float32), lambda v: np.array(v, np.float16)),
        *(lambda v: np.array(v[::-1])[::-1], lambda v: pandas.Series(v, index=[4, 0, 1])),
        lambda v: pandas.Series(v, index=[4, 0, 1], dtype=object),
    )
    for make in made:
        torch.testing.assert_close(twin(make(c), make(f)), expected, rtol=0, atol=1e-12, equal_nan=True)


@pytest.mark.parametrize(
    ("c", "words"),
    [
        ([0.5, None], r"confidence contains None at index 1"),
        ([0.5, "1"], r"confidence contains '1' at index 1"),
        (np.array([0.5, None]), r"confidence contains None at index 1"),
        (pandas.Series([0.5, None], index=[3, 1], dtype=object), r"confidence contains None at index 1"),
        (None, r"confidence contains None"),
        ([[0.5, 0.5], [0.5]], r"confidence contains \[0.5, 0.5\] at index 0"),
        ([0.5, 1.0000000001], r"confidence contains 1.0000000001, expected"),
        (torch.tensor([0.5, 1.01]), r"confidence contains 1.01, expected"),
    ],
)
def test_what_is_no_number_is_named(c, words):
    with pytest.raises(LovecError, match=words):
        brier_score(c, [0.5, 0.5])


def test_curves_are_double_precision_whatever_the_default():
    c, f = pairs(1000)
    for default in (torch.float32, torch.bfloat16):
        torch.set_default_dtype(default)
        try:
            coverage, risk = risk_coverage(c, f)
            assert (coverage.dtype, risk.dtype) == (torch.float64, torch.float64)
            assert coverage.tolist() == [(c >= level).double().mean().item() for level in sorted(set(c.tolist()))[::-1]]
            suite = CalibrationSuite()
            suite.update(c, f)
            assert {value.dtype for value in suite.compute().values()} == {torch.float64}
        finally:
            torch.set_default_dtype(torch.float32)


def test_a_question_with_unequal_lengths_is_refused_by_name():
    """The totals are equal: joined end to end they would pair one question's confidence with another's label."""
    run = {"first": ([0.5, 0.6], [1.0]), "second": ([0.1], [0.0, 0.2])}
    with pytest.raises(LovecError, match="question 'first' has 2 confidences and 1 factualities"):
        resample([run])


def test_draws_levels_and_missing_labels_are_refused():
    run = {"q": ([0.5, 0.6], [1.0, 0.0])}
    with pytest.raises(LovecError, match="draws is 0, expected at least 1"):
        resample([run], draws=0)
    with pytest.raises(LovecError, match="level is 95, expected above 0 and below 1"):
        intervals(resample([run], draws=10), level=95)
    with pytest.raises(LovecError, match="factuality contains None at index 1"):
        resample([{"q": ([0.5, 0.6], [1.0, None])}])
