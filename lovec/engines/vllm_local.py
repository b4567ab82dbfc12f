"""vLLM inside this process: loading it, handing it requests, taking their tokens."""

from __future__ import annotations

import gc
import logging
import os
import random
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import torch

from lovec.types import LovecError

RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""Ranks of LoRA that vLLM makes room for."""

DEFAULTS = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_LOGGING_LEVEL": "ERROR", "VLLM_NO_USAGE_STATS": "1"}
"""Environment variables that are set before vLLM is imported, where they are not set already."""

log = logging.getLogger(__name__)

_live: list[object] = []
"""What needs the process group that vLLM has made: every model of this process, and whoever made the group first."""


@dataclass(frozen=True, slots=True)
class Request:
    """A prompt for one completion.

    Attributes:
        prompt: token ids.
        params: arguments of vLLM's SamplingParams.
        way: how many of the prompt's last tokens shall have their log-probability told.
    """

    prompt: Sequence[int]
    params: dict[str, Any]
    way: int = 0


@dataclass(slots=True)
class Reply:
    """What came of a request.

    Attributes:
        ids: sampled token ids.
        logps: for each of them, log-probabilities by token id: its own, and those that were asked for.
        cached: tokens of the prompt whose state was found in the cache.
        way: log-probability of each of the prompt's last tokens, as many as were asked for; None where the state of the
            token before came from the cache.
    """

    ids: list[int] = field(default_factory=list)
    logps: list[dict[int, float]] = field(default_factory=list)
    cached: int = 0
    way: list[float | None] = field(default_factory=list)


class LocalVllm:
    """One model in vLLM, in this process, with at most one adapter at a time.

    vLLM draws from the global random streams and seeds them when it loads; they are put back afterwards.

    Args:
        model: folder or hub id.
        options: arguments of ``vllm.LLM``.
        sleep: give device memory back by ``rest``, where vLLM can.

    Raises:
        LovecError: vLLM is not installed, several processes train together, or the model cannot be loaded.
    """

    def __init__(self, model: str, options: dict[str, Any], sleep: bool = False) -> None:
        vllm = _vllm()
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            if torch.distributed.get_world_size() > 1:
                raise LovecError(
                    "VllmEngine runs in one process and this run has several; start a vLLM server and use "
                    "lovec.engines.VllmServer, or train with --trainer.devices 1"
                )
            if not _live:
                _live.append("somebody else's group")
        from vllm.platforms import current_platform

        self._sleeps = sleep and bool(current_platform.is_sleep_mode_available())
        if sleep and not self._sleeps:
            log.warning(
                "vLLM has no sleep mode on %s: it keeps its memory", current_platform.device_name or "this device"
            )
        fixed = {
            "enable_sleep_mode": self._sleeps,
            "skip_tokenizer_init": True,
            "generation_config": "vllm",  # no sampling defaults of the model's own
            "logprobs_mode": "processed_logprobs",  # of the distribution drawn from
            "max_loras": 1,
            "max_cpu_loras": 2,
        }
        try:
            with _randomness_kept():
                self._llm: Any = vllm.LLM(model=model, **{"enable_prefix_caching": True, **options, **fixed})
        except (ValueError, RuntimeError, OSError, TypeError, AssertionError) as error:
            raise LovecError(f"vLLM cannot load {model}: {first_line(error)}; see docs/vllm.md") from error
        self._closed = _closing(self, self._llm)
        self._vllm = vllm
        self._names, self._requests = count(1), count()
        self._adapter: Any = None
        self._asleep = False

    @property
    def context_length(self) -> int:
        """Most tokens that a prompt and what follows it may have."""
        return int(self._llm.llm_engine.model_config.max_model_len)

    @property
    def vocabulary(self) -> int:
        """Number of token ids; vLLM does not check them itself, and a larger one would end it."""
        return int(self._llm.llm_engine.model_config.get_vocab_size())

    def load_adapter(self, folder: Path) -> None:
        """Run this adapter from now on, in place of the one before; the folder is not read again.

        Raises:
            LovecError: vLLM does not take it.
        """
        from vllm.lora.request import LoRARequest

        self._wake()
        number = next(self._names)
        adapter = LoRARequest(f"lovec-{number}", number, str(folder))
        try:
            self._llm.llm_engine.add_lora(adapter)
        except (ValueError, RuntimeError, OSError) as error:
            raise LovecError(f"vLLM does not take the adapter: {first_line(error)}") from error
        if self._adapter is not None:
            self._llm.llm_engine.remove_lora(self._adapter.lora_int_id)
        self._adapter = adapter
        self._llm.reset_prefix_cache()  # the old adapter's states are of no more use

    def run(
        self,
        requests: Sequence[Request],
        adapted: bool,
        on_token: Callable[[int, int], bool] | None = None,
    ) -> list[Reply]:
        """Replies in the order of the requests.

        Args:
            requests: any number; vLLM batches them.
            adapted: whether the adapter is used.
            on_token: called with (index of the request, token id) for every sampled token as it comes; False ends it.

        Raises:
            LovecError: vLLM refuses a request.
        """
        self._wake()
        replies = [Reply() for _ in requests]
        engine = self._llm.llm_engine
        live: dict[str, int] = {}
        try:
            with _randomness_kept(numbers=False):
                for index, request in enumerate(requests):
                    name = str(next(self._requests))
                    live[name] = index
                    self._add(name, request, adapted, streamed=on_token is not None)
                while live:
                    for output in engine.step():
                        index = live.get(output.request_id, -1)
                        if index >= 0 and _take(
                            output, requests[index], replies[index], _token_callback(on_token, index)
                        ):
                            del live[output.request_id]
                            if not output.finished:
                                engine.abort_request([output.request_id])
        finally:
            if live:
                engine.abort_request(list(live))
        return replies

    def rest(self) -> None:
        """Give device memory back until the next request; states of contexts are lost."""
        if self._sleeps and not self._asleep:
            self._llm.sleep(level=1)
            self._asleep = True

    def close(self) -> None:
        """Give everything back."""
        self._llm = None
        self._closed()

    def apply(self, function: Callable[[Any], Any]) -> Any:
        """What a function says of vLLM's own model."""
        return self._llm.apply_model(function)[0]

    def _add(self, name: str, request: Request, adapted: bool, streamed: bool) -> None:
        from vllm.sampling_params import RequestOutputKind

        fixed: dict[str, Any] = {
            "detokenize": False,
            "ignore_eos": True,  # the model's own end tokens mean nothing here
            "output_kind": RequestOutputKind.DELTA if streamed else RequestOutputKind.FINAL_ONLY,
        }
        if request.way:
            # vLLM would not use its cache for prompts whose log-probabilities it shall tell.
            fixed |= {"prompt_logprobs": 0, "flat_logprobs": True, "skip_reading_prefix_cache": False}
        try:
            params = self._vllm.SamplingParams(**fixed, **request.params)
            self._llm.llm_engine.add_request(
                name,
                {"type": "token", "prompt_token_ids": list(request.prompt)},
                params,
                lora_request=self._adapter if adapted else None,
            )
        except ValueError as error:
            raise LovecError(f"vLLM refuses a prompt of {len(request.prompt)} tokens: {first_line(error)}") from error

    def _wake(self) -> None:
        if self._asleep:
            self._llm.wake_up()
            self._asleep = False


