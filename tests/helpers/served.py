"""`lovec serve` as a process on loopback, and the requests that tests send to it."""

from __future__ import annotations

import json
import os
import re
import resource
import select
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from openai import OpenAI
from tinyrun import tiny

from lovec.serving import RequestLimits, make_app
from lovec.serving.connections import make_server
from lovec.serving.feedback import Feedback
from lovec.taggers import Session

KEY = "a-key-for-tests"
NAME = "tiny"


@dataclass
class Server:
    url: str
    process: subprocess.Popen[str]
    log: Path

    def client(self, key: str = KEY) -> OpenAI:
        return OpenAI(base_url=f"{self.url}/v1", api_key=key, max_retries=0, timeout=120)

    def get(self, path: str) -> str:
        with urllib.request.urlopen(f"{self.url}{path}", timeout=60) as reply:
            return str(reply.read().decode())

    def metric(self, name: str) -> float:
        match = re.search(rf"^{name}(?:{{.*}})? (\S+)$", self.get("/metrics"), re.MULTILINE)
        assert match is not None, name
        return float(match[1])

    def idle(self) -> bool:
        """Return whether the engine becomes idle within a minute."""
        deadline = time.monotonic() + 60
        while self.metric("lovec_running") or self.metric("lovec_waiting"):
            if time.monotonic() > deadline:
                return False
            time.sleep(0.05)
        return True

    def connect(self, source: str = "127.0.0.1") -> socket.socket:
        """Return a connection from an address of this machine."""
        host, port = self.url.removeprefix("http://").split(":")
        return socket.create_connection((host, int(port)), timeout=60, source_address=(source, 0))

    def send(self, body: bytes, path: str = "/v1/chat/completions", *headers: str, key: str = KEY) -> socket.socket:
        """Return a connection that a request was sent on, which is closed after its reply unless ``headers`` are given.

        Otherwise who reads all of the reply would wait until the server ends an idle connection.
        """
        connection = self.connect()
        lines = [f"POST {path} HTTP/1.1", "Host: x", f"Authorization: Bearer {key}"]
        lines += headers or (f"Content-Length: {len(body)}", "Connection: close")
        connection.sendall("\r\n".join([*lines, "", ""]).encode() + body)
        return connection


def served(folder: Path, *flags: str, key: str | None = KEY, files: int | None = None, **sizes: Any) -> Server:
    """Start a server with a tiny Llama, and return it when it answers.

    Args:
        folder: where its model and its log lie.
        flags: options of the command.
        key: the API key; None is none.
        files: the most files that it may open.
        sizes: as for ``build_tiny``.
    """
    model = tiny(folder, "llama", **{"max_position_embeddings": 1024, **sizes})
    name = () if "--name" in flags else ("--name", NAME)
    command = [sys.executable, "-m", "lovec.cli", "serve", "--model", model, *name, "--port", "0", *flags]
    environment = {k: v for k, v in os.environ.items() if k != "LOVEC_API_KEY"} | {"OMP_NUM_THREADS": "1"}
    environment |= {} if key is None else {"LOVEC_API_KEY": key}
    if files is not None:
        command = ["sh", "-c", f'ulimit -n {files} && exec "$@"', "sh", *command]
    log = folder / "server.log"
    with open(log, "w") as file:
        process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=file, text=True)
    line = first_line(process)
    match = re.search(r"http://[\d.:]+", line)
    assert match is not None, line + log.read_text()
    server = Server(match[0], process, log)
    deadline = time.monotonic() + 60
    while True:
        try:
            assert json.loads(server.get("/health"))["status"] == "ok"
            return server
        except urllib.error.URLError:
            assert time.monotonic() < deadline and process.poll() is None, log.read_text()
            time.sleep(0.1)


def first_line(process: subprocess.Popen[str]) -> str:
    """Return the first line that a process writes, within two minutes."""
    assert process.stdout is not None
    assert select.select([process.stdout], [], [], 120)[0], "the process has written nothing for two minutes"
    return process.stdout.readline()


def post(server: Server, body: bytes, path: str = "/v1/chat/completions", **headers: str) -> tuple[int, dict[str, Any]]:
    request = urllib.request.Request(
        f"{server.url}{path}", body, {"Authorization": f"Bearer {KEY}", "Content-Type": "application/json", **headers}
    )
    try:
        with urllib.request.urlopen(request, timeout=60) as reply:
            return reply.status, json.loads(reply.read())
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read())


def streamed(server: Server, body: bytes, path: str = "/v1/chat/completions") -> list[dict[str, Any]]:
    """The events of a stream."""
    headers = {"Authorization": f"Bearer {KEY}", "Content-Type": "application/json"}
    with urllib.request.urlopen(urllib.request.Request(f"{server.url}{path}", body, headers), timeout=60) as stream:
        *events, done = [part.partition("data: ")[2] for part in stream.read().decode().split("\n\n") if part]
    assert done == "[DONE]"
    return [json.loads(event) for event in events]


def reply(connection: socket.socket) -> tuple[int, dict[str, str], str]:
    """Return status, headers and body of the response on a connection; it is read to its end."""
    with connection.makefile("rb") as stream:
        status, *lines = iter(lambda: stream.readline().decode().strip(), "")
        headers = dict(line.lower().split(": ", 1) for line in lines)
        body = stream.read(int(headers["content-length"])).decode()
    return int(status.split()[1]), headers, body


def chat(content: Any = "Who was Ada?", **more: Any) -> bytes:
    return json.dumps({"messages": [{"role": "user", "content": content}], **more}).encode()


def until(condition: Callable[[], Any]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def allow_files(number: int) -> int:
    """Let this process open as many files as it may, up to a number; return how many these are."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = number if hard == resource.RLIM_INFINITY else min(number, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted), hard))
    return max(soft, wanted)


@contextmanager
def running(
    session: Session,
    key: str | None = KEY,
    cors: Sequence[str] = (),
    name: str = NAME,
    inline: str = "",
    feedback: Path | None = None,
    **limits: Any,
) -> Iterator[Server]:
    """Run a server in a thread of this process; it closes the session at its end."""
    listener = socket.create_server(("127.0.0.1", 0))
    taken = None if feedback is None else Feedback(feedback, session)
    app = make_app(session, name, RequestLimits(**limits), key, cors, inline, taken)
    server = make_server(app, RequestLimits(**limits))
    thread = threading.Thread(target=server.run, args=([listener],))
    thread.start()
    until(lambda: server.started)
    process: Any = None
    try:
        yield Server(f"http://127.0.0.1:{listener.getsockname()[1]}", process, Path())
    finally:
        server.should_exit = True
        thread.join(120)
        assert not thread.is_alive()
