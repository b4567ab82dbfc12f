"""A client that asks one question of an OpenAI-compatible server and returns the reply."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from lovec.core import calls
from lovec.core.calls import ApiClient, CallFailed, MalformedReply, read_key
from lovec.oracles.cache import ChatReply, ReplyToken
from lovec.types import LovecError

KEY = "OPENAI_API_KEY"
"""The environment variable that holds the API key; no other place is searched."""

NO_MESSAGE = "no message"
"""What ``ChatReply.finish`` says of a reply without a text: ``ChatReply.text`` is all that the server sent."""

_OPENAI = "https://api.openai.com/v1"
_ADVICE = {
    401: f"set {KEY} to a key that this server accepts",
    402: "the account has no credit left",
    404: "check model and base_url (which ends in /v1 for most servers)",
}


class Chat(ApiClient):
    """Asks one server. It belongs to the event loop in which it is entered, and reads the API key when it is made.

    Args:
        model: name of the model.
        base_url: address of the server, from ``address``.
        timeout: as for ``ApiClient``.
        retries: as for ``ApiClient``.

    Raises:
        LovecError: there is no API key, and the server is OpenAI's.
    """

    def __init__(self, model: str, base_url: str, timeout: float, retries: int) -> None:
        super().__init__(base_url, api_key(base_url), timeout, retries, _ADVICE)
        self.model = model

    async def ask(self, messages: Sequence[Mapping[str, str]], parameters: Mapping[str, Any]) -> ChatReply:
        """Return the reply to a chat.

        Raises:
            CallFailed: there is no reply; the message says why, in one line.
            ServerRefused: the server will not reply to any call.
        """
        body = {"model": self.model, "messages": list(messages), **parameters}
        return await self.post("/chat/completions", body, read_reply)

    async def write(
        self,
        messages: Sequence[Mapping[str, str]],
        parameters: Mapping[str, Any],
        on_piece: Callable[[str, Sequence[Any]], bool],
    ) -> ChatReply:
        """Return the reply to a chat, without tokens, and hand over its text as it is written.

        Args:
            messages: the chat.
            parameters: of the call.
            on_piece: called with every new piece of the text, and what the server says of its tokens, see
                ``read_tokens``; returns False to end the reply.

        Raises:
            CallFailed: there is no reply, or it breaks off; the message says why, in one line.
            ServerRefused: the server will not reply to any call.
        """
        pieces: list[str] = []
        finish, counts, going, begun = "", _counts(None), True, False
        half = ""  # first half of a character, whose other half the next event may have

        def on_event(event: Any) -> bool:
            nonlocal finish, counts, going, begun, half
            try:
                if event.get("usage") is not None:
                    counts = _counts(event["usage"])
                if not (choices := event["choices"]):
                    return True
                piece = choices[0]["delta"].get("content")
                finish = choices[0].get("finish_reason") or finish
            except (LookupError, TypeError, AttributeError):
                raise MalformedReply(str(event)[:100]) from None
            written = f"{half}{piece if isinstance(piece, str) else ''}"
            half = written[-1] if "\ud800" <= written[-1:] <= "\udbff" else ""
            pieces.append(encodable(written[: len(written) - len(half)]))
            tokens = _listed(choices[0])
            begun = begun or bool(written or tokens or finish)  # the first event may name the role alone
            going = on_piece(pieces[-1], tokens if isinstance(tokens, list) else ())
            return going

        body = {"model": self.model, "messages": list(messages), "stream": True, **parameters}
        is_whole = await self.stream("/chat/completions", body, on_event, lambda: begun)
        if going and not finish and not is_whole:
            raise CallFailed("the stream of a reply broke off")
        if going and half:
            pieces.append(encodable(half))
            on_piece(pieces[-1], ())
        return ChatReply("".join(pieces), encodable(str(finish)), *counts)


def address(base_url: str | None) -> str:
    """Return the address of a server: ``base_url`` if it is not None, else ``$OPENAI_BASE_URL``, else OpenAI's.

    Raises:
        LovecError: it is not an http address, or contains a password or a query, in which a key might hide.
    """
    return calls.server_address(base_url or os.environ.get("OPENAI_BASE_URL") or _OPENAI, "base_url", KEY)


def encodable(text: str) -> str:
    """Return a text that UTF-8 can encode.

    Two surrogates that are the halves of one character become this character, a lone one becomes a question mark.
    """
    whole = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")
    return whole.encode(errors="replace").decode()


def api_key(base_url: str) -> str:
    """Return the API key for a server; "" where it needs none.

    Raises:
        LovecError: there is no key, and the server is OpenAI's.
    """
    key = read_key(KEY)
    if not key and base_url == _OPENAI:
        raise LovecError(f"${KEY} is not set, and {base_url} takes no call without it; set it, or give base_url")
    return key


def read_reply(body: str) -> ChatReply:
    """Return the first choice of a chat completion; one without a text is a reply, too, and has been paid for.

    Raises:
        MalformedReply: the text is not a chat completion.
    """
    try:
        data = json.loads(body)
        choices, usage = data["choices"], data.get("usage")
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        raise MalformedReply(body[:100] or "nothing") from None
    tokens_in, tokens_out = _counts(usage)
    try:
        text, finish = choices[0]["message"]["content"], choices[0].get("finish_reason")
    except (LookupError, TypeError, AttributeError):
        return ChatReply(encodable(body), NO_MESSAGE, tokens_in, tokens_out)
    if not isinstance(text, str | None):
        return ChatReply(encodable(body), NO_MESSAGE, tokens_in, tokens_out)
    finish = encodable(finish) if isinstance(finish, str) else ""
    text = encodable(text or "")
    return ChatReply(text, finish, tokens_in, tokens_out, read_tokens(_listed(choices[0]), text))


def _listed(choice: Mapping[str, Any]) -> Any:
    """Return what a server says of the tokens of a choice, for ``read_tokens``."""
    listed = choice.get("logprobs")
    return listed.get("content") if isinstance(listed, Mapping) else None


def _counts(usage: Any) -> tuple[int | None, int | None]:
    """Return the tokens of the prompt and of the reply, as the server counts them; None where it does not."""
    counts = [usage.get(name) if isinstance(usage, dict) else None for name in ("prompt_tokens", "completion_tokens")]
    tokens_in, tokens_out = (n if type(n) is int and 0 <= n < 2**53 else None for n in counts)
    return tokens_in, tokens_out


def read_tokens(items: Any, text: str) -> tuple[ReplyToken, ...]:
    """Return the tokens of a text with their log-probabilities; none where the server gives none that fit the text.

    Args:
        items: what the server says of the tokens (``logprobs.content`` of a choice); anything.
        text: the text; tokens before and after it are left out, such as those of a thought that is told apart.
    """
    try:
        pieces = [_bytes(item) for item in items]
        names = [item["token"] for item in items]
        found = [{alike["token"]: alike["logprob"] for alike in (*item["top_logprobs"], item)} for item in items]
    except (LookupError, TypeError, ValueError, AttributeError):
        return ()
    pairs = [pair for logps in found for pair in logps.items()]
    if not all(isinstance(name, str) and type(logp) in (int, float) and math.isfinite(logp) for name, logp in pairs):
        return ()
    whole, written = b"".join(pieces), text.encode()
    start = whole.rfind(written)
    if start < 0:
        return ()
    tokens: list[ReplyToken] = []
    at = -start  # bytes of the text before a token
    for piece, name, logps in zip(pieces, names, found, strict=True):
        if 0 <= at and at + len(piece) <= len(written):
            begin = len(written[:at].decode(errors="ignore"))
            tokens.append(ReplyToken(begin, encodable(name), {encodable(t): float(p) for t, p in logps.items()}))
        at += len(piece)
    return tuple(tokens)


def _bytes(item: Mapping[str, Any]) -> bytes:
    """Return the bytes of a token: those that the server names, since it may be a part of a character."""
    named = item.get("bytes")
    return bytes(named) if isinstance(named, list) else str(item["token"]).encode(errors="replace")
