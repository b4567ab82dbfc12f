"""Requests and responses over HTTP: OpenAI's chat format, with a confidence for every sentence beside the text."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from lovec.encoding import Encoder
from lovec.taggers.freeform import AnswerReader
from lovec.types import LovecError, Sampling, Scale

_IGNORED = frozenset(
    "user metadata store service_tier safety_identifier prompt_cache_key reasoning_effort verbosity".split()
)
"""Parameters that do not change the answer."""

_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "n": (1,),
    "top_p": (1,),
    "frequency_penalty": (0,),
    "presence_penalty": (0,),
    "logprobs": (False,),
    "stop": ([],),
    "tools": ([],),
    "functions": ([],),
    "tool_choice": ("none",),
    "parallel_tool_calls": (True, False),
    "response_format": ({"type": "text"},),
    "modalities": (["text"],),
    "logit_bias": ({},),
}
"""Parameters that are not supported, and the values of them that have no effect."""

_KNOWN = ("messages", "model", "max_tokens", "max_completion_tokens", "temperature", "seed", "stream", "stream_options",
          "min_score")  # fmt: skip


class RequestRefused(LovecError):
    """A request that is not answered.

    Attributes:
        status: HTTP status.
        parameter: the parameter that is wrong, if it is a single one.
        code: OpenAI's error code, if there is one.
    """

    def __init__(self, message: str, parameter: str | None = None, status: int = 400, code: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.parameter = parameter
        self.code = code


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """A chat request, parsed and checked.

    Attributes:
        turns: (role, text) of the messages, in order.
        sampling: how to sample the answer.
        seeded: whether the request has a seed; equal requests then get equal answers.
        stream: whether sentences are sent as soon as they are complete.
        usage: whether a stream ends with a chunk that counts tokens.
        min_score: sentences with a lower score, or without one, are left out of the text; None keeps all.
    """

    turns: tuple[tuple[str, str], ...]
    sampling: Sampling
    seeded: bool
    stream: bool
    usage: bool
    min_score: int | None

    @classmethod
    def parse(cls, body: dict[str, Any], model: str, max_tokens: int, scale: Scale) -> ChatRequest:
        """Parse a request.

        Args:
            body: the JSON object.
            model: name of the only model there is.
            max_tokens: the most tokens of an answer: the default of a request, and the limit where it asks for more.
            scale: the scale of ``min_score``.

        Raises:
            RequestRefused: a parameter is unknown, not supported, or of the wrong type.
        """
        for name, value in body.items():
            if value is None or name in _KNOWN or name in _IGNORED:
                continue
            if name not in _NEUTRAL:
                near = get_close_matches(name, [*_KNOWN, *_NEUTRAL], 1)
                raise RequestRefused(
                    f"unknown parameter {name!r}" + (f"; did you mean {near[0]!r}?" if near else ""), name
                )
            if value not in _NEUTRAL[name]:
                raise RequestRefused(f"{name} is not supported here; leave it out", name)
        if (other := body.get("model")) not in (None, model):
            raise RequestRefused(f"there is no model {other!r} here, only {model!r}", "model", 404, "model_not_found")
        limit = _number(body, "max_completion_tokens", int, 1) or _number(body, "max_tokens", int, 1) or max_tokens
        temperature = _number(body, "temperature", float, 0.0, 2.0)
        options = body.get("stream_options") or {}
        if not isinstance(options, dict):
            raise RequestRefused("stream_options must be an object", "stream_options")
        return cls(
            tuple(_turns(body.get("messages"))),
            Sampling(min(limit, max_tokens), temperature or 0.0, seed=_number(body, "seed", int, -(2**63), 2**63) or 0),
            body.get("seed") is not None,
            _flag(body, "stream"),
            _flag(options, "include_usage"),
            parse_min_score(body, scale),
        )


def parse_min_score(body: dict[str, Any], scale: Scale) -> int | None:
    """Return the parameter ``min_score`` of a request, a score 0..top of the scale; None without it.

    Raises:
        RequestRefused: it is something else.
    """
    min_score: int | None = _number(body, "min_score", int, 0, scale.top)
    return min_score


def _turns(messages: Any) -> list[tuple[str, str]]:
    if not isinstance(messages, list) or not messages:
        raise RequestRefused("messages must be a list of at least one message", "messages")
    turns = []
    for number, message in enumerate(messages):
        place = f"messages[{number}]"
        role = message.get("role") if isinstance(message, dict) else None
        role = "system" if role == "developer" else role
        if role not in ("system", "user", "assistant"):
            raise RequestRefused(f"{place}.role must be system, user or assistant", place)
        turns.append((role, _text(message.get("content"), f"{place}.content")))
    return turns


def _text(content: Any, place: str) -> str:
    """Return the text of a message, which may come in parts."""
    parts = content if isinstance(content, list) else [{"type": "text", "text": content}]
    texts = []
    for part in parts:
        if not isinstance(part, dict) or part.get("type") != "text" or not isinstance(part.get("text"), str):
            raise RequestRefused(f"{place} must be text, or a list of parts of type text", place)
        try:
            part["text"].encode()
        except UnicodeEncodeError:
            raise RequestRefused(f"{place} contains half a character (a lone surrogate)", place) from None
        texts.append(part["text"])
    return "".join(texts)


def _number(body: dict[str, Any], name: str, kind: type, low: float, high: float | None = None) -> Any:
    value = body.get(name)
    if value is None:
        return None
    valid = isinstance(value, (int, float) if kind is float else int) and not isinstance(value, bool)
    if not valid or not value >= low or (high is not None and not value <= high):
        bounds = f"at least {low}" if high is None else f"between {low} and {high}"
        raise RequestRefused(f"{name} must be {'a number' if kind is float else 'an integer'}, {bounds}", name)
    return value


def _flag(body: dict[str, Any], name: str) -> bool:
    value = body.get(name)
    if not isinstance(value, bool | None):
        raise RequestRefused(f"{name} must be true or false", name)
    return bool(value)


@dataclass(frozen=True, slots=True)
class Piece:
    """A sentence of an answer that is ready to be sent.

    Attributes:
        content: the text with the white space before it; "" where ``min_score`` leaves it out.
        entry: the sentence's entry in the list of confidences.
    """

    content: str
    entry: dict[str, Any]


class AnswerPieces:
    """Cuts a growing answer into pieces: each sentence when its tag is closed, the rest at the end.

    Args:
        encoder: the encoder of the model that writes the answer.
        min_score: sentences with a lower score, or without one, have no content; None keeps all.
    """

    def __init__(self, encoder: Encoder, min_score: int | None) -> None:
        self._reader = AnswerReader(encoder)
        self._scale = encoder.scale
        self._min_score = min_score
        self._has_content = False

    def on_token(self, token: int) -> list[Piece]:
        """Add a token, and return the pieces that it completes: usually none."""
        return [self._piece(s.raw, s.text, s.score, s.problem) for s in self._reader.on_token(token)]

    def rest(self) -> list[Piece]:
        """Return the remaining pieces at the end of the answer: a broken sentence, text after the last tag."""
        rest = self._reader.rest()
        pieces = [self._piece(s.raw, s.text, s.score, s.problem) for s in rest.sentences]
        if tail := rest.tail.strip():
            pieces.append(self._piece(rest.tail, tail, None, "untagged tail"))
        return pieces

    def _piece(self, raw: str, text: str, score: int | None, problem: str | None) -> Piece:
        entry = confidence_entry(text, score, self._scale, self._min_score, problem)
        space = raw[: len(raw) - len(raw.lstrip())]
        content = f"{space if self._has_content else ''}{text}" if entry["kept"] else ""
        self._has_content = self._has_content or bool(content)
        return Piece(content, entry)


def confidence_entry(
    text: str, score: int | None, scale: Scale, min_score: int | None, problem: str | None = None
) -> dict[str, Any]:
    """Return the entry of a sentence in the list of confidences; a problem says what is wrong with its tag."""
    entry = {
        "text": text,
        "score": score,
        "confidence": None if score is None else scale.confidence(score),
        "kept": min_score is None or (score is not None and score >= min_score),
    }
    return entry if problem is None else entry | {"problem": problem}


class ResponseBuilder:
    """Builds the response to one chat request, in one piece or as a stream, with an id of its own.

    Args:
        model: name of the model that answers.
    """

    def __init__(self, model: str) -> None:
        self._head = {"id": f"chatcmpl-{uuid.uuid4().hex}", "created": int(time.time()), "model": model}

    def whole(self, pieces: Sequence[Piece], finish: str, usage: dict[str, int]) -> dict[str, Any]:
        """Return the response as one object."""
        message = {
            "role": "assistant",
            "content": "".join(piece.content for piece in pieces),
            "confidence": [piece.entry for piece in pieces],
        }
        choice = {"index": 0, "message": message, "finish_reason": finish, "logprobs": None}
        return {**self._head, "object": "chat.completion", "choices": [choice], "usage": usage}

    def chunk(self, delta: dict[str, Any], finish: str | None = None) -> str:
        """Return an event of a stream that adds to the answer."""
        return self._event({"choices": [{"index": 0, "delta": delta, "finish_reason": finish}]})

    def usage_chunk(self, usage: dict[str, int]) -> str:
        """Return the event of a stream that counts its tokens."""
        return self._event({"choices": [], "usage": usage})

    def _event(self, data: dict[str, Any]) -> str:
        return event({**self._head, "object": "chat.completion.chunk", **data})


def event(data: dict[str, Any]) -> str:
    """Return an object as a server-sent event."""
    return f"data: {json.dumps(data)}\n\n"


def count_usage(prompt: Sequence[int], completion: Sequence[int]) -> dict[str, int]:
    """Return the token counts of a request, in OpenAI's format."""
    counts = {"prompt_tokens": len(prompt), "completion_tokens": len(completion)}
    return {**counts, "total_tokens": sum(counts.values())}


def error_body(message: str, kind: str, parameter: str | None = None, code: str | None = None) -> dict[str, Any]:
    """Return an error in OpenAI's format."""
    return {"error": {"message": message, "type": kind, "param": parameter, "code": code}}
