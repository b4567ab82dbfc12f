"""Scores of any origin: what their calibration gives, what it promises, what it refuses, and its file."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas
import pytest
import torch
from answers import answers
from scipy.stats import binom

import lovec
from lovec.calibration import Promised, calibrate, calibrate_scores
from lovec.calibration import scores as module
from lovec.calibration.conformal import holds
from lovec.calibration.scores import (
    Column,
    Ranks,
    ScoreCalibration,
    calibrate_columns,
    calibration_text,
    group_passages,
)
from lovec.metrics.functional import ece_m
from lovec.metrics.records import confidence_of
from lovec.types import LovecError

KEEP = (Promised.keep_factual(0.9), Promised.keep_factual(0.8))
quick = partial(calibrate_scores, draws=20)


def made_rows(groups: int, seed: int = 0, size: int = 4):
    """Log-odds, whether each row is true, and the group of each row; rows of a group resemble each other."""
    rng = np.random.default_rng(seed)
    odds = rng.normal(size=groups * size) + np.repeat(rng.normal(size=groups), size)
    truth = (rng.random(groups * size) < 1 / (1 + np.exp(-(2 * odds + 0.5)))).astype(float)
    return odds, truth, np.repeat(np.arange(groups), size).tolist()


def sigmoid(odds):
    return 1 / (1 + np.exp(-odds))


# ---------------------------------------------------------------- what it gives


@pytest.mark.parametrize("readout", ["mean", "stated"])
def test_they_equal_those_of_an_adapter_on_the_same_scores(readout):
    records = answers(60)
    own, own_fit = calibrate(records, adapter="a", base="b", mode="iterative", readout=readout, promised=KEEP, draws=20)
    sentences = [(r.id, s) for r in records for s in r.sentences if s.factuality is not None]
    scores = [confidence_of(s, readout) for _, s in sentences]
    there = [at for at, score in enumerate(scores) if score is not None]
    made, fit = quick(
        {readout: [math.nan if score is None else score for score in scores]},
        [s.factuality for _, s in sentences],
        [name for name, _ in sentences],
        promised=KEEP,
    )
    assert made.map == own.map and made.guarantees == own.guarantees and made.histogram == own.histogram
    assert [c.brier for c in fit.candidates] == [c.brier for c in own_fit.candidates]
    assert made.fitted.metrics == own.fitted.metrics
    found = made([scores[at] for at in there])
    assert found.tolist() == pytest.approx([own.confidence(sentences[at][1]) for at in there], abs=1e-12)


@pytest.mark.parametrize("kind", ["probability", "percent", "uncertainty", "log-probability"])
def test_confidences_of_new_rows_are_calibrated_whatever_the_scale(kind):
    odds, truth, groups = made_rows(400)
    raw, options = {
        "probability": (sigmoid, {}),
        "percent": (lambda z: 100 * sigmoid(z), {"scale": 100}),
        "uncertainty": (lambda z: 3 - 7 * z, {"uncertainty": ["score"]}),
        "log-probability": (lambda z: -np.exp(-z), {}),
    }[kind]
    made, fitted = quick({"score": raw(odds)}, truth, groups, **options)
    assert (made.columns[0].ranks is None) == (kind in ("probability", "percent"))
    assert fitted.order_only == (kind not in ("probability", "percent"))
    assert (made.fitted.metrics["before"]["brier"] is None) == fitted.order_only
    new, new_truth, _ = made_rows(1500, seed=1)
    found = made(raw(new))
    assert float(ece_m(found, new_truth)) < 0.04 < float(ece_m(sigmoid(new), new_truth))
    assert found.min() >= 0 and found.max() <= 1
    order = np.argsort(new)
    assert (np.diff(found[order]) >= -1e-12).all()  # a map never falls
    assert made({"score": raw(new)}).tolist() == found.tolist()
    assert np.isnan(made([math.nan])).all()


def test_several_columns_are_better_than_each():
    odds, truth, groups = made_rows(300)
    rng = np.random.default_rng(5)
    first, second = odds + rng.normal(size=len(odds)), odds + rng.normal(size=len(odds))
    scores = {"p": sigmoid(first), "u": -second}
    both, fitted = quick(scores, truth, groups, uncertainty=["u"], promised=KEEP)
    assert fitted.sentences < len(truth) == 2 * fitted.sentences  # the other half is for the thresholds
    assert both.guarantees[0].sentences == fitted.sentences
    alone = [quick({name: scores[name]}, truth, groups, uncertainty={name} & {"u"})[1] for name in scores]
    briers = [
        min(c.brier for c in fit.candidates) for fit in (quick(scores, truth, groups, uncertainty=["u"])[1], *alone)
    ]
    assert briers[0] < min(briers[1:]) - 0.01
    assert both(scores["p"], scores["u"]).tolist() == both(scores).tolist()
    assert both.keeps(scores, keep_factual=0.8).sum() > both.keeps(scores, keep_factual=0.9).sum() > 0
    missing = both([0.5, math.nan], [math.nan, 1.0])
    assert np.isnan(missing).all() and not both.keeps([0.5], [math.nan], keep_factual=0.8).any()


def test_ranks_are_the_middle_of_ties_and_stand_for_very_many():
    ranks = Ranks.of(np.array([3.0, 1.0, 1.0, 7.0]))
    assert ranks.scores == (1.0, 3.0, 7.0) and ranks.shares == (0.25, 0.625, 0.875)
    assert ranks([0.0, 1.0, 2.0, 9.0]).tolist() == [0.25, 0.25, 0.4375, 0.875]
    many = np.random.default_rng(0).normal(size=50_000)
    thinned = Ranks.of(many)
    exact = np.argsort(np.argsort(many)) / len(many)
    assert len(thinned.scores) == 2000 and np.abs(thinned(many) - exact).max() < 1e-3


# ---------------------------------------------------------------- what it promises


def test_promises_hold_over_500_splits():
    """The share of new groups in which nothing false is kept lies in the binomial band, also kind by kind."""
    alpha, kinds = 0.2, ("famous", "rare")
    held = {(name, by_kind): 0 for name in kinds for by_kind in (False, True)}
    for split in range(500):
        odds, truth, groups = made_rows(41, seed=split, size=5)
        kind = ["rare" if group % 3 == 0 else "famous" for group in groups]
        odds = odds + np.where(np.array(kind) == "rare", 1.5, 0.0)  # surer of rare things than it should be
        column = Column("s", "uncertainty" if split % 2 else "confidence")
        directed = column.directed(-odds if split % 2 else sigmoid(odds))
        last = {name: max(g for g, k in zip(groups, kind, strict=True) if k == name) for name in kinds}
        old = np.flatnonzero(~np.isin(groups, list(last.values()))).tolist()
        made, _ = calibrate_columns(
            [column],
            [directed[old]],
            truth[old],
            [groups[at] for at in old],
            promised=[Promised(alpha)],
            by=("kind", [kind[at] for at in old]),
            maps=("platt",),
            folds=2,
            draws=1,
        )
        for name in kinds:
            own = np.flatnonzero(np.array(groups) == last[name])
            (passage,) = group_passages(made.ranks(directed[own][:, None]), truth[own], [0] * len(own), 0.5).values()
            for by_kind in (False, True):
                limit = made.thresholds_by_kind(1 - alpha)[name] if by_kind else made.threshold(1 - alpha)
                held[name, by_kind] += holds(passage, limit.threshold)
    low, high = binom.interval(0.999, 500, 1 - alpha)
    assert held["rare", False] < low < held["famous", False]  # one threshold for all breaks it for the rare ones
    for name in kinds:  # too cautious by 1 / (n + 1) at most, with 13 rare groups
        assert low <= held[name, True] <= high + 500 / 14


def test_what_is_kept_is_said_in_the_numbers_of_the_column():
    odds, truth, groups = made_rows(200)
    for options, score, more in (
        ({}, sigmoid(odds), "s above "),
        ({"scale": 100}, 100 * sigmoid(odds), "s above "),
        ({"uncertainty": ["s"]}, 5 - odds, "s below "),
        ({}, odds, "s above "),
    ):
        made, _ = quick({"s": score}, truth, groups, promised=KEEP, **options)
        said = made.least_kept(made.threshold(0.8))
        assert said.startswith(more)
        limit = float(said.removeprefix(more))
        kept = made.keeps(score, keep_factual=0.8)
        assert ((score < limit) == kept).mean() > 0.99 if "below" in more else ((score > limit) == kept).mean() > 0.99


def test_of_a_kind_that_was_not_seen_nothing_is_kept():
    odds, truth, groups = made_rows(200)
    kind = ["rare" if group % 4 == 0 else "famous" for group in groups]
    made, _ = calibrate_columns(
        [Column("s")], [sigmoid(odds)], truth, groups, promised=KEEP, by=("rarity", kind), draws=20
    )
    best = [0.999, 0.999, 0.999]
    assert made.keeps(best, keep_factual=0.8, by=["rare", "famous", "new"]).tolist() == [True, True, False]
    assert {found.value for found in made.kinds} == {"rare", "famous"} and len(made.kinds) == 4
    without, _ = quick({"s": sigmoid(odds)}, truth, groups, promised=KEEP)
    with pytest.raises(LovecError, match="no guarantees for kinds of rows; calibrate with --promise_by"):
        without.keeps(best, keep_factual=0.8, by=["rare"] * 3)


def test_thousands_of_kinds_read_each_row_once(monkeypatch):
    odds, truth, groups = made_rows(100)
    kinds = [f"kind {group}" for group in groups]
    options = {"by": ("kind", kinds), "promised": KEEP, "draws": 1}
    seen = []
    monkeypatch.setattr(
        module, "math", SimpleNamespace(isnan=lambda score: bool(seen.append(score)) or math.isnan(score))
    )
    made, _ = calibrate_columns([Column("s")], [sigmoid(odds)], truth, groups, **options)
    assert len(made.kinds) == 200 and len(seen) == 2 * len(truth)  # for all rows together, and by kind
    monkeypatch.setattr(module, "_MOST_OF_KINDS", 199)
    monkeypatch.setattr(module, "fit_labelled", None)  # nothing is fitted for nothing
    with pytest.raises(
        LovecError, match="2 promises for each of 100 kinds in the column 'kind' are 200 thresholds"
    ) as error:
        calibrate_columns([Column("s")], [sigmoid(odds)], truth, groups, **options)
    assert "expected at most 199; name a column with fewer kinds" in str(error.value)
    with pytest.raises(LovecError, match="400 labels, 3 kinds and 400 groups"):
        calibrate_columns([Column("s")], [sigmoid(odds)], truth, groups, **{**options, "by": ("kind", kinds[:3])})


def test_of_promises_of_one_probability_kinds_have_that_of_the_threshold():
    odds, truth, groups = made_rows(200)
    kind = ["rare" if group % 4 == 0 else "famous" for group in groups]
    options = {"by": ("rarity", kind), "draws": 20}
    for names in (("all-true", "errors"), ("errors", "all-true")):
        promised = [Promised(0.1, name) for name in names]
        made, _ = calibrate_columns([Column("s")], [sigmoid(odds)], truth, groups, promised=promised, **options)
        found = made.thresholds_by_kind(0.9)
        assert found.keys() == {"rare", "famous"} and len(made.kinds) == 4
        assert {guarantee.kind for guarantee in found.values()} == {made.threshold(0.9).kind}


def test_other_scores_are_told():
    odds, truth, groups = made_rows(300)
    made, _ = quick({"s": odds}, truth, groups)
    new, _, new_groups = made_rows(100, seed=3)
    assert made.drift(new[:, None], new_groups) is None
    unlike = made.drift(new[:, None] - 1.5, new_groups)
    assert "these 400 rows look unlike those" in unlike
    chosen = pandas.Series(new_groups, index=range(7, 7 + len(new_groups)))  # as of a table of which rows were chosen
    assert made.drift(new[:, None] - 1.5, chosen) == unlike


# ---------------------------------------------------------------- in single precision

DIRECTED = {
    "confidence": lambda raw: raw,
    "percent": lambda raw: raw * 33 / 33,
    "uncertainty": lambda raw: -raw,
    "surprisal": lambda raw: np.exp(-raw),
    "complement": lambda raw: 1.0 - raw,
}
"""What readers of files make of a column, by its kind, where they get float32 as Python's numbers."""


