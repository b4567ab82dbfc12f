"""Serving with a vLLM server behind it: requests begin at once, sentences come as they are written, nothing leaks.

The server behind is a stand-in on loopback that answers as vLLM does; benchmarks/serving.py runs a real one.
"""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import threading
import urllib.error
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from completionserver import CompletionServer
from served import KEY, NAME, Server, chat, first_line, post, reply, running, until
from tinyrun import tiny
from writer import Writer

from lovec.calibration import Promised, calibrate
from lovec.core import calls
from lovec.encoding import Grounding
from lovec.encoding.grounding import encoder_of
from lovec.engines import RemoteVllm
from lovec.metrics.functional import mean_confidence
from lovec.serving import streams
from lovec.serving.streams import STREAM_INTERVAL
from lovec.taggers import FreeFormTagger, IterativeTagger, Session, open_session
from lovec.taggers.freeform import sentence_spans
from lovec.taggers.served_confidence import ServedConfidence
from lovec.tags import parse
from lovec.types import MODES, Record, Sampling, Sentence

QUESTIONS = [f"Who was {name}?" for name in ("Ada", "Bob", "Eve", "Mia", "Tom")]
TEXT = "Ada ran. It was noon in London."


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return tiny(tmp_path_factory.mktemp("models"), "llama", max_position_embeddings=1024)


@pytest.fixture(scope="module")
def local(model: str) -> Iterator[Session]:
    """The same model in this process, with the same answers."""
    with open_session(model, engine=Writer(), instruction="Rate.", device="cpu") as session:
        yield session


@pytest.fixture
def upstream(model: str, local: Session, monkeypatch: pytest.MonkeyPatch) -> Iterator[CompletionServer]:
    monkeypatch.setattr(calls, "_FIRST_WAIT", 0.01)
    monkeypatch.delenv("VLLM_API_KEY", raising=False)
    writer: Any = local.engine
    with CompletionServer(model, answer=lambda prompt: writer._answer(prompt, local.encoder.stop_ids[0])[1]) as server:
        yield server


@pytest.fixture
def session(model: str, upstream: CompletionServer) -> Session:
    return open_session(model, engine=RemoteVllm(upstream.url, max_rows=3), instruction="Rate.")


def events(connection: Any) -> Iterator[dict[str, Any]]:
    """The events of a stream as they come, without the last line."""
    with connection.makefile("rb") as stream:
        for line in stream:
            if line.startswith(b"data: {"):
                yield json.loads(line[6:])


def entries_of(stream: Iterator[dict[str, Any]]) -> list[dict[str, Any]]:
    return [entry for event in stream for part in event["choices"] for entry in part["delta"].get("confidence", [])]


def same(found: list[dict[str, Any]], expected: list[dict[str, Any]]) -> None:
    """Confidences differ by rounding only, everything else not at all."""
    values = [[e.pop(name, None) for e in side for name in ("confidence", "by_source")] for side in (found, expected)]
    assert found == expected
    for one, other in zip(*values, strict=True):
        assert one == (None if other is None else pytest.approx(other, abs=1e-5))


def likelihoods(local: Session) -> ServedConfidence:
    """A calibration that takes the log-probabilities of the sentences' own tokens."""
    tagger = IterativeTagger(local.engine, local.encoder, "mean", likelihoods=True)  # of the model, which is random
    sentences = tuple(map(Sentence, ("London is a town.", "It was noon.", "Ada ran.")))
    tagged = tagger.tag([Record(f"q{i}", f"Who was number {i}?", sentences=sentences) for i in range(12)])
    labelled = [
        r.with_factuality([float((i * i + j) % 5 < 3) for j in range(len(r.sentences))]) for i, r in enumerate(tagged)
    ]
    options: Any = {"readout": ("mean", "entropy", "logp_mean", "logp_min"), "maps": ("platt",), "draws": 50}
    return ServedConfidence({m: calibrate(labelled, adapter="-", base="tiny", mode=m, **options)[0] for m in MODES})


