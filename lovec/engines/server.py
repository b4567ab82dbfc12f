"""The engine behind a running vLLM server: token ids in and out over HTTP, adapters loaded as they change."""

from __future__ import annotations

import asyncio
import json
import logging
import weakref
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any, TypeVar
from uuid import uuid4

from lovec.calls import Calls, Failed, Refused, address, key_from
from lovec.choices import ChoiceTree
from lovec.engines.choices_by_walks import Step, Walk, score_by_walks
from lovec.engines.common import check_vllm_temperature, checked_keys, checked_texts, room_behind, stream_key
from lovec.engines.server_link import Link, Reply, TokenCallback, cards_of, completion, token_callback
from lovec.types import Completion, LovecError, OnToken, Sampling

T = TypeVar("T")

KEY = "VLLM_API_KEY"
"""The environment variable that holds the key to the server (the one vLLM itself reads), the only place where one is
looked for."""

_PLAIN = {
    "top_p": 1.0,
    "top_k": 0,
    "min_p": 0.0,
    "repetition_penalty": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "ignore_eos": True,
    "return_token_ids": True,
    "return_tokens_as_token_ids": True,
}
"""Sent with every call, since a server takes what is left out from the model's generation_config.json."""

_ADVICE = {
    401: f"set {KEY} to the key that the server was started with",
    402: "the account has no credit left",
    404: "check model and url (which ends in /v1), and whether the server was started anew",
}

log = logging.getLogger(__name__)