@pytest.mark.parametrize("kind", DIRECTED)
@pytest.mark.parametrize("step", [0.1, 1 / 12], ids=["decimals", "fractions"])
def test_scores_in_single_precision_are_the_same_scores(kind, step):
    """In float32, as a tensor or as a number of a file, a score that ties with a threshold is not kept, either."""
    rng = np.random.default_rng(0)
    raw = rng.integers(1, 12, 1200) * step
    column = Column("s") if kind in ("confidence", "percent") else Column("s", kind)
    if kind == "percent":
        raw, column = raw * 33, Column("s", "confidence", 33.0)
    single = raw.astype(np.float32)
    twins = [DIRECTED[kind](scores if kind != "percent" else scores / 33) for scores in (raw, single.astype(float))]
    truth = (rng.random(len(raw)) < np.argsort(np.argsort(twins[0])) / len(raw)).astype(float)
    fit = partial(calibrate_columns, [column], factuality=truth, promised=KEEP, draws=1)
    (made, _), (of_single, _) = (fit([twin]) for twin in twins)
    assert replace(of_single, fitted=made.fitted) == made
    kept = made.keeps(raw, keep_factual=0.8)
    assert 0 < kept.sum() < len(kept)
    for scores in (single, single.tolist(), torch.tensor(single)):
        assert made.keeps(scores, keep_factual=0.8).tolist() == kept.tolist()
        assert made(scores).tolist() == made(raw).tolist()
    for twin in twins:
        assert made.keeps_directed(twin[:, None], 0.8).tolist() == kept.tolist()
        assert made.drift(twin[:, None]) is None


