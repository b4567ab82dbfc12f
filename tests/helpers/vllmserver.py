"""A real vLLM server on loopback, in a process of its own."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
from scripts import load_script

SERVERS = load_script("servers")
PYTHON = os.environ.get("VLLM_PYTHON", "")

VLLM_SERVER = [
    pytest.mark.vllm,
    pytest.mark.skipif(not PYTHON, reason="VLLM_PYTHON does not name the python of an environment with vLLM"),
]
"""Marks of tests that need one."""

_OPTIONS = "--enforce-eager --dtype float32 --block-size 32 --enable-prompt-tokens-details"


@contextmanager
def vllm_server(model: str, name: str, folder: Path, options: Sequence[str] = ()) -> Iterator[str]:
    """Start a server, and yield its address when it is healthy.

    Args:
        model: folder of the model.
        name: what requests call it.
        folder: folder for its log.
        options: further words of its command line.
    """
    address = SERVERS.free_address()
    words = ["--served-model-name", name, *_OPTIONS.split(), *options]
    settings = SERVERS.VLLM_SETTINGS | SERVERS.LORA_SETTINGS
    with SERVERS.started(SERVERS.vllm_command(PYTHON, model, address, words), folder / "server.log", address, settings):
        yield f"{address}/v1"
