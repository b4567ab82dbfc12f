"""The benchmark of revised texts: what it measures on made-up answers, and that the page has its numbers."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from scripts import load_script

from lovec.types import Record, Sentence


@pytest.fixture(scope="module")
def benchmark() -> Any:
    return load_script("revise")


class Truths:
    """Knows two sentences."""

    def rate(self, records: Sequence[Record]) -> list[list[float | None]]:
        known = {"Ada wrote notes.": 1.0, "She sang.": 0.0}
        return [[known.get(sentence.text) for sentence in record.sentences] for record in records]


def texts(benchmark: Any) -> Any:
    sentences = (
        Sentence("Ada wrote notes.", 1.0, 0.9),
        Sentence("She sang.", 0.0, 0.2),
        Sentence("It rained.", None, 0.7),
    )
    answer = Record("a", "Who?", answer="Ada wrote notes. She sang. It rained.", sentences=sentences)
    wrong = Record("b", "Who?", answer="She sang.", sentences=(replace(sentences[1], confidence=0.8),))
    return benchmark.Texts([answer, wrong], Truths())


def test_what_is_left_is_judged_again(benchmark: Any) -> None:
    made = texts(benchmark)
    found = made.measured([0, 1], lambda sentence: sentence.confidence > 0.5)
    assert found == {
        "held": 0.5, "kept": 2 / 3, "true_kept": 1, "truth": 0.5, "all_true": 0.5, "empty": 0, "false_hedged": 1,
        "changed": 0,
    }  # fmt: skip
    found = made.measured([0, 1], lambda sentence: sentence.confidence > 0.85)
    assert (found["held"], found["empty"], found["all_true"], found["truth"]) == (1, 0.5, 1, 1)
    assert found["false_hedged"] == 1 and made.seen == 4


def test_sentences_that_read_otherwise_are_counted(benchmark: Any) -> None:
    made = texts(benchmark)
    before = replace(made.records[0], sentences=(replace(made.records[0].sentences[0], factuality=0.5),), answer="")
    other = benchmark.Texts([before], Truths())
    assert other.measured([0], lambda sentence: True)["changed"] == 1
    assert made.measured([0, 1], lambda sentence: True)["changed"] == 0


def test_the_page_has_the_table_of_the_results(benchmark: Any) -> None:
    results = json.loads(benchmark.RESULTS.read_text(encoding="utf-8"))
    page = benchmark.PAGE.read_text(encoding="utf-8")
    assert page.split(benchmark.MARKS[0])[1].split(benchmark.MARKS[1])[0].strip() == benchmark.table(results)