@pytest.mark.parametrize("uncertainty", [(), ("s",)])
def test_thresholds_of_earlier_files_keep_what_they_kept(uncertainty):
    """They were computed from scores finer than float32."""
    rng = np.random.default_rng(0)
    raw = rng.integers(1, 12, 1200) / 12
    made, _ = quick({"s": raw}, rng.random(1200) < (1 - raw if uncertainty else raw), None, uncertainty, promised=KEEP)
    data = json.loads(calibration_text(made))
    levels = np.unique(-raw if uncertainty else raw)
    if uncertainty:
        data["columns"][0]["ranks"]["scores"] = levels.tolist()
    for at, limit in enumerate(levels):
        threshold = data["columns"][0]["ranks"]["shares"][at] if uncertainty else limit
        data["guarantees"] = [data["guarantees"][0] | {"threshold": threshold}]
        data["kinds"] = [{"value": "a", "guarantee": data["guarantees"][0]}]
        read = ScoreCalibration.from_dict({**data, "by": "kind"})
        for scores in (raw, raw.astype(np.float32)):
            expected = ((-raw if uncertainty else raw) > limit).tolist()
            assert read.keeps(scores, keep_factual=0.9).tolist() == expected
            assert read.keeps(scores, keep_factual=0.9, by=["a"] * 1200).tolist() == expected


