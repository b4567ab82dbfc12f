"""Sentences without a valid confidence are left out, or measured as ones that state 0, by tests and reports alike."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lovec.datasets.jsonl import write_records
from lovec.evaluation import EvaluationConfig
from lovec.evaluation.evaluator import Evaluator
from lovec.metrics.bootstrap import by_question, intervals, resample
from lovec.metrics.functional import f1_at_k
from lovec.metrics.records import count_missing
from lovec.metrics.results import COUNTED_MISSING, write_results, written_by
from lovec.reports.cells import CellMaker
from lovec.reports.lead import provenance
from lovec.reports.runs import read_run
from lovec.types import Record, Sentence

SPREAD = tuple(float(level == 9) for level in range(11))
WITH_MISSING = [
    Record("a", "Q?", sentences=(Sentence("It is.", 1.0, score=9, distribution=SPREAD), Sentence("It was.", 0.5))),
    Record("b", "Q?", sentences=(Sentence("It has.", 0.0), Sentence("Nobody knows."))),
    Record("c", "Q?"),
]


class Given:
    """A tagger that returns records as they are."""

    def tag(self, records):
        return list(records)


def rows(**options):
    config = EvaluationConfig(modes=["iterative"], **options)
    evaluator = Evaluator({"iterative": Given()}, None, config, ["in-domain"])
    for part in (WITH_MISSING[:1], WITH_MISSING[1:]):  # in batches
        evaluator.update("iterative", part)
    return {(row.level, row.readout): row for row in evaluator.rows("M", seed=0)}


def test_a_sentence_without_a_confidence_is_left_out():
    found = rows()
    stated = found["sentence", "stated"]
    assert stated.n == 1 and stated.metrics["brier"] == pytest.approx(0.1**2)
    assert stated.metrics["malformed"] == pytest.approx(2 / 3)


def test_or_measured_as_one_that_states_0():
    found, without = rows(count_missing=True), rows()
    stated = found["sentence", "stated"]
    assert stated.n == 3 and stated.metrics["brier"] == pytest.approx((0.1**2 + 0.5**2 + 0) / 3)
    passage = found["passage", "stated"]
    assert passage.n == 2 and passage.metrics["brier"] == pytest.approx((0.45 - 0.75) ** 2 / 2)
    for key, row in found.items():
        assert row.metrics["malformed"] == without[key].metrics["malformed"]
    assert found["sentence", "mean"].metrics == without["sentence", "mean"].metrics


def test_f1_is_that_of_the_sentences_that_are_measured():
    left_out, counted = rows()["sentence", "stated"].metrics, rows(count_missing=True)["sentence", "stated"].metrics
    for found, records in ((left_out, WITH_MISSING), (counted, count_missing(WITH_MISSING))):
        drawn = intervals(resample([by_question(records, "stated")], 1, metrics=["f1_at_k"]))["f1_at_k"]
        assert found["f1_at_k"] == pytest.approx(drawn.value)
    assert counted["f1_at_k"] == pytest.approx(sum(f1_at_k([1.5, 0.0], [2, 1]).tolist()) / 2)
    of_answers = ("words", "ttr", "abstained", "malformed", "distinct", "entropy", "ordinality")
    assert {name: counted.get(name) for name in of_answers} == {name: left_out.get(name) for name in of_answers}


def test_confidences_that_were_computed_from_something_else_leave_it_out():
    evaluator = Evaluator(
        {"iterative": Given()}, None, EvaluationConfig(modes=["iterative"], count_missing=True), ["in-domain"]
    )
    for readout, n in (("stated", 3), ("mean", 1), ("deployed", 1)):
        evaluator.update("iterative", WITH_MISSING, readout)
        found = {(row.level, row.readout): row.n for row in evaluator.rows("M + isotonic")}
        assert found["sentence", "stated"] == n


def test_records_are_counted_without_a_change_of_what_they_hold():
    counted = count_missing(WITH_MISSING)
    assert [s.stated for record in counted for s in record.sentences] == [0.9, 0.0, 0.0, 0.0]
    assert [s.stated for record in WITH_MISSING for s in record.sentences] == [0.9, None, None, None]
    assert counted[0].sentences[0] == WITH_MISSING[0].sentences[0]


@pytest.mark.parametrize("counts", [False, True])
def test_a_report_has_intervals_around_what_the_test_has_measured(tmp_path, counts):
    test = tmp_path / "run" / "test" / "data"
    test.mkdir(parents=True)
    write_records(test / "m.jsonl", WITH_MISSING)
    measured = [replace(row, file="m.jsonl") for row in rows(count_missing=counts).values()]
    write_results(test / "results.json", measured, about=written_by() | (COUNTED_MISSING if counts else {}))
    run = read_run(tmp_path / "run")
    cells = CellMaker(run, draws=50)
    for row in run.rows:
        if row.readout == "stated":
            interval = cells._intervals(row)["brier"]
            assert interval.value == pytest.approx(row.metrics["brier"]), row.level
    assert dict(provenance(run)).get("without a confidence") == ("confidence 0" if counts else None)
