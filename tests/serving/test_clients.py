"""Confidences reach those who ask by LangChain or LiteLLM, streamed and not, and come back from them in later turns."""

from __future__ import annotations

import json
import os
from typing import Any

import pytest
from pages import DOCS, blocks
from served import KEY, NAME, Server
from writer import Scripted

from lovec.taggers import Session

os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")  # it asks the network for prices of models otherwise
langchain = pytest.importorskip("langchain_openai", reason="the extra clients is not installed")
litellm = pytest.importorskip("litellm", reason="the extra clients is not installed")

pytestmark = [
    pytest.mark.clients,
    pytest.mark.filterwarnings("ignore:Pydantic serializer warnings"),  # of the type of our annotations
    pytest.mark.filterwarnings("ignore:.*the `ReadOnly` qualifier:UserWarning"),  # of LiteLLM's own types
]

ANSWER = "Ada ran. <confidence> 9 </confidence>\n\nShe wrote a note. <confidence> 2 </confidence>"
SHOWN = "Ada ran. [9]\n\nShe wrote a note. [2]"
TEXT = "Ada ran.\n\nShe wrote a note."


def was_asked_with_its_own_tags(session: Session) -> bool:
    """Whether the model has seen its first answer as it wrote it when it was asked the second time."""
    engine = session.engine
    assert isinstance(engine, Scripted)
    turns = [("user", "Who was Ada?"), ("assistant", ANSWER), ("user", "When?")]
    return engine.known[-1][0] == session.encoder.dialogue(turns)


def chat_model(server: Server, **more: Any) -> Any:
    return langchain.ChatOpenAI(model=NAME, base_url=f"{server.url}/v1", api_key=KEY, max_retries=0, **more)


def answered(model: Any, messages: list[Any], stream: bool) -> Any:
    """What LangChain's user has of a reply, streamed or not."""
    if not stream:
        return model.invoke(messages)
    first, *rest = model.stream(messages)
    return sum(rest, first)


@pytest.mark.parametrize("stream", [False, True])
def test_langchain_keeps_confidences_in_the_text(server: Server, session: Session, stream: bool) -> None:
    model = chat_model(server, extra_body={"inline": " [{score}]"})
    reply = answered(model, [("user", "Who was Ada?")], stream)
    assert reply.content == SHOWN
    answered(model, [("user", "Who was Ada?"), reply, ("user", "When?")], stream)
    assert was_asked_with_its_own_tags(session)


@pytest.mark.parametrize("version", ["responses/v1", "v1"])
@pytest.mark.parametrize("inline", ["", " [{score}]", " [{confidence:.0%}]"])
@pytest.mark.parametrize("stream", [False, True])
def test_langchain_keeps_annotations(server: Server, session: Session, stream: bool, inline: str, version: str) -> None:
    model = chat_model(server, use_responses_api=True, output_version=version, extra_body={"inline": inline})
    reply = answered(model, [("user", "Who was Ada?")], stream)
    [block] = reply.content
    found = [each.get("value", each) for each in block["annotations"]]  # "v1" wraps those that it does not know
    assert [(each["text"], each["score"]) for each in found] == [("Ada ran.", 9), ("She wrote a note.", 2)]
    assert all(0 < each["confidence"] < 1 and each["type"] == "confidence" for each in found)
    assert [block["text"][each["start_index"] : each["end_index"]] for each in found] == [e["text"] for e in found]
    answered(model, [("user", "Who was Ada?"), reply, ("user", "When?")], stream)
    assert was_asked_with_its_own_tags(session)


def asked(server: Server, **more: Any) -> dict[str, Any]:
    return {"model": f"openai/{NAME}", "api_base": f"{server.url}/v1", "api_key": KEY, "num_retries": 0, **more}


@pytest.mark.parametrize("stream", [False, True])
def test_litellm_keeps_both(server: Server, session: Session, stream: bool) -> None:
    question = {"role": "user", "content": "Who was Ada?"}
    request = asked(server, extra_body={"inline": " [{score}]"})
    if stream:
        deltas = [c.choices[0].delta for c in litellm.completion(messages=[question], stream=True, **request)]
        text = "".join(delta.content or "" for delta in deltas)
        entries = [entry for delta in deltas for entry in getattr(delta, "confidence", [])]
    else:
        message = litellm.completion(messages=[question], **request).choices[0].message
        text, entries = message.content, message.provider_specific_fields["confidence"]
    assert text == SHOWN and [(entry["text"], entry["score"]) for entry in entries] == [
        ("Ada ran.", 9),
        ("She wrote a note.", 2),
    ]
    answer = {"role": "assistant", "content": text}
    litellm.completion(messages=[question, answer, {"role": "user", "content": "When?"}], **request)
    assert was_asked_with_its_own_tags(session)


@pytest.mark.parametrize("stream", [False, True])
def test_litellm_keeps_annotations(server: Server, stream: bool) -> None:
    reply = litellm.responses(input="Who was Ada?", stream=stream, **asked(server))
    if stream:
        events = list(reply)
        found = [event.annotation for event in events if "annotation.added" in event.type]
        assert "".join(event.delta for event in events if "output_text.delta" in event.type) == TEXT
    else:
        found = reply.output[0]["content"][0]["annotations"]
        assert reply.output_text == TEXT
    assert [(each["text"], each["score"]) for each in found] == [("Ada ran.", 9), ("She wrote a note.", 2)]


PRINTED = [block for block in blocks(DOCS / "serve.md", "python") if "8080" in block and "/v1/labels" not in block]
"""The page's blocks that show confidences; those that send verdicts are tested in test_feedback.py."""


@pytest.mark.parametrize("code", PRINTED, ids=lambda code: code.split("\n")[0].split()[1])
def test_what_the_page_prints_runs(server: Server, code: str, capsys: pytest.CaptureFixture[str]) -> None:
    replaced = code.replace("http://127.0.0.1:8080", server.url).replace('"none"', json.dumps(KEY))
    exec(replaced.replace('"dpo"', json.dumps(NAME)).replace("openai/dpo", f"openai/{NAME}"), {})
    shown = capsys.readouterr().out
    assert "Ada ran." in shown and "She wrote a note." in shown
    assert ("%]" in shown) == ("inline" in code)
