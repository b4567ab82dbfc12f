"""The trie: every beginning stands once, in preorder, and paths lead back to the sequences."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from lovec.tries import Trie

IDS = st.lists(st.integers(0, 2), max_size=7)
"""Few ids, so that sequences share their beginnings."""


@st.composite
def grown(draw: st.DrawFn) -> tuple[Trie, list[list[int]]]:
    """A trie of sequences, some of which follow a beginning of an earlier one; and the whole sequences."""
    trie, whole = Trie(), []
    for ids in draw(st.lists(IDS, min_size=1, max_size=6)):
        if whole and draw(st.booleans()):
            number = draw(st.integers(0, len(whole) - 1))
            length = draw(st.integers(0, len(whole[number])))
            assert trie.add(ids, (number, length)) == len(whole)
            whole.append(whole[number][:length] + ids)
        else:
            assert trie.add(ids) == len(whole)
            whole.append(ids)
    return trie, whole


@given(grown())
def test_every_beginning_stands_once(made):
    trie, whole = made
    tokens = trie.tokens()
    beginnings = {tuple(ids[: n + 1]) for ids in whole for n in range(len(ids))}
    assert len(tokens) == trie.size == len(beginnings)
    at = {}
    for number, ids in enumerate(whole):
        indices = tokens.indices(number)
        assert tokens.ids[indices].tolist() == ids
        assert tokens.positions[indices].tolist() == list(range(len(ids)))
        for n, index in enumerate(indices.tolist()):
            assert at.setdefault(index, tuple(ids[: n + 1])) == tuple(ids[: n + 1])
        for first in range(len(ids) + 2):
            assert tokens.indices(number, first).tolist() == indices[first:].tolist()
    for query, key in np.ndindex(len(tokens), len(tokens)):
        sees = at[query][: len(at[key])] == at[key]
        assert (key <= query < tokens.ends[key]) == sees


@given(grown())
def test_runs_are_the_whole_trie_and_know_what_they_part_from(made):
    tokens = made[0].tokens()
    assert [run.start for run in tokens.runs] == [0, *np.cumsum([run.length for run in tokens.runs])][
        : len(tokens.runs)
    ]
    assert sum(run.length for run in tokens.runs) == len(tokens)
    lengths = {run.start: run.length for run in tokens.runs}
    for run in tokens.runs:
        assert tokens.positions[run.start : run.start + run.length].tolist() == list(
            range(tokens.positions[run.start], tokens.positions[run.start] + run.length)
        )
        if run.parent is None:
            assert run.shared == 0 == tokens.positions[run.start]
        else:
            assert 1 <= run.shared <= lengths[run.parent]
            assert tokens.positions[run.start] == tokens.positions[run.parent] + run.shared
            assert tokens.ends[run.parent + run.shared - 1] > run.start


def test_equal_sequences_cost_nothing():
    trie = Trie()
    for ids in ([1, 2, 3, 4], [1, 2, 3, 4], [1, 2], [1, 2, 3, 4, 5]):
        trie.add(ids)
    assert trie.size == 5
    assert Trie().tokens().runs == ()
