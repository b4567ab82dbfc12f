"""Blends: cross-fitting keeps labels out, unlabelled answers get values, missing estimates, what is refused."""

from __future__ import annotations

import random
import tracemalloc
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from lovec.baselines import LinearProbe, PTrue, Words
from lovec.metrics.functional import brier_score, ece_m, spearman
from lovec.teachers import BaselineTeacher, Blend, CalibratedStack, PolicyMean
from lovec.teachers.base import _interleaved, _read
from lovec.teachers.blend import _alike
from lovec.types import LovecError, Record, Sentence


def answers(questions: int = 60, sentences: int = 5, seed: int = 0) -> tuple[list[Record], list[Any], list[Any]]:
    """Records, and two teachers: one that is too sure, one that says little."""
    draw = random.Random(seed)
    rows, sure, vague = [], [], []
    for q in range(questions):
        p = [draw.random() for _ in range(sentences)]
        truth = [float(draw.random() < x) for x in p]
        texts = tuple(Sentence(f"Sentence {i} of {q}.", factuality=t) for i, t in enumerate(truth))
        rows.append(Record(f"a{q}", f"question {q}", sentences=texts))
        sure.append([min(1.0, max(0.0, 2 * x - 0.5)) for x in p])
        vague.append([0.5 + 0.1 * (x - 0.5) + 0.05 * draw.random() for x in p])
    return rows, sure, vague


def flat(rows: Sequence[Sequence[Any]]) -> Any:
    return np.array([value for row in rows for value in row], dtype=np.float64)


def truth_of(records: Sequence[Record]) -> Any:
    return flat([[s.factuality for s in record.sentences] for record in records])


def unlabelled(records: Sequence[Record]) -> list[Record]:
    return [record.with_factuality([None] * len(record.sentences)) for record in records]


def test_a_blend_is_calibrated_and_better_than_its_teachers() -> None:
    rows, sure, vague = answers(300)
    made, truth = flat(Blend([PolicyMean()]).blended(rows, [sure, vague])), truth_of(rows)
    assert float(ece_m(made, truth)) < 0.03 < float(ece_m(flat(sure), truth))
    assert float(brier_score(made, truth)) < min(float(brier_score(flat(x), truth)) for x in (sure, vague))
    assert float(spearman(made, truth)) > 0.4


def test_the_target_of_a_sentence_does_not_contain_its_label() -> None:
    rows, sure, vague = answers()
    made = Blend([PolicyMean()]).blended(rows, [sure, vague])
    turned = [replace(rows[0], sentences=tuple(replace(s, factuality=1 - s.factuality) for s in rows[0].sentences))]
    again = Blend([PolicyMean()]).blended([*turned, *rows[1:]], [sure, vague])
    assert again[0] == made[0] and again[1:] != made[1:]


def test_several_answers_to_a_question_are_in_one_fold() -> None:
    rows, sure, vague = answers(20)
    more = [replace(row, id=f"{row.id}/sample-1") for row in rows]
    made = Blend([PolicyMean()]).blended([*rows, *more], [sure + sure, vague + vague])
    turned = replace(more[3], sentences=tuple(replace(s, factuality=1 - s.factuality) for s in more[3].sentences))
    again = Blend([PolicyMean()]).blended([*rows, *more[:3], turned, *more[4:]], [sure + sure, vague + vague])
    assert again[3] == made[3] and made[:20] == made[20:]


def test_answers_without_labels_get_the_map_of_all_labels() -> None:
    rows, sure, vague = answers()
    blend = Blend([PolicyMean()])
    others, sure2, vague2 = answers(10, seed=1)
    others = [replace(row, id=f"b{row.id}", question=f"other {row.question}") for row in others]
    both = blend.blended([*rows, *unlabelled(others)], [sure + sure2, vague + vague2])
    assert both[: len(rows)] == blend.blended(rows, [sure, vague])  # they change nothing for the others
    whole = CalibratedStack.fit(np.stack([flat(sure), flat(vague)], 1), truth_of(rows), 1e-3)
    assert flat(both[len(rows) :]) == pytest.approx(whole(np.stack([flat(sure2), flat(vague2)], 1)))


def test_equal_sentences_of_a_question_get_one_target() -> None:
    rows, sure, vague = answers(30)
    double = [*rows, replace(rows[0], id="again")]
    estimates = [[*sure, [1 - x for x in sure[0]]], [*vague, vague[0]]]
    alike = Blend([PolicyMean()]).blended(double, estimates)
    apart = Blend([PolicyMean()], alike=False).blended(double, estimates)
    assert alike[0] == alike[-1] and apart[0] != apart[-1]


def test_a_twin_that_nobody_could_judge_changes_nothing() -> None:
    rows, sure, vague = answers(30)
    twin = replace(rows[0], id="again", sentences=rows[0].sentences[:1]).with_factuality([None])
    blend = Blend([PolicyMean()])
    alone = blend.blended(rows, [sure, vague])
    beside = blend.blended([*rows, twin], [[*sure, [None]], [*vague, [None]]])
    assert beside[:-1] == alone and beside[-1] == [None]
    other = blend.blended([*rows, twin], [[*sure, [None]], [*vague, vague[0][:1]]])  # the other teacher's is its own
    assert other[-1][0] == other[0][0] == pytest.approx(alone[0][0])


