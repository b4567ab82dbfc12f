"""A reader of the output that is gone before its end: files are written, and nobody is told of an error."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from signal import SIGTERM
from typing import Any

import pytest
from forks import in_child

from lovec.cli import main
from lovec.core.signals import Terminated
from lovec.types import LovecError


def unread(words: str, buffered: bool = True) -> tuple[int, str]:
    """Exit code and errors of a command whose output nobody reads."""

    def work() -> int:
        reader, writer = os.pipe()
        os.dup2(writer, 1)
        os.close(writer)
        os.close(reader)
        sys.stdout, sys.stderr = open(1, "w", buffering=-1 if buffered else 1), open("errors.txt", "w")
        code = main(words.split())
        sys.stdout.flush()  # as Python does at its end
        sys.stderr.flush()
        return code

    return in_child(work), Path("errors.txt").read_text()


@pytest.fixture
def rows(here: Path) -> Path:
    """A file of scores and labels and the log of a training, in the working directory."""
    lines = (json.dumps({"confidence": at % 10 / 10, "label": int(at % 10 > at % 7)}) for at in range(40))
    Path("made.jsonl").write_text("\n".join(lines))
    log = Path("sft/logs/version_0/metrics.csv")
    log.parent.mkdir(parents=True)
    log.write_text("step,train/loss\n9,0.9\n19,0.8\n")
    return here


@pytest.mark.parametrize(
    ("words", "file"),
    [
        ("score made.jsonl --draws 0", "made.score/index.html"),
        ("calibrate made.jsonl --draws 5", "made.calibration/calibration.json"),
        ("curves sft", "sft/curves.json"),
    ],
)
def test_what_nobody_reads_is_written(rows: Path, words: str, file: str) -> None:
    code, errors = unread(words, buffered=False)
    assert (code, "rror" in errors) == (0, False), errors
    assert Path(file).is_file()


@pytest.mark.parametrize("buffered", [True, False])
@pytest.mark.parametrize("words", ["--help", "score --help", "world"])
def test_a_reader_that_is_gone_is_no_error(here: Path, words: str, buffered: bool) -> None:
    code, errors = unread(words, buffered)
    assert code == 0 and "rror" not in errors and "ignored" not in errors, errors


@pytest.mark.parametrize("buffered", [True, False])
@pytest.mark.parametrize(
    ("failed", "code"), [(LovecError("it has failed"), 1), (KeyboardInterrupt(), 130), (Terminated.by(SIGTERM), 143)]
)
def test_a_command_that_has_failed_is_an_error_without_a_reader(
    here: Path, monkeypatch: Any, failed: BaseException, code: int, buffered: bool
) -> None:
    def failing(_: Any) -> None:
        try:
            raise failed
        finally:
            print("what was done until then")

    monkeypatch.setattr("lovec.cli.label.run", failing)
    found, errors = unread("label", buffered)
    assert found == code and ("it has failed" in errors) == (code == 1), errors


def test_another_broken_pipe_is_an_error(here: Path, capsys: Any, monkeypatch: Any) -> None:
    def broken(*_: Any) -> None:
        raise BrokenPipeError(32, "Broken pipe")

    monkeypatch.setattr("lovec.cli.usage", broken)
    with capsys.disabled():
        code = main(["--help"])
    assert code == 1
