"""The OpenAI-compatible oracle against a faulty local server: nothing is guessed, lost or paid for twice."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import pickle
import pty
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from faultserver import FaultServer, RecordedCall, planted
from forks import Fork, run_forks

from lovec.core import calls
from lovec.datasets.jsonl import read_records, write_records
from lovec.oracles import OpenAIOracle, OracleStopped
from lovec.oracles.asking import Prompt, another
from lovec.oracles.cache import ChatReply, ReplyCache, reply_key
from lovec.oracles.chat import address
from lovec.oracles.costs import Estimate, count_tokens
from lovec.types import LovecError, Record, Sentence

SECRET = "sk-secret-0123456789abcdef"
PAGE = "A page that says much. " * 20

RUN = """
import json, sys
from lovec.datasets.jsonl import read_records
from lovec.core import calls
from lovec.oracles import OpenAIOracle
calls._FIRST_WAIT = 0.01
records = list(read_records(sys.argv[1]))
oracle = OpenAIOracle("judge", sys.argv[2], cache=sys.argv[3], concurrency=4, price_in=1.0, price_out=10.0)
print(json.dumps(oracle.rate(records)))
"""


def about(name: str, ratings: Sequence[int], evidence: str = PAGE) -> Record:
    sentences = tuple(Sentence(f"Sentence {i} of {name} rates {r}.") for i, r in enumerate(ratings))
    return Record(name, f"Who is {name}?", evidence=(evidence,), sentences=sentences)


def many(count: int) -> list[Record]:
    draw = random.Random(3)
    return [about(f"r{i}", [draw.randint(0, 10) for _ in range(1 + i % 4)]) for i in range(count)]


def truth(records: Sequence[Record]) -> list[list[float | None]]:
    return [[planted(sentence.text) / 10 for sentence in record.sentences] for record in records]


@pytest.fixture(autouse=True)
def setting(no_key: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(calls, "_FIRST_WAIT", 0.01)
    monkeypatch.setenv("LOVEC_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def server() -> Iterator[FaultServer]:
    with FaultServer() as running:
        yield running


def judge(server: FaultServer, **options: Any) -> OpenAIOracle:
    return OpenAIOracle("judge", **{"base_url": server.url, "timeout": 30.0, **options})


# What is asked, and what comes back


def test_ratings_come_back_aligned_and_one_call_is_one_record(server: FaultServer) -> None:
    records = [*many(12), Record("silent", "Who?")]
    oracle = judge(server, price_in=2.0, price_out=20.0)
    assert oracle.rate(records) == truth(records)
    assert oracle.failures == {} and (oracle.calls, oracle.cached) == (12, 0) == (len(server.calls), 0)
    assert (oracle.tokens_in, oracle.tokens_out) == (12_000, 1_200)  # as the server counted
    assert oracle.spent == pytest.approx(0.048) and oracle.status == "12 calls, 0 cached, 0 failed, $0.05"
    by_sentences = {tuple(call.sentences): call for call in server.calls}
    for record in records[:-1]:
        call = by_sentences[tuple(sentence.text for sentence in record.sentences)]
        assert PAGE.strip() in call.prompt and "veracity rating" in call.prompt
        assert call.body["temperature"] == 0 and call.body["model"] == "judge" and len(call.body["messages"]) == 1


def test_no_call_is_made_twice_in_this_run_or_the_next(server: FaultServer) -> None:
    records = many(6)
    twins = [*records, *(Record(f"twin-{r.id}", r.question, r.evidence, sentences=r.sentences) for r in records)]
    assert judge(server).rate(twins) == truth(records) * 2
    assert len(server.calls) == 6
    again = judge(server)
    assert again.rate(records) == truth(records) and (again.calls, again.cached) == (0, 6)
    judge(server, parameters={"temperature": 1.0}).rate(records[:1])
    OpenAIOracle("other", server.url).rate(records[:1])
    assert len(server.calls) == 8 and server.calls[-2].body["temperature"] == 1.0


def test_parameters_are_sent_as_they_are(server: FaultServer) -> None:
    judge(server, parameters={"max_tokens": 99, "top_k": 5}).rate(many(1))
    assert server.calls[0].body.keys() == {"model", "messages", "max_tokens", "top_k"}


def test_long_evidence_is_cut_to_the_budget_by_what_the_sentences_ask(
    server: FaultServer, caplog: pytest.LogCaptureFixture
) -> None:
    page = "\n\n".join(f"Passage {i} speaks of nothing much. " * 15 for i in range(200))
    page = page.replace("Passage 150 speaks of nothing", "The unicorn 150 rates itself")
    record = Record("x", "Q?", (page,), sentences=(Sentence("The unicorn rates 4."),))
    oracle = judge(server, evidence_tokens=600)
    assert oracle.rate([record]) == [[0.4]]
    assert "unicorn 150" in server.calls[0].prompt and "[...]" in server.calls[0].prompt
    assert count_tokens(server.calls[0].prompt) < 600 + 1200
    assert list(oracle.cutter.cut) == ["x"] and "more than 600 tokens of evidence" in caplog.text
    judge(server, evidence_tokens=600, evidence_cut="head").rate([record])
    assert "unicorn 150" not in server.calls[1].prompt and "Passage 0 speaks" in server.calls[1].prompt


def test_missing_evidence_is_logged(server: FaultServer, caplog: pytest.LogCaptureFixture) -> None:
    oracle = judge(server)
    assert oracle.rate([about("bare", [3], evidence="")]) == [[0.3]]
    assert "none was found" in server.calls[0].prompt and "have no evidence: bare" in caplog.text


def test_rate_works_inside_a_running_loop(server: FaultServer) -> None:
    async def notebook() -> list[list[float | None]]:
        return judge(server).rate(many(5))

    assert asyncio.run(notebook()) == truth(many(5))


def test_no_more_than_the_allowed_calls_are_under_way(server: FaultServer) -> None:
    server.delay = 0.1
    judge(server, concurrency=3).rate(many(12))
    assert server.most == 3


# Faults


PASSING = [
    "429", "429 0.05", "429 date", "500", "502", "503 0.01", "408", "529", "drop", "truncated", "garbage html",
    "garbage list", "garbage empty", "garbage number", 'garbage {"choices": []}', 'garbage {"error": {"message": "x"}}',
    'garbage {"choices": [{"message": {"content": 7}}]}', "few", "many", "prose", "null", "cut", "filtered", "tell",
]  # fmt: skip


@pytest.mark.parametrize("fault", PASSING)
def test_a_passing_fault_leaves_no_trace(server: FaultServer, fault: str) -> None:
    server.faults = {"odd": [fault, fault]}
    records = [about("odd", [3, 10]), about("even", [7])]
    oracle = judge(server)
    assert oracle.rate(records) == [[0.3, 1.0], [0.7]] and not oracle.failures
    assert len(server.calls) == 4


@pytest.mark.parametrize("fault", [fault for fault in PASSING if " date" not in fault])
def test_a_lasting_fault_fails_its_record_only(server: FaultServer, fault: str) -> None:
    server.faults = {"odd": [fault] * 99}
    oracle = judge(server, retries=3)
    assert oracle.rate([about("odd", [3, 10]), about("even", [7])]) == [[None, None], [0.7]]
    assert list(oracle.failures) == ["odd"] and "\n" not in oracle.failures["odd"]
    tries, unusable = ("4 tries", "3 replies could not be used")
    assert tries in oracle.failures["odd"] or unusable in oracle.failures["odd"]
    assert len(server.calls) == (5 if tries in oracle.failures["odd"] else 4)
    server.faults = {}
    again = judge(server)
    ratings = again.rate([about("odd", [3, 10])])
    if tries in oracle.failures["odd"]:
        assert ratings == [[0.3, 1.0]]  # no reply had come, so nothing keeps it from being asked
    else:
        assert ratings == [[None, None]] and again.calls == 0 and "odd" in again.failures  # paid for thrice already


def test_failures_are_logged_with_their_reasons(server: FaultServer, caplog: pytest.LogCaptureFixture) -> None:
    server.faults = {f"odd{i}": ["422"] for i in range(4)}
    oracle = judge(server, concurrency=1)
    for i in range(4):
        oracle.rate([about(f"odd{i}", [3])])
    logged = [r.message for r in caplog.records if "failed so far" in r.message]
    reason = oracle.failures["odd0"]
    assert logged == [
        f"1 records failed so far: odd0 ({reason})",
        f"2 records failed so far: odd1 ({reason})",
        f"4 records failed so far: odd2 ({reason}), odd3 ({reason})",
    ]


@pytest.mark.parametrize("fault", ["hang", "drip"])
def test_a_call_has_a_deadline(server: FaultServer, fault: str) -> None:
    server.faults = {"odd": [fault] * 3, "tired": [fault]}
    oracle = judge(server, timeout=1.0, retries=2)
    begin = time.monotonic()
    assert oracle.rate([about("odd", [3]), about("tired", [8])]) == [[None], [0.8]]
    assert 3.0 <= time.monotonic() - begin < 120.0
    assert oracle.failures == {"odd": "no reply within 1 s (3 tries)"}


def test_a_rating_outside_the_scale_is_none_and_no_reason_to_ask_again(server: FaultServer) -> None:
    server.faults = {"odd": ["outside"]}
    oracle = judge(server)
    assert oracle.rate([about("odd", [3, 4])]) == [[None, 0.4]]
    assert not oracle.failures and len(server.calls) == 1


def test_half_of_a_surrogate_pair_does_no_harm(server: FaultServer) -> None:
    server.faults = {"odd": ["surrogate"]}
    record = Record("odd", "Q?", ("Page \ud83d.",), sentences=(Sentence("The odd \udc00 one rates 3."),))
    assert judge(server).rate([record]) == [[0.3]] == judge(server).rate([record])
    assert len(server.calls) == 1


def test_of_calls_at_once_each_goes_on_with_what_was_granted_to_another_meanwhile() -> None:
    asker, wishes, tried = OpenAIOracle("judge"), [{"a": 1, "b": 1}, {"a": 1}, {}], list[tuple[str, int]]()

    async def call(name: str, wish: int) -> str:
        tried.append((name, wish))
        if name == "slow":
            await asyncio.sleep(0.05)  # meanwhile the quick one is granted the last wish
        if wish < 2 or name == "wrong":
            raise calls.CallRefused("refused", 400)
        return name

    async def ask_all() -> list[str | BaseException]:
        slow, quick = (asker.granted(wishes, partial(call, name)) for name in ("slow", "quick"))
        done: list[str | BaseException] = list(await asyncio.gather(slow, quick))
        return done + await asyncio.gather(asker.granted(wishes, partial(call, "wrong")), return_exceptions=True)

    slow, quick, wrong = asyncio.run(ask_all())
    assert (slow, quick) == ("slow", "quick") and isinstance(wrong, calls.CallRefused)
    assert sorted(tried) == [("quick", 0), ("quick", 1), ("quick", 2), ("slow", 0), ("slow", 2), ("wrong", 2)]


def test_the_wait_that_a_server_asks_for_is_kept(server: FaultServer) -> None:
    server.faults = {"odd": ["429 0.6"], "dated": ["503 date"]}
    judge(server, concurrency=2).rate([about("odd", [3]), about("dated", [4])])
    for name, least in (("odd", 0.6), ("dated", 0.4)):  # a date has whole seconds
        first, second = (call.at for call in server.calls if f" of {name} " in call.prompt)
        assert second - first >= least


def test_a_very_long_wait_is_not_kept(server: FaultServer) -> None:
    server.faults = {"odd": ["429 86400"]}
    oracle = judge(server)
    assert oracle.rate([about("odd", [3])]) == [[None]]
    assert oracle.failures["odd"] == "HTTP 429: fault 429 (the server asks to wait 86400 s)"


def test_waits_double_and_are_random(server: FaultServer, monkeypatch: pytest.MonkeyPatch) -> None:
    waits, sleep = [], asyncio.sleep

    async def noted(seconds: float, *more: Any) -> Any:
        if seconds:
            waits.append(seconds)
        return await sleep(0, *more)

    monkeypatch.setattr(calls, "_FIRST_WAIT", 1.0)
    monkeypatch.setattr(asyncio, "sleep", noted)
    server.always = "500"
    judge(server, retries=9, concurrency=1).rate(many(2))
    assert len(waits) == 18 and len(set(waits)) == 18
    for run in (waits[:9], waits[9:]):
        for tries, wait in enumerate(run):
            longest = min(2.0**tries, 60.0)
            assert longest / 2 <= wait <= longest


@pytest.mark.parametrize("seed", range(3))
def test_every_record_is_rated_or_named_among_the_failures(server: FaultServer, seed: int) -> None:
    draw = random.Random(seed)
    records = many(40)
    kinds = [fault for fault in PASSING if " date" not in fault] + ["outside", "400", "422", "403"]
    server.faults = {r.id: [draw.choice(kinds) for _ in range(draw.randint(0, 5))] for r in records}
    outside = {r.id for r in records if "outside" in server.faults[r.id]}
    oracle = judge(server, retries=2, concurrency=8)
    rated = oracle.rate(records)
    assert len(rated) == len(records)
    for record, ratings, expected in zip(records, rated, truth(records), strict=True):
        if record.id in oracle.failures:
            assert ratings == [None] * len(expected) and oracle.failures[record.id]
        elif ratings != expected:
            assert record.id in outside and ratings == [None, *expected[1:]]
    assert 0 < len(oracle.failures) < 40
    for _ in range(5):  # what failed for want of a reply gets one in time
        oracle.rate(records)
    assert all("could not be used" in reason for reason in oracle.failures.values())


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("401", "set OPENAI_API_KEY to a key that this server accepts"),
        ("402", "no credit left"),
        ("404", "check model and base_url"),
        ("quota", "pay first; the account has no credit left"),
    ],
)
def test_a_server_that_refuses_every_call_gets_no_more(server: FaultServer, fault: str, words: str) -> None:
    records = many(30)
    judge(server).rate(records[5:10])
    server.calls.clear()
    server.always = fault
    with pytest.raises(OracleStopped, match=words) as stopped:
        judge(server, concurrency=2).rate(records)
    assert len(server.calls) <= 2
    assert stopped.value.missing_ids == [r.id for i, r in enumerate(records) if not 5 <= i < 10]
    assert stopped.value.ratings[5:10] == truth(records[5:10])  # what is known is not held back
    assert "\n" not in str(stopped.value)


def test_a_dead_server_is_given_up_after_twenty_records(server: FaultServer) -> None:
    server.always = "500"
    oracle = judge(server, retries=0, concurrency=2)
    with pytest.raises(OracleStopped, match=r"20 records in a row failed, the last one: HTTP 500: fault 500; ") as stop:
        oracle.rate(many(50))
    assert len(server.calls) <= 21 and len(stop.value.missing_ids) == 50 - len(server.calls)
    assert len(oracle.failures) == len(server.calls)
    server.always = ""
    assert oracle.rate(many(50)) == truth(many(50)) and not oracle.failures


@pytest.mark.parametrize("fault", ["500", "prose", "garbage html", 'garbage {"choices": []}'])
def test_failures_are_counted_over_calls_of_rate(server: FaultServer, fault: str) -> None:
    """Few records per call, all of them in progress at once, must not keep the oracle from giving up."""
    server.always = fault
    oracle = judge(server, retries=0)
    with pytest.raises(OracleStopped, match="20 records in a row failed"):
        for first in range(0, 96, 16):
            oracle.rate(many(96)[first : first + 16])
    assert len(oracle.failures) <= 32 and len(server.calls) <= 3 * 32


def test_replies_that_cannot_be_used_are_bought_again_only_on_request(server: FaultServer) -> None:
    server.always = "prose"
    assert judge(server).rate(many(5)) == [[None] * (1 + i % 4) for i in range(5)]
    assert len(server.calls) == 15
    for _ in range(2):
        again = judge(server)
        again.rate(many(5))
        assert (again.calls, again.cached, len(again.failures)) == (0, 15, 5)
    assert judge(server).estimate(many(5)).calls == 0 and judge(server, ask_again=True).estimate(many(5)).calls == 5
    server.always = ""
    asking = judge(server, ask_again=True)
    assert asking.rate(many(5)) == truth(many(5)) and asking.calls == 5 and not asking.failures
    last = judge(server)
    assert last.rate(many(5)) == truth(many(5)) and last.calls == 0  # the fourth reply is found


def test_an_unusable_reply_in_the_cache_counts_among_the_three(server: FaultServer) -> None:
    record = about("odd", [3])
    server.faults = {"odd": ["prose", "422"]}
    assert judge(server).rate([record]) == [[None]] and len(server.calls) == 2  # the first reply is kept
    server.always = "prose"
    oracle = judge(server)
    assert oracle.rate([record]) == [[None]] and (oracle.cached, oracle.calls) == (1, 2)
    assert "3 replies could not be used" in oracle.failures["odd"] and len(server.calls) == 4


@pytest.mark.parametrize(
    ("sent", "attempts"),
    [
        ({"temperature": 0.3, "seed": 7}, {"temperature": [0.3, 0.3, 0.3], "seed": [7, 8, 9]}),
        ({"temperature": 0, "seed": 7}, {"temperature": [0, 0.7, 0.7], "seed": [7, 8, 9]}),
        ({"seed": 2**31 - 1}, {"seed": [2**31 - 1, 0, 1]}),
        ({"temperature": 0}, {"temperature": [0, 0.7, 0.7]}),
        ({"temperature": 1}, {"temperature": [1, 1, 1]}),
    ],
)
def test_further_attempts_may_get_another_reply(
    server: FaultServer, sent: dict[str, Any], attempts: dict[str, list[Any]]
) -> None:
    expected = [dict(zip(attempts, values, strict=True)) for values in zip(*attempts.values(), strict=True)]
    prompt = Prompt("Who?", 9, sent, read=lambda reply: reply.text)
    assert [prompt.parameters(attempt) for attempt in range(3)] == expected
    assert another(sent) == expected[1] and another(sent, 2) == expected[2]
    server.faults = {"r0": ["prose"] * 2}
    assert judge(server, parameters=sent).rate(many(1)) == truth(many(1))
    assert [{name: call.body[name] for name in sent} for call in server.calls] == expected


def test_a_cache_of_unusable_replies_does_not_stop_the_oracle(server: FaultServer) -> None:
    """What the cache holds says nothing about the server, and a run that meets it again has to get past it."""
    records = many(45)
    server.faults = {record.id: ["prose"] * 3 for record in records[:40]}
    with pytest.raises(OracleStopped, match="20 records in a row"):
        judge(server, concurrency=1).rate(records)
    oracle = judge(server, concurrency=1)
    with pytest.raises(OracleStopped, match="20 records in a row"):
        oracle.rate(records)
    assert judge(server).rate(records)[40:] == truth(records)[40:] and len(server.calls) == 125


def test_an_address_without_a_server_is_a_failure(tmp_path: Path) -> None:
    with FaultServer() as gone:
        url = gone.url
    oracle = OpenAIOracle("judge", url, retries=1)
    assert oracle.rate([about("odd", [3])]) == [[None]]
    assert oracle.failures["odd"].startswith("broken connection: ") and "(2 tries)" in oracle.failures["odd"]


def test_no_call_is_made_once_the_cache_cannot_be_written(server: FaultServer, monkeypatch: pytest.MonkeyPatch) -> None:
    put, count = ReplyCache.put, iter(range(99))

    def full(self: ReplyCache, *row: Any) -> None:
        if next(count) >= 5:
            raise LovecError("the disk is full")
        put(self, *row)

    monkeypatch.setattr(ReplyCache, "put", full)
    with pytest.raises(OracleStopped, match=r"^the disk is full; ") as stopped:
        judge(server, concurrency=1).rate(many(20))
    assert len(server.calls) == 6 and stopped.value.ratings[:6] == truth(many(6))  # the sixth is used all the same


# Money


def test_the_estimate_counts_cached_replies_and_makes_no_call(server: FaultServer) -> None:
    records = many(10)
    server.faults = {"r1": ["few"], "r2": ["few"] * 3}
    judge(server).rate(records[:4])
    calls = len(server.calls)
    oracle = judge(server, price_in=2.5, price_out=10.0)
    twin = Record("twin", "Q?", records[9].evidence, sentences=records[9].sentences)
    estimate = oracle.estimate(iter([*records, twin, Record("silent", "Who?")]))
    assert len(server.calls) == calls
    assert (estimate.records, estimate.calls, estimate.cached) == (11, 6, 4)
    oracle.rate(records)
    sent = [call for call in server.calls[calls:]]
    assert len(sent) == 6 and estimate.tokens_in == sum(count_tokens(call.prompt) for call in sent)
    assert estimate.tokens_out == 80 * sum(len(call.sentences) for call in sent)
    assert estimate.cost == pytest.approx((2.5 * estimate.tokens_in + 10.0 * estimate.tokens_out) / 1e6)
    assert oracle.estimate(records) == Estimate(10, 0, 10, 0, 0, 0.0)
    assert f"11 records: 4 answered by the cache, 6 calls, about {estimate.tokens_in:,} tokens in" in str(estimate)
    assert judge(server).estimate(records[:1]).cost is None
    assert str(judge(server).estimate(many(20))).endswith("prices unknown, give price_in and price_out")


def test_a_run_stops_at_max_cost_and_continues_with_a_higher_one(server: FaultServer, tmp_path: Path) -> None:
    records = many(12)
    prices = {"price_in": 20.0, "price_out": 0.0}
    server.usage = (500, 0)  # a call is 1 cent, and less than two by the estimate
    assert 0.01 < judge(server, **prices).estimate(records[:1]).cost < 0.02
    oracle = judge(server, max_cost=0.065, concurrency=1, **prices)
    with pytest.raises(OracleStopped, match=r"beyond max_cost \$0\.065; 7 of 12 records are not rated \(") as stopped:
        oracle.rate(records)
    assert oracle.spent == pytest.approx(0.05) and len(server.calls) == 5 and not oracle.failures
    done = [i for i, ratings in enumerate(stopped.value.ratings) if ratings is not None]
    assert [stopped.value.ratings[i] for i in done] == [truth(records)[i] for i in done] and len(done) == 5
    assert stopped.value.missing_ids == [r.id for i, r in enumerate(records) if i not in done]
    with pytest.raises(OracleStopped):  # the limit is this object's, not a call's
        oracle.rate(records)
    assert len(server.calls) == 5
    server.delay = 0.2  # many at once reserve what they may cost
    crowd = judge(server, max_cost=0.065, cache=str(tmp_path / "fresh.sqlite"), **prices)
    with pytest.raises(OracleStopped):
        crowd.rate(records)
    assert server.most == len(server.calls) - 5 == crowd.calls == 4
    del server.calls[5:]
    assert judge(server, max_cost=1.0, **prices).rate(records) == truth(records)
    assert len(server.calls) == 12


def test_a_server_that_counts_no_tokens_is_counted_roughly(server: FaultServer) -> None:
    server.usage = None
    oracle = judge(server, price_in=1.0, price_out=1.0)
    oracle.rate(many(1))
    assert oracle.tokens_in == count_tokens(server.calls[0].prompt) and 10 < oracle.tokens_out < 40


def test_tokens_are_a_quarter_of_the_bytes() -> None:
    assert [count_tokens(text) for text in ("", "a", "abcd", "abcde", "éééé", "\ud800")] == [0, 1, 1, 2, 2, 1]


# The key


def test_the_key_is_sent_and_kept_nowhere(
    server: FaultServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, capfd: Any
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", f" {SECRET}\n")
    caplog.set_level(logging.DEBUG)
    server.faults = {"r1": ["tell"] * 9, "r2": ["429"], "r3": ["garbage html"], "r4": ["drop"], "r5": ["few"]}
    oracle = judge(server, retries=1)
    oracle.rate(many(8))
    assert {call.key for call in server.calls} == {f"Bearer {SECRET}"}
    assert oracle.failures == {"r1": "HTTP 500: bad key Bearer *** see help (2 tries)"}
    server.always = "401"
    with pytest.raises(OracleStopped) as stopped:
        judge(server).rate(many(20))
    kept = [p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()]
    texts = [caplog.text, *capfd.readouterr(), repr(oracle), str(vars(oracle)), str(stopped.value), repr(stopped.value)]
    assert kept and "HTTP" in caplog.text
    for text in [*kept, *(words.encode() for words in texts), pickle.dumps(oracle)]:
        assert SECRET.encode() not in text and b"0123456789abcdef" not in text
    copy = pickle.loads(pickle.dumps(oracle))
    server.always = ""
    assert copy.rate(many(1)) == truth(many(1))


def test_other_servers_need_no_key_but_openai_does(server: FaultServer) -> None:
    judge(server).rate(many(1))
    assert server.calls[0].key in (None, "Bearer none")
    with pytest.raises(LovecError, match=r"^\$OPENAI_API_KEY is not set"):
        OpenAIOracle("gpt-4o").rate(many(1))


def test_replies_of_the_cache_need_no_key(tmp_path: Path) -> None:
    oracle, records = OpenAIOracle("gpt-4o", cache=str(tmp_path / "replies.sqlite")), many(2)
    with ReplyCache(oracle.cache) as cache:
        for record, row in zip(records, truth(records), strict=True):
            text = "\n\n".join(f"**Analysis:** So.\n**Rating:** ${round(10 * (value or 0))}$" for value in row)
            cache.put(oracle.key(oracle._prompt(record), 0), ChatReply(text, "stop"))
    oracle.prefetch(records)
    assert oracle.rate(records) == truth(records) and oracle.failures == {} and oracle.cached == 2
    for ask in (oracle.prefetch, oracle.rate):
        with pytest.raises(LovecError, match=r"^\$OPENAI_API_KEY is not set"):
            ask(many(3))


def test_a_key_that_no_header_can_hold_is_not_shown(server: FaultServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-…geheim")
    with pytest.raises(LovecError, match="characters that no key has") as raised:
        judge(server).rate(many(1))
    assert "geheim" not in str(raised.value)


@pytest.mark.parametrize(
    "url",
    ["http://me:pass@host/v1", "https://host/v1?api-key=abc", "host:8000", "ftp://host/v1", "http://", "http://[x"],
)
def test_addresses(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(LovecError, match="base_url") as raised:
        OpenAIOracle("judge", url)
    assert "pass" not in str(raised.value) and "abc" not in str(raised.value)
    monkeypatch.setenv("OPENAI_BASE_URL", "http://there:1/v1/")
    assert address(None) == "http://there:1/v1" and address("http://here/v1") == "http://here/v1"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"model": ""}, "model is empty"),
        ({"concurrency": 0}, "concurrency is 0"),
        ({"timeout": 0}, "timeout is 0"),
        ({"retries": -1}, "retries is -1"),
        ({"max_cost": -1.0, "price_in": 1.0, "price_out": 1.0}, "max_cost is -1.0"),
        ({"max_cost": 1.0}, "max_cost needs prices"),
        ({"price_in": 1.0}, "give both or none"),
        ({"price_in": 1.0, "price_out": -2.0}, "price_out is -2.0"),
        ({"parameters": {"stream": True}}, "'stream'"),
        ({"evidence_tokens": 0}, "evidence_tokens is 0"),
        ({"evidence_cut": "tail"}, "tail"),
    ],
)
def test_options_out_of_range(options: dict[str, Any], words: str) -> None:
    with pytest.raises(LovecError, match=words):
        OpenAIOracle(**{"model": "judge", "base_url": "http://localhost:1/v1", **options})


# Kills


def keys_of(call: RecordedCall, url: str) -> str:
    """Return the cache key of the reply to a call (no prompt is sent a third time here)."""
    parameters = {"temperature": call.body["temperature"]}
    return reply_key("judge", url, call.body["messages"], parameters, int(parameters["temperature"] > 0))


def test_a_run_killed_ten_times_ends_as_an_undisturbed_one(server: FaultServer, tmp_path: Path) -> None:
    records = many(80)
    write_records(tmp_path / "records.jsonl", records)
    cache = tmp_path / "replies.sqlite"

    def work() -> None:
        calls._FIRST_WAIT = 0.01
        oracle = OpenAIOracle("judge", server.url, cache=str(cache), concurrency=4, price_in=1.0, price_out=10.0)
        print(json.dumps(oracle.rate(list(read_records(tmp_path / "records.jsonl")))))

    server.delay = 0.03
    server.faults = {
        f"r{i}": [["few"], ["429", "few"], ["500"], ["garbage html"], ["drop"]][i % 5] for i in range(0, 80, 3)
    }
    kept: set[str] = set()
    for turn in range(10):
        process = Fork(work)
        first = len(server.calls)
        while len(server.calls) < first + 4 + turn % 5:
            assert process.poll() is None
            time.sleep(0.005)
        process.end()
        time.sleep(0.1)  # the server still writes to nobody
        assert kept.isdisjoint(keys_of(call, server.url) for call in server.calls[first:])
        with ReplyCache(cache) as replies:
            kept = {key for (key,) in replies._db.execute("SELECT key FROM replies")}
    assert 20 < len(kept) < 90
    first = len(server.calls)
    [(code, printed)] = run_forks(work)
    assert code == 0, printed
    rates = json.loads(printed.splitlines()[0])
    assert kept.isdisjoint(keys_of(call, server.url) for call in server.calls[first:])
    assert rates == truth(records)
    undisturbed = judge(server, cache=str(tmp_path / "fresh.sqlite")).rate(records)
    assert rates == undisturbed


def test_the_bar_is_for_terminals_and_ctrl_c_waits_for_calls_in_progress(
    server: FaultServer, tmp_path: Path, capfd: Any
) -> None:
    judge(server).rate(many(2))
    assert capfd.readouterr().err == ""
    server.delay = 3.0  # the signal comes while the second four are under way, however slow this process is
    server.calls.clear()
    write_records(tmp_path / "records.jsonl", many(40))
    cache = tmp_path / "replies.sqlite"
    command = [sys.executable, "-c", RUN, str(tmp_path / "records.jsonl"), server.url, str(cache)]
    ours, theirs = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "120"}
    process = subprocess.Popen(
        command,
        stdout=subprocess.DEVNULL,
        stderr=theirs,
        env=environment,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),  # shells ignore it in background
    )
    os.close(theirs)
    while len(server.calls) < 8:  # four done, four under way
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    output = b""
    try:
        while chunk := os.read(ours, 65536):
            output += chunk
    except OSError:  # the other end is closed
        pass
    os.close(ours)
    assert process.wait() != 0
    assert b"4 calls, 0 cached, 0 failed, $0.01" in output and b"KeyboardInterrupt" in output
    with ReplyCache(cache) as replies:
        assert len(replies) == len(server.calls) == 8
