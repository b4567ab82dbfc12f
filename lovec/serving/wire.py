"""Requests and errors over HTTP, in OpenAI's format."""

from __future__ import annotations

import json
from abc import abstractmethod
from collections.abc import Collection, Iterable, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, Self, TypeAlias, TypeVar, cast

import yaml
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, ValidationInfo
from pydantic_core import PydanticCustomError

from lovec.datasets.jsonl import short_json
from lovec.serving.inline import check_template
from lovec.taggers.served_confidence import renamed_threshold
from lovec.types import FREE_FORM, ITERATIVE, LovecError, Mode, Sampling, Scale, ThresholdBy

_OTHERS: dict[str, dict[str, Any]] = yaml.safe_load(Path(__file__).with_name("parameters.yaml").read_text("utf-8"))
"""Fields of OpenAI's requests and messages that are not supported, and their values that ask for nothing; null in place
of values: the field does not change the answer."""

MOST_STOPS = 4
"""The most texts that may end an answer, as in OpenAI's API."""

MOST_PARTS = 1000
"""The most messages of a conversation, and the most parts of a message."""

_NAMES = {type(None): "null", bool: "true or false", dict: "an object"}
"""Types of JSON values in error messages."""

_LONGEST_MESSAGE = 500
"""Characters of an error message: it may quote what a client has sent."""


class RequestRefused(LovecError):
    """A request that is not answered.

    Attributes:
        status: HTTP status.
        parameter: the parameter that is wrong, such as "messages[0].role", if it is a single one.
        code: OpenAI's error code, if there is one.
    """

    def __init__(self, message: str, parameter: str | None = None, status: int = 400, code: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.parameter = parameter
        self.code = code


class Strict(BaseModel):
    """An object that is read without conversions: "1" and true are not integers."""

    model_config = ConfigDict(strict=True, allow_inf_nan=False)


R = TypeVar("R", bound=Strict)


def _not_blank(text: str) -> str:
    """Return a text that says something.

    Raises:
        PydanticCustomError: it does not.
    """
    if not text.strip():
        raise PydanticCustomError("blank_text", "Input should be a text that is not empty")
    return text


def _texts(value: Any) -> Any:
    """Return a value as a list of texts, where it is a single one."""
    return as_list(value, value, "a text or a list of texts")


_Evidence: TypeAlias = Annotated[
    list[Annotated[str, AfterValidator(_not_blank)]],
    Field(max_length=MOST_PARTS),
    BeforeValidator(_texts, json_schema_input_type=str | list[str]),
]


def _template(template: str) -> str:
    """Return a template that can be used, see ``check_template``.

    Raises:
        PydanticCustomError: it cannot.
    """
    try:
        return check_template(template)
    except LovecError as error:
        raise PydanticCustomError("template", "{message}", {"message": str(error)}) from None


class _Request(Strict):
    """A request; what is said of its parameters is also said in ``/openapi.json``.

    Attributes:
        model: name of the model.
        min_confidence: sentences with a lower confidence, or without one, are left out of the text; null keeps all.
        keep_factual: probability of a guarantee that all sentences that are kept are true; others are left out of the
            text. The model must have a threshold for it; null asks for no guarantee.
        threshold_by: "source" compares ``by_source`` of each sentence with the two thresholds above, in place of
            ``confidence``.
        promise_for: kind of the question, for which that guarantee is to hold by itself: a value of the column that
            the calibration's promises are by; null is the guarantee for all questions together.
        inline: template of what stands right behind every sentence in the text, such as ``" [{confidence:.0%}]"`` or
            ``" <confidence> {score} </confidence>"``: ``{confidence}`` is the confidence and ``{by_source}`` that by
            the evidence, with two decimals or in a format, ``{score}`` the score that the model states. "" writes
            nothing, null takes what the server was started with.
        evidence: a source, or several, for a model that was trained with evidence: answers are written with it, and
            every sentence has a confidence by it, ``by_source``, beside the one without it. Null is none.
    """

    model: str | None = None
    min_confidence: float | None = Field(None, ge=0, le=1)
    keep_factual: float | None = Field(None, gt=0, lt=1)
    threshold_by: ThresholdBy = "knowledge"
    promise_for: str | None = None
    inline: Annotated[str, AfterValidator(_template)] | None = None
    evidence: _Evidence | None = None

    tagging: ClassVar[Mode]
    """How what it asks for is tagged."""

    @classmethod
    def read(cls, body: dict[str, Any], model: str, scale: Scale) -> Self:
        """Return a checked request.

        Args:
            body: the JSON object.
            model: name of the only model there is.
            scale: the scale of the scores that clients send back; ``min_score``, the older name, is converted by it for
                the error.

        Raises:
            RequestRefused: a parameter is of the wrong type or out of range; the request asks for another model.
        """
        if body.get("min_score") is not None:
            error = renamed_threshold(body["min_score"], scale, '"min_confidence": {}')
            raise RequestRefused(str(error), "min_score", code="unknown_parameter")
        request = validated(cls, body, scale)
        if request.threshold_by == "source":
            missing = "evidence" if not request.evidence else "min_confidence or keep_factual"
            if not request.evidence or (request.min_confidence is None and request.keep_factual is None):
                message = f"threshold_by is 'source', and there is no {missing}; send some, or leave it out"
                raise RequestRefused(message, "threshold_by")
        if request.model is not None:
            check_model(request.model, model)
        return request


def validated(kind: type[R], body: dict[str, Any], context: Any = None) -> R:
    """Return a request of a kind.

    Args:
        kind: the kind.
        body: the JSON object.
        context: what its validators need.

    Raises:
        RequestRefused: a parameter is unknown, of the wrong type, or out of range.
    """
    try:
        return kind.model_validate(body, context=context)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
        place = ".".join(map(str, first["loc"]))
        path = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in first["loc"])
        given = first["input"]
        is_shown = first["msg"].startswith("Input should") and not isinstance(given, list | dict)
        said = f"{place}: {first['msg']}" + f", not {short_json(given)}" * is_shown
        raise RequestRefused(said, path[1:], code=_code(first["type"])) from None


