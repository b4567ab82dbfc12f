"""The benchmark of the guarantee: what it measures on made-up answers, and that the page has its numbers."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest
from answers import answers
from scripts import load_script

from lovec.calibration import guarantee as promised
from lovec.calibration.conformal import Passage, passages_of
from lovec.metrics.records import confidence_of

guarantee = load_script("guarantee")
FLAGS = SimpleNamespace(splits=40, seed=0)


def mean(sentence):
    return confidence_of(sentence, "mean")


@pytest.fixture(scope="module")
def results():
    entry = guarantee.measured("Made up", [(answers(80), mean), (answers(80, seed=1), mean)], FLAGS)
    parts = {"versions": {"torch": "2"}, "date": "2026-01-01", "commit": "abc", "machine": "a machine"}
    return {"splits": 40, "data": [entry], **parts}


def test_promises_are_kept_and_a_better_order_keeps_more(results):
    (entry,) = results["data"]
    assert (entry["files"], entry["answers"], entry["sentences"], len(entry["rows"])) == (2, 80, 480, 9)
    for row in entry["rows"]:
        assert row["kept_random"] < row["kept_own"] < row["kept_best"]
        assert row["reached"] == pytest.approx(sum(row["reached_by_file"]) / 2)
    assert guarantee.all_hold(results)
    broken = {**entry, "rows": [{**entry["rows"][0], "reached": entry["rows"][0]["bound"] - 1e-9}]}
    assert not guarantee.all_hold(results | {"data": [broken]})
    errors = {**entry["rows"][-1], "reached": entry["rows"][-1]["bound"] + 1e-9}
    assert not guarantee.all_hold(results | {"data": [{**entry, "rows": [errors]}]})


def test_orders_and_what_the_published_rule_keeps():
    passages, _ = passages_of(answers(200), mean)
    shuffled, best = guarantee.in_random_order(passages, 0), guarantee.in_best_order(passages, 0)
    for kind, share in guarantee.PROMISES.items():
        kept = [promised(order, 0.2, kind, share).kept for order in (shuffled, passages, best)]
        assert kept == sorted(set(kept))
    assert guarantee.in_random_order(passages, 1) == guarantee.in_random_order(passages, 1) != shuffled
    true = sum(sum(p.true) for p in passages) / sum(len(p.true) for p in passages)
    assert true <= promised(best, 0.1).kept <= true + 0.1  # all that is true, and a little
    ((one, none),) = [p.scores for p in guarantee.in_best_order([Passage([0.3, None], [True, False])], 0)]
    assert one == 1.0 > none >= 0.0
    assert guarantee.kept_as_published(Passage([0.9, 0.8, 0.7, None], [True, False, True, True]), 0.8) == [True, False]


def test_scores_that_tie_break_the_published_rule_alone():
    rows = guarantee.tried([Passage([0.9, 0.8], [True, False])] * 60, 10, seed=0)
    assert all(row["reached"] == 1.0 for row in rows[:6])
    assert all(row["published_rule"] == 0.0 for row in rows[:6])


def test_the_table_says_what_was_measured(results):
    lines = guarantee.table(results).splitlines()
    assert len([line for line in lines if line.startswith("| Made up |")]) == 9
    assert "All values reached keep the promise" in lines[-1] and "mean over 2 seeds" in lines[-1]


def test_the_stand_in_has_the_likelihood_of_every_byte():
    (record,) = guarantee.stand_in(answers(1))
    assert [len(s.token_logps) for s in record.sentences] == [len(" A sentence.")] * 6
    first, second = (s.token_logps for s in record.sentences[:2])
    assert max(first) < 0 and first != second  # the same sentence in another context
    passages, unlabelled = passages_of([record], guarantee.FEATURES["logp_mean"])
    assert unlabelled == 0 and all(score < 0 for score in passages[0].scores)


def test_the_page_has_the_numbers_of_the_results():
    results = json.loads(guarantee.RESULTS.read_text())
    page = guarantee.PAGE.read_text()
    assert f"{guarantee.BEGIN}\n{guarantee.table(results)}\n{guarantee.END}" in page
    assert guarantee.all_hold(results) and results["splits"] == 500
