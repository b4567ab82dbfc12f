"""What an output that goes on after a kill, a shard and a manifest depend on: all that decides a score."""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
from commandline import error_of

from lovec.cli import main

EARLIER = Path(__file__).resolve().parents[1] / "data" / "earlier"
"""Outputs of an earlier version, as kills have left them; their manifests do not say what decides a score."""

RESUMED = EARLIER.with_name("resumed")
"""Outputs of the version that first compared what decides a score, as kills have left them."""


def state_of(path: str) -> dict[str, Any]:
    return json.loads(Path(path).read_text())


def cut(name: str, keep: int) -> None:
    """Leave a finished output as a run that was killed after its first chunks does."""
    manifest, lines = Path(f"{name}.manifest.json"), Path(f"{name}.jsonl").read_bytes().splitlines(keepends=True)
    Path(f"{name}.jsonl").write_bytes(b"".join(lines[:keep]))
    state = json.loads(manifest.read_text()) | {"digest": "", "sizes": [sum(map(len, lines[:keep]))]}
    state["counts"]["records"] = keep
    manifest.write_text(json.dumps(state))


@pytest.fixture
def run(here: Path, model: str, adapter: str) -> Path:
    shutil.copytree(adapter, here / "run" / "adapter")
    shutil.copytree(model, here / "model")
    (here / "in.jsonl").write_text("".join(json.dumps({"id": f"d{i}", "text": "Ada ran."}) + "\n" for i in range(4)))
    shutil.copy(here / "model" / "chat_template.jinja", here / "own.jinja")
    return here / "run"


def changed(path: str, *pair: str) -> None:
    text = Path(path).read_text()
    assert pair[0] in text
    Path(path).write_text(text.replace(*pair))


def other_options() -> None:
    changed("run/adapter/adapter_config.json", '"lora_alpha": 8', '"lora_alpha": 64')


def on_another_base() -> None:
    changed("model/config.json", '"rms_norm_eps": 1e-06', '"rms_norm_eps": 1e-02')


OTHERS = [
    (other_options, [], "lora_alpha was 8, is 64"),
    (lambda: changed("own.jinja", "{%", "{# other #}{%"), [], "chat_template was "),
    (lambda: None, ["--quantization", "nf4"], "quantization was none, is nf4"),
    (on_another_base, [], "the model's configuration was "),
]
TAGGED = ("tag", "in.jsonl", "--about", "Ada", "--rows", "2", "--out", "tags.jsonl")
SESSION = (
    "--model",
    "model",
    "--any_base",
    "true",
    "--adapter",
    "run",
    "--device",
    "cpu",
    "--chat_template",
    "own.jinja",
)


@pytest.mark.parametrize(("change", "words", "said"), [
    *OTHERS, (lambda: changed("run/adapter/lovec.json", "Rate each", "Never rate a"), [], "instruction was ")
])  # fmt: skip
def test_a_file_of_tags_does_not_go_on_with_other_scores(
    run: Path, capsys: Any, change: Any, words: list[str], said: str
) -> None:
    assert main([*TAGGED, *SESSION]) == 0
    whole = Path("tags.jsonl").read_bytes()
    cut("tags", 2)
    assert main([*TAGGED, *SESSION]) == 0 and Path("tags.jsonl").read_bytes() == whole
    cut("tags", 2)
    half = Path("tags.jsonl").read_bytes()
    change()
    code, line = error_of(capsys, *TAGGED, *SESSION, *words)
    assert code == 1 and "tags.jsonl was made with other settings: " in line and said in line and "--redo" in line
    assert Path("tags.jsonl").read_bytes() == half


def test_a_file_of_tags_does_not_go_on_with_other_code_of_ones_own(
    run: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(run.parent))
    engine = Path("own_engine.py")
    engine.write_text("from lovec.engines import TransformersEngine\nclass Own(TransformersEngine): ...\n")
    words = [*TAGGED, *SESSION, "--engine", "own_engine.Own"]
    try:
        assert main(words) == 0
        whole = Path("tags.jsonl").read_bytes()
        cut("tags", 2)
        assert main(words) == 0 and Path("tags.jsonl").read_bytes() == whole
        cut("tags", 2)
        half = Path("tags.jsonl").read_bytes()
        changed("own_engine.py", ": ...", ": rounded = True")
        code, line = error_of(capsys, *words)
    finally:
        sys.modules.pop("own_engine", None)
    assert code == 1 and "made with other settings: the code of own_engine was " in line and "--redo" in line
    assert Path("tags.jsonl").read_bytes() == half


