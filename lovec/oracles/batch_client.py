"""A client of the Batch API: upload requests, begin a batch, look how far it is, fetch its replies."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import IO, Any
from urllib.parse import quote

from lovec.calls import ApiClient, MalformedReply
from lovec.oracles.batch_files import ENDPOINT, Problem
from lovec.oracles.chat import KEY, api_key, encodable

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
    message = " ".join(encodable(str(error.get("message") or "the server does not say why")).split())
    return Problem(str(error.get("code") or ""), line + message[:200])


def _text(data: Mapping[str, Any], name: str) -> str:
    value = data.get(name)
    if not isinstance(value, str) or not value:
        raise MalformedReply(f"no {name} in {str(data)[:100]}")
    return encodable(value)
