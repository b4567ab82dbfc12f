"""The benchmark of the alarms: false ones are rare enough at any time, changes are found, the page has the numbers."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from scripts import load_script

from lovec.calibration import read_calibrations
from lovec.calibration.conformal import Passage, conformal_scores
from lovec.calibration.drift import LEVEL
from lovec.calibration.watching import map_alarm, map_gaps
from lovec.core.hub import SHIPPED
from lovec.types import Record, Sentence

watching = load_script("watching")


def test_simulated_confidences_are_right_and_errors_come_together():
    c, f = watching.answers(100_000, watching.CHANGES[watching.NONE], np.random.default_rng(0))
    for low in (0.0, 0.25, 0.5, 0.75):
        inside = (c >= low) & (c < low + 0.25)
        assert f[inside].mean() == pytest.approx(c[inside].mean(), abs=0.01)
    passages = [Passage(one.tolist(), [bool(true) for true in own]) for one, own in zip(c[:50], f[:50], strict=True)]
    assert watching.worst(c[:50], f[:50]).tolist() == conformal_scores(passages)
    assert np.corrcoef((f - c)[:, 0], (f - c)[:, 1])[0, 1] > 0.2


def test_false_alarms_of_1000_streams_are_as_rare_as_promised():
    """At any of 400 answers; the numbers of the page are of 2,000."""
    found = {row["watched"]: row for row in watching.false_alarms(1000, 400, seed=1)}
    for name, row in found.items():
        if not name.endswith("not"):
            assert row["raised"] <= LEVEL + 1.96 * math.sqrt(LEVEL * (1 - LEVEL) / row["streams"]), name
    assert found["promise, kept exactly"]["raised"] > 0  # the bound is not idle


def test_a_change_is_found_soon():
    rng = np.random.default_rng(0)
    limits = np.full(200, watching.threshold(20_000, rng))
    [gone] = [name for name in watching.CHANGES if "0.3" in name]
    for raised in (
        watching.promise_watched(limits, 100, 500, gone, rng),
        watching.map_watched(200, 100, 500, gone, rng),
    ):
        assert np.isfinite(raised).all() and 10 < np.median(raised) - 100 < 120


def test_streams_together_are_the_alarm_one_by_one():
    rng = np.random.default_rng(0)
    gone = watching.less(0.3)
    values = [map_gaps(*watching.answers(3, gone, rng)) for _ in range(80)]
    together = watching.watched(0.525, 10, 3, 80, lambda seen: values[seen])
    for stream in range(3):
        alarm = map_alarm()
        for value in values:
            alarm = alarm.after(value[stream].tolist())
        assert together[stream] == (math.inf if alarm.raised is None else alarm.raised)
    assert np.isfinite(together).any()


def test_a_pool_is_what_calibrated_answers_bet_on():
    calibration = read_calibrations(SHIPPED["world"])["iterative"]
    levels = np.eye(11)
    answers = [([10, 10], [1.0, 1.0]), ([10, 9], [1.0, 0.0]), ([2, 10], [0.0, 0.7])]
    records = []
    for at, (scores, truth) in enumerate(answers):
        pairs = zip(scores, truth, strict=True)
        tagged = [Sentence("A.", f, score=s, distribution=tuple(levels[s]), levels=11) for s, f in pairs]
        records.append(Record(str(at), "?", sentences=tuple(tagged)))
    records = calibration.apply(records)
    pool = watching.Pool.of(records, calibration)
    assert pool.promise.tolist() == [[0.0], [1.0], [0.0]]  # 0.2 is not kept, 0.9 is
    gaps = [np.mean([s.confidence - s.factuality for s in record.sentences]) for record in records]
    assert pool.too_high == pytest.approx(np.mean(gaps))
    assert pool.excess("promise") == pytest.approx(1 / 3 - watching.ALPHA)
    limit, values = watching.LIMITS["map"], np.stack([map_gaps(*row) for row in _pairs(records)])
    assert pool.excess("map") == pytest.approx((values.mean(0) - limit).max())


def _pairs(records):
    return [([s.confidence for s in r.sentences], [s.factuality for s in r.sentences]) for r in records]


def test_streams_of_a_pool_change_when_they_should():
    kept, broken = np.zeros((10, 1)), np.ones((10, 1))
    kept[0] = 1.0
    right = np.tile(map_gaps([0.5, 0.9], [0.5, 0.9]), (10, 1))
    wrong = np.tile(map_gaps([0.5, 0.9], [0.0, 0.4]), (10, 1))
    pools = {watching.NONE: watching.Pool(kept, right), "all is wrong": watching.Pool(broken, wrong)}
    rows = watching.of_pools(pools, 200, 300, 300, seed=0)
    quiet = [row for row in rows if row["change"] == watching.NONE]
    assert len(rows) == 2 + 2 * len(watching.STARTS) and all(row["before"] <= 0.03 for row in quiet)
    assert all(row["excess"] <= 1e-9 and row["delay"] == [None] * 3 for row in quiet)
    for row in rows[2:]:
        assert row["found"] == 1 and row["delay"][1] < 60 and row["excess"] > 0 and row["before"] <= 0.03
        assert row["broken"] == 1 and row["too_high"] == pytest.approx(0.5)


def test_the_page_has_the_numbers_of_the_results():
    results = json.loads(watching.RESULTS.read_text())
    page = watching.PAGE.read_text()
    assert f"{watching.BEGIN}\n{watching.table(results)}\n{watching.END}" in page
    assert watching.all_hold(results) and (results["streams"], results["most"]) == (1000, 2000)
