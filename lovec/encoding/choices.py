"""Attention with explicit masks, and choices that are scored together as the branches of a tree.

Engines score choices after cached contexts. Training scores them at every tag of an answer as branches of a trie, see
``lovec.tries``.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from lovec.tries import TRIE_ATTENTION
from lovec.types import LovecError


def rows_at_once(logits: Tensor) -> int:
    """Return how many rows of logits [..., vocabulary] to turn into probabilities at once, at least 1.

    What a CPU computes at once should fit its cache: larger results are new pages of memory each time, which cost more
    than the arithmetic. Other devices take more, so that the number of kernels stays small.
    """
    most = 1 << 18 if logits.device.type == "cpu" else 1 << 24
    return max(1, most // logits.shape[1:].numel())


def context_length(config: Any) -> int | None:
    """Return the most tokens that a transformers model reads, from its config; None where that names no limit.

    A model with LongRoPE takes other frequencies for all rows of a batch as soon as one of them is longer than in its
    first training. That length is its limit here, within which a row does not depend on its neighbours.
    """
    config = config.get_text_config()
    length = getattr(config, "max_position_embeddings", None)
    rope = getattr(config, "rope_parameters", None) or {}
    for part in (rope, *(kind for kind in rope.values() if isinstance(kind, dict))):  # one for each kind of layer
        if part.get("rope_type") == "longrope":
            length = min(int(part["original_max_position_embeddings"]), length or sys.maxsize)
    return int(length) if length else None


@dataclass(frozen=True, slots=True)
class AttentionKind:
    """Which attention masks a model takes.

    Attributes:
        eager: additive masks (eager attention) instead of boolean ones (sdpa).
        window: sliding window of some or all layers, in tokens; None where every layer attends to all earlier tokens.
        mixed: whether full and sliding layers alternate; such a model takes one mask of each kind.
        packs: whether it takes tokens of different rows one after the other, see ``lovec.tries.places``.
    """

    eager: bool
    window: int | None
    mixed: bool
    packs: bool = False

    @classmethod
    def of(cls, config: Any) -> AttentionKind:
        """Read a transformers config.

        Raises:
            LovecError: the attention cannot be computed exactly with explicit masks.
        """
        config = config.get_text_config()
        name, implementation = config.model_type, config._attn_implementation
        if implementation not in ("sdpa", "eager", TRIE_ATTENTION):
            raise LovecError(
                f"the {name} model has attn_implementation={implementation!r}, expected sdpa or eager; load it with one"
            )
        if implementation != "eager" and getattr(config, "attn_logit_softcapping", None):
            raise LovecError(
                f"attn_implementation='sdpa' silently leaves out the soft capping of {name} models; load the model "
                "with attn_implementation='eager'"
            )
        layers = set(getattr(config, "layer_types", None) or ())
        if unknown := layers - {"full_attention", "sliding_attention"}:
            raise LovecError(
                f"the {name} model has layers of the kind {sorted(unknown)}, expected full or sliding attention; "
                "use another model family or engine"
            )
        window = getattr(config, "sliding_window", None)
        if layers and "sliding_attention" not in layers:
            window = None
        mixed = window is not None and bool(layers)
        return cls(implementation == "eager", window, mixed, packs=implementation == TRIE_ATTENTION)

    def masks(self, visible: Tensor, query_positions: Tensor, key_positions: Tensor, dtype: torch.dtype) -> Any:
        """Build what the model takes as its ``attention_mask``.

        Args:
            visible: which keys each query may attend to, [B, Q, K] bool.
            query_positions: position of every query, [B, Q].
            key_positions: position of every key, [B, K].
            dtype: dtype of the model.

        Returns:
            A mask [B, 1, Q, K], or a dictionary of two for a model that mixes full and sliding layers.
        """
        full = self._mask(visible, dtype)
        if self.window is None:
            return full
        in_window = key_positions[:, None, :] > query_positions[:, :, None] - self.window
        sliding = self._mask(visible & in_window, dtype)
        return {"full_attention": full, "sliding_attention": sliding} if self.mixed else sliding

    def _mask(self, visible: Tensor, dtype: torch.dtype) -> Tensor:
        """Return [B, 1, Q, K]: boolean for sdpa, additive for eager attention."""
        visible = visible[:, None]
        if not self.eager:
            return visible
        mask = torch.zeros(visible.shape, dtype=dtype, device=visible.device)
        return mask.masked_fill_(~visible, torch.finfo(dtype).min)


class ChoiceTree:
    """Choices (lists of token ids) as a tree, in which they share their common first tokens.

    Node 0 is the last token of the context; every proper prefix of a choice is a further node. One forward pass over
    context and nodes gives the log-probability of every token of every choice.

    Args:
        choices: token ids of each choice, at least one each. They may share prefixes and differ in length.

    Attributes:
        ids: token id of each node but node 0, parents before their children.
        depths: how many tokens each of these nodes lies after the end of the context (1 is the first).
        ancestors: [nodes, nodes] bool without node 0, True where the column's node is the row's node or an ancestor
            of it.
        next_tokens: [1 + nodes, K] the tokens with which choices continue after each node, node 0 first; padded with 0.
        nodes: for every node, node 0 first, its tokens after the end of the context, and the tokens that follow it.
        longest: number of tokens of the longest choice; 0 without choices.
        shared: how many of the first nodes, without node 0, all choices begin with and go on after.

    Raises:
        LovecError: a choice is empty.
    """

    def __init__(self, choices: Sequence[Sequence[int]]) -> None:
        texts = [tuple(choice) for choice in choices]
        if not all(texts):
            raise LovecError("a choice to score has no tokens, expected at least one; leave it out")
        nodes: dict[tuple[int, ...], int] = {(): 0}
        continuations: list[list[int]] = [[]]
        edges: dict[tuple[int, ...], tuple[int, int]] = {}
        for text in texts:
            for end in range(1, len(text) + 1):
                parent = nodes[text[: end - 1]]
                if text[:end] not in edges:
                    edges[text[:end]] = (parent, len(continuations[parent]))
                    continuations[parent].append(text[end - 1])
                if end < len(text) and text[:end] not in nodes:
                    nodes[text[:end]] = len(nodes)
                    continuations.append([])
        prefixes = list(nodes)[1:]
        self.ancestors = torch.eye(len(prefixes), dtype=torch.bool)
        for at, prefix in enumerate(prefixes):  # each follows its parent, and has the ancestors of that
            if parent := nodes[prefix[:-1]]:
                self.ancestors[at, :parent] = self.ancestors[parent - 1, :parent]
        self.ids = [prefix[-1] for prefix in prefixes]
        self.depths = [len(prefix) for prefix in prefixes]
        self.longest = max(map(len, texts), default=0)
        width = max(map(len, continuations))
        padded = [tokens + [0] * (width - len(tokens)) for tokens in continuations]
        self.shared = next((n for n, tokens in enumerate(continuations) if len(tokens) != 1), len(prefixes))
        self.next_tokens = torch.tensor(padded, dtype=torch.long)
        self.nodes = list(zip(nodes, map(tuple, continuations), strict=True))
        padding = len(continuations) * width  # index of a zero that ``sums`` appends to the edges
        flat = {text: node * width + place for text, (node, place) in edges.items()}
        paths = [[flat[text[:end]] for end in range(1, len(text) + 1)] for text in texts]
        self._paths = torch.tensor([path + [padding] * (self.longest - len(path)) for path in paths], dtype=torch.long)

    def sums(self, edges: Tensor) -> Tensor:
        """Compute the log-probability of every whole choice from those of its tokens.

        Args:
            edges: log-probability of ``next_tokens`` after every node, node 0 first, [B, 1 + nodes, K].

        Returns:
            [B, choices], float64.
        """
        return F.pad(edges.double().flatten(1), (0, 1))[:, self._paths.to(edges.device)].sum(-1)

    def logps(self, logits: Tensor) -> Tensor:
        """Compute the log-probability of every whole choice from logits.

        Args:
            logits: of every node, node 0 first, [B, 1 + nodes, vocabulary].

        Returns:
            [B, choices] float64, sums of float32 log-softmax values.
        """
        tokens = self.next_tokens.to(logits.device)
        sums = []
        for part in torch.split(logits, rows_at_once(logits)):
            edges = part.gather(-1, tokens.expand(len(part), -1, -1)).float() - part.float().logsumexp(-1, keepdim=True)
            sums.append(self.sums(edges))
        return torch.cat(sums)


NO_CHOICES = ChoiceTree([])


def choice_tree(choices: Sequence[Sequence[int]]) -> ChoiceTree:
    """Return the tree of choices; that of choices which are scored again and again is built once.

    Args:
        choices: as for ``ChoiceTree``.

    Raises:
        LovecError: a choice is empty.
    """
    return _built(tuple(map(tuple, choices)))


@lru_cache(maxsize=8)
def _built(choices: tuple[tuple[int, ...], ...]) -> ChoiceTree:
    return ChoiceTree(choices)
