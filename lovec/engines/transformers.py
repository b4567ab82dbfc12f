"""An engine that runs the policy's own transformers model: no second copy, always the newest weights."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from itertools import pairwise
from typing import Annotated, Any

import numpy as np
import torch
from torch import Tensor

from lovec.core.decoders import decoder_layers
from lovec.core.notices import counted
from lovec.core.progress import Activity, doing
from lovec.core.settings import NO_EFFECT, Count, check_count, checked
from lovec.encoding.choices import (
    NO_CHOICES,
    AttentionKind,
    ChoiceTree,
    choice_tree,
    context_length,
    rows_at_once,
)
from lovec.engines.common import SampleRow, by_prompt, checked_texts, sample_rows
from lovec.engines.kv import CachedRows
from lovec.engines.token_scoring import check_starts, outputs_of, token_scores
from lovec.types import Completion, LovecError, OnToken, Sampling, TokenScores

MIN_SHARED = 32
"""A prefix that several contexts share is computed once for all if it saves each of them at least this many tokens."""


@checked(remember=True)
class TransformersEngine:
    """Samples and scores with a transformers causal language model and its adapters.

    The model runs in eval mode and without gradients; the training flags of its modules are restored afterwards.
    Results of a row do not depend on the other rows of its batch, but for rounding, which kernels of GPUs do by the
    shape of a batch: masks are built from lengths, and every completion has its own random stream.

    Args:
        max_rows: the most rows that run together, and the most rows whose KV cache ``score`` keeps for the next call.

    Attributes:
        prefill_tokens: context tokens computed so far, by ``generate`` and ``score``. Cached tokens, padding, sampled
            tokens and the tokens of choices are not counted.
        max_rows: as given. Calls of ``score`` that build on each other should have no more contexts than this.
        shares_model: True.
    """

    shares_model = True

    def __init__(self, max_rows: Annotated[Count, NO_EFFECT] = 64) -> None:
        self.max_rows = max_rows
        self.prefill_tokens = 0
        self._model: Any = None
        self._kind: AttentionKind | None = None
        self._kept: CachedRows | None = None
        self._kept_for: tuple[Any, ...] = ()

    def sync(self, policy: Any) -> None:
        """Run ``policy.model`` from now on; its weights are read in place, so only the cache is dropped.

        Raises:
            LovecError: the model's attention cannot be computed exactly with explicit masks.
        """
        self._kind = AttentionKind.of(policy.model.config)
        self._model = policy.model
        self._kept = None

    @property
    def context_length(self) -> int | None:
        """The most tokens that a context and what follows it may have; None where the model names no limit."""
        return context_length(self._synced().config)

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        sampling: Sampling,
        stop_ids: Sequence[int],
        keys: Sequence[str] | None = None,
        on_token: OnToken | None = None,
    ) -> list[list[Completion]]:
        """Sample ``sampling.n`` completions per prompt; each ends with the first of ``stop_ids``, if one is sampled.

        Token t of a completion comes from the inverse of its cumulative distribution (float64) at the t-th number of a
        stream that depends on (seed, key, index of the sample) only. A completion also ends where the model's context
        is full.

        Args:
            prompts: token ids of each prompt, at least one.
            sampling: how to sample.
            stop_ids: ids that end a completion.
            keys: names of the prompts for their random streams (default: position in ``prompts``). Prompts with the
                same key draw the same numbers.
            on_token: called with every token when it is drawn; returns False to end that completion after it. Other
                completions are not affected.

        Returns:
            ``[prompts][n]`` completions; ``logps`` are of logits / temperature (temperature 0: of the plain logits),
            renormalised over the tokens that ``top_p`` leaves.

        Raises:
            LovecError: a prompt is empty or leaves no room for a token, a setting is out of range, or the model
                computes NaN.
        """
        rows = sample_rows(prompts, sampling, keys, on_token, self.context_length)
        self._kept = None  # its memory is better used here
        order = sorted(range(len(rows)), key=lambda at: len(rows[at].ids))
        completions: dict[int, Completion] = {}
        with self._eval_mode():
            for start in range(0, len(order), self.max_rows):
                chunk = sorted(order[start : start + self.max_rows], key=lambda at: rows[at].ids)
                longest = max(rows[at].max_new_tokens for at in chunk)
                with doing(f"writing {counted(len(chunk), 'answer')}", longest, "tokens") as writing:
                    sampled = self._sample([rows[at] for at in chunk], sampling, frozenset(stop_ids), writing)
                completions.update(zip(chunk, sampled, strict=True))
        return by_prompt([completions[at] for at in range(len(rows))], sampling)

    def score(self, contexts: Sequence[Sequence[int]], choices: Sequence[Sequence[int]]) -> list[list[float]]:
        """Return the exact log-probability of every whole choice after every context: ``[contexts][choices]``.

        Log-softmax values are float32, their sums float64. A context, or the beginning of one, that was part of the
        previous call is not computed again, as long as that call had no more than ``max_rows`` contexts and the
        weights are the same. Long beginnings that contexts of one call share are computed once. A call without
        contexts frees the cache.

        Args:
            contexts: token ids of each context, at least one.
            choices: token ids of each choice, at least one; choices may share first tokens and differ in length.

        Raises:
            LovecError: a context or choice is empty, the longest choice does not fit after a context, or the model
                computes NaN.
        """
        found = self.token_logps(contexts, list(map(len, contexts)), choices)
        return [list(scores.choices) for scores in found]

    def token_logps(
        self,
        contexts: Sequence[Sequence[int]],
        starts: Sequence[int],
        choices: Sequence[Sequence[int]] = (),
        top: int = 0,
    ) -> list[TokenScores]:
        """Return the log-probabilities of the tokens of every context from an index on, and of choices after it.

        Both come from one forward pass, which uses and keeps a cache as ``score`` does. Values are those of a float32
        log-softmax.

        Args:
            contexts: token ids of each context, at least one.
            starts: index of the first token of each context whose log-probability is asked for, from 1 to its length.
            choices: token ids of each choice; none scores no choice.
            top: number of the most probable tokens to return for every place, at most ``lovec.types.MOST_TOP``.

        Raises:
            LovecError: a context or choice is empty, the longest choice does not fit after a context, a start lies
                outside its context, ``top`` is out of range, or the model computes NaN.
        """
        tree = choice_tree(choices)
        texts = checked_texts(contexts, room=tree.longest, limit=self.context_length, name="context")
        check_starts(texts, starts, top)
        weights = _weights(self._synced())
        kept, self._kept = self._kept if weights == self._kept_for else None, None
        first: dict[tuple[int, ...], int] = {}
        for text, start in zip(texts, starts, strict=True):
            first[text] = min(start, first.get(text, start))
        order = sorted(first)
        found: dict[tuple[int, ...], TokenScores] = {}
        many = len(order) > self.max_rows  # of fewer, what is done around this tells how far it is
        with self._eval_mode(), doing("scoring", len(order), "texts") if many else nullcontext() as scoring:
            for begin in range(0, len(order), self.max_rows):
                chunk = order[begin : begin + self.max_rows]
                kept = kept or self._empty_rows()
                logits, scores = self._prefill(kept, chunk, tree, [first[text] for text in chunk], top)
                sums = tree.logps(logits).tolist() if tree.longest else [[]] * len(chunk)
                for text, tokens, choice_logps in zip(chunk, scores, sums, strict=True):
                    self._refuse_nan([*tokens.logps, *choice_logps])
                    found[text] = replace(tokens, choices=tuple(choice_logps))
                if scoring is not None:
                    scoring.advance(len(chunk))
        if order:
            self._kept, self._kept_for = kept, weights
        return [
            replace(tokens, logps=tokens.logps[start - first[text] :], top=tokens.top[start - first[text] :])
            for text, start, tokens in ((text, start, found[text]) for text, start in zip(texts, starts, strict=True))
        ]

    @property
    def layers(self) -> int:
        """Number of the model's layers."""
        return len(self._layers())

    def hidden_states(
        self, contexts: Sequence[Sequence[int]], places: Sequence[Sequence[int]], layers: Sequence[int]
    ) -> list[Tensor]:
        """Return hidden states after tokens of every context, as layers return them (the last one before its norm).

        Args:
            contexts: token ids of each context, at least one.
            places: indices of tokens of each context.
            layers: numbers of layers, 1 is the first.

        Returns:
            For every context [places, layers, D], float32 on the CPU.

        Raises:
            LovecError: a context is empty or too long, or a layer or place does not exist.
        """
        texts = checked_texts(contexts, room=0, limit=self.context_length, name="context")
        modules = self._layers()
        for layer in layers:
            check_count("layer", layer, at_most=len(modules))
        for text, wanted in zip(texts, places, strict=True):
            for place in wanted:
                check_count("place of a hidden state", place, at_least=0, at_most=len(text) - 1)
        chosen = [modules[layer - 1] for layer in sorted(set(layers))]
        order = sorted(range(len(texts)), key=lambda at: len(texts[at]))
        found: dict[int, Tensor] = {}
        with self._eval_mode():
            for begin in range(0, len(order), self.max_rows):
                chunk = order[begin : begin + self.max_rows]
                pairs = [(row, place) for row, at in enumerate(chunk) for place in places[at]]
                index = torch.tensor(pairs, dtype=torch.long, device="cpu").reshape(len(pairs), 2)
                cached = self._empty_rows()
                cached.select([0] * len(chunk), [0] * len(chunk))
                at_places = cached.places([len(texts[at]) for at in chunk]).of(index[:, 0], index[:, 1])
                with outputs_of(chosen, lambda states, at=at_places: states[at].float().cpu()) as outputs:  # type: ignore[misc]
                    cached.extend([texts[at] for at in chunk])
                self.prefill_tokens += sum(len(texts[at]) for at in chunk)
                by_layer = dict(zip(sorted(set(layers)), outputs, strict=True))
                states = torch.stack([by_layer[layer] for layer in layers], dim=1)
                parts = torch.split(states, [len(places[at]) for at in chunk])
                found.update(zip(chunk, parts, strict=True))
        return [found[at] for at in range(len(texts))]

    def _sample(
        self, rows: list[SampleRow], sampling: Sampling, stop_ids: frozenset[int], writing: Activity
    ) -> list[Completion]:
        """Sample one completion per row; the rows are sorted by their prompts, equal prompts are prefilled once."""
        prompts = sorted({row.ids for row in rows})
        place = {ids: at for at, ids in enumerate(prompts)}
        source = [place[row.ids] for row in rows]
        cached = self._empty_rows()
        logits = self._prefill(cached, prompts, NO_CHOICES, list(map(len, prompts)))[0][:, -1][source]
        cached.select(source, [len(row.ids) for row in rows])
        uniforms = torch.from_numpy(np.stack([_uniforms(sampling, row.stream) for row in rows])).to(logits.device)
        ids: list[list[int]] = [[] for _ in rows]
        logps: list[list[float]] = [[] for _ in rows]
        watched: list[list[dict[int, float]]] = [[] for _ in rows]
        live = list(range(len(rows)))
        while True:
            tokens, logp = _draw(logits, sampling, uniforms[:, len(ids[live[0]])])
            values = logp.tolist()
            if sampling.watched:
                for index, row_logps in zip(live, _logps_of(logits, sampling.watched).tolist(), strict=True):
                    watched[index].append(dict(zip(sampling.watched, row_logps, strict=True)))
            self._refuse_nan(values)
            done = []
            for at, (index, token, value) in enumerate(zip(live, tokens.tolist(), values, strict=True)):
                row = rows[index]
                ids[index].append(token)
                logps[index].append(value)
                wanted = row.on_token is None or row.on_token(token)
                if not wanted or token in stop_ids or len(ids[index]) == row.max_new_tokens:
                    done.append(at)
            if len(done) == len(live):
                break
            if done:
                order = cached.drop(done)
                live = [live[at] for at in order]
                tokens, uniforms = tokens[order], uniforms[order]
            writing.advance()
            logits = cached.step(tokens)
        return [
            Completion(tuple(i), tuple(p), i[-1] in stop_ids, tuple(w))
            for i, p, w in zip(ids, logps, watched, strict=True)
        ]

    def _prefill(
        self, rows: CachedRows, contexts: list[tuple[int, ...]], tree: ChoiceTree, starts: list[int], top: int = 0
    ) -> tuple[Tensor, list[TokenScores]]:
        """Turn cached rows into ``contexts`` (sorted, no two equal), computing only the tokens that are not cached.

        Args:
            rows: the cached rows.
            contexts: token ids of each context.
            tree: choices to compute logits for.
            starts: index of the first token of each context whose log-probability is asked for.
            top: number of the most probable tokens to return for every place.

        Returns:
            Logits after every context and after the nodes of the tree, [contexts, 1 + nodes, vocabulary], and the
            log-probabilities of tokens.
        """
        matches = _match(rows.ids, contexts)
        for stage in _stages(contexts, [length for _, length in matches]):
            self._advance(rows, stage, _match(rows.ids, stage))
        # What follows the token before the start is needed, and after the last token of a context in any case.
        matches = _match(rows.ids, contexts)
        last = [(row, min(length, start - 1)) for start, (row, length) in zip(starts, matches, strict=True)]
        if all(start == len(context) for start, context in zip(starts, contexts, strict=True)):
            return self._advance(rows, contexts, last, tree), [TokenScores(())] * len(contexts)
        with outputs_of([self._model.get_decoder()], lambda states: states) as outputs:
            logits = self._advance(rows, contexts, last, tree)
        [states] = outputs
        have = [length for _, length in last]
        new = [len(context) - length for context, length in zip(contexts, have, strict=True)]
        places = rows.places([length + len(tree.ids) for length in new])
        found = []
        for row, (context, start) in enumerate(zip(contexts, starts, strict=True)):
            before = torch.arange(start - 1 - have[row], len(context) - 1 - have[row], device="cpu")
            own = states[places.of(torch.full_like(before, row), before)]
            found.append(token_scores(self._model, own, context[start:], top))
        return logits, found

    def _advance(
        self,
        rows: CachedRows,
        contexts: list[tuple[int, ...]],
        matches: list[tuple[int, int]],
        tree: ChoiceTree = NO_CHOICES,
    ) -> Tensor:
        """Run one forward pass that turns ``rows`` into ``contexts``.

        Args:
            rows: the cached rows.
            contexts: token ids of each context.
            matches: for each context, a row and the number of its first tokens that the context begins with.
            tree: choices to compute logits for.
        """
        rows.select([row for row, _ in matches], [length for _, length in matches])
        new = [context[length:] for context, (_, length) in zip(contexts, matches, strict=True)]
        logits = rows.extend(new, tree)
        self.prefill_tokens += sum(map(len, new))
        return logits

    def _layers(self) -> list[Any]:
        """Return the layers of the model.

        Raises:
            LovecError: they cannot be found.
        """
        return list(decoder_layers(self._synced(), "; use one of these"))

    def _refuse_nan(self, logps: Sequence[float]) -> None:
        if any(map(math.isnan, logps)):
            model = self._synced()
            raise LovecError(
                f"the model {model.config.name_or_path} computes NaN in {str(model.dtype).removeprefix('torch.')}: "
                "weights of it or of the adapter are NaN, or its numbers are too large for this dtype; check the "
                "weights, or give another dtype"
            )

    def _empty_rows(self) -> CachedRows:
        assert self._kind is not None
        return CachedRows(self._model, self._kind)

    def _synced(self) -> Any:
        if self._model is None:
            raise LovecError("the engine has no model yet; call sync(policy) first")
        return self._model

    @contextmanager
    def _eval_mode(self) -> Iterator[None]:
        """Switch to eval mode without gradients (in training mode gradient checkpointing would disable the cache)."""
        training = [module for module in self._model.modules() if module.training]
        for module in training:
            module.training = False
        try:
            with torch.no_grad():
                yield
        finally:
            for module in training:
                module.training = True