@pytest.mark.parametrize("kind", ["bfloat16", "float16", "with gradient", "array of float16"])
def test_tensors_are_taken_in_any_precision(kind):
    rng = np.random.default_rng(0)
    raw = rng.integers(1, 11, 400) / 10
    truth = (rng.random(400) < raw).astype(float)

    def given(numbers):
        if kind == "array of float16":
            return numbers.astype(np.float16)
        tensor = torch.tensor(numbers)
        return tensor.requires_grad_() if kind == "with gradient" else tensor.to(getattr(torch, kind))

    expected, _ = quick({"s": raw}, truth, promised=KEEP)
    made, _ = quick({"s": given(raw)}, given(truth), promised=KEEP)
    assert made == expected
    for scores in (given(raw), {"s": given(raw)}):
        assert made(scores).tolist() == expected(raw).tolist()
        assert made.keeps(scores, keep_factual=0.8).tolist() == expected.keeps(raw, keep_factual=0.8).tolist()
    directed = [Column("s").directed(given(raw)), given(raw)]
    assert all(made.confidences(values[:, None]).tolist() == made(raw).tolist() for values in directed)
    judged = [
        calibrate_columns([Column("s")], [turn(raw)], turn(truth), judge=("judge", turn(truth)), draws=1)[0]
        for turn in (given, np.array)
    ]
    assert judged[0] == judged[1]


