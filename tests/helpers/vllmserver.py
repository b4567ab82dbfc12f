"""A real vLLM server on loopback, in a process of its own."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

PYTHON = os.environ.get("VLLM_PYTHON", "")
START_S = 300

VLLM_SERVER = [
    pytest.mark.vllm,
    pytest.mark.skipif(not PYTHON, reason="VLLM_PYTHON does not name the python of an environment with vLLM"),
]
"""Marks of tests that need one."""

_SETTINGS = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "OMP_NUM_THREADS": "1",
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1",
}
_OPTIONS = "--enforce-eager --dtype float32 --block-size 32 --enable-prompt-tokens-details"


@contextmanager
def vllm_server(model: str, name: str, folder: Path, options: Sequence[str] = ()) -> Iterator[str]:
    """Start a server, and yield its address when it is healthy; the end of its log is shown where it does not start.

    Args:
        model: folder of the model.
        name: what requests call it.
        folder: folder for its log.
        options: further words of its command line.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    log = folder / "server.log"
    command = [PYTHON, "-m", "vllm.entrypoints.openai.api_server", "--model", model, "--served-model-name", name]
    command += ["--host", "127.0.0.1", "--port", str(port), *_OPTIONS.split(), *options]
    with open(log, "wb") as output:
        process = subprocess.Popen(
            command, env={**os.environ, **_SETTINGS}, stdout=output, stderr=output, start_new_session=True
        )
    try:
        deadline = time.monotonic() + START_S
        while not _is_healthy(f"http://127.0.0.1:{port}/health"):
            end = log.read_text(errors="replace")[-3000:]
            assert process.poll() is None, f"the server ended:\n{end}"
            assert time.monotonic() < deadline, f"the server did not start in {START_S} s:\n{end}"
            time.sleep(0.5)
        yield f"http://127.0.0.1:{port}/v1"
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGTERM)
            process.wait(60)


def _is_healthy(address: str) -> bool:
    try:
        with urllib.request.urlopen(address, timeout=5) as reply:
            return bool(reply.status == 200)
    except (urllib.error.URLError, OSError):
        return False
