"""The server under attack: long texts, silent connections, the end of the process. Real sockets and signals."""

from __future__ import annotations

import json
import logging
import select
import signal
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from served import KEY, Server, allow_files, chat, post, reply, running, served, until
from tinyrun import tiny

from lovec.encoding import Encoder
from lovec.serving.logs import SafeFormatter
from lovec.serving.service import Service
from lovec.taggers import Session, open_session

LONG = " ".join(f"Ada wrote note {number}." for number in range(40_000))  # about 900 kB, and minutes of work


def tag(text: str) -> bytes:
    return json.dumps({"text": text, "question": "Who was Ada?"}).encode()


def answered(connection: socket.socket) -> bool:
    return bool(select.select([connection], [], [], 0)[0])


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    running = served(tmp_path_factory.mktemp("attacked"), "--rows", "8", files=512)
    yield running
    running.process.kill()
    running.process.wait(60)


def test_a_chat_beside_a_long_text_is_answered(server: Server) -> None:
    text = LONG[:6000]
    [alone, tagged_alone] = [post(server, chat(max_tokens=8)), post(server, tag(text), "/v1/tag")]
    with server.send(tag(text), "/v1/tag") as long:
        until(lambda: server.metric("lovec_running") == 1)
        beside = [post(server, chat(max_tokens=8)) for _ in range(3)]
        assert not answered(long)
        for status, data in beside:
            assert (status, data["choices"]) == (200, alone[1]["choices"])
        status, _, body = reply(long)
    entries, expected = json.loads(body)["confidence"], tagged_alone[1]["confidence"]
    # A chat drops the cache, so that the text is computed in other pieces, and rounded differently.
    pairs = [[entry.pop("confidence") for entry in side] for side in (entries, expected)]
    assert status == 200 and pairs[0] == pytest.approx(pairs[1], abs=1e-5) and entries == expected


def test_a_long_text_ends_with_its_client(server: Server) -> None:
    with server.send(tag(LONG), "/v1/tag"):
        until(lambda: server.metric("lovec_running") == 1)
    assert server.idle()
    assert post(server, chat(max_tokens=2))[0] == 200


def test_sigterm_ends_a_long_text(tmp_path: Path) -> None:
    server = served(tmp_path, "--grace", "1", "--name", "", key=None)
    models = server.get("/v1/models")
    assert json.loads(models)["data"][0]["id"] == "llama" and str(tmp_path) not in models
    with server.send(tag(LONG), "/v1/tag") as long, server.send(b"half", "/v1/tag", "Content-Length: 9") as half:
        until(lambda: server.metric("lovec_running") == 1)
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(120) == 143
        for connection in (long, half):
            status, headers, body = reply(connection)
            assert (status, "retry-after" in headers) == (503, True)
            assert "shutting down" in json.loads(body)["error"]["message"]
    assert "Traceback" not in server.log.read_text()


def test_silent_connections_shut_nobody_out(server: Server) -> None:
    number = min(1600, allow_files(2000) - 200)
    silent = []
    try:
        for _ in range(number):
            connection = server.connect()
            connection.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\n")
            silent.append(connection)
        for address in ("127.0.0.2", "127.0.0.1"):
            with server.connect(address) as other:
                other.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
                assert reply(other)[0] == 200
        assert post(server, chat(max_tokens=2))[0] == 200
    finally:
        for connection in silent:
            connection.close()


GET = b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n"
CHUNKED = b"POST /v1/tag HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n"
KEYED = f"Authorization: Bearer {KEY}\r\n\r\n".encode()


def seconds_of_health(server: Server, head: bytes, piece: bytes, checks: int = 50) -> float:
    """Mean seconds of health checks while eight clients send a head and then up to 1 MB of pieces each."""
    stop, begun = threading.Event(), threading.Semaphore(0)

    def send() -> None:
        left = 1_000_000
        while left > 0 and not stop.is_set():
            left -= 1000  # those that are cut off come back
            try:
                with server.connect() as connection:
                    connection.sendall(head + piece)
                    begun.release()
                    while left > 0 and not stop.is_set():
                        connection.sendall(piece)
                        left -= len(piece)
            except OSError:
                pass

    clients = [threading.Thread(target=send) for _ in range(8)]
    for client in clients:
        client.start()
    for _ in clients:
        assert begun.acquire(timeout=60)
    time.sleep(0.1)
    begin = time.monotonic()
    for _ in range(checks):
        with server.connect() as connection:
            connection.sendall(GET)
            assert reply(connection)[0] == 200
    taken = (time.monotonic() - begin) / checks
    stop.set()
    for client in clients:
        client.join(60)
    return taken


