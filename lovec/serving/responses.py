"""Responses that grow with what the model says: a stream sends their chunks, other requests get the whole."""

from __future__ import annotations

import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeAlias

from lovec.display import Breaks
from lovec.serving.history import History
from lovec.serving.inline import Inline
from lovec.serving.jobs import AnswerEnd, added
from lovec.serving.wire import AnswerRequest, ChatRequest, RequestRefused, TagRequest, error_body
from lovec.taggers.freeform import ScoredSpan
from lovec.taggers.scoring import Tagged
from lovec.taggers.served_confidence import ServedConfidence
from lovec.tagging import CUT_OFF
from lovec.types import BY_SOURCE, FREE_FORM, ITERATIVE, Mode, Record, Sentence, error_in

Chunk: TypeAlias = dict[str, Any]
"""An event of a stream."""


class Response(ABC):
    """The response to one request, as far as it is known.

    Args:
        request: the request.
        served: tells which sentences stay.
        mode: how the confidences (by knowledge, where there are others) are read.
        name: name of the model.
        inline: writes confidences into the text.

    Attributes:
        request: as given.
        mode: as given.
        id: the name that clients know it by.
        sentences: the sentences of the first part, in the order of their entries.
        prompt: what the model reads to answer; of a given text nothing.
        parts: number of parts that grow independently: the answers, or the text.

    Raises:
        RequestRefused: the request asks for a guarantee that there is no threshold for.
    """

    id: str
    sentences: list[Sentence]
    prompt: Sequence[Any] = ()
    parts = 1

    def __init__(
        self, request: AnswerRequest | TagRequest, served: ServedConfidence, mode: Mode, name: str, inline: Inline
    ) -> None:
        self.request: AnswerRequest | TagRequest = request
        self.mode, self._name, self._inline = mode, name, inline
        compared = mode if request.threshold_by == "knowledge" else BY_SOURCE[request.tagging]
        asked = "promise_for" if request.promise_for else "keep_factual"
        with error_in(kind=partial(RequestRefused, parameter=asked)):
            self._keeps = served.keeps(compared, request.min_confidence, request.keep_factual, request.promise_for)

    def first(self) -> list[Chunk]:
        """Return the chunks before all sentences."""
        return []

    @abstractmethod
    def add(self, part: int, item: Any) -> list[Chunk]:
        """Add what has become known, and return its chunks.

        Args:
            part: number of the part.
            item: the next sentence of the part, or its end.
        """

    def last(self) -> list[Chunk]:
        """Return the chunks behind everything else."""
        return []

    def failed(self, error: RequestRefused) -> Chunk:
        """Return the chunk that ends a stream with an error."""
        return error_body(error)

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
        entry |= {"by_source": sentence.by_source} if self.request.evidence else {}
        entry |= {"kept": self._keeps(sentence)} | ({} if problem is None else {"problem": problem})
        return entry | ({} if sentence.is_statement else {"kind": sentence.kind})

    def _shown(self, entry: Mapping[str, Any]) -> str:
        """Return what the text has of the sentence of an entry: with its confidence, where that is asked for."""
        tag = self._inline.tag(entry["score"], entry["confidence"], entry.get("by_source"))
        return f"{entry['text']}{tag}" if entry["kept"] else ""


@dataclass(slots=True)
class Answer:
    """An answer, as far as it is known.

    Attributes:
        text: what its readers see.
        sentences: its sentences.
        entries: what is said of them, see ``Response._entry``.
        places: where they begin and end in the text; a sentence that was left out has no length.
        gap: the widest white space since the last sentence that its readers see.
        problems: what is wrong with it, at its end.
        is_cut: whether a limit of tokens has ended it; None before its end.
    """

    text: str = ""
    sentences: list[Sentence] = field(default_factory=list)
    entries: list[dict[str, Any]] = field(default_factory=list)
    places: list[tuple[int, int]] = field(default_factory=list)
    gap: str = ""
    problems: list[str] = field(default_factory=list)
    is_cut: bool | None = None


