"""Metrics of marked characters: the shared task's definitions, its published figures, and hand-made cases."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import spearmanr

from lovec.metrics.spans import character_correlation, character_probabilities, iou, marked_spans
from lovec.types import LovecError

SHARED = Path(os.environ.get("LOVEC_SHARED_DATA") or Path(__file__).parents[3] / "shared" / "data")
MUSHROOM = SHARED / "mushroom_en" / "test.jsonl"


@pytest.mark.skipif(not MUSHROOM.exists(), reason=f"needs mushroom_en in {SHARED}")
def test_the_published_rows_of_english_come_out():
    rows = [json.loads(line) for line in MUSHROOM.read_text("utf-8").splitlines()]
    every = [iou([(0, len(row["model_output_text"]))], row["hard_labels"]) for row in rows]
    nothing = [iou([], row["hard_labels"]) for row in rows]
    assert round(sum(every) / len(rows), 6) == 0.348926
    assert round(sum(nothing) / len(rows), 7) == 0.0324675


@pytest.mark.skipif(not MUSHROOM.exists(), reason=f"needs mushroom_en in {SHARED}")
def test_hard_labels_are_the_characters_that_more_than_half_of_the_people_mark():
    for row in (json.loads(line) for line in MUSHROOM.read_text("utf-8").splitlines()):
        soft = [(span["start"], span["end"], span["prob"]) for span in row["soft_labels"]]
        probability = character_probabilities(soft, len(row["model_output_text"]))
        assert iou(marked_spans(probability), row["hard_labels"]) == 1
        assert character_correlation(probability, probability) == pytest.approx(1)


@pytest.mark.parametrize(
    ("marked", "labelled", "expected"),
    [
        ([], [], 1.0), ([(0, 4)], [], 0.0), ([], [(0, 4)], 0.0), ([(0, 4)], [(0, 4)], 1.0), ([(3, 3)], [], 1.0),
        ([(0, 4)], [(2, 6)], 2 / 6), ([(0, 3), (2, 4)], [(0, 2), (2, 4)], 1.0), ([(0, 2), (8, 10)], [(1, 9)], 2 / 10),
    ],
)  # fmt: skip
def test_iou_is_of_sets_of_characters(marked, labelled, expected):
    assert iou(marked, labelled) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("probability", "labelled", "expected"),
    [
        ([0.3] * 4, [0.0] * 4, 1.0), ([0.3] * 4, [0.0, 0.1, 0.1, 0.1], 0.0), ([0.1, 0.2, 0.2, 0.2], [0.5] * 4, 0.0),
        ([], [], 1.0), ([0.3, 0.3 + 1e-9, 0.3], [1.0] * 3, 1.0), ([0.1, 0.2], [0.6, 0.9], 1.0),
        ([0.1, 0.2], [0.9, 0.6], -1.0),
    ],
)  # fmt: skip
def test_constant_sides_have_a_value(probability, labelled, expected):
    assert character_correlation(probability, labelled) == pytest.approx(expected)


@given(st.lists(st.tuples(st.sampled_from([0, 0.25, 0.5, 1]), st.floats(0, 1)), min_size=2, max_size=30))
def test_elsewhere_the_correlation_is_that_of_scipy(pairs):
    probability, labelled = (list(side) for side in zip(*pairs, strict=True))
    if min(len({round(value, 8) for value in side}) for side in (probability, labelled)) > 1:
        expected = spearmanr(probability, labelled).statistic
        assert character_correlation(probability, labelled) == pytest.approx(expected)


def test_probabilities_of_characters_and_back():
    probability = character_probabilities([(1, 4, 0.6), (3, 5, 0.5), (5, 7, 0.9)], 8)
    assert probability == [0, 0.6, 0.6, 0.5, 0.5, 0.9, 0.9, 0]
    assert marked_spans(probability) == [(1, 3), (5, 7)]


@pytest.mark.parametrize(
    ("span", "said"),
    [
        ((2, 9, 0.5), "a span is 2 to 9, expected characters 0 to 8"),
        ((4, 2, 0.5), "a span is 4 to 2"),
        ((-1, 2, 0.5), "a span is -1 to 2"),
        ((0, 2, 1.5), "the probability of a span is 1.5, expected at least 0 and at most 1"),
    ],
)
def test_spans_outside_of_the_answer_are_refused(span, said):
    with pytest.raises(LovecError, match=said):
        character_probabilities([span], 8)
