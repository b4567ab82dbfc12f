"""vLLM engines for tests: one per tiny model, kept while tests run, because loading takes seconds."""

from __future__ import annotations

import importlib.util
import os
from typing import Any

import pytest

from lovec.engines import VllmEngine

VLLM = (
    pytest.mark.vllm,
    pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="vLLM is not installed: run make test-vllm"),
)


def on_vllm(test: Any) -> Any:
    """Mark a test that runs on vLLM."""
    for mark in VLLM:
        test = mark(test)
    return test


BLOCK = 32
"""Tokens per block of the KV cache: the fewest that vLLM supports on a CPU."""

os.environ.setdefault("TORCHDYNAMO_DISABLE", "1")  # compiling a kernel of the sampler would take longer than all tests


def small(**options: Any) -> VllmEngine:
    """Return an engine that takes little memory and loads fast."""
    return VllmEngine(**{"kv_cache_gib": 0.125, "block_size": BLOCK, "enforce_eager": True, **options})


class Vllms:
    """An engine that passes every call on to the vLLM engine of the model of the last ``sync``."""

    shares_model = False
    _engines: dict[str, VllmEngine] = {}  # noqa: RUF012 - shared on purpose

    def sync(self, policy: Any) -> None:
        name = policy.model.name_or_path
        if name not in self._engines:
            self._engines[name] = small()
        self._engine = self._engines[name]
        self._engine.sync(policy)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)
