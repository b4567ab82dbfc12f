"""An OpenAI-compatible endpoint on loopback that answers questions and rates sentences, without a model."""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from forks import Fork

RATED = "without repeating the sentences.:\n\n"
"""What stands before the sentences in a prompt that asks for ratings."""


class Handler(BaseHTTPRequestHandler):
    """Answers with two sentences, or with a rating per listed sentence that depends on its text alone."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        asked = body["messages"][-1]["content"]
        if RATED in asked:
            lines = asked.rpartition(RATED)[2].splitlines()
            text = "\n\n".join(f"**Analysis:** So it is.\n**Rating:** ${zlib.crc32(x.encode()) % 11}$" for x in lines)
        else:
            text = f"This is what is known about {zlib.crc32(asked.encode()) % 1000}. It lies in the north."
        choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": text}}
        usage = {"prompt_tokens": 100, "completion_tokens": 20, "total_tokens": 120}
        reply = {"id": "x", "object": "chat.completion", "created": 0, "model": body.get("model", "judge")}
        data = json.dumps({**reply, "choices": [choice], "usage": usage}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def endpoint() -> Iterator[str]:
    """Run the endpoint in a process of its own; yield its address."""

    def serve() -> None:
        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        server.daemon_threads = True
        print(server.server_port)
        server.serve_forever()

    fork = Fork(serve)
    try:
        yield f"http://127.0.0.1:{int(fork.stdout.readline())}/v1"
    finally:
        fork.end()
