"""What every engine does with what it is asked: checks, limits, random streams."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from lovec.types import LovecError, Sampling


def checked_texts(texts: Sequence[Sequence[int]], room: int, limit: int | None, name: str) -> list[tuple[int, ...]]:
    """The texts as tuples, none of them empty or too long.

    Args:
        texts: token ids.
        room: tokens needed behind each.
        limit: tokens the model's context holds; None where it names no limit.
        name: what a text is, for the message.

    Raises:
        LovecError: a text is empty, or does not fit with what comes behind it.
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


def checked_keys(sampling: Sampling, keys: Sequence[str] | None, prompts: int) -> list[str]:
    """Names of the prompts for their random streams.

    Raises:
        LovecError: a sampling setting is out of range, or the keys are not one each.
    """
    if sampling.n < 1 or sampling.max_new_tokens < 1 or not sampling.temperature >= 0:
        raise LovecError(f"{sampling}: expected n >= 1, max_new_tokens >= 1 and temperature >= 0")
    names = [str(i) for i in range(prompts)] if keys is None else list(keys)
    if len(names) != prompts:
        raise LovecError(f"got {len(names)} keys for {prompts} prompts, expected one each")
    return names


def check_vllm_temperature(temperature: float) -> None:
    """Refuse a temperature that vLLM would change without a word.

    Raises:
        LovecError: it is not 0 or between 0.01 and 2.
    """
    if temperature and not 0.01 <= temperature <= 2.0:
        raise LovecError(f"temperature is {temperature}, vLLM takes 0 or 0.01 to 2; use one of these")


def room_behind(prompt: Sequence[int], wanted: int, limit: int | None) -> int:
    """New tokens that fit behind a prompt, ``wanted`` at most."""
    return wanted if limit is None else min(wanted, limit - len(prompt))


def stream_key(seed: int, key: str, index: int) -> int:
    """128 bits that name the random stream of one completion: a function of (seed, key, index) only."""
    return int.from_bytes(hashlib.sha256(f"{seed}\x1f{index}\x1f{key}".encode()).digest()[:16], "little")