def _vllm() -> Any:
    """The package, imported with the environment it should find.

    Raises:
        LovecError: it is not installed.
    """
    for name, value in DEFAULTS.items():
        os.environ.setdefault(name, value)
    try:
        import vllm
    except ImportError as error:
        raise LovecError(
            f"VllmEngine needs vLLM, which cannot be imported ({first_line(error)}); install lovec[vllm], or on a "
            "machine without a GPU see docs/vllm.md"
        ) from error
    return vllm


def _closing(owner: LocalVllm, llm: Any) -> Callable[[], Any]:
    """Gives a model's memory back, when it is called or nobody holds ``owner`` any more.

    vLLM would take the process group down with any of its models, and with it all others.
    """
    client = llm.llm_engine.engine_core
    core = getattr(client, "engine_core", None)  # None where it runs in processes of its own
    token = object()
    if core is not None:
        client._finalizer.detach()
        _live.append(token)

    def close() -> None:
        if core is not None:
            _live.remove(token)
        if core is None:
            client.shutdown()
        elif not _live:
            core.shutdown()  # the client's own would do nothing without its finalizer
        else:
            core.model_executor.shutdown()
            core.scheduler.shutdown()
            gc.unfreeze()

    return weakref.finalize(owner, close)


def _token_callback(on_token: Callable[[int, int], bool] | None, index: int) -> Callable[[int], bool]:
    return (lambda token: True) if on_token is None else (lambda token: on_token(index, token))


def _take(output: Any, request: Request, reply: Reply, goes_on: Callable[[int], bool]) -> bool:
    """Add what a step of vLLM has brought to a reply; whether that was the end of it."""
    if output.num_cached_tokens is not None:
        reply.cached = output.num_cached_tokens
    if request.way and output.prompt_logprobs is not None:
        reply.way = _way(request, output.prompt_logprobs, reply.cached)
    [sampled] = output.outputs
    for token, position in zip(sampled.token_ids, sampled.logprobs or (), strict=True):
        reply.ids.append(int(token))
        reply.logps.append({int(other): float(entry.logprob) for other, entry in position.items()})
        if not goes_on(int(token)):
            return True
    return bool(output.finished)


def _way(request: Request, positions: Any, cached: int) -> list[float | None]:
    """Log-probabilities of the prompt's last tokens; None where the state of the token before came from the cache.

    vLLM's entries for those mean nothing, or are left out; so positions are counted from the end.
    """
    found: list[float | None] = []
    for back in range(request.way, 0, -1):
        computed = len(request.prompt) - back > cached and back <= len(positions)
        entry = (positions[-back] or {}).get(request.prompt[-back]) if computed else None
        found.append(None if entry is None else float(entry.logprob))
    return found


def first_line(error: BaseException) -> str:
    """The first line an error says, short enough for a line of ours."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]


@contextmanager
def _randomness_kept(numbers: bool = True) -> Iterator[None]:
    """Inside: random streams may be used; afterwards they are as before (``numbers``: Python's and NumPy's, too)."""
    devices = [torch.cuda.current_device()] if torch.cuda.is_available() else []
    python, numpy = random.getstate(), np.random.get_state()
    with torch.random.fork_rng(devices=devices):
        try:
            yield
        finally:
            if numbers:
                random.setstate(python)
                np.random.set_state(numpy)