def check_model(name: str, model: str) -> None:
    """Raise RequestRefused where a request names another model than the only one there is."""
    if name != model:
        raise RequestRefused(f"there is no model {name!r} here, only {model!r}", "model", 404, "model_not_found")


class TagRequest(_Request, extra="forbid"):
    """A request to tag a text.

    Attributes:
        text: the text: plain, Markdown or HTML.
        question: the question that it answers; null guesses it from the title of the text.
        about: in place of a question: what the text is about.
        stream: whether the confidences of sentences are sent as soon as they are known.
    """

    tagging: ClassVar[Mode] = ITERATIVE

    text: Annotated[str, AfterValidator(_not_blank)]
    question: Annotated[str, AfterValidator(_not_blank)] | None = None
    about: Annotated[str, AfterValidator(_not_blank)] | None = None
    stream: bool = False


class _TextPart(Strict, extra="forbid"):
    type: Literal["text"]
    text: str


def _parts(content: Any) -> Any:
    """Return the content of a message as a list of parts, where it is a plain text."""
    return as_list(content, {"type": "text", "text": content}, "a text or a list of text parts")


def as_list(value: Any, item: Any, expected: str) -> list[Any]:
    """Return a value that is a text or a list as a list; the item is what a text becomes."""
    if not isinstance(value, str | list):
        raise PydanticCustomError("list_type", f"it is {_NAMES.get(type(value), 'a number')}, expected {expected}")
    return [item] if isinstance(value, str) else value


def _on_scale(score: int | None, info: ValidationInfo) -> int | None:
    """Return a score that the scale of the model has.

    Raises:
        PydanticCustomError: it has not.
    """
    scale = cast(Scale, info.context)
    if score is not None and not 0 <= score <= scale.top:
        raise PydanticCustomError("score", f"Input should be null or an integer between 0 and {scale.top}")
    return score


class SentBack(Strict):
    """A sentence of an earlier answer, as this server has returned it in ``confidence``.

    Attributes:
        text: the sentence.
        score: its stated score; None where it has no valid tag.
        kept: whether it is part of the answer's content.
    """

    text: str
    score: Annotated[int | None, AfterValidator(_on_scale)] = None
    kept: bool = True


Role: TypeAlias = Literal["system", "developer", "user", "assistant"]
"""Whose a message is, as clients say."""