def _uniforms(sampling: Sampling, stream: int) -> np.ndarray:
    """Return a number in [0, 1) for every token of one completion; a function of the stream only."""
    if sampling.temperature == 0:
        return np.zeros(sampling.max_new_tokens)
    return np.random.Generator(np.random.Philox(key=stream)).random(sampling.max_new_tokens)


def _draw(logits: Tensor, sampling: Sampling, uniform: Tensor) -> tuple[Tensor, Tensor]:
    """Return the next tokens [B] and their log-probabilities [B], given logits [B, V] and uniform numbers [B]."""
    rows, drawn = rows_at_once(logits), []
    for part, numbers in zip(torch.split(logits, rows), torch.split(uniform[:, None], rows), strict=True):
        logps = part.double().div_(sampling.temperature or 1.0).log_softmax(-1)
        if sampling.temperature == 0:
            tokens = part.argmax(-1, keepdim=True)
        else:
            logps = logps if sampling.top_p == 1 else _nucleus(logps, sampling.top_p)
            cdf = logps.exp().cumsum_(-1)
            tokens = torch.searchsorted(cdf, numbers * cdf[:, -1:], right=True).clamp_(max=part.shape[1] - 1)
        drawn.append((tokens[:, 0], logps.gather(-1, tokens)[:, 0]))
    return torch.cat([tokens for tokens, _ in drawn]), torch.cat([logps for _, logps in drawn])


