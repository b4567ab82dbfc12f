"""What comes in and goes out over HTTP: OpenAI's chat format, with a confidence for every sentence beside the text."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from lovec.encoding import Encoder
from lovec.taggers.freeform import AnswerReader
from lovec.tags import TaggedSentence
from lovec.types import N_SCORES, LovecError, Sampling

_IGNORED = frozenset(
    "user metadata store service_tier safety_identifier prompt_cache_key reasoning_effort verbosity".split()
)
"""Parameters that say nothing about the answer."""

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
"""Parameters that are not supported, and the values that ask for nothing."""

_KNOWN = ("messages", "model", "max_tokens", "max_completion_tokens", "temperature", "seed", "stream", "stream_options",
          "min_score")  # fmt: skip


class BadRequest(LovecError):
    """A request that cannot be answered as it is.

    Attributes:
        status: HTTP status.
        parameter: what is wrong with it, if one thing is.
        code: OpenAI's word for it, if there is one.
    """

    def __init__(self, message: str, parameter: str | None = None, status: int = 400, code: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.parameter = parameter
        self.code = code


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """A question, read and checked.

    Attributes:
        turns: (role, text), in their order.
        sampling: how to sample the answer.
        seeded: whether the request names a seed; the same request then gets the same answer.
        stream: whether sentences go out as they come.
        usage: whether a stream ends with a chunk that counts tokens.
        min_score: sentences below it, or without a score, stay out of the text; None keeps all.
    """

    turns: tuple[tuple[str, str], ...]
    sampling: Sampling
    seeded: bool
    stream: bool
    usage: bool
    min_score: int | None

    @classmethod
    def read(cls, body: dict[str, Any], model: str, longest: int) -> ChatRequest:
        """The request in a JSON object.

        Args:
            body: as it came.
            model: the only model there is.
            longest: tokens that an answer may have; more is asked for in vain, and without a wish it is the limit.

        Raises:
            BadRequest: it holds what is not supported, or something of the wrong kind.
        """
        for name, value in body.items():
            if value is None or name in _KNOWN or name in _IGNORED:
                continue
            if name not in _NEUTRAL:
                near = get_close_matches(name, [*_KNOWN, *_NEUTRAL], 1)
                raise BadRequest(f"unknown parameter {name!r}" + (f"; did you mean {near[0]!r}?" if near else ""), name)
            if value not in _NEUTRAL[name]:
                raise BadRequest(f"{name} is not supported here; leave it out", name)
        if (asked := body.get("model")) not in (None, model):
            raise BadRequest(f"there is no model {asked!r} here, only {model!r}", "model", 404, "model_not_found")
        limit = _number(body, "max_completion_tokens", int, 1) or _number(body, "max_tokens", int, 1) or longest
        temperature = _number(body, "temperature", float, 0.0, 2.0)
        options = body.get("stream_options") or {}
        if not isinstance(options, dict):
            raise BadRequest("stream_options is no object", "stream_options")
        return cls(
            tuple(_turns(body.get("messages"))),
            Sampling(min(limit, longest), temperature or 0.0, seed=_number(body, "seed", int, -(2**63), 2**63) or 0),
            body.get("seed") is not None,
            _flag(body, "stream"),
            _flag(options, "include_usage"),
            min_score_of(body),
        )


def min_score_of(body: dict[str, Any]) -> int | None:
    """The threshold in a request: a score 0..10, or None.

    Raises:
        BadRequest: it is something else.
    """
    found: int | None = _number(body, "min_score", int, 0, N_SCORES - 1)
    return found


def _turns(messages: Any) -> list[tuple[str, str]]:
    if not isinstance(messages, list) or not messages:
        raise BadRequest("messages must be a list of at least one message", "messages")
    turns = []
    for number, message in enumerate(messages):
        place = f"messages[{number}]"
        role = message.get("role") if isinstance(message, dict) else None
        role = "system" if role == "developer" else role
        if role not in ("system", "user", "assistant"):
            raise BadRequest(f"{place}.role must be system, user or assistant", place)
        turns.append((role, _text(message.get("content"), f"{place}.content")))
    return turns


def _text(content: Any, place: str) -> str:
    """The text of a message, which may come in parts."""
    parts = content if isinstance(content, list) else [{"type": "text", "text": content}]
    texts = []
    for part in parts:
        if not isinstance(part, dict) or part.get("type") != "text" or not isinstance(part.get("text"), str):
            raise BadRequest(f"{place} must be text, or a list of parts of type text", place)
        try:
            part["text"].encode()
        except UnicodeEncodeError:
            raise BadRequest(f"{place} holds half a character (a lone surrogate)", place) from None
        texts.append(part["text"])
    return "".join(texts)


def _number(body: dict[str, Any], name: str, kind: type, low: float, high: float | None = None) -> Any:
    value = body.get(name)
    if value is None:
        return None
    right = isinstance(value, (int, float) if kind is float else int) and not isinstance(value, bool)
    if not right or not value >= low or (high is not None and not value <= high):
        bounds = f"at least {low}" if high is None else f"between {low} and {high}"
        raise BadRequest(f"{name} must be {'a number' if kind is float else 'an integer'}, {bounds}", name)
    return value


def _flag(body: dict[str, Any], name: str) -> bool:
    value = body.get(name)
    if not isinstance(value, bool | None):
        raise BadRequest(f"{name} must be true or false", name)
    return bool(value)


@dataclass(frozen=True, slots=True)
class Piece:
    """A sentence of an answer on its way out.

    Attributes:
        content: the text with the white space before it; "" where the threshold leaves it out.
        entry: what stands in the list of confidences.
    """

    content: str
    entry: dict[str, Any]


class AnswerPieces:
    """An answer as it grows, cut into pieces: each sentence once its tag is closed, the rest at the end.

    Args:
        encoder: of the model that writes.
        min_score: the threshold, or None.
    """

    def __init__(self, encoder: Encoder, min_score: int | None) -> None:
        self._reader = AnswerReader(encoder)
        self._min_score = min_score
        self._begun = False

    def on_token(self, token: int) -> list[Piece]:
        """The pieces that are complete with this token: mostly none."""
        return [self._of(found) for found in self._reader.on_token(token)]

    def rest(self) -> list[Piece]:
        """The pieces that are left once the answer is over: broken ones, and text behind the last tag."""
        left = self._reader.rest()
        pieces = [self._of(found) for found in left.sentences]
        if tail := left.tail.strip():
            pieces.append(self._piece(left.tail, tail, None, "untagged tail"))
        return pieces

    def _of(self, found: TaggedSentence) -> Piece:
        return self._piece(found.raw, found.text, found.score, found.problem)

    def _piece(self, raw: str, text: str, score: int | None, problem: str | None) -> Piece:
        kept = passes(score, self._min_score)
        space = raw[: len(raw) - len(raw.lstrip())]
        content = f"{space if self._begun else ''}{text}" if kept else ""
        self._begun = self._begun or bool(content)
        return Piece(content, entry(text, score, kept, problem))


def passes(score: int | None, least: int | None) -> bool:
    """Whether a sentence with this score is kept; without a threshold all are."""
    return least is None or (score is not None and score >= least)


def entry(text: str, score: int | None, kept: bool, problem: str | None = None) -> dict[str, Any]:
    """What the list of confidences says of a sentence."""
    said = {"text": text, "score": score, "confidence": None if score is None else score / 10, "kept": kept}
    return said if problem is None else said | {"problem": problem}


class Reply:
    """The frame around an answer.

    Args:
        name: of the reply.
        model: that answers.
    """

    def __init__(self, name: str, model: str) -> None:
        self._frame = {"id": name, "created": int(time.time()), "model": model}

    def whole(self, pieces: Sequence[Piece], finish: str, usage: dict[str, int]) -> dict[str, Any]:
        """A reply in one go."""
        message = {
            "role": "assistant",
            "content": "".join(piece.content for piece in pieces),
            "confidence": [piece.entry for piece in pieces],
        }
        choice = {"index": 0, "message": message, "finish_reason": finish, "logprobs": None}
        return {**self._frame, "object": "chat.completion", "choices": [choice], "usage": usage}

    def chunk(self, delta: dict[str, Any], finish: str | None = None) -> str:
        """A piece of a stream."""
        return self._event({"choices": [{"index": 0, "delta": delta, "finish_reason": finish}]})

    def counted(self, usage: dict[str, int]) -> str:
        """The piece of a stream that counts its tokens."""
        return self._event({"choices": [], "usage": usage})

    def _event(self, data: dict[str, Any]) -> str:
        return event({**self._frame, "object": "chat.completion.chunk", **data})


def event(data: dict[str, Any]) -> str:
    """An object as a server-sent event."""
    return f"data: {json.dumps(data)}\n\n"


def usage(prompt: Sequence[int], completion: Sequence[int]) -> dict[str, int]:
    """Tokens of a request."""
    counts = {"prompt_tokens": len(prompt), "completion_tokens": len(completion)}
    return {**counts, "total_tokens": sum(counts.values())}


def error_body(message: str, kind: str, parameter: str | None = None, code: str | None = None) -> dict[str, Any]:
    """An error in OpenAI's shape."""
    return {"error": {"message": message, "type": kind, "param": parameter, "code": code}}
