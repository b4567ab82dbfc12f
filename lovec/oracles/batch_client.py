"""The Batch API: a client that uploads requests, begins a batch and fetches its replies, and the files of both.

Requests are JSON Lines, and so are the lines that come back, in any order.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import IO, Any
from urllib.parse import quote

from lovec.core.calls import ApiClient, MalformedReply
from lovec.oracles.cache import ChatReply
from lovec.oracles.chat import KEY, api_key, encodable, read_reply

ENDPOINT = "/v1/chat/completions"
"""What every request of a batch calls."""

MOST_REQUESTS = 50_000
"""Most requests in a file."""

MOST_BYTES = 200_000_000
"""Most bytes of a file."""

NOT_RUN = ("batch_expired", "batch_cancelled")
"""Codes of requests that were not run, and not paid for, because the batch ended before."""

ENDED = ("completed", "failed", "expired", "cancelled")
"""Statuses of a batch that do not change any more; in all others the server works on it."""

SETTLE_SECONDS = 10.0
"""How long a call that got no reply may still be on its way to the server; a batch is looked for only after that."""

_LISTED = 100  # batches on a page of the list, the most that servers allow
_TRANSFER_SECONDS = 3600.0  # the most for a file, which may have 200 MB
_NO_BATCHES = "the server has no such call, or not this file or batch; base_url ends in /v1 for most servers"
_ADVICE = {
    401: f"set {KEY} to a key that this server accepts",
    402: "the account has no credit left",
    404: _NO_BATCHES,
    405: _NO_BATCHES,
    501: _NO_BATCHES,
}


@dataclass(frozen=True, slots=True)
class Problem:
    """Why a request has no reply.

    Attributes:
        code: the server's code, or the HTTP status; "" where it gives none.
        message: what the server says, in one line.
    """

    code: str
    message: str


@dataclass(frozen=True, slots=True)
class Status:
    """How far a batch is.

    Attributes:
        id: the server's name of the batch.
        state: "validating", "in_progress", "finalizing", "completed", "failed", "expired", "cancelling" or "cancelled";
            servers may have others.
        input_file: the server's name of the file of requests; "" where it does not say.
        files: names of the files of replies and of errors, if they exist.
        total: number of requests, as far as the server has counted.
        done: number of requests with a reply or an error.
        problems: why the whole batch failed.
    """

    id: str
    state: str
    input_file: str
    files: tuple[str, ...]
    total: int
    done: int
    problems: tuple[Problem, ...]

    @property
    def ended(self) -> bool:
        """Whether nothing more will come."""
        return self.state in ENDED


class BatchClient(ApiClient):
    """Calls the Batch API of one server; see `ApiClient`.

    All methods raise ``CallFailed`` where a call fails, and ``ServerRefused`` where every call would.

    Args:
        url: address of the server.
        timeout: the most seconds of a call; a file may take an hour.
        retries: how often a call is repeated after a transient fault.

    Raises:
        LovecError: there is no API key, and the server is OpenAI's.
    """

    def __init__(self, url: str, timeout: float, retries: int) -> None:
        super().__init__(url, api_key(url), timeout, retries, _ADVICE)

    async def upload(self, name: str, file: IO[bytes]) -> str:
        """Upload a file of requests, from its beginning, under a name; return the server's own name of it."""

        async def call() -> str:
            file.seek(0)
            reply = await self._client.post(
                "/files",
                body={"purpose": "batch"},
                files=[("file", (name, file, "application/jsonl"))],
                options={"headers": {"Content-Type": "multipart/form-data"}},
                cast_to=str,
            )
            return _text(_read(reply), "id")

        return await self._with_retries(call, self.retries, seconds=_TRANSFER_SECONDS)

    async def create(self, file: str) -> str:
        """Let the server begin a batch, and return its name of it.

        A call without a reply may have begun the batch, so before it is made again the batch is looked for.
        """
        called = False

        async def call() -> str:
            nonlocal called
            if called:
                await asyncio.sleep(SETTLE_SECONDS)
                if found := await self._found(file):
                    return found
            called = True
            body = {"input_file_id": file, "endpoint": ENDPOINT, "completion_window": "24h"}
            return _read_status(await self._client.post("/batches", body=body, cast_to=str)).id

        return await self._with_retries(call, self.retries, seconds=self.timeout + SETTLE_SECONDS)

    async def find(self, file: str) -> str | None:
        """Return the name of the batch that was begun with a file; None if there is none."""
        return await self._with_retries(lambda: self._found(file), self.retries)

    async def status(self, batch: str) -> Status:
        """Return how far a batch is."""
        return await self.get(f"/batches/{quote(batch, safe='')}", _read_status, self.retries)

    async def content(self, file: str) -> str:
        """Return what a file holds."""

        async def call() -> str:
            return str(await self._client.get(f"/files/{quote(file, safe='')}/content", cast_to=str))

        return await self._with_retries(call, self.retries, seconds=_TRANSFER_SECONDS)

    async def delete(self, file: str) -> None:
        """Delete a file of requests."""

        async def call() -> None:
            await self._client.delete(f"/files/{quote(file, safe='')}", cast_to=str)

        await self._with_retries(call, retries=0)

    async def _found(self, file: str) -> str | None:
        after: dict[str, str] = {}
        while True:
            query = {"params": {"limit": _LISTED, **after}}
            page = _read(await self._client.get("/batches", options=query, cast_to=str))
            try:
                listed = [_status(entry) for entry in page["data"]]
            except (LookupError, TypeError):
                raise MalformedReply(str(page)[:100]) from None
            for status in listed:
                if status.input_file == file:
                    return status.id
            if not listed or not page.get("has_more"):
                return None
            after = {"after": listed[-1].id}


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


def _read(body: str) -> dict[str, Any]:
    """Return a reply, which is a JSON object."""
    try:
        data = json.loads(body)
    except (ValueError, RecursionError):
        data = None
    if not isinstance(data, dict):
        raise MalformedReply(body[:100] or "nothing")
    return data


def _read_status(body: str) -> Status:
    return _status(_read(body))


def _status(data: Any) -> Status:
    if not isinstance(data, dict):
        raise MalformedReply(str(data)[:100])
    files = [data.get(name) for name in ("output_file_id", "error_file_id")]
    input_file, counts, errors = data.get("input_file_id"), data.get("request_counts"), data.get("errors")
    counts = counts if isinstance(counts, dict) else {}
    total, completed, failed = (
        n if type(n := counts.get(name)) is int else 0 for name in ("total", "completed", "failed")
    )
    listed = errors.get("data") if isinstance(errors, dict) else None
    problems = [_problem(error) for error in listed or () if isinstance(error, dict)]
    return Status(
        _text(data, "id"),
        _text(data, "status"),
        input_file if isinstance(input_file, str) else "",
        tuple(name for name in files if isinstance(name, str) and name),
        total,
        completed + failed,
        tuple(problems),
    )


def _problem(error: Mapping[str, Any]) -> Problem:
    line = f"line {error['line']}: " if type(error.get("line")) is int else ""
    message = _one_line(str(error.get("message") or "the server does not say why"))
    return Problem(str(error.get("code") or ""), line + message)


def _text(data: Mapping[str, Any], name: str) -> str:
    value = data.get(name)
    if not isinstance(value, str) or not value:
        raise MalformedReply(f"no {name} in {str(data)[:100]}")
    return encodable(value)


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
