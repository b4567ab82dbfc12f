"""Wrong scores: uniform over all other scores (Algorithm 1) or the near ones, and a function of seed and id only."""

import os
import subprocess
import sys
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chisquare

from lovec.datasets.pairs import with_rejected
from lovec.types import LovecError, Record, Scale, Sentence, to_rating


def record(name, *labels):
    return Record(name, "Who?", sentences=tuple(Sentence(f"S{i}.", f) for i, f in enumerate(labels)))


@given(labels=st.lists(st.floats(0, 1), min_size=1, max_size=8), seed=st.integers(), name=st.text())
def test_every_score_is_wrong_and_nothing_else_changes(labels, seed, name):
    before = record(name, *labels)
    after = with_rejected(before, seed)
    assert len(after.rejected) == len(labels)
    assert all(0 <= r <= 10 and r != to_rating(f) for r, f in zip(after.rejected, labels, strict=True))
    assert after.sentences == before.sentences and after.id == before.id
    assert with_rejected(before, seed) == after


@pytest.mark.parametrize("rating", [0, 4, 10])
def test_draws_are_uniform_and_independent(rating):
    drawn = [with_rejected(record(f"r{i}", rating / 10, rating / 10), 0).rejected for i in range(6000)]
    for position in (0, 1):
        counts = Counter(pair[position] for pair in drawn)
        assert set(counts) == set(range(11)) - {rating}
        assert chisquare(list(counts.values())).pvalue > 1e-3
    same = sum(a == b for a, b in drawn) / len(drawn)
    assert abs(same - 0.1) < 0.02


def test_same_draws_in_every_process_and_version():
    labels = (0.0, 0.3, 0.5, 0.72, 1.0)
    assert with_rejected(record("ann", *labels), 7).rejected == (7, 8, 9, 6, 6)
    code = (
        "from lovec.datasets.pairs import with_rejected; from lovec.types import *;"
        "print(with_rejected(Record('ann', 'Q', sentences=(Sentence('A.', .3),) * 3), 7).rejected)"
    )
    outputs = {
        subprocess.run(
            [sys.executable, "-c", code],
            check=True,
            capture_output=True,
            env=os.environ | {"PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(sys.path)},
        ).stdout
        for seed in ("1", "2")
    }
    assert len(outputs) == 1


def test_every_score_of_another_scale_is_wrong_and_drawn_uniformly():
    scale = Scale(tuple("abcde"))
    drawn = [with_rejected(record(f"r{i}", 0.5), 0, scale).rejected[0] for i in range(4000)]
    counts = Counter(drawn)
    assert set(counts) == {0, 1, 3, 4}  # 0.5 is the level in the middle
    assert chisquare(list(counts.values())).pvalue > 1e-3
    long = Scale(tuple(str(i) for i in range(101)))
    assert max(with_rejected(record(f"r{i}", 0.07), 0, long).rejected[0] for i in range(400)) > 90


@pytest.mark.parametrize(
    ("size", "level", "near"),
    [
        (11, 0, {1, 2}),
        (11, 4, {2, 3, 5, 6}),
        (11, 9, {7, 8, 10}),
        (5, 2, {1, 3}),
        (2, 1, {0}),
        (101, 50, {*range(30, 50), *range(51, 71)}),
    ],
)
def test_near_scores_are_drawn_uniformly_from_a_fifth_of_the_scale_on_each_side(size, level, near):
    scale = Scale(tuple(f"w{i:03}" for i in range(size)))
    rows = [record(f"r{i}", level / (size - 1), level / (size - 1)) for i in range(3000)]
    drawn = [with_rejected(row, 0, scale, "near").rejected for row in rows]
    for position in (0, 1):
        counts = Counter(pair[position] for pair in drawn)
        assert set(counts) == near
        assert len(near) == 1 or chisquare(list(counts.values())).pvalue > 1e-3
    pair = replace(with_rejected(rows[0], 0, scale), rejected=(0, 0))
    assert with_rejected(pair, 0, scale, "near") == pair  # what a file has is kept
    with pytest.raises(LovecError, match="wrong_scores is 'far', expected one of uniform, near"):
        with_rejected(rows[0], 0, scale, "far")


def test_wrong_scores_that_a_record_has_are_kept_if_the_scale_has_them():
    pair = replace(record("ann", 0.5, 0.1), rejected=(9, 3))
    assert with_rejected(pair, 0) == pair
    with pytest.raises(
        LovecError, match=r"'ann' has the wrong scores \[9, 3\] on a scale of 11 levels, expected 0\.\.4"
    ):
        with_rejected(pair, 0, Scale(tuple("abcde")))


def test_wrong_scores_of_another_scale_are_refused_though_they_are_in_its_range():
    """On 0 to 100 a wrong score of 9 from a file on 0 to 10 would say that low is wrong."""
    fine, pair = Scale(tuple(map(str, range(101)))), replace(record("ann", 0.5, 0.1), rejected=(9, 3))
    with pytest.raises(LovecError, match=r"on a scale of 11 levels, expected 0\.\.100 and 101 levels; leave "):
        with_rejected(pair, 0, fine)
    named = replace(pair, sentences=tuple(replace(s, levels=101) for s in pair.sentences))
    assert with_rejected(named, 0, fine) == named
    with pytest.raises(LovecError, match=r"on a scale of 101 levels, expected 0\.\.10 "):
        with_rejected(named, 0)
    drawn = with_rejected(record("ann", 0.5, 0.1), 0, fine)
    assert with_rejected(drawn, 1, fine) == drawn, "what was drawn is of this scale"
    with pytest.raises(LovecError, match="on a scale of 101 levels"):
        with_rejected(drawn, 0)


def test_seed_and_id_matter():
    draws = {with_rejected(record(name, *[0.5] * 8), seed).rejected for name in "abc" for seed in range(5)}
    assert len(draws) == 15


@pytest.mark.parametrize("labels", [(), (None,), (0.5, None)])
def test_unlabelled_records_are_refused(labels):
    given_labels = sum(f is not None for f in labels)
    with pytest.raises(LovecError, match=f"'ann' has {given_labels} labels for {len(labels)} sentences"):
        with_rejected(record("ann", *labels), 0)
