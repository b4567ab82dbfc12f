"""Whole choices scored by an engine that can only say how probable single tokens are.

The choices make a tree. A node of it is a question: the context and the node's tokens as a prompt, and the
log-probabilities of the few tokens that choices have next. With a prefix cache a question costs its last tokens only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import torch

from lovec.choices import ChoiceTree


@dataclass(frozen=True, slots=True)
class Question:
    """How probable each of a few tokens is as the next one.

    Attributes:
        context: token ids of the context.
        node: token ids behind it, the beginning of a choice; together they are the prompt.
        tokens: distinct ids whose log-probability is asked for.
        along: whether the log-probability of every token of ``node`` is asked for as well.
    """

    context: tuple[int, ...]
    node: tuple[int, ...]
    tokens: tuple[int, ...]
    along: bool = False

    @property
    def prompt(self) -> tuple[int, ...]:
        """Ids of the whole prompt."""
        return self.context + self.node


Ask: TypeAlias = Callable[[Sequence[Question]], Sequence[Sequence[float]]]
"""Answers questions: natural log-probabilities of ``tokens`` under the model's own distribution, nothing masked and
temperature 1."""

AskAlong: TypeAlias = Callable[[Sequence[Question]], Sequence[tuple[Sequence[float | None], Sequence[float]]]]
"""The same, and before it the log-probability of every token of ``node`` where that was asked for; None where the
engine cannot say (it may have found the state of a token in its cache, which holds no log-probabilities)."""


def score_by_tokens(contexts: Sequence[tuple[int, ...]], tree: ChoiceTree, ask: Ask) -> list[list[float]]:
    """Exact log-probability of every whole choice after every context: [contexts][choices].

    One question a node. Equal contexts are asked about once. The contexts themselves go first, so that an engine with
    a prefix cache has them when the branches come.

    Args:
        contexts: token ids, at least one each.
        tree: the choices.
        ask: called twice at most; answers in the order of the questions.
    """
    edges = _Edges(contexts, tree)
    edges.ask_missing(ask, only_roots=True)
    edges.ask_missing(ask)
    return edges.scores()


def score_by_paths(contexts: Sequence[tuple[int, ...]], tree: ChoiceTree, ask: AskAlong) -> list[list[float]]:
    """The same with fewer questions: one for every choice, which also tells of the tokens along its way.

    Args:
        contexts: token ids, at least one each.
        tree: the choices.
        ask: called twice at most; what the first answers left open is asked node by node.
    """
    edges = _Edges(contexts, tree)
    edges.ask_along(ask)
    edges.ask_missing(lambda questions: [tokens for _, tokens in ask(questions)])
    return edges.scores()


class _Edges:
    """What is known of the tree's edges behind every distinct context: log-probabilities [contexts, nodes, tokens]."""

    def __init__(self, contexts: Sequence[tuple[int, ...]], tree: ChoiceTree) -> None:
        self.contexts = contexts
        self.tree = tree
        self.unique = sorted(set(contexts))
        self.nodes = {node: (at, tokens) for at, (node, tokens) in enumerate(tree.nodes)}
        self.known: dict[tuple[int, int, int], float] = {}  # (context, node, place of the token) -> log-probability

    def ask_missing(self, ask: Ask, only_roots: bool = False) -> None:
        """Ask at every node that has an unknown edge."""
        places = [
            (row, at)
            for row in range(len(self.unique))
            for at, (_, tokens) in enumerate(self.tree.nodes[:1] if only_roots else self.tree.nodes)
            if any((row, at, place) not in self.known for place in range(len(tokens)))
        ]
        if not places:
            return
        for (row, at), logps in zip(places, ask([self._question(row, at) for row, at in places]), strict=True):
            self._learn(row, at, logps)

    def ask_along(self, ask: AskAlong) -> None:
        """Ask at every last node, for the way there as well, and at every node with an edge on no such way."""
        inner = {node[:-1] for node in self.nodes if node}
        ends = [node for node in self.nodes if node not in inner]
        on_a_way = {node[: depth + 1] for node in ends for depth in range(len(node))}
        asked = [
            (at, node in ends)
            for node, (at, tokens) in self.nodes.items()
            if node in ends or any((*node, token) not in on_a_way for token in tokens)
        ]
        places = [(row, at, along) for row in range(len(self.unique)) for at, along in asked]
        if not places or not self.tree.longest:
            return
        answers = ask([self._question(row, at, along) for row, at, along in places])
        for (row, at, along), (way, logps) in zip(places, answers, strict=True):
            self._learn(row, at, logps)
            node = self.tree.nodes[at][0]
            for depth, logp in enumerate(way if along else ()):
                if logp is not None:
                    before, tokens = self.nodes[node[:depth]]
                    self.known[row, before, tokens.index(node[depth])] = logp

    def scores(self) -> list[list[float]]:
        """Sums along the choices, in the order of the contexts."""
        if not self.known:
            return [[] for _ in self.contexts]
        edges = torch.zeros(len(self.unique), *self.tree.asked.shape, dtype=torch.float64)
        edges[tuple(torch.tensor(list(self.known)).T)] = torch.tensor(list(self.known.values()), dtype=torch.float64)
        scores = dict(zip(self.unique, self.tree.sums(edges).tolist(), strict=True))
        return [list(scores[context]) for context in self.contexts]

    def _question(self, row: int, at: int, along: bool = False) -> Question:
        return Question(self.unique[row], *self.tree.nodes[at], along=along)

    def _learn(self, row: int, at: int, logps: Sequence[float]) -> None:
        self.known.update({(row, at, place): logp for place, logp in enumerate(logps)})