def _logps_of(logits: Tensor, tokens: Sequence[int]) -> Tensor:
    """Return the log-probabilities [B, N] of N tokens, given logits [B, V]."""
    rows = torch.split(logits, rows_at_once(logits))
    return torch.cat([part[:, list(tokens)].float() - part.float().logsumexp(-1, keepdim=True) for part in rows])


def _nucleus(logps: Tensor, top_p: float) -> Tensor:
    """Return log-probabilities [B, V] renormalised over the fewest most probable tokens that make up ``top_p``."""
    ranked, order = logps.exp().sort(dim=-1, descending=True, stable=True)
    left_out = ranked.cumsum(-1) - ranked >= top_p  # the more probable ones suffice without this one
    left_out[:, 0] = False
    return logps.masked_fill(left_out.scatter(-1, order, left_out), -torch.inf).log_softmax(-1)


def _weights(model: Any) -> tuple[Any, ...]:
    """Return a value that changes when parameters are written to or adapters are switched; then caches are invalid."""
    from peft.tuners.tuners_utils import BaseTunerLayer  # here, because peft loads bitsandbytes where it is installed

    switches = [(m.disable_adapters, *m.active_adapters) for m in model.modules() if isinstance(m, BaseTunerLayer)]
    return (*((id(p), p._version) for p in model.parameters()), *switches)