def test_a_label_in_single_precision_is_true_where_its_decimal_is():
    scores, labels = np.array([0.5, 0.5]), np.array([0.7, 0.69])
    for factuality in (labels, labels.astype(np.float32).astype(float)):
        passages = group_passages(scores, factuality, ["a", "a"], 0.7)
        assert passages["a"].true == [True, False]


# ---------------------------------------------------------------- the file, and what is refused


def test_the_file_gives_the_same_back(tmp_path):
    odds, truth, groups = made_rows(150)
    kind = ["rare" if group % 4 == 0 else "" for group in groups]
    columns = [Column("p"), Column("u", "uncertainty"), Column("ten", "confidence", 10.0)]
    directed = [sigmoid(odds), -odds, sigmoid(odds + 1)]
    made, _ = calibrate_columns(
        columns, directed, truth, groups, promised=KEEP, by=("kind", kind), group="q", sources=["ab"], data=["x/y.csv"]
    )
    (tmp_path / "calibration.json").write_text(calibration_text(made))
    for place in (tmp_path, tmp_path / "calibration.json"):
        assert lovec.load_calibration(place) == made
    assert made.fitted.data == ("y.csv",)


def changed(change):
    odds, truth, groups = made_rows(60)
    made, _ = quick({"s": odds}, truth, groups, promised=KEEP)
    data = json.loads(json.dumps(made.to_dict()))
    change(data)
    return data


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda d: d.update(version=2), "version of a calibration is 2, expected 1"),
        (lambda d: d.pop("kind"), "expected an object whose kind is 'scores'"),
        (lambda d: d.update(more=1), "unknown key 'more'"),
        (lambda d: d["columns"].append(d["columns"][0]), "does not belong to the columns s, s"),
        (lambda d: d["columns"][0]["ranks"].update(scores=[1.0, 1.0], shares=[0.1, 0.2]), "ranks have 2 scores"),
        (lambda d: d["columns"][0].update(kind="doubt"), "kind of a column of a calibration is 'doubt'"),
        (lambda d: d["guarantees"].append(d["guarantees"][0]), "two guarantees for 0.9"),
        (lambda d: d["kinds"].extend([{"value": "a", "guarantee": d["guarantees"][0]}] * 2), "two guarantees for 0.9"),
    ],
)
def test_a_file_that_holds_something_else_is_refused(change, said, tmp_path):
    data = changed(change)
    (tmp_path / "c.json").write_text(json.dumps(data))
    with pytest.raises(LovecError, match=r"c\.json holds no calibration of scores") as error:
        lovec.load_calibration(tmp_path / "c.json")
    assert said in str(error.value)


def test_a_file_of_an_earlier_version_is_read():
    data = changed(
        lambda d: [d.pop("judge"), d.pop("label"), [guarantee.pop("certainty", None) for guarantee in d["guarantees"]]]
    )
    made = ScoreCalibration.from_dict(data)
    assert made.judge == made.label == ""