def test_the_mean_of_equal_sentences_is_that_of_what_is_known() -> None:
    rows = np.array([[0.2, np.nan], [0.4, np.nan], [np.nan, 0.6], [0.8, np.nan], [np.nan, np.nan]])
    found = _alike(rows, ["a", "a", "a", "b", "c"])
    assert np.array_equal(found[:3], [[(0.2 + 0.4) / 2, 0.6]] * 3) and found[3, 0] == 0.8
    assert np.isnan(found[[3, 4, 4], [1, 0, 1]]).all()


def test_one_long_sentence_does_not_make_the_others_long() -> None:
    keys = ["w" * 20_000, *(f"sentence {i // 2}" for i in range(999))]
    rows = np.random.default_rng(0).random((1000, 2))
    tracemalloc.start()
    try:
        found = _alike(rows, keys)
        assert tracemalloc.get_traced_memory()[1] < 2**20
    finally:
        tracemalloc.stop()
    expected = [rows[[at for at, other in enumerate(keys) if other == key]].mean(0) for key in keys]
    assert np.array_equal(found, expected)


def test_what_one_teacher_cannot_say_another_says() -> None:
    rows, sure, vague = answers(30)
    sure[2][1] = None
    sure[3][0] = vague[3][0] = None
    made = Blend([PolicyMean()]).blended(rows, [sure, vague])
    assert made[3][0] is None and all(v is not None for row in [*made[:3], made[3][1:], *made[4:]] for v in row)
    nothing = [[None] * len(row) for row in sure]
    with pytest.raises(LovecError, match="none of 150 sentences has an estimate"):
        Blend([PolicyMean()]).blended(rows, [nothing])
    made = Blend([PolicyMean()]).blended(rows, [nothing, vague])  # a teacher that says nothing is left out in effect
    assert made[3][0] is None and made[0] != made[1]


def test_constant_estimates_and_few_labels() -> None:
    rows, sure, vague = answers(12)
    same = [[0.3] * len(row) for row in sure]
    made = flat(Blend([PolicyMean()]).blended(rows, [same]))
    assert made.std() < 0.05 and abs(made.mean() - truth_of(rows).mean()) < 0.02
    two = [*rows[:2], *unlabelled(rows[2:])]
    assert np.isfinite(flat(Blend([PolicyMean()]).blended(two, [sure, vague]))).all()


@pytest.mark.parametrize("labelled", [0, 1])
def test_too_few_labels_are_refused(labelled: int) -> None:
    rows, sure, vague = answers(10)
    rows = [*rows[:labelled], *unlabelled(rows[labelled:])]
    with pytest.raises(LovecError, match=f"of {labelled} questions, expected different ones of two questions or more"):
        Blend([PolicyMean()]).blended(rows, [sure, vague])
    even = [record.with_factuality([1.0] * 5) for record in answers(10)[0]]
    with pytest.raises(LovecError, match="expected different ones"):
        Blend([PolicyMean()]).blended(even, [sure, vague])


class Learned(PTrue):
    """A baseline that learns from labels, without held-out values."""

    needs_labels = True


def test_what_makes_no_teacher() -> None:
    with pytest.raises(LovecError, match="no teachers to blend"):
        Blend([])
    with pytest.raises(LovecError, match=r"'p\(true\)' learns from labels .* lovec.baselines.LinearProbe"):
        BaselineTeacher(Learned())
    assert all(BaselineTeacher(baseline).uses_labels for baseline in (LinearProbe(), Words()))
    assert not BaselineTeacher(PTrue()).uses_labels


def test_files_that_hold_something_else_are_not_read(tmp_path: Any) -> None:
    path = tmp_path / "x.json"
    for text, sizes in (("", [1]), ("[[0.5]]", [2]), ("[[2]]", [1]), ('[["a"]]', [1]), ("[[true]]", [1]), ("3", [1])):
        path.write_text(text)
        assert _read(path, sizes, {}) is None
    path.write_text("[[0.5, null], []]")
    assert _read(path, [2, 0], {"r": 8}) == [[0.5, None], []]  # an earlier version has not said of which options
    assert _read(tmp_path / "none.json", [], {}) is None
    path.write_text('{"adapter": {"r": 8}, "estimates": [[0.5]]}')
    assert _read(path, [1], {"r": 8}) == [[0.5]] and _read(path, [1], {"r": 8, "use_rslora": True}) is None


def test_shares_of_processes_are_put_in_order() -> None:
    rows: list[list[float | None]] = [[float(i)] for i in range(5)]
    assert _interleaved([rows[0::2], rows[1::2]], 5) == rows
    assert _interleaved([rows[0:1], [], []], 1) == rows[:1]