class Turn(NamedTuple):
    """A turn of a conversation.

    Attributes:
        role: "system", "user" or "assistant".
        text: what was said.
        confidence: the sentences of an earlier answer, as far as the client has sent them back.
    """

    role: str
    text: str
    confidence: Sequence[SentBack] = ()

    @classmethod
    def of(cls, role: Role, texts: Iterable[str], confidence: Sequence[SentBack]) -> Turn:
        """Return the turn of a message that has these texts; a developer is the system."""
        return cls("system" if role == "developer" else role, "".join(texts), confidence)


class AnswerRequest(_Request):
    """A request for answers of the model: what OpenAI's two APIs for it have in common.

    Attributes:
        temperature: 0 is greedy; other values are at least 0.01, since engines replace smaller ones.
        top_p: tokens are drawn from the fewest most probable ones that have this share together.
        n: number of answers; more than one need a temperature above 0.
        stop: texts that end an answer, looked for in the text without tags; an answer ends before them.
        seed: requests with equal seeds get equal answers.
        stream: whether sentences are sent as soon as they are complete.
    """

    tagging: ClassVar[Mode] = FREE_FORM

    PLACE: ClassVar[str]
    """The parameter that holds the conversation."""

    temperature: float = Field(0.0, ge=0, le=2)
    top_p: float = Field(1.0, gt=0, le=1)
    n: int = Field(1, ge=1)
    stop: Annotated[
        list[Annotated[str, Field(min_length=1)]],
        Field(max_length=MOST_STOPS),
        BeforeValidator(_texts, json_schema_input_type=str | list[str]),
    ] = []
    seed: int | None = Field(None, ge=-(2**63), lt=2**63)
    stream: bool = False
    _limit: int = 0

    @classmethod
    def parse(cls, body: dict[str, Any], model: str, max_tokens: int, scale: Scale, max_choices: int = 1) -> Self:
        """Parse a request.

        Args:
            body: the JSON object; parameters that are null count as absent.
            model: name of the only model there is.
            max_tokens: the most tokens of an answer: the default of a request, and the limit where it asks for more.
            scale: as in ``read``.
            max_choices: the most answers that one request may ask for.

        Raises:
            RequestRefused: a parameter is unknown, not supported, or of the wrong type.
        """
        cls._refuse_others(body)
        request = cls.read({name: value for name, value in body.items() if value is not None}, model, scale)
        if 0 < request.temperature < 0.01:
            text = f"temperature is {request.temperature}, expected 0 or a number between 0.01 and 2"
            raise RequestRefused(text, "temperature", code="invalid_value")
        if request.n > max_choices:
            text = f"n is {request.n}, expected at most {max_choices} here; ask several times"
            raise RequestRefused(text, "n", code="invalid_value")
        if request.n > 1 and not request.temperature:
            text = f"n is {request.n} and the temperature 0, where all answers are the same; set temperature, such as 1"
            raise RequestRefused(text, "n", code="invalid_value")
        request._limit = min(request.tokens or max_tokens, max_tokens)
        return request

    @classmethod
    @abstractmethod
    def _refuse_others(cls, body: dict[str, Any]) -> None:
        """Refuse what OpenAI's API has and this server has not."""

    @property
    @abstractmethod
    def turns(self) -> list[Turn]:
        """The conversation, in order; a developer is the system."""

    @property
    @abstractmethod
    def tokens(self) -> int | None:
        """The most tokens that are asked for."""

    @property
    def sampling(self) -> Sampling:
        """How to sample one answer."""
        seed = (self.seed or 0) % 2**63  # seeds of streams have no sign
        return Sampling(self._limit, self.temperature, seed=seed, top_p=self.top_p)


class _Message(Strict):
    role: Role
    content: Annotated[
        list[_TextPart],
        Field(max_length=MOST_PARTS),
        BeforeValidator(_parts, json_schema_input_type=str | list[_TextPart]),
    ]
    confidence: list[SentBack] | None = None


class _StreamOptions(Strict, extra="forbid"):
    include_usage: bool | None = None
    include_obfuscation: Literal[False] | None = None


