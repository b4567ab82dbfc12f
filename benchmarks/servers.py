"""Servers that run on loopback as processes of their own, for benchmarks and tests."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from lovec.core.signals import terminating

VLLM_SETTINGS = {
    "OMP_NUM_THREADS": "1",  # on matrices of a small model more threads mostly wait
    "HF_HUB_OFFLINE": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    # Engine and model in one process: two wait for each other in busy loops, which starve the others on two cores.
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
}
"""Environment variables of a vLLM server for a small model on the CPU."""

LORA_SETTINGS = {"VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1"}
"""What lets a vLLM server load adapters while it runs."""

_START_S = 600
_END_S = 60


def vllm_command(python: str, model: str | os.PathLike[str], address: str, options: Sequence[str]) -> list[str]:
    """Return the command that starts a vLLM server.

    Args:
        python: the Python of an environment with vLLM.
        model: folder of the model.
        address: where it is to listen, such as http://127.0.0.1:8000.
        options: further words of its command line.
    """
    host, _, port = address.removeprefix("http://").partition(":")
    command = [python, "-m", "vllm.entrypoints.openai.api_server", "--model", str(model), "--host", host]
    return [*command, "--port", port, *options]


@contextmanager
def started(
    command: Sequence[str], log: Path, address: str, settings: Mapping[str, str]
) -> Iterator[subprocess.Popen[bytes]]:
    """Run a server until the end of the block, which begins when the server answers its health check.

    A signal that ends this process, SIGTERM among them, ends the server, too.

    Args:
        command: what starts it.
        log: file for what it prints.
        address: where it listens, such as http://127.0.0.1:8000.
        settings: environment variables, beside those of this process.

    Raises:
        RuntimeError: it has ended, or does not answer in ten minutes; the error has the end of its log.
    """
    with terminating():
        with log.open("wb") as output:
            process = subprocess.Popen(
                command, env={**os.environ, **settings}, stdout=output, stderr=output, start_new_session=True
            )
        try:
            deadline = time.monotonic() + _START_S
            while not is_healthy(f"{address}/health"):
                if process.poll() is not None or time.monotonic() > deadline:
                    why = f"does not answer in {_START_S} s" if process.poll() is None else "has ended"
                    end = log.read_text(encoding="utf-8", errors="replace")[-3000:]
                    raise RuntimeError(f"the server {why}; the end of {log}:\n{end}")
                time.sleep(0.5)
            yield process
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGTERM)
                try:
                    process.wait(_END_S)
                except subprocess.TimeoutExpired:
                    os.killpg(process.pid, signal.SIGKILL)
                    process.wait(_END_S)


def is_healthy(address: str) -> bool:
    """Return whether a server answers its health check, at this address."""
    try:
        with urllib.request.urlopen(address, timeout=5) as reply:
            return bool(reply.status == 200)
    except (urllib.error.URLError, OSError):
        return False


def free_address() -> str:
    """Return an address of loopback at which nothing listens."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{listener.getsockname()[1]}"