@pytest.mark.parametrize(("change", "words", "said"), OTHERS)
@pytest.mark.parametrize("stage", ["answers", "label"])
def test_answers_and_labels_of_a_model_do_not_go_on_with_another(
    run: Path, capsys: Any, change: Any, words: list[str], said: str, stage: str
) -> None:
    rows = ({"id": f"q{i}", "question": "Who?", "answer": "Ada ran."} for i in range(4))
    Path("q.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    given = ["--questions", "q.jsonl"] if stage == "answers" else ["--answers", "q.jsonl", "--oracle", "SelfJudge"]
    stages = "answers" if stage == "answers" else "sentences,label"
    label = ["label", *given, "--stages", stages, "--out", "out", "--max_new_tokens", "4", *SESSION]
    main(label)
    capsys.readouterr()
    change()
    code = main([*label, *words])
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("lovec: error: ")]
    assert code == 1 and "was made with other settings: " in lines[0] and said in lines[0]


def test_shards_of_other_scores_are_not_joined(run: Path, capsys: Any) -> None:
    assert main([*TAGGED, *SESSION, "--shard", "1/2"]) == 0
    other_options()
    assert main([*TAGGED, *SESSION, "--shard", "2/2"]) == 0
    code, line = error_of(capsys, "join", "tags.jsonl")
    assert code == 1 and "lora_alpha is 8 in shard 1/2, 64 in shard 2/2" in line and not Path("tags.jsonl").exists()


def test_what_an_earlier_version_has_begun_goes_on(here: Path, capsys: Any) -> None:
    shutil.copytree(EARLIER, here, dirs_exist_ok=True)
    tag = ["tag", "documents.jsonl", "--model", "tiny-llama", "--rows", "2", "--out", "tags.jsonl"]
    begun = Path("tags.jsonl").read_bytes().splitlines()[:2]
    assert "provenance" not in state_of("tags.manifest.json")["identity"]["settings"]
    code, line = error_of(capsys, *tag, "--tag_words", "[<b>, </b>]", "--about", "A")
    assert code == 1 and "other settings: " in line
    code, line = error_of(capsys, *tag)
    assert code == 1 and "scoring" in line and "exact" in line  # the default of then
    assert main([*tag, "--scoring", "exact"]) == 0
    lines = Path("tags.jsonl").read_bytes().splitlines()
    assert lines[:2] == begun and [json.loads(line)["id"] for line in lines] == [f"d{n}" for n in range(1, 7)]
    assert "weights" in state_of("tags.manifest.json")["identity"]["settings"]["provenance"]["base"]  # from now on
    begun = Path("labels/answers.jsonl").read_bytes().splitlines()[:4]
    label = ["label", "--questions", "documents.jsonl", "--stages", "answers", "--model", "tiny-llama"]
    assert main([*label, "--rows", "2", "--max_new_tokens", "8", "--out", "labels"]) == 0
    lines = Path("labels/answers.jsonl").read_bytes().splitlines()
    assert lines[:4] == begun and len(lines) == 6


def test_what_was_begun_before_goes_on_and_names_all_that_differs(here: Path, capsys: Any) -> None:
    shutil.copytree(RESUMED, here, dirs_exist_ok=True)
    tag = ["tag", "documents.jsonl", "--model", "world-small", "--rows", "2", "--device", "cpu", "--out", "tags.jsonl"]
    origin, begun = state_of("tags.manifest.json")["identity"], Path("tags.jsonl").read_bytes()
    code, line = error_of(capsys, *tag, "--scoring", "exact", "--instruction", "Rate.", "--min_confidence", "0.5")
    assert code == 1 and "; give --redo to make it again" in line
    for said in ("scoring was prefix, is exact", "min_confidence was none, is 0.5", "instruction was none, is Rate."):
        assert line.count(said) == 1
    assert main(tag) == 0
    assert Path("tags.jsonl").read_bytes().startswith(begun) and state_of("tags.manifest.json")["identity"] == origin
    origin, begun = state_of("labels/answers.manifest.json")["identity"], Path("labels/answers.jsonl").read_bytes()
    label = ["label", "--questions", "documents.jsonl", "--stages", "answers", "--model", "world-small", "--rows", "2"]
    assert main([*label, "--device", "cpu", "--max_new_tokens", "8", "--out", "labels"]) == 0
    assert Path("labels/answers.jsonl").read_bytes().startswith(begun)
    assert state_of("labels/answers.manifest.json")["identity"] == origin


