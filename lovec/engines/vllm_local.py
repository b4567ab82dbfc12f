"""vLLM inside this process: loading a model and an adapter, running requests, reading their tokens."""

from __future__ import annotations

import gc
import logging
import os
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import torch

from lovec.engines.common import TokenCallback, TokenReply, on_finalize
from lovec.types import LovecError

RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""The largest LoRA ranks that vLLM can be loaded for."""

DEFAULTS = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_LOGGING_LEVEL": "ERROR", "VLLM_NO_USAGE_STATS": "1"}
"""Environment variables that are set before vLLM is imported, unless they are set already."""

log = logging.getLogger(__name__)

_group_users: list[object] = []
"""What uses the process group that vLLM creates: one entry per loaded model, and one if the group existed before."""


@dataclass(frozen=True, slots=True)
class VllmRequest:
    """A prompt for one completion.

    Attributes:
        prompt: token ids.
        params: arguments of vLLM's SamplingParams.
        scored: number of the prompt's last tokens whose log-probabilities are returned.
        top: number of the most probable tokens whose log-probabilities are returned with each of them.
        fresh: whether the prompt is computed anew where its log-probabilities are asked for, and no cached state used.
        on_token: called with every sampled token as it comes; None where nobody listens.
    """

    prompt: Sequence[int]
    params: dict[str, Any]
    scored: int = 0
    top: int = 0
    fresh: bool = False
    on_token: TokenCallback | None = None


class LocalVllm:
    """One model that vLLM runs in this process, with at most one adapter at a time.

    vLLM draws from the global random streams and seeds them when it loads; their states are restored afterwards.

    Args:
        model: folder or hub id.
        options: arguments of ``vllm.LLM``.
        sleep: whether ``rest`` releases device memory, on devices where vLLM can.

    Raises:
        LovecError: vLLM is not installed, several processes train together, or the model cannot be loaded.
    """

    def __init__(self, model: str, options: dict[str, Any], sleep: bool = False) -> None:
        vllm = _import_vllm()
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            if torch.distributed.get_world_size() > 1:
                raise LovecError(
                    "VllmEngine runs in one process and this run has several; start a vLLM server and use "
                    "lovec.engines.RemoteVllm, or train with --trainer.devices 1"
                )
            if not _group_users:
                _group_users.append("the group existed before")
        from vllm.platforms import current_platform

        self._sleeps = sleep and bool(current_platform.is_sleep_mode_available())
        if sleep and not self._sleeps:
            log.warning(
                "vLLM has no sleep mode on %s and does not release its memory",
                current_platform.device_name or "this device",
            )
        fixed = {
            "enable_sleep_mode": self._sleeps,
            "skip_tokenizer_init": True,
            "generation_config": "vllm",  # ignores the sampling defaults of the model's generation_config.json
            "logprobs_mode": "processed_logprobs",  # of the distribution that tokens are drawn from
            "max_loras": 1,
            "max_cpu_loras": 2,
        }
        try:
            with _undisturbed():
                self._llm: Any = vllm.LLM(model=model, **{"enable_prefix_caching": True, **options, **fixed})
        except (ValueError, RuntimeError, OSError, TypeError, AssertionError) as error:
            raise LovecError(f"vLLM cannot load {model}: {first_line(error)}; see docs/vllm.md") from error
        self._release = _finalizer(self, self._llm)
        self._vllm = vllm
        self._names, self._requests = count(1), count()
        self._adapter: Any = None
        self._asleep = False

    @property
    def context_length(self) -> int:
        """The most tokens that a prompt and what follows it may have."""
        return int(self._llm.llm_engine.model_config.max_model_len)

    @property
    def vocabulary(self) -> int:
        """Number of token ids. vLLM does not check ids itself, and a larger one would crash it."""
        return int(self._llm.llm_engine.model_config.get_vocab_size())

    def load_adapter(self, folder: Path) -> None:
        """Run this adapter from now on instead of the one before; the folder is not read again later.

        Raises:
            LovecError: vLLM refuses the adapter.
        """
        from vllm.lora.request import LoRARequest

        self._wake()
        number = next(self._names)
        adapter = LoRARequest(f"lovec-{number}", number, str(folder))
        try:
            with _undisturbed():
                self._llm.llm_engine.add_lora(adapter)
        except (ValueError, RuntimeError, OSError) as error:
            raise LovecError(f"vLLM refuses the adapter in {folder}: {first_line(error)}") from error
        if self._adapter is not None:
            self._llm.llm_engine.remove_lora(self._adapter.lora_int_id)
        self._adapter = adapter
        self._llm.reset_prefix_cache()  # it holds states of the old adapter

    def run(self, requests: Sequence[VllmRequest], adapted: bool) -> list[TokenReply]:
        """Return the replies in the order of the requests.

        Args:
            requests: any number; vLLM batches them. A request whose ``on_token`` returns False ends there.
            adapted: whether the adapter is used.

        Raises:
            LovecError: vLLM refuses a request, or fails.
        """
        self._wake()
        replies = [TokenReply() for _ in requests]
        engine = self._llm.llm_engine
        running: dict[str, int] = {}
        try:
            with _undisturbed(numpy_and_python=False):
                for index, request in enumerate(requests):
                    name = str(next(self._requests))
                    running[name] = index
                    self._add(name, request, adapted)
                while running:
                    for output in self._step():
                        index = running.get(output.request_id, -1)
                        if index >= 0 and _add_output(output, requests[index], replies[index]):
                            del running[output.request_id]
                            if not output.finished:
                                engine.abort_request([output.request_id])
        finally:
            if running:
                engine.abort_request(list(running))
        return replies

    def _step(self) -> list[Any]:
        """Return what one step of vLLM puts out.

        Raises:
            LovecError: vLLM fails, for example for want of a kernel for this device.
        """
        try:
            return list(self._llm.llm_engine.step())
        except Exception as error:  # it has no class for its own
            raise LovecError(f"vLLM failed: {type(error).__name__}: {first_line(error)}; see docs/vllm.md") from error

    def rest(self) -> None:
        """Release device memory until the next request; the cached states of contexts are lost."""
        if self._sleeps and not self._asleep:
            self._llm.sleep(level=1)
            self._asleep = True

    def close(self) -> None:
        """Release all memory."""
        self._llm = None
        self._release()

    def _add(self, name: str, request: VllmRequest, adapted: bool) -> None:
        from vllm.sampling_params import RequestOutputKind

        fixed: dict[str, Any] = {
            "detokenize": False,
            "ignore_eos": True,  # only the given stop ids end a completion
            "output_kind": RequestOutputKind.DELTA if request.on_token else RequestOutputKind.FINAL_ONLY,
        }
        if request.scored:
            # By default vLLM does not use its cache for prompts whose log-probabilities are asked for.
            fixed |= {"prompt_logprobs": request.top, "flat_logprobs": True}
            fixed |= {"skip_reading_prefix_cache": request.fresh}
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
            # Waking takes memory from the driver, not from what torch holds back of a training step.
            gc.collect()
            torch.cuda.empty_cache()
            with _undisturbed():
                self._llm.wake_up()
            self._asleep = False


def _import_vllm() -> Any:
    """Import vLLM with the environment variables of ``DEFAULTS``.

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


