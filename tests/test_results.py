"""Files of result rows hold everything about a row, and nothing that JSON cannot say."""

from __future__ import annotations

import json

import pytest

from lovec.metrics.results import read_results, row_to_dict, write_results
from lovec.metrics.table import METRICS, MetricInfo
from lovec.types import LovecError, ResultRow

ROW = ResultRow("DPO", "method", "in-domain", "iterative", "sentence", "stated", 0, 15680, {"brier": 0.25})
MIXED = ResultRow(
    "LUQ + DPO", "hybrid", "Bios", "iterative", "sentence", "stated", None, 7, {"brier": None},
    ("LUQ", "DPO"), "mean", "luq-dpo.jsonl", ("--model.beta=2",),
)  # fmt: skip


def test_rows_come_back_as_they_were(tmp_path):
    path = write_results(tmp_path / "deep" / "results.json", [ROW, MIXED])
    assert read_results(path).rows == (ROW, MIXED)
    assert read_results(path).metrics == METRICS
    assert [file.name for file in path.parent.iterdir()] == ["results.json"]


def test_files_hold_null_for_what_is_undefined(tmp_path):
    values = {"brier": float("inf"), "spearman": float("nan"), "ece_m": 1.0}
    row = ResultRow("DPO", "method", "in-domain", "iterative", "sentence", "stated", 0, 5, values)
    path = write_results(tmp_path / "results.json", [row])
    assert "NaN" not in path.read_text() and "Infinity" not in path.read_text()
    (stored,) = json.loads(path.read_text())["rows"]
    assert stored["metrics"] == {"brier": None, "spearman": None, "ece_m": 1.0} and stored["n"] == 5


def test_a_file_says_how_metrics_of_users_are_shown(tmp_path):
    mine = MetricInfo("tail_risk", "tail risk", "lower", unit="number", digits=3)
    path = write_results(tmp_path / "results.json", [ROW], [*METRICS.values(), mine])
    assert [entry["name"] for entry in json.loads(path.read_text())["metrics"]] == ["tail_risk"]
    assert read_results(path).metrics["tail_risk"] == mine


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "is not JSON"),
        ("[1]", "is not a results file"),
        ('{"metrics": [], "rows": [1]}', "is not a results file"),
        ('{"metrics": [], "rows": ["DPO"]}', "is not a results file"),
        ('{"metrics": [{"name": "x", "colour": "red"}], "rows": []}', "is not a results file"),
        ('{"metrics": [], "rows": [{"method": "DPO"}]}', "a row of 'DPO' has no 'kind'"),
        (json.dumps({"metrics": [], "rows": [row_to_dict(ROW) | {"colour": "red"}]}), "has an unknown field 'colour'"),
        (None, "there are no results at"),
    ],
)
def test_broken_files_are_named(tmp_path, content, message):
    path = tmp_path / "results.json"
    if content:
        path.write_text(content)
    with pytest.raises(LovecError, match=message) as caught:
        read_results(path)
    assert str(path) in str(caught.value) and "\n" not in str(caught.value)
