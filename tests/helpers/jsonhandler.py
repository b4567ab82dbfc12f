"""What the endpoints of the tests share: they read and write JSON, and print nothing."""

from __future__ import annotations

import json
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler
from typing import Any


class JsonHandler(BaseHTTPRequestHandler):
    """Answers the requests of one connection; what answers them stands in subclasses."""

    protocol_version = "HTTP/1.1"

    def received(self) -> Any:
        """The body of the request."""
        return json.loads(self.rfile.read(int(self.headers["Content-Length"])))

    def send(self, status: int, body: Any, headers: Mapping[str, str] | None = None) -> None:
        """Send a text as it is, or anything else as JSON."""
        data = (body if isinstance(body, str) else json.dumps(body)).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        for name, value in {"Content-Type": "application/json", **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        """Requests are not printed."""
