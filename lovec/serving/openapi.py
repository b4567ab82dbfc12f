"""The description of the server in OpenAPI's format: what may be asked for, with examples."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import version
from typing import Any

from docstring_parser import parse
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from lovec.serving.feedback import LabelRequest
from lovec.serving.responses_api import ItemRequest
from lovec.serving.wire import ChatRequest, TagRequest

_QUESTION = "In a paragraph, could you tell me what you know about Jupiter?"
_TEXT = "Jupiter is the largest planet. It has one moon."
_SOURCE = "Jupiter is a gas giant, the fifth planet from the Sun. It has 95 known moons."
_PERCENT, _TAG = " [{confidence:.0%}]", " <confidence> {score} </confidence>"

_ASKED = {"messages": [{"role": "user", "content": _QUESTION}]}
_SCHEMAS = "#/components/schemas/"
_BEARER = {"key": {"type": "http", "scheme": "bearer"}}

ENDPOINTS: dict[str, tuple[type[BaseModel], str, str, dict[str, dict[str, Any]]]] = {
    "/v1/chat/completions": (
        ChatRequest,
        "Answer the last message of a conversation (OpenAI's chat API).",
        "A chat completion. Every message has `confidence`, a list of its sentences with their confidences, and with "
        "`evidence` also `by_source`. In a stream each comes in `delta.confidence`, with its place from 0 as `index`.",
        {
            "a question": _ASKED,
            "confidences in the text": {**_ASKED, "inline": _PERCENT},
            "stated scores in the text, as a stream": {**_ASKED, "inline": _TAG, "stream": True},
            "without doubtful sentences": {**_ASKED, "min_confidence": 0.5},
            "with a source": {**_ASKED, "evidence": _SOURCE},
        },
    ),
    "/v1/responses": (
        ItemRequest,
        "Answer the last message of a conversation (OpenAI's Responses API).",
        "A response. Its text has an annotation of the type `confidence` for every sentence.",
        {
            "a question": {"input": _QUESTION},
            "confidences in the text": {"input": _QUESTION, "inline": _PERCENT, "max_output_tokens": 200},
            "with a source": {"input": _QUESTION, "evidence": _SOURCE},
        },
    ),
    "/v1/tag": (
        TagRequest,
        "Give every sentence of a text a confidence.",
        "The text, with `confidence`, a list of its sentences and other parts.",
        {
            "a text": {"text": _TEXT, "question": _QUESTION},
            "confidences in the text": {"text": _TEXT, "about": "Jupiter", "inline": _PERCENT},
            "with a source": {"text": _TEXT, "about": "Jupiter", "evidence": [_SOURCE]},
        },
    ),
    "/v1/labels": (
        LabelRequest,
        "Say how true the sentences of an answer are (where the server was started with --feedback).",
        "How many `sentences` were taken, and the `problems` that all verdicts so far show.",
        {
            "an answer of two sentences": {
                "id": "chatcmpl-0123456789abcdef",
                "sentences": [{"index": 0, "factuality": 1}, {"index": 1, "factuality": 0}],
            }
        },
    ),
}
"""Path, request, what is done, what the response is, and examples of requests by what they show."""


def describe(name: str, guarded: bool, grounded: bool = False) -> dict[str, Any]:
    """Return the description.

    Args:
        name: name of the model.
        guarded: whether requests must bring a key.
        grounded: whether requests may bring evidence; where they may not, no example does.
    """
    models = [request for request, *_ in ENDPOINTS.values()]
    _, found = models_json_schema([(model, "validation") for model in models], ref_template=f"{_SCHEMAS}{{model}}")
    schemas = found["$defs"]
    for model in models:
        _explain(model, schemas[model.__name__])
    return {
        "openapi": "3.1.0",
        "info": {
            "title": f"lovec serve: {name}",
            "version": version("lovec"),
            "description": "A language model that gives every sentence a confidence. Parameters of OpenAI's APIs that "
            "are not listed are refused, unless their values ask for nothing.",
        },
        "paths": {
            path: {"post": _operation(model, does, reply, _allowed(examples, grounded))}
            for path, (model, does, reply, examples) in ENDPOINTS.items()
        },
        "components": {"schemas": schemas, **({"securitySchemes": _BEARER} if guarded else {})},
        **({"security": [{"key": []}]} if guarded else {}),
    }


def _allowed(examples: Mapping[str, dict[str, Any]], grounded: bool) -> dict[str, dict[str, Any]]:
    """Return the examples that the model can answer."""
    return {name: example for name, example in examples.items() if grounded or "evidence" not in example}


def _operation(model: type[BaseModel], does: str, reply: str, examples: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Return the description of an endpoint, see ``ENDPOINTS``."""
    body = {
        "schema": {"$ref": f"{_SCHEMAS}{model.__name__}"},
        "examples": {name: {"value": example} for name, example in examples.items()},
    }
    error = 'An error in OpenAI\'s form: {"error": {"message", "type", "param", "code"}}.'
    return {
        "summary": does,
        "requestBody": {"required": True, "content": {"application/json": body}},
        "responses": {
            "200": {"description": reply + " With `stream`, server-sent events." * ("stream" in model.model_fields)},
            "default": {"description": error},
        },
    }


def _explain(model: type[BaseModel], schema: dict[str, Any]) -> None:
    """Put what the docstrings of a request say of its parameters into its schema."""
    schema.pop("description", None)
    for kind in reversed(model.__mro__):
        for parameter in parse(kind.__doc__ or "").params:
            if parameter.arg_name in schema["properties"]:
                schema["properties"][parameter.arg_name]["description"] = parameter.description
