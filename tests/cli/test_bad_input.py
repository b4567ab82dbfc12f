"""Inputs that cannot be used are one line: data files, recipes, devices, numbers, and classes of the user's own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from commandline import CPU, error_of

from lovec.evaluation.evaluator import EvaluationConfig, Evaluator, label
from lovec.labelling import LabelStep
from lovec.rewards import sentence_rewards
from lovec.types import LovecError, Record, Sentence

SFT = ["fit", "--config", "sft.yaml", *CPU, "--model.policy.model", "tiny-llama", "--data", "Demonstrations"]
LABEL = ["--answers", "ok.jsonl", "--oracle", "TriviaQAOracle"]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with data files of every kind."""
    monkeypatch.chdir(tmp_path)
    rows: list[dict[str, Any]] = [
        {"id": f"r{i}", "question": "Who?", "sentences": [{"text": "A b.", "factuality": 0.5}]} for i in range(4)
    ]
    (tmp_path / "ok.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "half.jsonl").write_text("".join(json.dumps({**row, "question": "\ud800"}) + "\n" for row in rows))
    (tmp_path / "empty.jsonl").write_text("")
    (tmp_path / "binary.jsonl").write_bytes(bytes(range(128, 256)) * 8)
    (tmp_path / "folder").mkdir()
    for name, text in {"numbers": "1: 2\n", "nested": "trainer:\n  3: 4\n", "list": "- a\n", "nothing": ""}.items():
        (tmp_path / f"{name}.yaml").write_text(text)
    return tmp_path


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("empty.jsonl", "empty.jsonl is empty"),
        ("binary.jsonl", "binary.jsonl is a binary file"),
        ("folder", "cannot read folder (Is a directory)"),
        ("missing.jsonl", "cannot read missing.jsonl (No such file or directory)"),
        ("half.jsonl", "half.jsonl:1: not valid UTF-8 text (surrogates not allowed)"),
    ],
)
def test_data_files(here: Path, capsys: pytest.CaptureFixture[str], path: str, words: str) -> None:
    from lovec.datamodules import Demonstrations

    with pytest.raises(LovecError) as error:
        data = Demonstrations(path)
        data.setup("fit")
        data.train_dataloader()
    assert words in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize("name", ["PopQA", "TriviaQA", "WikiBio", "WildHallu"])
def test_an_empty_copy_of_a_data_set(here: Path, name: str) -> None:
    import lovec.datamodules

    with pytest.raises(LovecError, match=r"cannot read empty\.jsonl as .*the file is empty"):
        list(getattr(lovec.datamodules, name)(path="empty.jsonl").questions("test"))


@pytest.mark.parametrize(
    ("recipe", "words"),
    [
        ("numbers.yaml", "recipe numbers.yaml has the key 1, expected a name such as trainer"),
        ("nested.yaml", "recipe nested.yaml has the key 3, expected a name such as trainer"),
        ("list.yaml", "recipe list.yaml holds no settings"),
        ("nothing.yaml", "recipe nothing.yaml holds no settings"),
    ],
)
def test_recipes(here: Path, capsys: pytest.CaptureFixture[str], recipe: str, words: str) -> None:
    code, line = error_of(capsys, "fit", "--config", recipe)
    assert code == 2 and words in line


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--trainer.accelerator", "foo"], "unknown value for --trainer.accelerator foo; known are auto, gpu, cpu"),
        (["--trainer.devices", "cuda"], "should be an int > 0"),
        (["--trainer.log_every_n_steps", "-3"], "--trainer.log_every_n_steps is -3, expected at least 0"),
        (["--trainer.check_val_every_n_epoch", "0"], "--trainer.check_val_every_n_epoch is 0, expected at least 1"),
        (["--trainer.num_sanity_val_steps", "-7"], "--trainer.num_sanity_val_steps is -7, expected at least -1"),
        (["--seed_everything", "-1"], "--seed_everything is -1, expected at least 0 and at most 4294967295"),
        (["--seed_everything", "5000000000"], "--seed_everything is 5000000000, expected at least 0 and at most"),
        (["--model.grad_norm", "-1"], "grad_norm is -1.0, expected at least 0"),
        (["--model.grad_norm", ".nan"], "grad_norm is nan, expected"),
        (["--model.micro_batch_tokens", "-1"], "micro_batch_tokens is -1, expected at least 1"),
        (["--model.policy.max_length", "0"], "policy.max_length is 0, expected at least 1"),
        (["--data.batch_size", "0"], "--data.batch_size is 0, expected at least 1"),
    ],
)
def test_numbers_of_a_run(here: Path, capsys: pytest.CaptureFixture[str], flags: list[str], words: str) -> None:
    code, line = error_of(capsys, *SFT, "--data.path", "ok.jsonl", *flags)
    assert code in (1, 2) and words in line


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("cuda:9", "which this machine does not have; expected cpu"),
        *((n, "expected one of cpu, cuda, hpu") for n in ("foo", "cpu:x", "meta")),
    ],
)
def test_devices(here: Path, capsys: pytest.CaptureFixture[str], name: str, words: str) -> None:
    (here / "page.txt").write_text("Ada was born.")
    code, line = error_of(capsys, "tag", "page.txt", "--about", "Ada", "--model", "tiny-llama", "--device", name)
    assert code == 1 and line.startswith(f"device is '{name}', {words}")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["serve", "--model", "tiny-llama", "--port", "70000"],
            "--port is 70000, expected at least 0 and at most 65535",
        ),
        (["demo", "--seed", "-1"], "--seed is -1, expected at least 0"),
        (["report", ".", "--answers", "-1"], "--answers is -1, expected at least 0"),
        (["label", *LABEL, "--chunk", "0"], "--chunk is 0, expected at least 1"),
        (["label", *LABEL, "--samples", "-1"], "--samples is -1, expected at least 1"),
        (["label", *LABEL, "--seed", "-1"], "--seed is -1, expected at least 0"),
        (["tag", "ok.jsonl", "--model", "tiny-llama", "--rows", "-1"], "--rows is -1, expected at least 1"),
        (["tag", "--ask", "Who?", "--model", "tiny-llama", "--max_new_tokens", "0"], "max_new_tokens is 0, expected"),
    ],
)
def test_numbers_of_other_commands(
    here: Path, capsys: pytest.CaptureFixture[str], words: list[str], message: str
) -> None:
    code, line = error_of(capsys, *words)
    assert code in (1, 2) and message in line