def _finalizer(owner: LocalVllm, llm: Any) -> Callable[[], Any]:
    """Return a function that releases a model's memory; it is also called when ``owner`` is garbage-collected.

    vLLM's own shutdown of any model would destroy the process group, which other models in this process still use.
    """
    client = llm.llm_engine.engine_core
    core = getattr(client, "engine_core", None)  # None where it runs in processes of its own
    token = object()
    if core is not None:
        client._finalizer.detach()
        _group_users.append(token)

    def release() -> None:
        if core is None:
            client.shutdown()
            return
        _group_users.remove(token)
        if not _group_users:
            core.shutdown()  # the client's shutdown does nothing without its finalizer
        else:
            core.model_executor.shutdown()
            core.scheduler.shutdown()
            gc.unfreeze()

    return on_finalize(owner, release)


def _add_output(output: Any, request: VllmRequest, reply: TokenReply) -> bool:
    """Add the output of one step of vLLM to a reply, and return whether the reply is complete."""
    if output.num_cached_tokens is not None:
        reply.cached = output.num_cached_tokens
    if request.scored and output.prompt_logprobs is not None:
        known = _prompt_candidates(request, output.prompt_logprobs, reply.cached or 0)
        reply.keep_prompt(request.prompt[-request.scored :], known)
    [sampled] = output.outputs
    for token, position in zip(map(int, sampled.token_ids), sampled.logprobs or (), strict=True):
        candidates = {int(other): float(entry.logprob) for other, entry in position.items()}
        reply.ids.append(token)
        reply.logps.append(candidates[token])
        reply.candidates.append(candidates)
        if request.on_token is not None and not request.on_token(token):
            return True
    return bool(output.finished)


def _prompt_candidates(request: VllmRequest, positions: Any, cached: int) -> list[dict[int, float]]:
    """Return log-probabilities by token id in the places of the prompt's last tokens, of these tokens among others.

    They are {} where the state of the token before came from the cache: vLLM's entries for such tokens are
    meaningless, or are left out; therefore positions are counted from the end.
    """
    found: list[dict[int, float]] = []
    for back in range(request.scored, 0, -1):
        computed = len(request.prompt) - back > cached and back <= len(positions)
        entries = (positions[-back] or {}) if computed else {}
        logps = {int(token): float(entry.logprob) for token, entry in entries.items()}
        found.append(logps if request.prompt[-back] in logps else {})
    return found


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message, at most 200 characters."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]


@contextmanager
def _undisturbed(numpy_and_python: bool = True) -> Iterator[None]:
    """Keep vLLM out of the autocast of a training, and the training's random streams as they are.

    Args:
        numpy_and_python: whether the streams of NumPy and Python are restored after the block, beside those of torch.
    """
    devices = [torch.cuda.current_device()] if torch.cuda.is_available() else []
    python_state, numpy_state = random.getstate(), np.random.get_state()
    with torch.autocast("cuda" if devices else "cpu", enabled=False), torch.random.fork_rng(devices=devices):
        try:
            yield
        finally:
            if numpy_and_python:
                random.setstate(python_state)
                np.random.set_state(numpy_state)
