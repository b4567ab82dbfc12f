"""Confidences in the text of replies, in words of the client's choice, and what later turns make of them."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai import OpenAI
from served import KEY, NAME, Server, chat, post, running, streamed
from writer import Scripted

from lovec.serving.app import make_app
from lovec.serving.inline import Inline, check_template
from lovec.taggers import Session
from lovec.tagging import ApiModel, ApiTagger
from lovec.tags import DEFAULT_TAGS, TagFormat, strip
from lovec.types import LovecError, Scale

SCORE, PERCENT = " <confidence> {score} </confidence>", " [{confidence:.0%}]"
TEMPLATES = [
    SCORE,
    PERCENT,
    " (sure: {score} of 10, {confidence})",
    '{"score": {score}, "p": {confidence:.3f}}',
    "\n{score}/",
]
ANSWER = (
    "Ada ran. <confidence> 9 </confidence>\n\nShe wrote a note. <confidence> 10 </confidence> "
    "It rained. <confidence> 11 </confidence> And then"
)
SHOWN = "Ada ran. [9]\n\nShe wrote a note. [10] It rained. And then"


@pytest.fixture(scope="module")
def server(session: Session) -> Iterator[Server]:
    with running(replace(session), inline=" [{score}]") as server:
        yield server


def content(server: Server, body: bytes) -> str:
    """The text of a reply; that of a stream must be the same."""
    status, data = post(server, body)
    assert status == 200, data
    events = streamed(server, body[:-1] + b', "stream": true}')
    text = data["choices"][0]["message"]["content"]
    assert "".join(event["choices"][0]["delta"].get("content", "") for event in events) == text
    return text


def test_confidences_stand_behind_their_sentences_streamed_and_not(server: Server) -> None:
    assert content(server, chat(inline=" [{score}]")) == SHOWN
    message = post(server, chat(inline=PERCENT))[1]["choices"][0]["message"]
    first, second, *others = message["confidence"]
    shown = "Ada ran. [{:.0%}]\n\nShe wrote a note. [{:.0%}] It rained. And then"
    assert message["content"] == shown.format(first["confidence"], second["confidence"])
    assert [entry["text"] for entry in message["confidence"]] == [
        "Ada ran.",
        "She wrote a note.",
        "It rained.",
        "And then",
    ]
    assert all(entry["confidence"] is None for entry in others)


def test_the_servers_template_holds_where_a_request_has_none(server: Server) -> None:
    plain = "Ada ran.\n\nShe wrote a note. It rained. And then"
    assert content(server, chat()) == content(server, chat(inline=None)) == SHOWN
    assert content(server, chat(inline="")) == plain


def test_sentences_that_are_left_out_take_their_confidences_with_them(server: Server) -> None:
    _, data = post(server, chat(min_confidence=0))
    assert data["choices"][0]["message"]["content"] == "Ada ran. [9]\n\nShe wrote a note. [10]"


def test_stops_are_looked_for_in_the_text_without_confidences(server: Server) -> None:
    assert content(server, chat(stop="[")) == SHOWN
    assert content(server, chat(stop="She")) == "Ada ran. [9]"


def test_given_text_is_shown_with_confidences_where_it_states_something(server: Server) -> None:
    text = "# Life\n\nAda ran. She wrote a note."
    body: dict[str, Any] = {"text": text, "question": "Who?", "inline": PERCENT}
    _, data = post(server, json.dumps(body).encode(), "/v1/tag")
    heading, *sentences = data["confidence"]
    assert heading["kind"] == "heading"
    first, second = (f"{entry['text']} [{entry['confidence']:.0%}]" for entry in sentences)
    assert data["content"] == f"# Life\n\n{first} {second}"
    events = streamed(server, json.dumps({**body, "stream": True}).encode(), "/v1/tag")
    assert "".join(event["content"] for event in events) == data["content"]


@pytest.mark.parametrize("template", [SCORE, " [{score}: {confidence:.1%}]"])
@pytest.mark.parametrize("stream", [False, True])
def test_the_model_sees_the_scores_of_a_text_as_its_own_tags(
    session: Session, server: Server, template: str, stream: bool
) -> None:
    client = OpenAI(base_url=f"{server.url}/v1", api_key=KEY, max_retries=0)
    asked: Any = {"model": NAME, "extra_body": {"inline": template}}
    messages: list[Any] = [{"role": "user", "content": "Who was Ada?"}]
    for _ in range(2):
        if stream:
            chunks = client.chat.completions.create(messages=messages, stream=True, **asked)
            text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
        else:
            text = client.chat.completions.create(messages=messages, **asked).choices[0].message.content
        messages += [{"role": "assistant", "content": text}, {"role": "user", "content": "When?"}]
    client.chat.completions.create(messages=messages, **asked)
    answer = ANSWER.replace(" <confidence> 11 </confidence>", "")  # that is not a score
    turns = [("user", "Who was Ada?"), ("assistant", answer), ("user", "When?"), ("assistant", answer)]
    assert last_prompt(session) == session.encoder.dialogue([*turns, ("user", "When?")])


def test_confidences_are_removed_and_their_sentences_scored_again_or_as_they_come_back(
    session: Session, server: Server
) -> None:
    def prompt(inline: str, text: str, **more: Any) -> list[int]:
        answer = {"role": "assistant", "content": text, **more}
        messages = [{"role": "user", "content": "Who?"}, answer, {"role": "user", "content": "When?"}]
        assert post(server, json.dumps({"messages": messages, "inline": inline}).encode())[0] == 200
        return last_prompt(session)

    shown, plain = "Ada ran. [83%]\n\nShe wrote a note. [7%]", "Ada ran.\n\nShe wrote a note."
    assert prompt(PERCENT, shown) == prompt("", plain)
    known = [{"text": "Ada ran.", "score": 3}, {"text": "She wrote a note.", "score": 4}]
    tagged = "Ada ran. <confidence> 3 </confidence>\n\nShe wrote a note. <confidence> 4 </confidence>"
    expected = session.encoder.dialogue([("user", "Who?"), ("assistant", tagged), ("user", "When?")])
    assert prompt(PERCENT, shown, confidence=known) == expected


@pytest.mark.parametrize("tagging", [*TEMPLATES, ""])
def test_sentences_written_without_white_space_between_them_are_kept_apart(
    session: Session, server: Server, tagging: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = {"Ada ran.": 9, "It rained.": 10, "She wrote.": 8}
    raw = "".join(f"{text}{session.encoder.tags.tag(score)}" for text, score in written.items()) + "End"
    plain = strip(raw, session.encoder.tags)
    assert plain == "Ada ran. It rained. She wrote. End"
    monkeypatch.setattr(session.engine, "answer", raw)

    def told(**more: Any) -> str:
        return content(server, chat(f"Without white space: {tagging}", **more))

    shown = told(inline=tagging)
    assert told(inline=tagging, stop=".It") == shown  # a stop is looked for in what readers see
    assert told(inline="", stop=". It") == "Ada ran."
    restored = Inline(tagging, session.encoder.tags).restored(shown)
    assert strip(restored, session.encoder.tags) == plain
    assert ("<confidence>" in restored) == ("{score}" in tagging)


def test_what_users_say_is_left_as_it_is(session: Session, server: Server) -> None:
    post(server, chat("Is it 7? [7]"))
    assert last_prompt(session) == session.encoder.dialogue([("user", "Is it 7? [7]")])


def last_prompt(session: Session) -> list[int]:
    engine = session.engine
    assert isinstance(engine, Scripted)
    return engine.known[-1][0]


@pytest.mark.parametrize(
    ("template", "words"),
    [
        ("[sure]", "neither {score} nor {confidence}"),
        (" [{scores}]", "neither {score} nor {confidence}"),
        (" [{confidence:.99f}]", "neither {score} nor {confidence}"),
        (" [{confidence:1000000000}]", "neither {score} nor {confidence}"),
        (" [{score.__class__}]", "neither {score} nor {confidence}"),
        (" {score}\n", "only numbers"),
        ("[{score}]" + "x" * 200, "209 characters, expected at most 200"),
    ],
)
def test_a_template_that_cannot_be_used_is_refused(server: Server, template: str, words: str) -> None:
    with pytest.raises(LovecError) as refused:
        check_template(template)
    assert words in str(refused.value)
    for path, body in (
        ("/v1/chat/completions", json.loads(chat())),
        ("/v1/responses", {"input": "Who?"}),
        ("/v1/tag", {"text": "Ada ran.", "question": "Who?"}),
    ):
        status, data = post(server, json.dumps({**body, "inline": template}).encode(), path)
        assert (status, data["error"]["param"], data["error"]["code"]) == (400, "inline", "invalid_value")
        assert words in data["error"]["message"]


def test_an_application_refuses_a_template_without_a_number() -> None:
    with pytest.raises(LovecError, match="the template has neither"):
        make_app(ApiTagger(ApiModel("gpt", base_url="http://127.0.0.1:9/v1")), "gpt", inline="[sure]")


def test_the_command_refuses_it_before_it_loads_a_model() -> None:
    command = [sys.executable, "-m", "lovec.cli", "serve", "--model", "world-small", "--inline", "[{sure}]"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 1 and done.stderr.count("\n") == 1
    assert "--inline: the template has neither {score} nor {confidence}" in done.stderr


numbers = st.tuples(st.integers(0, 10), st.floats(0, 1))


@given(st.sampled_from(TEMPLATES), st.lists(numbers, min_size=1, max_size=4))
def test_what_was_written_is_found(template: str, given: list[tuple[int, float]]) -> None:
    inline = Inline(template, DEFAULT_TAGS)
    shown = " ".join(f"Ada ran.{inline.tag(score, confidence)}" for score, confidence in given)
    tagged = " ".join(f"Ada ran. {DEFAULT_TAGS.tag(score)}" for score, _ in given)
    assert inline.restored(shown) == (tagged if "{score}" in template else " ".join(["Ada ran."] * len(given)))


def test_scores_are_in_the_words_of_the_scale() -> None:
    tags = TagFormat(scale=Scale(("unlikely", "likely", "very likely")))
    inline = Inline(" ({score})", tags)
    shown = f"Ada ran.{inline.tag(2, None)} It rained.{inline.tag(0, 0.5)} It was noon.{inline.tag(None, 0.5)}"
    assert shown == "Ada ran. (very likely) It rained. (unlikely) It was noon."
    assert inline.restored(shown) == f"Ada ran. {tags.tag(2)} It rained. {tags.tag(0)} It was noon."


def test_a_client_may_strip_the_text() -> None:
    for template in (" [{score}] ", " ({score})\n\n", " <{confidence}>\t", "~{score} "):
        inline = Inline(template, DEFAULT_TAGS)
        shown = f"Ada ran.{inline.tag(7, 0.7)} It rained.{inline.tag(2, 0.2)}"
        assert shown != shown.strip() and inline.restored(shown.strip()) == inline.restored(shown)
        assert strip(inline.restored(shown), DEFAULT_TAGS) == "Ada ran. It rained."


@pytest.mark.parametrize(
    ("template", "text"),
    [
        ("x" + "{score}" * 27, ("Ax" + "10" * 40) * 5_000),
        ("{confidence:.0%}!", "9" * 400_000),
        ("{score}{confidence:.0f}{score}!", "1" * 400_000),
    ],
)
def test_hostile_texts_take_no_time(template: str, text: str) -> None:
    begin = time.process_time()
    assert Inline(template, DEFAULT_TAGS).restored(text) == text
    assert time.process_time() - begin < 2


def test_numbers_inside_a_sentence_are_left() -> None:
    inline = Inline(" [{score}]", DEFAULT_TAGS)
    for text in ("Ada [9], who ran.", "[9] Ada ran.", "Ada ran. [99]", "Ada ran. [9]."):
        assert inline.restored(text) == text
