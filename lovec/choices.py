"""Attention with explicit masks, and choices that are scored together as the branches of a tree.

The engine scores choices behind cached contexts; training scores them behind every tag of a passage, with gradient.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from lovec.types import LovecError

_FLOATS = 1 << 24
"""Logits that are turned to float32 at once."""


@dataclass(frozen=True, slots=True)
class AttentionKind:
    """What masks a model wants.

    Attributes:
        eager: additive masks (eager attention) instead of boolean ones (sdpa).
        window: sliding window of some or all layers, in tokens; None where every layer sees everything.
        mixed: whether full and sliding layers alternate (then the model takes one mask for each kind).
    """

    eager: bool
    window: int | None
    mixed: bool

    @classmethod
    def of(cls, config: Any) -> AttentionKind:
        """Read a transformers config.

        Raises:
            LovecError: the attention cannot be computed exactly with explicit masks.
        """
        config = config.get_text_config()
        name, implementation = config.model_type, config._attn_implementation
        if implementation not in ("sdpa", "eager"):
            raise LovecError(
                f"the {name} model has attn_implementation={implementation!r}, expected sdpa or eager; load it with one"
            )
        if implementation == "sdpa" and getattr(config, "attn_logit_softcapping", None):
            raise LovecError(
                f"attn_implementation='sdpa' leaves out the soft capping of {name} models without a word; "
                "load the model with attn_implementation='eager'"
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
        return cls(eager=implementation == "eager", window=window, mixed=window is not None and bool(layers))

    def masks(self, seen: Tensor, asks: Tensor, keys: Tensor, dtype: torch.dtype) -> Any:
        """What the model takes as its attention mask.

        Args:
            seen: which keys each query may see, [B, Q, K] bool.
            asks: position of every query, [B, Q].
            keys: position of every key, [B, K].
            dtype: of the model.
        """
        full = self._mask(seen, dtype)
        if self.window is None:
            return full
        sliding = self._mask(seen & (keys[:, None, :] > asks[:, :, None] - self.window), dtype)
        return {"full_attention": full, "sliding_attention": sliding} if self.mixed else sliding

    def _mask(self, seen: Tensor, dtype: torch.dtype) -> Tensor:
        """[B, 1, Q, K]: boolean for sdpa, additive for eager attention."""
        seen = seen[:, None]
        if not self.eager:
            return seen
        return torch.zeros(seen.shape, dtype=dtype, device=seen.device).masked_fill_(~seen, torch.finfo(dtype).min)


@dataclass(frozen=True, slots=True)
class Beside:
    """Branches that run beside N sequences of L tokens, S marks each with n nodes.

    Attributes:
        ids: [N, S n] tokens of the branches.
        positions: [N, L + S n] positions of the sequence's tokens and of the branches'.
        seen: [N, L + S n, L + S n] bool, which keys each query may see.
        ends: [N, S, 1 + n] index of the token before the mark, and of its nodes.
    """

    ids: Tensor
    positions: Tensor
    seen: Tensor
    ends: Tensor


class ChoiceTree:
    """Choices (token lists) as a tree that shares their first tokens.

    Node 0 is the last token of the context; every proper prefix of a choice is a node after it. One forward pass over
    context and nodes gives the log-probability of every token of every choice.

    Args:
        choices: token ids of each choice, at least one each. They may share prefixes and differ in length.

    Attributes:
        ids: token of each node after node 0, parents first.
        depths: how many tokens each lies behind the context's end (1 = the first).
        sees: [nodes, nodes] bool, True where the row's node comes after or is the column's node.
        asked: [1 + nodes, K] the tokens that choices have after each node, node 0 first; padded with 0.
        nodes: for every node, node 0 first, what lies behind the context's end, and the tokens asked for there.

    Raises:
        LovecError: a choice is empty.
    """

    def __init__(self, choices: Sequence[Sequence[int]]) -> None:
        texts = [tuple(choice) for choice in choices]
        if not all(texts):
            raise LovecError("a choice to score has no tokens, expected at least one; leave it out")
        nodes: dict[tuple[int, ...], int] = {(): 0}
        asked: list[list[int]] = [[]]
        edges: dict[tuple[int, ...], tuple[int, int]] = {}
        for text in texts:
            for end in range(1, len(text) + 1):
                here = nodes[text[: end - 1]]
                if text[:end] not in edges:
                    edges[text[:end]] = (here, len(asked[here]))
                    asked[here].append(text[end - 1])
                if end < len(text) and text[:end] not in nodes:
                    nodes[text[:end]] = len(nodes)
                    asked.append([])
        prefixes = list(nodes)[1:]
        self.ids = [prefix[-1] for prefix in prefixes]
        self.depths = [len(prefix) for prefix in prefixes]
        self.sees = torch.tensor([[p[: len(q)] == q for q in prefixes] for p in prefixes], dtype=torch.bool)
        self.longest = max(map(len, texts), default=0)
        width = max(map(len, asked))
        self.asked = torch.tensor([tokens + [0] * (width - len(tokens)) for tokens in asked], dtype=torch.long)
        self.nodes = list(zip(nodes, map(tuple, asked), strict=True))
        none = len(asked) * width  # points at a zero that is appended to the edges
        flat = {text: node * width + place for text, (node, place) in edges.items()}
        paths = [[flat[text[:end]] for end in range(1, len(text) + 1)] for text in texts]
        self._paths = torch.tensor([path + [none] * (self.longest - len(path)) for path in paths], dtype=torch.long)

    def beside(self, before: Tensor, length: int) -> Beside:
        """Put a copy of the tree at marks of sequences; a branch sees what lies before its mark, nobody sees it.

        Args:
            before: index of the token that each mark follows, [N, S].
            length: tokens of the sequences, padding included.
        """
        (n, most), nodes, device = before.shape, len(self.ids), before.device
        along = torch.arange(length, device=device).expand(n, -1)
        behind = before[:, :, None] + torch.tensor(self.depths, dtype=torch.long, device=device)
        whole = length + most * nodes
        seen = torch.zeros(n, whole, whole, dtype=torch.bool, device=device)
        seen[:, :length, :length] = torch.ones(length, length, dtype=torch.bool, device=device).tril()
        seen[:, length:, :length] = (along[:, None, :] <= before[:, :, None]).repeat_interleave(nodes, dim=1)
        seen[:, length:, length:] = torch.block_diag(*[self.sees.to(device)] * most)  # type: ignore[no-untyped-call]
        columns = torch.arange(length, whole, device=device).view(1, most, nodes).expand(n, -1, -1)
        return Beside(
            ids=torch.tensor(self.ids, dtype=torch.long, device=device).repeat(n, most),
            positions=torch.cat([along, behind.flatten(1)], dim=1),
            seen=seen,
            ends=torch.cat([before[:, :, None], columns], dim=2),
        )

    def sums(self, edges: Tensor) -> Tensor:
        """Log-probability of every whole choice from those of its tokens: [B, choices], float64.

        Args:
            edges: log-probability of ``asked`` after node 0 and every other node, [B, 1 + nodes, K].
        """
        return F.pad(edges.double().flatten(1), (0, 1))[:, self._paths.to(edges.device)].sum(-1)

    def logps(self, logits: Tensor) -> Tensor:
        """Log-probability of every whole choice: [B, choices] float64, sums of float32 log-softmax values.

        Args:
            logits: [B, 1 + nodes, vocabulary].
        """
        rows = max(1, _FLOATS // (logits.shape[1] * logits.shape[2]))
        asked = self.asked.to(logits.device)
        sums = []
        for part in torch.split(logits, rows):
            edges = part.gather(-1, asked.expand(len(part), -1, -1)).float() - part.float().logsumexp(-1, keepdim=True)
            sums.append(self.sums(edges))
        return torch.cat(sums)


NO_CHOICES = ChoiceTree([])