class AnswerResponse(Response):
    """The response to a request for answers.

    By knowledge, an answer that is written with evidence is a given text, which is scored while it grows.

    Args:
        request: the request.
        history: the conversation so far.
        prompt: the same as its model reads it; it changes where earlier answers have to be scored first.
        served: see ``Response``, as for ``name`` and ``inline``.
        name: name of the model.
        inline: writes confidences into the text.
        problems: what is wrong with the question.

    Attributes:
        answers: the answers.
        prompt_tokens: number of tokens of the conversation, as often as it was read for the answers that have ended;
            None as long as nobody has counted them.
        tokens: number of tokens of the answers that have ended, likewise.
        key: a name of its own.
        created: seconds since 1970.
    """

    prefix = ""
    """What ids begin with."""

    request: AnswerRequest

    def __init__(
        self,
        request: AnswerRequest,
        history: History,
        prompt: Sequence[Any],
        served: ServedConfidence,
        name: str,
        inline: Inline,
        problems: Sequence[str] = (),
    ) -> None:
        super().__init__(request, served, ITERATIVE if request.evidence else FREE_FORM, name, inline)
        self.history = history
        self.prompt, self.parts = prompt, request.n
        self._problems = list(problems)
        self.answers = [Answer() for _ in range(request.n)]
        self.sentences = self.answers[0].sentences
        self.prompt_tokens: int | None = None
        self.tokens: int | None = 0
        self.key, self.created = uuid.uuid4().hex, int(time.time())
        self.id = f"{self.prefix}{self.key}"

    def add(self, part: int, item: ScoredSpan | AnswerEnd) -> list[Chunk]:
        """Add a sentence of an answer, or its end, see ``Response``."""
        answer = self.answers[part]
        if isinstance(item, ScoredSpan):
            entry, raw = self._entry(item.sentence, item.span.problem), item.span.raw
            if not item.span.text:  # a tag alone: its words are no part of the answer
                entry["text"] = ""
            answer.gap = _wider(answer.gap, raw[: len(raw) - len(raw.lstrip())])
            new, begin = "", len(answer.text)
            if entry["kept"] and entry["text"]:
                # A model may write none between sentences; without one, later turns could not undo ``inline``.
                space, answer.gap = (answer.gap or " ") if answer.text else "", ""
                new, begin = f"{space}{self._shown(entry)}", begin + len(space)
            answer.sentences.append(item.sentence)
            answer.entries.append(entry)
            answer.places.append((begin, begin + len(entry["text"]) * entry["kept"]))
            answer.text += new
            return self._grown(part, new, entry)
        others = item.own_prompt and any(other.is_cut is not None for other in self.answers)
        self.prompt_tokens = added(self.prompt_tokens, item.prompt_tokens) if others else item.prompt_tokens
        self.tokens = added(self.tokens, item.tokens)
        answer.is_cut = not item.finished
        of_sentences = [
            f"sentence {number}: {entry['problem']}"
            for number, entry in enumerate(answer.entries, 1)
            if "problem" in entry
        ]
        of_question = [*self._problems, *self.history.problems]
        answer.problems = [*([CUT_OFF] if answer.is_cut else []), *of_question, *item.problems, *of_sentences]
        return self._ended(part)

    @abstractmethod
    def _grown(self, part: int, text: str, entry: dict[str, Any]) -> list[Chunk]:
        """Return the chunks for a new sentence of an answer, which has added ``text`` to it."""

    @abstractmethod
    def _ended(self, part: int) -> list[Chunk]:
        """Return the chunks for the end of an answer."""


