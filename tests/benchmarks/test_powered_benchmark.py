"""The benchmark of a judge's labels: draws are what they are said to be, and the page has the numbers."""

from __future__ import annotations

import json

import pytest
import torch
from scripts import load_script

from lovec.metrics.powered import Judged

powered = load_script("powered")


@pytest.fixture(scope="module")
def every():
    """Thirty answers of one to three claims; of each claim a confidence that tells which one it is."""
    group = torch.arange(30).repeat_interleave(torch.arange(30) % 3 + 1)
    claim = torch.arange(len(group))
    return Judged((claim % 2).double(), (claim // 2 % 2).double(), group, claim.double() / 100)


def test_draws_hold_whole_answers_and_labels_of_the_first(every):
    for rows in powered.drawn(every, 20, 5, seed=0):
        assert int(rows.group.max()) == 29
        for answer in range(30):
            own = rows.among(rows.group == answer)
            places = (own.confidence * 100).round().long()
            assert torch.equal(places, (every.group == every.group[places[0]]).nonzero()[:, 0])
            assert torch.equal(own.judge, every.judge[places])
            assert own.labelled.all() or not own.labelled.any()
        known = rows.labelled
        assert 20 <= int(known.sum()) <= 22 and not known[int(known.sum()) :].any()
        assert torch.equal(rows.people[known], every.people[(rows.confidence[known] * 100).round().long()])


def test_one_row_per_metric(every):
    rows = powered.tried(every, 20, 4, seed=0)
    assert [row["metric"] for row in rows] == ["mean_factuality", "brier", "ece_m"]
    assert rows[0]["powered"]["width"] > 0 and rows[2]["worth"] is None


def test_the_page_has_the_numbers_of_the_results():
    results = json.loads(powered.RESULTS.read_text())
    page = powered.PAGE.read_text()
    assert f"{powered.BEGIN}\n{powered.table(results)}\n{powered.END}" in page
    for row in results["rows"]:
        if row["metric"] != "ece_m":
            assert (0.91 if row["labels"] == 100 else 0.93) < row["powered"]["coverage"] < 0.97
            assert row["powered"]["width"] < row["people"]["width"]
