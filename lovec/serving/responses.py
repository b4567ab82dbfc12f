"""Responses that grow with what the model says: a stream sends their chunks, other requests get the whole."""

from __future__ import annotations

import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, TypeAlias

from lovec.passages import Breaks
from lovec.serving.history import History
from lovec.serving.wire import ChatRequest, RequestRefused, TagRequest
from lovec.taggers.deployment import Deployment
from lovec.taggers.freeform import ScoredSpan
from lovec.taggers.scoring import Tagged
from lovec.tagging import CUT_OFF
from lovec.types import FREE_FORM, ITERATIVE, Completion, LovecError, Record, Sentence

Chunk: TypeAlias = dict[str, Any]
"""An event of a stream."""


class Response(ABC):
    """The response to one request, as far as it is known.

    Args:
        request: the request.
        deployment: tells which sentences stay.
        mode: how the sentences are tagged.
        name: name of the model.

    Attributes:
        request: as given.
        prompt: token ids of the prompt that is answered; a given text has none.
        parts: number of parts that grow independently: the answers, or the text.

    Raises:
        RequestRefused: the request asks for a guarantee that there is no threshold for.
    """

    prompt: Sequence[int] = ()
    parts = 1

    def __init__(self, request: ChatRequest | TagRequest, deployment: Deployment, mode: str, name: str) -> None:
        self.request: ChatRequest | TagRequest = request
        self._name = name
        try:
            self._keeps = deployment.keeps(mode, request.min_confidence, request.keep_factual)
        except LovecError as error:
            raise RequestRefused(str(error), "keep_factual") from None

    def first(self) -> list[Chunk]:
        """Return the chunks before all sentences."""
        return []

    @abstractmethod
    def add(self, part: int, item: Any) -> Chunk:
        """Add what has become known, and return its chunk.

        Args:
            part: number of the part.
            item: the next sentence of the part, or its end.
        """

    def last(self) -> list[Chunk]:
        """Return the chunks behind everything else."""
        return []

    @abstractmethod
    def whole(self) -> dict[str, Any]:
        """Return the whole response."""

    def _entry(self, sentence: Sentence, problem: str | None = None) -> dict[str, Any]:
        """Return a sentence's entry in the list of confidences.

        Args:
            sentence: the sentence, with the confidence that users get.
            problem: what is wrong with its tag; None if nothing is.
        """
        entry = {"text": sentence.text, "score": sentence.score, "confidence": sentence.confidence}
        entry |= {"kept": self._keeps(sentence)} | ({} if problem is None else {"problem": problem})
        return entry | ({} if sentence.is_statement else {"kind": sentence.kind})


