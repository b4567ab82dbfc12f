"""OpenAI's Responses API, asked by the official client: its types, its events, and confidences as annotations."""

from __future__ import annotations

import json
from typing import Any

import pytest
from openai import APIError, BadRequestError, OpenAI
from openai.types import responses as types
from pydantic import TypeAdapter
from served import KEY, NAME, Server, chat, post, streamed
from writer import Scripted

from lovec.taggers import Session

# OpenAI has no such annotations, of which the client warns where it writes them as JSON.
pytestmark = pytest.mark.filterwarnings("ignore:Pydantic serializer warnings")

ANSWER = "Ada ran. <confidence> 9 </confidence>\n\nShe wrote a note. <confidence> 2 </confidence> And then"
TEXT = "Ada ran.\n\nShe wrote a note. And then"


@pytest.fixture
def client(server: Server) -> OpenAI:
    return OpenAI(base_url=f"{server.url}/v1", api_key=KEY, max_retries=0)


def annotations(response: types.Response) -> list[Any]:
    [message] = response.output
    assert isinstance(message, types.ResponseOutputMessage)
    [part] = message.content
    assert isinstance(part, types.ResponseOutputText)
    return part.annotations


def last_prompt(session: Session) -> list[int]:
    engine = session.engine
    assert isinstance(engine, Scripted)
    return engine.known[-1][0]


def test_the_client_gets_text_and_confidences(server: Server, client: OpenAI, session: Session) -> None:
    response = client.responses.create(model=NAME, input="Who?")
    assert (response.output_text, response.status, response.error) == (TEXT, "completed", None)
    found = annotations(response)
    assert {each.type for each in found} == {"confidence"} and [each.score for each in found] == [9, 2, None]
    assert [TEXT[each.start_index : each.end_index] for each in found] == [each.text for each in found]
    message = post(server, chat("Who?"))[1]["choices"][0]["message"]
    for each, entry in zip(found, message["confidence"], strict=True):
        assert {name: getattr(each, name) for name in entry} == {
            name: pytest.approx(value, abs=1e-4) if isinstance(value, float) else value for name, value in entry.items()
        }
    assert response.output[0].problems == message["problems"] == ["sentence 3: the answer ends without a tag"]
    assert response.usage is not None and response.usage.input_tokens == len(session.encoder.prompt("Who?"))
    assert response.usage.total_tokens == response.usage.input_tokens + response.usage.output_tokens


def test_instructions_are_of_the_system(client: OpenAI, session: Session) -> None:
    developer: Any = {"role": "developer", "content": [{"type": "input_text", "text": "Be brief."}]}
    client.responses.create(
        model=NAME, instructions="Be kind.", input=[developer, {"role": "user", "content": "Who was Bob?"}]
    )
    turns = [("system", "Be kind."), ("system", "Be brief."), ("user", "Who was Bob?")]
    assert last_prompt(session) == session.encoder.dialogue(turns)


def test_objects_and_events_have_all_that_the_types_of_the_client_ask_for(server: Server) -> None:
    """The client takes what it gets; these check it, but for the type of annotation that OpenAI does not have."""
    body = json.dumps({"input": "Who?"}).encode()
    status, data = post(server, body, "/v1/responses")
    assert status == 200
    events = streamed(server, body[:-1] + b', "stream": true}', "/v1/responses")
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    kinds = [event["type"].removeprefix("response.") for event in events]
    head = ["created", "in_progress", "output_item.added", "content_part.added"]
    tail = ["output_text.done", "content_part.done", "output_item.done", "completed"]
    assert kinds == [*head, *["output_text.delta", "output_text.annotation.added"] * 3, *tail]
    added = [event.pop("annotation") for event in events if event["type"].endswith("annotation.added")]
    assert [rounded(each) for each in added] == list(map(rounded, data["output"][0]["content"][0]["annotations"]))
    assert "".join(event.get("delta", "") for event in events) == TEXT == events[-4]["text"]
    for event in events:
        TypeAdapter(types.ResponseStreamEvent).validate_python(without_annotations(event))
    types.Response.model_validate(without_annotations(data))


