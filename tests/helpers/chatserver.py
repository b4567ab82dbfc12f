"""A model behind chat completions on loopback: it tags, says True, a number, Yes or an answer, and fails as planned."""

from __future__ import annotations

import json
import math
import re
import zlib
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler
from typing import Any, TypeAlias

from faultserver import FaultServer, RecordedCall, completion, handler

Token: TypeAlias = tuple[str, dict[str, float]]
"""A token of a reply, and probabilities of what might stand in its place."""

FACTS = ("It lies in the north", "It was founded in 1900", "It has a bridge", "It makes clocks")


def planted(text: str) -> int:
    """The score 0 to 10 that the model gives a sentence."""
    return zlib.crc32(text.strip().encode()) % 11


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
    """

    top: int = 20
    silent: bool = False
    digits: bool = False

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

    def tokens(self, body: dict[str, Any], fault: str) -> list[Token]:
        """The reply to a request, token by token."""
        asked = body["messages"][-1]["content"]
        if body["messages"][0]["role"] == "system":
            tokens: list[Token] = []
            for sentence in written(asked):
                tokens += [(f"{' ' if tokens else ''}{sentence}", {}), (" <confidence>", {})]
                tokens += self.score_tokens(planted(sentence), " ")
                tokens += [] if fault == "malformed" else [(" </confidence>", {})]
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
            if fault not in ("", "malformed"):
                return super().answer(call, fault)
            wrong = "n" if body.get("n", 1) != 1 else "logprobs" if body.get("top_logprobs", 0) > server.top else None
            if wrong is not None or (server.top == 0 and "logprobs" in body):
                message = f"{wrong or 'logprobs'} is not supported here"
                return self.send(400, json.dumps({"error": {"message": message, "code": None}}))
            if not server.sleep(server.delay):
                return None
            tokens = server.tokens(body, fault)
            reply = completion("".join(text for text, _ in tokens), server.usage)
            if body.get("logprobs") and not server.silent:
                reply["choices"][0]["logprobs"] = {"content": [listed(*token) for token in tokens]}
            return self.send(200, json.dumps(reply))

    return Handler


def listed(text: str, chances: dict[str, float]) -> dict[str, Any]:
    """A token as chat completions list it."""
    tops = [
        {"token": t, "logprob": math.log(p) if p else -9999.0, "bytes": list(t.encode())} for t, p in chances.items()
    ]
    own = math.log(chances[text]) if chances.get(text) else 0.0
    return {"token": text, "logprob": own, "bytes": list(text.encode()), "top_logprobs": tops}
