"""`lovec tag --engine openai`: a model behind chat completions tags, and its tagged file is labelled and scored."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from chatserver import FACTS, ChatServer, planted, spread, written
from endpoint import endpoint

import lovec
from lovec.cli import main
from lovec.core import calls
from lovec.datasets.jsonl import read_records
from lovec.encoding import INSTRUCTION
from lovec.oracles.cache import ChatReply, ReplyCache, ReplyToken
from lovec.oracles.chat import read_reply
from lovec.tagging import CUT_OFF, ApiModel, ApiTagger
from lovec.tagging.apis import level_logps
from lovec.types import DEFAULT_SCALE, FREE_FORM, ITERATIVE, LovecError, Record

QUESTION = "In a paragraph, could you tell me what you know about {}?"
NAMES = ("Ada", "Bob", "Port Dekella")
LIFE = "# Ada\n\n" + " ".join(f"{fact}." for fact in FACTS) + "\n"
TEXTS = [f"{fact}." for fact in FACTS]


@pytest.fixture(autouse=True)
def setting(no_key: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(calls, "_FIRST_WAIT", 0.01)
    monkeypatch.setenv("LOVEC_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    Path("life.md").write_text(LIFE, encoding="utf-8")
    rows = [json.dumps({"id": name, "question": QUESTION.format(name)}) for name in NAMES]
    Path("questions.jsonl").write_text("\n".join(rows), encoding="utf-8")


@pytest.fixture
def server() -> Iterator[ChatServer]:
    with ChatServer() as running:
        yield running


@pytest.fixture
def run(server: ChatServer, capsys: pytest.CaptureFixture[str]) -> Any:
    def run(*words: str, yes: bool = True) -> tuple[int, str, str]:
        """Exit code, standard output and standard error of a command that asks the server."""
        capsys.readouterr()
        api = ["--model", "gpt", "--engine", "openai", "--base_url", server.url, *["--yes"] * yes]
        code = main(["tag", *words, *api])
        printed = capsys.readouterr()
        return code, printed.out, printed.err

    return run


def mean(score: int) -> float:
    chances = spread(score)
    return sum(int(word) * p for word, p in chances.items()) / sum(chances.values()) / 10


def statements(line: str) -> list[dict[str, Any]]:
    return [sentence for sentence in json.loads(line)["sentences"] if "kind" not in sentence]


# Questions


@pytest.mark.parametrize("digits", [False, True])
def test_answers_are_tagged_by_the_papers_instruction(run: Any, server: ChatServer, digits: bool) -> None:
    server.digits = digits
    code, _, err = run("--ask_file", "questions.jsonl", "--out", "tags.jsonl", "--price_in", "1", "--price_out", "10")
    assert code == 0 and re.search(
        r"gpt: 3 questions: 0 answered by the cache, 3 calls, about .* in and 1,536 out", err
    )
    assert "gpt: 3 calls, 0 cached, 0 failed, $0.01" in err
    assert {call.body["messages"][0]["content"] for call in server.calls} == {INSTRUCTION}
    body = server.calls[0].body
    assert (body["temperature"], body["max_tokens"], body["logprobs"], body["top_logprobs"]) == (0, 512, True, 20)
    for record in read_records("tags.jsonl"):
        assert [s.text for s in record.sentences] == written(record.question)
        assert [s.score for s in record.sentences] == [planted(s.text) for s in record.sentences]
        assert record.meta["problems"] == [] and record.meta["finished"]
        for sentence in record.sentences:
            ambiguous = digits and {"1", "10"} <= spread(sentence.score).keys()
            if digits and sentence.score not in (1, 10) and spread(sentence.score).keys() & {"1", "10"}:
                assert sum(sentence.distribution) < 0.95  # "1" may begin "10", so nobody knows which it is
            elif not ambiguous:
                assert sentence.confidence == pytest.approx(mean(sentence.score))
                assert sum(sentence.distribution) == pytest.approx(1)


def test_a_printed_answer_has_its_line_breaks(run: Any, server: ChatServer) -> None:
    tagged = "<confidence> {} </confidence>"
    written = (
        f"Ada wrote notes. {tagged}\n\nHer work:\n\n- She used an engine. {tagged}\n  - It ran on steam. {tagged}\n"
        f"- 4 {tagged}\n\n\n It rained. {tagged}She died. {tagged} \nAnd"
    )
    answer, shown = written.format(9, 8, 3, 4, 7, 6), written.format("0.90", "0.80", "0.30", "0.40", "0.70", "0.60")
    shown = shown.replace("\n\n\n", "\n\n").replace(">She", "> She").replace(" \nAnd", "\nAnd")
    server.faults = {"Ada": [f"says {answer}"] * 2}  # without a tag at its end it is asked for once more
    ask = ("--ask", "Who was Ada?")
    assert run(*ask)[:2] == (0, f"{shown}\n")
    assert run(*ask, "--out", "a.txt", yes=False)[0] == 0 and Path("a.txt").read_text() == f"{shown}\n"
    sure = re.sub(r"\n  - It ran.*?- 4[^\n]*", "", shown, flags=re.DOTALL).removesuffix("\nAnd")
    assert run(*ask, "--min_confidence", "0.5", yes=False)[:2] == (0, f"{sure}\n")
    server.faults = {"Ada": [f"says {answer}"] * 2, "Bob": [f"says Bob ran. {tagged.format(5)}"]}
    _, out, _ = run("--ask", "Who was Bob?", *ask)
    assert out == f"==> Who was Bob? <==\nBob ran. {tagged.format('0.50')}\n\n==> Who was Ada? <==\n{shown}\n"


@pytest.mark.parametrize(("top", "silent"), [(5, False), (0, False), (20, True)])
def test_without_log_probabilities_the_stated_score_counts_with_one_warning(
    run: Any, server: ChatServer, caplog: pytest.LogCaptureFixture, top: int, silent: bool
) -> None:
    server.top, server.silent = top, silent
    assert run("--ask_file", "questions.jsonl", "--out", "tags.jsonl", "--rows", "1", "--concurrency", "1")[0] == 0
    tried = {5: 1, 0: 2, 20: 0}[top]  # refused calls, of the first question only
    assert len(server.calls) == 3 + tried
    known = top == 5
    for record in read_records("tags.jsonl"):
        for s in record.sentences:
            assert s.confidence == pytest.approx(mean(s.score) if known else s.score / 10)
            assert (s.distribution is not None) == known
    warned = [r.message for r in caplog.records if "log-probabilities" in r.message or "refuses" in r.message]
    assert len(warned) == (0 if known else 1 if silent else 2)  # refused, and what follows from it
    server.calls.clear()
    assert run("--ask_file", "questions.jsonl", "--out", "again.jsonl", yes=False)[0] == 0  # nothing is asked again
    assert server.calls == [] and Path("again.jsonl").read_bytes() == Path("tags.jsonl").read_bytes()


def test_the_stated_readout_asks_for_no_log_probabilities(run: Any, server: ChatServer) -> None:
    _, out, _ = run("--ask", QUESTION.format("Ada"), "--readout", "stated")
    assert "logprobs" not in server.calls[0].body
    assert re.findall(r"<confidence> (\d+) </confidence>", out) == [
        str(planted(s)) for s in written(QUESTION.format("Ada"))
    ]


@pytest.mark.parametrize("words", [["--ask_file", "questions.jsonl"], ["life.md", "--method", "p_true"]])
def test_parameters_switch_log_probabilities_off(run: Any, server: ChatServer, words: list[str]) -> None:
    parameters = json.dumps({"logprobs": None, "top_logprobs": None})
    assert run(*words, "--out", "tags.jsonl", "--parameters", parameters)[0] == 0
    assert server.calls and not any({"logprobs", "top_logprobs"} & call.body.keys() for call in server.calls)


@pytest.mark.parametrize("times", [1, 2])
def test_malformed_tags_are_asked_for_once_more_and_counted(run: Any, server: ChatServer, times: int) -> None:
    server.faults = {"Bob": ["malformed"] * times}
    code, _, err = run("--ask_file", "questions.jsonl", "--out", "tags.jsonl")
    assert code == 0 and len(server.calls) == 4 and "1 reply could not be used" in err
    asked = [call.body["temperature"] for call in server.calls if "Bob" in call.prompt]
    assert sorted(asked) == [0, 0.7]  # at 0 it would be the same reply
    _, bob, _ = read_records("tags.jsonl")
    if times == 1:
        assert all(s.confidence is not None for s in bob.sentences) and not bob.meta["problems"]
    else:
        assert [s.confidence for s in bob.sentences] == [None] and "no closing tag" in bob.meta["problems"][0]
        assert "1 without a confidence" in err


def test_a_question_that_fails_has_no_answer_and_says_why(run: Any, server: ChatServer) -> None:
    server.faults = {"Bob": ["422"] * 9}
    code, _, err = run("--ask_file", "questions.jsonl", "--out", "tags.jsonl")
    _, bob, _ = read_records("tags.jsonl")
    assert code == 0 and bob.sentences == () and "HTTP 422" in bob.meta["problems"][0] and "1 failed" in err


def test_an_answer_that_was_cut_off_has_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "It rained. <confidence> 9 </confidence> It was late. <confidence> 8 </confidence>"
    replies = [ChatReply(text, "length"), ChatReply(text, "stop")]
    monkeypatch.setattr(ApiModel, "answers", lambda *_: replies)
    records = [Record(name, "How was it?") for name in ("cut", "whole")]
    tagged = [item for item in ApiTagger(ApiModel("gpt")).stream(records, FREE_FORM) if isinstance(item, Record)]
    assert [len(record.sentences) for record in tagged] == [2, 2]
    assert [CUT_OFF in record.meta["problems"] for record in tagged] == [True, False]


# Given texts


@pytest.mark.parametrize("top", [20, 0])
def test_given_texts_are_scored_by_p_true_and_by_a_number(run: Any, server: ChatServer, top: int) -> None:
    server.top = top
    code, line, err = run("life.md", "--method", "p_true", "--format", "jsonl")
    true = [(planted(text) + 1) / 12 for text in TEXTS]
    assert code == 0 and "gpt: 4 questions: 0 answered by the cache, 4 calls" in err
    expected = true if top else [float(p > 0.5) for p in true]
    assert [s["confidence"] for s in statements(line)] == pytest.approx(expected)
    assert f"Context (for reference): {' '.join(TEXTS)}\n" in server.calls[0].prompt  # the heading is none of it
    _, line, _ = run("life.md", "--method", "verbal", "--format", "jsonl")
    assert [(s["score"], s["confidence"]) for s in statements(line)] == [(planted(t), planted(t) / 10) for t in TEXTS]
    _, line, _ = run("life.md", "--method", "verbal", "--readout", "mean", "--format", "jsonl")
    means = [mean(planted(t)) if top else planted(t) / 10 for t in TEXTS]
    assert [s["confidence"] for s in statements(line)] == pytest.approx(means)
    _, page, _ = run("life.md", "--method", "p_true", "--format", "html", yes=False)
    shown = re.findall(r'<sup class="lv-n"[^>]*>\D*([\d.]+)', page)
    assert shown == [f"{p:.2f}" for p in expected] and "Model: gpt." in page


def support(name: str, text: str, samples: int, pieces: bool) -> float:
    """The share of samples that hold a sentence; here a sample holds it where one of its sentences does."""
    import hashlib

    keys = (hashlib.sha256(f"0/{name}/{number}".encode()).digest() for number in range(1, samples + 1))
    return sum(text in written(int.from_bytes(key[:4], "big") >> 1) for key in keys) / samples


@pytest.mark.parametrize("method", ["luq", "self_consistency"])
def test_given_texts_are_compared_with_samples(run: Any, server: ChatServer, method: str) -> None:
    words = ("life.md", "--method", method, "--samples", "3", "--format", "jsonl")
    code, line, err = run(*words)
    per_sentence = 1 if method == "luq" else 4  # a sample is taken to have as many sentences as the text
    expected = 3 + 3 * 4 * per_sentence
    assert code == 0 and f"gpt: {expected} questions: 0 answered by the cache, {expected} calls" in err
    tokens = int(re.search(r"about ([\d,]+) tokens in", err)[1].replace(",", ""))
    assert 12 * per_sentence * (512 if method == "luq" else 25) < tokens < 12 * per_sentence * 700
    known = [support("life.md", text, 3, method != "luq") for text in TEXTS]
    assert [s["confidence"] for s in statements(line)] == pytest.approx(known) and len(set(known)) > 1
    asked = [call.body for call in server.calls if call.prompt == QUESTION.format("Ada")]
    assert [body["temperature"] for body in asked] == [1.0] * 3 and len({body["seed"] for body in asked}) == 3
    assert all("n" not in call.body for call in server.calls)  # which servers refuse
    n = len(server.calls)
    code, again, err = run(*words, yes=False)
    assert code == 0 and again == line and len(server.calls) == n and ", 0 calls, " in err
    code, line, _ = run("life.md", "--method", method, "--samples", "3", "--about", "Ada", "--format", "jsonl")
    assert code == 0
    Path("plain.txt").write_text("It rained.")
    code, _, err = run("plain.txt", "--method", method)
    assert code == 1 and "plain.txt has no question" in err


def test_a_reply_that_is_no_number_is_asked_for_again(run: Any, server: ChatServer) -> None:
    server.faults = {"bridge": ["malformed"] * 12}
    code, line, err = run("life.md", "--method", "verbal", "--format", "jsonl", "--concurrency", "1")
    assert code == 0 and "12 replies could not be used" in err and "4 failed" in err  # all have the bridge in them
    record = json.loads(line)
    assert [s.get("confidence") for s in record["sentences"] if "kind" not in s] == [None] * 4
    assert "4 sentences have no confidence: 3 replies could not be used" in record["meta"]["problems"][0]


# Resuming


def test_what_was_broken_off_goes_on_without_asking_again(
    run: Any, server: ChatServer, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    rows = [{"id": f"q{i}", "question": f"Who was number {i}?"} for i in range(12)]
    Path("many.jsonl").write_text("\n".join(map(json.dumps, rows)))
    server.faults = {"7": ["401"]}
    words = ("--ask_file", "many.jsonl", "--out", "tags.jsonl", "--rows", "4", "--concurrency", "2")
    code, _, err = run(*words)
    assert code == 1 and "the server refuses every call" in err and "all replies so far are in the cache" in err
    done = {call.prompt for call in server.calls if "7" not in call.prompt}
    assert 4 <= len(list(read_records("tags.jsonl"))) < 12
    before = len(server.calls)
    code, _, err = run(*words)
    assert code == 0, err
    assert not done & {call.prompt for call in server.calls[before:]}
    assert len(list(read_records("tags.jsonl"))) == 12
    server.calls.clear()
    assert run(*words, "--method", "luq")[0] == 2 and run(*words, "--instruction", "Rate.")[0] == 1
    assert run(*words, yes=False)[0] == 0 and server.calls == []  # finished
    monkeypatch.setenv("OPENAI_BASE_URL", server.url)
    assert main(["tag", *words, "--model", "gpt", "--engine", "openai"]) == 0  # the same server, named elsewhere
    monkeypatch.setenv("OPENAI_BASE_URL", "http://127.0.0.1:1/v1")
    assert main(["tag", *words, "--model", "gpt", "--engine", "openai"]) == 1
    assert "base_url was" in capsys.readouterr().err


@pytest.mark.slow
def test_a_killed_run_pays_for_nothing_twice(server: ChatServer, tmp_path: Path) -> None:
    server.delay = 0.05
    rows = [{"id": f"q{i}", "question": f"Who was number {i}?"} for i in range(30)]
    Path("many.jsonl").write_text("\n".join(map(json.dumps, rows)))
    words = ["tag", "--ask_file", "many.jsonl", "--out", "tags.jsonl", "--rows", "5", "--concurrency", "1", "--yes"]
    words += ["--model", "gpt", "--engine", "openai", "--base_url", server.url]
    process = subprocess.Popen(
        [sys.executable, "-c", "import sys; from lovec.cli import main; main(sys.argv[1:])", *words]
    )
    while len(server.calls) < 8:
        time.sleep(0.02)
        assert process.poll() is None
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert main(words) == 0
    assert 30 <= len(server.calls) <= 31  # the one that was in progress
    assert len(list(read_records("tags.jsonl"))) == 30


def test_calls_are_made_together(run: Any, server: ChatServer) -> None:
    server.delay = 0.1
    run("life.md", "--method", "p_true", "--concurrency", "3")
    assert server.most == 3


# What follows


def test_prompts_of_a_long_text_are_made_one_by_one(server: ChatServer, monkeypatch: pytest.MonkeyPatch) -> None:
    tagger = ApiTagger(ApiModel("gpt", server.url, concurrency=2), "p_true")
    made, ahead, make = count(1), [], tagger._word_prompt

    def counting(*given: Any) -> Any:
        ahead.append(next(made) - len(server.calls))
        return make(*given)

    monkeypatch.setattr(tagger, "_word_prompt", counting)
    record = Record("Ada", QUESTION.format("Ada"), answer=" ".join(f"It has {number} bridges." for number in range(40)))
    *sentences, _ = tagger.stream([record], ITERATIVE)
    assert len(sentences) == len(ahead) == len(server.calls) == 40 and max(ahead) <= 2  # each has the whole text in it


def test_a_tagged_file_is_labelled_and_scored(run: Any, capsys: Any) -> None:
    assert run("--ask_file", "questions.jsonl", "--out", "tags.jsonl")[0] == 0
    tagged = {r.id: [s.confidence for s in r.sentences] for r in read_records("tags.jsonl")}
    with endpoint() as url:
        label = ["label", "--answers", "tags.jsonl", "--stages", "sentences,label", "--out", "labels", "--yes"]
        assert main([*label, "--oracle", "OpenAIOracle", "--oracle.model", "j", "--oracle.base_url", url]) == 0
    labelled = list(read_records("labels/labelled.jsonl"))
    assert {r.id: [s.confidence for s in r.sentences] for r in labelled} == tagged
    assert all(s.factuality is not None for r in labelled for s in r.sentences)
    assert main(["score", "labels/labelled.jsonl", "--draws", "0", "--out", "scores"]) == 0
    assert "ECE-M" in capsys.readouterr().out


def test_the_same_from_python(server: ChatServer) -> None:
    record = lovec.tag(LIFE, about="Ada", model="gpt", engine="openai", base_url=server.url, method="p_true")
    known = [(planted(text) + 1) / 12 for text in TEXTS]
    assert [s["confidence"] for s in record["sentences"] if "kind" not in s] == pytest.approx(known)
    answer = lovec.tag(question=QUESTION.format("Ada"), model="gpt", engine="openai", base_url=server.url)
    assert [s["text"] for s in answer["sentences"]] == written(QUESTION.format("Ada"))
    with pytest.raises(LovecError, match="tags given texts by a method"):
        lovec.tag(LIFE, model="gpt", engine="openai", base_url=server.url)
    with pytest.raises(LovecError, match="model is empty"):
        lovec.tag(LIFE, engine="openai", base_url=server.url, method="p_true")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["life.md"], "tags given texts by a method"),
        (["life.md", "--method", "likelihood"], "log-probabilities of given tokens"),
        (["--ask", "Who?", "--method", "luq"], "leave it out to have questions answered with tags"),
        (["--ask", "Who?", "--dtype", "float32"], "--dtype works only with models that lovec runs"),
        (["--ask", "Who?", "--keep_factual", "0.9"], "--keep_factual works only with models that lovec runs"),
        (["--ask", "Who?", "--max_cost", "1"], "max_cost needs prices"),
    ],
)
def test_what_cannot_be_done_is_one_line(run: Any, server: ChatServer, words: list[str], message: str) -> None:
    code, out, err = run(*words)
    assert code in (1, 2) and out == "" and message in err.splitlines()[-1] and not server.calls


def test_nothing_is_paid_for_without_a_word(run: Any, server: ChatServer, capsys: Any) -> None:
    code, _, err = run("--ask", "Who?", yes=False)
    assert code == 2 and "give --yes" in err and not server.calls
    assert main(["tag", "life.md", "--model", "tiny-llama", "--base_url", server.url]) == 2
    assert "works only with --engine openai" in capsys.readouterr().err
    assert main(["tag", "--ask", "Who?", "--engine", "openai"]) == 1
    assert "--engine openai needs --model NAME" in capsys.readouterr().err


# Log-probabilities


def reply(*tokens: tuple[str, dict[str, float]]) -> ChatReply:
    text, listed = "", []
    for token, logps in tokens:
        listed.append(ReplyToken(len(text), token, logps))
        text += token
    return ChatReply(text, tokens=tuple(listed))


@pytest.mark.parametrize(
    ("tokens", "place", "expected"),
    [
        ([(" 9", {" 9": -0.5, " 10": -1.5, " A": -3.0})], 1, {"9": -0.5, "10": -1.5}),
        ([("9", {"9": -0.5, "1": -1.5})], 0, {"9": -0.5}),  # "1" may begin "10"
        ([("9", {"9": -0.5, "1": -1.5, "10": -2.0})], 0, {"9": -0.5, "1": -1.5, "10": -2.0}),
        ([("1", {"1": -0.05, "9": -3.2})], 0, {"1": -0.05, "9": -3.2}),  # the text ends, so it is no "10"
        ([(">", {}), ("1", {"1": -0.5, "8": -1.0}), ("</", {"</": -0.1})], 1, {"1": -0.5, "8": -1.0}),
        ([("1", {"1": -0.5}), ("0", {"0": -0.1054, " <": -2.3026})], 0, {"10": -0.6054, "1": -2.8026}),
        ([("9</", {"9</": -0.5, "8": -1.5})], 0, {"9": -0.5, "8": -1.5}),
        ([("nine", {"nine": -0.1})], 0, None),
    ],
)
def test_words_are_told_by_their_first_tokens(tokens: Any, place: int, expected: dict[str, float] | None) -> None:
    found = level_logps(reply(*tokens), place, DEFAULT_SCALE.words)
    if expected is None:
        assert found is None
    else:
        known = {word: logp for word, logp in zip(DEFAULT_SCALE.words, found, strict=True) if logp > -99}
        assert known == pytest.approx(expected, abs=1e-3)


def test_tokens_are_placed_by_their_bytes() -> None:
    def token(piece: bytes, logp: float = -0.5) -> dict[str, Any]:
        text = piece.decode(errors="replace")
        return {"token": text, "bytes": list(piece), "logprob": logp, "top_logprobs": []}

    pieces = [b"hm", b"Zo", "ë".encode()[:1], "ë".encode()[1:], b" 9"]
    choice = {"message": {"content": "Zoë 9"}, "logprobs": {"content": list(map(token, pieces))}}
    found = read_reply(json.dumps({"choices": [choice]}))
    assert [(t.begin, t.text) for t in found.tokens][0::3] == [(0, "Zo"), (3, " 9")]  # "hm" is not one of the text
    for broken in ([{"token": 7}], "no", [{"token": "Zoë 9", "logprob": None, "top_logprobs": []}], [token(b"else")]):
        choice["logprobs"] = {"content": broken}
        assert read_reply(json.dumps({"choices": [choice]})).tokens == ()


def test_a_cache_of_an_earlier_version_is_read_and_written(tmp_path: Path) -> None:
    import sqlite3

    path = tmp_path / "old.sqlite"
    with ReplyCache(path) as cache:
        cache.put("a", ChatReply("old", "stop", 1, 2))
    with sqlite3.connect(path) as db:
        db.execute("ALTER TABLE replies DROP COLUMN tokens")
    stored = reply((" 9", {" 9": -0.5}))
    for _ in range(2):
        with ReplyCache(path) as cache:
            cache.put("b", stored)
            assert cache.get("a") == ChatReply("old", "stop", 1, 2) and cache.get("b") == stored
