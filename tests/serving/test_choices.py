"""What requests ask for beyond one greedy answer: stops, several answers, top_p, and pages of other origins."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from openai import BadRequestError, NotFoundError, OpenAI
from served import KEY, NAME, Server, chat, post, running, streamed
from writer import Scripted

from lovec.cli.serve import checked_origin, served_name
from lovec.core.hub import SHIPPED
from lovec.serving.wire import ChatRequest, RequestRefused
from lovec.taggers import Session, open_session
from lovec.types import DEFAULT_SCALE, LovecError, Sampling

ANSWER = (
    "Ada ran. <confidence> 9 </confidence>\n\nShe wrote a note. <confidence> 2 </confidence> "
    "It was noon, in town. <confidence> 5 </confidence> And then"
)
PIECES = ["Ada ran.", "\n\nShe wrote a note.", " It was noon, in town.", " And then"]


@pytest.fixture(scope="module")
def server(session: Session) -> Iterator[Server]:
    with running(replace(session), cors=["https://page.example"], max_choices=3, max_waiting=4) as server:
        yield server


@pytest.fixture(autouse=True)
def engine(session: Session) -> Scripted:
    engine = session.engine
    assert isinstance(engine, Scripted)
    engine.answer, engine.known = ANSWER, []
    engine.asked.clear()
    return engine


def rounded(entry: dict[str, Any]) -> dict[str, Any]:
    """An entry whose confidence does not depend on what else was computed at the time."""
    return entry if entry["confidence"] is None else {**entry, "confidence": round(entry["confidence"], 4)}


def choices(server: Server, **more: Any) -> list[dict[str, Any]]:
    """The choices of a response, which a stream must equal."""
    status, data = post(server, chat(**more))
    assert status == 200, data
    events = streamed(server, chat(stream=True, stream_options={"include_usage": True}, **more))
    assert events[-1]["usage"] == data["usage"]
    for choice in data["choices"]:
        parts = [part for event in events for part in event["choices"] if part["index"] == choice["index"]]
        assert parts[0]["delta"]["role"] == "assistant" and parts[-1]["finish_reason"] == choice["finish_reason"]
        assert "".join(part["delta"].get("content", "") for part in parts) == choice["message"]["content"]
        entries = [entry for part in parts for entry in part["delta"].get("confidence", [])]
        placed = [{"index": at, **rounded(entry)} for at, entry in enumerate(choice["message"]["confidence"])]
        assert [rounded(entry) for entry in entries] == placed
    return data["choices"]


@pytest.mark.parametrize(
    ("stop", "content", "last"),
    [
        (None, "".join(PIECES), "the answer ends without a tag"),
        ([], "".join(PIECES), "the answer ends without a tag"),
        ("nowhere", "".join(PIECES), "the answer ends without a tag"),
        ("confidence", "".join(PIECES), "the answer ends without a tag"),  # tags are no part of the text
        ("<", "".join(PIECES), "the answer ends without a tag"),
        ("\n", PIECES[0], None),
        ("\n\n", PIECES[0], None),
        ("Ada", "", None),
        (["noon", "note"], PIECES[0] + "\n\nShe wrote a", "cut by stop"),
        ("in town", "".join(PIECES[:2]) + " It was noon,", "cut by stop"),
        (".\n\nShe", PIECES[0], None),  # it begins in a sentence that has been sent
        ("note. It", "".join(PIECES[:2]), None),
        ("then", "".join(PIECES[:3]) + " And", "cut by stop"),
        (["wrote a note", "rote"], PIECES[0] + "\n\nShe w", "cut by stop"),  # the first to be complete
    ],
)
def test_an_answer_ends_before_a_stop(server: Server, stop: Any, content: str, last: str | None) -> None:
    [choice] = choices(server, stop=stop)
    message = choice["message"]
    assert message["content"].rstrip() == content and choice["finish_reason"] == "stop"
    problems = [entry.get("problem") for entry in message["confidence"]]
    assert problems[-1:] == ([last] if message["confidence"] else []) and not any(problems[:-1])
    scores = [9, 2, 5][: len(problems) - (last is not None)]
    assert [entry["score"] for entry in message["confidence"]] == [*scores, *([None] if last else [])]


def test_a_stop_ends_the_writing(server: Server, engine: Scripted) -> None:
    engine.answer = "Ada ran. " * 50
    [choice] = choices(server, stop="ran", max_tokens=500)
    assert choice["message"]["content"].strip() == "Ada"
    usage = post(server, chat(stop="ran", max_tokens=500))[1]["usage"]
    assert 0 < usage["completion_tokens"] <= len("Ada ran")


def test_sentences_have_the_mean_readout_without_a_calibration(server: Server, session: Session) -> None:
    from lovec.taggers import FreeFormTagger
    from lovec.types import Record

    tagger = FreeFormTagger(session.engine, session.encoder, Sampling(200), "mean")
    [record] = tagger.tag([Record("a", "Who was Ada?")])
    [choice] = choices(server)
    expected = [s.confidence for s in record.sentences]
    assert [entry["confidence"] for entry in choice["message"]["confidence"]] == pytest.approx(expected)
    assert expected[0] not in (0.9, None)  # not the stated one


def test_several_answers_come_together(server: Server, engine: Scripted) -> None:
    found = choices(server, n=3, temperature=1, top_p=0.5, seed=1)
    assert [choice["index"] for choice in found] == [0, 1, 2]
    assert {choice["message"]["content"] for choice in found} == {"".join(PIECES)}
    assert {(s.temperature, s.top_p, s.seed, s.n) for s in engine.asked} == {(1.0, 0.5, 1, 1)}
    one, three = (post(server, chat(n=n, temperature=1))[1]["usage"] for n in (1, 3))
    assert three["completion_tokens"] == 3 * one["completion_tokens"] and three["prompt_tokens"] == one["prompt_tokens"]


def test_the_streaming_helper_of_the_client_collects_all_sentences(server: Server) -> None:
    asked: Any = {"model": NAME, "messages": [{"role": "user", "content": "Who was Ada?"}], "n": 2, "temperature": 1}
    with server.client().chat.completions.stream(**asked) as stream:
        found = stream.get_final_completion()
    for choice in found.choices:
        message: Any = choice.message
        assert message.content == "".join(PIECES)
        assert [(entry["index"], entry["score"]) for entry in message.confidence] == [(0, 9), (1, 2), (2, 5), (3, None)]
        assert message.problems == ["sentence 4: the answer ends without a tag"]


def test_answers_of_a_seed_differ_from_each_other_and_stay_equal(model: str) -> None:
    with open_session(model, instruction="Rate.", device="cpu") as session, running(session) as server:

        def texts(n: int, **more: Any) -> list[str]:
            body = chat(n=n, temperature=1.5, max_tokens=12, **{"seed": 3, **more})
            return [choice["message"]["content"] for choice in post(server, body)[1]["choices"]]

        first = texts(3)
        assert len(set(first)) == 3 and texts(3) == first and texts(1) == first[:1]
        greedy = post(server, chat(max_tokens=12))[1]["choices"][0]["message"]["content"]
        assert texts(2, top_p=1e-6) == [greedy] * 2


def test_more_answers_than_the_queue_holds_are_refused_together(server: Server, engine: Scripted) -> None:
    engine.pause = 0.01
    body = chat(n=3, temperature=1)
    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(lambda _: post(server, body), range(4)))
    engine.pause = 0.0
    assert {status for status, _ in answers} == {200, 429}
    error = next(data["error"] for status, data in answers if status == 429)
    assert error["code"] == "rate_limit_exceeded" and "try again later" in error["message"]
    assert {len(data["choices"]) for status, data in answers if status == 200} == {3}
    assert server.idle() and post(server, chat())[0] == 200


def test_more_answers_than_the_queue_ever_holds_are_refused_for_good(session: Session) -> None:
    with running(replace(session), max_choices=8, max_waiting=2) as server:
        assert post(server, chat(n=2, temperature=1, max_tokens=4))[0] == 200
        status, data = post(server, chat(n=3, temperature=1, max_tokens=4))
    assert (status, data["error"]["param"], data["error"]["code"]) == (400, "n", "invalid_value")
    assert "n is 3, expected at most 2 here" in data["error"]["message"]


@pytest.mark.parametrize(
    ("more", "parameter", "code", "words"),
    [
        ({"n": 4, "temperature": 1}, "n", "invalid_value", "expected at most 3 here"),
        ({"n": 2}, "n", "invalid_value", "all answers are the same; set temperature"),
        ({"n": 0}, "n", "invalid_value", "greater than or equal to 1"),
        ({"n": True}, "n", "invalid_type", "valid integer"),
        ({"stop": ["a", "b", "c", "d", "e"]}, "stop", "invalid_value", "at most 4 items"),
        ({"stop": ""}, "stop[0]", "invalid_value", "at least 1 character"),
        ({"stop": [1]}, "stop[0]", "invalid_type", "valid string"),
        ({"stop": {}}, "stop", "invalid_type", "it is an object, expected a text or a list of texts"),
        ({"top_p": 0}, "top_p", "invalid_value", "greater than 0"),
        ({"top_p": 1.5}, "top_p", "invalid_value", "less than or equal to 1"),
        ({"top_p": "1"}, "top_p", "invalid_type", "valid number"),
        (
            {"store": True},
            "store",
            "unsupported_value",
            "store is not supported here; leave it out, or set it to false",
        ),
        ({"reasoning_effort": "high"}, "reasoning_effort", "unsupported_value", 'or set it to "none"'),
        ({"logprobs": True}, "logprobs", "unsupported_value", "or set it to false"),
        ({"audio": {"voice": "x"}}, "audio", "unsupported_parameter", "audio is not supported here; leave it out"),
        ({"web_search_options": {}}, "web_search_options", "unsupported_parameter", "leave it out"),
        ({"top_k": 5}, "top_k", "unknown_parameter", "did you mean 'top_p'"),
        ({"stream_options": {"x": 1}}, "stream_options.x", "unknown_parameter", "Extra inputs"),
        (
            {"messages": [{"role": "user", "content": "x"}, {"role": "assistant", "content": None}]},
            "messages[1].content",
            "invalid_type",
            "it is null, expected a text or a list of text parts",
        ),
        ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content", "invalid_type", "it is a number"),
        (
            {"messages": [{"role": "assistant", "content": None, "tool_calls": [{"id": "1"}]}]},
            "messages[0].tool_calls",
            "unsupported_value",
            "tool_calls is not supported here",
        ),
        ({"messages": [{"role": "user"}]}, "messages[0].content", "missing_required_parameter", "Field required"),
        ({"messages": [{"role": "robot", "content": "x"}]}, "messages[0].role", "invalid_value", "Input should be"),
        (
            {"messages": [{"role": "user", "content": "x", "name": "a"}]},
            "messages[0].name",
            "unsupported_parameter",
            "messages[0].name is not supported here",
        ),
        (
            {"messages": [{"role": "user", "content": "x", "y": 1}]},
            "messages[0].y",
            "unknown_parameter",
            "unknown field",
        ),
    ],
)
def test_what_is_not_supported_is_refused_by_name(
    server: Server, more: dict[str, Any], parameter: str, code: str, words: str
) -> None:
    status, data = post(server, chat(**more))
    error = data["error"]
    assert set(error) == {"message", "type", "param", "code"} and status == 400
    assert (error["param"], error["code"], error["type"]) == (parameter, code, "invalid_request_error")
    assert words in error["message"]


def test_every_parameter_of_openais_client_is_known() -> None:
    from openai.types.chat.completion_create_params import CompletionCreateParamsNonStreaming

    names = set(CompletionCreateParamsNonStreaming.__annotations__) - {"messages"}
    for name in names:
        try:
            ChatRequest.parse({**json.loads(chat()), name: object()}, NAME, 100, DEFAULT_SCALE)
        except RequestRefused as error:
            assert "unknown" not in str(error), name


def test_the_clients_own_answer_can_be_sent_back(server: Server) -> None:
    client = OpenAI(base_url=f"{server.url}/v1", api_key=KEY, max_retries=0)
    ask: Any = {"model": NAME, "messages": [{"role": "user", "content": "Who was Ada?"}]}
    message = client.chat.completions.create(**ask).choices[0].message
    again = [*ask["messages"], message.model_dump(), {"role": "user", "content": "When?"}]
    assert client.chat.completions.create(model=NAME, messages=again).choices[0].message.content
    found = client.chat.completions.create(**ask, n=2, temperature=1.0, top_p=0.9, stop=["She"])
    assert [choice.message.content for choice in found.choices] == [PIECES[0]] * 2
    with pytest.raises(BadRequestError) as refused:
        client.chat.completions.create(**ask, frequency_penalty=1.0)
    assert (refused.value.param, refused.value.code) == ("frequency_penalty", "unsupported_value")
    [model] = client.models.list()
    assert model.id == NAME and model.created > 0 and model.model_extra["scale"] == list(DEFAULT_SCALE.words)


def test_a_model_can_be_asked_for_by_name(session: Session) -> None:
    name = "org/Model-8B"
    with running(replace(session), name=name) as server:
        client = OpenAI(base_url=f"{server.url}/v1", api_key=KEY, max_retries=0)
        assert client.models.retrieve(name) == client.models.list().data[0]
        with pytest.raises(NotFoundError) as refused:
            client.models.retrieve("org/other")
        assert (refused.value.param, refused.value.code) == ("model", "model_not_found")
        assert ask(server, "GET", f"/v1/models/{name}")[0] == 401
        assert ask(server, "HEAD", "/v1/models", Authorization=f"Bearer {KEY}")[0] == 200
        status, headers = ask(server, "POST", f"/v1/models/{name}", Authorization=f"Bearer {KEY}")
        assert (status, "GET" in headers["Allow"]) == (405, True)
        counted = server.get("/metrics")
    assert 'path="/v1/models/{name:path}",status="404"' in counted and "org/" not in counted


def test_a_given_text_is_streamed_sentence_by_sentence(server: Server) -> None:
    body = {"text": "Ada ran. She wrote a note.\n\nIt was noon.", "question": "Who was Ada?"}
    whole = post(server, json.dumps(body).encode(), "/v1/tag")[1]
    events = streamed(server, json.dumps({**body, "stream": True}).encode(), "/v1/tag")
    assert [len(event["confidence"]) for event in events] == [1, 1, 1, 0]
    entries = [entry for event in events for entry in event["confidence"]]
    assert [entry["text"] for entry in entries] == [entry["text"] for entry in whole["confidence"]]
    assert [e["confidence"] for e in entries] == pytest.approx([e["confidence"] for e in whole["confidence"]])
    assert events[-1]["problems"] == whole["problems"] == [] and events[0]["object"] == "tagged_text.chunk"


# Pages of other origins


def ask(server: Server, method: str, path: str = "/v1/chat/completions", **headers: str) -> tuple[int, Any]:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    request = urllib.request.Request(f"{server.url}{path}", chat() if method == "POST" else None, named, method=method)
    try:
        with urllib.request.urlopen(request, timeout=60) as response:
            return response.status, response.headers
    except urllib.error.HTTPError as error:
        return error.code, error.headers


PREFLIGHT = {"Access_Control_Request_Method": "POST", "Access_Control_Request_Headers": "authorization,content-type"}
ALLOWED = "Access-Control-Allow-Origin"


def test_a_named_origin_may_ask_with_the_key(server: Server) -> None:
    status, headers = ask(server, "OPTIONS", Origin="https://page.example", **PREFLIGHT)
    assert status == 200 and headers[ALLOWED] == "https://page.example" and "Origin" in headers["Vary"]
    assert (
        "authorization" in headers["Access-Control-Allow-Headers"] and "POST" in headers["Access-Control-Allow-Methods"]
    )
    kind = {"Content_Type": "application/json"}
    status, headers = ask(server, "POST", Origin="https://page.example", Authorization=f"Bearer {KEY}", **kind)
    assert status == 200 and headers[ALLOWED] == "https://page.example"
    status, headers = ask(server, "POST", Origin="https://page.example", **kind)
    assert status == 401 and headers[ALLOWED] == "https://page.example"  # its page can read why


@pytest.mark.parametrize("origin", ["https://other.example", "http://page.example", "https://page.example:8", "null"])
def test_other_origins_may_not(server: Server, origin: str) -> None:
    status, headers = ask(server, "OPTIONS", Origin=origin, **PREFLIGHT)
    assert status == 400 and headers[ALLOWED] is None
    status, headers = ask(server, "GET", "/v1/models", Origin=origin, Authorization=f"Bearer {KEY}")
    assert headers[ALLOWED] is None


@pytest.mark.parametrize("cors", [[], ["*"]])
def test_no_origin_or_any(session: Session, cors: list[str]) -> None:
    with running(replace(session), cors=cors) as server:
        status, headers = ask(server, "OPTIONS", Origin="https://a.example", **PREFLIGHT)
        assert (status, headers[ALLOWED]) == ((200, "*") if cors else (401, None))
        assert headers["Access-Control-Allow-Credentials"] is None


@pytest.mark.parametrize("origin", ["*", "https://a.example", "http://localhost:3000", "http://[::1]:8", "HTTPS://A.B"])
def test_origins_are_as_browsers_send_them(origin: str) -> None:
    assert checked_origin(origin) == origin.lower()


@pytest.mark.parametrize("origin", ["", "a.example", "https://a.example/", "https://", "null", "https://*.a", "**"])
def test_other_words_are_no_origins(origin: str) -> None:
    with pytest.raises(LovecError, match="expected an origin as browsers send it"):
        checked_origin(origin)


@pytest.mark.parametrize(
    ("model", "adapter", "name"),
    [
        ("org/Model-8B", None, "org/Model-8B"),
        ("tiny-llama", None, "tiny-llama"),
        ("org/Model-8B", "runs/dpo/adapter", "dpo"),
        ("/models/mine", None, "mine"),
        ("/hub/models--org--Model-8B/snapshots/0123abcd", None, "org/Model-8B"),
        ("/models/mine/", "/a/b/my-adapter", "my-adapter"),
        *(("smollm2", str(folder), shipped) for shipped, folder in SHIPPED.items()),
    ],
)
def test_names_of_models_are_no_paths(model: str, adapter: str | None, name: str) -> None:
    session: Any = SimpleNamespace(model=model, adapter=adapter)
    assert served_name(session) == name and Path(name).parent != Path("/")
