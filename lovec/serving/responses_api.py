"""OpenAI's Responses API: conversations are lists of items, streams are typed events, confidences are annotations.

An annotation says something of a part of the text. Clients keep those that they do not know: LangChain hands them on,
and sends them back in later turns.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import count
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import BeforeValidator, Field

from lovec.serving.responses import AnswerResponse, Chunk
from lovec.serving.wire import (
    MOST_PARTS,
    AnswerRequest,
    RequestRefused,
    Role,
    SentBack,
    Strict,
    Turn,
    as_list,
    error_body,
    refuse_unsupported,
)

_CONFIDENCE = "confidence"  # the type of our annotations


def _ours(annotations: Any) -> Any:
    """Return the annotations that are confidences; the model sees no others."""
    if not isinstance(annotations, list):
        return annotations
    return [each for each in annotations if isinstance(each, Mapping) and each.get("type") == _CONFIDENCE]


_Annotations: TypeAlias = Annotated[list[SentBack], BeforeValidator(_ours, json_schema_input_type=list[dict[str, Any]])]


class _Part(Strict, extra="forbid"):
    type: Literal["input_text", "output_text"]
    text: str
    annotations: _Annotations = Field([])
    logprobs: list[Any] | None = None


def _items(given: Any) -> Any:
    """Return the input as a list of items, where it is a plain text."""
    return as_list(given, {"role": "user", "content": given}, "a text or a list of items")


def _parts(content: Any) -> Any:
    """Return the content of an item as a list of parts, where it is a plain text."""
    return as_list(content, {"type": "input_text", "text": content}, "a text or a list of text parts")


class _Item(Strict, extra="forbid"):
    """A message; what has no effect is in the messages of responses, which clients send back."""

    type: Literal["message"] = "message"
    role: Role
    content: Annotated[
        list[_Part], Field(max_length=MOST_PARTS), BeforeValidator(_parts, json_schema_input_type=str | list[_Part])
    ]
    id: str | None = None
    status: str | None = None
    phase: str | None = None
    problems: list[str] | None = None


class ItemRequest(AnswerRequest):
    """A request of the Responses API.

    Attributes:
        input: the conversation so far, or a single question.
        instructions: a text of the system.
        max_output_tokens: the most tokens of the answer.
        n: number of answers.
    """

    PLACE = "input"

    input: Annotated[
        list[_Item],
        Field(min_length=1, max_length=MOST_PARTS),
        BeforeValidator(_items, json_schema_input_type=str | list[_Item]),
    ]
    instructions: str | None = None
    max_output_tokens: int | None = Field(None, ge=1)
    n: Literal[1] = 1

    @classmethod
    def _refuse_others(cls, body: dict[str, Any]) -> None:
        refuse_unsupported(body, cls.model_fields, "responses")

    @property
    def turns(self) -> list[Turn]:
        """The instructions and the messages, in order; a developer is the system."""
        turns = [] if self.instructions is None else [Turn("system", self.instructions)]
        for item in self.input:
            confidence = [entry for part in item.content for entry in part.annotations]
            turns.append(Turn.of(item.role, (part.text for part in item.content), confidence))
        return turns

    @property
    def tokens(self) -> int | None:
        """The most tokens that are asked for."""
        return self.max_output_tokens


class ItemResponse(AnswerResponse):
    """The response to a request of the Responses API; see ``AnswerResponse`` for the arguments."""

    prefix = "resp_"
    request: ItemRequest

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._answer = self.answers[0]
        self._numbers = count()

    def first(self) -> list[Chunk]:
        """Return the events that begin the message."""
        return [
            self._event("response.created", response=self.whole()),
            self._event("response.in_progress", response=self.whole()),
            self._event("response.output_item.added", output_index=0, item={**self._item(), "content": []}),
            self._part_event("response.content_part.added", part=self._part()),
        ]

    def _grown(self, part: int, text: str, entry: dict[str, Any]) -> list[Chunk]:
        number = len(self._answer.entries) - 1
        annotation = {"annotation_index": number, "annotation": self._annotation(number)}
        return [
            *([self._part_event("response.output_text.delta", delta=text, logprobs=[])] if text else []),
            self._part_event("response.output_text.annotation.added", **annotation),
        ]

    def _ended(self, part: int) -> list[Chunk]:
        return [
            self._part_event("response.output_text.done", text=self._answer.text, logprobs=[]),
            self._part_event("response.content_part.done", part=self._part()),
            self._event("response.output_item.done", output_index=0, item=self._item()),
            self._event(f"response.{self._status()}", response=self.whole()),
        ]

    def failed(self, error: RequestRefused) -> Chunk:
        """Return the event that ends a stream with an error; OpenAI's client raises what stands under ``error``."""
        body = error_body(error)
        said = {name: body["error"][name] for name in ("code", "message", "param")}
        return self._event("error", **said, **body)

    def whole(self) -> dict[str, Any]:
        """Return the whole response."""
        asked = self.request
        status = self._status()
        return {
            "id": self.id,
            "object": "response",
            "created_at": self.created,
            "status": status,
            "model": self._name,
            "output": [] if status == "in_progress" else [self._item()],
            "usage": self._usage(),
            "error": None,
            "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
            "instructions": asked.instructions,
            "max_output_tokens": asked.max_output_tokens,
            "temperature": asked.temperature,
            "top_p": asked.top_p,
            "text": {"format": {"type": "text"}},
            "tools": [],
            "tool_choice": "none",
            "parallel_tool_calls": False,
            "store": False,
            "metadata": {},
        }

    def _status(self) -> str:
        return {None: "in_progress", True: "incomplete", False: "completed"}[self._answer.is_cut]

    def _item(self) -> dict[str, Any]:
        """Return the message, as far as it is known."""
        item = {"type": "message", "id": f"msg_{self.key}", "status": self._status(), "role": "assistant"}
        return item | {"content": [self._part()], "problems": self._answer.problems}

    def _part(self) -> dict[str, Any]:
        """Return the only part of the message, as far as it is known."""
        annotations = list(map(self._annotation, range(len(self._answer.entries))))
        return {"type": "output_text", "text": self._answer.text, "annotations": annotations, "logprobs": []}

    def _annotation(self, number: int) -> dict[str, Any]:
        """Return what is said of a sentence: its entry, and where it stands in the text."""
        begin, end = self._answer.places[number]
        return {"type": _CONFIDENCE, "start_index": begin, "end_index": end, **self._answer.entries[number]}

    def _usage(self) -> dict[str, Any] | None:
        """Return how many tokens the prompt and the answer have; None as long as nobody has counted them."""
        prompt = self.prompt_tokens
        if prompt is None or self.tokens is None:
            return None
        return {
            "input_tokens": prompt,
            "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
            "output_tokens": self.tokens,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": prompt + self.tokens,
        }

    def _event(self, kind: str, **more: Any) -> Chunk:
        return {"type": kind, "sequence_number": next(self._numbers), **more}

    def _part_event(self, kind: str, **more: Any) -> Chunk:
        """Return an event about the only part of the message."""
        return self._event(kind, item_id=f"msg_{self.key}", output_index=0, content_index=0, **more)
