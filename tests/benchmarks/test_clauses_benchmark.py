"""The benchmark of clauses: what it measures on made-up sentences, and that the page has its numbers."""

from __future__ import annotations

import json
from pathlib import Path
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


def test_claims_that_no_sentence_states_count_as_not_found(clauses: Any, tmp_path: Path) -> None:
    row = {
        "user_query": "Who?",
        "chatgpt_response": "He sang in Ulm and was born in Linz. He ate.",
        "chatgpt_fact": ["He sang in Ulm.", "Bo was born in Linz.", "It rained all day.", "He sang."],
        "human_judge": ["true", "false", "false", "true"],
    }
    (tmp_path / "human-Science.json").write_text(json.dumps([row, {**row, "human_judge": []}]))
    sentences, lost = clauses.judged_sentences(tmp_path)
    text, facts = sentences[0]
    assert lost == 1 and len(sentences) == 1
    assert [(text[slice(*place)], truth) for place, truth in facts] == [
        ("sang in Ulm", True),
        ("born in Linz", False),
        ("sang", True),
    ]
    assert clauses.measured(sentences, 0, lost)["found"] == 3 / 4


def test_boundaries_of_segments_are_compared_with_ends_of_sentences(clauses: Any, tmp_path: Path) -> None:
    text = "He sang and he ate. He slept; he woke. He left."
    row = {"source": "felm-wk", "response": text, "claims": ["He sang and he ate.", "He slept; he woke. He left."]}
    other = {**row, "source": "factool-qa"}
    (tmp_path / "b.jsonl").write_text("".join(json.dumps(r) + "\n" for r in (row, other)))
    found = clauses.segmented(tmp_path / "b.jsonl")
    assert found == {
        "answers": 1,
        "segments": 2,
        "boundaries": 1,
        "sentences": 2,
        "both": 1,
        "clauses": found["clauses"],
    }
    assert found["clauses"] > 3


def test_the_page_has_what_was_measured(clauses: Any) -> None:
    content = clauses.table(json.loads(clauses.RESULTS.read_text(encoding="utf-8")))
    assert f"{clauses.BEGIN}\n{content}\n{clauses.END}" in clauses.PAGE.read_text(encoding="utf-8")


@pytest.mark.parametrize("script", ["clause_cost", "padding"])
def test_the_page_has_the_cost_that_was_measured(script: str) -> None:
    cost = load_script(script)
    content = cost.table(json.loads(cost.RESULTS.read_text(encoding="utf-8")))
    assert f"{cost.BEGIN}\n{content}\n{cost.END}" in cost.PAGE.read_text(encoding="utf-8")
