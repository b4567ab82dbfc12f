"""A model behind chat completions on loopback: it tags, says True, a number, Yes or an answer, and fails as planned."""

from __future__ import annotations

import json
import math
import re
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler
from typing import Any, TypeAlias

from faultserver import FaultServer, RecordedCall, completion, handler

Token: TypeAlias = tuple[str, dict[str, float]]
"""A token of a reply, and probabilities of what might stand in its place."""

BROKEN = ("break early", "break off", "end early", "no end", "no reason", "bad event", "error later", "cut", "filtered")
"""Faults in the middle of a stream."""

FACTS = ("It lies in the north", "It was founded in 1900", "It has a bridge", "It makes clocks")


def planted(text: str) -> int:
    """The score 0 to 10 that the model gives a sentence."""
    return zlib.crc32(text.strip().encode(errors="replace")) % 11


def spread(score: int) -> dict[str, float]:
    """Probabilities of the words of the scale where the model states a score."""
    return {str(score): 0.7, str((score + 1) % 11): 0.2, str((score + 2) % 11): 0.1}


def written(seed: Any) -> list[str]:
    """The sentences of an answer."""
    return [f"{fact}." for at, fact in enumerate(FACTS) if (zlib.crc32(str(seed).encode()) >> at) & 1] or [
        FACTS[0] + "."
    ]


