"""Calls to an OpenAI-compatible server: when to ask again, how long to wait, and when to give up."""

from __future__ import annotations

import asyncio
import math
import os
import random
import time
from collections.abc import Awaitable, Callable, Mapping
from email.utils import parsedate_to_datetime
from itertools import count
from types import TracebackType
from typing import Any, Self, TypeVar
from urllib.parse import urlsplit

from lovec.types import LovecError

T = TypeVar("T")

_FIRST_WAIT = 1.0  # seconds; doubled at every further try
_LONGEST_WAIT = 60.0
_LONGEST_ASKED_WAIT = 300.0  # a server that asks for more has closed for the day
_PASSING = {408, 409, 425, 429}  # and everything from 500
_FINAL = (401, 402, 404)


class Failed(Exception):
    """This call got no usable reply; another may."""


class Refused(Exception):
    """No call will get a reply: the key, the account, the model or the address is wrong."""


class Garbage(Exception):
    """A reply that is not what the protocol says."""


class Calls:
    """Calls one server. It is bound to the event loop it is entered in.

    Args:
        url: address, as ``address`` gives it.
        key: what the server wants to be shown; "" where it wants nothing.
        timeout: seconds a call may take from its first byte to its last.
        retries: how often a call is made again after a passing fault (429, 5xx, a time-out, a broken connection or
            body), with waits that double from 1 to 60 s and are drawn from the upper half of that; where the server
            names a wait (Retry-After), that one.
        advice: what to do about statuses that mean the same for every call: 401, 402, 404.
    """

    def __init__(self, url: str, key: str, timeout: float, retries: int, advice: Mapping[int, str]) -> None:
        self.url = url
        self.timeout = timeout
        self.retries = retries
        self.advice = advice
        self._key = key
        self._client: Any = None

    async def __aenter__(self) -> Self:
        import openai  # takes a second

        # The client wants a key even where the server wants none. Its own retries know no garbage and no deadline.
        self._client = openai.AsyncOpenAI(
            api_key=self._key or "none",
            base_url=self.url,
            max_retries=0,
            timeout=openai.Timeout(self.timeout, connect=min(self.timeout, 15.0)),
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._client.close()

    async def get(self, path: str, read: Callable[[str], T]) -> T:
        """What ``read`` makes of the text of a reply; errors as for ``post``, but no second try."""

        async def call() -> T:
            return read(await self._client.get(path, cast_to=str))

        return await self._tried(call, retries=0)

    async def post(self, path: str, body: Mapping[str, Any], read: Callable[[str], T], retries: int | None = None) -> T:
        """What ``read`` makes of the text of a reply.

        Args:
            path: behind the address.
            body: sent as JSON.
            read: raises ``Garbage`` where the text is not what it should be; then the call is made again.
            retries: as for the class, which is the default.

        Raises:
            Failed: there is none; the message says why, in one line.
            Refused: there will be none to anything.
        """

        async def call() -> T:
            return read(await self._client.post(path, body=dict(body), cast_to=str))

        return await self._tried(call, self.retries if retries is None else retries)

    async def stream(self, path: str, body: Mapping[str, Any], on_token: Callable[[Any], bool]) -> None:
        """Give ``on_token`` the events of a streamed reply, until there are no more or it says False.

        Faults before the first event are tried again; after it they raise ``Failed``.

        Raises:
            Failed: see ``post``.
            Refused: likewise.
        """
        import openai

        begun = False

        async def call() -> None:
            nonlocal begun
            kind = openai.AsyncStream[object]
            events = await self._client.post(path, body=dict(body), cast_to=object, stream=True, stream_cls=kind)
            try:
                async for event in events:
                    begun = True
                    if not on_token(event):
                        return
            finally:
                await events.close()

        await self._tried(call, self.retries, again=lambda: not begun)

    async def _tried(
        self, call: Callable[[], Awaitable[T]], retries: int, again: Callable[[], bool] = lambda: True
    ) -> T:
        import openai

        for tries in count(1):
            wait = None
            try:
                async with asyncio.timeout(self.timeout):  # the client's own limit is between two bytes
                    return await call()
            except (TimeoutError, openai.APITimeoutError):
                problem = f"no reply within {self.timeout:g} s"
            except openai.APIStatusError as error:
                problem = self._line(f"HTTP {error.status_code}: {_said(error.body) or error.response.reason_phrase}")
                if error.code == "insufficient_quota":
                    raise Refused(f"{problem}; {self.advice[402]}") from None
                if error.status_code in _FINAL:
                    raise Refused(f"{problem}; {self.advice[error.status_code]}") from None
                if error.status_code not in _PASSING and error.status_code < 500:
                    raise Failed(problem) from None
                wait = _asked_wait(error.response.headers)
            except openai.OpenAIError as error:
                problem = self._line(f"broken connection: {error.__cause__ or error}")
            except Garbage as error:
                problem = self._line(f"not what was asked for: {error}")
            if wait is not None and wait > _LONGEST_ASKED_WAIT:
                raise Failed(f"{problem} (the server asks to wait {wait:.0f} s)")
            if tries > retries or not again():
                raise Failed(f"{problem} ({tries} tries)" if tries > 1 else problem)
            if wait is None:
                wait = min(_FIRST_WAIT * 2 ** min(tries - 1, 30), _LONGEST_WAIT) * random.uniform(0.5, 1.0)
            else:
                wait += random.uniform(0.0, _FIRST_WAIT)  # so that not all come back at once
            await asyncio.sleep(wait)
        raise AssertionError("count() does not end")

    def _line(self, text: str) -> str:
        """A server's words in one line, without the key if it says it back."""
        words = " ".join(text.split())
        words = words.replace(self._key, "***") if self._key else words
        return words if len(words) <= 200 else f"{words[:197]}..."


def address(url: str, name: str, key: str) -> str:
    """An address without a slash at its end.

    Args:
        url: the address.
        name: of the option that holds it, for the message.
        key: the environment variable that holds the key.

    Raises:
        LovecError: it is no http address, or holds a password or a query, in which a key might hide.
    """
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError:
        parts = urlsplit("")
    if "@" in parts.netloc or parts.query or parts.fragment:
        raise LovecError(f"{name} holds more than an address, expected http://host:port/v1; keys belong in ${key}")
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise LovecError(f"{name} is {url!r}, expected an address such as http://localhost:8000/v1")
    return url.rstrip("/")


def key_from(variable: str) -> str:
    """The key in an environment variable; "" where there is none.

    Raises:
        LovecError: it holds characters that no header takes.
    """
    key = os.environ.get(variable, "").strip()
    if not (key.isascii() and key.isprintable()):
        raise LovecError(f"${variable} holds characters that no key has; set it again")
    return key


def _said(body: object) -> str:
    """The message in the body of an error: {"message": ...} or plain text."""
    message = body.get("message") if isinstance(body, Mapping) else body
    return message if isinstance(message, str) else ""


def _asked_wait(headers: Mapping[str, str]) -> float | None:
    """Seconds the server asks to wait (Retry-After in seconds or as a date), if it does."""
    for name, unit in (("retry-after-ms", 1e-3), ("retry-after", 1.0)):
        try:
            seconds = float(headers.get(name, "")) * unit
        except ValueError:
            continue
        return max(seconds, 0.0) if not math.isnan(seconds) else None
    try:
        return max(parsedate_to_datetime(headers.get("retry-after", "")).timestamp() - time.time(), 0.0)
    except (ValueError, TypeError, OverflowError):
        return None
