"""A server on loopback that answers as vLLM's does, runs a transformers model, and fails as planned."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace
from typing import Any

import torch
from jsonhandler import JsonHandler
from peft import PeftConfig, PeftModel
from plainscores import naive_nucleus
from transformers import AutoModelForCausalLM

from lovec.engines import TransformersEngine
from lovec.types import Completion, Sampling


class _Http(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 256  # more calls begin at once than the default of 5, and the rest would be reset


@dataclass
class CompletionServer:
    """Serves the calls that the engine makes, one at a time; a context manager.

    Attributes:
        path: folder of the model.
        name: name of the model.
        faults: faults of the next calls for completions, one per call.
        lora: whether adapters can be loaded.
        raw: whether log-probabilities are those before the temperature.
        details: whether replies count cached tokens (there are never any).
        given_ids: whether ``logprob_token_ids`` is supported.
        chunk: tokens per event of a stream.
        key: API key that calls must bring; "" is none.
        calls: path and body of every call so far.
        most: the most calls that were in progress at the same time.
        now: the calls that are in progress.
        answer: returns the ids that it writes after a prompt, in place of what the model would; None asks the model.
        waits: whether a call waits before it is answered, given its body; {} is that of a call for models.
        held: whether the event of a stream with this number, from 0, waits, given the prompt and the number.
    """

    path: str
    name: str = "tiny"
    faults: list[str] = field(default_factory=list)
    lora: bool = True
    raw: bool = False
    details: bool = True
    given_ids: bool = True
    chunk: int = 3
    key: str = ""
    calls: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    most: int = 0
    now: int = 0
    answer: Callable[[list[int]], list[int]] | None = None
    waits: Callable[[dict[str, Any]], bool] = lambda _: False
    held: Callable[[list[int], int], bool] = lambda *_: False

    def __enter__(self) -> CompletionServer:
        self.base = AutoModelForCausalLM.from_pretrained(self.path, attn_implementation="sdpa")
        self.adapters: dict[str, Any] = {}
        self.lock, self.loading = threading.Lock(), threading.Lock()
        self.http = _Http(("127.0.0.1", 0), handler(self))
        threading.Thread(target=self.http.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.http.shutdown()
        self.http.server_close()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.http.server_address[1]}/v1"

    def paths(self, path: str) -> list[dict[str, Any]]:
        """Return the bodies of the calls to a path."""
        return [body for called, body in self.calls if called == path]

    def models(self) -> dict[str, Any]:
        base = {"id": self.name, "root": self.path, "parent": None}
        base["max_model_len"] = self.base.config.max_position_embeddings
        return {"data": [base, *({"id": name, "parent": self.name} for name in self.adapters)]}

    def load(self, body: dict[str, Any]) -> tuple[int, Any]:
        if not self.lora:
            return 404, {"detail": "Not Found"}
        if body["lora_name"] in self.adapters:
            return 400, error("has already been loaded")
        try:
            with self.loading:  # transformers loads one model at a time
                base = AutoModelForCausalLM.from_pretrained(self.path, attn_implementation="sdpa")
                config = PeftConfig.from_pretrained(body["lora_path"])
                config.alpha_pattern = {}  # which vLLM does not read
                peft = PeftModel.from_pretrained(base, body["lora_path"], config=config)
                self.adapters[body["lora_name"]] = peft.get_base_model()
        except ValueError as problem:
            return 404, error(str(problem))
        return 200, "Success"

    def unload(self, body: dict[str, Any]) -> tuple[int, Any]:
        if self.adapters.pop(body["lora_name"], None) is None:
            return 404, error("cannot be found")
        return 200, "Success"

    def complete(self, body: dict[str, Any]) -> tuple[int, Any]:
        """Return a completion as vLLM writes it."""
        if body["model"] not in (self.name, *self.adapters):
            return 404, error(f"The model `{body['model']}` does not exist.")
        prompts = body["prompt"]
        if isinstance(prompts[0], list):
            replies = [self.complete({**body, "prompt": prompt})[1] for prompt in prompts]
            choices = [{**reply["choices"][0], "index": index} for index, reply in enumerate(replies)]
            return 200, {"choices": choices, "usage": replies[-1]["usage"]}
        model = self.base if body["model"] == self.name else self.adapters[body["model"]]
        sampling = Sampling(body["max_tokens"], body["temperature"], 1, body.get("seed", 0), body.get("top_p", 1.0))
        stop_ids = body.get("stop_token_ids", ())
        if self.answer is not None and body.get("stream"):
            ids = self.answer(body["prompt"])[: body["max_tokens"]]
            completion = Completion(tuple(ids), (), ids[-1] in stop_ids)
        elif sampling == Sampling(1, 0.0):  # most calls, to score: one pass is enough
            with torch.no_grad():
                best = int(model(torch.tensor([body["prompt"]]), use_cache=False).logits[0, -1].argmax())
            completion = Completion((best,), (), best in stop_ids)
        else:
            engine = TransformersEngine()
            engine.sync(SimpleNamespace(model=model))
            [[completion]] = engine.generate([body["prompt"]], sampling, stop_ids)
        with torch.no_grad():
            ids = torch.tensor([body["prompt"] + list(completion.ids)])
            logits = model(ids).logits[0, len(body["prompt"]) - 1 : -1]
        logps = (logits / (1.0 if self.raw else body["temperature"] or 1.0)).log_softmax(-1)
        if sampling.top_p < 1 and sampling.temperature and not self.raw:
            logps = torch.tensor([naive_nucleus(row, sampling.temperature, sampling.top_p) for row in logits])
        sampled = [float(row[token]) for row, token in zip(logps, completion.ids, strict=True)]
        token_ids = body.get("logprob_token_ids", ()) if self.given_ids else ()
        top = [{f"token_id:{token}": float(row[token]) for token in token_ids} for row in logps]
        usage: dict[str, Any] = {"prompt_tokens": len(body["prompt"]), "completion_tokens": len(completion.ids)}
        if self.details:
            usage["prompt_tokens_details"] = {"cached_tokens": 0}
        choice = {
            "index": 0,
            "token_ids": list(completion.ids),
            "finish_reason": "stop" if completion.finished else "length",
            "logprobs": {"token_logprobs": sampled, "top_logprobs": top} if "logprobs" in body else None,
        }
        if body.get("prompt_logprobs") is not None and self.given_ids:
            choice["prompt_logprobs"] = self.prompt_logps(model, body["prompt"], body["prompt_logprobs"])
        return 200, {"choices": [choice], "usage": usage}

    @torch.no_grad()
    def prompt_logps(self, model: Any, prompt: list[int], top: int) -> list[dict[str, Any] | None]:
        """Return the entries of a prompt's tokens as vLLM writes them: each token's own and the most probable ones."""
        rows = model(torch.tensor([prompt])).logits[0, :-1].log_softmax(-1)
        entries: list[dict[str, Any] | None] = [None]
        for row, token in zip(rows, prompt[1:], strict=True):
            ids = dict.fromkeys([token, *row.topk(top).indices.tolist()])
            entries.append({str(i): {"logprob": float(row[i]), "rank": 1, "decoded_token": "x"} for i in ids})
        return entries

    def events(self, reply: dict[str, Any], chunk: int) -> list[dict[str, Any]]:
        """Return a reply as the events of a stream, with so many tokens each."""
        [choice] = reply["choices"]
        events = []
        for start in range(0, len(choice["token_ids"]), chunk):
            part = slice(start, start + chunk)
            last = part.stop >= len(choice["token_ids"])
            logprobs = choice["logprobs"] and {name: values[part] for name, values in choice["logprobs"].items()}
            reason = choice["finish_reason"] if last else None
            piece = {"token_ids": choice["token_ids"][part], "finish_reason": reason, "logprobs": logprobs}
            events.append({"choices": [piece]})
        return [*events, {"choices": [], "usage": reply["usage"]}]


def error(message: str) -> dict[str, Any]:
    return {"error": {"message": message, "type": "Error", "param": None, "code": 400}}


def handler(server: CompletionServer) -> type[BaseHTTPRequestHandler]:
    class Handler(JsonHandler):
        def do_GET(self) -> None:
            server.calls.append((self.path, {}))
            self.wait({})
            self.send(*((200, server.models()) if self.has_key() else (401, error("Unauthorized"))))

        def do_POST(self) -> None:
            body = self.received()
            if self.path != "/v1/completions" or not self.has_key():
                server.calls.append((self.path, body))
            if not self.has_key():
                return self.send(401, error("Unauthorized"))
            if self.path != "/v1/completions":
                answer = {"/v1/load_lora_adapter": server.load, "/v1/unload_lora_adapter": server.unload}[self.path]
                return self.send(*answer(body))
            with server.lock:  # a call that is listed is counted, too
                server.calls.append((self.path, body))
                fault = server.faults.pop(0) if server.faults else ""
                server.now += 1
                server.most = max(server.most, server.now)
            try:
                self.completion(body, fault)
            except ConnectionError:  # the client has ended the stream
                self.close_connection = True
            finally:
                with server.lock:
                    server.now -= 1

        def completion(self, body: dict[str, Any], fault: str) -> None:
            if fault.isdigit():
                return self.send(int(fault), error(f"planned {fault} {server.key}"), {"Retry-After": "0"})
            if fault == "hang up":
                self.close_connection = True
                return None
            self.wait(body)
            with server.lock:
                status, reply = server.complete(body)
            if fault == "garbage":
                reply = {"choices": [{"text": "of another server"}]}
            if fault == "aborted":
                for choice in reply["choices"]:
                    del choice["token_ids"][1:], choice["logprobs"]["token_logprobs"][1:]
                    choice["finish_reason"] = "abort"
            if status != 200 or not body.get("stream"):
                return self.send(status, reply)
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream")
            self.send_header("Connection", "close")
            self.end_headers()
            self.close_connection = True
            broken = fault in ("break off", "error later")
            chunk = body.get("stream_interval", server.chunk)
            events = [reply] if fault == "garbage" else server.events(reply, chunk)[: 1 if broken else None]
            for number, event in enumerate([*events, *([error("lost")] if fault == "error later" else [])]):
                begin = time.monotonic()
                while server.held(body["prompt"], number):
                    assert time.monotonic() < begin + 120, "an event was held for two minutes"
                    time.sleep(0.02)
                    self.wfile.write(b": still there\n\n")  # raises an exception where the client has gone
                self.wfile.write(f"data: {json.dumps(event)}\n\n".encode())
            if not broken:
                self.wfile.write(b"data: [DONE]\n\n")
            return None

        def wait(self, body: dict[str, Any]) -> None:
            begin = time.monotonic()
            while server.waits(body):
                assert time.monotonic() < begin + 120, "a call waited for two minutes"
                time.sleep(0.02)

        def has_key(self) -> bool:
            return not server.key or self.headers.get("Authorization") == f"Bearer {server.key}"

    return Handler
