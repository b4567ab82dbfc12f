"""Token sequences as a trie: what several sequences begin with is stored, and computed, once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Ids = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Run:
    """Tokens of a trie each of which continues the one before it.

    Attributes:
        start: index of its first token.
        length: number of its tokens.
        parent: index of the first token of the run that it parts from; None where it begins a sequence.
        shared: number of the parent's tokens that come before it.
    """

    start: int
    length: int
    parent: int | None
    shared: int


@dataclass(frozen=True, slots=True)
class TrieTokens:
    """The L tokens of a trie in preorder: every subtree is in one piece, behind the token that it continues.

    Query q attends to key k exactly where ``k <= q < ends[k]``.

    Attributes:
        ids: token ids, [L].
        positions: number of tokens before each one in its sequences, [L].
        ends: index behind the last token that continues each one, [L].
        runs: the runs that make up the trie, in order.
        paths: for every sequence, the stretches that it consists of: index of the first token, and number of tokens.
    """

    ids: Ids
    positions: Ids
    ends: Ids
    runs: tuple[Run, ...]
    paths: tuple[tuple[tuple[int, int], ...], ...]

    def __len__(self) -> int:
        return len(self.ids)

    def indices(self, number: int, first: int = 0) -> Ids:
        """Return the indices of a sequence's tokens, from its token ``first`` on."""
        parts = []
        for start, length in self.paths[number]:
            if length > first:
                parts.append(np.arange(start + first, start + length))
            first = max(0, first - length)
        return np.concatenate(parts) if parts else np.zeros(0, np.int64)


@dataclass(frozen=True, slots=True)
class _Node:
    ids: Ids
    depth: int
    children: list[tuple[int, int]]  # index of a child, and how many tokens of this node come before it


class Trie:
    """A trie that grows by whole sequences.

    Attributes:
        size: number of its tokens.
    """

    def __init__(self) -> None:
        self.size = 0
        self._nodes = [_Node(np.zeros(0, np.int64), 0, [])]  # the root, which has no tokens
        self._next: dict[tuple[int, int, int], int] = {}  # child by node, number of its tokens, and next token
        self._paths: list[list[tuple[int, int]]] = []  # of every sequence: nodes, and the number of tokens of each

    def add(self, ids: Sequence[int], after: tuple[int, int] | None = None) -> int:
        """Add a sequence, and return its number.

        Args:
            ids: its tokens.
            after: number of an earlier sequence and a number of tokens. The new sequence begins with that many tokens
                of the earlier one, and ``ids`` follow. None is an empty beginning.
        """
        path = [(0, 0)] if after is None else self._beginning(*after)
        rest = np.asarray(ids, dtype=np.int64)
        while True:
            node, shared = path[-1]
            more = _common(self._nodes[node].ids[shared:], rest)
            shared, rest = shared + more, rest[more:]
            path[-1] = (node, shared)
            if not len(rest):
                break
            place = (node, shared, int(rest[0]))
            if place not in self._next:
                self._next[place] = len(self._nodes)
                self._nodes[node].children.append((len(self._nodes), shared))
                self._nodes.append(_Node(rest, self._nodes[node].depth + shared, []))
                self.size += len(rest)
            path.append((self._next[place], 0))
        self._paths.append(path)
        return len(self._paths) - 1

    def tokens(self) -> TrieTokens:
        """Return the tokens in preorder."""
        lengths = [len(node.ids) for node in self._nodes]
        sizes = list(lengths)  # of the subtrees
        for number in reversed(range(len(self._nodes))):  # children have higher numbers
            sizes[number] += sum(sizes[child] for child, _ in self._nodes[number].children)
        ids, positions, ends = (np.empty(self.size, np.int64) for _ in range(3))
        starts = [0] * len(self._nodes)
        runs = []
        for number, node in enumerate(self._nodes):
            start = starts[number]
            behind = start + lengths[number]
            ids[start:behind], positions[start:behind] = node.ids, range(node.depth, node.depth + len(node.ids))
            ends[start:behind] = behind
            # Children that come after the most tokens come first: so every subtree is in one piece.
            for child, shared in sorted(node.children, key=lambda child: -child[1]):
                starts[child] = behind
                runs.append(Run(behind, lengths[child], start if number else None, shared))
                behind += sizes[child]
                ends[start : start + shared] = behind
        runs.sort(key=lambda run: run.start)
        paths = tuple(tuple((starts[node], n) for node, n in path) for path in self._paths)
        return TrieTokens(ids, positions, ends, tuple(runs), paths)

    def _beginning(self, number: int, length: int) -> list[tuple[int, int]]:
        """Return the path of the first ``length`` tokens of a sequence."""
        path = [(0, 0)]
        for node, count in self._paths[number]:
            if length > 0:
                path.append((node, min(count, length)))
            length -= count
        return path


def _common(a: Ids, b: Ids) -> int:
    """Return the length of the longest common beginning."""
    n = min(len(a), len(b))
    different = np.flatnonzero(a[:n] != b[:n])
    return int(different[0]) if len(different) else n
