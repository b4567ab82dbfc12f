"""A connection to a vLLM server: its event loop, the state of the server, and how its replies are read."""

from __future__ import annotations

import asyncio
import json
import os
import threading
from collections.abc import Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from lovec.calls import ApiClient, CallFailed, MalformedReply, ServerRefused
from lovec.engines.adapters import AdapterFolders
from lovec.engines.common import TokenCallback, TokenReply
from lovec.types import LovecError

T = TypeVar("T")

_UNLOAD_TIMEOUT_S = 5.0


@dataclass(slots=True)
class ServerReply(TokenReply):
    """The reply to a call for a completion, whole or growing with the events of a stream.

    Attributes:
        ended: whether the completion is complete.
    """

    ended: bool = False

    def add(self, data: Any, on_token: TokenCallback | None = None) -> bool:
        """Add the content of a reply or of an event of a stream, and return whether to go on.

        Raises:
            MalformedReply: it is no completion with token ids and log-probabilities.
        """
        before = len(self.ids)
        try:
            for choice in data["choices"]:
                if (reason := choice.get("finish_reason")) is not None:
                    if reason not in ("stop", "length"):
                        raise MalformedReply(f"a completion that ended by {reason}")
                    self.ended = True
                logprobs = choice["logprobs"]
                for token, logp in zip(choice["token_ids"], logprobs["token_logprobs"], strict=True):
                    self.ids.append(int(token))
                    self.logps.append(float(logp))
                for candidates in logprobs.get("top_logprobs") or ():
                    logps = {int(k.removeprefix("token_id:")): float(v) for k, v in (candidates or {}).items()}
                    self.candidates.append(logps)
                for entries in choice.get("prompt_logprobs") or ():
                    found = {int(token): float(entry["logprob"]) for token, entry in (entries or {}).items()}
                    self.prompt_candidates.append(found)
            if usage := data.get("usage"):
                self.cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens")
        except (LookupError, TypeError, ValueError, AttributeError, OverflowError) as error:
            message = f"no completion with token ids and log-probabilities ({error!r}); is it vLLM?"
            raise MalformedReply(message) from None
        if on_token is not None:
            for place in range(before, len(self.ids)):
                if not on_token(self.ids[place]):
                    del self.ids[place + 1 :], self.logps[place + 1 :]
                    self.ended = True
                    return False
        return True

    def keep_prompt(self, prompt: Sequence[int], start: int) -> None:
        """Keep the log-probabilities of the prompt's tokens from an index on, for ``reply_scores``."""
        known = len(self.prompt_candidates) == len(prompt)
        candidates = self.prompt_candidates[start:] if known else [{}] * (len(prompt) - start)
        self.prompt_candidates = candidates
        self.prompt_logps = [found.get(token) for found, token in zip(candidates, prompt[start:], strict=True)]


async def request_completion(client: ApiClient, body: dict[str, Any], on_token: TokenCallback | None) -> ServerReply:
    """Request one completion; with ``on_token`` as a stream.

    Raises:
        CallFailed: there is no usable reply.
        ServerRefused: no call to this server will succeed.
    """
    if on_token is None:
        return await client.post("/completions", body, _read_completion)
    reply = ServerReply(cached=0)
    options = {"stream": True, "stream_options": {"include_usage": True}}
    await client.stream("/completions", {**body, **options}, lambda event: reply.add(event, on_token))
    if not (reply.ids and reply.ended):
        raise CallFailed("the stream of a completion broke off")
    return reply


def _read_completion(text: str) -> ServerReply:
    reply = ServerReply()
    try:
        reply.add(json.loads(text))
    except (ValueError, RecursionError):
        raise MalformedReply(text[:100] or "nothing") from None
    if not (reply.ids and reply.ended):
        raise MalformedReply("a completion without an end")
    return reply


def read_models(text: str) -> list[dict[str, Any]]:
    """Return the models and adapters of a server from its reply to ``/models``.

    Raises:
        MalformedReply: the reply is no list of models.
    """
    try:
        cards = json.loads(text)["data"]
        if not all(isinstance(card["id"], str) for card in cards):
            raise TypeError
    except (ValueError, LookupError, TypeError, RecursionError):
        raise MalformedReply(f"{text[:100]!r} instead of a list of models") from None
    return list(cards)


class Link:
    """A connection to a server, with an event loop in a thread of its own, so that it outlives a call.

    Args:
        client: makes the calls; entered here, and left by ``end``.
        adapter_dir: where to create adapter folders, see ``AdapterFolders``.

    Attributes:
        client: to be used inside ``run``.
        folders: folders of the policy's adapters.
        base: name of the base model on the server.
        names: all names of the base model.
        context_length: length of the model's context; None where the server does not say.
        model: name of the model or adapter that calls ask for; "" before there is one.
        adapter: name of the adapter that was loaded through this connection; "" for none.
        adapter_folder: folder of that adapter.
        warned: whether a warning about missing counts of cached tokens was logged.
        temperature_checked: whether the server is known to return log-probabilities at the temperature of a call.
    """

    def __init__(self, client: ApiClient, adapter_dir: str | None) -> None:
        self.client = client
        self.folders = AdapterFolders(adapter_dir)
        self.base = self.model = self.adapter = ""
        self.names: set[str | None] = set()
        self.adapter_folder: Path | None = None
        self.context_length: int | None = None
        self.warned = self.temperature_checked = False
        self._process = os.getpid()
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, name="lovec-server-engine", daemon=True).start()
        self.run(client.__aenter__())

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Return the result of a coroutine, which runs in the event loop; Ctrl-C cancels it.

        Raises:
            LovecError: this process is a fork of the one that opened the connection, and has no such thread.
        """
        if os.getpid() != self._process:
            work.close()
            raise LovecError("a connection to a server cannot be used in a fork of its process; open an engine there")
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def unload_adapter(self) -> None:
        """Let the server unload the adapter; a server that does not answer is taken to have none."""
        if self.adapter:
            call = self.client.post("/unload_lora_adapter", {"lora_name": self.adapter}, str, retries=0)
            with suppress(CallFailed, ServerRefused, TimeoutError):
                self.run(asyncio.wait_for(call, _UNLOAD_TIMEOUT_S))
            self.adapter, self.adapter_folder = "", None

    def end(self) -> None:
        """Unload the adapter, close the connection and remove the adapter folders."""
        with suppress(RuntimeError):  # new connections are refused while Python shuts down
            self.unload_adapter()
            self.run(self.client.__aexit__(None, None, None))
        self._loop.call_soon_threadsafe(self._loop.stop)
        self.folders.close()