class ChatResponse(AnswerResponse):
    """The response to a chat request, with an id of its own; see ``AnswerResponse`` for the arguments."""

    prefix = "chatcmpl-"
    request: ChatRequest

    def first(self) -> list[Chunk]:
        """Return the chunks that begin the answers."""
        return [self._chunk(index, {"role": "assistant", "content": ""}) for index in range(self.parts)]

    def _grown(self, part: int, text: str, entry: dict[str, Any]) -> list[Chunk]:
        place = {"index": len(self.answers[part].entries) - 1}  # openai's streaming helper merges entries by it
        return [self._chunk(part, {"content": text, "confidence": [place | entry]})]

    def _ended(self, part: int) -> list[Chunk]:
        return [self._chunk(part, {"problems": self.answers[part].problems}, self._finish(part))]

    def last(self) -> list[Chunk]:
        """Return the chunk that counts tokens, where it is asked for."""
        return [self._event([], usage=self._usage())] if self.request.stream_options.include_usage else []

    def whole(self) -> dict[str, Any]:
        """Return the whole response."""
        choices = [
            {
                "index": index,
                "message": {
                    "role": "assistant",
                    "content": answer.text,
                    "refusal": None,
                    "confidence": answer.entries,
                    "problems": answer.problems,
                },
                "finish_reason": self._finish(index),
                "logprobs": None,
            }
            for index, answer in enumerate(self.answers)
        ]
        return {**self._head(), "object": "chat.completion", "choices": choices, "usage": self._usage()}

    def _finish(self, part: int) -> str:
        """Return why an answer has ended."""
        return "length" if self.answers[part].is_cut else "stop"

    def _chunk(self, index: int, delta: dict[str, Any], finish: str | None = None) -> Chunk:
        """Return a chunk that adds to the answer with an index."""
        return self._event([{"index": index, "delta": delta, "finish_reason": finish, "logprobs": None}])

    def _event(self, choices: list[dict[str, Any]], **more: Any) -> Chunk:
        return {**self._head(), "object": "chat.completion.chunk", "choices": choices, **more}

    def _head(self) -> dict[str, Any]:
        return {"id": self.id, "created": self.created, "model": self._name}

    def _usage(self) -> dict[str, int] | None:
        """Return how many tokens the prompt and all answers together have; None where nobody has counted them."""
        prompt, answers = self.prompt_tokens, self.tokens
        if prompt is None or answers is None:
            return None
        return {"prompt_tokens": prompt, "completion_tokens": answers, "total_tokens": prompt + answers}


class TextResponse(Response):
    """The response to a request to tag a given text.

    Args:
        request: the request.
        record: the text, cut into sentences and parts that are kept as they are.
        most: the most characters of a sentence that the model gets: longer ones have no score anyway, and encoding
            them would take long.
        served: see ``Response``, as for ``inline``.
        name: name of the model.
        inline: writes confidences into the text.
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
        served: ServedConfidence,
        name: str,
        inline: Inline,
        notices: Sequence[str] = (),
    ) -> None:
        super().__init__(request, served, ITERATIVE, name, inline)
        self.record = replace(record, sentences=tuple(replace(s, text=s.text[:most]) for s in record.sentences))
        self._texts = [sentence.text for sentence in record.sentences]
        self._breaks, self._gap = Breaks(record.answer), ""
        self._content = ""
        self.id = f"tag-{uuid.uuid4().hex}"
        self.sentences = []
        self._entries: list[dict[str, Any]] = []
        self._notices = list(notices)
        self._problems: list[str] = []

    def add(self, part: int, item: Tagged) -> list[Chunk]:
        """Add a tagged sentence, or at the end what is wrong with the text, see ``Response``."""
        if isinstance(item, Record):
            self._problems = [*self._notices, *item.meta.get("problems", ())]
            new = {"content": "", "confidence": [], "question": self.record.question, "problems": self._problems}
        else:
            new = self._add(item.sentence)
        return [{"id": self.id, "object": "tagged_text.chunk", "model": self._name, **new}]

    def whole(self) -> dict[str, Any]:
        """Return the whole response."""
        response = {"id": self.id, "object": "tagged_text", "model": self._name, "question": self.record.question}
        return response | {"content": self._content, "confidence": self._entries, "problems": self._problems}

    def _add(self, sentence: Sentence) -> dict[str, Any]:
        """Add a sentence or a part that is kept as it is, and return what a chunk says of it."""
        entry = self._entry(replace(sentence, text=self._texts[len(self._entries)]))
        self.sentences.append(sentence)
        self._entries.append(entry)
        between = self._breaks.between(entry["text"])
        self._gap = _wider(self._gap, " " if between is None or between.strip() else between)
        content = ""
        if entry["kept"]:
            content, self._gap = f"{self._gap if self._content else ''}{self._shown(entry)}", ""
        self._content += content
        return {"content": content, "confidence": [entry]}


def _wider(first: str, second: str) -> str:
    """Return the one of two white spaces that has more line breaks, or else more characters."""
    return max(first, second, key=lambda gap: (gap.count("\n"), len(gap)))