class VllmServer:
    """Samples and scores with a model that a vLLM server (0.32 or later) runs, and the policy's newest adapter on it.

    The server has to serve the policy's base model; ``sync`` writes the adapter to a folder and has the server load it
    under a name of its own, whenever it has changed. Every completion and every scored token is a call of its own, so
    that its random stream is its own; the server batches them, and its prefix cache computes what they share once.

    Start it with ``VLLM_ALLOW_RUNTIME_LORA_UPDATING=1``, ``--enable-lora --max-lora-rank R --max-loras 1
    --max-cpu-loras 2 --logprobs-mode processed_logprobs --enable-prompt-tokens-details``. A key is read from
    ``$VLLM_API_KEY``.

    Args:
        url: address of the server.
        model: name of the base model on the server; null is the first one it serves.
        adapter_dir: folder that this process and the server see under the same path, for adapters; null is the
            system's temporary one, for a server on the same machine.
        max_rows: most calls under way at a time, and most contexts a call of ``score`` should build on.
        timeout: seconds a call may take.
        retries: how often a call is made again after 429, 5xx, a time-out or a broken reply.

    Attributes:
        prefill_tokens: context tokens that the server did not find in its cache (it caches whole blocks); without
            ``--enable-prompt-tokens-details`` all of them. A completion that ``on_token`` ended counts with its whole
            prompt.
        max_rows: as given.
        shares_model: False.

    Raises:
        LovecError: an option is out of range.
    """

    shares_model = False

    def __init__(
        self,
        url: str = "http://localhost:8000/v1",
        model: str | None = None,
        adapter_dir: str | None = None,
        max_rows: int = 64,
        timeout: float = 600.0,
        retries: int = 6,
    ) -> None:
        if max_rows < 1 or not timeout > 0 or retries < 0:
            raise LovecError(
                f"max_rows is {max_rows}, timeout {timeout} and retries {retries}; expected at least 1 row, seconds "
                "above 0, and 0 or more retries"
            )
        self.url = address(url, "url", KEY)
        self.model = model
        self.max_rows = max_rows
        self.timeout = timeout
        self.retries = retries
        self.prefill_tokens = 0
        self._adapter_dir = adapter_dir
        self._link: Link | None = None
        self._ends: Callable[[], Any] = lambda: None

    # What it runs

    def sync(self, policy: Any) -> None:
        """Run the policy's adapter as it is now, or the base model where adapters are off.

        Raises:
            LovecError: there is no server, it does not serve the model, or it cannot load the adapter.
        """
        link = self._linked()
        folder = link.folders.take(policy)
        if folder is None:
            link.now = link.base
            return
        if folder != link.source:
            self._load(link, folder)
            link.folders.clean()
        link.now = link.loaded

    def open(self, model: str, adapter: str | None = None) -> None:
        """Run a model without a policy.

        Args:
            model: name of the base model on the server, or what the server loaded it from.
            adapter: folder of a PEFT adapter, which the server sees under the same path; null is the base model.

        Raises:
            LovecError: as for ``sync``; or there is no adapter in the folder.
        """
        link = self._linked(model)
        link.now = link.base
        if adapter is None:
            return
        if not (Path(adapter) / "adapter_config.json").is_file():
            raise LovecError(f"{adapter} holds no adapter_config.json, expected the folder of a PEFT adapter")
        self._load(link, Path(adapter).absolute())
        link.now = link.loaded

    @property
    def context_length(self) -> int | None:
        """Most tokens that a context and what follows it may have, as the server says."""
        return self._running().context

    def close(self) -> None:
        """Take the adapter off the server, remove its folder and close the connections; ``sync`` begins anew."""
        self._ends()
        self._link = None

    # What it does

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        sampling: Sampling,
        stop_ids: Sequence[int],
        keys: Sequence[str] | None = None,
        on_token: OnToken | None = None,
    ) -> list[list[Completion]]:
        """Sample ``sampling.n`` completions a prompt; each ends at the first of ``stop_ids``, which it keeps.

        The seed of a completion depends on (seed, key, index of the sample) alone. How the server's arithmetic rounds
        depends on what else it computes at the time, so that a near tie may go another way in another batch.

        Args:
            prompts: token ids, at least one each.
            sampling: how to sample.
            stop_ids: ids that end a completion.
            keys: names of the prompts for their random streams (default: position in ``prompts``).
            on_token: hears every token, in a thread of the engine's; where it says False the call is broken off.

        Returns:
            [prompts][n] completions; ``logps`` are of logits / temperature (temperature 0: of the plain logits).

        Raises:
            LovecError: a prompt is empty or leaves no room, a setting is out of range, a call failed, or the server
                gives log-probabilities of another temperature.
        """
        link = self._running()
        names = checked_keys(sampling, keys, len(prompts))
        check_vllm_temperature(sampling.temperature)
        texts = checked_texts(prompts, 1, link.context, "prompt")
        if texts and sampling.temperature not in (0.0, 1.0):
            self._check_temperature(link)
        stops = frozenset(stop_ids)
        bodies, callbacks = [], []
        for p, text in enumerate(texts):
            for i in range(sampling.n):
                bodies.append(
                    self._body(
                        text,
                        max_tokens=room_behind(text, sampling.max_new_tokens, link.context),
                        temperature=sampling.temperature,
                        seed=stream_key(sampling.seed, names[p], i) % 2**63,
                        stop_token_ids=sorted(stops),
                    )
                )
                callbacks.append(None if on_token is None else token_callback(on_token, p, i))
        replies = self._all(link, bodies, callbacks)
        self.prefill_tokens += sum(reply.prompt_tokens - (reply.cached or 0) for reply in replies)
        done = [Completion(tuple(reply.ids), tuple(reply.logps), reply.ids[-1] in stops) for reply in replies]
        return [done[p * sampling.n : (p + 1) * sampling.n] for p in range(len(texts))]

    def score(self, contexts: Sequence[Sequence[int]], choices: Sequence[Sequence[int]]) -> list[list[float]]:
        """Exact log-probability of every whole choice after every context: [contexts][choices].

        The server continues the context, and those beginnings of choices it has not come by, and tells at every step
        how probable the tokens of the choices are. What is kept for later calls is its affair: its prefix cache.

        Raises:
            LovecError: a context or choice is empty, the longest choice does not fit, or a call failed.
        """
        tree = ChoiceTree(choices)
        link = self._running()
        return score_by_walks(checked_texts(contexts, tree.longest, link.context, "context"), tree, self._walk)

    def _walk(self, walks: Sequence[Walk]) -> list[list[Step]]:
        link = self._running()
        bodies = [
            self._body(w.prompt, max_tokens=w.steps, temperature=0.0, logprob_token_ids=list(w.tokens)) for w in walks
        ]
        replies = self._all(link, bodies, [None] * len(bodies))
        pairs = list(zip(walks, replies, strict=True))
        self.prefill_tokens += sum(max(0, len(w.context) - (reply.cached or 0)) for w, reply in pairs)
        try:
            return [
                [(token, [told[t] for t in w.tokens]) for token, told in zip(reply.ids, reply.found, strict=True)]
                for w, reply in pairs
            ]
        except (KeyError, ValueError):
            raise LovecError(
                f"the server at {self.url} leaves out log-probabilities that were asked for (logprob_token_ids); it "
                "has to be vLLM 0.32 or later"
            ) from None

    def _body(self, prompt: Sequence[int], **more: Any) -> dict[str, Any]:
        return {"model": self._running().now, "prompt": list(prompt), "logprobs": 0, **_PLAIN, **more}

    def _all(self, link: Link, bodies: list[dict[str, Any]], callbacks: Sequence[TokenCallback | None]) -> list[Reply]:
        """Replies to all calls, ``max_rows`` of them under way at a time."""

        async def work() -> list[Reply]:
            gate = asyncio.Semaphore(self.max_rows)

            async def one(body: dict[str, Any], on_token: TokenCallback | None) -> Reply:
                async with gate:
                    return await completion(link.calls, body, on_token)

            tasks = [asyncio.create_task(one(*call)) for call in zip(bodies, callbacks, strict=True)]
            try:
                return await asyncio.gather(*tasks)
            finally:
                for task in tasks:
                    task.cancel()

        replies = self._run(link, work())
        for reply in replies:
            if reply.cached is None and not link.told:
                link.told = True
                log.warning(
                    "%s does not say what it found in its cache, so that all prompt tokens count as prefill; start it "
                    "with --enable-prompt-tokens-details",
                    self.url,
                )
        return replies

    def _run(self, link: Link, work: Coroutine[Any, Any, T]) -> T:
        try:
            return link.run(work)
        except (Failed, Refused) as error:
            raise LovecError(f"the vLLM server at {self.url}: {error}") from None

    # The server

    def _running(self) -> Link:
        if self._link is None or not self._link.now:
            raise LovecError("the engine has no model yet; call sync(policy) first")
        return self._link

    def _linked(self, model: str | None = None) -> Link:
        """The connection, made at the first call; ``model`` is then the base model."""
        wanted = model or self.model
        if self._link is not None and (wanted is None or wanted in self._link.names):
            return self._link
        self.close()
        link = Link(Calls(self.url, key_from(KEY), self.timeout, self.retries, _ADVICE), self._adapter_dir)
        try:
            cards = link.run(link.calls.get("/models", cards_of))
        except (Failed, Refused) as error:
            link.end()
            raise LovecError(
                f"there is no vLLM server at {self.url} ({error}); start one: python -m "
                "vllm.entrypoints.openai.api_server --model ..., or mend url"
            ) from None
        bases = [card for card in cards if not card.get("parent")]
        base = next((card for card in bases if wanted in (None, card["id"], card.get("root"))), None)
        if base is None:
            link.end()
            raise LovecError(
                f"model {wanted!r} is not served at {self.url}, expected one of "
                f"{', '.join(card['id'] for card in bases)}; mend model, or start the server with it"
            )
        link.base, link.names, link.context = base["id"], {base["id"], base.get("root")}, base.get("max_model_len")
        self._link, self._ends = link, weakref.finalize(self, link.end)
        return link

    def _load(self, link: Link, folder: Path) -> None:
        """Have the server load the adapter in a folder, under a name that was never used before."""
        name = f"lovec-{uuid4().hex}"
        try:
            body = {"lora_name": name, "lora_path": str(folder)}
            link.run(link.calls.post("/load_lora_adapter", body, str, retries=0))
        except (Failed, Refused) as error:
            rank = json.loads((folder / "adapter_config.json").read_text(encoding="utf-8")).get("r")
            raise LovecError(
                f"the vLLM server at {self.url} cannot load the adapter in {folder} ({error}); start it with "
                f"VLLM_ALLOW_RUNTIME_LORA_UPDATING=1, --enable-lora and --max-lora-rank {rank} or more, and let it "
                "see the folder (adapter_dir)"
            ) from None
        link.unload()
        link.loaded, link.source = name, folder

    def _check_temperature(self, link: Link) -> None:
        """Once: log-probabilities at half the temperature have to lie twice as far apart."""
        if link.tempered:
            return
        ids = list(range(64))
        bodies = [self._body([1], max_tokens=1, temperature=t, seed=0, logprob_token_ids=ids) for t in (1.0, 0.5)]
        whole, half = (list(reply.found[0].values()) for reply in self._all(link, bodies, [None, None]))
        if max(half) - min(half) < 1.5 * (max(whole) - min(whole)):
            raise LovecError(
                f"the vLLM server at {self.url} gives log-probabilities before the temperature; start it with "
                "--logprobs-mode processed_logprobs"
            )
        link.tempered = True
