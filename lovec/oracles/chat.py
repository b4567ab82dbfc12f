"""One question to an OpenAI-compatible server."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from typing import Any

from lovec import calls
from lovec.calls import Calls, Garbage, key_from
from lovec.oracles.cache import Reply
from lovec.types import LovecError

KEY = "OPENAI_API_KEY"
"""The environment variable that holds the key to the server, the only place where one is looked for."""

_OPENAI = "https://api.openai.com/v1"
_ADVICE = {
    401: f"set {KEY} to a key that this server takes",
    402: "the account has no credit left",
    404: "check model and base_url (which ends in /v1 for most servers)",
}


class Chat(Calls):
    """Asks one server. It is bound to the event loop it is entered in, and reads the key when it is made.

    Args:
        model: name of the model.
        base_url: address, as ``address`` gives it.
        timeout: as for ``Calls``.
        retries: as for ``Calls``.

    Raises:
        LovecError: there is no key, and the server is OpenAI's.
    """

    def __init__(self, model: str, base_url: str, timeout: float, retries: int) -> None:
        super().__init__(base_url, _key(base_url), timeout, retries, _ADVICE)
        self.model = model

    async def ask(self, messages: Sequence[Mapping[str, str]], parameters: Mapping[str, Any]) -> Reply:
        """The reply to a chat.

        Raises:
            Failed: there is none; the message says why, in one line.
            Refused: there will be none to anything.
        """
        body = {"model": self.model, "messages": list(messages), **parameters}
        return await self.post("/chat/completions", body, _reply)


def address(base_url: str | None) -> str:
    """The address of a server: the one given, else ``$OPENAI_BASE_URL``, else OpenAI's.

    Raises:
        LovecError: it is no http address, or holds a password or a query, in which a key might hide.
    """
    return calls.address(base_url or os.environ.get("OPENAI_BASE_URL") or _OPENAI, "base_url", KEY)


def writable(text: str) -> str:
    """A text as UTF-8 can hold it: half of a surrogate pair becomes a question mark."""
    return text.encode(errors="replace").decode()


def _key(base_url: str) -> str:
    key = key_from(KEY)
    if not key and base_url == _OPENAI:
        raise LovecError(f"${KEY} is not set, and {base_url} takes no call without; set it, or give base_url")
    return key


def _reply(body: str) -> Reply:
    """The first choice of a chat completion."""
    try:
        data = json.loads(body)
        choice = data["choices"][0]
        text, finish, usage = choice["message"]["content"], choice.get("finish_reason"), data.get("usage") or {}
        counts = [usage.get("prompt_tokens"), usage.get("completion_tokens")]
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        raise Garbage(body[:100] or "nothing") from None
    if not isinstance(text, str | None):
        raise Garbage(body[:100])
    tokens_in, tokens_out = (n if type(n) is int and 0 <= n < 2**53 else None for n in counts)
    return Reply(writable(text or ""), writable(finish) if isinstance(finish, str) else "", tokens_in, tokens_out)
