"""One question to an OpenAI-compatible server: when to ask again, how long to wait, and when to give up."""

from __future__ import annotations

import asyncio
import json
import math
import os
import random
import time
from collections.abc import Mapping, Sequence
from email.utils import parsedate_to_datetime
from itertools import count
from types import TracebackType
from typing import Any
from urllib.parse import urlsplit

from lovec.oracles.cache import Reply
from lovec.types import LovecError

KEY = "OPENAI_API_KEY"
"""The environment variable that holds the key to the server, the only place where one is looked for."""

_OPENAI = "https://api.openai.com/v1"
_FIRST_WAIT = 1.0  # seconds; doubled at every further try
_LONGEST_WAIT = 60.0
_LONGEST_ASKED_WAIT = 300.0  # a server that asks for more has closed for the day
_PASSING = {408, 409, 425, 429}  # and everything from 500
_FINAL = {
    401: f"set {KEY} to a key that this server takes",
    402: "the account has no credit left",
    404: "check model and base_url (which ends in /v1 for most servers)",
}


class Failed(Exception):
    """This question got no usable reply; another may."""


class Refused(Exception):
    """No question will get a reply: the key, the account, the model or the address is wrong."""


class Chat:
    """Asks one server. It is bound to the event loop it is entered in, and reads the key when it is.

    Args:
        model: name of the model.
        base_url: address, as ``address`` gives it.
        timeout: seconds a call may take from its first byte to its last.
        retries: how often a call is made again after a passing fault (429, 5xx, a time-out, a broken connection or
            body), with waits that double from 1 to 60 s and are drawn from the upper half of that; where the server
            names a wait (Retry-After), that one.

    Raises:
        LovecError: there is no key, and the server is OpenAI's.
    """

    def __init__(self, model: str, base_url: str, timeout: float, retries: int) -> None:
        self.model = model
        self.base_url = base_url
        self.timeout = timeout
        self.retries = retries
        self._key = _key(base_url)
        self._client: Any = None

    async def __aenter__(self) -> Chat:
        import openai  # takes a second

        # The client wants a key even where the server wants none. Its own retries know no garbage and no deadline.
        self._client = openai.AsyncOpenAI(
            api_key=self._key or "none",
            base_url=self.base_url,
            max_retries=0,
            timeout=openai.Timeout(self.timeout, connect=min(self.timeout, 15.0)),
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._client.close()

    async def ask(self, messages: Sequence[Mapping[str, str]], parameters: Mapping[str, Any]) -> Reply:
        """The reply to a chat.

        Raises:
            Failed: there is none; the message says why, in one line.
            Refused: there will be none to anything.
        """
        import openai

        for tries in count(1):
            wait = None
            try:
                async with asyncio.timeout(self.timeout):  # the client's own limit is between two bytes
                    raw = await self._client.chat.completions.with_raw_response.create(
                        model=self.model, messages=messages, extra_body=dict(parameters)
                    )
                return _reply(raw.text)
            except (TimeoutError, openai.APITimeoutError):
                problem = f"no reply within {self.timeout:g} s"
            except openai.APIStatusError as error:
                problem = self._line(f"HTTP {error.status_code}: {_said(error.body) or error.response.reason_phrase}")
                if error.code == "insufficient_quota":
                    raise Refused(f"{problem}; {_FINAL[402]}") from None
                if error.status_code in _FINAL:
                    raise Refused(f"{problem}; {_FINAL[error.status_code]}") from None
                if error.status_code not in _PASSING and error.status_code < 500:
                    raise Failed(problem) from None
                wait = _asked_wait(error.response.headers)
            except openai.OpenAIError as error:
                problem = self._line(f"broken connection: {error.__cause__ or error}")
            except _Garbage as error:
                problem = self._line(f"not a chat completion: {error}")
            if wait is not None and wait > _LONGEST_ASKED_WAIT:
                raise Failed(f"{problem} (the server asks to wait {wait:.0f} s)")
            if tries > self.retries:
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


def address(base_url: str | None) -> str:
    """The address of a server: the one given, else ``$OPENAI_BASE_URL``, else OpenAI's.

    Raises:
        LovecError: it is no http address, or holds a password or a query, in which a key might hide.
    """
    url = base_url or os.environ.get("OPENAI_BASE_URL") or _OPENAI
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError:
        parts = urlsplit("")
    if "@" in parts.netloc or parts.query or parts.fragment:
        raise LovecError(f"base_url holds more than an address, expected http://host:port/v1; keys belong in ${KEY}")
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise LovecError(f"base_url is {url!r}, expected an address such as http://localhost:8000/v1")
    return url.rstrip("/")


def writable(text: str) -> str:
    """A text as UTF-8 can hold it: half of a surrogate pair becomes a question mark."""
    return text.encode(errors="replace").decode()


class _Garbage(Exception):
    """A reply that is not what the protocol says."""


def _key(base_url: str) -> str:
    key = os.environ.get(KEY, "").strip()
    if not key and base_url == _OPENAI:
        raise LovecError(f"${KEY} is not set, and {base_url} takes no call without; set it, or give base_url")
    if not (key.isascii() and key.isprintable()):
        raise LovecError(f"${KEY} holds characters that no key has; set it again")
    return key


def _reply(body: str) -> Reply:
    """The first choice of a chat completion."""
    try:
        data = json.loads(body)
        choice = data["choices"][0]
        text, finish, usage = choice["message"]["content"], choice.get("finish_reason"), data.get("usage") or {}
        counts = [usage.get("prompt_tokens"), usage.get("completion_tokens")]
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        raise _Garbage(body[:100] or "nothing") from None
    if not isinstance(text, str | None):
        raise _Garbage(body[:100])
    tokens_in, tokens_out = (n if type(n) is int and 0 <= n < 2**53 else None for n in counts)
    return Reply(writable(text or ""), writable(finish) if isinstance(finish, str) else "", tokens_in, tokens_out)


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
