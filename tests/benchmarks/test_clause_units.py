"""The benchmark of units: how confidences move between clauses and sentences, and that the page has its numbers."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from scripts import load_script

from lovec.types import Record, Sentence


@pytest.fixture(scope="module")
def units() -> Any:
    return load_script("clause_units")


CLAUSES = Record(
    "a",
    "Who?",
    sentences=tuple(
        Sentence("x", truth, part_of=place) for place, truth in ((0, 1.0), (0, 0.4), (1, 1.0), (2, 1.0), (2, 1.0))
    ),
)


def test_confidences_move_between_clauses_and_sentences(units: Any) -> None:
    assert units.lent({"a": [0.9, None, 0.1]}, [CLAUSES]) == {"a": [0.9, 0.9, None, 0.1, 0.1]}
    parts = {"a": [0.5, 0.4, 0.3, None, 0.8]}
    assert units.joined(parts, [CLAUSES], 0.0) == {"a": [pytest.approx(0.2), 0.3, None]}
    assert units.joined(parts, [CLAUSES], 1.0) == {"a": [0.4, 0.3, None]}
    assert units.all_true([CLAUSES]) == {"a": [0.0, 1.0, 1.0]}
    found = units.pairs(units.joined(parts, [CLAUSES], 1.0), units.all_true([CLAUSES]))
    assert found == {"a": ([0.4, 0.3], [0.0, 1.0])}
    assert units.brier([found]) == pytest.approx((0.4**2 + 0.7**2) / 2)


def test_the_order_of_the_clauses_of_a_sentence_is_that_of_their_truths(units: Any) -> None:
    right, equal, wrong = [0.5, 0.4, 0.9, 0, 1], [0.5, 0.5, 0.1, 0, 1], [0.3, 0.4, 0.9, 0, 1]
    for values, expected in ((right, 1.0), (equal, 0.5), (wrong, 0.0)):
        single = units.order_in_sentences([{"a": values}], [CLAUSES])  # one answer says nothing of others
        assert single == pytest.approx([expected, math.nan, math.nan], abs=0, nan_ok=True)
        assert units.order_in_sentences([{"a": values}] * 2, [CLAUSES] * 2) == [expected] * 3
    assert units.order_in_sentences([{"a": right}, {"a": wrong}], [CLAUSES])[0] == 0.5


def test_the_page_has_what_was_measured(units: Any) -> None:
    content = units.table(json.loads(units.RESULTS.read_text(encoding="utf-8")))
    assert f"{units.BEGIN}\n{content}\n{units.END}" in units.PAGE.read_text(encoding="utf-8")
