"""Whole choices scored by an engine that tells of a few tokens at every step of a text it writes itself.

A model that knows its tags writes them as it should, so that one walk through the tree of the choices, from a prompt
that ends in one score, shows all nodes behind that score. Where it strays the rest is asked node by node.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import torch

from lovec.choices import ChoiceTree

_WORTH = 1.5  # nodes a walk has to show on average, or the next ones have one step
_MOST = 128  # tokens that vLLM tells of at a step


@dataclass(frozen=True, slots=True)
class Walk:
    """A text to be continued greedily.

    Attributes:
        context: token ids of the context.
        node: token ids behind it, the beginning of a choice; together they are the prompt.
        tokens: distinct ids whose log-probability is asked for at every step.
        steps: how many tokens to write.
    """

    context: tuple[int, ...]
    node: tuple[int, ...]
    tokens: tuple[int, ...]
    steps: int

    @property
    def prompt(self) -> tuple[int, ...]:
        """Ids of the whole prompt."""
        return self.context + self.node


Step: TypeAlias = tuple[int, Sequence[float]]
"""A token that was written, and before it the natural log-probabilities of the tokens asked for, under the model's own
distribution, nothing masked and temperature 1."""


def score_by_walks(
    contexts: Sequence[tuple[int, ...]],
    tree: ChoiceTree,
    walk: Callable[[Sequence[Walk]], Sequence[Sequence[Step]]],
) -> list[list[float]]:
    """Exact log-probability of every whole choice after every context: [contexts][choices].

    Equal contexts are asked about once. The contexts themselves go first, so that an engine with a prefix cache has
    them when the branches come.

    Args:
        contexts: token ids, at least one each.
        tree: the choices.
        walk: called in rounds; answers in the order of the walks, one step or more each.
    """
    unique = sorted(set(contexts))
    nodes = {node: (at, tokens) for at, (node, tokens) in enumerate(tree.nodes)}
    union = tuple(sorted({token for _, tokens in tree.nodes for token in tokens}))
    if not unique or not union:
        return [[] for _ in contexts]
    edges = torch.zeros(len(unique), *tree.asked.shape, dtype=torch.float64)
    missing = [dict.fromkeys(nodes) for _ in unique]  # in the order of the tree, parents first
    straight = len(union) <= _MOST
    while any(missing):
        walks, rows = [], []
        for row, left in enumerate(missing):
            for node in left:
                if not straight:
                    walks.append(Walk(unique[row], node, nodes[node][1], 1))
                elif not any(node[:depth] in left for depth in range(len(node))):  # an ancestor's walk may come by
                    steps = max(len(n) - len(node) for n in left if n[: len(node)] == node) + 1
                    walks.append(Walk(unique[row], node, union, steps))
                else:
                    continue
                rows.append(row)
        before = sum(map(len, missing))
        for row, asked, steps_made in zip(rows, walks, walk(walks), strict=True):
            node = asked.node
            for token, logps in steps_made:
                if node not in nodes:
                    break
                at, tokens = nodes[node]
                told = dict(zip(asked.tokens, logps, strict=True))
                edges[row, at, : len(tokens)] = torch.tensor([told[t] for t in tokens], dtype=torch.float64)
                missing[row].pop(node, None)
                node = (*node, token)
        straight = straight and before - sum(map(len, missing)) >= _WORTH * len(walks)
    scores = dict(zip(unique, tree.sums(edges).tolist(), strict=True))
    return [list(scores[context]) for context in contexts]