def rounded(entry: dict[str, Any]) -> dict[str, Any]:
    return {name: round(value, 4) if isinstance(value, float) else value for name, value in entry.items()}


def without_annotations(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: [] if name == "annotations" else without_annotations(item) for name, item in value.items()}
    return [without_annotations(item) for item in value] if isinstance(value, list) else value


def test_events_carry_their_types_as_names(server: Server) -> None:
    with server.send(json.dumps({"input": "Who?", "stream": True}).encode(), "/v1/responses") as connection:
        text = b""
        while b"[DONE]" not in text:
            text += connection.recv(1 << 16)
    assert b"event: response.output_text.delta\ndata: {" in text


def test_the_stream_of_the_client_grows_to_the_same_response(client: OpenAI) -> None:
    with client.responses.stream(model=NAME, input="Who?") as stream:
        deltas = "".join(event.delta for event in stream if event.type == "response.output_text.delta")
        final = stream.get_final_response()
    assert deltas == final.output_text == TEXT
    assert [each.score for each in annotations(final)] == [9, 2, None]


@pytest.mark.parametrize("stream", [False, True])
def test_the_text_may_hold_confidences(client: OpenAI, stream: bool) -> None:
    asked: dict[str, Any] = {"model": NAME, "input": "Who?", "extra_body": {"inline": " [{score}]"}}
    if stream:
        response = list(client.responses.create(**asked, stream=True))[-1].response
    else:
        response = client.responses.create(**asked)
    assert response.output_text == "Ada ran. [9]\n\nShe wrote a note. [2] And then"
    for each in annotations(response):
        assert response.output_text[each.start_index : each.end_index] == each.text


def test_sentences_that_are_left_out_have_annotations_without_length(client: OpenAI) -> None:
    response = client.responses.create(model=NAME, input="Who?", extra_body={"min_confidence": 1})
    assert response.output_text == ""
    assert [(each.kept, each.start_index, each.end_index) for each in annotations(response)] == [(False, 0, 0)] * 3


@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_that_is_cut_off_is_incomplete(client: OpenAI, stream: bool) -> None:
    asked: dict[str, Any] = {"model": NAME, "input": "Who?", "max_output_tokens": 5}
    if stream:
        last = list(client.responses.create(**asked, stream=True))[-1]
        assert last.type == "response.incomplete"
        response = last.response
    else:
        response = client.responses.create(**asked)
    assert response.status == response.output[0].status == "incomplete"
    assert response.incomplete_details is not None and response.incomplete_details.reason == "max_output_tokens"
    assert response.usage is not None and response.usage.output_tokens == 5


@pytest.mark.parametrize("inline", ["", " [{score}]", " [{confidence:.0%}]"])
def test_output_sent_back_as_input_has_the_tags_that_it_had(client: OpenAI, session: Session, inline: str) -> None:
    asked: Any = {"model": NAME, "extra_body": {"inline": inline}}
    items: list[Any] = [{"role": "user", "content": "Who?"}]
    answer = ANSWER.removesuffix(" And then")
    engine = session.engine
    assert isinstance(engine, Scripted)
    engine.answer, engine.known = answer, []
    try:
        items += [*client.responses.create(input=items, **asked).output, {"role": "user", "content": "When?"}]
        client.responses.create(input=items, **asked)
    finally:
        engine.answer, engine.known = ANSWER, engine.known[-1:]
    turns = [("user", "Who?"), ("assistant", answer), ("user", "When?")]
    assert last_prompt(session) == session.encoder.dialogue(turns)


def test_annotations_of_others_are_passed_over(client: OpenAI, session: Session) -> None:
    link = {"type": "url_citation", "start_index": 0, "end_index": 1, "title": "A", "url": "https://a.example"}
    part = {"type": "output_text", "text": "Ada ran.", "annotations": [link]}
    said: Any = {"type": "message", "role": "assistant", "content": [part], "id": "msg_1", "status": "completed"}
    client.responses.create(
        model=NAME, input=[{"role": "user", "content": "Who?"}, said, {"role": "user", "content": "?"}]
    )
    assert session.encoder.decode(last_prompt(session)).count("</confidence>") == 1