FAULTS: list[tuple[dict[str, Any] | str, str]] = [
    ({"counts": {"records": "5"}}, "the count 'records' is '5', expected an integer"),
    ({"counts": {"records": 1.5}}, "the count 'records' is 1.5"),
    ({"counts": {"records": -5}}, "the count 'records' is -5"),
    ({"counts": [5]}, "its counts is a list of 1 items, expected an object"),
    ({"sizes": []}, "its sizes is a list of 0 items"),
    ({"sizes": [1, 2, 3]}, "its sizes is a list of 3 items"),
    ({"sizes": [-5]}, "a size is -5, expected an integer from 0"),
    ({"sizes": ["5"]}, "a size is '5'"),
    ({"sizes": 5}, "its sizes is 5"),
    ({"digest": None}, "its digest is None"),
    ({"identity": {"source": {}}}, "its identity lacks 'settings'"),
    ({"identity": {"source": {}, "settings": {"provenance": 5}}}, "a provenance is 5, expected an object"),
    ({"more": 1}, "the manifest has the unknown key 'more'"),
    ('{"counts": {"records": 1e400}, "sizes": [1], "digest": "", "identity": {"source": {}, "settings": {}}}', "inf"),
    ("[" * 100_000, "is not JSON"),
    ('{"sizes": [5], "sizes": [6]}', "the key 'sizes' is there twice"),
    ("9" * 5000, "is not JSON"),
    ("\udcff", "is not JSON"),
]


@pytest.mark.parametrize(("fault", "said"), FAULTS)
@pytest.mark.parametrize("command", ["tag", "join", "label"])
def test_a_manifest_that_is_none_is_one_line(
    here: Path, capsys: Any, fault: dict[str, Any] | str, said: str, command: str
) -> None:
    shutil.copytree(EARLIER, here, dirs_exist_ok=True)
    name = {"tag": "tags", "join": "joined.shard-1-of-1", "label": "labels/answers"}[command]
    state = state_of("tags.manifest.json")
    text = fault if isinstance(fault, str) else json.dumps(state | fault)
    Path(f"{name}.manifest.json").write_text(text, errors="surrogateescape")
    shutil.copy("tags.jsonl", "joined.shard-1-of-1.jsonl")
    words = {
        "tag": ["tag", "documents.jsonl", "--model", "tiny-llama", "--about", "A", "--out", "tags.jsonl"],
        "join": ["join", "joined.jsonl"],
        "label": ["label", "--questions", "documents.jsonl", "--stages", "answers", "--model", "tiny-llama", "--out"],
    }[command]
    capsys.readouterr()
    code = main([*words, "labels"] if command == "label" else words)
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("lovec: error: ")]
    assert code == 1 and len(lines) == 1 and said in lines[0] and "--redo" in lines[0]
    assert not Path("joined.jsonl").exists()


def test_a_manifest_that_is_a_pipe_is_not_waited_for(here: Path, capsys: Any) -> None:
    Path("tags.shard-1-of-1.jsonl").touch()
    os.mkfifo("tags.shard-1-of-1.manifest.json")
    code, line = error_of(capsys, "join", "tags.jsonl")
    assert code == 1 and "it is not a regular file" in line and "make the shard again with --redo" in line


def test_a_file_name_of_very_many_shards_costs_nothing(here: Path, capsys: Any) -> None:
    Path("tags.shard-1-of-999999999.jsonl").touch()
    code, line = error_of(capsys, "join", "tags.jsonl")
    assert code == 1 and "999999998 of 999999999 shards of tags.jsonl are missing; run --shard 2/999999999, " in line
    assert line.endswith(", ...")
    Path("tags.shard-1-of-999999999.jsonl").rename("tags.shard-1-of-2147483647.jsonl")
    assert "there are no shards of tags.jsonl" in error_of(capsys, "join", "tags.jsonl")[1]
