"""Plain answers of a chat server: how they are asked for, and what a reply says."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

from lovec.encoding import without_half_character
from lovec.oracles.cache import ChatReply
from lovec.oracles.chat import NO_MESSAGE
from lovec.tags import without_thoughts
from lovec.types import Sampling

_LIMITS = ("max_tokens", "max_completion_tokens")  # newer models of OpenAI refuse the first


def sampling_parameters(sampling: Sampling, key: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters of a call for one answer.

    Args:
        sampling: how to sample.
        key: names the answer among all; its seed is a function of it.
        given: parameters that the user names, in place of those of the sampling; None leaves one out.
    """
    own: dict[str, Any] = {"temperature": sampling.temperature}
    if not any(name in given for name in _LIMITS):
        own["max_tokens"] = sampling.max_new_tokens
    if sampling.temperature > 0:
        own |= {"top_p": sampling.top_p} if sampling.top_p < 1 else {}
        own["seed"] = int.from_bytes(hashlib.sha256(key.encode()).digest()[:4], "big") >> 1
    return {name: value for name, value in {**own, **given}.items() if value is not None}


def longest_reply(sent: Mapping[str, Any], sampling: Sampling) -> int:
    """Return the most tokens of a reply to a call with these parameters."""
    return next((sent[name] for name in _LIMITS if type(sent.get(name)) is int), sampling.max_new_tokens)


def read_answer(reply: ChatReply) -> tuple[str, bool] | str:
    """Return the answer in a reply, without thoughts, and whether it is finished; or why it cannot be used."""
    if reply.finish == "content_filter":
        return f"cut off ({reply.finish})"
    if reply.finish == NO_MESSAGE:
        return f"no message in {reply.text[:100]}"
    text = without_thoughts(reply.text)
    if text is None:
        return "cut off before the answer began; give more tokens with --max_new_tokens"
    finished = reply.finish != "length"
    text = text.strip() if finished else without_half_character(text).strip()
    return (text, finished) if text else "an empty reply"