def test_words_that_are_no_text(here: Path) -> None:
    """Bytes that are no UTF-8, as a shell passes them."""
    command = [os.fsencode(sys.executable), b"-m", b"lovec.cli", b"tag", b"--about", b"Ad\xe9", b"page.txt"]
    run = subprocess.run(command, capture_output=True, text=True)
    assert run.returncode == 2
    assert run.stderr == "lovec: error: 'Ad\\udce9' is not valid UTF-8 text; rename the file, or correct the word\n"


# Classes of the user's own


RECORDS = [
    Record("a", "Q?", sentences=(Sentence("One."), Sentence("Two."))),
    Record("b", "Q?", sentences=(Sentence("Three."),)),
]


class Answering:
    """An oracle that returns what it is given."""

    def __init__(self, ratings: Any) -> None:
        self.ratings = ratings

    def rate(self, records: Any) -> Any:
        return self.ratings


@pytest.mark.parametrize("use", [label, lambda records, oracle: LabelStep(oracle)(records)], ids=["test", "label"])
@pytest.mark.parametrize(
    ("ratings", "words"),
    [
        (None, "returned None, expected a list of ratings for every record"),
        ([0.5, 0.5], r"returned \[0.5, 0.5\], expected a list of ratings for every record"),
        ([[0.5, 0.5]], "rated 1 records, expected ratings of 2"),
        ([[0.5, 0.5], [0.5], [0.5]], "rated 3 records, expected ratings of 2"),
        ([[0.5], [0.5]], r"rated 'a' \[0.5\], expected 2 numbers in \[0, 1\] or None"),
        ([[0.5, 0.5], [0.5, 0.5]], "rated 'b' .*, expected 1 numbers"),
        ([[0.5, float("nan")], [0.5]], "rated 'a' .*nan"),
        ([[0.5, 7], [0.5]], "rated 'a' .*7"),
        ([["yes", "no"], ["yes"]], "rated 'a' .*yes"),
    ],
)
def test_oracles_that_do_not_rate_every_sentence(use: Any, ratings: Any, words: str) -> None:
    with pytest.raises(LovecError, match=f"^Answering {words}"):
        use(RECORDS, Answering(ratings))


@pytest.mark.parametrize("value", [None, "3", float("nan"), [1.0]])
def test_rewards_that_are_no_number(value: Any) -> None:
    with pytest.raises(LovecError, match="expected a finite number; fix the reward"):
        sentence_rewards(lambda score, rating: value, [3], [4])


@pytest.mark.parametrize(
    ("tag", "words"),
    [
        (lambda records: records[:1], "returned 1 records for 2, expected the same ones in the same order"),
        (lambda records: records[::-1], "returned 2 records for 2, expected the same ones"),
        (
            lambda records: [Record(r.id, r.question, sentences=(Sentence("x", confidence=1.5),)) for r in records],
            "gave a is 1.5, expected at least 0 and at most 1",
        ),
    ],
)
def test_taggers_that_lose_records(tag: Any, words: str) -> None:
    class Tagger:
        def tag(self, records: Any) -> Any:
            return tag(records)

    evaluator = Evaluator({"iterative": Tagger()}, None, EvaluationConfig(), ["in-domain"])
    with pytest.raises(LovecError, match=words):
        evaluator.tag(RECORDS, "iterative")
