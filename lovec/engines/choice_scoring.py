"""Scoring whole choices with an engine that returns log-probabilities of single tokens only.

The choices form a tree (``ChoiceTree``). An engine is asked about its nodes: given the context and the tokens up to a
node as a prompt, how probable are the tokens that choices have next? With a prefix cache such a query costs its last
tokens only. Two strategies save queries, and return the same numbers, the exact log-probability of every whole choice:

- ``score_by_paths``: about one query per choice; needs the log-probabilities of prompt tokens.
- ``score_by_continuations``: about one query per score; needs the log-probabilities of given tokens at every step of a
  greedy continuation. A model that knows the tags closes them by itself, so the continuation of a prompt that ends in
  a score passes all nodes after that score.

Nodes that were not passed on the way are queried one by one.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TypeAlias

import torch

from lovec.encoding.choices import ChoiceTree
from lovec.encoding.written import Steps
from lovec.types import MOST_WATCHED

_NODES_PER_QUERY = 1.5  # a round of continuations that passes fewer nodes per query is followed by single steps

Node: TypeAlias = tuple[int, ...]
"""A node of the tree: the token ids between the end of the context and the node, the first tokens of a choice."""


@dataclass(frozen=True, slots=True)
class TokenQuery:
    """How probable are a few tokens after a prompt?

    Attributes:
        context: token ids of the context.
        node: token ids after the context; both together are the prompt.
        tokens: distinct ids whose log-probabilities are asked for.
        with_path: whether the log-probabilities of the tokens of ``node`` are asked for as well.
        steps: number of tokens to generate greedily; the log-probabilities of ``tokens`` are asked for at every step.
    """

    context: tuple[int, ...]
    node: Node
    tokens: tuple[int, ...]
    with_path: bool = False
    steps: int = 1

    @property
    def prompt(self) -> tuple[int, ...]:
        """Token ids of the whole prompt."""
        return self.context + self.node


PathScorer: TypeAlias = Callable[[Sequence[TokenQuery]], Sequence[tuple[Sequence[float | None], Sequence[float]]]]
"""Answers queries with two lists of natural log-probabilities, under the distribution of the model itself (nothing
masked, temperature 1): those of the tokens of ``node``, and those of ``tokens``. The first list is empty if they were
not asked for or the engine cannot say; a None in it is unknown (the state of the token before came from the engine's
cache, which holds no log-probabilities)."""

Continuer: TypeAlias = Callable[[Sequence[TokenQuery]], Awaitable[Sequence[Sequence[tuple[int, Sequence[float]]]]]]
"""Answers queries with the steps of a greedy continuation, at least one and at most ``steps``: the generated token, and
the log-probabilities of ``tokens`` before it, as for ``PathScorer``."""


def score_by_paths(contexts: Sequence[tuple[int, ...]], tree: ChoiceTree, ask: PathScorer) -> list[list[float]]:
    """Score choices with one query for every leaf of the tree, whose prompt passes the nodes above it.

    Nodes that have an edge on none of these paths get a query of their own. What the first answers leave unknown is
    queried node by node. Equal contexts are queried once.

    Args:
        contexts: token ids of each context, at least one.
        tree: the choices.
        ask: called twice at most.

    Returns:
        Log-probability of every whole choice after every context: ``[contexts][choices]``.
    """
    edges = _TreeLogps(contexts, tree)
    inner = {node[:-1] for node in edges.nodes if node}
    leaves = {node for node in edges.nodes if node not in inner}
    passed = {node[: depth + 1] for node in leaves for depth in range(len(node))}
    queries = [
        (row, TokenQuery(context, node, tokens, with_path=node in leaves))
        for row, context in enumerate(edges.contexts)
        for node, tokens in edges.nodes.items()
        if tokens and (node in leaves or any((*node, token) not in passed for token in tokens))
    ]
    while queries:
        answers = ask([query for _, query in queries])
        for (row, query), (path, logps) in zip(queries, answers, strict=True):
            edges.learn(row, query.node, dict(zip(query.tokens, logps, strict=True)))
            for depth, logp in enumerate(path):
                if logp is not None:
                    edges.learn(row, query.node[:depth], {query.node[depth]: logp})
        queries = [(row, TokenQuery(edges.contexts[row], node, edges.nodes[node])) for row, node in edges.unknown()]
    return edges.scores()


async def score_by_continuations(
    contexts: Sequence[tuple[int, ...]], tree: ChoiceTree, generate: Continuer, written: Sequence[Steps] = ()
) -> list[list[float]]:
    """Score choices with queries that let the engine continue the context and the scores greedily.

    Nodes that no continuation passes get a query with a single step, so that the result does not depend on what the
    model writes. See ``score_by_paths`` for the contexts, the tree and the result; ``generate`` is called in rounds.
    What the model wrote behind each context, if it is given, counts as a first continuation.
    """
    edges = _TreeLogps(contexts, tree)
    for context, passed in zip(contexts, written, strict=False):
        edges.follow(edges.contexts.index(context), (), passed)
    tokens = tuple(sorted({token for tokens in edges.nodes.values() for token in tokens}))
    several_steps = len(tokens) <= MOST_WATCHED
    while unknown := edges.unknown():
        queries = []
        for row, group in groupby(unknown, key=lambda place: place[0]):
            nodes = dict.fromkeys(node for _, node in group)  # in the order of the tree, parents first
            for node in nodes:
                if not several_steps:
                    queries.append((row, TokenQuery(edges.contexts[row], node, edges.nodes[node])))
                elif not any(node[:depth] in nodes for depth in range(len(node))):  # an ancestor's may pass here
                    depth = max(len(other) for other in nodes if other[: len(node)] == node)
                    query = TokenQuery(edges.contexts[row], node, tokens, steps=depth - len(node) + 1)
                    queries.append((row, query))
        for (row, query), steps in zip(queries, await generate([query for _, query in queries]), strict=True):
            by_id = [(token, dict(zip(query.tokens, logps, strict=True))) for token, logps in steps]
            edges.follow(row, query.node, by_id)
        newly_known = len(unknown) - len(edges.unknown())
        several_steps = several_steps and newly_known >= _NODES_PER_QUERY * len(queries)
    return edges.scores()


class _TreeLogps:
    """The known log-probabilities of the edges of a tree, after every distinct context.

    Attributes:
        contexts: the distinct contexts, sorted; a row is an index into them.
        nodes: for every node of the tree, parents first, the tokens that choices have next.
    """

    def __init__(self, contexts: Sequence[tuple[int, ...]], tree: ChoiceTree) -> None:
        self.contexts = sorted(set(contexts))
        self.nodes = dict(tree.nodes)
        self._given = contexts
        self._tree = tree
        self._logps: list[dict[tuple[Node, int], float]] = [{} for _ in self.contexts]  # by row; (node, next token)

    def learn(self, row: int, node: Node, logps: Mapping[int, float]) -> None:
        """Store the log-probabilities of the next tokens of a node; other tokens are ignored."""
        self._logps[row].update({(node, token): logps[token] for token in self.nodes[node] if token in logps})

    def follow(self, row: int, node: Node, steps: Steps) -> None:
        """Store the log-probabilities at the nodes that a continuation of a node passes."""
        for token, logps in steps:
            if node not in self.nodes:
                break
            self.learn(row, node, logps)
            node = (*node, token)

    def unknown(self) -> list[tuple[int, Node]]:
        """Return the row and the node wherever the log-probability of an edge is not known yet."""
        return [
            (row, node)
            for row, logps in enumerate(self._logps)
            for node, tokens in self.nodes.items()
            if any((node, token) not in logps for token in tokens)
        ]

    def scores(self) -> list[list[float]]:
        """Return the sums along the choices for every context that was given, in its order."""
        width = max(map(len, self.nodes.values()), default=0)
        if not self.contexts or not width:
            return [[] for _ in self._given]
        edges = [
            [[logps[node, t] for t in tokens] + [0.0] * (width - len(tokens)) for node, tokens in self.nodes.items()]
            for logps in self._logps
        ]
        sums = self._tree.sums(torch.tensor(edges, dtype=torch.float64)).tolist()
        scores = dict(zip(self.contexts, sums, strict=True))
        return [list(scores[context]) for context in self._given]