class ChatResponse(Response):
    """The response to a chat request, with an id of its own.

    Args:
        request: the request.
        history: the conversation so far.
        prompt: its token ids; they change where earlier answers have to be scored first.
        deployment: see ``Response``, as for ``name``.
        name: name of the model.
        problems: what is wrong with the question.
    """

    request: ChatRequest

    def __init__(
        self,
        request: ChatRequest,
        history: History,
        prompt: Sequence[int],
        deployment: Deployment,
        name: str,
        problems: Sequence[str] = (),
    ) -> None:
        super().__init__(request, deployment, FREE_FORM, name)
        self.history = history
        self.prompt, self.parts = prompt, request.n
        self._problems = list(problems)
        self._choices: list[dict[str, Any]] = [
            {
                "index": index,
                "message": {"role": "assistant", "content": "", "refusal": None, "confidence": [], "problems": []},
                "finish_reason": None,
                "logprobs": None,
            }
            for index in range(request.n)
        ]
        self._tokens = 0
        self._head = {"id": f"chatcmpl-{uuid.uuid4().hex}", "created": int(time.time()), "model": name}

    def first(self) -> list[Chunk]:
        """Return the chunks that begin the answers."""
        return [self._chunk(index, {"role": "assistant", "content": ""}) for index in range(self.parts)]

    def add(self, part: int, item: ScoredSpan | Completion) -> Chunk:
        """Add a sentence of an answer, or its end, see ``Response``."""
        choice = self._choices[part]
        message = choice["message"]
        if isinstance(item, ScoredSpan):
            entry = self._entry(item.sentence, item.span.problem)
            raw = item.span.raw
            space = raw[: len(raw) - len(raw.lstrip())] if message["content"] else ""
            content = f"{space}{entry['text']}" if entry["kept"] else ""
            message["content"] += content
            message["confidence"].append(entry)
            return self._chunk(part, {"content": content, "confidence": [entry]})
        choice["finish_reason"] = "stop" if item.finished else "length"
        self._tokens += len(item.ids)
        of_sentences = [
            f"sentence {number}: {entry['problem']}"
            for number, entry in enumerate(message["confidence"], 1)
            if "problem" in entry
        ]
        message["problems"] = [*([] if item.finished else [CUT_OFF]), *self._problems, *of_sentences]
        return self._chunk(part, {"problems": message["problems"]}, choice["finish_reason"])

    def last(self) -> list[Chunk]:
        """Return the chunk that counts tokens, where it is asked for."""
        return [self._event([], usage=self._usage())] if self.request.stream_options.include_usage else []

    def whole(self) -> dict[str, Any]:
        """Return the whole response."""
        return {**self._head, "object": "chat.completion", "choices": self._choices, "usage": self._usage()}

    def _chunk(self, index: int, delta: dict[str, Any], finish: str | None = None) -> Chunk:
        """Return a chunk that adds to the answer with an index."""
        return self._event([{"index": index, "delta": delta, "finish_reason": finish, "logprobs": None}])

    def _event(self, choices: list[dict[str, Any]], **more: Any) -> Chunk:
        return {**self._head, "object": "chat.completion.chunk", "choices": choices, **more}

    def _usage(self) -> dict[str, int]:
        """Return how many tokens the prompt and all answers together have."""
        prompt, answers = len(self.prompt), self._tokens
        return {"prompt_tokens": prompt, "completion_tokens": answers, "total_tokens": prompt + answers}


class TextResponse(Response):
    """The response to a request to tag a given text.

    Args:
        request: the request.
        record: the text, cut into sentences and parts that are kept as they are.
        most: the most characters of a sentence that the model gets: longer ones have no score anyway, and encoding
            them would take long.
        deployment: see ``Response``.
        name: name of the model.
        notices: what there is to say about the question that the text is taken to answer.

    Attributes:
        record: what the model gets.
    """

    request: TagRequest

    def __init__(
        self,
        request: TagRequest,
        record: Record,
        most: int,
        deployment: Deployment,
        name: str,
        notices: Sequence[str] = (),
    ) -> None:
        super().__init__(request, deployment, ITERATIVE, name)
        self.record = replace(record, sentences=tuple(replace(s, text=s.text[:most]) for s in record.sentences))
        self._texts = [sentence.text for sentence in record.sentences]
        self._breaks, self._gap = Breaks(record.answer), ""
        self._content = ""
        self._entries: list[dict[str, Any]] = []
        self._notices = list(notices)
        self._problems: list[str] = []

    def add(self, part: int, item: Tagged) -> Chunk:
        """Add a tagged sentence, or at the end what is wrong with the text, see ``Response``."""
        if isinstance(item, Record):
            self._problems = [*self._notices, *item.meta.get("problems", ())]
            new = {"content": "", "confidence": [], "question": self.record.question, "problems": self._problems}
        else:
            new = self._add(item.sentence)
        return {"object": "tagged_text.chunk", "model": self._name, **new}

    def whole(self) -> dict[str, Any]:
        """Return the whole response."""
        response = {"object": "tagged_text", "model": self._name, "question": self.record.question}
        return response | {"content": self._content, "confidence": self._entries, "problems": self._problems}

    def _add(self, sentence: Sentence) -> dict[str, Any]:
        """Add a sentence or a part that is kept as it is, and return what a chunk says of it."""
        entry = self._entry(replace(sentence, text=self._texts[len(self._entries)]))
        self._entries.append(entry)
        between = self._breaks.between(entry["text"])
        self._gap = max(self._gap, " " if between is None else between, key=lambda gap: (gap.count("\n"), len(gap)))
        content = ""
        if entry["kept"]:
            content, self._gap = f"{self._gap if self._content else ''}{entry['text']}", ""
        self._content += content
        return {"content": content, "confidence": [entry]}
