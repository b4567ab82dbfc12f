"""The bootstrap draws questions, the same for every method; its shortcuts give what computing it at length gives."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from lovec.metrics import bootstrap
from lovec.metrics.bootstrap import BOOTSTRAPPED, MAIN, Interval, by_question, intervals, resample
from lovec.metrics.corp import brier_decomposition
from lovec.metrics.functional import brier_score, ece_m, f1_at_k, log_score, spearman
from lovec.metrics.ranking import auarc, auprc, auroc, c_index, prr
from lovec.metrics.risk import aurc
from lovec.metrics.smooth import smooth_ece
from lovec.types import LovecError, Record, Sentence


def simulated(people=40, bias=0.0, noise=0.15, seed=0, world=0, levels=10):
    """A run: some people are known better than others; what is said is the truth, with a bias and a noise."""
    truth, said = np.random.default_rng(world), np.random.default_rng([seed, 1])
    run = {}
    for i in range(people):
        known = truth.beta(2, 1)
        f = np.clip(truth.normal(known, 0.2, truth.integers(2, 6)), 0, 1).round(1)
        c = (np.clip(f + bias + said.normal(0, noise, len(f)), 0, 1) * levels).round() / levels
        run[f"q{i}"] = (c.tolist(), f.tolist())
    return run


FURTHER = {
    "miscalibration": lambda c, f: brier_decomposition(c, f).miscalibration,
    "discrimination": lambda c, f: brier_decomposition(c, f).discrimination,
    "uncertainty": lambda c, f: brier_decomposition(c, f).uncertainty,
    "smooth_ece": smooth_ece,
    "log_score": log_score,
    "c_index": c_index,
    "auroc": auroc,
    "auprc": auprc,
    "aurc": aurc,
    "auarc": auarc,
    "prr": prr,
}


def further_at_length(run, drawn):
    """The other metrics of a draw, in the order of ``BOOTSTRAPPED``."""
    c, f = ([x for question in drawn for x in run[question][side]] for side in (0, 1))
    labels = [run[question][1] for question in drawn if run[question][1]]
    f1 = f1_at_k([sum(answer) for answer in labels], [len(answer) for answer in labels]).mean()
    found = {name: float(function(c, f)) for name, function in FURTHER.items()} | {"f1_at_k": float(f1)}
    return [found[name] for name in BOOTSTRAPPED if name not in MAIN]


def at_length(run, drawn):
    """The metrics of a draw from the sentences of its questions, each as often as it was drawn."""
    pairs = [pair for question in drawn for pair in zip(*run[question], strict=True)]
    c, f = (torch.tensor(column, dtype=torch.float64) for column in zip(*pairs, strict=True))
    return [float(brier_score(c, f)), float(ece_m(c, f)), float(spearman(c, f))]


@pytest.mark.parametrize("levels", [10, 10**6])  # scores that tie, and continuous confidences
def test_every_draw_is_what_it_is_at_length(levels):
    runs = [simulated(people=12, seed=seed, levels=levels) for seed in range(2)]
    runs[0]["q3"] = ([], [])  # a question whose every tag was malformed
    drawn = resample(runs, draws=300, seed=4)
    choices = torch.randint(12, (300, 12), generator=torch.Generator().manual_seed(4))
    for at, row in enumerate([torch.arange(12), *choices]):
        asked = [drawn.questions[i] for i in row.tolist()]
        expected = np.mean([at_length(run, asked) for run in runs], axis=0)
        assert [float(drawn.metrics[name][at]) for name in MAIN] == pytest.approx(expected, abs=1e-9)
    assert tuple(drawn.metrics) == MAIN == ("brier", "ece_m", "spearman")


@pytest.mark.parametrize("levels", [10, 10**6])
@pytest.mark.parametrize("hard", [False, True])
def test_every_draw_of_the_other_metrics_is_what_it_is_at_length(levels, hard):
    runs = [simulated(people=8, seed=seed, levels=levels) for seed in range(2)]
    if hard:
        runs = [{q: (c, [float(x > 0.6) for x in f]) for q, (c, f) in run.items()} for run in runs]
    runs[0]["q3"] = ([], [])
    names = [name for name in BOOTSTRAPPED if name not in MAIN]
    drawn = resample(runs, draws=30, seed=4, metrics=names)
    choices = torch.randint(8, (30, 8), generator=torch.Generator().manual_seed(4))
    for at, row in enumerate([torch.arange(8), *choices]):
        asked = [drawn.questions[i] for i in row.tolist()]
        expected = np.mean([further_at_length(run, asked) for run in runs], axis=0)
        assert [float(drawn.metrics[name][at]) for name in names] == pytest.approx(expected, abs=1e-9, nan_ok=True)


def test_metrics_are_chosen():
    run = simulated(people=6)
    both = resample([run], 40, metrics=["auroc", "brier"])
    assert tuple(both.metrics) == ("auroc", "brier")
    assert torch.equal(both.metrics["brier"], resample([run], 40).metrics["brier"])  # the draws are the same
    everything = intervals(resample([run], 40, metrics=BOOTSTRAPPED))
    assert tuple(everything) == BOOTSTRAPPED
    for name, found in everything.items():
        assert found is not None and found.low <= found.value + 0.2 and found.value - 0.2 <= found.high, name
    with pytest.raises(LovecError, match="with the metrics auroc, brier and brier, ece_m, spearman; a paired"):
        intervals(both, resample([run], 40))
    for wrong in ([], ["words"], "brier"):
        with pytest.raises(LovecError, match=r"metrics of the bootstrap are .*, expected some of brier, ece_m"):
            resample([run], metrics=wrong)


def test_one_question_and_constants_have_intervals_or_none():
    names = [name for name in BOOTSTRAPPED if name not in MAIN]
    undefined = {"c_index", "auroc", "prr"}
    alone = intervals(resample([{"q": ([0.4], [1.0])}], 20, metrics=names))
    assert {name for name, found in alone.items() if found is None} == undefined | {"auarc"}
    assert all(math.isnan(found.low) and math.isnan(found.high) for found in alone.values() if found is not None)
    same = {f"q{i}": ([0.1 * i, 0.5], [0.3, 0.3]) for i in range(5)}
    found = intervals(resample([same], 20, metrics=names))
    assert {name for name, interval in found.items() if interval is None} == undefined | {"auprc"}
    nothing = {f"q{i}": ([], []) for i in range(3)}
    assert set(intervals(resample([nothing], 20, metrics=names)).values()) == {None}


def test_intervals_are_the_percentiles_of_the_draws():
    first, second = resample([simulated()]), resample([simulated(seed=1, bias=0.1)])
    for other in (None, second):
        for name, found in intervals(first, other).items():
            values = first.metrics[name] - (0 if other is None else other.metrics[name])
            assert found.value == values[0]
            assert (found.low, found.high) == pytest.approx(np.percentile(values[1:], [2.5, 97.5]))
    wide, narrow = (intervals(first, level=level)["brier"] for level in (0.95, 0.5))
    assert wide.low < narrow.low < narrow.value < narrow.high < wide.high


GOLDEN = {  # as computed in one go, before draws were computed in blocks
    "brier": (0.02205035971223022, 0.017426092511472674, 0.026875327797202798),
    "ece_m": (0.05071942446043166, 0.04280568726836712, 0.0699266917293233),
    "spearman": (0.8509426833135729, 0.7778244104511508, 0.9011011441644372),
}


def test_intervals_stay_as_they_were():
    found = intervals(resample([simulated(), simulated(seed=9)]))
    for name, (value, low, high) in GOLDEN.items():  # to rounding, since other processors multiply in other blocks
        assert (found[name].value, found[name].low, found[name].high) == pytest.approx((value, low, high), rel=1e-13)


@pytest.mark.parametrize("people", [3, 40, 300])
def test_blocks_of_draws_change_nothing(people, monkeypatch):
    """The draws are those of one call of the generator; metrics agree to how a processor rounds products."""
    run = simulated(people)
    whole = resample([run], draws=300, seed=2)
    sizes = []
    draw = bootstrap._draws
    monkeypatch.setattr(bootstrap, "_draws", lambda *a: (sizes.append(len(b)) or b for b in draw(*a)))
    monkeypatch.setattr(bootstrap, "_CELLS", 1)
    small = resample([run], draws=300, seed=2)
    assert sizes == [16] * 18 + [13]
    for name in MAIN:
        np.testing.assert_allclose(small.metrics[name], whole.metrics[name], rtol=1e-13)  # NaN equals NaN
    counts = torch.cat(list(draw(people, 300, 2, 16)))
    choices = torch.randint(people, (300, people), generator=torch.Generator().manual_seed(2))
    assert counts[0].eq(1).all()
    assert torch.equal(counts[1:], torch.stack([torch.bincount(row, minlength=people) for row in choices]).double())


def test_the_same_method_differs_from_itself_by_exactly_nothing():
    runs = [simulated(seed=seed) for seed in range(3)]
    found = intervals(resample(runs), resample(list(runs)))
    assert set(found.values()) == {Interval(0.0, 0.0, 0.0)}


def test_what_is_hard_about_the_questions_cancels():
    """A bias of 0.2 on every answer adds 0.04 to the Brier score, however much the answers differ."""
    plain, shifted = {}, {}
    rng = np.random.default_rng(0)
    for i in range(60):
        gap = rng.uniform(-0.4, 0.4)
        plain[f"q{i}"] = ([0.5 + gap, 0.5 - gap], [0.5, 0.5])
        shifted[f"q{i}"] = ([0.5 + gap, 0.5 - gap], [0.3, 0.3])
    found = intervals(resample([shifted]), resample([plain]))["brier"]
    assert (found.value, found.low, found.high) == pytest.approx((0.04, 0.04, 0.04), abs=1e-12)
    alone = intervals(resample([plain]))["brier"]
    assert alone.high - alone.low > 0.01


def test_a_worse_method_is_found_to_be_worse():
    good, bad = ([simulated(people=120, seed=seed, bias=bias) for seed in range(3)] for bias in (0.0, 0.2))
    found = intervals(resample(bad), resample(good))
    assert found["brier"].low > 0 and found["ece_m"].low > 0
    assert found["spearman"].high < 0  # what is clipped at 1 ties
    back = intervals(resample(good), resample(bad))
    assert back["brier"].high == pytest.approx(-found["brier"].low)


def test_nineteen_of_twenty_intervals_hold_the_truth():
    def pair(people, world):
        """The same people, asked of two methods."""
        return [simulated(people, noise=noise, seed=2 * world + i, world=world) for i, noise in enumerate((0.15, 0.3))]

    first, second = (at_length(run, run)[0] for run in pair(5000, 999))
    hits = 0
    for world in range(200):
        first_run, second_run = pair(50, world)
        found = intervals(resample([second_run], 400), resample([first_run], 400))["brier"]
        hits += found.low <= second - first <= found.high
    assert 178 <= hits <= 198  # 190 expected, give or take 3; percentiles of 50 questions are a little narrow


def test_training_runs_are_drawn_too():
    """Every draw takes base models with replacement, then runs of each; it is the mean over them of the same draw."""
    runs = [simulated(bias=bias, seed=i) for i, bias in enumerate((0.0, 0.1, 0.4, 0.5))]
    alone = [resample([run], draws=300).metrics["brier"] for run in runs]
    both = resample(runs, draws=300, bases=["a", "a", "b", "b"])
    allowed = {
        (i, j, k, m) for a in ((0, 1), (2, 3)) for b in ((0, 1), (2, 3)) for i in a for j in a for k in b for m in b
    }
    means = torch.stack([torch.stack([alone[i] for i in four]).mean(0) for four in sorted(allowed)])
    hits = (means - both.metrics["brier"]).abs() < 1e-12
    assert hits.any(0).all()
    assert both.metrics["brier"][0] == pytest.approx(float(sum(values[0] for values in alone)) / 4)
    assert hits[:, 1:].any(1).sum() > 30  # of 64 choices in 300 draws nearly all occur
    narrow, wide = (intervals(r)["brier"] for r in (resample(runs, draws=300), both))
    assert wide.high - wide.low > 2 * (narrow.high - narrow.low)  # here base models differ more than questions do


def test_one_run_is_always_the_one_that_is_drawn():
    run = simulated()
    assert torch.equal(
        resample([run], draws=50, bases=["a"]).metrics["brier"], resample([run], draws=50).metrics["brier"]
    )


def test_a_correlation_that_is_undefined_has_no_interval():
    always = {question: ([1.0] * len(c), f) for question, (c, f) in simulated().items()}
    found = intervals(resample([always]))
    assert found["spearman"] is None
    assert found["brier"] is not None
    assert intervals(resample([simulated()]), resample([simulated(), always]))["spearman"] is None
    nothing = {question: ([], []) for question in always}
    assert set(intervals(resample([nothing])).values()) == {None}


def test_draws_without_a_value_are_left_out():
    """One question of three says anything but 1: draws without it have no correlation."""
    run = {"a": ([1.0, 1.0], [0.2, 0.9]), "b": ([1.0, 1.0], [0.5, 0.8]), "c": ([0.1, 1.0], [0.0, 1.0])}
    drawn = resample([run])
    assert 0.2 < float(drawn.metrics["spearman"].isnan().double().mean()) < 0.4  # (2/3)^3
    found = intervals(drawn)["spearman"]
    assert 0 < found.low <= found.value <= found.high <= 1


def test_records_become_runs():
    mass = tuple([0.0] * 10 + [0.5])
    records = [
        Record("a", "Q?", sentences=(Sentence("A.", 0.5, score=7, distribution=mass), Sentence("B.", None, 0.3))),
        Record("b", "Q?", sentences=(Sentence("malformed", 0.5),)),
        Record("c", "Q?"),
    ]
    assert by_question(records, "stated") == {"a": ([0.7], [0.5]), "b": ([], []), "c": ([], [])}
    assert by_question(records, "mean")["a"] == ([1.0], [0.5])
    with pytest.raises(LovecError, match="two records have the id 'a'"):
        by_question([records[0], records[0]], "stated")


def sampled(run):
    """The same run, with four equal answers to every question."""
    return {f"{question}/sample-{n}": pairs for question, pairs in run.items() for n in range(1, 5)}


def test_answers_to_one_question_are_drawn_together():
    once, often = simulated(people=10), sampled(simulated(people=10))
    names = [name for name in BOOTSTRAPPED if name not in {"aurc", "auarc", "prr"}]  # the others are of shares alone
    drawn = resample([once], 40, metrics=names), resample([often], 40, metrics=names)
    assert drawn[0].questions == drawn[1].questions == tuple(sorted(once))
    for name, values in drawn[0].metrics.items():
        assert drawn[1].metrics[name].tolist() == pytest.approx(values.tolist(), abs=1e-9, nan_ok=True), name
    worse = resample([sampled(simulated(people=10, bias=0.3))], 40)
    alone = resample([simulated(people=10, bias=0.3)], 40)
    both = intervals(worse, resample([often], 40)), intervals(alone, resample([once], 40))
    for name in MAIN:
        found, expected = (interval[name] for interval in both)
        assert [found.low, found.high] == pytest.approx([expected.low, expected.high], abs=1e-9)


def test_f1_of_several_answers_is_that_of_each():
    """An answer without a sentence has none, and does not count."""
    run = {"a/sample-1": ([0.5] * 4, [1.0, 1.0, 0.0, 0.0]), "a/sample-2": ([0.5], [0.0]), "a/sample-3": ([], [])}
    run |= {"b": ([0.5] * 2, [1.0, 1.0])}
    f1 = f1_at_k([2.0, 0.0, 2.0], [4, 1, 2])
    drawn = resample([run], 30, metrics=["f1_at_k"]).metrics["f1_at_k"]
    assert float(drawn[0]) == pytest.approx(float(f1.mean()))
    possible = {round(float(part.mean()), 9) for part in (f1, f1[:2], f1[2:])}
    assert {round(value, 9) for value in drawn[1:].tolist()} == possible


def test_what_cannot_be_paired_is_refused():
    run = simulated(people=5)
    more = {**run, "extra": ([0.1], [0.2])}
    with pytest.raises(LovecError, match="runs of 5 and 6 questions cannot be paired: 'extra' is not in both"):
        resample([run, more])
    with pytest.raises(LovecError, match="5 and 6 questions cannot be paired: 'extra'"):
        intervals(resample([run]), resample([more]))
    for other in (resample([run], seed=1), resample([run], draws=10)):
        with pytest.raises(LovecError, match="needs the same draws for both"):
            intervals(resample([run]), other)
    for empty in ([], [{}]):
        with pytest.raises(LovecError, match=f"got {len(empty)} runs without any question"):
            resample(empty)
    with pytest.raises(LovecError, match=r"confidence contains 1\.5"):
        resample([{"a": ([1.5], [0.5])}])
    with pytest.raises(LovecError, match="a bootstrap got 2 runs and 1 names of base models, expected one per run"):
        resample([simulated(), simulated()], bases=["a"])
