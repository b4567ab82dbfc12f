"""`lovec serve`: a real server on loopback, called by the openai client, by curl and by bare sockets."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from openai import APIStatusError
from served import KEY, NAME, Server, chat, post, reply, served, until
from tinyrun import tiny

from lovec.encoding import Encoder
from lovec.serving import RequestLimits
from lovec.serving.history import History, pieces_of
from lovec.serving.inline import Inline
from lovec.serving.jobs import AnswerEnd, AnswerJob
from lovec.serving.responses import ChatResponse
from lovec.serving.service import Service
from lovec.serving.wire import ChatRequest, RequestRefused, SentBack, TagRequest, Turn, error_body
from lovec.taggers.freeform import GrowingAnswer
from lovec.taggers.served_confidence import ServedConfidence
from lovec.tags import TagFormat, parse
from lovec.types import DEFAULT_SCALE, Completion, LovecError, Sampling, Scale, TokenScores

WAITING = 24


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    flags = ("--max_waiting", str(WAITING), "--rows", "8", "--max_body", "20000", "--max_tokens", "48")
    flags += ("--timeout", "60")
    running = served(tmp_path_factory.mktemp("served"), *flags)
    yield running
    running.process.terminate()
    assert running.process.wait(60) == 143


def test_the_openai_client_gets_text_and_confidences(server: Server) -> None:
    client = server.client()
    assert [model.id for model in client.models.list()] == [NAME]
    arguments: Any = {"model": NAME, "messages": [{"role": "user", "content": "Who was Ada?"}], "max_tokens": 20}
    whole = client.chat.completions.create(**arguments)
    message = whole.choices[0].message
    confidences = message.model_extra["confidence"]
    assert message.content == " ".join(entry["text"] for entry in confidences) or len(confidences) > 1
    assert all(set(entry) >= {"text", "score", "confidence", "kept"} for entry in confidences)
    assert whole.usage is not None and 0 < whole.usage.completion_tokens <= 20
    chunks = list(client.chat.completions.create(**arguments, stream=True, stream_options={"include_usage": True}))
    streamed = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    entries = [e for c in chunks if c.choices for e in (c.choices[0].delta.model_extra or {}).get("confidence", [])]
    placed = [{"index": at, **entry} for at, entry in enumerate(confidences)]
    assert (streamed, entries, chunks[-1].usage) == (message.content, placed, whole.usage)
    filtered = client.chat.completions.create(**arguments, extra_body={"min_confidence": 0.5})
    kept = filtered.choices[0].message
    assert [entry["kept"] for entry in kept.model_extra["confidence"]] == [
        entry["confidence"] is not None and entry["confidence"] >= 0.5 for entry in confidences
    ]


def test_sampling_follows_the_seed(server: Server) -> None:
    def text(**more: Any) -> str:
        return post(server, chat(temperature=1.5, max_tokens=24, **more))[1]["choices"][0]["message"]["content"]

    assert text(seed=3) == text(seed=3) != text(seed=4)
    assert len({text() for _ in range(3)}) > 1


def test_curl_gets_a_stream(server: Server) -> None:
    command = ["curl", "-sN", f"{server.url}/v1/chat/completions", "-H", f"Authorization: Bearer {KEY}"]
    done = subprocess.run([*command, "-d", chat(stream=True, max_tokens=5)], capture_output=True, text=True, timeout=60)
    events = [line.removeprefix("data: ") for line in done.stdout.splitlines() if line]
    assert events[-1] == "[DONE]"
    assert json.loads(events[-2])["choices"][0]["finish_reason"] in ("stop", "length")


def test_given_text_is_tagged(server: Server) -> None:
    text = "Ada was born in 1815. <confidence> 3 </confidence> She built a machine."
    status, data = post(server, json.dumps({"text": text, "question": "Who was Ada?"}).encode(), "/v1/tag")
    assert status == 200
    assert [entry["text"] for entry in data["confidence"]] == ["Ada was born in 1815.", "She built a machine."]
    assert all(0 <= entry["score"] <= 10 and entry["kept"] for entry in data["confidence"])
    assert data["content"] == "Ada was born in 1815. She built a machine."
    status, data = post(server, json.dumps({"question": "Who was Ada?"}).encode(), "/v1/tag")
    assert (status, data["error"]["param"]) == (400, "text")
    text = "Ada was\nborn. See </think> here.\n\nShe died."
    status, data = post(server, json.dumps({"text": text, "question": "Who was Ada?"}).encode(), "/v1/tag")
    assert (status, data["content"]) == (200, text) and len(data["confidence"]) == 3
    of_windows = json.dumps({"text": text.replace("\n", "\r\n"), "question": "Who was Ada?"}).encode()
    assert post(server, of_windows, "/v1/tag")[1]["confidence"] == data["confidence"]


@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        (b"{", 400, "not JSON"),
        (b"[1]", 400, "a JSON list"),
        (b"\xff\xfe", 400, "not JSON"),
        (b"[" * 15000, 400, "not JSON"),
        (b"{}", 400, "messages"),
        (chat(model="other"), 404, "no model 'other'"),
        (chat(n=2), 400, "n is 2 and the temperature 0"),
        (chat(tools=[{"type": "function"}]), 400, "tools is not supported"),
        (chat(min_confidenc=7), 400, "did you mean 'min_confidence'"),
        (chat(min_confidence=7), 400, "min_confidence: Input should be less than or equal to 1"),
        (chat(min_confidence=True), 400, "min_confidence: Input should be a valid number"),
        (chat(min_score=7), 400, "min_score is now min_confidence, a confidence from 0 to 1"),
        (chat(temperature=float("nan")), 400, "NaN is not JSON"),
        (chat(temperature=float("-inf")), 400, "-Infinity is not JSON"),
        (chat()[:-1] + b', "temperature": 1e400}', 400, "the number 1e400 is too large"),
        (chat()[:-1] + b', "seed": ' + b"9" * 5000 + b"}", 400, "not JSON: Exceeds the limit"),
        (chat()[:-1] + b', "stream": true, "stream": false}', 400, "the key 'stream' comes more than once"),
        (chat(temperature=0.001), 400, "temperature is 0.001, expected 0 or a number between 0.01 and 2"),
        (chat(temperature=True), 400, "temperature: Input should be a valid number"),
        (chat(seed=2**63), 400, "seed: Input should be less than"),
        (chat(seed=True), 400, "seed: Input should be a valid integer"),
        (chat(max_tokens=-1), 400, "max_tokens: Input should be greater than or equal to 1"),
        (chat(n=True), 400, "n: Input should be a valid integer"),
        (chat(model=5), 400, "model: Input should be a valid string"),
        (chat(model="m" * 5000), 404, "no model 'mmm"),
        (chat(**{"x" * 5000: 1}), 400, "unknown parameter 'xxx"),
        (chat("half a pair: \ud800"), 400, "surrogates not allowed"),
        (chat(**{"\udc00": 1}), 400, "surrogates not allowed"),
        (chat("word " * 3600), 400, "context holds 1024"),
        (json.dumps({"messages": [{"role": 5, "content": "x"}]}).encode(), 400, "messages.0.role"),
        (json.dumps({"messages": [{}] * 1001}).encode(), 400, "messages: List should have at most 1000 items"),
        (chat(temperature=2.5), 400, "temperature: Input should be less than or equal to 2"),
        (chat(max_tokens=0), 400, "max_tokens: Input should be greater than or equal to 1"),
        (chat(stream="yes"), 400, "stream: Input should be a valid boolean"),
        (chat([{"type": "image_url"}]), 400, "messages.0.content.0.type: Input should be 'text'"),
        (chat("word " * 2000), 400, "context holds 1024"),
        (json.dumps({"messages": [{"role": "tool", "content": "x"}]}).encode(), 400, "messages.0.role"),
        (json.dumps({"messages": [{"role": "assistant", "content": "x"}]}).encode(), 400, "in turn"),
        (b" " * 20001, 413, "larger than 20000 bytes"),
    ],
)
def test_a_bad_request_is_named(server: Server, body: bytes, status: int, words: str) -> None:
    code, data = post(server, body)
    assert (code, data["error"]["type"]) == (status, "invalid_request_error")
    assert words in data["error"]["message"] and len(data["error"]["message"]) < 600


@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        ({"text": "A \ud800.", "question": "Who?"}, 400, "surrogates not allowed"),
        ({"text": "A.", "question": "Who?", "model": "other"}, 404, "no model 'other'"),
        ({"text": "A.", "question": "Who? " * 400}, 400, "the model's context holds 1024"),
        ({"text": "A.", "question": "Who?", "other": 1}, 400, "other: Extra inputs"),
        ({"text": " ", "question": "Who?"}, 400, 'text: Input should be a text that is not empty, not " "'),
        (
            {"text": "A.", "question": "\u00a0"},
            400,
            r'question: Input should be a text that is not empty, not "\u00a0"',
        ),
        ({"text": 5, "question": "Who?"}, 400, "text: Input should be a valid string, not 5"),
        ({"text": ["A."], "question": "Who?"}, 400, "text: Input should be a valid string"),
    ],
)
def test_a_bad_request_to_tag_is_named(server: Server, body: Any, status: int, words: str) -> None:
    code, data = post(server, json.dumps(body).encode(), "/v1/tag")
    assert (code, data["error"]["type"]) == (status, "invalid_request_error")
    assert words in data["error"]["message"]


def test_texts_with_control_characters_are_answered(server: Server) -> None:
    assert post(server, chat("NUL \0, ESC \x1b, line\u2028separator", max_tokens=4))[0] == 200
    body = json.dumps({"text": "NUL \0. ESC \x1b.", "question": "Who\0?"}).encode()
    assert post(server, body, "/v1/tag")[0] == 200


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Content-Type": "text/plain"}, 415),
        ({"Content-Type": "application/json; charset=utf-16"}, 415),
        ({"Content-Encoding": "gzip"}, 415),
        ({"Content-Type": "application/json; charset=UTF-8"}, 200),
    ],
)
def test_other_content_is_refused(server: Server, headers: dict[str, str], status: int) -> None:
    assert post(server, chat(max_tokens=1), **headers)[0] == status


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (f"GET /v1/tag HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {KEY}", 405),
        ("POST /health HTTP/1.1\r\nHost: x\r\nContent-Length: 0", 405),
        ("GET /health/../v1/models HTTP/1.1\r\nHost: x", 404),
        ("GET /%2e%2e/%2e%2e/etc/passwd HTTP/1.1\r\nHost: x", 404),
        ("GET /health/ HTTP/1.1\r\nHost: elsewhere", 404),
        ("GET /nothing HTTP/1.1\r\nHost: [", 404),
        ("GET /health HTTP/1.1", 400),
        ("nonsense", 400),
        ("POST /v1/tag HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\nContent-Length: 5", 400),
        ("POST /v1/tag HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\nTransfer-Encoding: chunked", 400),
        (f"POST /v1/tag HTTP/1.1\r\nHost: x\r\nContent-Length: {'9' * 5000}", 400),
        ("POST /v1/tag HTTP/1.1\r\nHost: x\r\nContent-Length: -1", 400),
        ("POST /v1/tag HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999", 401),
        (f"POST /v1/tag HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {KEY}\r\nContent-Length: 99999999", 413),
    ],
)
def test_odd_requests_get_one_error(server: Server, request_: str, status: int) -> None:
    with server.connect() as connection:
        connection.sendall(f"{request_}\r\n\r\n".encode())
        got, headers, body = reply(connection)
        error = json.loads(body)["error"]
        assert got == status and "\n" not in error["message"]
        assert status != 405 or "allow" in headers
    assert "Traceback" not in server.log.read_text()


@pytest.mark.parametrize(
    ("method", "path", "words"),
    [
        ("GET", "/v1/chat/completions", "GET /v1/chat/completions: method not allowed; use POST"),
        ("OPTIONS", "/v1/tag", "use POST"),
        (
            "POST",
            "/v1/embeddings",
            "not found; there are /, /health, /metrics, /openapi.json, /v1/models, /v1/chat/completions, "
            "/v1/responses, /v1/tag",
        ),
    ],
)
def test_a_wrong_address_is_told_the_right_ones(server: Server, method: str, path: str, words: str) -> None:
    with server.connect() as connection:
        connection.sendall(f"{method} {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {KEY}\r\n\r\n".encode())
        assert words in json.loads(reply(connection)[2])["error"]["message"]


def test_requests_without_the_key_are_refused(server: Server) -> None:
    for key in ("wrong", KEY + "x", "ключ"):
        with pytest.raises((APIStatusError, UnicodeEncodeError)) as refused:
            server.client(key).models.list()
        assert getattr(refused.value, "status_code", 401) == 401
    assert post(server, chat(), Authorization="")[0] == 401
    assert "lovec_requests_total" in server.get("/metrics") and KEY not in server.get("/metrics")


def test_unknown_paths_do_not_fill_the_metrics(server: Server) -> None:
    for number in range(5):
        with pytest.raises(urllib.error.HTTPError, match="404"):
            server.get(f"/stranger-{number}")
    assert "stranger" not in server.get("/metrics")


def test_two_hundred_requests_at_once(server: Server) -> None:
    def ask(number: int) -> int:
        return post(server, chat(f"Who was {number}?", max_tokens=8, stream=False))[0]

    with ThreadPoolExecutor(200) as pool:
        statuses = list(pool.map(ask, range(200)))
    assert set(statuses) <= {200, 429} and statuses.count(200) >= WAITING
    assert server.idle()
    assert post(server, chat(max_tokens=4))[0] == 200


def test_requests_of_disconnected_clients_are_cancelled_and_nothing_leaks(server: Server) -> None:
    status = Path(f"/proc/{server.process.pid}/status")

    def round_(stream: bool) -> None:
        for _ in range(12):
            with server.send(chat(stream=stream, temperature=1.0)) as client:
                if stream:
                    client.recv(64)  # it has begun
        assert server.idle()

    def resources() -> tuple[int, int, int]:
        words = dict(line.split(":\t") for line in status.read_text().splitlines())
        sockets = len(list(Path(f"/proc/{server.process.pid}/fd").iterdir()))
        return int(words["VmRSS"].split()[0]), int(words["Threads"]), sockets

    round_(True)
    round_(False)
    before = resources()
    for _ in range(3):
        round_(True)
        round_(False)
    after = resources()
    assert after[0] < before[0] + 30_000  # kB
    assert after[1] <= before[1] + 2 and after[2] <= before[2] + 4
    assert post(server, chat(max_tokens=4))[0] == 200


def test_white_space_around_the_key_is_no_part_of_it(tmp_path: Path) -> None:
    server = served(tmp_path, key=f" {KEY}\n")
    assert post(server, chat(max_tokens=2))[0] == 200
    assert post(server, chat(max_tokens=2), Authorization="Bearer wrong")[0] == 401
    server.process.terminate()
    assert server.process.wait(60) == 143


def test_sigterm_lets_answers_finish(tmp_path: Path) -> None:
    server = served(tmp_path, key=None)
    responses: list[Any] = []
    asking = threading.Thread(target=lambda: responses.append(post(server, chat(max_tokens=300, temperature=1.0))))
    asking.start()
    until(lambda: server.metric("lovec_running"))
    server.process.send_signal(signal.SIGTERM)
    assert server.process.wait(120) == 143
    asking.join(60)
    assert responses[0][0] == 200
    assert "Traceback" not in server.log.read_text()


def test_a_taken_port_is_one_line(server: Server) -> None:
    port = server.url.rpartition(":")[2]
    command = [sys.executable, "-m", "lovec.cli", "serve", "--model", "world-small", "--port", port]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 1 and done.stderr.count("\n") == 1
    assert f"cannot listen at 127.0.0.1:{port}" in done.stderr


# Parts


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Encoder:
    from transformers import AutoTokenizer

    return Encoder(AutoTokenizer.from_pretrained(tiny(tmp_path_factory.mktemp("words"), "llama")))


ANSWER = (
    "One. <confidence> 9 </confidence>\n\nTwo. <confidence> 11 </confidence> Three. <confidence> 2 </confidence> Four."
)


@pytest.mark.parametrize(
    ("least", "content"),
    [
        (None, "One.\n\nTwo. Three. Four."),
        (0, "One.\n\nThree."),
        (2, "One.\n\nThree."),
        (3, "One."),
        (9, "One."),
        (10, ""),
    ],
)
def test_pieces_of_an_answer_are_its_sentences(encoder: Encoder, least: int | None, content: str) -> None:
    came = cut(encoder, ANSWER, least)
    assert [len(new) for new in came] == [1, 1, 1, 1]  # each as soon as its tag is closed, and what follows at the end
    deltas = [delta for new in came for delta in new]
    entries = [entry for delta in deltas for entry in delta["confidence"]]
    assert "".join(delta["content"] for delta in deltas).lstrip() == content
    assert [entry["score"] for entry in entries] == [9, None, 2, None]
    assert [entry.get("problem") is None for entry in entries] == [True, False, True, False]
    assert [entry["text"] for entry in entries][:3] == [s.text for s in parse(ANSWER).sentences]


def test_a_tag_alone_is_no_text_of_the_answer(encoder: Encoder) -> None:
    answer = "One. <confidence> 9 </confidence> <confidence> 8 </confidence> Two. <confidence> 7 </confidence>"
    deltas = [delta for new in cut(encoder, answer, None) for delta in new]
    entries = [entry for delta in deltas for entry in delta["confidence"]]
    content = "".join(delta["content"] for delta in deltas)
    assert content == "One. Two."
    assert [(entry["text"], entry["score"]) for entry in entries] == [("One.", 9), ("", None), ("Two.", 7)]
    assert entries[1]["problem"] == "no text before the tag"
    sent_back = [SentBack.model_construct(**entry) for entry in entries]
    pieces = pieces_of(Turn("assistant", content, sent_back), encoder.tags, Inline("", encoder.tags))
    assert [(piece.text.strip(), piece.score) for piece in pieces if piece.text.strip()] == [("One.", 9), ("Two.", 7)]


def cut(encoder: Encoder, answer: str, least: int | None) -> list[list[dict[str, Any]]]:
    """What a stream says of an answer as its tokens arrive, each score certain; the last list is of its end."""
    request = ChatRequest.parse(json.loads(chat(min_confidence=least and least / 10)), NAME, 100, encoder.scale)
    inline = Inline("", encoder.tags)
    history = History(request.turns, encoder.tags, inline)
    response = ChatResponse(request, history, [1], ServedConfidence(), NAME, inline)
    growing = GrowingAnswer(encoder, [1])
    scores = iter([s.score for s in parse(answer, encoder.tags).sentences if s.score is not None])
    came = []
    for token in encoder.pieces(answer):
        if not growing.on_token(token):
            while due := growing.due(None, [], []):
                score = next(scores)
                logps = tuple(0.0 if level == score else -1000.0 for level in range(encoder.scale.size))
                growing.take(due[0], TokenScores((), choices=logps))
            came.append(growing.release([]))
    assert growing.finish(True) == growing.is_pending and growing.due(None, [], []) == []  # what follows has no score
    came.append(growing.release([]))
    return [[c["choices"][0]["delta"] for scored in new for c in response.add(0, scored)] for new in came]


def test_a_window_of_an_answer_or_of_earlier_ones_is_said(encoder: Encoder) -> None:
    scores = TokenScores((), choices=tuple(map(float, range(encoder.scale.size))))
    sentences = [f"She wrote note number {number}." for number in range(6)]
    room = 2 * len(encoder.completion(sentences[:2], [9, 9]))
    growing, came = GrowingAnswer(encoder, [1]), list[Any]()
    job = AnswerJob(came.append, [1], Sampling(9), "", growing.on_token, growing=growing)
    for token in encoder.completion(sentences, [9] * 6, finished=False):
        if not growing.on_token(token):
            while due := growing.due(room, [], []):
                growing.take(due[0], scores)
    job.end(Completion((), (), True))
    assert len(came[0].problems) == 1 and "longer than the model's context holds" in came[0].problems[0]

    turns = [Turn("user", "Who?"), Turn("assistant", " ".join(sentences)), Turn("user", "When?")]
    inline = Inline("", encoder.tags)
    work: Any = History(turns, encoder.tags, inline).requests(encoder, room + len(encoder.prompt("Who?")))
    item = next(work)
    while not isinstance(item, History):
        item = work.send([scores for _ in item.contexts])
    request = ChatRequest.parse(json.loads(chat()), NAME, 100, encoder.scale)
    response = ChatResponse(request, item, [1], ServedConfidence(), NAME, inline)
    response.add(0, AnswerEnd(True, 1, 1))
    [problem] = response.answers[0].problems
    assert problem.startswith("an earlier answer: the text is longer than the model's context holds")


def test_a_conversation_is_encoded_like_a_question(encoder: Encoder) -> None:
    assert encoder.dialogue([("user", "Who?")]) == encoder.prompt("Who?")
    long = encoder.dialogue([("system", "Be short."), ("user", "Who?"), ("assistant", "She."), ("user", "When?")])
    text = encoder.tokenizer.decode(long)
    assert text.index(encoder.instruction[-20:]) < text.index("Be short.") < text.index("She.") < text.index("When?")
    assert long.count(encoder.tokenizer.bos_token_id) == encoder.prompt("x").count(encoder.tokenizer.bos_token_id)


def test_an_error_while_a_stream_is_made_is_in_the_log_and_not_in_the_stream(caplog: pytest.LogCaptureFixture) -> None:
    def fail() -> None:
        raise RuntimeError("secret")

    async def events() -> list[str]:
        response = SimpleNamespace(first=fail, parts=1, failed=error_body)
        pending: Any = SimpleNamespace(response=response)
        return [event async for event in object.__new__(Service).stream(pending, lambda: None)]

    [event] = asyncio.run(events())
    assert "the server failed; its log says how" in event and "secret" not in event
    assert "RuntimeError: secret" in caplog.text


def test_max_tokens_is_limited_by_the_server() -> None:
    request = ChatRequest.parse(json.loads(chat(max_tokens=10**6)), NAME, 100, DEFAULT_SCALE)
    assert request.sampling == Sampling(100)
    with pytest.raises(RequestRefused, match="messages"):
        ChatRequest.parse({"messages": []}, NAME, 100, DEFAULT_SCALE)


def test_the_older_min_score_is_refused_with_what_it_is_now_on_the_scale_of_the_tags() -> None:
    scale = Scale(("no", "perhaps", "yes"))
    assert ChatRequest.parse(json.loads(chat(min_confidence=1)), NAME, 100, scale).min_confidence == 1
    for read in (
        lambda: ChatRequest.parse(json.loads(chat(min_score=1)), NAME, 100, scale),
        lambda: TagRequest.read({"text": "A.", "question": "B?", "min_score": 1}, NAME, scale),
    ):
        with pytest.raises(
            RequestRefused, match=r'is now min_confidence, a confidence from 0 to 1: "min_confidence": 0.5'
        ):
            read()


def test_entries_have_the_confidence_of_their_scale(tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    tags = TagFormat(scale=Scale(("no", "perhaps", "yes")))
    encoder = Encoder(AutoTokenizer.from_pretrained(tiny(tmp_path, "llama")), tags=tags)
    text = "One. <confidence> perhaps </confidence> Two. <confidence> no </confidence>"
    assert [entry for new in cut(encoder, text, 1) for delta in new for entry in delta["confidence"]] == [
        {"index": 0, "text": "One.", "score": 1, "confidence": 0.5, "kept": True},
        {"index": 1, "text": "Two.", "score": 0, "confidence": 0.0, "kept": False},
    ]


@pytest.mark.parametrize("name", [field.name for field in fields(RequestLimits) if field.name != "grace"])
def test_limits_are_positive(name: str) -> None:
    with pytest.raises(LovecError, match=f"{name} is 0, expected above 0"):
        RequestLimits(**{name: 0})
    with pytest.raises(LovecError, match="grace is -1, expected at least 0"):
        RequestLimits(grace=-1)
