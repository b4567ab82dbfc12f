"""The files of the Batch API: requests as JSON Lines, and the lines that come back, in any order."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lovec.calls import MalformedReply
from lovec.oracles.cache import ChatReply
from lovec.oracles.chat import encodable, read_reply

ENDPOINT = "/v1/chat/completions"
"""What every request of a batch calls."""

MOST_REQUESTS = 50_000
"""Most requests in a file."""

MOST_BYTES = 200_000_000
"""Most bytes of a file."""

NOT_RUN = ("batch_expired", "batch_cancelled")
"""Codes of requests that were not run, and not paid for, because the batch ended before."""


@dataclass(frozen=True, slots=True)
class Problem:
    """Why a request has no reply.

    Attributes:
        code: the server's code, or the HTTP status; "" where it gives none.
        message: what the server says, in one line.
    """

    code: str
    message: str


def request_line(key: str, model: str, messages: Sequence[Mapping[str, str]], parameters: Mapping[str, Any]) -> bytes:
    """Return a request as a line of a file.

    Args:
        key: name of the request, at most 64 characters, by which its reply is found.
        model: name of the model.
        messages: the chat.
        parameters: of the call, such as ``{"temperature": 0}``.
    """
    body = {"model": model, "messages": [dict(message) for message in messages], **parameters}
    return json.dumps({"custom_id": key, "method": "POST", "url": ENDPOINT, "body": body}).encode() + b"\n"


def read_lines(text: str) -> Iterator[tuple[str, ChatReply | Problem]]:
    """Yield the key of every request in a file of replies or of errors, and its reply, or why it has none.

    Lines that name no request are passed over: their requests then count as those without any line.
    """
    for line in text.split("\n"):
        try:
            data = json.loads(line)
            key, response, error = data["custom_id"], data.get("response"), data.get("error")
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
            continue
        if isinstance(key, str):
            yield key, _read_result(response, error)


def _read_result(response: Any, error: Any) -> ChatReply | Problem:
    if isinstance(response, dict) and error is None:
        body, status = response.get("body"), response.get("status_code")
        if status == 200:
            try:
                return read_reply(json.dumps(body))
            except MalformedReply as malformed:
                return Problem("", f"unexpected reply: {_one_line(str(malformed))}")
        error = body.get("error") if isinstance(body, dict) else None
        found = _read_error(error)
        return Problem(found.code or str(status), f"HTTP {status}: {found.message}")
    return _read_error(error)


def _read_error(error: Any) -> Problem:
    """Return an error as servers write it: {"code": ..., "message": ...}; both may be missing."""
    code, message = (error.get(name) if isinstance(error, dict) else None for name in ("code", "message"))
    return Problem(
        encodable(code) if isinstance(code, str) else "",
        _one_line(message) if isinstance(message, str) else "the server does not say why",
    )


def _one_line(text: str) -> str:
    return " ".join(encodable(text).split())[:200]
