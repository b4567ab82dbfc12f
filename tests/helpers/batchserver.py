"""A server on loopback with the Batch API as documented, beside the chat completions of `FaultServer`."""

from __future__ import annotations

import json
import random
import re
import time
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from typing import Any
from urllib.parse import parse_qs, urlsplit

import faultserver
from faultserver import FaultServer, RecordedCall, completion, rated

STATES = ("validating", "in_progress", "finalizing")


@dataclass
class BatchServer(FaultServer):
    """Serves ``/v1/files`` and ``/v1/batches``, too; a batch goes one state further whenever it is looked at.

    Attributes:
        ends: how the next batches end: "completed" (also where there is none), "failed MESSAGE", "full" (the queue),
            "expired N" and "cancelled N" after N requests. "hold" lets a batch wait until it is taken from ``held``.
        lines: word -> what becomes of the requests whose prompt has it: an HTTP status, "timeout", "missing", "torn",
            "prose" (no rating), "twice" (two replies).
        drops: METHOD PATH -> how many such calls are carried out without a reply reaching the client.
        queue: most requests in all batches under way; a batch beyond fails with ``token_limit_exceeded``.
        page: batches on a page of the list.
        files: contents by name.
        batches: batch objects in the order of their creation.
        requests: every call, such as "POST /v1/batches".
        ran: prompts of the requests that batches have run, which are paid for.
    """

    ends: list[str] = field(default_factory=list)
    lines: dict[str, str] = field(default_factory=dict)
    drops: dict[str, int] = field(default_factory=dict)
    queue: int = 10**9
    page: int = 2
    has_batches: bool = True
    files: dict[str, bytes] = field(default_factory=dict)
    batches: list[dict[str, Any]] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)
    ran: list[str] = field(default_factory=list)
    held: bool = False

    def create(self, file: str) -> dict[str, Any]:
        batch = {"id": f"batch_{len(self.batches) + 1}", "object": "batch", "endpoint": "/v1/chat/completions",
                 "errors": None, "input_file_id": file, "completion_window": "24h", "status": "validating",
                 "output_file_id": None, "error_file_id": None, "created_at": int(time.time()),
                 "request_counts": {"total": 0, "completed": 0, "failed": 0}}  # fmt: skip
        batch["end"] = self.ends.pop(0) if self.ends else "completed"
        self.batches.append(batch)
        return batch

    def advance(self, batch: dict[str, Any]) -> None:
        """Let a batch come one state further."""
        state, end = batch["status"], batch["end"]
        if state not in STATES or (self.held and state == "in_progress"):
            return
        lines = self.files[batch["input_file_id"]].splitlines()
        if state == "validating":
            waiting = [b for b in self.batches if b is not batch and b["status"] in STATES[1:]]
            full = len(lines) + sum(b["request_counts"]["total"] for b in waiting) > self.queue
            if full or end.startswith("failed"):
                code = "token_limit_exceeded" if full else "invalid_request"
                message = "Enqueued token limit reached" if full else end.partition(" ")[2]
                batch["errors"] = {"object": "list", "data": [{"code": code, "message": message, "line": 1}]}
                batch["status"] = "failed"
                return
            batch["request_counts"]["total"] = len(lines)
        batch["status"] = (*STATES, "")[STATES.index(state) + 1]
        if not batch["status"]:
            name, _, number = end.partition(" ")
            self.run(batch, lines, int(number) if number else len(lines), name)
            batch["status"] = name

    def run(self, batch: dict[str, Any], lines: list[bytes], most: int, end: str) -> None:
        good, bad = [], []
        for number, line in enumerate(map(json.loads, lines)):
            assert line["method"] == "POST" and line["url"] == "/v1/chat/completions" and len(line["custom_id"]) <= 64
            call = RecordedCall(line["body"], None, 0.0)
            fault = next((f for word, f in self.lines.items() if re.search(rf"\b{word}\b", call.prompt)), "")
            result: dict[str, Any] = {"id": f"batch_req_{number}", "custom_id": line["custom_id"], "error": None}
            if number >= most:
                code = f"batch_{end}"
                bad.append(result | {"response": None, "error": {"code": code, "message": "It was not executed."}})
            elif fault == "timeout":
                bad.append(result | {"response": None, "error": {"code": "request_timeout", "message": "too slow"}})
            elif fault.isdigit():
                body = {"error": {"message": f"fault {fault}", "code": None}}
                bad.append(result | {"response": {"status_code": int(fault), "request_id": "r", "body": body}})
            elif fault != "missing":
                self.ran.append(call.prompt)
                text = "I cannot." if fault == "prose" else rated([self.rate(s) for s in call.sentences])
                body = completion(text, self.usage)
                good.append(result | {"response": {"status_code": 200, "request_id": "r", "body": body}})
                if fault == "twice":
                    other = completion(rated([(self.rate(s) + 3) % 10 for s in call.sentences]), self.usage)
                    good.append(result | {"response": {"status_code": 200, "request_id": "s", "body": other}})
                if fault == "torn":
                    good[-1] = '{"id": "batch_req'
        for name, results in (("output", good), ("error", bad)):
            random.Random(1).shuffle(results)  # the order is not kept
            if results:
                batch[f"{name}_file_id"] = f"file-{name}-{batch['id']}"
                texts = [r if isinstance(r, str) else json.dumps(r) for r in results]
                self.files[batch[f"{name}_file_id"]] = "\n".join(texts).encode() + b"\n"
        batch["request_counts"] |= {"completed": len(good), "failed": len(bad)}