def test_the_calibration_of_an_adapter_is_told_from_one_of_scores(tmp_path):
    own, _ = calibrate(answers(40), adapter="a", base="b", mode="iterative", draws=20)
    Path(tmp_path, "c.json").write_text(json.dumps({"calibrations": [own.to_dict()]}))
    with pytest.raises(LovecError, match="it is the calibration of an adapter, which `lovec tag` applies"):
        lovec.load_calibration(tmp_path / "c.json")
    with pytest.raises(LovecError, match="there is no calibration"):
        lovec.load_calibration(tmp_path / "none")


def test_a_single_uncertainty_is_a_whole_name():
    odds, truth, groups = made_rows(60)
    scores = {"p": sigmoid(odds), "entropy": -odds, "entropy of p": -odds}
    for uncertainty in ("entropy of p", ["entropy of p"], {"entropy of p": 1}):
        made, _ = quick(scores, truth, groups, uncertainty=uncertainty)
        assert [column.kind for column in made.columns] == ["confidence", "confidence", "uncertainty"]
    for uncertainty in ("entro", ["p", "entro"]):
        with pytest.raises(LovecError, match="the uncertainty 'entro' is no column of scores, expected one of p, entr"):
            quick(scores, truth, groups, uncertainty=uncertainty)


def test_an_order_that_no_map_may_follow_is_refused():
    odds, truth, groups = made_rows(100)
    for maps, tried in ((("platt",), "platt"), ((), "none was tried")):
        with pytest.raises(LovecError, match=rf"no map rises with s \({tried}\); give isotonic or beta"):
            quick({"s": odds}, truth, groups, uncertainty=["s"], maps=maps)


def test_a_score_that_rounding_carried_past_an_end_is_this_end():
    odds, truth, groups = made_rows(100)
    scores = sigmoid(odds)
    scores[:2] = [1 + 1e-7, -1e-7]
    made, _ = quick({"p": scores}, truth, groups)
    assert made.columns[0].ranks is None
    assert made([1 + 1e-7, 1 + 2e-16, -1e-7]).tolist() == made([1, 1, 0]).tolist()


def test_scores_that_do_not_fit_are_refused():
    odds, truth, groups = made_rows(100)
    made, _ = quick({"p": sigmoid(odds), "u": odds}, truth, groups, uncertainty=["u"])
    for scores, said in (
        (([0.5],), r"have shapes \[1\], expected \[N\] for each of p, u"),
        (([0.5], [0.1, 0.2]), r"have shapes \[1\], \[2\]"),
        (([1.5], [0.1]), "p is 1.5, and the calibration was fitted to numbers from 0 to 1"),
        (([1.000002], [0.1]), "p is 1.000002, and the calibration was fitted to numbers from 0 to 1"),
        (([0.5], [math.inf]), "a score of u is infinite"),
        (({"p": [0.5]},), "the scores lacks 'u'"),
    ):
        with pytest.raises(LovecError, match=said):
            made(*scores)
    for arguments, said in (
        (({}, truth, groups), "got 0 columns"),
        (({"s": odds[:5]}, truth, groups), r"got 1 columns of \[5\] scores, 400 labels and 400 groups"),
        (({"s": np.full(400, math.nan)}, truth, groups), "no row has a score s"),
        (({"s": np.full(400, math.inf)}, truth, groups), "a score of s is infinite"),
        (({"s": odds}, np.ones(400), groups), "all 400 labelled rows have the factuality 1"),
        (({"s": odds}, truth, [0] * 400), "the labelled rows are all of one group"),
        (({"s": odds}, truth * 2, groups), "factuality"),
    ):
        with pytest.raises(LovecError, match=said):
            quick(*arguments)
    with pytest.raises(
        LovecError, match=r"there is no threshold for --keep_factual 0\.9, only for none; calibrate again"
    ):
        made.keeps([0.5], [0.1], keep_factual=0.9)
