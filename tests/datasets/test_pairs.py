"""Algorithm 1: wrong scores are uniform over the ten others, and a function of seed and id alone."""

import os
import subprocess
import sys
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chisquare

from lovec.datasets.pairs import usable, with_rejected
from lovec.types import LovecError, Record, Sentence, to_rating


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


def test_seed_and_id_matter():
    draws = {with_rejected(record(name, *[0.5] * 8), seed).rejected for name in "abc" for seed in range(5)}
    assert len(draws) == 15


@pytest.mark.parametrize("labels", [(), (None,), (0.5, None)])
def test_unlabelled_records_are_refused(labels):
    given_labels = sum(f is not None for f in labels)
    with pytest.raises(LovecError, match=f"'ann' has {given_labels} labels for {len(labels)} sentences"):
        with_rejected(record("ann", *labels), 0)


def test_usable():
    rows = [record("a", 0.1), record("b"), record("c", 0.1, None), record("d", 1.0, 0.0)]
    kept, dropped = usable(iter(rows))
    assert [r.id for r in kept] == ["a", "d"]
    assert dropped == 2
