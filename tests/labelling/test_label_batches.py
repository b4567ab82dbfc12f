"""``lovec label --batch true``: the files of single calls, at half the price, and a kill pays for nothing twice."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from batchserver import BatchServer
from forks import Fork, run_forks

from lovec.cli import main
from lovec.core import calls
from lovec.datasets.jsonl import write_records
from lovec.oracles import batch_client, prefetching
from lovec.types import Record, Sentence


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, no_key: None) -> Iterator[BatchServer]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(calls, "_FIRST_WAIT", 0.01)
    monkeypatch.setattr(prefetching, "_POLL_SECONDS", (0.01, 0.05))
    for module in (prefetching, batch_client):
        monkeypatch.setattr(module, "SETTLE_SECONDS", 0.3)
    write_records("mine.jsonl", [asked(i) for i in range(20)])
    write_records("questions.jsonl", [Record(f"q{i}", f"Who is q{i}?") for i in range(5)])
    with BatchServer() as running:
        yield running


def asked(number: int) -> Record:
    texts = [f"This r{number} rates {7 * (number + at) % 10}." for at in range(1 + number % 3)]
    return Record(f"r{number}", "Q?", ("A page.",), " ".join(texts), tuple(map(Sentence, texts)))


def oracle(server: BatchServer, out: str, cache: str | None = None) -> list[str]:
    words = ["--oracle", "OpenAIOracle", "--oracle.model", "judge", "--oracle.base_url", server.url, "--out", out]
    prices = ["--oracle.price_in", "2", "--oracle.price_out", "20"]
    return [*words, *prices, "--oracle.cache", cache or f"{out}.sqlite", "--yes", "--chunk", "4"]


def label(*words: str) -> int:
    return main(["label", *words])


def files(folder: str) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in Path(folder).glob("*.jsonl")}


def wait_for(condition: Any) -> None:
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_a_killed_run_writes_the_files_of_single_calls_and_pays_once(
    server: BatchServer, capsys: pytest.CaptureFixture[str]
) -> None:
    server.lines = {"r3": "500", "r9": "missing"}
    words = ["--answers", "mine.jsonl", "--batch", "true", *oracle(server, "batched")]
    server.held = True
    with Fork(lambda: label(*words)) as run:
        wait_for(lambda: server.batches and server.batches[0]["status"] == "in_progress")
        run.send_signal(signal.SIGKILL)
    server.held = False
    capsys.readouterr()
    assert label(*words) == 0
    printed = capsys.readouterr()
    assert "label: 20 records: 0 answered by the cache, 20 in batches submitted before, 0 calls" in printed.err
    assert "label: batch batch_1: completed, 18 replies" in printed.err
    assert "20 calls (18 in batches)" in printed.out
    assert len(server.batches) == 1 and len(server.ran) == len(set(server.ran)) == 18 and len(server.calls) == 2
    assert label("--answers", "mine.jsonl", *oracle(server, "single")) == 0
    assert files("batched") == files("single") and len(server.calls) == 22


def test_the_cost_is_said_before_and_a_limit_holds(
    server: BatchServer, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["--answers", "mine.jsonl", "--batch", "true", *oracle(server, "mine")]
    monkeypatch.setattr(sys, "stdin", open("/dev/null"))
    words.remove("--yes")
    assert label(*words) == 2
    assert "20 calls (20 in batches, at half the price), about" in capsys.readouterr().err and not server.requests
    assert label(*words, "--yes", "--max_cost", "0.01") == 1
    assert 0 < len(server.ran) < 20 and not server.calls
    assert "beyond max_cost" in capsys.readouterr().err
    assert label(*words, "--yes", "--max_cost", "1") == 0
    assert len(server.ran) == len(set(server.ran)) == 20 and not server.calls


def test_answers_and_labels_come_by_batches(server: BatchServer) -> None:
    server.rate = lambda sentence: 6
    writer = ["--writer", "OpenAIWriter", "--writer.model", "writer", "--writer.base_url", server.url]
    words = ["--questions", "questions.jsonl", *writer, "--writer.cache", "one.sqlite", "--max_new_tokens", "50"]
    sampled = ["--samples", "2", "--temperature", "0.7", "--stages", "answers,sentences,label", "--batch", "true"]
    assert label(*words, *sampled, *oracle(server, "mine", "one.sqlite")) == 0
    assert not server.calls and [b["request_counts"]["total"] for b in server.batches] == [10, 1]


@pytest.mark.slow
def test_shards_share_a_cache_and_do_not_wait_for_each_other(server: BatchServer) -> None:
    def shard(number: int) -> int:
        cached = oracle(server, "parts", "one.sqlite")
        return label("--answers", "mine.jsonl", "--batch", "true", "--shard", f"{number}/2", *cached)

    done = run_forks(lambda: shard(1), lambda: shard(2))
    assert [code for code, _ in done] == [0, 0], done
    assert len(server.batches) == 2 and len(server.ran) == len(set(server.ran)) == 20 and not server.calls
    assert main(["join", "parts"]) == 0
    assert label("--answers", "mine.jsonl", *oracle(server, "single")) == 0
    assert files("parts")["labelled.jsonl"] == files("single")["labelled.jsonl"]


def test_batch_needs_somebody_who_can(server: BatchServer, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--answers", "mine.jsonl", "--oracle", "WorldOracle", "--oracle.world", "world-small"]
    assert label(*words, "--batch", "true") == 2
    assert "--batch true works only with --oracle OpenAIOracle or --writer OpenAIWriter" in capsys.readouterr().err
    server.has_batches = False
    assert label("--answers", "mine.jsonl", "--batch", "true", *oracle(server, "mine")) == 1
    error = capsys.readouterr().err
    assert "takes no batches: HTTP 404" in error and "Traceback" not in error
