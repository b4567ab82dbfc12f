"""The benchmark of clauses: what it measures on made-up sentences, and that the page has its numbers."""

from __future__ import annotations

import json
from typing import Any

import pytest
from scripts import load_script


@pytest.fixture(scope="module")
def clauses() -> Any:
    return load_script("clauses")


def test_facts_are_counted_in_the_units_that_complete_them(clauses: Any) -> None:
    text = "He sang in Ulm and was born in Linz."
    facts = [((0, 14), True), ((3, 7), True), ((23, 35), False), (None, True)]
    found = clauses.measured([(text, facts), ("He sang.", [((3, 7), True)])], seed=0)
    assert (found["divided"], found["found"], found["inside"], found["splits"]) == (0.5, 4 / 5, 1.0, 1)
    assert (found["splits_between_facts"], found["gaps_split"]) == (1.0, 0.5)
    assert found["sentence"] == {"units": 2, "with_facts": 2, "facts": 2.0, "mixed": 0.5, "mixed_of_several": 1.0}
    assert found["clause"]["mixed"] == 0 and found["clause"]["units"] == found["chance"]["units"] == 3


def test_the_page_has_what_was_measured(clauses: Any) -> None:
    content = clauses.table(json.loads(clauses.RESULTS.read_text(encoding="utf-8")))
    assert f"{clauses.BEGIN}\n{content}\n{clauses.END}" in clauses.PAGE.read_text(encoding="utf-8")


def test_the_page_has_the_cost_that_was_measured() -> None:
    cost = load_script("clause_cost")
    content = cost.table(json.loads(cost.RESULTS.read_text(encoding="utf-8")))
    assert f"{cost.BEGIN}\n{content}\n{cost.END}" in cost.PAGE.read_text(encoding="utf-8")