def _shared(a: tuple[int, ...], b: tuple[int, ...]) -> int:
    """Return the length of the longest common prefix."""
    end = min(len(a), len(b))
    if a[:end] == b[:end]:
        return end
    return next(i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y)


def _match(cached: list[tuple[int, ...]], contexts: list[tuple[int, ...]]) -> list[tuple[int, int]]:
    """Find, for every context, the cached row with the longest common prefix.

    In the lexicographic order of rows and contexts together, this row is the nearest one before or after the context.

    Returns:
        The index of the row and the length of the prefix; (0, 0) where nothing is shared.
    """
    best = [(0, 0)] * len(contexts)
    if not cached:
        return best
    merged = sorted([(ids, 0, row) for row, ids in enumerate(cached)] + [(ids, 1, i) for i, ids in enumerate(contexts)])
    for direction in (merged, merged[::-1]):
        nearest: tuple[tuple[int, ...], int] | None = None
        for ids, is_context, number in direction:
            if not is_context:
                nearest = (ids, number)
            elif nearest is not None and (shared := _shared(nearest[0], ids)) > best[number][1]:
                best[number] = (nearest[1], shared)
    return best


def _stages(contexts: list[tuple[int, ...]], cached: list[int]) -> list[list[tuple[int, ...]]]:
    """Plan batches of beginnings to compute before the contexts, so that no long one is computed twice.

    Args:
        contexts: sorted token sequences.
        cached: number of first tokens of each that are cached already.

    Returns:
        Stage by stage, the distinct beginnings (each context cut at its next branching point), sorted. Empty where no
        shared beginning saves at least ``MIN_SHARED`` tokens.
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
