"""What all engines share: checks of their arguments, the rows of a batch to sample, and the replies of vLLM."""

from __future__ import annotations

import hashlib
import os
import weakref
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeAlias

from lovec.types import Completion, LovecError, OnToken, Sampling, TokenScores

TokenCallback: TypeAlias = Callable[[int], bool]
"""Called with each sampled token of one completion; returns False to stop the completion."""


def on_finalize(owner: object, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Callable[[], Any]:
    """Call a function once when an object is gone, when the process ends, or when the return value is called.

    A fork of the process has a copy of the object, whose end is not one of the original's: nothing is called there.

    Args:
        owner: the object; ``function`` must not refer to it.
        function: releases what the object has opened.
        args: its arguments.
        kwargs: its keyword arguments.
    """
    process = os.getpid()

    def release() -> None:
        if os.getpid() == process:
            function(*args, **kwargs)

    return weakref.finalize(owner, release)


@dataclass(frozen=True, slots=True)
class SampleRow:
    """One completion to sample.

    Attributes:
        ids: token ids of the prompt.
        max_new_tokens: the most tokens of the completion; the model's context may leave less room than was asked for.
        stream: 128-bit number of the random stream, a function of (seed, key of the prompt, index of the sample) only.
        on_token: called with every sampled token; None where nobody listens.
    """

    ids: tuple[int, ...]
    max_new_tokens: int
    stream: int
    on_token: TokenCallback | None

    def vllm_options(self, sampling: Sampling, stop_ids: Iterable[int]) -> dict[str, Any]:
        """Return the parameters that vLLM samples the completion with, in this process or behind a server."""
        options: dict[str, Any] = {"max_tokens": self.max_new_tokens, "stop_token_ids": sorted(set(stop_ids))}
        options |= {"temperature": sampling.temperature, "top_p": sampling.top_p}
        if sampling.temperature:
            options["seed"] = self.stream % 2**63  # vLLM takes seeds of 63 bits
        if sampling.watched and sampling.keeps_logps:  # otherwise they would be of the distribution drawn from
            options["logprob_token_ids"] = list(sampling.watched)
        return options


def sample_rows(
    prompts: Sequence[Sequence[int]],
    sampling: Sampling,
    keys: Sequence[str] | None,
    on_token: OnToken | None,
    context_length: int | None,
) -> list[SampleRow]:
    """Check the arguments of ``Engine.generate`` and return the completions to sample, prompt by prompt.

    Raises:
        LovecError: a prompt is empty or leaves no room for a token, or there is not one key per prompt.
    """
    names = list(map(str, range(len(prompts)))) if keys is None else keys
    if len(names) != len(prompts):
        raise LovecError(f"got {len(names)} keys for {len(prompts)} prompts, expected one each")
    rows = []
    for prompt, ids in enumerate(checked_texts(prompts, 1, context_length, "prompt")):
        room = sampling.max_new_tokens if context_length is None else context_length - len(ids)
        for sample in range(sampling.n):
            stream = stream_key(sampling.seed, names[prompt], sample)
            callback = None if on_token is None else partial(on_token, prompt, sample)
            rows.append(SampleRow(ids, min(sampling.max_new_tokens, room), stream, callback))
    return rows


def by_prompt(completions: Sequence[Completion], sampling: Sampling) -> list[list[Completion]]:
    """Return the completions of ``sample_rows`` as ``[prompts][n]``."""
    return [list(completions[start : start + sampling.n]) for start in range(0, len(completions), sampling.n)]


def checked_texts(texts: Sequence[Sequence[int]], room: int, limit: int | None, name: str) -> list[tuple[int, ...]]:
    """Return the texts as tuples, after a check that none of them is empty or too long.

    Args:
        texts: token ids.
        room: tokens needed after each text.
        limit: length of the model's context in tokens; None is no limit.
        name: what a text is, for the message.

    Raises:
        LovecError: a text is empty, or does not fit with what comes after it.
    """
    for i, text in enumerate(texts):
        if not len(text):
            raise LovecError(f"{name} {i} has no tokens, expected at least one (a BOS token will do)")
        if limit is not None and len(text) + room > limit:
            raise LovecError(
                f"{name} {i} has {len(text)} tokens and needs {room} more behind it, the model's context holds "
                f"{limit}; shorten the text or use a model with a longer context"
            )
    return [tuple(map(int, text)) for text in texts]


def stream_key(seed: int, key: str, index: int) -> int:
    """Return 128 bits that name the random stream of one completion: a function of (seed, key, index) only."""
    return int.from_bytes(hashlib.sha256(f"{seed}\x1f{index}\x1f{key}".encode()).digest()[:16], "little")


def check_vllm_temperature(temperature: float) -> None:
    """Refuse a temperature that vLLM would silently replace.

    Raises:
        LovecError: it is neither 0 nor between 0.01 and 2.
    """
    if temperature and not 0.01 <= temperature <= 2.0:
        raise LovecError(f"temperature is {temperature}, vLLM takes 0 or 0.01 to 2; use one of these")


@dataclass(slots=True)
class TokenReply:
    """The reply of vLLM to one prompt, token by token.

    Attributes:
        ids: sampled token ids.
        logps: log-probability of each sampled token.
        candidates: for each sampled token, log-probabilities by token id: of the ids that were asked for, among others.
        cached: tokens of the prompt whose state was found in the cache; None where vLLM does not say.
        prompt_logps: log-probabilities of the prompt's last tokens, as many as were asked for; None where the state of
            the token before came from the cache.
        prompt_candidates: for each of these tokens, log-probabilities by token id, of the most probable ones among
            others; {} where its own is None.
    """

    ids: list[int] = field(default_factory=list)
    logps: list[float] = field(default_factory=list)
    candidates: list[dict[int, float]] = field(default_factory=list)
    cached: int | None = None
    prompt_logps: list[float | None] = field(default_factory=list)
    prompt_candidates: list[dict[int, float]] = field(default_factory=list)

    def keep_prompt(self, tokens: Sequence[int], candidates: list[dict[int, float]]) -> None:
        """Keep what is known of the prompt's last tokens, given their ids and the log-probabilities in their places."""
        self.prompt_candidates = candidates
        self.prompt_logps = [found.get(token) for found, token in zip(candidates, tokens, strict=True)]

    def completion(self, stop_ids: Iterable[int], sampling: Sampling) -> Completion:
        """Return the sampled tokens as a completion, which is finished if it ends with one of the stop ids."""
        watched = self.candidates if sampling.watched and sampling.keeps_logps else ()
        return Completion(tuple(self.ids), tuple(self.logps), self.ids[-1] in stop_ids, tuple(watched))

    def computed(self, tokens: int) -> int:
        """Return how many of the prompt's first tokens were computed, not found in the cache."""
        return max(0, tokens - (self.cached or 0))


def reply_scores(reply: TokenReply, top: int) -> TokenScores | None:
    """Return the log-probabilities of the prompt's last tokens; None where some are missing.

    Args:
        reply: the reply to a prompt.
        top: number of the most probable tokens to keep for every place.
    """
    logps = [logp for logp in reply.prompt_logps if logp is not None]
    if len(logps) < len(reply.prompt_logps):
        return None
    if not top:
        return TokenScores(tuple(logps))
    ranked = (sorted(found.items(), key=lambda item: -item[1])[:top] for found in reply.prompt_candidates)
    return TokenScores(tuple(logps), tuple(map(dict, ranked)))


def with_choices(found: Sequence[TokenScores], scores: Sequence[Sequence[float]]) -> list[TokenScores]:
    """Return the log-probabilities of tokens together with those of choices."""
    return [replace(tokens, choices=tuple(row)) for tokens, row in zip(found, scores, strict=True)]
