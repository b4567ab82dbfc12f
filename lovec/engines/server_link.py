"""A connection to a vLLM server: its event loop, what it was told, and how its replies are read."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

from lovec.calls import Calls, Failed, Garbage, Refused
from lovec.engines.adapters import AdapterFolders
from lovec.types import OnToken

T = TypeVar("T")

_GOODBYE_S = 5.0

TokenCallback: TypeAlias = Callable[[int], bool]
"""Hears every token of a completion and says whether it goes on."""


@dataclass
class Reply:
    """What came of a call, token by token.

    Attributes:
        ids: sampled token ids.
        logps: log-probability of each.
        found: for each of them, log-probabilities by token id: those that were asked for, among others.
        prompt_tokens: length of the prompt.
        cached: how much of it was in the cache; None where the server does not say.
        ended: whether the completion is whole.
    """

    ids: list[int] = field(default_factory=list)
    logps: list[float] = field(default_factory=list)
    found: list[dict[int, float]] = field(default_factory=list)
    prompt_tokens: int = 0
    cached: int | None = None
    ended: bool = False

    def take(self, data: Any, on_token: TokenCallback | None = None) -> bool:
        """Add what a reply or an event of a stream holds; whether to go on.

        Raises:
            Garbage: it is no completion with token ids and log-probabilities.
        """
        before = len(self.ids)
        try:
            for choice in data["choices"]:
                if (reason := choice.get("finish_reason")) is not None:
                    if reason not in ("stop", "length"):
                        raise Garbage(f"a completion that ended by {reason}")
                    self.ended = True
                logprobs = choice["logprobs"]
                for token, logp in zip(choice["token_ids"], logprobs["token_logprobs"], strict=True):
                    self.ids.append(int(token))
                    self.logps.append(float(logp))
                for told in logprobs.get("top_logprobs") or ():
                    self.found.append({int(k.removeprefix("token_id:")): float(v) for k, v in (told or {}).items()})
            if usage := data.get("usage"):
                self.prompt_tokens = int(usage["prompt_tokens"])
                self.cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens")
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            raise Garbage(f"no completion with token ids and log-probabilities ({error!r}); is it vLLM?") from None
        if on_token is not None:
            for place in range(before, len(self.ids)):
                if not on_token(self.ids[place]):
                    del self.ids[place + 1 :], self.logps[place + 1 :]
                    self.ended = True
                    return False
        return True


async def completion(calls: Calls, body: dict[str, Any], on_token: TokenCallback | None) -> Reply:
    """One completion; with ``on_token`` as a stream."""
    if on_token is None:
        return await calls.post("/completions", body, _read)
    reply = Reply(prompt_tokens=len(body["prompt"]), cached=0)
    asked = {**body, "stream": True, "stream_options": {"include_usage": True}}
    await calls.stream("/completions", asked, lambda event: reply.take(event, on_token))
    if not (reply.ids and reply.ended):
        raise Failed("the stream of a completion broke off")
    return reply


def _read(text: str) -> Reply:
    reply = Reply()
    try:
        reply.take(json.loads(text))
    except ValueError:
        raise Garbage(text[:100] or "nothing") from None
    if not (reply.ids and reply.ended):
        raise Garbage("a completion without an end")
    return reply


def cards_of(text: str) -> list[dict[str, Any]]:
    """Models and adapters that a server has."""
    try:
        cards = json.loads(text)["data"]
        if not all(isinstance(card["id"], str) for card in cards):
            raise TypeError
    except (ValueError, LookupError, TypeError):
        raise Garbage(f"{text[:100]!r} instead of a list of models") from None
    return list(cards)


def token_callback(on_token: OnToken, prompt: int, sample: int) -> TokenCallback:
    """A listener for one completion."""
    return lambda token: on_token(prompt, sample, token)


class Link:
    """A connection: an event loop in a thread of its own, so that it outlives a call, and what the server was told.

    Attributes:
        calls: to the server, within ``run``.
        folders: the policy's adapters.
        base: name of the base model.
        names: other names of it.
        context: longest context of the model.
        now: name of what runs; "" before anything does.
        loaded: name of the adapter that the server has from here; "" for none.
        source: its folder.
        told: whether a missing count was warned of.
        tempered: whether log-probabilities were seen to be of the temperature asked for.
    """

    def __init__(self, calls: Calls, adapter_dir: str | None) -> None:
        self.calls = calls
        self.folders = AdapterFolders(adapter_dir)
        self.base = self.now = self.loaded = ""
        self.names: set[str | None] = set()
        self.source: Path | None = None
        self.context: int | None = None
        self.told = self.tempered = False
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, name="lovec-server-engine", daemon=True).start()
        self.run(calls.__aenter__())

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """The result of ``work``, done in the loop; Ctrl-C ends it."""
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def unload(self) -> None:
        """Have the server forget the adapter; one that does not answer has none."""
        if self.loaded:
            call = self.calls.post("/unload_lora_adapter", {"lora_name": self.loaded}, str, retries=0)
            with suppress(Failed, Refused, TimeoutError):
                self.run(asyncio.wait_for(call, _GOODBYE_S))
            self.loaded, self.source = "", None

    def end(self) -> None:
        """Leave the server as it was, and nothing behind here."""
        with suppress(RuntimeError):  # when Python ends, new connections are refused
            self.unload()
            self.run(self.calls.__aexit__(None, None, None))
        self._loop.call_soon_threadsafe(self._loop.stop)
        self.folders.close()
