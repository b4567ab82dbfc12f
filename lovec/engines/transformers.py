"""The engine that runs the policy's own transformers model: no second copy, always the newest weights."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lovec.choices import NO_CHOICES, AttentionKind, ChoiceTree
from lovec.engines.common import checked_keys, checked_texts, room_behind, stream_key
from lovec.engines.kv import CachedRows
from lovec.types import Completion, LovecError, OnToken, Sampling

MIN_SHARED = 32
"""A prefix that several contexts share is computed once if it saves each of them at least this many tokens."""


class TransformersEngine:
    """Samples and scores with a transformers causal language model, adapters included.

    The model runs in eval mode and without gradients; training flags come back as they were. Results of a row do not
    depend on the other rows of its batch: masks are made from lengths, and every completion has its own random stream.

    Args:
        max_rows: rows that run together, and rows whose KV cache `score` keeps for the next call.

    Attributes:
        prefill_tokens: context tokens computed so far, by `generate` and `score`. Cached tokens, padding, sampled
            tokens and the tokens of choices are not counted.
        max_rows: as given. Calls of `score` that build on each other should hold no more contexts than this.
        shares_model: True.
    """

    shares_model = True

    def __init__(self, max_rows: int = 64) -> None:
        if max_rows < 1:
            raise LovecError(f"max_rows is {max_rows}, expected at least 1")
        self.max_rows = max_rows
        self.prefill_tokens = 0
        self._model: Any = None
        self._kind: AttentionKind | None = None
        self._kept: CachedRows | None = None
        self._kept_for: tuple[Any, ...] = ()

    def sync(self, policy: Any) -> None:
        """Run ``policy.model`` from now on; its weights are read in place, so only the cache is dropped.

        Raises:
            LovecError: the model's attention cannot be computed exactly here.
        """
        self._kind = AttentionKind.of(policy.model.config)
        self._model = policy.model
        self._kept = None

    @property
    def context_length(self) -> int | None:
        """Most tokens that a context and what follows it may have; None where the model names no limit."""
        length = getattr(self._synced().config.get_text_config(), "max_position_embeddings", None)
        return None if length is None else int(length)

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        sampling: Sampling,
        stop_ids: Sequence[int],
        keys: Sequence[str] | None = None,
        on_token: OnToken | None = None,
    ) -> list[list[Completion]]:
        """Sample ``sampling.n`` completions a prompt; a row ends at the first of ``stop_ids``, which it keeps.

        Token t of a sample comes from the inverse of its cumulative distribution (float64) at the t-th number of a
        stream that depends on (seed, key, index of the sample) alone. A completion also ends where the model's
        context is full.

        Args:
            prompts: token ids, at least one each.
            sampling: how to sample.
            stop_ids: ids that end a completion.
            keys: names of the prompts for their random streams (default: position in ``prompts``). Prompts with the
                same key draw the same numbers.
            on_token: hears every token as it is drawn, and ends that completion behind it by False; the others are the
                same as without it.

        Returns:
            [prompts][n] completions; ``logps`` are of logits / temperature (temperature 0: of the plain logits).

        Raises:
            LovecError: a prompt is empty or leaves no room for a token, or a setting is out of range.
        """
        names = checked_keys(sampling, keys, len(prompts))
        texts = checked_texts(prompts, room=1, limit=self.context_length, name="prompt")
        self._kept = None  # its memory is better used here
        rows = [(p, i) for p in sorted(range(len(texts)), key=lambda p: len(texts[p])) for i in range(sampling.n)]
        done: dict[tuple[int, int], Completion] = {}
        with self._evaluation():
            for start in range(0, len(rows), self.max_rows):
                chunk = sorted(rows[start : start + self.max_rows], key=lambda row: texts[row[0]])
                streams = [_uniforms(sampling, names[p], i) for p, i in chunk]
                prompted = [texts[p] for p, _ in chunk]
                sampled = self._sample(prompted, streams, sampling, frozenset(stop_ids), _by_row(on_token, chunk))
                done.update(zip(chunk, sampled, strict=True))
        return [[done[p, i] for i in range(sampling.n)] for p in range(len(texts))]

    def score(self, contexts: Sequence[Sequence[int]], choices: Sequence[Sequence[int]]) -> list[list[float]]:
        """Exact log-probability of every whole choice after every context: [contexts][choices].

        Log-softmax values are float32, their sums float64. A context (or its beginning) that was part of the
        previous call is not computed again, as long as that call had no more than ``max_rows`` contexts and the
        weights are the same; long beginnings that contexts of one call share are computed once. A call without
        contexts frees the cache.

        Args:
            contexts: token ids, at least one each.
            choices: token ids, at least one each; they may share first tokens and differ in length.

        Raises:
            LovecError: a context or choice is empty, or the longest choice does not fit behind a context.
        """
        tree = ChoiceTree(choices)
        texts = checked_texts(contexts, room=tree.longest, limit=self.context_length, name="context")
        weights = _weights(self._synced())
        kept, self._kept = self._kept if weights == self._kept_for else None, None
        scores: dict[tuple[int, ...], list[float]] = {}
        order = sorted(set(texts))
        with self._evaluation():
            for start in range(0, len(order), self.max_rows):
                chunk = order[start : start + self.max_rows]
                kept = kept or self._rows()
                scores.update(zip(chunk, tree.logps(self._prefill(kept, chunk, tree)).tolist(), strict=True))
        if order:
            self._kept, self._kept_for = kept, weights
        return [list(scores[text]) for text in texts]

    def _sample(
        self,
        prompts: list[tuple[int, ...]],
        streams: list[np.ndarray],
        sampling: Sampling,
        stops: frozenset[int],
        goes_on: Callable[[int, int], bool],
    ) -> list[Completion]:
        """One completion for each of ``prompts``, which are sorted (equal ones are prefilled once).

        ``goes_on`` hears (row, token) and may end the row.
        """
        unique = sorted(set(prompts))
        place = {text: i for i, text in enumerate(unique)}
        source = [place[text] for text in prompts]
        rows = self._rows()
        logits = self._prefill(rows, unique)[:, -1][source]
        rows.take(source, [len(text) for text in prompts])
        limits = [room_behind(text, sampling.max_new_tokens, self.context_length) for text in prompts]
        uniforms = torch.from_numpy(np.stack(streams)).to(logits.device)
        ids: list[list[int]] = [[] for _ in prompts]
        logps: list[list[float]] = [[] for _ in prompts]
        live = list(range(len(prompts)))
        while True:
            tokens, logp = _draw(logits, sampling.temperature, uniforms[:, len(ids[live[0]])])
            keep = []
            for at, (row, token, value) in enumerate(zip(live, tokens.tolist(), logp.tolist(), strict=True)):
                ids[row].append(token)
                logps[row].append(value)
                if goes_on(row, token) and token not in stops and len(ids[row]) < limits[row]:
                    keep.append(at)
            if not keep:
                break
            if len(keep) < len(live):
                live = [live[at] for at in keep]
                rows.drop(keep)
                tokens, uniforms = tokens[keep], uniforms[keep]
            logits = rows.step(tokens)
        return [Completion(tuple(i), tuple(p), i[-1] in stops) for i, p in zip(ids, logps, strict=True)]

    def _prefill(self, rows: CachedRows, contexts: list[tuple[int, ...]], tree: ChoiceTree = NO_CHOICES) -> Tensor:
        """Turn ``rows`` into ``contexts`` (sorted, no two equal), computing only what is not there yet.

        Returns:
            Logits after every context and its choices' nodes: [contexts, 1 + nodes, vocabulary].
        """
        matches = _match(rows.ids, contexts)
        for stage in _stages(contexts, [length for _, length in matches]):
            self._advance(rows, stage, _match(rows.ids, stage))
        # The last token always runs: its logits are asked for.
        matches = _match(rows.ids, contexts)
        last = [(row, min(length, len(c) - 1)) for c, (row, length) in zip(contexts, matches, strict=True)]
        return self._advance(rows, contexts, last, tree)

    def _advance(
        self,
        rows: CachedRows,
        contexts: list[tuple[int, ...]],
        matches: list[tuple[int, int]],
        tree: ChoiceTree = NO_CHOICES,
    ) -> Tensor:
        """One forward pass that makes ``rows`` hold ``contexts``, given the row and length each has in common."""
        rows.take([row for row, _ in matches], [length for _, length in matches])
        new = [context[length:] for context, (_, length) in zip(contexts, matches, strict=True)]
        logits = rows.extend(new, tree)
        self.prefill_tokens += sum(map(len, new))
        return logits

    def _rows(self) -> CachedRows:
        assert self._kind is not None
        return CachedRows(self._model, self._kind)

    def _synced(self) -> Any:
        if self._model is None:
            raise LovecError("the engine has no model yet; call sync(policy) first")
        return self._model

    @contextmanager
    def _evaluation(self) -> Iterator[None]:
        """Inside: eval mode, no gradients (in training mode gradient checkpointing would leave the cache out)."""
        training = [module for module in self._model.modules() if module.training]
        for module in training:
            module.training = False
        try:
            with torch.no_grad():
                yield
        finally:
            for module in training:
                module.training = True


def _by_row(on_token: OnToken | None, rows: Sequence[tuple[int, int]]) -> Callable[[int, int], bool]:
    """``on_token`` for the rows of a batch, given prompt and sample of each: (row, token id) -> whether it goes on."""
    if on_token is None:
        return lambda row, token: True
    return lambda row, token: on_token(*rows[row], token)


def _uniforms(sampling: Sampling, key: str, index: int) -> np.ndarray:
    """Numbers in [0, 1) for the tokens of one completion: a function of (seed, key, index) only."""
    if sampling.temperature == 0:
        return np.zeros(sampling.max_new_tokens)
    stream = np.random.Philox(key=stream_key(sampling.seed, key, index))
    return np.random.Generator(stream).random(sampling.max_new_tokens)


def _draw(logits: Tensor, temperature: float, uniform: Tensor) -> tuple[Tensor, Tensor]:
    """Next tokens [B] and their log-probabilities [B], from logits [B, V] and uniform numbers [B]."""
    logps = (logits.double() / (temperature or 1.0)).log_softmax(-1)
    if temperature == 0:
        tokens = logits.argmax(-1, keepdim=True)
    else:
        cdf = logps.exp().cumsum(-1)
        tokens = torch.searchsorted(cdf, uniform[:, None] * cdf[:, -1:], right=True).clamp(max=logits.shape[-1] - 1)
    return tokens[:, 0], logps.gather(-1, tokens)[:, 0]


def _weights(model: Any) -> tuple[Any, ...]:
    """Changes whenever parameters are written to or adapters are switched: what a KV cache is good for."""
    from peft.tuners.tuners_utils import BaseTunerLayer  # here, because peft loads bitsandbytes where it is installed

    switches = [(m.disable_adapters, *m.active_adapters) for m in model.modules() if isinstance(m, BaseTunerLayer)]
    return (*((id(p), p._version) for p in model.parameters()), *switches)


def _shared(a: tuple[int, ...], b: tuple[int, ...]) -> int:
    """Length of the longest common prefix."""
    end = min(len(a), len(b))
    if a[:end] == b[:end]:
        return end
    return next(i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y)


def _match(cached: list[tuple[int, ...]], contexts: list[tuple[int, ...]]) -> list[tuple[int, int]]:
    """For every context the cached row that begins most like it, and how many tokens they share.

    In lexicographic order of all of them, the best row is the nearest one before or behind the context.
    """
    found = [(0, 0)] * len(contexts)
    if not cached:
        return found
    merged = sorted([(ids, 0, row) for row, ids in enumerate(cached)] + [(ids, 1, i) for i, ids in enumerate(contexts)])
    for walk in (merged, merged[::-1]):
        near: tuple[tuple[int, ...], int] | None = None
        for ids, is_context, number in walk:
            if not is_context:
                near = (ids, number)
            elif near is not None and (shared := _shared(near[0], ids)) > found[number][1]:
                found[number] = (near[1], shared)
    return found


def _stages(contexts: list[tuple[int, ...]], cached: list[int]) -> list[list[tuple[int, ...]]]:
    """Batches of beginnings to compute first, so that no long one is computed twice.

    Args:
        contexts: sorted token sequences.
        cached: how much of each is there already.

    Returns:
        Stage by stage, the distinct beginnings (each context cut at its next branching point), sorted. Empty where
        nothing worth ``MIN_SHARED`` tokens is shared.
    """
    links = [_shared(a, b) for a, b in pairwise(contexts)]
    if all(link < have + MIN_SHARED for link, have in zip(links, cached, strict=False)):
        return []
    cuts = []
    for i, have in enumerate(cached):
        branches = set()
        for side in (links[i:], links[:i][::-1]):
            low = len(contexts[i])
            for link in side:
                low = min(low, link)
                branches.add(low)
        cuts.append([have])
        for branch in sorted(branches):
            if branch >= cuts[-1][-1] + MIN_SHARED:
                cuts[-1].append(branch)
    stages = []
    for depth in range(1, max(map(len, cuts))):
        stage = {context[: cut[min(depth, len(cut) - 1)]] for context, cut in zip(contexts, cuts, strict=True)}
        stages.append(sorted(text for text in stage if text))
    return stages
