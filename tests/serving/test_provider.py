"""Serving a model behind another server's chat completions: its answers, their confidences, and its faults.

The other server is a stand-in on loopback that streams as OpenAI's does.
"""

from __future__ import annotations

import json
import os
import random
import re
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from chatserver import FACTS, ChatServer, planted, spread, written
from served import KEY, NAME, chat, first_line, post, running, streamed, until

import lovec
from lovec.calibration import calibrate_scores
from lovec.calibration.scores import calibration_text
from lovec.cli import main
from lovec.cli.serve import open_provider
from lovec.core import calls
from lovec.datasets.jsonl import record_to_dict
from lovec.encoding import INSTRUCTION
from lovec.metrics.functional import mean_confidence
from lovec.serving.feedback import Feedback
from lovec.taggers.served_confidence import ServedConfidence
from lovec.tagging import ApiModel, ApiTagger
from lovec.tags import DEFAULT_TAGS, TagFormat
from lovec.types import DEFAULT_SCALE, FREE_FORM, ITERATIVE, LovecError, Record, Scale, Sentence

QUESTIONS = [f"What is there to know about number {number}?" for number in range(12)]
QUESTION = next(question for question in QUESTIONS if len(written(question)) > 2)


@pytest.fixture(autouse=True)
def setting(no_key: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(calls, "_FIRST_WAIT", 0.01)
    monkeypatch.setenv("LOVEC_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def provider() -> Iterator[ChatServer]:
    with ChatServer() as server:
        yield server


def model(provider: ChatServer, asked: Any = None, **options: Any) -> ApiTagger:
    return ApiTagger(ApiModel("gpt", provider.url, **{"retries": 2, **(asked or {})}), **options)


def mean(score: int) -> float:
    chances = spread(score)
    return sum(int(word) * p for word, p in chances.items()) / sum(chances.values()) / 10


def message(data: tuple[int, dict[str, Any]]) -> dict[str, Any]:
    assert data[0] == 200, data
    found: dict[str, Any] = data[1]["choices"][0]["message"]
    return found


def entries(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What a stream says of the sentences of its answer, without their places."""
    found = [entry for e in events for part in e["choices"] for entry in part["delta"].get("confidence", [])]
    assert [entry["index"] for entry in found] == list(range(len(found)))
    return [{key: value for key, value in entry.items() if key != "index"} for entry in found]


@pytest.mark.parametrize(("split", "digits"), [(0, False), (0, True), (1, False), (7, True), (10_000, False)])
def test_answers_have_the_sentences_and_confidences_that_tag_gives(
    provider: ChatServer, split: int, digits: bool
) -> None:
    provider.split, provider.digits = split, digits
    [record] = [r for r in model(provider).stream([Record("a", QUESTION)], FREE_FORM) if isinstance(r, Record)]
    provider.calls.clear()
    with running(model(provider)) as server:
        one = message(answer := post(server, chat(QUESTION)))
        events = streamed(server, chat(QUESTION, stream=True, stream_options={"include_usage": True}))
    assert [s.text for s in record.sentences] == written(QUESTION)
    expected = [{"text": s.text, "score": s.score, "confidence": s.confidence, "kept": True} for s in record.sentences]
    assert one["confidence"] == entries(events) == expected and one["problems"] == []
    assert one["content"] == " ".join(written(QUESTION))
    assert "".join(part["delta"].get("content", "") for e in events for part in e["choices"]) == one["content"]
    assert answer[1]["usage"] == events[-1]["usage"] == {
        "prompt_tokens": 1000, "completion_tokens": 100, "total_tokens": 1100
    }  # fmt: skip
    for call in provider.calls:
        body = dict(call.body)
        assert body.pop("messages") == [
            {"role": "system", "content": INSTRUCTION},
            {"role": "user", "content": QUESTION},
        ]
        assert body == {
            "model": "gpt",
            "stream": True,
            "temperature": 0.0,
            "max_tokens": 1024,
            "logprobs": True,
            "top_logprobs": 20,
            "stream_options": {"include_usage": True},
        }


@pytest.mark.parametrize(("split", "early"), [(0, 2), (1, 2), (7, 2), (60, 1), (10_000, 0)])
def test_a_thought_that_the_template_has_begun_is_no_part_of_the_answer(
    provider: ChatServer, split: int, early: int
) -> None:
    thought, first, *others = "I should tag.", "</think>\n\nReal one.", "Real two.", "Real three."
    provider.split, provider.answer = split, lambda question: [thought, "Like so.", first, *others]
    [record] = [r for r in model(provider).stream([Record("a", QUESTION)], FREE_FORM) if isinstance(r, Record)]
    expected = [{"text": s.text, "score": s.score, "confidence": s.confidence, "kept": True} for s in record.sentences]
    assert [entry["text"] for entry in expected] == ["Real one.", *others]
    with running(model(provider)) as server:
        one = message(post(server, chat(QUESTION)))
        events = streamed(server, chat(QUESTION, stream=True))
    assert (
        one["confidence"] == expected and one["problems"] == [] and one["content"] == "Real one. Real two. Real three."
    )
    sent = entries(events)
    problems = [p for e in events for part in e["choices"] for p in part["delta"].get("problems", [])]
    assert sent[early:] == expected and [entry["text"] for entry in sent[:early]] == [thought, "Like so."][:early]
    assert len(problems) == (early > 0) and all("part of a thought" in problem for problem in problems)


@pytest.mark.parametrize("split", [1, 7])
def test_a_character_whose_halves_are_in_two_events_is_whole(provider: ChatServer, split: int) -> None:
    first, second = "\U0001f600".encode("utf-16-be")[:2], "\U0001f600".encode("utf-16-be")[2:]
    high, low = (half.decode("utf-16-be", "surrogatepass") for half in (first, second))
    provider.split, provider.answer = split, lambda question: [f"Smile {high}{low} {low}{high}.", f"So {high}"]
    tokens = provider.tokens
    provider.tokens = lambda body, fault: [*tokens(body, fault), (high, {})]  # type: ignore[method-assign]
    with running(model(provider)) as server:
        one = message(post(server, chat(QUESTION)))
        events = streamed(server, chat(QUESTION, stream=True))
    assert one["content"] == "Smile \U0001f600 ??. So ? ?"
    assert [entry["text"] for entry in one["confidence"]] == ["Smile \U0001f600 ??.", "So ?", "?"]
    assert "".join(part["delta"].get("content", "") for e in events for part in e["choices"]) == one["content"]


@pytest.mark.parametrize("digits", [False, True])
def test_a_one_without_a_space_behind_it_is_no_ten(provider: ChatServer, digits: bool) -> None:
    low = next(text for text in (f"Fact {n}." for n in count()) if planted(text) == 1)
    provider.compact, provider.digits, provider.answer = True, digits, lambda question: [low, FACTS[0] + "."]
    chances = {"1": 0.63, "10": 0.07, "2": 0.2, "3": 0.1} if digits else spread(1)
    expected = sum(int(word) * p for word, p in chances.items()) / 10
    for _ in range(2):  # the second reply is that in the cache
        [record] = [r for r in model(provider).stream([Record("a", QUESTION)], FREE_FORM) if isinstance(r, Record)]
        assert record.sentences[0].score == 1 and record.sentences[0].confidence == pytest.approx(expected)
    assert len(provider.calls) == 1
    with running(model(provider)) as server:
        one = message(post(server, chat(QUESTION)))
    assert [entry["confidence"] for entry in one["confidence"]] == [s.confidence for s in record.sentences]


def test_sentences_are_sent_while_the_answer_is_written(provider: ChatServer) -> None:
    held = True
    provider.held = lambda number: held and number > 4  # the first sentence and its tag are out
    with running(model(provider)) as server, server.send(chat(QUESTION, stream=True)) as connection:
        lines = iter(connection.makefile("rb"))
        found = next(line for line in lines if b'"score"' in line)
        assert written(QUESTION)[0] in found.decode() and written(QUESTION)[1] not in found.decode()
        held = False
        assert any(written(QUESTION)[-1].encode() in line for line in lines)


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/responses", "/v1/tag"])
def test_a_stream_is_measured_until_its_first_sentence(provider: ChatServer, path: str) -> None:
    held = True
    provider.held, provider.delay = (lambda _: held), 0.0 if path != "/v1/tag" else 1.5
    bodies = {"/v1/tag": json.dumps({"text": "It has a bridge.", "question": QUESTION, "stream": True}).encode()}
    bodies["/v1/responses"] = json.dumps({"input": QUESTION, "stream": True}).encode()
    with running(model(provider, method="verbal")) as server:
        body = bodies.get(path, chat(QUESTION, stream=True))
        with server.send(body, path) as connection:
            lines = iter(connection.makefile("rb"))
            assert next(lines).startswith(b"HTTP/1.1 200")  # long before the first sentence
            begun, counts = f'lovec_requests_total{{path="{path}",status="200"}} 1.0', server.get("/metrics")
            assert begun in counts and f'lovec_request_seconds_count{{path="{path}"}}' not in counts
            held = False
            next(line for line in lines if b'"score"' in line)
            assert f'lovec_request_seconds_count{{path="{path}"}} 1.0' in server.get("/metrics")
        assert server.idle() and f'lovec_request_seconds_count{{path="{path}"}} 1.0' in server.get("/metrics")


def test_the_openai_client_gets_confidences_from_both_apis(provider: ChatServer) -> None:
    with running(model(provider), inline=" [{confidence:.2f}]") as server:
        client = server.client()
        reply = client.chat.completions.create(model=NAME, messages=[{"role": "user", "content": QUESTION}])
        stream = client.chat.completions.create(
            model=NAME, messages=[{"role": "user", "content": QUESTION}], stream=True
        )
        deltas = [chunk.choices[0].delta for chunk in stream]
        response = client.responses.create(model=NAME, input=QUESTION)
        listed = client.models.list().data[0]
    content = " ".join(f"{text} [{mean(planted(text)):.2f}]" for text in written(QUESTION))
    assert reply.choices[0].message.content == content == response.output_text
    assert "".join(delta.content or "" for delta in deltas) == content
    confidences = [mean(planted(text)) for text in written(QUESTION)]
    assert [e["confidence"] for e in reply.choices[0].message.confidence] == pytest.approx(confidences)
    assert [a.confidence for a in response.output[0].content[0].annotations] == pytest.approx(confidences)
    assert response.usage is not None and response.usage.output_tokens == 100
    assert "log" not in listed.confidence["iterative"] and "probabilities" in listed.confidence["free-form"]


@pytest.mark.parametrize(("top", "silent", "options"), [(5, False, True), (0, False, True), (20, True, False)])
def test_without_log_probabilities_there_are_stated_scores_and_that_is_said(
    provider: ChatServer, top: int, silent: bool, options: bool, caplog: pytest.LogCaptureFixture
) -> None:
    provider.top, provider.silent, provider.options = top, silent, options
    with running(model(provider)) as server:
        answer = message(first := post(server, chat(QUESTION)))
        n = len(provider.calls)
        assert (
            message(post(server, chat(QUESTION))) == answer and len(provider.calls) == n + 1
        )  # nothing is tried again
    known = top == 5
    expected = [mean(planted(t)) if known else planted(t) / 10 for t in written(QUESTION)]
    assert [entry["confidence"] for entry in answer["confidence"]] == pytest.approx(expected)
    number = len(written(QUESTION))
    said = f"the provider gives no log-probabilities of the scores of {number} sentences: the confidence is the stated"
    assert [problem.startswith(said) for problem in answer["problems"]] == ([] if known else [True])
    assert (first[1]["usage"] is None) == (not options)
    assert ("the server refuses" in caplog.text) == (top == 0 or not options)


@pytest.mark.parametrize(
    ("given", "sent"),
    [
        ({"logprobs": None, "top_logprobs": None}, {"stream_options": {"include_usage": True}}),
        ({"logprobs": False}, {"logprobs": False, "stream_options": {"include_usage": True}}),
        ({"stream_options": None}, {"logprobs": True, "top_logprobs": 20}),
        ({"top_logprobs": 3, "stream_options": {}}, {"logprobs": True, "top_logprobs": 3, "stream_options": {}}),
    ],
)
def test_parameters_of_the_user_are_sent_in_place_of_all_others(
    provider: ChatServer, given: dict[str, Any], sent: dict[str, Any]
) -> None:
    with running(model(provider, {"parameters": given})) as server:
        answer = message(post(server, chat(QUESTION)))
    [call] = provider.calls
    names = ("logprobs", "top_logprobs", "stream_options")
    assert {name: call.body[name] for name in names if name in call.body} == sent
    known = sent.get("logprobs")
    assert [e["confidence"] for e in answer["confidence"]] == pytest.approx(
        [mean(planted(t)) if known else planted(t) / 10 for t in written(QUESTION)]
    )
    assert [("no log-probabilities" in problem) for problem in answer["problems"]] == ([] if known else [True])


def labelled(provider: ChatServer) -> None:
    """Write labelled answers: the surer the model is, the more often it is right."""
    draw, rows = random.Random(0), []
    for record in model(provider).stream([Record(q, q) for q in (f"Number {n}?" for n in range(60))], FREE_FORM):
        if isinstance(record, Record):
            truth = [float(draw.random() < (0.97 if planted(s.text) > 4 else 0.2)) for s in record.sentences]
            rows.append(json.dumps(record_to_dict(record.with_factuality(truth))))
    Path("labelled.jsonl").write_text("\n".join(rows), encoding="utf-8")


def calibrated(*words: str) -> None:
    assert main(["calibrate", *words, "--draws", "10", "--out", "made"]) == 0


@pytest.mark.parametrize("columns", [["mean of the distribution"], ["stated"], ["stated", "mean of the distribution"]])
def test_confidences_are_those_of_the_calibration(provider: ChatServer, columns: list[str]) -> None:
    labelled(provider)
    chosen = [word for column in columns for word in ("--confidence", column)]
    calibrated("labelled.jsonl", "--layout", "lovec", *chosen, "--keep_factual", "0.5")
    calibration = lovec.load_calibration("made")
    served = ServedConfidence.of_scores("made", "gpt", DEFAULT_SCALE)
    provider.calls.clear()
    kept = []
    with running(model(provider, served=served)) as server:
        for question in QUESTIONS:
            answer = message(post(server, chat(question, keep_factual=0.5)))
            scores = {
                "stated": [planted(t) / 10 for t in written(question)],
                "mean of the distribution": [mean(planted(t)) for t in written(question)],
            }
            given = {name: scores[name] for name in columns}
            assert [entry["confidence"] for entry in answer["confidence"]] == pytest.approx(
                list(calibration(given)), abs=1e-9
            )
            assert [entry["kept"] for entry in answer["confidence"]] == list(calibration.keeps(given, keep_factual=0.5))
            kept += [entry["kept"] for entry in answer["confidence"]]
        refused = post(server, chat(QUESTION, keep_factual=0.99))
        card = json.loads(urllib.request.urlopen(with_key(f"{server.url}/v1/models")).read())["data"][0]
    assert set(kept) == {True, False}
    assert refused[0] == 400 and refused[1]["error"]["param"] == "keep_factual"
    assert "`lovec calibrate FILE --keep_factual 0.5 --keep_factual 0.99 --redo`" in refused[1]["error"]["message"]
    with running(model(provider)) as server:
        refused = post(server, chat(QUESTION, keep_factual=0.9))
    assert refused[1]["error"]["message"].endswith("with: lovec calibrate FILE --keep_factual 0.9")
    assert "calibrated (" in card["confidence"]["free-form"]
    assert all(("logprobs" in call.body) == (columns != ["stated"]) for call in provider.calls)  # which cost something


def test_a_promise_for_a_kind_is_kept_by_its_own_threshold(provider: ChatServer) -> None:
    labelled(provider)
    rows = [json.loads(line) for line in Path("labelled.jsonl").read_text(encoding="utf-8").splitlines()]
    for at, row in enumerate(rows):
        row["meta"]["rarity"] = "rare" if at % 2 else "famous"
        for sentence in row["sentences"] if at % 2 == 0 else ():
            sentence["factuality"] = 1.0
    Path("labelled.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    calibrated("labelled.jsonl", "--layout", "lovec", "--keep_factual", "0.5", "--promise_by", "rarity")
    calibration = lovec.load_calibration("made")
    kept: dict[str | None, list[bool]] = {}
    with running(model(provider, served=ServedConfidence.of_scores("made", "gpt", DEFAULT_SCALE))) as server:
        for kind in (None, "rare", "famous"):
            for question in QUESTIONS:
                answer = message(post(server, chat(question, keep_factual=0.5, promise_for=kind)))
                scores = [mean(planted(text)) for text in written(question)]
                expected = calibration.keeps(scores, keep_factual=0.5, by=kind and [kind] * len(scores))
                assert [entry["kept"] for entry in answer["confidence"]] == list(expected)
                kept.setdefault(kind, []).extend(expected)
        for asked, words in (
            ({"keep_factual": 0.5, "promise_for": "odd"}, "for 'odd' by itself, only for famous, rare; "),
            ({"keep_factual": 0.99, "promise_for": "rare"}, "only for 0.5"),
            ({"promise_for": "rare"}, "without keep_factual"),
        ):
            status, data = post(server, chat(QUESTION, **asked))
            assert (status, data["error"]["param"]) == (400, "promise_for") and words in data["error"]["message"]
    assert 0 < sum(kept["rare"]) < sum(kept["famous"]) == len(kept["famous"])


def test_verdicts_without_kinds_fit_a_calibration_with_promises_by_kind_again(
    provider: ChatServer, capsys: pytest.CaptureFixture[str]
) -> None:
    labelled(provider)
    rows = [json.loads(line) for line in Path("labelled.jsonl").read_text(encoding="utf-8").splitlines()]
    for at, row in enumerate(rows):
        row["meta"]["rarity"] = "rare" if at % 2 else "famous"
    Path("labelled.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    calibrated("labelled.jsonl", "--layout", "lovec", "--keep_factual", "0.5", "--promise_by", "rarity")
    served, verdicts = ServedConfidence.of_scores("made", "gpt", DEFAULT_SCALE), Path("verdicts.jsonl")
    with running(model(provider, served=served), feedback=verdicts) as server:
        for number in range(40):
            reply = post(server, chat(question := f"Number {number}?"))[1]
            said = [{"index": at, "factuality": float(planted(t) > 4)} for at, t in enumerate(written(question))]
            assert post(server, json.dumps({"id": reply["id"], "sentences": said}).encode(), "/v1/labels")[0] == 200
    capsys.readouterr()
    left_out = "a server's verdicts do not say the 'rarity' of a row, so the promises for each rarity are left out"
    again = ["calibrate", "made", "--feedback", str(verdicts), "--draws", "10", "--out", "again"]
    assert main(again) == 0 and f"warning: {verdicts}: {left_out}" in capsys.readouterr().err
    made = lovec.load_calibration("again")
    assert (made.by, made.kinds, [one.keep_factual for one in made.guarantees]) == ("", (), [0.5])
    assert main(["score", str(verdicts), "--calibration", "made", "--draws", "0"]) == 0
    assert left_out in " ".join(capsys.readouterr().out.split())

    lines = [json.loads(line) for line in verdicts.read_text().splitlines()]
    with_kinds = [json.dumps({**line, "rarity": "rare"}) for line in lines[1:]]  # all but one have them
    verdicts.write_text("\n".join([json.dumps(lines[0]), *with_kinds]))
    assert main([*again, "--redo"]) == 0 and left_out not in capsys.readouterr().err
    assert {kind.value for kind in lovec.load_calibration("again").kinds} == {"", "rare"}


def with_key(url: str) -> urllib.request.Request:
    return urllib.request.Request(url, headers={"Authorization": f"Bearer {KEY}"})


def test_a_calibration_of_means_invents_nothing_where_there_are_none(provider: ChatServer) -> None:
    labelled(provider)
    calibrated("labelled.jsonl")
    provider.silent = True
    with running(model(provider, served=ServedConfidence.of_scores("made", "gpt", DEFAULT_SCALE))) as server:
        answer = message(post(server, chat(QUESTION)))
    assert {entry["confidence"] for entry in answer["confidence"]} == {None}
    assert [entry["score"] for entry in answer["confidence"]] == [planted(t) for t in written(QUESTION)]
    assert "the calibration needs them, so there is no confidence" in answer["problems"][0]


@pytest.mark.parametrize("column", ["mean of the distribution", "stated"])
def test_verdicts_on_answers_fit_their_calibration_again(
    provider: ChatServer, column: str, capsys: pytest.CaptureFixture[str]
) -> None:
    labelled(provider)
    calibrated("labelled.jsonl", "--layout", "lovec", "--confidence", column, "--keep_factual", "0.5")
    served = ServedConfidence.of_scores("made", "gpt", DEFAULT_SCALE)
    verdicts, found = Path("verdicts.jsonl"), []
    with running(model(provider, served=served), feedback=verdicts) as server:
        for number, question in enumerate(QUESTIONS * 3):
            reply = post(server, chat(question))[1]
            scores = [planted(t) / 10 if column == "stated" else mean(planted(t)) for t in written(question)]
            truth = [float(score > 0.5 or at == number % 7) for at, score in enumerate(scores)]
            said = [{"index": at, "factuality": label} for at, label in enumerate(truth)]
            assert post(server, json.dumps({"id": reply["id"], "sentences": said}).encode(), "/v1/labels")[0] == 200
            found += scores
    assert main(["calibrate", "made", "--feedback", str(verdicts), "--draws", "10", "--out", "again"]) == 0
    assert "the threshold before: --keep_factual 0.5: " in capsys.readouterr().out
    again = lovec.load_calibration("again")
    assert (again.layout, [one.key for one in again.columns]) == ("lovec", [column])
    assert (again.fitted.sentences, again.fitted.passages) == (len(found), 3 * len(QUESTIONS))
    confidences = ServedConfidence.of_scores("again", "gpt", DEFAULT_SCALE).calibration(FREE_FORM)
    assert confidences is not None and confidences.guarantees == again.guarantees
    assert main(["score", str(verdicts), "--calibration", "again", "--draws", "0"]) == 0

    lines = verdicts.read_text().splitlines()
    verdicts.write_text("\n".join([*lines, lines[-1].replace("free-form", "iterative")]))
    assert main(["calibrate", "made", "--feedback", str(verdicts), "--redo", "--out", "again"]) == 1
    said = capsys.readouterr().err
    assert f"verdicts.jsonl:{len(lines) + 1}: is a verdict on iterative " in said and "only lines with the same" in said


def test_calibrations_of_other_scores_are_refused() -> None:
    rows = [f"{i % 7},{i % 10 / 10},{i % 3 % 2}" for i in range(60)]
    Path("rows.csv").write_text("\n".join(["group,p,correct", *rows]))
    calibrated("rows.csv")
    with pytest.raises(LovecError, match=r"made is of p, expected one of stated and mean of the distribution"):
        ServedConfidence.of_scores("made", "gpt", DEFAULT_SCALE)


@pytest.mark.parametrize(
    ("faults", "status", "code", "said"),
    [
        (["401"], 502, None, "HTTP 401: fault 401; set OPENAI_API_KEY"),
        (["429 0"] * 9, 429, "rate_limit_exceeded", "HTTP 429: fault 429 (3 tries)"),
        (["503"] * 9, 502, None, "HTTP 503: fault 503 (3 tries)"),
        (["422"] * 9, 400, None, "refuses the request: HTTP 422: fault 422"),
        (["quota"], 502, None, "pay first; the account has no credit left"),
        (["drop"] * 9, 502, None, "broken connection"),
        (["garbage html"] * 9, 502, None, ""),
        (["break off"], 502, None, "broken connection"),
        (["no end"], 502, None, "the stream of a reply broke off"),
        (["end early"] * 9, 502, None, "unexpected reply: a stream that ended before the answer began (3 tries)"),
        (["bad event"], 502, None, "unexpected reply: an event that is no JSON"),
        (["as text/event-stream data: {bad\n\n"] * 9, 502, None, "unexpected reply: an event that is no JSON"),
        (["as text/event-stream data: [1]\n\n"] * 9, 502, None, "unexpected reply: [1] (3 tries)"),
        (["as text/event-stream "] * 9, 502, None, "unexpected reply: nothing, expected a stream of events"),
        (["as text/html; <p>No</p>"] * 9, 502, None, "unexpected reply: text/html, expected a stream of events"),
        (["as application/json {}"], 502, None, "does not stream: the reply is application/json"),
        (["error later"], 502, None, "the backend was lost"),
        (["filtered"], 502, None, "content_filter"),
    ],
)
def test_faults_of_the_provider_are_errors_with_its_message(
    provider: ChatServer, faults: list[str], status: int, code: str | None, said: str
) -> None:
    provider.faults = {"number": [*faults, *faults]}
    with running(model(provider)) as server:
        got, data = post(server, chat(QUESTION))
        assert (got, data["error"]["code"]) == (status, code) and said in data["error"]["message"], data
        with server.send(chat(QUESTION, stream=True)) as connection:
            *_, last = [line for line in connection.makefile("rb") if line.startswith(b"data: ")]
        assert json.loads(last[6:])["error"]["code"] == code
        provider.faults.clear()
        assert message(post(server, chat(QUESTION)))["problems"] == []
        assert server.idle()


@pytest.mark.parametrize("top", [20, 0])
def test_a_request_that_is_refused_costs_one_call_once_another_was_granted(
    provider: ChatServer, top: int, caplog: pytest.LogCaptureFixture
) -> None:
    provider.top, provider.options = top, False
    with running(model(provider)) as server:
        answer = message(post(server, chat(QUESTION)))
        granted = provider.calls[-1].body
        provider.calls.clear()
        for faults in (["400"], ["403"], ["422", "422"]):
            provider.faults = {"number": list(faults)}
            assert [post(server, chat(QUESTION))[0] for _ in faults] == [400] * len(faults)
        assert [call.body for call in provider.calls] == [granted] * 4
        assert message(post(server, chat(QUESTION))) == answer and provider.calls[-1].body == granted
    assert ("logprobs" in granted) == (top == 20) and "stream_options" not in granted
    assert caplog.text.count("the server refuses") == 1


@pytest.mark.parametrize(
    "faults",
    [
        ["429 0"],
        ["503", "drop"],
        ["break early", "break early"],  # only the role has come
        ["end early", "end early"],
        ["as text/event-stream data: {bad\n\n", "as text/event-stream data: [1]\n\n"],
        ["as text/event-stream ", "as text/html <p>No</p>"],
    ],
)
def test_faults_before_the_first_sentence_are_tried_again(provider: ChatServer, faults: list[str]) -> None:
    provider.faults = {"number": list(faults)}
    with running(model(provider)) as server:
        assert [e["text"] for e in message(post(server, chat(QUESTION)))["confidence"]] == written(QUESTION)
    assert len(provider.calls) == len(faults) + 1


def test_a_stream_that_says_it_is_done_needs_no_other_reason(provider: ChatServer) -> None:
    provider.faults = {"number": ["no reason", "no reason"]}
    with running(model(provider)) as server:
        answer = message(post(server, chat(QUESTION)))
        events = streamed(server, chat(QUESTION, stream=True))
    assert [entry["text"] for entry in answer["confidence"]] == written(QUESTION) and answer["problems"] == []
    assert entries(events) == answer["confidence"]


def test_a_slow_provider_is_given_up(provider: ChatServer) -> None:
    provider.delay = 60
    with running(model(provider), timeout=0.5) as server:
        status, data = post(server, chat(QUESTION))
        assert status == 504 and "no answer within 0.5 s" in data["error"]["message"]
        assert server.idle()


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_disconnects_ends_the_call(provider: ChatServer, stream: bool) -> None:
    provider.held = lambda number: number > 3
    with running(model(provider, {"concurrency": 1})) as server:
        connection = server.send(chat(QUESTION, stream=stream))
        until(lambda: server.metric("lovec_running") == 1)
        waiting = server.send(chat(QUESTION))
        until(lambda: server.metric("lovec_waiting") == 1 and len(provider.calls) == 1)
        connection.close()
        until(lambda: provider.gone == 1)
        until(lambda: len(provider.calls) == 2)  # the next one has its place
        waiting.close()
        until(lambda: provider.gone == 2)
        assert server.idle()


def test_malformed_tags_are_asked_for_once_more(provider: ChatServer) -> None:
    sentences, bad = len(written(QUESTION)), "sentence 1: no closing tag"
    with running(model(provider)) as server:
        provider.faults = {"number": ["malformed"]}
        status, data = post(server, chat(QUESTION))
        answer = message((status, data))
        assert [entry["text"] for entry in answer["confidence"]] == written(QUESTION) and answer["problems"] == []
        assert data["usage"]["completion_tokens"] == 200
        assert [call.body["temperature"] for call in provider.calls] == [0, 0.7]
        provider.faults = {"number": ["malformed", "malformed"]}
        answer = message(post(server, chat(QUESTION, temperature=0.3)))
        assert [entry["confidence"] for entry in answer["confidence"]] == [None] and answer["problems"] == [bad]
        assert [call.body["temperature"] for call in provider.calls[2:]] == [0.3, 0.3]
        metrics = server.get("/metrics")
    assert "lovec_repeated_total 2.0" in metrics and 'lovec_tags_total{tag="malformed"} 1.0' in metrics
    assert f'lovec_tags_total{{tag="valid"}} {sentences}.0' in metrics
    assert 'lovec_tokens_total{kind="completion"} 400.0' in metrics


def test_the_tokens_of_all_calls_for_the_choices_of_a_request_are_counted(provider: ChatServer) -> None:
    with running(model(provider)) as server:
        provider.always = "malformed"
        usage = post(server, chat(QUESTION, n=3, temperature=1))[1]["usage"]
        metrics = server.get("/metrics")
    assert len(provider.calls) == 6  # each is repeated
    assert usage == {"prompt_tokens": 6000, "completion_tokens": 600, "total_tokens": 6600}
    assert all(
        f'lovec_tokens_total{{kind="{kind}"}} {n}.0' in metrics for kind, n in (("prompt", 6000), ("completion", 600))
    )


def test_what_a_client_has_begun_to_get_is_not_asked_for_again(provider: ChatServer) -> None:
    with running(model(provider)) as server:
        provider.faults = {"number": ["malformed"]}
        assert [entry["confidence"] for entry in entries(streamed(server, chat(QUESTION, stream=True)))] == [None]
        provider.faults = {"number": ["malformed", "break off", "break off", "break off"]}
        answer = message(post(server, chat(QUESTION)))  # the second call fails after all retries
        assert answer["problems"] == ["sentence 1: no closing tag"]
        post(server, chat(QUESTION, stop=written(QUESTION)[1][3:9]))  # cut, but not malformed
        assert "lovec_repeated_total 0.0" in server.get("/metrics")


EMPTY, IN_A_THOUGHT = ("the provider's answer is empty", "the provider's answer ends inside a thought; give more")


@pytest.mark.parametrize(
    ("text", "said"), [(" ", EMPTY), ("<think>So</think>\n", EMPTY), ("<think>So it", IN_A_THOUGHT)]
)
def test_an_answer_without_a_sentence_is_asked_for_once_more(provider: ChatServer, text: str, said: str) -> None:
    empty = f"says {text}"
    with running(model(provider)) as server:
        provider.faults = {"number": [empty]}
        answer = message(post(server, chat(QUESTION)))
        assert [entry["text"] for entry in answer["confidence"]] == written(QUESTION) and answer["problems"] == []
        assert [call.body["temperature"] for call in provider.calls] == [0, 0.7]
        provider.faults = {"number": [empty, empty]}
        answer = message(post(server, chat(QUESTION)))
        assert (answer["content"], answer["confidence"]) == ("", []) and answer["problems"][0].startswith(said)
        provider.faults = {"number": [empty]}
        problems = [e["choices"][0]["delta"].get("problems") for e in streamed(server, chat(QUESTION, stream=True))]
        assert problems[-1][0].startswith(said)
        assert "lovec_repeated_total 2.0" in server.get("/metrics") and len(provider.calls) == 5
        answer = message(post(server, chat(QUESTION, stop=written(QUESTION)[0][0])))  # what is asked for is nothing
        assert answer["problems"] == [] and len(provider.calls) == 6


@pytest.mark.parametrize("second", ["says  ", "says <think>So it", "cut", "402", "401", "422", "filtered"])
def test_a_first_answer_is_kept_where_the_second_is_no_better(provider: ChatServer, second: str) -> None:
    provider.faults = {"number": ["malformed", second]}
    with running(model(provider)) as server:
        answer = message(post(server, chat(QUESTION)))
        assert "lovec_repeated_total" in server.get("/metrics")
    assert written(QUESTION)[0] in answer["content"] and answer["problems"] == ["sentence 1: no closing tag"]
    assert len(provider.calls) == 2


def test_sentences_of_a_thought_lack_no_log_probabilities(provider: ChatServer) -> None:
    provider.silent, provider.answer = True, lambda question: ["I should tag.", "Like so.", "</think>Real."]
    with running(model(provider)) as server:
        [problem] = message(post(server, chat(QUESTION)))["problems"]
        *_, end = streamed(server, chat(QUESTION, stream=True))
    for told in (problem, end["choices"][0]["delta"]["problems"][-1]):
        assert "no log-probabilities of the scores of 1 sentence:" in told


def test_limits_stops_and_choices(provider: ChatServer) -> None:
    first, second, *_ = written(QUESTION)
    with running(model(provider)) as server:
        provider.faults = {"number": ["cut"]}
        cut = post(server, chat(QUESTION, max_tokens=5))[1]["choices"][0]
        assert cut["finish_reason"] == "length" and "cut off" in cut["message"]["problems"][0]
        assert provider.calls[-1].body["max_tokens"] == 5
        data = post(server, chat(QUESTION, stop=second[3:9]))[1]
        stopped, usage = data["choices"][0], data["usage"]
        assert usage is None  # the call was ended before the provider has counted
        assert stopped["message"]["content"] == f"{first} {second[:3].rstrip()}" and stopped["finish_reason"] == "stop"
        assert "stop" not in provider.calls[-1].body  # the provider would look for it in the tags
        least = max(mean(planted(t)) for t in written(QUESTION))
        kept = message(post(server, chat(QUESTION, min_confidence=least - 1e-9)))
        assert [e["text"] for e in kept["confidence"] if e["kept"]] == [
            t for t in written(QUESTION) if mean(planted(t)) == least
        ]
        provider.calls.clear()
        status, data = post(server, chat(QUESTION, n=2, temperature=1, top_p=0.9, seed=3))
        assert status == 200 and len(data["choices"]) == 2 and data["usage"]["completion_tokens"] == 200
        assert data["usage"]["prompt_tokens"] == 2000  # each choice is a call that reads the prompt
        one, other = (call.body for call in provider.calls)
        assert (one["temperature"], one["top_p"]) == (1, 0.9) and one["seed"] != other["seed"]
        post(server, chat(QUESTION, n=2, temperature=1, seed=3))
        assert {call.body["seed"] for call in provider.calls} == {one["seed"], other["seed"]}
        post(server, chat(QUESTION, temperature=1))
        assert "seed" not in provider.calls[-1].body


def test_earlier_answers_get_the_tags_back_that_the_client_sends(provider: ChatServer) -> None:
    with running(model(provider)) as server:
        answer = message(post(server, chat(QUESTION)))
        turns = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": QUESTION}, answer]
        turns[2] = {name: answer[name] for name in ("role", "content", "confidence")}
        again = {"role": "user", "content": "And what else?"}
        assert post(server, json.dumps({"messages": [*turns, again]}).encode())[0] == 200
        sent = provider.calls[-1].body["messages"]
        turns[2] = {"role": "assistant", "content": answer["content"]}
        assert post(server, json.dumps({"messages": [*turns, again]}).encode())[0] == 200
        plain = provider.calls[-1].body["messages"]
        wrong = post(server, json.dumps({"messages": [again, again]}).encode())
    tagged = " ".join(f"{t} <confidence> {planted(t)} </confidence>" for t in written(QUESTION))
    assert [turn["content"] for turn in sent] == [f"{INSTRUCTION}\n\nBe brief.", QUESTION, tagged, "And what else?"]
    assert plain[2]["content"] == answer["content"]  # nobody can tell the scores
    assert wrong[0] == 400 and wrong[1]["error"]["param"] == "messages"


@pytest.mark.parametrize("method", ["verbal", "p_true"])
def test_given_texts_are_scored_by_a_method(provider: ChatServer, method: Any) -> None:
    text = "# Ada\n\nIt has a bridge. It makes clocks."
    body = {"text": text, "question": QUESTION}
    facts = ["It has a bridge.", "It makes clocks."]
    expected = [planted(t) / 10 if method == "verbal" else (planted(t) + 1) / 12 for t in facts]
    with running(model(provider, method=method)) as server:
        status, data = post(server, json.dumps(body).encode(), "/v1/tag")
        events = streamed(server, json.dumps({**body, "stream": True}).encode(), "/v1/tag")
        assert message(post(server, chat(QUESTION)))["confidence"]  # questions are answered as without one
        provider.faults = {"bridge": ["malformed"]}
        broken = post(server, json.dumps(body).encode(), "/v1/tag")[1] if method == "verbal" else None
        provider.faults, provider.silent = {"bridge": ["503"] * 9}, True
        silent = post(server, json.dumps({**body, "text": "It rains."}).encode(), "/v1/tag")[1]
        failed = post(server, json.dumps(body).encode(), "/v1/tag")
        assert server.idle()
    assert status == 200 and data["content"] == text
    assert [e.get("kind") for e in data["confidence"]] == ["heading", None, None]
    assert [e["confidence"] for e in data["confidence"][1:]] == pytest.approx(expected)
    assert [e for event in events for e in event["confidence"]] == data["confidence"]
    assert failed[0] == 502 and "HTTP 503" in failed[1]["error"]["message"]
    assert ("no log-probabilities of the scores of 1 sentence" in str(silent["problems"])) == (method == "p_true")
    if broken is not None:
        assert broken["confidence"][0]["confidence"] is None  # the heading
        missing = [place for place in (1, 2) if broken["confidence"][place]["confidence"] is None]
        assert len(missing) == 1  # of two simultaneous calls whose prompts hold the text, one meets the fault
        assert f"sentence {missing[0] + 1} has no confidence: the reply is" in broken["problems"][0]


def test_a_long_text_has_few_prompts_at_a_time_and_leaves_room_for_others(
    provider: ChatServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    facts = [f"It has {number} bridges." for number in range(40)]
    body = json.dumps({"text": " ".join(facts), "question": QUESTION}).encode()
    tagger, made, ahead = model(provider, {"concurrency": 2}, method="p_true"), count(1), []
    make = tagger._word_prompt

    def counting(*given: Any) -> Any:
        ahead.append(next(made) - len(provider.calls))
        return make(*given)

    monkeypatch.setattr(tagger, "_word_prompt", counting)
    provider.delay = 0.05
    with running(tagger) as server, ThreadPoolExecutor(1) as pool:
        tagged = pool.submit(post, server, body, "/v1/tag")
        until(lambda: len(provider.calls) > 2)
        message(post(server, chat(QUESTION)))
        assert len(provider.calls) < 20  # it has not waited for the whole text
        status, data = tagged.result()
    assert len(ahead) == 40 and max(ahead) <= 2  # each has the whole text in it
    assert status == 200 and [e["confidence"] for e in data["confidence"]] == pytest.approx(
        [(planted(text) + 1) / 12 for text in facts]
    )


def before_calibration(text: str, method: str, readout: str | None) -> float:
    """Return what a method reads of a sentence."""
    if method == "p_true":
        return (planted(text) + 1) / 12
    return mean(planted(text)) if readout == "mean" else planted(text) / 10


@pytest.mark.parametrize(("method", "readout"), [("verbal", "stated"), ("verbal", "mean"), ("p_true", None)])
def test_texts_have_the_confidences_of_their_own_calibration(provider: ChatServer, method: Any, readout: Any) -> None:
    draw, rows = random.Random(0), []
    texts = [Record(f"t{n}", QUESTION, answer=" ".join(written(f"Number {n}?"))) for n in range(40)]
    for record in model(provider, method=method, readout=readout).stream(texts, ITERATIVE):
        if isinstance(record, Record):
            truth = [float(draw.random() < 0.2 + (s.stated or 0.0) / 2) for s in record.sentences]
            rows.append(json.dumps(record_to_dict(record.with_factuality(truth))))
    Path("texts.jsonl").write_text("\n".join(rows), encoding="utf-8")
    column = "stated" if readout == "stated" else "mean of the distribution"
    calibrated("texts.jsonl", "--layout", "lovec", "--confidence", column, "--keep_factual", "0.3")
    calibration, body = (
        lovec.load_calibration("made"),
        {"text": "It has a bridge. It makes clocks.", "question": QUESTION},
    )
    facts = ["It has a bridge.", "It makes clocks."]
    before = [before_calibration(text, method, readout) for text in facts]
    provider.calls.clear()
    asker = ApiModel("gpt", provider.url, retries=2)
    with running(open_provider(asker, INSTRUCTION, DEFAULT_TAGS, method, text_calibration="made")) as server:
        data = post(server, json.dumps({**body, "keep_factual": 0.3}).encode(), "/v1/tag")[1]
        answer = message(post(server, chat(QUESTION)))
        provider.silent = True
        silent = post(server, json.dumps(body).encode(), "/v1/tag")[1]
    assert [e["confidence"] for e in data["confidence"]] == pytest.approx(list(calibration(before)), abs=1e-9)
    assert [e["kept"] for e in data["confidence"]] == list(calibration.keeps(before, keep_factual=0.3))
    own = [mean(planted(t)) for t in written(QUESTION)]
    assert [e["confidence"] for e in answer["confidence"]] == pytest.approx(own)
    if readout != "stated":
        assert [e["confidence"] for e in silent["confidence"]] == [None, None]
        assert "of 2 sentences, and the calibration needs them, so there is no confidence" in silent["problems"][0]


def test_p_true_is_not_calibrated_by_stated_scores(provider: ChatServer) -> None:
    labelled(provider)
    calibrated("labelled.jsonl", "--layout", "lovec", "--confidence", "stated")
    asker = ApiModel("gpt", provider.url)
    with pytest.raises(LovecError, match="needs one of the probability of True"):
        open_provider(asker, INSTRUCTION, DEFAULT_TAGS, "p_true", text_calibration="made")


def test_what_a_provider_refuses_of_texts_it_may_grant_for_answers(provider: ChatServer) -> None:
    calibration_of_answers()
    body = json.dumps({"text": "It has a bridge.", "question": QUESTION}).encode()
    provider.top = 0
    with running(model(provider, method="p_true")) as server:
        assert post(server, body, "/v1/tag")[0] == 200
        assert post(server, chat(QUESTION))[1]["usage"] is not None
    provider.top, provider.options = 20, False
    with running(model(provider, method="p_true")) as server:
        message(post(server, chat(QUESTION)))
        [entry] = post(server, body, "/v1/tag")[1]["confidence"]
        [first, *_] = message(post(server, chat(QUESTION)))["confidence"]
    assert entry["confidence"] == pytest.approx((planted("It has a bridge.") + 1) / 12)
    assert first["confidence"] == pytest.approx(mean(planted(written(QUESTION)[0])))


def test_verdicts_on_texts_of_another_method_are_not_watched(provider: ChatServer) -> None:
    path = Path("verdicts.jsonl")
    with running(model(provider, method="verbal"), feedback=path) as server:
        reply = post(server, json.dumps({"text": "It has a bridge.", "question": QUESTION}).encode(), "/v1/tag")[1]
        verdicts = {"id": reply["id"], "sentences": [{"index": 0, "factuality": 1.0}]}
        assert post(server, json.dumps(verdicts).encode(), "/v1/labels")[0] == 200
    for method, watched in (("verbal", 1), ("p_true", 0)):
        feedback = Feedback(path, model(provider, method=method))
        assert feedback.sentences[ITERATIVE] == watched
        feedback.close()


def calibration_of_answers() -> None:
    """Write a calibration of means."""
    means, truth = [n % 11 / 10 for n in range(99)], [float(n % 11 + n % 7 > 8) for n in range(99)]
    made, _ = calibrate_scores({"mean of the distribution": means}, truth, layout="lovec", draws=1)
    Path("made").write_text(calibration_text(made))


def test_no_calibration_is_applied_to_scores_of_another_question() -> None:
    calibration_of_answers()
    for mode, other in ((FREE_FORM, ITERATIVE), (ITERATIVE, FREE_FORM)):
        served = ServedConfidence.of_scores("made", "gpt", DEFAULT_SCALE, mode)
        assert served.calibration(mode) is not None and served.calibration(other) is None
    tagger = open_provider(ApiModel("gpt"), INSTRUCTION, DEFAULT_TAGS, "p_true", text_calibration="made")
    assert tagger.served.calibration(ITERATIVE) is not None and tagger.served.calibration(FREE_FORM) is None


def test_verdicts_on_texts_are_taken_where_only_answers_are_calibrated(provider: ChatServer) -> None:
    calibration_of_answers()
    served = ServedConfidence.of_scores("made", "gpt", DEFAULT_SCALE)
    with running(model(provider, method="p_true", served=served), feedback=Path("verdicts.jsonl")) as server:
        status, reply = post(server, json.dumps({"text": "It has a bridge.", "question": QUESTION}).encode(), "/v1/tag")
        assert status == 200, reply
        verdicts = {"id": reply["id"], "sentences": [{"index": 0, "factuality": 1.0}]}
        assert post(server, json.dumps(verdicts).encode(), "/v1/labels")[0] == 200
    row = json.loads(Path("verdicts.jsonl").read_text())
    assert row["rank"] is None and row["confidence"] == pytest.approx((planted("It has a bridge.") + 1) / 12)


def test_numbers_of_texts_are_written_on_their_own_scale(provider: ChatServer) -> None:
    tags = TagFormat(scale=Scale(("unlikely", "likely")))
    facts = [f"{fact}." for fact in FACTS if planted(f"{fact}.") > 1]
    body = json.dumps({"text": " ".join(facts), "question": QUESTION}).encode()
    with running(model(provider, method="verbal", tags=tags), inline=" [{score}]") as server:
        status, data = post(server, body, "/v1/tag")
    assert status == 200 and data["content"] == " ".join(f"{fact} [{planted(fact)}]" for fact in facts)


def test_a_thought_that_drafts_the_text_is_no_part_of_its_content(provider: ChatServer) -> None:
    doubted, *facts = sorted((f"{fact}." for fact in FACTS), key=planted)[-4:]
    thought = f"<think>\nDraft: {doubted} {facts[0]}\n</think>\n\n"
    body = {
        "text": f"{thought}{' '.join([doubted, *facts])}",
        "question": QUESTION,
        "min_confidence": (planted(doubted) + 1.5) / 12,
    }
    with running(model(provider, method="p_true")) as server:
        status, data = post(server, json.dumps(body).encode(), "/v1/tag")
    assert planted(doubted) < planted(facts[0])
    assert status == 200 and data["content"] == " ".join(facts)


def test_without_a_method_given_texts_are_refused(provider: ChatServer) -> None:
    with running(model(provider)) as server:
        status, data = post(server, b'{"text": "A b.", "question": "C?"}', "/v1/tag")
    assert status == 404 and "start it with --method verbal" in data["error"]["message"] and provider.calls == []
    with pytest.raises(LovecError, match="luq takes many calls"), running(model(provider, method="luq")):
        pass


def test_verdicts_are_taken_and_watched(provider: ChatServer, tmp_path: Path) -> None:
    with running(model(provider), feedback=tmp_path / "verdicts.jsonl") as server:
        reply = post(server, chat(QUESTION))[1]
        verdicts = {"id": reply["id"], "sentences": [{"index": 0, "factuality": 1.0}]}
        assert post(server, json.dumps(verdicts).encode(), "/v1/labels")[0] == 200
    [line] = (tmp_path / "verdicts.jsonl").read_text().splitlines()
    first = written(QUESTION)[0]
    assert json.loads(line)["readouts"]["mean"] == pytest.approx(mean(planted(first)))
    assert json.loads(line)["readouts"]["stated"] == planted(first) / 10


def test_the_command_serves_a_provider(provider: ChatServer) -> None:
    labelled(provider)
    calibrated("labelled.jsonl")
    words = ["--model", "acme/gpt", "--engine", "openai", "--base_url", provider.url, "--calibration", "made"]
    command = [sys.executable, "-m", "lovec.cli", "serve", *words, "--port", "0", "--parameters", '{"seed": 5}']
    environment = {**os.environ, "OPENAI_API_KEY": "sk-of-the-provider", "OMP_NUM_THREADS": "1"}
    environment.pop("LOVEC_API_KEY", None)
    provider.calls.clear()
    with open("log", "w") as log:
        process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=log, text=True)
    line = first_line(process)
    url = re.search(r"http://[\d.:]+", line)
    assert url is not None and line.startswith("acme/gpt is served"), line + Path("log").read_text()
    asked = urllib.request.Request(f"{url[0]}/v1/chat/completions", chat(QUESTION, model="acme/gpt"))
    provider.faults = {"number": ["tell"] * 1}
    with urllib.request.urlopen(asked, timeout=60) as reply:
        found = json.loads(reply.read())["choices"][0]["message"]["confidence"]
    with urllib.request.urlopen(f"{url[0]}/", timeout=60) as page:
        assert "acme/gpt" in page.read().decode()
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 143
    calibration = lovec.load_calibration("made")
    expected = calibration([mean_confidence(Sentence("x", distribution=d).distribution) for d in distributions()])
    assert [entry["confidence"] for entry in found] == pytest.approx(list(expected), abs=1e-9)
    assert {call.key for call in provider.calls} == {"Bearer sk-of-the-provider"}
    assert provider.calls[-1].body["seed"] == 5 and provider.calls[-1].body["model"] == "acme/gpt"
    printed = Path("log").read_text()
    assert "Confidence: mean of the score distribution, calibrated" in printed and "sk-of-the-provider" not in printed


def distributions() -> list[tuple[float, ...]]:
    return [tuple(spread(planted(t)).get(str(n), 0.0) for n in range(11)) for t in written(QUESTION)]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--engine", "openai"], "--engine openai needs --model NAME"),
        (
            ["--engine", "openai", "--model", "gpt", "--dtype", "float32"],
            "--dtype works only with models",
        ),
        (["--model", "world", "--base_url", "http://x/v1"], "--base_url works only with --engine openai"),
        (["--model", "world", "--calibration", "x"], "--calibration works only with --engine openai"),
        (["--model", "world", "--method", "verbal"], "--method works only with --engine openai"),
        (["--engine", "openai", "--model", "gpt", "--calibration", "none"], "there is no calibration none"),
        (["--engine", "openai", "--model", "gpt", "--text_calibration", "x"], "needs --method verbal or"),
        (["--engine", "openai", "--model", "gpt"], "$OPENAI_API_KEY is not set"),
    ],
)
def test_options_that_do_not_go_together_are_refused(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lovec.cli.serve.log_to_stderr", lambda key: None)  # the log of this process is pytest's
    assert main(["serve", *words, "--port", "0"]) in (1, 2)
    assert said in capsys.readouterr().err
