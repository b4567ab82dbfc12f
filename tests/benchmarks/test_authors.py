"""The benchmark of who wrote a text: gaps are differences on the same answers, and the page has what was measured."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from scripts import load_script
from tinyrun import tiny

from lovec.taggers import open_session
from lovec.types import Record, Sentence


@pytest.fixture(scope="module")
def authors() -> Any:
    return load_script("authors")


def test_gaps_are_between_the_same_answers(authors: Any, tmp_path: Path) -> None:
    texts = {"a": ["Ada wrote notes.", "It rained in Rome."], "b": ["They met in Paris."], "c": ["It was noon."]}
    records = [
        Record(name, f"Who is {name}?", sentences=tuple(Sentence(text, factuality=0.5) for text in own))
        for name, own in texts.items()
    ]
    with open_session(tiny(tmp_path), instruction="Rate it.") as session:
        rows = {row["author"]: row for row in authors.measured(session, records, 200, seed=0)}
    assert list(rows) == ["answer", "model", "user"]
    assert rows["user"]["mean_confidence gap"] is None
    for author in ("answer", "model"):
        for name in ("mean_confidence", "brier"):
            value, low, high = rows[author][f"{name} gap"]
            assert value == pytest.approx(rows[author][name][0] - rows["user"][name][0])
            assert low <= value <= high and value != 0


def test_the_page_has_what_was_measured(authors: Any) -> None:
    content = authors.table(json.loads(authors.RESULTS.read_text(encoding="utf-8")))
    assert f"{authors.BEGIN}\n{content}\n{authors.END}" in authors.PAGE.read_text(encoding="utf-8")
