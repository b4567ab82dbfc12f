"""An engine in front of a running vLLM server: token ids in and out over HTTP, adapters loaded as they change."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any, TypeVar
from uuid import uuid4

from lovec.core.calls import ApiClient, CallFailed, ServerRefused, read_key, server_address
from lovec.core.files import read_adapter_config
from lovec.core.settings import Count, CountFromZero, Positive, checked
from lovec.encoding.choices import choice_tree
from lovec.engines.common import by_prompt, check_vllm_temperature, on_finalize, sample_rows
from lovec.engines.completions import CallbackFailed, CompletionClient, Prefill, read_models
from lovec.engines.server_connection import Connection
from lovec.types import Completion, LovecError, OnToken, Sampling, TokenScores

T = TypeVar("T")

KEY = "VLLM_API_KEY"
"""The environment variable that holds the API key of the server (vLLM itself reads the same one). A key is looked for
nowhere else."""

_ADVICE = {
    401: f"set {KEY} to the key that the server was started with",
    402: "the account has no credit left",
    404: "check model and url (which ends in /v1), and whether the server was started anew",
}


@checked(remember=True)
class RemoteVllm:
    """Samples and scores with a model that a vLLM server (0.32 or later) runs, and with the policy's newest adapter.

    The server has to serve the policy's base model. ``sync`` writes the adapter to a folder whenever it has changed,
    and lets the server load it under a new name. Every completion and every scored token is a call of its own, so that
    its random stream is its own; the server batches the calls, and its prefix cache computes what they share once.

    Start it with ``VLLM_ALLOW_RUNTIME_LORA_UPDATING=1``, ``--enable-lora --max-lora-rank R --max-loras 1
    --max-cpu-loras 2 --logprobs-mode processed_logprobs --enable-prompt-tokens-details``. An API key is read from
    ``$VLLM_API_KEY``.

    Args:
        url: address of the server.
        model: name of the base model on the server; null is the first one it serves.
        adapter_dir: folder for adapters, which this process and the server see under the same path; null is the
            system's temporary folder, for a server on the same machine.
        max_rows: the most simultaneous calls, and the most contexts for calls of ``score`` that build on each other.
        timeout: the most seconds that a call may take.
        retries: how often a call is repeated after 429, 5xx, a time-out or a malformed reply.

    Attributes:
        prefill_tokens: context tokens that the server did not find in its cache, which holds whole blocks; all context
            tokens for a server without ``--enable-prompt-tokens-details``. A completion that ``on_token`` ended counts
            with its whole prompt.
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
        max_rows: Count = 64,
        timeout: Positive = 600.0,
        retries: CountFromZero = 6,
    ) -> None:
        self.url = server_address(url, "url", KEY)
        self.model = model
        self.max_rows = max_rows
        self.timeout = timeout
        self.retries = retries
        self._prefill = Prefill()
        self._adapter_dir = adapter_dir
        self._connection: Connection | None = None
        self._end_link: Callable[[], Any] = lambda: None

    # Models and adapters

    def sync(self, policy: Any) -> None:
        """Run the policy's adapter as it is now, or the base model where the policy's adapters are switched off.

        Raises:
            LovecError: there is no server, it does not serve the model, or it cannot load the adapter.
        """
        connection = self._connected()
        folder = connection.folders.write(policy)
        if folder is None:
            connection.client.model = connection.base
            return
        if folder != connection.adapter_folder:
            self._load_adapter(connection, folder)
            connection.folders.clean()
        connection.client.model = connection.adapter

    def open(self, model: str, adapter: str | None = None) -> None:
        """Run a model without a policy.

        Args:
            model: name of the base model on the server, or the path or hub id that the server loaded it from.
            adapter: folder of a PEFT adapter, which the server sees under the same path; null runs the base model. One
                with ranks or scalings by name of layer, which vLLM ignores, is written to ``adapter_dir`` without them.

        Raises:
            LovecError: as for ``sync``; or there is no adapter in the folder.
        """
        connection = self._connected(model)
        connection.client.model = connection.base
        if adapter is not None:
            self._load_adapter(connection, connection.folders.readable(Path(adapter).absolute()))
            connection.client.model = connection.adapter

    @property
    def prefill_tokens(self) -> int:
        """Context tokens that were computed."""
        return self._prefill.tokens

    @prefill_tokens.setter
    def prefill_tokens(self, tokens: int) -> None:
        self._prefill.tokens = tokens

    @property
    def context_length(self) -> int | None:
        """The most tokens that a context and what follows it may have; None where the server does not say."""
        return self._running().client.context_length

    def close(self) -> None:
        """Unload the adapter, remove its folder and close the connection; ``sync`` opens a new one."""
        self._end_link()
        self._connection = None

    # Sampling and scoring

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        sampling: Sampling,
        stop_ids: Sequence[int],
        keys: Sequence[str] | None = None,
        on_token: OnToken | None = None,
    ) -> list[list[Completion]]:
        """Sample ``sampling.n`` completions per prompt; each ends with the first of ``stop_ids``, if one is sampled.

        The seed of a completion depends on (seed, key, index of the sample) only. How the server's arithmetic rounds
        depends on what else it computes at the time, so a near tie may be decided differently in another batch.

        Args:
            prompts: token ids of each prompt, at least one.
            sampling: how to sample; the temperature is 0 or between 0.01 and 2.
            stop_ids: ids that end a completion.
            keys: names of the prompts for their random streams (default: position in ``prompts``).
            on_token: called with every token, in a thread of the engine; where it returns False the call is ended. An
                exception ends all calls and is raised here.

        Returns:
            ``[prompts][n]`` completions; ``logps`` are of logits / temperature (temperature 0: of the plain logits),
            renormalised over the tokens that ``top_p`` leaves.

        Raises:
            LovecError: a prompt is empty or leaves no room, a setting is out of range, a call failed, or the server
                returns log-probabilities of another temperature.
        """
        connection = self._running()
        rows = sample_rows(prompts, sampling, keys, on_token, self.context_length)
        check_vllm_temperature(sampling.temperature)
        if rows and not sampling.keeps_logps:
            self._check_temperature(connection)
        replies = self._run(connection.client.sample(rows, sampling, stop_ids))
        return by_prompt([reply.completion(stop_ids, sampling) for reply in replies], sampling)

    def score(self, contexts: Sequence[Sequence[int]], choices: Sequence[Sequence[int]]) -> list[list[float]]:
        """Return the exact log-probability of every whole choice after every context: ``[contexts][choices]``.

        The server continues the context, and then those beginnings of choices that its text did not pass, and returns
        at every step the log-probabilities of the tokens of the choices. What is kept for later calls is up to the
        server's prefix cache.

        Raises:
            LovecError: a context or choice is empty, the longest choice does not fit, or a call failed.
        """
        return self._run(self._running().client.score(contexts, choice_tree(choices)))

    def token_logps(
        self,
        contexts: Sequence[Sequence[int]],
        starts: Sequence[int],
        choices: Sequence[Sequence[int]] = (),
        top: int = 0,
    ) -> list[TokenScores]:
        """Return the log-probabilities of the tokens of every context from an index on, and of choices after it.

        There is one call per context, which the server computes anew: its prefix cache holds no log-probabilities.
        Choices are scored afterwards, as by ``score``.

        Args:
            contexts: token ids of each context, at least one; there has to be room for one more token.
            starts: index of the first token of each context whose log-probability is asked for, from 1 to its length.
            choices: token ids of each choice; none scores no choice.
            top: number of the most probable tokens to return for every place, at most ``lovec.types.MOST_TOP``.

        Raises:
            LovecError: as for ``score``; a start lies outside its context; ``top`` is out of range; or the server
                leaves log-probabilities out.
        """
        return self._run(self._running().client.token_logps(contexts, starts, choice_tree(choices), top))

    def connect(self) -> CompletionClient:
        """Return a client for the running model, for callers that have an event loop of their own.

        It repeats a call at most once: somebody waits for the reply.

        Raises:
            LovecError: there is no model yet.
        """
        own = self._running().client
        return CompletionClient(self._api(min(1, self.retries)), own.context_length, prefill=None, model=own.model)

    # The connection

    def _api(self, retries: int) -> ApiClient:
        return ApiClient(self.url, read_key(KEY), self.timeout, retries, _ADVICE)

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        """Return the result of calls; the first exception of a callback is raised here.

        Raises:
            LovecError: a call failed.
        """
        try:
            return self._running().run(work)
        except CallbackFailed as failed:
            raise failed.error from None
        except (CallFailed, ServerRefused) as error:
            raise LovecError(f"the vLLM server at {self.url}: {error}") from None

    def _running(self) -> Connection:
        if self._connection is None or not self._connection.client.model:
            raise LovecError("the engine has no model yet; call sync(policy) first")
        return self._connection

    def _connected(self, model: str | None = None) -> Connection:
        """Return the connection, made at the first call or for another base model."""
        name = model or self.model
        if self._connection is not None and (name is None or name in self._connection.names):
            return self._connection
        self.close()
        client = CompletionClient(self._api(self.retries), max_calls=self.max_rows, prefill=self._prefill)
        connection = Connection(client, self._adapter_dir)
        try:
            cards = connection.run(connection.client.api.get("/models", read_models))
        except (CallFailed, ServerRefused) as error:
            connection.end()
            raise LovecError(
                f"there is no vLLM server at {self.url} ({error}); start one: python -m "
                "vllm.entrypoints.openai.api_server --model ..., or correct url"
            ) from None
        bases = [card for card in cards if not card.get("parent")]
        base = next((card for card in bases if name in (None, card["id"], card.get("root"))), None)
        if base is None:
            connection.end()
            raise LovecError(
                f"model {name!r} is not served at {self.url}, expected one of "
                f"{', '.join(card['id'] for card in bases)}; correct model, or start the server with it"
            )
        connection.base, connection.names = base["id"], {base["id"], base.get("root")}
        connection.client.context_length = base.get("max_model_len")
        self._connection, self._end_link = connection, on_finalize(self, connection.end)
        return connection

    def _load_adapter(self, connection: Connection, folder: Path) -> None:
        """Let the server load the adapter in a folder, under a name that was never used before."""
        rank = read_adapter_config(folder).get("r")
        name = f"lovec-{uuid4().hex}"
        try:
            body = {"lora_name": name, "lora_path": str(folder)}
            connection.run(connection.client.api.post("/load_lora_adapter", body, str, retries=0))
        except (CallFailed, ServerRefused) as error:
            raise LovecError(
                f"the vLLM server at {self.url} cannot load the adapter in {folder} ({error}); start it with "
                f"VLLM_ALLOW_RUNTIME_LORA_UPDATING=1, --enable-lora and --max-lora-rank {rank} or more, and let it "
                "see the folder (adapter_dir)"
            ) from None
        connection.unload_adapter()
        connection.adapter, connection.adapter_folder = name, folder

    def _check_temperature(self, connection: Connection) -> None:
        """Check, once per connection, that log-probabilities at half the temperature lie twice as far apart.

        Raises:
            LovecError: they do not.
        """
        if not connection.temperature_checked and not self._run(connection.client.has_temperature()):
            raise LovecError(
                f"the vLLM server at {self.url} gives log-probabilities before the temperature; start it with "
                "--logprobs-mode processed_logprobs"
            )
        connection.temperature_checked = True
