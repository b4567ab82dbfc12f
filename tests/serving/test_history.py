"""Conversations: what the model sees of its earlier answers, however much of them a client sends back."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai import OpenAI
from served import KEY, NAME, Server, post, running, until
from writer import Scripted

from lovec.serving import service
from lovec.serving.history import pieces_of
from lovec.serving.inline import Inline
from lovec.serving.wire import SentBack, Turn
from lovec.taggers import IterativeTagger, Session
from lovec.tags import DEFAULT_TAGS, parse
from lovec.types import Record, Sentence

ANSWER = "Ada ran. <confidence> 9 </confidence>\n\nShe wrote a note. <confidence> 2 </confidence>"
PLAIN = "Ada ran.\n\nShe wrote a note."
PLAINLY = Inline("", DEFAULT_TAGS)


@pytest.fixture(scope="module")
def server(session: Session) -> Iterator[Server]:
    with running(replace(session), max_waiting=4) as server:
        yield server


@pytest.fixture
def client(server: Server) -> OpenAI:
    return OpenAI(base_url=f"{server.url}/v1", api_key=KEY, max_retries=0)


def question(text: str) -> Any:
    return {"role": "user", "content": text}


def last_prompt(session: Session) -> list[int]:
    engine = session.engine
    assert isinstance(engine, Scripted)
    return engine.known[-1][0]


def asked(client: OpenAI, messages: list[Any], stream: bool) -> dict[str, Any]:
    """The answer as a client keeps it: all that came, or, of a stream, its text."""
    if not stream:
        return client.chat.completions.create(model=NAME, messages=messages).choices[0].message.model_dump()
    chunks = client.chat.completions.create(model=NAME, messages=messages, stream=True)
    return {"role": "assistant", "content": "".join(chunk.choices[0].delta.content or "" for chunk in chunks)}


def test_an_answer_sent_back_has_the_tags_that_it_had(client: OpenAI, session: Session) -> None:
    messages = [question("Who was Ada?")]
    for _ in range(2):
        messages += [asked(client, messages, stream=False), question("When?")]
    client.chat.completions.create(model=NAME, messages=messages)
    turns = [("user", "Who was Ada?"), ("assistant", ANSWER), ("user", "When?"), ("assistant", ANSWER)]
    assert last_prompt(session) == session.encoder.dialogue([*turns, ("user", "When?")])


@pytest.mark.parametrize("stream", [False, True])
def test_a_text_sent_back_is_scored_as_in_iterative_tagging(client: OpenAI, session: Session, stream: bool) -> None:
    messages = [question("Who was Ada?")]
    messages += [{"role": "assistant", "content": asked(client, messages, stream)["content"]}, question("When?")]
    asked(client, messages, stream)
    record = Record("a", "Who was Ada?", sentences=(Sentence("Ada ran."), Sentence("She wrote a note.")))
    [tagged] = IterativeTagger(session.engine, session.encoder).tag([record])
    first, second = (session.encoder.tags.tag(s.score) for s in tagged.sentences if s.score is not None)
    answer = f"Ada ran. {first}\n\nShe wrote a note. {second}"
    expected = [("user", "Who was Ada?"), ("assistant", answer), ("user", "When?")]
    assert last_prompt(session) == session.encoder.dialogue(expected)


def test_later_answers_are_scored_behind_the_tags_of_earlier_ones(client: OpenAI, session: Session) -> None:
    texts = ["Who?", "She ran. It was noon.", "When?", "At noon.", "Why?"]
    messages = [{"role": ("user", "assistant")[at % 2], "content": text} for at, text in enumerate(texts)]
    client.chat.completions.create(model=NAME, messages=[*messages, {"role": "system", "content": "Be kind."}])
    text = session.encoder.decode(last_prompt(session))
    scored = [span for span in parse(text.split("Who?")[1]).sentences if span.score is not None]
    assert [span.text.split("\n")[-1].split("When?")[-1].strip()[-9:] for span in scored] == [
        "She ran.", "was noon.", "At noon.",
    ]  # fmt: skip
    assert text.count("Be kind.") == 1


def test_usage_counts_the_tags_of_the_history(server: Server, session: Session) -> None:
    messages = [question("Who?"), {"role": "assistant", "content": PLAIN}, question("When?")]
    _, data = post(server, json.dumps({"messages": messages}).encode())
    assert data["usage"]["prompt_tokens"] == len(last_prompt(session))


def test_a_history_that_fits_only_without_tags_is_refused(server: Server) -> None:
    messages = [question("Who?"), {"role": "assistant", "content": "She ran. " * 35}, question("When?")]
    status, data = post(server, json.dumps({"messages": messages, "max_tokens": 1}).encode())
    assert (status, data["error"]["code"]) == (400, "context_length_exceeded")


def test_scoring_a_history_ends_with_its_client(server: Server, session: Session, monkeypatch: Any) -> None:
    begun, go = threading.Event(), threading.Event()
    score, calls = session.engine.score, []

    def slow(contexts: Any, choices: Any) -> Any:
        calls.append(len(contexts))
        begun.set()
        assert go.wait(60)
        return score(contexts, choices)

    monkeypatch.setattr(session.engine, "score", slow)
    messages = [question("Who?"), {"role": "assistant", "content": "She ran. " * 8}, question("When?")]
    with server.send(json.dumps({"messages": messages}).encode()):
        assert begun.wait(60)
    until(lambda: "499" in server.get("/metrics"))
    go.set()
    assert server.idle() and sum(calls) <= 2


def test_a_stream_whose_history_is_scored_says_that_it_is_alive(
    server: Server, client: OpenAI, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "SILENCE", 0.02)
    engine = session.engine
    assert isinstance(engine, Scripted)
    monkeypatch.setattr(engine, "pause", 0.003)
    messages = [question("Who?"), {"role": "assistant", "content": PLAIN}, question("When?")]
    with server.send(json.dumps({"messages": messages, "stream": True}).encode()) as connection:
        text = ""
        while "[DONE]" not in text:
            text += connection.recv(1 << 16).decode()
    head = text.partition("\r\n\r\n")[0].lower().split("\r\n")
    assert {"x-accel-buffering: no", "cache-control: no-cache"} <= set(head)
    assert text.index("\n: keep-alive\n\n") < text.index("Ada ran.")
    assert asked(client, messages, stream=True)["content"] == PLAIN  # the client passes over them


@pytest.mark.parametrize(
    ("confidence", "tagged"),
    [
        ([("Ada ran.", 9), ("She wrote a note.", 2)], [9, 2]),
        ([], [None, None]),
        ([("Ada ran.", None), ("She wrote a note.", 2)], [None, 2]),  # it had no valid tag
        ([("Ada walked.", 9), ("She wrote a note.", 2)], [None, None]),  # the client has changed the text
        ([("Ada ran.", 9), ("She slept.", 2)], [9, None]),
    ],
)
def test_scores_belong_to_the_text_that_they_came_with(confidence: list[Any], tagged: list[Any]) -> None:
    entries = [SentBack.model_construct(text=text, score=score) for text, score in confidence]
    left_out = SentBack.model_construct(text="It rained.", score=0, kept=False)
    pieces = pieces_of(Turn("assistant", PLAIN, [left_out, *entries, left_out]), DEFAULT_TAGS, PLAINLY)
    sentences = [piece for piece in pieces if piece.text]
    assert [piece.score for piece in sentences] == tagged
    assert [piece.unknown for piece in sentences] == [score is None for score in tagged]


def test_headings_and_texts_with_tags_are_left_as_they_are() -> None:
    pieces = pieces_of(Turn("assistant", "# Life\n\nAda ran."), DEFAULT_TAGS, PLAINLY)
    assert [(p.text.strip(), p.unknown) for p in pieces if p.text] == [("# Life", False), ("Ada ran.", True)]
    assert not any(piece.unknown for piece in pieces_of(Turn("assistant", ANSWER), DEFAULT_TAGS, PLAINLY))
    assert not any(piece.unknown for piece in pieces_of(Turn("user", PLAIN), DEFAULT_TAGS, PLAINLY))


@given(st.text(alphabet="Ab. \n#`", max_size=40), st.lists(st.text(alphabet="Ab. ", max_size=6), max_size=3))
def test_the_pieces_are_the_text(text: str, sentences: list[str]) -> None:
    entries = [SentBack.model_construct(text=sentence, score=1) for sentence in sentences]
    assert "".join(piece.text for piece in pieces_of(Turn("assistant", text, entries), DEFAULT_TAGS, PLAINLY)) == text


def test_scores_off_the_scale_are_refused(server: Server) -> None:
    for score, words in ((11, "null or an integer between 0 and 10"), (-1, "null or an integer"), ("9", "integer")):
        answer = {"role": "assistant", "content": "A.", "confidence": [{"text": "A.", "score": score}]}
        messages = [question("Who?"), answer, question("When?")]
        status, data = post(server, json.dumps({"messages": messages}).encode())
        assert (status, data["error"]["param"]) == (400, "messages[1].confidence[0].score")
        assert words in data["error"]["message"]
