"""One text through `lovec tag`, `lovec.tag`, `/v1/tag` and the page: the same sentences, numbers and question."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from browser import CHROMIUM, browser
from served import Server, chat, post, running, streamed
from tinyrun import tiny

import lovec
from lovec.cli import main
from lovec.taggers import Session, open_session
from lovec.tagging import about_question
from lovec.types import LovecError

FOLDER = Path(__file__).parents[1] / "data" / "documents"
DOCUMENTS = sorted(path for path in FOLDER.iterdir() if path.suffix != ".yaml")
QUESTION = about_question("Ada Lovelace")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tiny(tmp_path_factory.mktemp("models"), "llama", max_position_embeddings=4096))


@pytest.fixture(scope="module")
def session(folder: str) -> Iterator[Session]:
    with open_session(folder, instruction="Rate.", rows=1, device="cpu") as session:
        yield session


@pytest.fixture(scope="module")
def server(folder: str) -> Iterator[Server]:
    with running(open_session(folder, instruction="Rate.", rows=1, device="cpu"), key=None) as server:
        yield server


@pytest.fixture(scope="module")
def commanded(folder: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """What the command writes of all documents, by name."""
    out = tmp_path_factory.mktemp("tagged") / "tagged.jsonl"
    words = ["tag", *map(str, DOCUMENTS), "--model", folder, "--instruction", "Rate.", "--rows", "1"]
    main([*words, "--out", str(out)])
    return {Path(row["id"]).name: row for row in map(json.loads, out.read_text(encoding="utf-8").splitlines())}


def text_of(path: Path) -> str:
    return path.read_text(encoding="utf-8")  # line ends as the command reads them


def sentences(entries: list[dict[str, Any]]) -> list[tuple[str, str, Any]]:
    return [(entry.get("kind", "statement"), entry["text"], entry["score"]) for entry in entries]


def numbers(entries: list[dict[str, Any]]) -> list[float]:
    return [entry["confidence"] for entry in entries if "kind" not in entry]


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_command_python_and_server_agree(
    path: Path, session: Session, server: Server, commanded: dict[str, dict[str, Any]]
) -> None:
    row, text = commanded[path.name], text_of(path)
    python = lovec.tag(text, session=session)
    status, answered = post(server, json.dumps({"text": text}).encode(), "/v1/tag")
    assert status == 200 and row["sentences"]
    assert row["question"] == python["question"] == answered["question"]
    assert row["answer"] == python["answer"]
    expected = sentences(row["sentences"])
    assert sentences(python["sentences"]) == sentences(answered["confidence"]) == expected
    assert numbers(python["sentences"]) == pytest.approx(numbers(row["sentences"]), abs=1e-6)
    assert numbers(answered["confidence"]) == pytest.approx(numbers(row["sentences"]), abs=1e-6)
    assert all(entry["confidence"] is None and entry["score"] is None for entry in row["sentences"] if "kind" in entry)
    assert answered["content"] == row["answer"].strip()
    events = streamed(server, json.dumps({"text": text, "stream": True}).encode(), "/v1/tag")
    assert "".join(event["content"] for event in events) == answered["content"]
    assert [entry for event in events for entry in event["confidence"]] == answered["confidence"]


PARTS = "document.querySelectorAll('#passage .lv-s, #passage .lv-markup')"
SHOWN = f"JSON.stringify([...{PARTS}].map((e) => e.textContent))"
ENTRIES = "JSON.stringify(shown.sentences.map(({ entry }) => entry))"
IDLE = "!running && document.getElementById('stop').hidden && shown.sentences.length"


@pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium")
def test_the_page_shows_the_same(server: Server, commanded: dict[str, dict[str, Any]], tmp_path: Path) -> None:
    with browser(tmp_path) as window:
        window.open(f"{server.url}/")
        window.value("document.querySelector('input[value=text]').click()")
        for path in DOCUMENTS:
            window.value(f"document.getElementById('text').value = {json.dumps(text_of(path))}")
            window.value("shown.sentences.length = 0; document.getElementById('form').requestSubmit()")
            window.wait_for(IDLE)
            row, entries = commanded[path.name], json.loads(window.value(ENTRIES))
            assert sentences(entries) == sentences(row["sentences"]), path.name
            assert numbers(entries) == pytest.approx(numbers(row["sentences"]), abs=1e-6)
            assert json.loads(window.value(SHOWN)) == [entry["text"] for entry in row["sentences"]]
            statements = len(numbers(entries))
            status = window.value("document.getElementById('status').textContent")
            assert status.startswith(f"{statements} sentence")
            assert window.value("document.getElementById('asked').textContent") == row["question"]


def test_which_question_is_answered_is_said_everywhere(
    session: Session, server: Server, folder: str, tmp_path: Path,
    caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    untitled, titled = "She wrote notes.", "# Ada Lovelace\n\nShe wrote notes."
    for text, words in (
        (untitled, "taken to answer"),
        (titled, 'is about "Ada Lovelace" (its heading)'),
    ):
        caplog.clear()
        lovec.tag(text, session=session)
        assert words in caplog.text and 'about="NAME"' in caplog.text
        _, answered = post(server, json.dumps({"text": text}).encode(), "/v1/tag")
        assert words in answered["problems"][0] and '"about": "NAME"' in answered["problems"][0]
        file = tmp_path / "page.txt"
        file.write_text(text, encoding="utf-8")
        main(["tag", str(file), "--model", folder, "--instruction", "Rate."])
        assert words in capsys.readouterr().err
    caplog.clear()
    for more in ({"about": "Ada Lovelace"}, {"question": QUESTION}):
        assert lovec.tag(untitled, session=session, **more)["question"] == QUESTION
        _, answered = post(server, json.dumps({"text": untitled, **more}).encode(), "/v1/tag")
        assert answered["question"] == QUESTION and answered["problems"] == []
    assert not caplog.text
    both = {"text": untitled, "about": "Ada", "question": "Who?"}
    status, answered = post(server, json.dumps(both).encode(), "/v1/tag")
    assert status == 400 and answered["error"]["param"] == "about"
    with pytest.raises(LovecError, match="both question and about"):
        lovec.tag(untitled, "Who?", session=session, about="Ada")


def test_the_server_says_what_the_model_does_not_know(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR)
    text, question = "Marie Curie discovered polonium.", "Who was Marie Curie?"
    with open_session("world-small") as session, running(session, key=None) as server:
        [said] = lovec.tag(text, question, session=session)["meta"]["problems"]
        assert said.startswith("the model does not know")
        _, answered = post(server, json.dumps({"text": text, "question": question}).encode(), "/v1/tag")
        assert answered["problems"] == [said]
        alone = lovec.tag(question=question, session=session, max_new_tokens=16)
        _, answered = post(server, chat(question, max_tokens=16))
        assert answered["choices"][0]["message"]["problems"] == alone["meta"]["problems"]
        assert any("does not know" in problem for problem in alone["meta"]["problems"])
        events = streamed(server, chat(question, max_tokens=16, stream=True))
        assert events[-1]["choices"][0]["delta"]["problems"] == alone["meta"]["problems"]
