"""The oracle against a real vLLM server with a tiny random model, whose ratings mean nothing but have to arrive."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from tinyrun import tiny

from lovec.oracles import OpenAIOracle, OracleStopped
from lovec.types import Record, Sentence

PYTHON = os.environ.get("VLLM_PYTHON", "")
START_S = 300

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.skipif(not PYTHON, reason="VLLM_PYTHON does not name the python of an environment with vLLM"),
]

SETTINGS = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "OMP_NUM_THREADS": "1",
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
}


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Address of a server that has said it is well; its own words are shown where it does not start."""
    folder = tmp_path_factory.mktemp("served")
    model = tiny(folder, "llama", max_position_embeddings=8192)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    log = folder / "server.log"
    command = [PYTHON, "-m", "vllm.entrypoints.openai.api_server", "--model", model, "--served-model-name", "tiny"]
    command += ["--host", "127.0.0.1", "--port", str(port), "--enforce-eager", "--dtype", "float32"]
    with open(log, "wb") as words:
        process = subprocess.Popen(
            command, env={**os.environ, **SETTINGS}, stdout=words, stderr=words, start_new_session=True
        )
    try:
        deadline = time.monotonic() + START_S
        while not well(f"http://127.0.0.1:{port}/health"):
            said = log.read_text(errors="replace")[-3000:]
            assert process.poll() is None, f"the server ended:\n{said}"
            assert time.monotonic() < deadline, f"the server did not start in {START_S} s:\n{said}"
            time.sleep(0.5)
        yield f"http://127.0.0.1:{port}/v1"
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGTERM)
            process.wait(60)


def well(health: str) -> bool:
    try:
        with urllib.request.urlopen(health, timeout=5) as reply:
            return bool(reply.status == 200)
    except (urllib.error.URLError, OSError):
        return False


def records(count: int) -> list[Record]:
    page = ("Ada Lovelace was born in London in 1815.",)
    sentences = (Sentence("She was born in 1815."), Sentence("She was born in Paris."))
    return [Record(f"r{i}", f"Who is Ada {i}?", page, sentences=sentences[: 1 + i % 2]) for i in range(count)]


def test_ratings_of_a_real_server(url: str, tmp_path: Path) -> None:
    """A grammar holds the random model to the format, so that its replies are ratings."""
    pattern = r"\*\*Rating:\*\* \$([0-9]|10)\$"
    parameters = {"temperature": 0, "max_tokens": 40, "structured_outputs": {"regex": pattern}}
    oracle = OpenAIOracle("tiny", url, cache=str(tmp_path / "replies.sqlite"), parameters=parameters)
    rated = oracle.rate(records(1))
    assert len(rated[0]) == 1 and rated[0][0] in [i / 10 for i in range(11)]
    assert oracle.calls == 1 and oracle.tokens_in > 1000 and 0 < oracle.tokens_out <= 40  # as vLLM counts them
    again = OpenAIOracle("tiny", url, cache=str(tmp_path / "replies.sqlite"), parameters=parameters)
    assert again.rate(records(1)) == rated and again.calls == 0


def test_what_a_random_model_says_freely_is_no_rating(url: str, tmp_path: Path) -> None:
    oracle = OpenAIOracle(
        "tiny", url, cache=str(tmp_path / "r.sqlite"), parameters={"temperature": 0, "max_tokens": 32}, concurrency=4
    )
    rated = oracle.rate(records(2))
    assert rated == [[None], [None, None]] and list(oracle.failures) == ["r0", "r1"]
    assert "3 replies could not be used" in oracle.failures["r0"] and oracle.calls == 6


def test_what_vllm_refuses_is_said_in_its_words(url: str, tmp_path: Path) -> None:
    cache = str(tmp_path / "r.sqlite")
    with pytest.raises(OracleStopped, match="check model and base_url"):
        OpenAIOracle("nobody", url, cache=cache).rate(records(1))
    long = [Record("long", "Q?", ("word " * 9000,), sentences=(Sentence("It is long."),))]
    oracle = OpenAIOracle("tiny", url, cache=cache)
    assert oracle.rate(long) == [[None]]
    assert oracle.failures["long"].startswith("HTTP 400: ") and "context length" in oracle.failures["long"]