def test_answers_and_confidences_are_those_of_an_engine_in_the_process(session: Session, local: Session) -> None:
    text = json.dumps({"text": TEXT, "question": "Who was Ada?"}).encode()

    def ask(of: Session) -> list[Any]:
        with running(replace(of, engine=of.engine)) as server:
            answers = [post(server, chat(question, max_tokens=80)) for question in QUESTIONS[:1]]
            with server.send(chat(QUESTIONS[1], max_tokens=80, stream=True)) as connection:
                streamed = entries_of(events(connection))
            return [answers, streamed, post(server, text, "/v1/tag")]

    (answers, streamed, tagged), (expected, expected_streamed, expected_tagged) = ask(session), ask(local)
    for (status, data), (_, other) in zip([*answers, tagged], [*expected, expected_tagged], strict=True):
        assert status == 200
        (one, two) = [d["choices"][0]["message"] if "choices" in d else d for d in (data, other)]
        assert one["content"] == two["content"] and data.get("usage") == other.get("usage")
        same(one["confidence"], two["confidence"])
    same(streamed, expected_streamed)


@pytest.mark.parametrize("mapped", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_answers_and_texts_with_a_source_have_both_confidences(session: Session, local: Session, mapped: bool) -> None:
    served = likelihoods(local) if mapped else ServedConfidence()  # then the words of sentences are scored, too
    around = Grounding("Read:\n{evidence}\nGo by it.", 100)
    text = json.dumps({"text": TEXT, "question": "Who was Ada?", "evidence": "Ada ran."}).encode()

    def ask(of: Session) -> list[list[dict[str, Any]]]:
        encoder = encoder_of(of.encoder.tokenizer, "Rate.", grounding=around, stops=of.encoder.stop_ids)
        encoder = encoder.within(of.engine.context_length)
        with running(replace(of, encoder=encoder, served=served)) as server:
            body = chat("Who was Ada?", max_tokens=200, evidence="Ada ran.")
            answer = post(server, body)[1]["choices"][0]["message"]["confidence"]
            with server.send(body[:-1] + b', "stream": true}') as connection:
                return [answer, entries_of(events(connection)), post(server, text, "/v1/tag")[1]["confidence"]]

    for found, expected in zip(ask(session), ask(local), strict=True):
        assert any(entry["by_source"] not in (None, entry["confidence"]) for entry in found)
        same(found, expected)


@pytest.mark.slow
def test_likelihoods_come_with_the_stream(session: Session, local: Session, upstream: CompletionServer) -> None:
    served = likelihoods(local)
    deployed = replace(session, served=served)
    with running(deployed) as server:
        entries = post(server, chat("Who was Zoe?", max_tokens=90))[1]["choices"][0]["message"]["confidence"]
        body = json.dumps({"text": TEXT, "question": "Who was Ada?"}).encode()
        tagged = post(server, body, "/v1/tag")[1]["confidence"]
    assert {entry["confidence"] is None for entry in entries} == {True, False}
    assert all(entry["confidence"] is not None for entry in tagged)
    [stream] = [body for body in upstream.paths("/v1/completions") if body.get("stream")]
    assert stream["logprobs"] == 0
    prompt, ids = stream["prompt"], upstream.answer(stream["prompt"])[:90]  # type: ignore[misc]
    engine: Any = local.engine
    [scores] = engine.token_logps([[*prompt, *ids]], [len(prompt)])
    [record] = FreeFormTagger(local.engine, local.encoder, Sampling(90), "mean").tag([Record("a", "Who was Zoe?")])
    places = sentence_spans(parse(local.encoder.decode(ids), local.encoder.tags), ids, local.encoder)
    expected = [
        served.sentence(replace(s, token_logps=scores.logps[place]), "free-form").confidence
        for s, place in zip(record.sentences, places, strict=False)
        if s.distribution is not None and place is not None
    ]
    found = [entry["confidence"] for entry in entries if entry["confidence"] is not None]
    assert found == pytest.approx(expected, abs=1e-5)
    assert 0.05 < found[0] < 0.95  # not at an end of the scale, where all log-probabilities would do


def stated(local: Session) -> ServedConfidence:
    """A calibration of the stated score, with a guarantee."""
    sentences = tuple(Sentence("Ada ran.", score=score, levels=11) for score in range(11))
    labels = [float(score > 7) for score in range(11)]
    records = [Record(f"q{i}", "Who?", sentences=sentences).with_factuality(labels) for i in range(12)]
    options: Any = {"readout": "stated", "maps": ("platt",), "draws": 50, "promised": [Promised.keep_factual(0.5)]}
    return ServedConfidence({m: calibrate(records, adapter="-", base="tiny", mode=m, **options)[0] for m in MODES})


def test_a_calibration_of_the_stated_score_needs_no_scores(
    session: Session, local: Session, upstream: CompletionServer
) -> None:
    served = stated(local)
    with running(replace(session, served=served)) as server:
        message = post(server, chat("Who was Ada?", max_tokens=90))[1]["choices"][0]["message"]
        assert [body.get("stream") for body in upstream.paths("/v1/completions")] == [True]
        kept = post(server, chat("Who was Ada?", max_tokens=90, keep_factual=0.5))[1]["choices"][0]["message"]
    [record] = FreeFormTagger(local.engine, local.encoder, Sampling(90)).tag([Record("a", "Who was Ada?")])
    expected = [served.sentence(sentence, "free-form") for sentence in record.sentences]
    assert [e["confidence"] for e in message["confidence"]] == pytest.approx([s.confidence for s in expected])
    assert {entry["confidence"] is None for entry in message["confidence"]} == {True, False}
    keeps = served.keeps("free-form", keep_factual=0.5)
    assert [entry["kept"] for entry in kept["confidence"]] == list(map(keeps, expected))
    assert {entry["kept"] for entry in kept["confidence"]} == {True, False}
    assert kept["content"] == " ".join(s.text for s in expected if keeps(s)) != message["content"]


def test_first_tokens_cost_one_prompt_where_they_tell_the_scores_apart(
    model: str, upstream: CompletionServer, local: Session
) -> None:
    tag_words = ("<c>", "</c>")  # and a scale of letters, which are single tokens here
    options: Any = {"instruction": "Rate.", "tag_words": tag_words, "scale": ("a", "b", "c"), "scoring": "prefix"}
    session = open_session(model, engine=RemoteVllm(upstream.url, max_rows=3), **options)
    assert [len(choice) for choice in session.encoder.choices] == [2, 2, 2]  # the space before them is the first
    body = json.dumps({"text": TEXT, "question": "Who was Ada?"}).encode()
    with running(session) as server:
        tagged = post(server, body, "/v1/tag")[1]["confidence"]
    bodies = upstream.paths("/v1/completions")
    context = session.encoder.prompt("Who was Ada?") + session.encoder.head("Ada ran.", True)
    with open_session(model, device="cpu", **options) as whole:
        [logps] = whole.engine.score([context], session.encoder.choices)
    assert tagged[0]["confidence"] == pytest.approx(mean_confidence([math.exp(x) for x in logps]), abs=1e-5)
    prompts = [p for b in bodies for p in (b["prompt"] if isinstance(b["prompt"][0], list) else [b["prompt"]])]
    assert len(prompts) == 2 * 2  # per sentence: the root and the space, which the model does not write by itself


@pytest.mark.parametrize("digits", ["0 to 9", "0 to 10"])
def test_first_tokens_are_read_from_the_stream(
    model: str, upstream: CompletionServer, local: Session, digits: str
) -> None:
    """No prompt is needed, except for what follows a 1 that was not written; the numbers are those of prompts."""
    scale = tuple(map(str, range(int(digits.split()[-1]) + 1)))
    session = open_session(
        model, engine=RemoteVllm(upstream.url, max_rows=3), instruction="Rate.", scale=scale, scoring="prefix"
    )
    with running(session) as server:
        replies = [post(server, chat(question, max_tokens=200))[1] for question in QUESTIONS]
        bodies = upstream.paths("/v1/completions")
        upstream.calls.clear()
        post(server, chat(QUESTIONS[0], max_tokens=120, temperature=0.7, seed=1))
        post(server, chat(QUESTIONS[0], max_tokens=120, temperature=1.0, top_p=0.9, seed=1))
        other = upstream.paths("/v1/completions")
    entries = [entry for reply in replies for entry in reply["choices"][0]["message"]["confidence"]]
    writer = Writer()
    with open_session(
        model, engine=writer, instruction="Rate.", scale=scale, scoring="prefix", device="cpu"
    ) as in_process:
        records = [Record(question, question) for question in QUESTIONS]
        tagged = FreeFormTagger(writer, in_process.encoder, Sampling(200), "mean").tag(records)
    sentences = [sentence for record in tagged for sentence in record.sentences]
    assert [entry["score"] for entry in entries] == [sentence.score for sentence in sentences]
    for entry, sentence in zip(entries, sentences, strict=True):
        valid = sentence.distribution is not None
        assert entry["confidence"] == (pytest.approx(sentence.confidence, abs=1e-5) if valid else None)
    streamed = [body for body in bodies if body.get("stream")]
    assert {tuple(body["logprob_token_ids"]) for body in streamed} == {session.encoder.watched}
    prompts = [
        p
        for b in bodies
        if not b.get("stream")
        for p in (b["prompt"] if isinstance(b["prompt"][0], list) else [b["prompt"]])
    ]
    scores = [sentence.score for sentence in sentences if sentence.score is not None]
    blank, one = session.encoder.choices[1][:2]
    assert len(prompts) == (sum(score != 1 for score in scores) if len(scale) > 10 else 0) and 1 in scores
    assert all(prompt[-2:] == [blank, one] for prompt in prompts)
    # Of what is drawn from another distribution the stream does not tell, and prompts are used.
    assert not any("logprob_token_ids" in body for body in other if body.get("stream"))
    assert any(not body.get("stream") for body in other)


def test_sentences_that_wait_share_a_call(session: Session, upstream: CompletionServer) -> None:
    """The first call is held, so that the sentences of the others are complete when it ends."""
    with running(session) as server:
        alone = [post(server, chat(question, max_tokens=80))[1]["choices"] for question in QUESTIONS[:3]]
        upstream.calls.clear()
        released = threading.Event()
        upstream.waits = lambda body: not body.get("stream") and not released.is_set()
        open_ones = [server.send(chat(question, max_tokens=80)) for question in QUESTIONS[:3]]
        until(lambda: sum(not body.get("stream") for body in upstream.paths("/v1/completions")) == 1)
        until(lambda: sum(bool(body.get("stream")) for body in upstream.paths("/v1/completions")) == 3)
        until(lambda: upstream.now == 1)  # all three are written
        released.set()
        together = [json.loads(reply(connection)[2])["choices"] for connection in open_ones]
        for one, other in zip(together, alone, strict=True):
            same(one[0]["message"]["confidence"], other[0]["message"]["confidence"])
            assert one[0]["message"]["content"] == other[0]["message"]["content"]
        starts = {tuple(session.encoder.prompt(question)) for question in QUESTIONS[:3]}
        scored = [body["prompt"] for body in upstream.paths("/v1/completions") if not body.get("stream")]
        shared = [
            {start for start in starts for prompt in prompts if tuple(prompt[: len(start)]) == start}
            for prompts in scored
            if isinstance(prompts[0], list)
        ]
        assert max(map(len, shared)) >= 2
        released.clear()  # whoever leaves takes nothing away from the others, and a call that nobody waits for ends
        upstream.calls.clear()
        leaving = [server.send(chat(question, max_tokens=80)) for question in QUESTIONS[:2]]
        until(lambda: sum(bool(body.get("stream")) for body in upstream.paths("/v1/completions")) == 2)
        until(lambda: upstream.now == 1)
        for connection in leaving:
            connection.close()
        until(lambda: not server.metric("lovec_running"))
        released.set()
        until(lambda: not upstream.now)
        assert post(server, chat(QUESTIONS[0], max_tokens=80))[0] == 200


def test_health_is_that_of_the_server_behind(
    session: Session, upstream: CompletionServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def health() -> tuple[int, str]:
        try:
            return 200, json.loads(server.get("/health"))["status"]
        except urllib.error.HTTPError as error:
            return error.code, json.loads(error.read())["status"]

    monkeypatch.setattr(streams, "CHECK_EVERY", 0.2)
    with running(session) as server:
        assert health() == (200, "ok")
        before = len(upstream.paths("/v1/models"))
        monkeypatch.setattr(streams, "CHECK_EVERY", 60.0)
        assert [health() for _ in range(5)] == [(200, "ok")] * 5
        assert len(upstream.paths("/v1/models")) <= before + 1  # anybody may ask; the server behind is spared
        monkeypatch.setattr(streams, "CHECK_EVERY", 0.0)
        upstream.name = "another"
        assert health() == (503, "the server has lost the model")
        upstream.name = "tiny"
        assert health() == (200, "ok")
        monkeypatch.setattr(streams, "CHECK_TIMEOUT", 0.3)
        hung = threading.Event()
        upstream.waits = lambda body: not body and not hung.is_set()
        assert health() == (503, "the server that runs the model does not answer")
        hung.set()
        monkeypatch.setattr(streams, "CHECK_TIMEOUT", 60.0)
        assert health() == (200, "ok")


def test_a_request_begins_beside_a_long_one(session: Session, upstream: CompletionServer) -> None:
    first = session.encoder.prompt(QUESTIONS[0])
    waiting = threading.Event()
    upstream.held = lambda prompt, number: prompt == first and number > 0 and not waiting.is_set()
    with running(session) as server, server.send(chat(QUESTIONS[0], max_tokens=80)) as long:
        until(lambda: server.metric("lovec_running") == 1)
        for question in QUESTIONS[1:]:
            assert post(server, chat(question, max_tokens=40))[0] == 200
        assert post(server, json.dumps({"text": TEXT, "question": "Who?"}).encode(), "/v1/tag")[0] == 200
        assert server.metric("lovec_running") == 1
        waiting.set()
        assert reply(long)[0] == 200


def test_sentences_are_sent_while_the_answer_is_written(session: Session, upstream: CompletionServer) -> None:
    prompt = session.encoder.prompt(QUESTIONS[0])
    ids = upstream.answer(prompt)  # type: ignore[misc]
    close = session.encoder.tags.close
    first = next(n for n in range(len(ids)) if session.encoder.decode(ids[:n]).endswith(close))
    waiting = threading.Event()
    upstream.held = lambda _, number: number * STREAM_INTERVAL > first + STREAM_INTERVAL and not waiting.is_set()
    with running(session) as server, server.send(chat(QUESTIONS[0], max_tokens=80, stream=True)) as connection:
        stream = events(connection)
        came = next(event for event in stream if event["choices"][0]["delta"].get("confidence"))
        until(lambda: upstream.now == 1)  # the call for the scores has ended, and the rest of the answer is to come
        waiting.set()
        rest = entries_of(stream)
    assert came["choices"][0]["delta"]["confidence"][0]["confidence"] is not None and len(rest) == 1


def test_answers_are_several_have_stops_and_follow_seeds(session: Session, upstream: CompletionServer) -> None:
    with running(session) as server:
        whole = post(server, chat(QUESTIONS[0], max_tokens=80))[1]["choices"][0]["message"]
        stop = whole["confidence"][1]["text"][4:9]
        data = post(server, chat(QUESTIONS[0], max_tokens=80, stop=stop))[1]
        message = data["choices"][0]["message"]
        assert message["content"] == whole["content"][: whole["content"].index(stop)]
        assert message["confidence"][-1].get("problem") in ("cut by stop", None)
        assert data["choices"][0]["finish_reason"] == "stop"
        upstream.calls.clear()
        data = post(server, chat(QUESTIONS[0], max_tokens=9, n=2, temperature=1.0, top_p=0.9, seed=4))[1]
        assert [choice["index"] for choice in data["choices"]] == [0, 1]
        assert [choice["finish_reason"] for choice in data["choices"]] == ["length"] * 2
        assert data["usage"]["completion_tokens"] == 18
        post(server, chat(QUESTIONS[0], max_tokens=9, n=2, temperature=1.0, top_p=0.9, seed=4))
        turns = [
            {"role": r, "content": c} for r, c in (("system", "Be kind."), ("user", "Hi."), ("assistant", "Hello."))
        ]
        turns.append({"role": "user", "content": "Who was Ada?"})
        assert post(server, json.dumps({"messages": turns, "max_tokens": 9}).encode())[0] == 200
    *sampled, dialogue = [body for body in upstream.paths("/v1/completions") if body.get("stream")]
    seeds = [body["seed"] for body in sampled]
    assert sorted(seeds[:2]) == sorted(seeds[2:]) and len(set(seeds)) == 2
    assert {(b["temperature"], b["top_p"], b["max_tokens"], b["top_k"]) for b in sampled} == {(1.0, 0.9, 9, 0)}
    tagged = [
        session.encoder.dialogue([("user", "Hi."), ("assistant", f"Hello. {session.encoder.tags.tag(score)}"), *rest])
        for rest in [[("user", "Who was Ada?"), ("system", "Be kind.")]]
        for score in range(11)
    ]
    assert dialogue["prompt"] in tagged  # its earlier answer was scored first
    assert "seed" not in dialogue and dialogue["temperature"] == 0.0


@pytest.mark.slow
def test_a_client_that_leaves_ends_its_calls(session: Session, upstream: CompletionServer) -> None:
    upstream.held = lambda _, number: number > 4
    with running(session, max_waiting=64) as server:

        def leave(times: int) -> tuple[int, int]:
            """Let clients ask and leave, ten at a time; return the open files and the threads that are left."""
            for _ in range(times // 10):
                open_ones = [server.send(chat(QUESTIONS[0], max_tokens=80, stream=n % 2 == 0)) for n in range(10)]
                until(lambda: upstream.now == 10)
                for connection in open_ones:
                    connection.close()
                until(lambda: upstream.now == 0)
            assert server.idle()
            return len(os.listdir("/proc/self/fd")), threading.active_count()

        files, threads = leave(20)
        leave(200)  # the last threads of the stand-in may still be closing their connections
        until(lambda: len(os.listdir("/proc/self/fd")) <= files + 4 and threading.active_count() <= threads + 4)
        upstream.held = lambda *_: False
        assert post(server, chat(QUESTIONS[0], max_tokens=80))[0] == 200


def test_faults_of_the_server_behind_are_errors_of_a_gateway(
    session: Session, upstream: CompletionServer, caplog: pytest.LogCaptureFixture
) -> None:
    with running(session) as server:
        for fault in ("500", "hang up"):
            upstream.faults = [fault]
            assert post(server, chat(QUESTIONS[0], max_tokens=20))[0] == 200  # it is asked once more
        for faults in (["500"] * 2, ["400"], ["garbage"] * 2, ["break off"], ["error later"]):
            upstream.faults = list(faults)
            status, data = post(server, chat(QUESTIONS[0], max_tokens=80))
            assert (status, data["error"]["type"]) == (502, "server_error")
            assert "server that runs the model" in data["error"]["message"] and upstream.url not in json.dumps(data)
            until(lambda: not upstream.now)
            upstream.faults = []
        upstream.faults = ["break off"]
        with server.send(chat(QUESTIONS[0], max_tokens=80, stream=True)) as connection:
            last = list(events(connection))[-1]
        assert last["error"]["type"] == "server_error"
        upstream.given_ids = False  # a server that is too old to score
        status, data = post(server, chat(QUESTIONS[0], max_tokens=80))
        assert status == 502
        upstream.given_ids = True
        assert post(server, chat(QUESTIONS[0], max_tokens=80))[0] == 200
    assert "broke off" in caplog.text and "has to be vLLM 0.32 or later" in caplog.text and "planned" in caplog.text


def test_there_is_a_most_and_an_end(session: Session, upstream: CompletionServer) -> None:
    upstream.held = lambda _, number: number > 1
    with running(session, max_waiting=1, grace=0.5) as server:
        open_ones = []
        for question in QUESTIONS[:4]:  # three rows and one more
            open_ones.append(server.send(chat(question, max_tokens=80)))
            until(lambda: server.metric("lovec_running") == len(open_ones))
        status, data = post(server, chat())
        assert (status, data["error"]["code"]) == (429, "rate_limit_exceeded")
    for connection in open_ones:
        assert reply(connection)[0] == 503
        connection.close()
    until(lambda: not upstream.now)


@pytest.mark.slow
def test_the_command_takes_the_address_of_a_server(upstream: CompletionServer, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "lovec.cli", "serve", "--model", upstream.path, "--engine", upstream.url]
    process = subprocess.Popen(
        [*command, "--port", "0", "--name", NAME, "--instruction", "Rate."],
        env={**os.environ, "OMP_NUM_THREADS": "1", "LOVEC_API_KEY": KEY},
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        url = first_line(process).split("Open ")[1].split("/ in")[0]
        server = Server(url, process, tmp_path)
        until(lambda: json.loads(server.get("/health"))["status"] == "ok")
        assert post(server, chat(QUESTIONS[0], max_tokens=80))[0] == 200
        waiting = threading.Event()
        upstream.held = lambda _, number: number > 1 and not waiting.is_set()
        with server.send(chat(QUESTIONS[0], max_tokens=80)) as connection:
            until(lambda: server.metric("lovec_running") == 1)
            process.send_signal(signal.SIGTERM)
            waiting.set()
            assert reply(connection)[0] == 200  # what was accepted is answered
        assert process.wait(60) == 143
    finally:
        process.kill()
        process.wait(60)