class ChatRequest(AnswerRequest):
    """A chat request.

    Attributes:
        messages: the conversation so far.
        max_completion_tokens: the most tokens of the answer.
        max_tokens: the older name for max_completion_tokens.
        stream_options: whether a stream ends with a chunk that counts tokens.
    """

    PLACE = "messages"

    messages: list[_Message] = Field(min_length=1, max_length=MOST_PARTS)
    max_completion_tokens: int | None = Field(None, ge=1)
    max_tokens: int | None = Field(None, ge=1)
    stream_options: _StreamOptions = _StreamOptions()

    @classmethod
    def _refuse_others(cls, body: dict[str, Any]) -> None:
        refuse_unsupported(body, (*cls.model_fields, "min_score"), "chat")  # ``read`` says what has become of that one
        for number, message in enumerate(body["messages"] if isinstance(body.get("messages"), list) else ()):
            if isinstance(message, dict):
                refuse_unsupported(message, _Message.model_fields, "message", f"messages[{number}]")

    @property
    def turns(self) -> list[Turn]:
        """The messages, in order; a developer is the system."""
        return [Turn.of(m.role, (part.text for part in m.content), m.confidence or ()) for m in self.messages]

    @property
    def tokens(self) -> int | None:
        """The most tokens that are asked for."""
        return self.max_completion_tokens or self.max_tokens


def refuse_unsupported(fields: dict[str, Any], supported: Collection[str], kind: str, message: str = "") -> None:
    """Refuse fields that are not supported, unless they ask for nothing or do not change the answer.

    Args:
        fields: the parameters of a request, or the fields of one of its messages.
        supported: names of those that are supported.
        kind: what they are, by which ``parameters.yaml`` lists the others.
        message: where the message stands; "" for a request.
    """
    others: dict[str, list[Any] | None] = _OTHERS[kind]
    for name, value in fields.items():
        if value is None or name in supported:
            continue
        place = f"{message}.{name}" if message else name
        if name not in others:
            near = get_close_matches(name[:MOST_PARTS], [*supported, *others], 1)
            advice = f"; did you mean {near[0]!r}?" if near else ""
            text = f"unknown field {name!r} of {message}" if message else f"unknown parameter {name!r}{advice}"
            raise RequestRefused(text, place, code="unknown_parameter")
        if (neutral := others[name]) is not None:
            _refuse_unless_neutral(place, value, neutral)


def _refuse_unless_neutral(name: str, value: Any, neutral: Sequence[Any]) -> None:
    """Refuse a parameter that is not supported, unless its value asks for nothing."""
    if any(value == other and isinstance(value, bool) == isinstance(other, bool) for other in neutral):  # true is not 1
        return
    if not neutral:
        raise RequestRefused(f"{name} is not supported here; leave it out", name, code="unsupported_parameter")
    allowed = " or ".join(json.dumps(other) for other in neutral)
    message = f"{name} is not supported here; leave it out, or set it to {allowed}, which asks for nothing"
    raise RequestRefused(message, name, code="unsupported_value")


def _code(kind: str) -> str:
    """Return OpenAI's error code for one of pydantic's kinds of errors."""
    codes = {"missing": "missing_required_parameter", "extra_forbidden": "unknown_parameter"}
    return codes.get(kind, "invalid_type" if kind.endswith("_type") else "invalid_value")


KEEP_ALIVE = ": keep-alive\n\n"
"""A comment in a stream of events, which clients ignore: proxies and clients close connections that are silent."""


def event(data: dict[str, Any]) -> str:
    """Return an object as a server-sent event, which has a name where the object has a type."""
    name = f"event: {data['type']}\n" if "type" in data else ""
    return f"{name}data: {json.dumps(data)}\n\n"


def error_body(error: RequestRefused) -> dict[str, Any]:
    """Return an error in OpenAI's format; it quotes no more than the beginning of what was sent."""
    text, status = str(error), error.status
    return {
        "error": {
            "message": text if len(text) <= _LONGEST_MESSAGE else f"{text[:_LONGEST_MESSAGE]}...",
            "type": "requests" if status == 429 else "invalid_request_error" if status < 500 else "server_error",
            "param": error.parameter and error.parameter[:_LONGEST_MESSAGE],
            "code": error.code,
        }
    }


def visible(error: Exception) -> RequestRefused:
    """Return what a client learns of an error: of the server's own only that there was one, no path and no address."""
    if isinstance(error, RequestRefused):
        return error
    return RequestRefused("the server failed; its log says how", status=500)
