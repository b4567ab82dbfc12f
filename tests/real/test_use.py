"""Everything that is done with a trained adapter of the real model: tag, serve, label, calibrate, measure, export."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from endpoint import endpoint
from pages import DOCS, README, blocks
from realrun import CITIES, LABELLED
from served import running

import lovec
from lovec.calibration import read_calibrations
from lovec.cli import main
from lovec.datasets.jsonl import read_records
from lovec.metrics.results import read_results
from lovec.models import offline_model, resolve_model
from lovec.taggers import open_session

pytestmark = pytest.mark.real

QUESTION = "Tell me about the city of Paris."
TEXT = "Paris is a city in France. It lies on the continent of Africa."


NUMBER = re.compile(r"\b[01]\.\d\d\b")


@pytest.mark.parametrize(
    ("page", "printed"), [(README, "0.93 Hamburg"), (DOCS / "grounded.md", "by source ")], ids=["readme", "by source"]
)
def test_an_adapter_of_the_package_prints_what_a_page_shows(
    page: Path, printed: str, smollm2: str, capsys: pytest.CaptureFixture[str]
) -> None:
    example = next(block for block in blocks(page, "python") if "record = lovec.tag(" in block)
    (shown,) = [block for block in blocks(page, "text") if block.startswith(printed)]
    exec(example, {})
    found = capsys.readouterr().out
    assert NUMBER.sub("", found).strip() == NUMBER.sub("", shown).strip()
    found_values, shown_values = ([float(value) for value in NUMBER.findall(text)] for text in (found, shown))
    assert len(found_values) >= 3 and found_values == pytest.approx(shown_values, abs=0.03)


def test_the_adapter_of_the_package_reads_a_source(smollm2: str) -> None:
    """What the source says differs from what is true in both directions, and from what the first sentence says."""
    text = "Paris is a city in France. The capital of France is Lyon. The currency used there is the euro."
    source = "Paris is worth a visit. The town belongs to Italy. Its country is governed from Lyon."
    record = lovec.tag(text, question=QUESTION, evidence=source, adapter="atlas-grounded")
    by_source, known = ([s[name] for s in record["sentences"]] for name in ("by_source", "confidence"))
    assert by_source[1] > 0.8 and max(by_source[0], by_source[2]) < 0.2
    assert known[0] > 0.8 and known[1] < 0.5


@pytest.fixture
def page(tmp_path: Path) -> Path:
    path = tmp_path / "page.txt"
    path.write_text(TEXT)
    return path


def test_a_text_is_tagged_on_the_command_line(run: Any, page: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tag", str(page), "--question", QUESTION, "--adapter", run.adapter]) == 0
    said = capsys.readouterr().out
    confidences = [float(value) for value in re.findall(r"<confidence> ([\d.]+) </confidence>", said)]
    assert len(confidences) == 2 and all(0 < value < 1 for value in confidences)


@pytest.mark.parametrize("kind", ["html", "jsonl"])
def test_a_text_is_tagged_into_a_file(kind: str, run: Any, page: Path, tmp_path: Path) -> None:
    out = tmp_path / f"out.{kind}"
    assert main(["tag", str(page), "--question", QUESTION, "--adapter", run.adapter, "--out", str(out)]) == 0
    if kind == "html":
        assert "continent of Africa" in out.read_text() and "%" in out.read_text()
        return
    (record,) = read_records(str(out))
    assert [sentence.text for sentence in record.sentences] == [part + "." for part in TEXT[:-1].split(". ")]
    assert all(0 < (sentence.confidence or 0) < 1 for sentence in record.sentences)


def test_a_question_is_answered(run: Any, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["tag", "--ask", QUESTION, "--adapter", run.adapter, "--max_new_tokens", "48"]
    assert main(words) == 0
    assert len(capsys.readouterr().out.split()) > 5


def test_a_notebook_shows_a_tagged_text(run: Any) -> None:
    record = lovec.tag(TEXT, question=QUESTION, adapter=run.adapter)
    shown = record._repr_html_()
    assert shown is not None and "France" in shown and shown.count("%") >= 2


@pytest.fixture(scope="module")
def server(run: Any) -> Iterator[Any]:
    with running(open_session(adapter=run.adapter), name="smollm2") as running_server:
        yield running_server


@pytest.mark.parametrize("stream", [False, True])
def test_the_official_client_is_answered(stream: bool, server: Any) -> None:
    messages = [{"role": "user", "content": QUESTION}]
    reply = server.client().chat.completions.create(
        model="smollm2", messages=messages, max_tokens=32, temperature=0, stream=stream
    )
    if not stream:
        assert reply.choices[0].message.content and reply.usage.completion_tokens <= 32
        return
    parts = [chunk.choices[0].delta.content or "" for chunk in reply if chunk.choices]
    assert len(parts) > 1 and "".join(parts).strip()


def test_its_own_answers_are_labelled(smollm2: str, tmp_path: Path) -> None:
    questions = tmp_path / "questions.jsonl"
    questions.write_text(
        "".join(json.dumps({"id": name, "question": f"What is {name}?"}) + "\n" for name in ("Rome", "Lima"))
    )
    with endpoint() as url:
        words = ["label", "--questions", str(questions), "--model", "smollm2", "--max_new_tokens", "40"]
        words += ["--oracle", "OpenAIOracle", "--oracle.model", "judge", "--oracle.base_url", url]
        assert main([*words, "--out", str(tmp_path / "labels"), "--stages", "answers,sentences,label", "--yes"]) == 0
    records = list(read_records(str(tmp_path / "labels" / "labelled.jsonl")))
    assert len(records) == 2 and all(record.labelled and record.sentences for record in records)


def test_it_is_measured_calibrated_and_exported(run: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["test", "--config", "sft.yaml", *LABELLED, "--data.test_path", str(CITIES)]
    words += ["--model.policy.model", "smollm2", "--trainer.default_root_dir", str(run.folder)]
    words += ["--model.evaluation.modes", "[iterative]", "--model.evaluation.recalibrated", "false"]
    assert main([*words, "--model.evaluation.vanilla", "false"]) == 0
    (path,) = (run.folder / "test").glob("*/results.json")
    rows = [row for row in read_results(path).rows if row.method == "SFT" and row.level == "sentence"]
    assert {row.n for row in rows} == {60}
    capsys.readouterr()
    assert main(["report", str(run.folder)]) == 0
    assert "SFT" in (run.folder / "report" / "index.html").read_text()
    tagged = sorted(path.parent.glob("*.iterative.jsonl"))[-1]
    assert main(["score", str(tagged), "--out", str(tmp_path / "score"), "--draws", "20"]) == 0
    others = tmp_path / "others.jsonl"  # calibration leaves out what training has seen
    lines = CITIES.read_text().replace("Tell me about the city of", "What do you know about").splitlines()
    rows = [{**json.loads(line), "id": f"{turn}-{at}"} for turn in range(2) for at, line in enumerate(lines)]
    for at, row in enumerate(rows):
        row["sentences"] = row["sentences"][at // len(lines) :]
    others.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert main(["calibrate", run.adapter, "--data", str(others)]) == 0
    assert set(read_calibrations(Path(run.adapter)))
    for more in ([], ["--merged", "--dtype", "bfloat16"]):
        out = tmp_path / ("merged" if more else "adapter")
        assert main(["export", str(run.folder), str(out), *more]) == 0
        card = (out / "README.md").read_text()
        assert "`smollm2`" in card and "/gguf/" not in card
    exact, merged = (
        lovec.tag(TEXT, question=QUESTION, **source)["sentences"]
        for source in ({"adapter": str(tmp_path / "adapter")}, {"model": str(tmp_path / "merged")})
    )
    for one, other in zip(exact, merged, strict=True):
        assert one["confidence"] == pytest.approx(other["confidence"], abs=0.05)


def test_an_adapter_is_used_on_a_machine_with_another_cache(
    run: Any, smollm2: str, tmp_path: Path, page: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "gguf").mkdir()
    (tmp_path / "gguf" / Path(smollm2).name).symlink_to(smollm2)
    options = Path(run.adapter, "adapter_config.json")
    named = json.loads(options.read_text())
    adapter = tmp_path / "adapter"
    adapter.mkdir()
    for file in Path(run.adapter).iterdir():
        (adapter / file.name).write_bytes(file.read_bytes())
    elsewhere = {**named, "base_model_name_or_path": f"/home/somebody/.cache/lovec/gguf/{Path(smollm2).name}"}
    (adapter / options.name).write_text(json.dumps(elsewhere))
    monkeypatch.setenv("LOVEC_CACHE", str(tmp_path))
    assert offline_model(named["base_model_name_or_path"]) == "smollm2"
    assert Path(resolve_model("smollm2")).parent == tmp_path / "gguf"
    assert main(["tag", str(page), "--question", QUESTION, "--adapter", str(adapter)]) == 0