def _handler(server: BatchServer, plain: type[BaseHTTPRequestHandler]) -> type[BaseHTTPRequestHandler]:
    class Handler(plain):  # type: ignore[misc, valid-type]
        def do_POST(self) -> None:
            if self.path == "/v1/chat/completions":
                super().do_POST()
            else:
                self.batch_call("POST")

        def do_GET(self) -> None:
            self.batch_call("GET")

        def do_DELETE(self) -> None:
            self.batch_call("DELETE")

        def batch_call(self, method: str) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            url = urlsplit(self.path)
            with server._lock:
                server.requests.append(f"{method} {url.path}")
                result = self.carry_out(method, url.path.split("/")[2:], body, parse_qs(url.query))
                if server.drops.get(f"{method} {url.path}", 0):
                    server.drops[f"{method} {url.path}"] -= 1
                    self.close_connection = True
                    return
            try:
                if result is None:
                    self.send(404, {"error": {"message": "Not Found"}})
                else:
                    self.send(200, result)
            except (BrokenPipeError, ConnectionResetError):
                self.close_connection = True

        def carry_out(self, method: str, path: list[str], body: bytes, query: dict[str, list[str]]) -> Any:
            if not server.has_batches:
                return None
            if (method, path) == ("POST", ["files"]):
                boundary = self.headers["Content-Type"].partition("boundary=")[2].encode()
                parts = {}
                for part in body.split(b"--" + boundary)[1:-1]:
                    head, _, content = part.partition(b"\r\n\r\n")
                    parts[re.search(rb'name="(\w+)"', head)[1]] = content[:-2]
                assert parts[b"purpose"] == b"batch"
                name = f"file-{len(server.files) + 1}"
                server.files[name] = parts[b"file"]
                return {"id": name, "object": "file", "purpose": "batch"}
            if (method, path) == ("POST", ["batches"]):
                sent = json.loads(body)
                assert sent["endpoint"] == "/v1/chat/completions" and sent["completion_window"] == "24h"
                return server.create(sent["input_file_id"]) if sent["input_file_id"] in server.files else None
            if (method, path) == ("GET", ["batches"]):
                newest = server.batches[::-1]
                after = [n for n, b in enumerate(newest, 1) if b["id"] == query.get("after", [""])[0]]
                first = after[0] if after else 0
                listed = newest[first : first + server.page]
                return {"object": "list", "data": listed, "has_more": first + server.page < len(newest)}
            if method == "GET" and path[0] == "batches":
                for batch in server.batches:
                    if batch["id"] == path[1]:
                        server.advance(batch)
                        return batch
            if method == "GET" and path[0] == "files" and path[1] in server.files:
                return server.files[path[1]].decode()
            if method == "DELETE" and path[0] == "files" and server.files.pop(path[1], None) is not None:
                return {"id": path[1], "deleted": True}
            return None

    return Handler


_plain_handler = faultserver.handler
faultserver.handler = lambda server: (  # type: ignore[assignment]
    _handler(server, _plain_handler(server)) if isinstance(server, BatchServer) else _plain_handler(server)
)
