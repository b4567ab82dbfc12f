"""The Batch API against a local server that behaves as documented: nothing is lost, and nothing is paid for twice."""

from __future__ import annotations

import asyncio
import logging
import os
import random
import signal
import sqlite3
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from batchserver import BatchServer
from faultserver import planted
from forks import Fork, run_forks

from lovec.core import calls
from lovec.oracles import OpenAIOracle, batch_client, prefetching
from lovec.oracles.batch_client import BatchClient
from lovec.oracles.batches import BatchList, Load
from lovec.types import LovecError, Record, Sentence

PRICES = {"price_in": 2.0, "price_out": 20.0}  # a reply costs $0.004, in a batch $0.002


@pytest.fixture(autouse=True)
def setting(no_key: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(calls, "_FIRST_WAIT", 0.01)
    monkeypatch.setattr(prefetching, "_POLL_SECONDS", (0.01, 0.05))
    for module in (prefetching, batch_client):
        monkeypatch.setattr(module, "SETTLE_SECONDS", 0.3)
    monkeypatch.setenv("LOVEC_CACHE", str(tmp_path))


@pytest.fixture
def server() -> Iterator[BatchServer]:
    with BatchServer() as running:
        yield running


def many(count: int, first: int = 0) -> list[Record]:
    return [
        Record(f"r{i}", f"Who is r{i}?", ("A page.",), sentences=(Sentence(f"This r{i} rates {7 * i % 10}."),))
        for i in range(first, first + count)
    ]


def truth(records: list[Record]) -> list[list[float | None]]:
    return [[planted(sentence.text) / 10 for sentence in record.sentences] for record in records]


def judge(server: BatchServer, **options: Any) -> OpenAIOracle:
    return OpenAIOracle("judge", **{"base_url": server.url, "timeout": 30.0, "retries": 3, **options})


def paid_once(server: BatchServer, records: list[Record]) -> bool:
    """Whether every record was paid for exactly once, by a batch."""
    return len(server.ran) == len(set(server.ran)) == len(records) and not server.calls


# Replies, in any order


def test_batches_answer_all_at_half_the_price_and_rating_reads_the_cache(server: BatchServer) -> None:
    records, lines = [*many(12), *many(1), Record("silent", "Who?")], []
    oracle = judge(server, **PRICES)
    estimate = oracle.estimate(records, batch=True)
    assert (estimate.calls, estimate.batched, estimate.cached, estimate.submitted) == (12, 12, 0, 0)
    assert estimate.cost == pytest.approx(oracle.estimate(records).cost / 2)
    assert "12 calls (12 in batches, at half the price)" in str(estimate)
    oracle.prefetch(records, lines.append)
    assert paid_once(server, many(12)) and len(server.batches) == 1
    assert oracle.spent == pytest.approx(12 * 0.002)
    assert oracle.status == "12 calls (12 in batches), 0 cached, 0 failed, $0.02"
    assert oracle.rate(records) == [*truth(many(12)), *truth(many(1)), []] and not server.calls
    assert lines[0] == "batch batch_1: submitted, 12 requests" and lines[-1] == "batch batch_1: completed, 12 replies"
    again = judge(server, **PRICES)
    again.prefetch(records)
    assert len(server.batches) == 1 and (again.calls, again.spent) == (0, 0)
    assert again.estimate(records, batch=True).calls == 0


def test_batches_hold_no_more_than_a_file_may(server: BatchServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefetching, "MOST_BYTES", 9000)
    oracle = judge(server)
    oracle.prefetch(many(20))
    assert len(server.batches) > 2 and paid_once(server, many(20))
    assert all(len(server.files[batch["input_file_id"]]) <= 9000 for batch in server.batches)
    assert oracle.rate(many(20)) == truth(many(20))


@pytest.mark.parametrize("fault", ["400", "500", "timeout", "missing", "torn", "prose"])
def test_requests_that_fail_by_themselves_are_asked_one_by_one(server: BatchServer, fault: str) -> None:
    server.lines = {"r3": fault, "r7": fault}
    oracle = judge(server)
    oracle.prefetch(many(10))
    assert len(server.batches) == 1 and oracle.calls == 8 + 2 * (fault == "prose")
    judge(server).prefetch(many(10))  # a later run does not submit them again, either
    assert len(server.batches) == 1
    assert oracle.estimate(many(10), batch=True).batched == 0 and oracle.estimate(many(10), batch=True).calls == 2
    assert oracle.rate(many(10)) == truth(many(10)) and len(server.calls) == 2


def test_a_batch_that_mostly_fails_is_not_asked_again_at_the_full_price(server: BatchServer) -> None:
    server.lines = {f"r{i}": "500" for i in range(25)}
    with pytest.raises(
        LovecError, match=r"25 of the 30 requests of batch batch_1 failed or .*, 25 of them with 'HTTP 500: fau"
    ):
        judge(server).prefetch(many(30))
    server.lines = {}
    oracle = judge(server)
    oracle.prefetch(many(30))
    assert oracle.calls == 25 and oracle.rate(many(30)) == truth(many(30)) and paid_once(server, many(30))


@pytest.mark.parametrize("count", [5, 25])
def test_a_batch_without_a_reply_that_can_be_used_is_not_asked_again_at_the_full_price(
    server: BatchServer, count: int
) -> None:
    server.lines = {f"r{i}": "prose" for i in range(count)}
    oracle = judge(server)
    with pytest.raises(LovecError, match=rf"{count} of the {count} requests of batch batch_1 .* cannot be used, "):
        oracle.prefetch(many(count))
    assert oracle.calls == count and not server.calls


def test_of_two_different_replies_to_one_request_neither_is_taken(server: BatchServer) -> None:
    server.lines, lines = {"r3": "twice"}, []
    oracle = judge(server)
    oracle.prefetch(many(10), lines.append)
    assert any("1 requests have two different replies" in line for line in lines)
    assert oracle.rate(many(10)) == truth(many(10)) and len(server.calls) == 1


# Batches that do not complete


def test_what_an_expired_batch_left_is_submitted_again(server: BatchServer) -> None:
    server.ends = ["expired 4", "expired 5"]
    oracle = judge(server, **PRICES)
    oracle.prefetch(many(12))
    assert [len(server.files[b["input_file_id"]].splitlines()) for b in server.batches] == [12, 8, 3]
    assert paid_once(server, many(12)) and oracle.spent == pytest.approx(12 * 0.002)
    assert oracle.rate(many(12)) == truth(many(12))


@pytest.mark.parametrize(
    ("end", "words", "left"),
    [
        ("expired 0", "batch_1 has expired; 0 of 6 replies", 6),
        ("cancelled 2", "batch_1 was cancelled; 2 of 6", 4),
        ("failed no such model", "batch_1 failed, and nothing was paid for: line 1: no such model", 6),
    ],
)
def test_a_batch_that_ended_for_good_stops_the_run(server: BatchServer, end: str, words: str, left: int) -> None:
    server.ends = [end]
    with pytest.raises(LovecError, match=words):
        judge(server).prefetch(many(6))
    assert len(server.batches) == 1
    judge(server).prefetch(many(6))
    assert len(server.files[server.batches[1]["input_file_id"]].splitlines()) == left
    assert paid_once(server, many(6))


def test_a_full_queue_gets_less_at_a_time(server: BatchServer) -> None:
    server.queue = 5
    oracle = judge(server)
    oracle.prefetch(many(18))
    assert paid_once(server, many(18)) and oracle.rate(many(18)) == truth(many(18))
    assert max(b["request_counts"]["total"] for b in server.batches) <= 5
    server.queue = 0
    with pytest.raises(LovecError, match="Enqueued token limit reached"):
        judge(server).prefetch(many(3, 50))


# Limits, and servers that are not what they should be


def test_no_more_is_submitted_than_max_cost_allows(server: BatchServer) -> None:
    one = judge(server, **PRICES).estimate(many(1), batch=True).cost
    server.usage = (round(one * 1e6 / 2), round(one * 1e6 / 20))  # a reply costs what a batch estimates for it
    oracle = judge(server, **PRICES, max_cost=5.5 * one)
    oracle.prefetch(many(12))
    assert len(server.ran) == 5 and oracle.spent <= 5.5 * one
    with pytest.raises(LovecError, match="beyond max_cost"):
        oracle.rate(many(12))
    assert not server.calls
    judge(server, **PRICES).prefetch(many(12))
    assert paid_once(server, many(12))


def test_max_cost_counts_what_an_earlier_run_has_submitted(server: BatchServer) -> None:
    one = judge(server, **PRICES).estimate(many(1), batch=True).cost
    server.held = True
    with Fork(lambda: judge(server).prefetch(many(4, 8))) as run:
        wait_for(lambda: server.batches and server.batches[0]["status"] == "in_progress")
        run.send_signal(signal.SIGKILL)
    threading.Timer(0.3, lambda: setattr(server, "held", False)).start()
    oracle = judge(server, **PRICES, max_cost=6.5 * one)  # the last four, submitted before, and two more
    assert (found := oracle.estimate(many(12), batch=True)).submitted == 4 and found.calls == 8
    oracle.prefetch(many(12))
    assert len(server.files[server.batches[1]["input_file_id"]].splitlines()) == 2


def test_a_server_without_batches_is_named(server: BatchServer) -> None:
    server.has_batches = False
    with pytest.raises(LovecError, match=r"/v1 takes no batches: HTTP 404: Not Found; .*; ask without batches there"):
        judge(server).prefetch(many(3))
    assert judge(server).rate(many(3)) == truth(many(3))
    server.has_batches = True
    oracle = judge(server)
    oracle.prefetch(many(3, 10))  # nothing is left behind that holds a request
    assert oracle.calls == 3


def test_openai_needs_a_key() -> None:
    with pytest.raises(LovecError, match=r"\$OPENAI_API_KEY is not set"):
        OpenAIOracle("judge").prefetch(many(1))


def test_a_batch_that_another_key_may_not_see_is_not_submitted_again(server: BatchServer, tmp_path: Path) -> None:
    server.held = True
    with Fork(lambda: judge(server).prefetch(many(4))) as run:
        wait_for(lambda: server.batches and server.batches[0]["status"] == "in_progress")
        run.send_signal(signal.SIGKILL)
    hidden, server.batches = server.batches, []
    with pytest.raises(LovecError, match=r"batch batch_1 cannot be read: HTTP 404.*give the API key .* or, .* remove "):
        judge(server).prefetch(many(4))
    assert not server.batches
    server.batches, server.held = hidden, False
    judge(server).prefetch(many(4))
    assert paid_once(server, many(4))


@pytest.mark.parametrize(
    "lost", ["POST files", "POST batches", "GET batches/batch_1", "GET files/file-output-batch_1/content"]
)
def test_a_lost_reply_does_not_submit_twice(server: BatchServer, lost: str) -> None:
    call = lost.replace(" ", " /v1/")
    server.drops = {call: 1}
    judge(server).prefetch(many(5))
    assert len(server.batches) == 1 and paid_once(server, many(5)) and server.drops[call] == 0


def test_a_batch_whose_beginning_was_not_confirmed_is_found_by_the_next_run(server: BatchServer) -> None:
    judge(server).prefetch(many(1, 90))
    server.drops = {"POST /v1/batches": 1, "GET /v1/batches": 99}
    with pytest.raises(LovecError, match=r"the Batch API of .* failed: .* run again to go on"):
        judge(server).prefetch(many(5))
    server.drops = {}
    for first in range(3):  # on the second page of the list
        server.create(f"file-of-others-{first}")
    judge(server).prefetch(many(5))
    assert len(server.ran) == 6 == len(set(server.ran))


def test_a_request_is_claimed_by_one_batch_only(tmp_path: Path) -> None:
    one = {key: Load(1, 10, 5) for key in "abc"}
    with BatchList(tmp_path / "cache") as first, BatchList(tmp_path / "cache") as second:
        number, claimed = first.claim("s", one, lambda key: False)
        other, rest = second.claim("s", {key: Load(1, 1, 1) for key in "bcde"}, lambda key: key == "e")
        assert (claimed, rest) == ({"a", "b", "c"}, {"d"}) and number != other
        assert first.batch(number).load == Load(3, 30, 15) and first.batch(other).load == Load(1, 1, 1)
        second.finish(number, Load(2, 20, 8), alone=["b"])
        first.finish(number, Load())  # the other process was faster
        assert first.batch(number).load == Load(2, 20, 8) and first.is_alone("b") and first.holder("a") is None
        assert first.claim("s", one, lambda key: False)[1] == {"a", "c"}


def test_another_programs_file_is_left_alone(server: BatchServer, tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "replies.sqlite.batches") as db:
        db.execute("CREATE TABLE mine (a)")
    with pytest.raises(LovecError, match="not a list of batches; name another reply cache with cache"):
        judge(server).prefetch(many(1))
    assert not server.requests


# Kills, and two processes


def wait_for(condition: Any) -> None:
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def killed_at(owner: Any, name: str, after: bool) -> Any:
    """A run that kills itself at the first call of a method, before it is carried out or after."""

    def work(url: str) -> int:
        real = getattr(owner, name)

        def deadly(*args: Any, **named: Any) -> Any:
            if not after:
                os.kill(os.getpid(), signal.SIGKILL)
            result = real(*args, **named)
            if hasattr(result, "__await__"):

                async def awaited() -> None:
                    await result
                    os.kill(os.getpid(), signal.SIGKILL)

                return awaited()
            os.kill(os.getpid(), signal.SIGKILL)

        setattr(owner, name, deadly)
        OpenAIOracle("judge", base_url=url).prefetch(many(8))
        return 0

    return work


STEPS = [
    (BatchList, "claim"),
    (BatchClient, "upload"),
    (BatchList, "set_file"),
    (BatchClient, "create"),
    (BatchList, "set_remote"),
    (BatchClient, "status"),
    (BatchClient, "content"),
    (prefetching.ReplyCache, "put_all"),
    (BatchList, "finish"),
]


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize(("owner", "name"), STEPS, ids=[name for _, name in STEPS])
def test_a_kill_at_any_step_pays_for_nothing_twice(server: BatchServer, owner: Any, name: str, after: bool) -> None:
    with Fork(lambda: killed_at(owner, name, after)(server.url)) as run:
        assert run.wait(60) == -signal.SIGKILL
    oracle = judge(server)
    oracle.prefetch(many(8))
    assert len(server.batches) == 1 and paid_once(server, many(8))
    assert oracle.rate(many(8)) == truth(many(8)) and not server.calls


@pytest.mark.slow
def test_kills_at_random_moments_pay_for_nothing_twice(server: BatchServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefetching, "MOST_BYTES", 9000)
    for module in (prefetching, batch_client):
        monkeypatch.setattr(module, "SETTLE_SECONDS", 0.02)
    server.ends, draw, kills = ["expired 2", "completed", "expired 3"], random.Random(5), 0
    for _ in range(12):
        with Fork(lambda: judge(server).prefetch(many(30))) as run:
            time.sleep(draw.uniform(0.02, 0.6))
            kills += run.poll() is None
            run.send_signal(signal.SIGKILL)
    oracle = judge(server)
    oracle.prefetch(many(30))
    assert kills > 2 and paid_once(server, many(30)) and oracle.rate(many(30)) == truth(many(30))


def test_processes_at_the_same_time_submit_once(server: BatchServer, tmp_path: Path) -> None:
    records = [many(10), many(10, 5), many(10)]
    server.delay = 0.05

    def work(mine: list[Record]) -> int:
        oracle = judge(server)
        oracle.prefetch(mine)
        return int(oracle.rate(mine) != truth(mine))

    done = run_forks(*(lambda mine=mine: work(mine) for mine in records))
    assert [code for code, _ in done] == [0, 0, 0], done
    assert paid_once(server, many(15)) and max(Counter(server.ran).values()) == 1


def test_a_notebook_may_wait_and_interrupting_loses_nothing(server: BatchServer, caplog: Any) -> None:
    async def notebook() -> None:
        judge(server).prefetch(many(3))

    with caplog.at_level(logging.INFO):
        asyncio.run(notebook())
    assert "batch batch_1: completed, 3 replies" in caplog.text and paid_once(server, many(3))
    server.held = True
    with Fork(lambda: judge(server).prefetch(many(3, 10))) as run:
        wait_for(lambda: len(server.batches) == 2 and server.batches[1]["status"] == "in_progress")
        run.send_signal(signal.SIGINT)
        assert run.wait(60) == 1
        assert "KeyboardInterrupt" in run.stderr.read()
    server.held = False
    judge(server).prefetch(many(3, 10))
    assert len(server.batches) == 2 and len(server.ran) == 6
