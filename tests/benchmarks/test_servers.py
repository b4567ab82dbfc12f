"""Servers that benchmarks and tests start: they are up in the block, and gone after it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from scripts import load_script

servers = load_script("servers")

BENCHMARK = """
import sys, time
from pathlib import Path
from servers import free_address, started
address = free_address()
Path("health").touch()
command = [sys.executable, "-m", "http.server", "--bind", "127.0.0.1", address.rpartition(":")[2]]
with started(command, Path("log"), address, {}):
    print(address, flush=True)
    time.sleep(600)
"""


def test_a_server_is_up_in_the_block_and_gone_after_it(tmp_path):
    (tmp_path / "health").write_text("ok")
    address = servers.free_address()
    command = [sys.executable, "-m", "http.server", "--bind", "127.0.0.1", "--directory", str(tmp_path)]
    command.append(address.rpartition(":")[2])
    assert not servers.is_healthy(f"{address}/health")
    with servers.started(command, tmp_path / "log", address, {}) as process:
        assert servers.is_healthy(f"{address}/health") and not servers.is_healthy(f"{address}/none")
        assert process.poll() is None
    assert process.poll() is not None and not servers.is_healthy(f"{address}/health")
    assert "GET /health" in (tmp_path / "log").read_text()


def test_a_server_that_ends_shows_the_end_of_its_log(tmp_path):
    command = [sys.executable, "-c", "import os; print('no room for', os.environ['WHAT']); raise SystemExit(3)"]
    log = tmp_path / "log"
    with pytest.raises(RuntimeError, match=f"the server has ended; the end of {log}:\nno room for weights"):
        with servers.started(command, log, servers.free_address(), {"WHAT": "weights"}):
            pass
    assert "WHAT" not in os.environ


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=["SIGTERM", "Ctrl-C"])
def test_a_benchmark_that_is_killed_leaves_no_server(number, tmp_path):
    path = {**os.environ, "PYTHONPATH": str(Path(servers.__file__).parent)}
    command = [sys.executable, "-c", BENCHMARK]
    with subprocess.Popen(command, cwd=tmp_path, env=path, stdout=subprocess.PIPE, text=True) as benchmark:
        address = benchmark.stdout.readline().strip()
        assert servers.is_healthy(f"{address}/health")
        benchmark.send_signal(number)
        assert benchmark.wait(60) != 0
    assert not servers.is_healthy(f"{address}/health")


def test_the_command_of_vllm():
    words = servers.vllm_command("python", "folder", "http://127.0.0.1:8000", ["--enforce-eager"])
    assert words[:3] == ["python", "-m", "vllm.entrypoints.openai.api_server"]
    assert words[3:] == ["--model", "folder", "--host", "127.0.0.1", "--port", "8000", "--enforce-eager"]
