"""An OpenAI-compatible endpoint on loopback that answers questions and rates sentences, without a model."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import ThreadingHTTPServer

from faultserver import completion
from forks import Fork
from jsonhandler import JsonHandler

RATED = "without repeating the sentences.:\n\n"
"""What stands before the sentences in a prompt that asks for ratings."""


class Handler(JsonHandler):
    """Answers with two sentences, or with a rating per listed sentence that depends on its text alone."""

    def do_POST(self) -> None:
        body = self.received()
        asked = body["messages"][-1]["content"]
        if RATED in asked:
            lines = asked.rpartition(RATED)[2].splitlines()
            text = "\n\n".join(f"**Analysis:** So it is.\n**Rating:** ${zlib.crc32(x.encode()) % 11}$" for x in lines)
        else:
            text = f"This is what is known about {zlib.crc32(asked.encode()) % 1000}. It lies in the north."
        self.send(200, completion(text, (100, 20)) | {"model": body.get("model", "judge")})


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