@dataclass
class ChatServer(FaultServer):
    """Serves a model; a context manager.

    Attributes:
        top: the most alternatives to a token that it gives; asked for more, it refuses. 0 refuses log-probabilities.
        silent: whether log-probabilities that are asked for are left out without a word.
        digits: whether every digit is a token.
        compact: whether there is no space around scores.
        split: characters of an event of a stream; 0 is a token of an event.
        options: whether streams may have options.
        held: whether the event of a stream with this number, from 0, waits.
        answer: returns the sentences of the answer to a question.
        gone: number of calls that have ended because the client has gone.
    """

    top: int = 20
    silent: bool = False
    digits: bool = False
    compact: bool = False
    split: int = 0
    options: bool = True
    held: Callable[[int], bool] = lambda _: False
    answer: Callable[[str], list[str]] = written
    gone: int = 0

    def handler(self) -> type[BaseHTTPRequestHandler]:
        return chat_handler(self)

    def score_tokens(self, score: int, space: str) -> list[Token]:
        """The tokens of a score behind a space."""
        chances = {f"{space}{word}": p for word, p in spread(score).items()}
        if not self.digits:
            return [(f"{space}{score}", chances)]
        firsts: dict[str, float] = {}
        for word, p in chances.items():
            first = word[: len(space) + 1]
            firsts[first] = firsts.get(first, 0.0) + p
        tokens: list[Token] = [(f"{space}{score}"[: len(space) + 1], firsts)]
        if score == 10:  # of "1" in the first place, a part is "10"
            ten = chances[f"{space}10"] / firsts[f"{space}1"]
            tokens.append(("0", {"0": ten, " ": 1 - ten}))
        return tokens

    def events(self, body: dict[str, Any], tokens: list[Token], fault: str) -> Iterator[dict[str, Any]]:
        """The events of a stream, with a fault in the middle or at the end."""
        text, listed_at, at = "".join(token for token, _ in tokens), dict[int, list[Any]](), 0
        for token, chances in tokens:
            place = at // self.split if self.split else len(listed_at)
            listed_at.setdefault(place, []).append(listed(token, chances))
            at += len(token)
        pieces = [token for token, _ in tokens]
        if self.split:
            pieces = [text[i : i + self.split] for i in range(0, len(text), self.split)]
        with_logps = body.get("logprobs") and not self.silent
        yield {"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}]}
        whole = fault not in BROKEN or fault == "no reason"
        for number, piece in enumerate(pieces if whole else pieces[: len(pieces) // 2 * (" early" not in fault)]):
            logprobs = {"content": listed_at.get(number, [])} if with_logps else None
            delta = {"content": piece}
            yield {"choices": [{"index": 0, "delta": delta, "finish_reason": None, "logprobs": logprobs}]}
        if fault == "error later":
            yield {"error": {"message": "the backend was lost"}}
        elif fault not in ("break early", "break off", "end early", "no end", "no reason", "bad event"):
            finish = {"cut": "length", "filtered": "content_filter"}.get(fault, "stop")
            yield {"choices": [{"index": 0, "delta": {}, "finish_reason": finish}]}
        if "stream_options" in body and self.usage is not None:
            usage = {"prompt_tokens": self.usage[0], "completion_tokens": self.usage[1]}
            yield {"choices": [], "usage": {**usage, "total_tokens": sum(self.usage)}}

    def tokens(self, body: dict[str, Any], fault: str) -> list[Token]:
        """The reply to a request, token by token."""
        asked = body["messages"][-1]["content"]
        if fault.startswith("says "):
            return [(fault.removeprefix("says "), {})]
        if body["messages"][0]["role"] == "system":
            tokens: list[Token] = []
            for sentence in self.answer(asked):
                score, space = planted(sentence), "" if self.compact else " "
                tokens += [(f"{' ' if tokens else ''}{sentence}", {}), (" <confidence>", {})]
                tokens += self.score_tokens(score, space)
                ends = {"</": 0.9, "0": 0.1} if self.digits and score == 1 else {}  # of "1", a part is "10"
                compact = [("</", ends), ("confidence>", {})]
                tokens += [] if fault == "malformed" else compact if self.compact else [(" </confidence>", {})]
            return tokens
        match = re.search(r"(?:Context \(for reference\)|Text): (.*)\nSentence: (.*)\n", asked)
        context, sentence = ("", "") if match is None else match.groups()
        if context and asked.endswith("True or False:"):
            true = (planted(sentence) + 1) / 12
            return [("True" if true > 0.5 else "False", {"True": true * 0.9, "False": (1 - true) * 0.9, " true": 0.0})]
        if context and asked.endswith("Confidence:"):
            return [("Well.", {})] if fault == "malformed" else self.score_tokens(planted(sentence), "")
        if context and asked.endswith("Yes or No:"):
            return [("Yes" if sentence in context else "No", {})]
        return [(" ".join(written(body.get("seed"))), {})]


def chat_handler(server: ChatServer) -> type[BaseHTTPRequestHandler]:
    class Handler(handler(server)):  # type: ignore[misc]
        def answer(self, call: RecordedCall, fault: str) -> None:
            body = call.body
            if fault.startswith("as "):  # a type and a body
                kind, _, text = fault.removeprefix("as ").partition(" ")
                return self.send(200, text, {"Content-Type": kind})
            own = fault.startswith("says ") or fault in ("", "malformed", *(BROKEN if body.get("stream") else ()))
            if not own:
                return super().answer(call, fault)
            if "stream_options" in body and not server.options:
                return self.send(400, {"error": {"message": "stream_options is not known here"}})
            wrong = "n" if body.get("n", 1) != 1 else "logprobs" if body.get("top_logprobs", 0) > server.top else None
            if wrong is not None or (server.top == 0 and "logprobs" in body):
                message = f"{wrong or 'logprobs'} is not supported here"
                return self.send(400, {"error": {"message": message, "code": None}})
            if not server.sleep(server.delay):
                return None
            tokens = server.tokens(body, fault)
            if body.get("stream"):
                return self.stream(server.events(body, tokens, fault), fault)
            reply = completion("".join(text for text, _ in tokens), server.usage)
            if body.get("logprobs") and not server.silent:
                reply["choices"][0]["logprobs"] = {"content": [listed(*token) for token in tokens]}
            return self.send(200, reply)

        def stream(self, events: Iterator[dict[str, Any]], fault: str) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream")
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            try:
                for number, event in enumerate(events):
                    while server.held(number):
                        if not server.sleep(0.02):
                            return
                        self.chunk(": still there\n\n")  # raises an exception where the client has gone
                    self.chunk(f"data: {json.dumps(event)}\n\n")
                if fault in ("break early", "break off"):
                    self.close_connection = True
                    return
                if fault == "bad event":
                    self.chunk("data: {bad\n\n")
                if fault not in ("end early", "no end"):
                    self.chunk("data: [DONE]\n\n")
                self.wfile.write(b"0\r\n\r\n")
            except ConnectionError:
                server.gone += 1
                raise

        def chunk(self, text: str) -> None:
            data = text.encode()
            self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")

    return Handler


def listed(text: str, chances: dict[str, float]) -> dict[str, Any]:
    """A token as chat completions list it."""
    tops = [
        {"token": t, "logprob": math.log(p) if p else -9999.0, "bytes": list(t.encode())} for t, p in chances.items()
    ]
    own = math.log(chances[text]) if chances.get(text) else 0.0
    return {"token": text, "logprob": own, "bytes": list(text.encode(errors="replace")), "top_logprobs": tops}