def test_tiny_chunks_stall_nobody(server: Server) -> None:
    control = seconds_of_health(server, b"", GET * 1000)
    chunks = b"1\r\nx\r\n" * 11_000
    assert seconds_of_health(server, CHUNKED + b"\r\n", chunks) < 10 * control
    assert seconds_of_health(server, CHUNKED + KEYED, chunks, checks=10) < 400 * control


# In this process


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Session:
    return open_session(tiny(tmp_path_factory.mktemp("served"), "llama", max_position_embeddings=1024), rows=4)


def ended(connection: socket.socket) -> bool:
    """Return whether the server cuts a connection within a minute."""
    try:
        while connection.recv(1 << 16):
            pass
    except ConnectionError:
        pass
    return True


def test_requests_that_trickle_are_cut_off(session: Session) -> None:
    stop = threading.Event()

    def trickle(connection: socket.socket, byte: bytes) -> None:
        while not stop.wait(0.1):
            try:
                connection.sendall(byte)
            except OSError:
                return

    heads = {
        "head": b"GET /health HTTP/1.1\r\nA: ",
        "body after the answer": b"GET /health HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\n",
        "body without a key": b"POST /v1/tag HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\n",
        "body": f"POST /v1/tag HTTP/1.1\r\nHost: x\r\nContent-Length: 999\r\nAuthorization: Bearer {KEY}\r\n".encode()
        + b"\r\n",
        "nothing": b"",
    }
    with running(session, io_timeout=0.5) as server:
        for name, head in heads.items():
            with server.connect() as connection:
                connection.sendall(head)
                byte = b"" if name == "nothing" else b"x"
                thread = threading.Thread(target=trickle, args=(connection, byte))
                thread.start()
                if name == "body":
                    assert reply(connection)[0] == 408
                assert ended(connection), name
                stop.set()
                thread.join(60)
                stop.clear()
        assert server.get("/health")


