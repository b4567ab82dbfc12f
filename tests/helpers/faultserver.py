"""An OpenAI-compatible server on loopback that rates sentences and fails as planned."""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from jsonhandler import JsonHandler

DEFAULT = 5


def planted(sentence: str) -> int:
    """Return the rating that a sentence names, as in "This one rates 7."; ``DEFAULT`` without one."""
    match = re.search(r"rates (\d+)", sentence)
    return int(match[1]) if match else DEFAULT


@dataclass
class RecordedCall:
    """One request as it was received."""

    body: dict[str, Any]
    key: str | None
    at: float

    @property
    def prompt(self) -> str:
        return self.body["messages"][-1]["content"]

    @property
    def sentences(self) -> list[str]:
        listed = self.prompt.rpartition("without repeating the sentences.:\n\n")[2]
        return [line.removeprefix("### ").rstrip() for line in listed.splitlines()]


@dataclass
class FaultServer:
    """Serves ``/v1/chat/completions`` in threads; a context manager.

    Attributes:
        faults: word -> faults of the next calls whose sentences contain the word, one per call.
        always: a fault of every call that has no other.
        delay: seconds that a good reply takes.
        rate: returns the rating of a sentence.
        usage: token counts of a reply; None leaves them out.
        calls: all requests so far.
        most: the most requests that were in progress at the same time.
    """

    faults: dict[str, list[str]] = field(default_factory=dict)
    always: str = ""
    delay: float = 0.0
    rate: Callable[[str], int] = planted
    usage: tuple[int, int] | None = (1000, 100)
    calls: list[RecordedCall] = field(default_factory=list)
    most: int = 0

    def __enter__(self) -> FaultServer:
        self._lock, self._closing, self._now = threading.Lock(), threading.Event(), 0
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self.handler())
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02})
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._server.server_port}/v1"
        return self

    def __exit__(self, *_: object) -> None:
        self._closing.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def handler(self) -> type[BaseHTTPRequestHandler]:
        """Return what answers its requests."""
        return handler(self)

    def record(self, call: RecordedCall) -> str:
        """Record a call, and return its fault."""
        with self._lock:
            self.calls.append(call)
            self._now += 1
            self.most = max(self.most, self._now)
            listed = " ".join(call.sentences)
            for word, plan in self.faults.items():
                if plan and re.search(rf"\b{word}\b", listed):
                    return plan.pop(0)
            return self.always

    def finish(self) -> None:
        with self._lock:
            self._now -= 1

    def sleep(self, seconds: float) -> bool:
        """Wait, and return whether the server is still running afterwards."""
        return not self._closing.wait(seconds)


def completion(text: str | None, usage: tuple[int, int] | None, finish: str = "stop") -> dict[str, Any]:
    message = {"role": "assistant", "content": text}
    body: dict[str, Any] = {"id": "x", "object": "chat.completion", "created": 0, "model": "judge"}
    body["choices"] = [{"index": 0, "message": message, "finish_reason": finish}]
    if usage is not None:
        body["usage"] = {"prompt_tokens": usage[0], "completion_tokens": usage[1], "total_tokens": sum(usage)}
    return body


def rated(ratings: list[int]) -> str:
    return "\n\n".join(f"**Analysis:** It says {i} things.  \n**Rating:** ${r}$" for i, r in enumerate(ratings))


def handler(server: FaultServer) -> type[BaseHTTPRequestHandler]:
    class Handler(JsonHandler):
        def do_POST(self) -> None:
            body = self.received()
            call = RecordedCall(body, self.headers.get("Authorization"), time.monotonic())
            fault = server.record(call)
            try:
                self.answer(call, fault)
            except (BrokenPipeError, ConnectionResetError):  # the client has disconnected
                self.close_connection = True
            finally:
                server.finish()

        def answer(self, call: RecordedCall, fault: str) -> None:
            name, _, more = fault.partition(" ")
            ratings = [server.rate(sentence) for sentence in call.sentences]
            if name.isdigit():
                headers = {"date": {"Retry-After": formatdate(time.time() + 1.5, usegmt=True)}, "": {}}
                after = headers.get(more, {"Retry-After": more})
                self.send(int(name), {"error": {"message": f"fault {name}", "code": None}}, after)
            elif name == "quota":
                self.send(429, {"error": {"message": "pay first", "code": "insufficient_quota"}})
            elif name == "tell":
                self.send(500, {"error": {"message": f"bad key {call.key}\nsee\nhelp"}})
            elif name == "hang":
                server.sleep(600)
                self.close_connection = True
            elif name == "drip":
                self.send_response(200)
                self.send_header("Content-Length", "100000")
                self.end_headers()
                while server.sleep(0.05):
                    self.wfile.write(b" ")
            elif name == "drop":
                self.close_connection = True
            elif name == "truncated":
                whole = json.dumps(completion(rated(ratings), server.usage)).encode()
                self.send_response(200)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(whole)))
                self.end_headers()
                self.wfile.write(whole[: len(whole) // 2])
                self.close_connection = True
            elif name == "garbage":
                self.send(200, {"html": "<html>no</html>", "list": "[]", "empty": "", "number": "7"}.get(more, more))
            else:
                self.good(name, ratings)

        def good(self, name: str, ratings: list[int]) -> None:
            if not server.sleep(server.delay):
                return
            text = {
                "few": rated(ratings[:-1]),
                "many": rated([*ratings, 3]),
                "outside": rated([11, *ratings[1:]]),
                "prose": "I cannot rate this.",
                "null": None,
                "surrogate": rated(ratings) + " \ud800",
            }.get(name, rated(ratings))
            finish = {"cut": "length", "filtered": "content_filter"}.get(name, "stop")
            self.send(200, completion(text, server.usage, finish))

    return Handler
