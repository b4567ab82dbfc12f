"""Servers that benchmarks and tests start: they are up in the block, and gone after it."""

from __future__ import annotations

import os
import sys

import pytest
from scripts import load_script

servers = load_script("servers")


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


def test_the_command_of_vllm():
    words = servers.vllm_command("python", "folder", "http://127.0.0.1:8000", ["--enforce-eager"])
    assert words[:3] == ["python", "-m", "vllm.entrypoints.openai.api_server"]
    assert words[3:] == ["--model", "folder", "--host", "127.0.0.1", "--port", "8000", "--enforce-eager"]
