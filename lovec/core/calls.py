"""HTTP calls to an OpenAI-compatible server: what is retried, how long to wait in between, and when to give up."""

from __future__ import annotations

import asyncio
import math
import os
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from email.utils import parsedate_to_datetime
from functools import cache
from itertools import count
from typing import Any, Self, TypeVar
from urllib.parse import urlsplit

from lovec.core.errors import LovecError

T = TypeVar("T")

_FIRST_WAIT = 1.0  # seconds; doubled at every further retry
_LONGEST_WAIT = 60.0
_LONGEST_RETRY_AFTER = 300.0  # a server that asks to wait longer will not answer soon
_TRANSIENT = {408, 409, 425, 429}  # statuses that are retried, besides everything from 500


class CallFailed(Exception):
    """A call got no usable reply; other calls to the same server may.

    Attributes:
        status: HTTP status of the last reply; None where there was none, or it was no error.
        code: what the server calls the error; None where it does not say.
    """

    def __init__(self, message: str, status: int | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.status, self.code = status, code


class CallRefused(CallFailed):
    """A call was refused as it is (400, 422, ...): one with other parameters may be accepted."""


class ServerRefused(Exception):
    """No call to this server will succeed: the key, the account, the model or the address is wrong."""


class MalformedReply(Exception):
    """A reply that does not follow the protocol."""


class ApiClient:
    """Calls one server; an async context manager, bound to the event loop in which it is entered.

    Args:
        url: address of the server, as ``server_address`` returns it.
        key: API key; "" sends none.
        timeout: the most seconds that a call may take, from its first byte to its last.
        retries: how often a call is repeated after a transient fault (429, 5xx, a time-out, a broken connection or
            body). The waits double from 1 to 60 s, and each is drawn from the upper half of its range; where the
            server names a wait (Retry-After), that one is used.
        advice: what the user can do about the statuses that every other call would get as well (401, 402, 404).
    """

    def __init__(self, url: str, key: str, timeout: float, retries: int, advice: Mapping[int, str]) -> None:
        self.url = url
        self.timeout = timeout
        self.retries = retries
        self.advice = advice
        self._key = key
        self._client: Any = None

    async def __aenter__(self) -> Self:
        import openai  # here, because the import takes a second

        # The client requires a key even where the server does not. Its own retries know neither malformed replies nor
        # a deadline for the whole call.
        self._client = openai.AsyncOpenAI(
            api_key=self._key or "none",
            base_url=self.url,
            max_retries=0,
            timeout=openai.Timeout(self.timeout, connect=min(self.timeout, 15.0)),
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._client.close()

    async def get(self, path: str, read: Callable[[str], T], retries: int = 0) -> T:
        """Return ``read`` of the text of a reply. Raises the errors of ``post``, but does not retry by default."""

        async def call() -> T:
            return read(await self._client.get(path, cast_to=str))

        return await self._with_retries(call, retries)

    async def post(self, path: str, body: Mapping[str, Any], read: Callable[[str], T], retries: int | None = None) -> T:
        """Return ``read`` of the text of a reply.

        Args:
            path: path of the call, appended to the address.
            body: sent as JSON.
            read: reads the text of the reply; raises ``MalformedReply`` if it is not as expected, which is retried.
            retries: how often the call is repeated; None takes the client's ``retries``.

        Raises:
            CallFailed: there is no usable reply; the message says why, in one line. `CallRefused` where the server
                refuses the call as it is.
            ServerRefused: no call to this server will succeed.
        """

        async def call() -> T:
            return read(await self._client.post(path, body=dict(body), cast_to=str))

        return await self._with_retries(call, self.retries if retries is None else retries)

    async def stream(
        self, path: str, body: Mapping[str, Any], on_event: Callable[[Any], bool], begun: Callable[[], bool]
    ) -> bool:
        """Call ``on_event`` with every event of a streamed reply, until the last one or until it returns False.

        Faults are retried as long as nothing of the answer has come; later ones raise ``CallFailed``.

        Args:
            path: path of the call, appended to the address.
            body: sent as JSON.
            on_event: returns whether it wants more; raises ``MalformedReply``, and keeps nothing of the event, if it is
                not as expected.
            begun: returns whether ``on_event`` has got anything of the answer.

        Returns:
            Whether the reply is known to be whole: the server has said so ([DONE]), or ``on_event`` wanted no more.

        Raises:
            CallFailed: see ``post``.
            ServerRefused: see ``post``.
        """

        async def call() -> bool:
            started = False
            kind = _stream_class()
            events = await self._client.post(path, body=dict(body), cast_to=object, stream=True, stream_cls=kind)
            try:
                while True:
                    try:
                        event = await anext(events)
                    except StopAsyncIteration:
                        break
                    except (ValueError, RecursionError) as error:
                        raise MalformedReply(f"an event that is no JSON ({error})") from None
                    going = on_event(event)
                    started = True
                    if not going:
                        return True
            finally:
                await events.close()
            if started and (events.done or begun()):
                return bool(events.done)
            if started:
                raise MalformedReply("a stream that ended before the answer began")
            raise _no_event(events.response.headers.get("content-type", ""))

        return await self._with_retries(call, self.retries, may_retry=lambda: not begun())

    async def _with_retries(
        self,
        call: Callable[[], Awaitable[T]],
        retries: int,
        may_retry: Callable[[], bool] = lambda: True,
        seconds: float | None = None,
    ) -> T:
        import openai

        seconds = max(self.timeout, seconds or 0.0)

        for tries in count(1):
            wait = status = None
            try:
                async with asyncio.timeout(seconds):  # the client's own time-out is between two bytes
                    return await call()
            except (TimeoutError, openai.APITimeoutError):
                problem = f"no reply within {seconds:g} s"
            except openai.APIStatusError as error:
                message = _error_message(error.body) or error.response.reason_phrase
                problem = self._line(f"HTTP {error.status_code}: {message}")
                status = 402 if error.code == "insufficient_quota" else error.status_code
                if status in self.advice:
                    raise ServerRefused(f"{problem}; {self.advice[status]}") from None
                if status not in _TRANSIENT and status < 500:
                    raise CallRefused(problem, status, error.code) from None
                wait = _retry_after(error.response.headers)
            except openai.OpenAIError as error:
                problem = self._line(f"broken connection: {error.__cause__ or error}")
            except MalformedReply as error:
                problem = self._line(f"unexpected reply: {error}")
            if wait is not None and wait > _LONGEST_RETRY_AFTER:
                raise CallFailed(f"{problem} (the server asks to wait {wait:.0f} s)", status)
            if tries > retries or not may_retry():
                raise CallFailed(f"{problem} ({tries} tries)" if tries > 1 else problem, status)
            if wait is None:
                wait = min(_FIRST_WAIT * 2 ** min(tries - 1, 30), _LONGEST_WAIT) * random.uniform(0.5, 1.0)
            else:
                wait += random.uniform(0.0, _FIRST_WAIT)  # so that not all calls return at once
            await asyncio.sleep(wait)
        raise AssertionError("count() does not end")

    def _line(self, text: str) -> str:
        """Return a text of the server in one line of at most 200 characters, without the API key if it repeats it."""
        words = " ".join(text.split())
        words = words.replace(self._key, "***") if self._key else words
        return words if len(words) <= 200 else f"{words[:197]}..."


@cache
def _stream_class() -> type[Any]:
    """Return the class of streams, which know whether the server has said that they are whole."""
    import openai

    class Stream(openai.AsyncStream[object]):
        done = False

        async def _iter_events(self) -> AsyncIterator[Any]:
            async for event in super()._iter_events():
                self.done = self.done or event.data.startswith("[DONE]")
                yield event

    return Stream


def _no_event(kind: str) -> CallFailed | MalformedReply:
    """Return the error of a streamed reply without events: the call is repeated unless every reply would be like this.

    Args:
        kind: the type of its content.
    """
    kind, expected = kind.partition(";")[0].strip(), "expected a stream of events (text/event-stream)"
    if kind == "application/json":
        return CallFailed(f"the server, or a gateway before it, does not stream: the reply is {kind}, {expected}")
    what = "nothing" if kind == "text/event-stream" else kind or "something without a type"
    return MalformedReply(f"{what}, {expected}")


def server_address(url: str, name: str, key: str) -> str:
    """Return the address of a server without a slash at its end.

    Args:
        url: the address.
        name: name of the option that it was given by, for the message.
        key: name of the environment variable that holds the API key, for the message.

    Raises:
        LovecError: it is not an http address, or it contains a password or a query, which might hold a key.
    """
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError:
        parts = urlsplit("")
    if "@" in parts.netloc or parts.query or parts.fragment:
        raise LovecError(f"{name} is more than an address, expected http://host:port/v1; keys belong in ${key}")
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise LovecError(f"{name} is {url!r}, expected an address such as http://localhost:8000/v1")
    return url.rstrip("/")


def read_key(variable: str) -> str:
    """Return the API key in an environment variable; "" where it is not set.

    Raises:
        LovecError: it contains characters that an HTTP header cannot carry.
    """
    key = os.environ.get(variable, "").strip()
    if not (key.isascii() and key.isprintable()):
        raise LovecError(f"${variable} holds characters that no key has, expected printable ASCII; set it again")
    return key


def _error_message(body: object) -> str:
    """Return the message in the body of an error, which is {"message": ...} or plain text; "" where there is none."""
    message = body.get("message") if isinstance(body, Mapping) else body
    return message if isinstance(message, str) else ""


def _retry_after(headers: Mapping[str, str]) -> float | None:
    """Return the seconds the server asks to wait (Retry-After as seconds or as a date); None where it does not."""
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