@pytest.mark.parametrize(
    ("given", "parameter", "words"),
    [
        ({"previous_response_id": "resp_1"}, "previous_response_id", "previous_response_id is not supported here"),
        ({"store": True}, "store", "store is not supported here; leave it out, or set it to false"),
        ({"tools": [{"type": "web_search"}]}, "tools", "tools is not supported here"),
        ({"reasoning": {"effort": "low"}}, "reasoning", "reasoning is not supported here"),
        ({"text": {"format": {"type": "json_object"}}}, "text", "text is not supported here"),
        ({"input": [{"type": "function_call", "name": "f", "call_id": "c", "arguments": "{}"}]}, "input[0].type",
         "Input should be 'message', not \"function_call\""),
        ({"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]},
         "input[0].content[0].type", "Input should be 'input_text' or 'output_text', not \"input_image\""),
        ({"input": [{"role": "user", "content": "x", "name": "Ann"}]}, "input[0].name", "Extra inputs"),
        ({"input": []}, "input", "at least 1"),
        ({"input": 5}, "input", "it is a number, expected a text or a list of items"),
        ({"input": [{"role": "assistant", "content": "x"}]}, "input", "in turn"),
        ({"input": "word " * 2000}, "input", "the input has"),
        ({"max_output_tokens": 0}, "max_output_tokens", "greater than or equal to 1"),
        ({"extra_body": {"n": 2}}, "n", "Input should be 1"),
        ({"extra_body": {"max_tokens": 5}}, "max_tokens", "did you mean"),
        ({"model": "other"}, "model", "no model 'other'"),
    ],
)  # fmt: skip
def test_what_is_not_supported_is_refused_by_name(
    client: OpenAI, given: dict[str, Any], parameter: str, words: str
) -> None:
    with pytest.raises(APIError) as refused:
        client.responses.create(**{"model": NAME, "input": "Who?", **given})
    assert refused.value.param == parameter
    assert words in refused.value.message


def test_scores_off_the_scale_are_refused(client: OpenAI) -> None:
    part = {"type": "output_text", "text": "A.", "annotations": [{"type": "confidence", "text": "A.", "score": 11}]}
    said: Any = {"type": "message", "role": "assistant", "content": [part]}
    with pytest.raises(BadRequestError, match="null or an integer between 0 and 10") as refused:
        client.responses.create(model=NAME, input=[said])
    assert refused.value.param == "input[0].content[0].annotations[0].score"


def test_the_client_raises_what_ends_a_stream(
    client: OpenAI, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any, **__: Any) -> Any:
        raise OSError("/secret/path")

    monkeypatch.setattr(session.engine, "generate", broken)
    with pytest.raises(APIError, match="the server failed; its log says how"):
        list(client.responses.create(model=NAME, input="Who?", stream=True))


def test_what_is_described_is_answered(server: Server) -> None:
    description = json.loads(server.get("/openapi.json"))
    assert description["openapi"] == "3.1.0" and description["security"] == [{"key": []}]
    for path, operations in description["paths"].items():
        body = operations["post"]["requestBody"]["content"]["application/json"]
        schema = description["components"]["schemas"][body["schema"]["$ref"].rpartition("/")[2]]
        assert all(each.get("description") for each in schema["properties"].values())
        if path == "/v1/labels":  # its examples are of answers that this server has not given
            continue
        assert "{score}" in schema["properties"]["inline"]["description"]
        assert any("inline" in example["value"] for example in body["examples"].values())
        for example in body["examples"].values():
            assert example["value"].keys() <= schema["properties"].keys() >= set(schema["required"])
            request = json.dumps(example["value"]).encode()
            if example["value"].get("stream"):
                assert streamed(server, request, path)
            else:
                assert post(server, request, path)[0] == 200