@pytest.mark.parametrize(
    ("status", "headers", "size"),
    [
        (401, "Content-Length: 5000000", 5_000_000),
        (413, f"Content-Length: 5000000\r\nAuthorization: Bearer {KEY}", 5_000_000),
        (413, f"Transfer-Encoding: chunked\r\nAuthorization: Bearer {KEY}", 5_000_000),
        (400, f"Transfer-Encoding: chunked\r\nAuthorization: Bearer {KEY}\r\n\r\nz", 5_000_000),
    ],
)
def test_who_sends_all_before_looking_gets_the_answer(session: Session, status: int, headers: str, size: int) -> None:
    with running(session) as server, server.connect() as connection:
        connection.sendall(f"POST /v1/tag HTTP/1.1\r\nHost: x\r\n{headers}\r\n\r\n".encode())
        pieces = b"10000\r\n" + b"x" * 0x10000 + b"\r\n" if "chunked" in headers else b"x" * 0x10000
        for _ in range(size // len(pieces)):
            connection.sendall(pieces)
        got, found, _ = reply(connection)
        assert (got, found["connection"]) == (status, "close") and connection.recv(1) == b""  # without a reset


@pytest.mark.parametrize("rest", [b"\r\n", KEYED])
def test_what_is_sent_for_a_body_is_bounded(session: Session, rest: bytes) -> None:
    with running(session, max_body=10_000) as server, server.connect() as connection:
        connection.sendall(CHUNKED + rest)
        with pytest.raises(OSError):  # the sixteenth of what a client would like to send
            for _ in range(640):
                connection.sendall(b"1;" + b"a" * 4000 + b"\r\nx\r\n")
                time.sleep(0.001)
        assert server.get("/health")


def test_a_client_that_takes_nothing_is_cut_off(session: Session) -> None:
    with running(session, io_timeout=0.5, key=None) as server, socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.connect(("127.0.0.1", int(server.url.rpartition(":")[2])))
        request = b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n"
        connection.settimeout(0.2)
        with pytest.raises(OSError):  # first nothing more can be sent, then the connection is cut
            while True:
                try:
                    connection.sendall(request * 1000)
                except TimeoutError:
                    threading.Event().wait(0.05)
        assert server.get("/health")


def test_busy_connections_are_not_cut_off_but_new_ones_refused(session: Session) -> None:
    body = chat(max_tokens=1)
    expecting = (f"Content-Length: {len(body)}", "Expect: 100-continue")
    with running(session, max_client_connections=2) as server:
        with (
            server.send(b"", "/v1/chat/completions", *expecting) as first,
            server.send(b"", "/v1/chat/completions", *expecting) as second,
        ):
            for connection in (first, second):
                assert connection.recv(100).startswith(b"HTTP/1.1 100")  # from here on its body is waited for
            with server.connect() as third:
                status, headers, _ = reply(third)
                assert (status, "retry-after" in headers) == (503, True)
            with server.connect("127.0.0.2") as other:
                other.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
                assert reply(other)[0] == 200
            for connection in (first, second):
                connection.sendall(body)
                assert reply(connection)[0] == 200
        until(lambda: post(server, body)[0] == 200)


def test_health_answers_while_a_request_is_read(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    begun, go = threading.Event(), threading.Event()
    read = Service._read_answers

    def slow(*arguments: Any) -> Any:
        begun.set()
        assert go.wait(60)
        return read(*arguments)

    monkeypatch.setattr(Service, "_read_answers", slow)
    with running(session, max_waiting=1) as server, server.send(chat(max_tokens=1)) as connection:
        assert begun.wait(60)
        assert json.loads(server.get("/health"))["status"] == "ok"
        status, data = post(server, chat())
        assert (status, data["error"]["code"]) == (429, "rate_limit_exceeded")
        go.set()
        assert reply(connection)[0] == 200


def test_what_cannot_fit_is_not_encoded(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    encoded: list[int] = []
    tokenize = Encoder._tokenize
    monkeypatch.setattr(Encoder, "_tokenize", lambda self, text: encoded.append(len(text)) or tokenize(self, text))
    long = f"X{'x' * 900_000}."
    with running(session) as server:
        status, data = post(server, chat(long))
        assert (status, data["error"]["code"]) == (400, "context_length_exceeded")
        assert "900002 characters" in data["error"]["message"]
        status, data = post(server, json.dumps({"text": "A.", "question": long}).encode(), "/v1/tag")
        assert (status, data["error"]["code"]) == (400, "context_length_exceeded")
        status, data = post(server, tag(f"Ada ran. {long}"), "/v1/tag")
    assert status == 200 and max(encoded) < 200_000
    entries = [(entry["text"], entry["score"] is None) for entry in data["confidence"]]
    assert entries == [("Ada ran.", False), (long, True)]


def test_errors_of_the_server_tell_nothing(
    session: Session, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: Any, **__: Any) -> Any:
        raise OSError("/secret/path is broken")

    with running(session) as server:
        monkeypatch.setattr(session.engine, "generate", broken)
        monkeypatch.setattr(session.engine, "score", broken)
        for body, path in ((chat(), "/v1/chat/completions"), (tag("A."), "/v1/tag")):
            status, data = post(server, body, path)
            assert (status, data["error"]["type"]) == (500, "server_error")
            assert "secret" not in json.dumps(data)
        with server.send(chat(stream=True)) as stream:
            stream.sendall(b"")
            text = b""
            while b"server_error" not in text:
                text += stream.recv(1 << 16) or pytest.fail(text.decode())
            assert b"secret" not in text
        monkeypatch.undo()
    assert "/secret/path" in caplog.text


def test_the_log_cannot_be_forged() -> None:
    record = logging.LogRecord("x", logging.ERROR, "x.py", 1, "a\nlovec: ERROR: b \x1b[2J \r\x00 %s", (KEY,), None)
    text = SafeFormatter(KEY).format(record)
    assert text == "lovec: ERROR: a\n  | lovec: ERROR: b \\x1b[2J \\r\\x00 ***"
