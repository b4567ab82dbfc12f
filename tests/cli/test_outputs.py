"""Nothing that a user owns is lost: inputs, files that are there, two runs in one folder, a full disk."""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest
from commandline import error_of
from forks import Fork, in_child
from tinyrun import records

from lovec.cli import main
from lovec.cli.console import locked, texts_in
from lovec.core.hub import ADAPTER_FILES, SHIPPED, adapter_folder
from lovec.datasets.jsonl import write_records
from lovec.metrics.results import read_results

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def files(here: Path, model: str, adapter: str) -> dict[str, bytes]:
    """A working directory with inputs of every kind; their content, by path."""
    Path("page.txt").write_text("Ada wrote notes.")
    write_records("in.jsonl", records(3))
    Path("notes").write_text("Ada.")
    os.link("in.jsonl", "hard.jsonl")
    Path("link").symlink_to(".")
    Path("labels").mkdir()
    write_records("labels/labelled.jsonl", records(3))
    shutil.copytree(Path(adapter), "sft/adapter")
    Path("sft/test").mkdir()
    Path("sft/test/mine").write_text("mine")
    return contents()


def contents() -> dict[str, bytes]:
    paths = (path for path in Path().rglob("*") if path.is_file() and path.name not in (".lock", "lovec.json"))
    return {str(path): path.read_bytes() for path in paths if not path.name.endswith(".lock")}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("tag page.txt --out page.txt", "the output page.txt is also the input page.txt"),
        ("tag page.txt --out link/page.txt --redo", "is also the input page.txt"),
        ("tag page.txt --format html --out page.txt", "is also the input page.txt"),
        ("tag in.jsonl --out in.jsonl --model tiny-llama", "is also the input in.jsonl"),
        ("tag in.jsonl --out in.jsonl --redo --model tiny-llama", "is also the input in.jsonl"),
        ("tag hard.jsonl --out in.jsonl --redo --model tiny-llama", "is also the input hard.jsonl"),
        ("tag --ask_file in.jsonl --out ./labels/../in.jsonl --redo --model tiny-llama", "is also the input in.jsonl"),
        ("tag page.txt --adapter sft/adapter --out sft/adapter/out.html", "lies in the input sft/adapter"),
        ("tag page.txt --out sft/test/mine", "sft/test/mine exists and is not empty; choose another --out, or replace"),
        ("export sft sft --redo", "the output sft holds the input sft/adapter"),
        ("export sft link/sft/adapter --redo", "is also the input sft/adapter"),
        ("export sft sft/adapter/new", "lies in the input sft/adapter"),
        ("export sft . --redo", "the output . is the working folder or holds it"),
        ("export sft sft/test --redo", "is also the input sft/test"),
        ("export sft notes --redo", "notes is a file, expected a folder"),
        ("label --answers labels/labelled.jsonl --out labels --oracle WorldOracle --redo",
         "the output labels/labelled.jsonl is also the input labels/labelled.jsonl"),
        ("label --labelled in.jsonl --out sft/adapter --adapter sft/adapter", "lies in the input sft/adapter"),
    ],
)  # fmt: skip
def test_an_input_is_never_written_over(
    files: dict[str, bytes], capsys: pytest.CaptureFixture[str], words: str, message: str
) -> None:
    code, line = error_of(capsys, *words.split())
    assert code == 1 and message in line
    assert contents() == files


def test_names_of_models_and_words_are_no_inputs() -> None:
    policy = {"model": "tiny-llama", "adapter": "runs/sft", "instruction": "runs/x"}
    model = {"class_path": "lovec.modules.DPO", "init_args": {"policy": policy}, "dict_kwargs": {"table": "own.csv"}}
    judge = {"class_path": "lovec.oracles.OpenAIOracle", "init_args": {"model": "judge", "cache": "replies.sqlite"}}
    settings = {"model": model, "data": {"path": ["world", "a.jsonl"]}, "oracle": judge}
    assert [*texts_in(settings)] == ["runs/sft", "own.csv", "world", "a.jsonl", "replies.sqlite"]
    assert [*texts_in({"model": "folder"})] == ["folder"]


@pytest.mark.parametrize("file", ADAPTER_FILES)
@pytest.mark.parametrize("folder", ["world", "world/adapter"])
def test_a_folder_with_an_adapter_comes_before_one_that_is_shipped(here: Path, folder: str, file: str) -> None:
    shipped = str(SHIPPED["world"])
    assert adapter_folder("world") == shipped
    Path(folder).mkdir(parents=True)
    Path("world/tags.jsonl").touch()
    assert adapter_folder("world") == shipped
    (Path(folder) / file).touch()  # without the other one, it is the user's all the same, and broken
    assert adapter_folder("world") == (folder if file == ADAPTER_FILES[0] else "world")


def test_outputs_may_lie_in_a_folder_called_like_what_comes_with_lovec(here: Path, capfd: Any) -> None:
    Path("page.txt").write_text("Port Dekella is a town.")
    for number in range(2):
        for name in ("--adapter world", "--model tiny-llama"):
            out = f"{name.partition(' ')[2]}/{number}"
            for ending in ("jsonl", "txt"):
                words = ["tag", "page.txt", *name.split(), "--about", "Port Dekella", "--out", f"{out}.{ending}"]
                assert main(words) == 0, capfd.readouterr().err
                assert Path(f"{out}.{ending}").stat().st_size


@pytest.mark.parametrize("words", ["export ../sft", "score ../x.csv --out", "calibrate ../x.csv --out"])
def test_the_working_folder_is_not_replaced(
    files: dict[str, bytes], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: str
) -> None:
    Path("x.csv").write_text("confidence,correct\n0.9,1\n0.2,0\n")
    Path("new").mkdir()
    monkeypatch.chdir("new")
    code, line = error_of(capsys, *words.split(), ".")
    assert (
        code == 1 and "the output . is the working folder or holds it, and cannot be replaced; choose another" in line
    )
    assert not list(Path().iterdir())


@pytest.mark.parametrize(
    ("folder", "said"),
    [
        ("-", "{} is -, expected the name of a folder to write"),
        ("new/page.html", "{} new/page.html is named like a file, expected a folder, such as new/page"),
    ],
)
@pytest.mark.parametrize(("words", "name"), [("export sft", "FOLDER"), ("world --build", "--build")])
def test_no_folder_is_named_like_standard_output_or_a_file(
    files: dict[str, bytes], capsys: pytest.CaptureFixture[str], words: str, name: str, folder: str, said: str
) -> None:
    code, line = error_of(capsys, *words.split(), folder)
    assert code == 2 and line == said.format(name)
    assert contents() == files


def test_training_does_not_replace_the_adapter_that_it_starts_from(
    files: dict[str, bytes], model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    start = ["--model", "SFT", "--model.policy.model", model, "--data", "tinyrun.Rows"]
    for folder in ("sft", "link/sft", "sft/adapter"):
        words = ["fit", *start, "--model.policy.adapter", "sft/adapter", "--trainer.default_root_dir", folder]
        code, line = error_of(capsys, *words)
        assert code == 1 and "the input sft/adapter" in line and "--trainer.default_root_dir" in line
    assert contents() == files


def test_a_prediction_does_not_replace_what_it_reads(
    here: Path, model: str, adapter: str, capsys: pytest.CaptureFixture[str]
) -> None:
    write_records("run/predictions/rows.jsonl", records(3))
    before = contents()
    words = [
        "--model",
        "SFT",
        "--model.policy.model",
        model,
        "--data",
        "Demonstrations",
        "--trainer.default_root_dir",
        "run",
    ]
    words += ["--model.evaluation.adapter", adapter]
    code, line = error_of(capsys, "predict", *words, "--data.path", "run/predictions/rows.jsonl")
    assert code == 1 and "is also the input run/predictions/rows.jsonl" in line
    assert contents() == before


def test_a_report_replaces_its_own_page_only(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from lovec.cli.report import _check_folder

    Path("mine/tables").mkdir(parents=True)
    _check_folder(Path("mine"))
    Path("mine/tables/main.csv").write_text("mine")
    with pytest.raises(Exception, match="mine/tables exists and is not empty; no report has written it"):
        _check_folder(Path("mine"))
    Path("mine/index.html").write_text("<p>Mine")
    with pytest.raises(Exception, match=r"mine/index\.html exists"):
        _check_folder(Path("mine"))
    Path("mine/index.html").write_text("<p>Written by lovec 0.1.0.")
    _check_folder(Path("mine"))


# Two runs in one folder


def fit(model: str, *more: str) -> list[str]:
    return [
        "--model", "SFT", "--model.policy.model", model, "--data", "tinyrun.Rows", "--model.evaluation.modes",
        "[iterative]", "--trainer.default_root_dir", "run", "--trainer.enable_progress_bar", "false", *more,
    ]  # fmt: skip


def test_a_second_run_in_a_folder_is_refused_until_the_first_has_ended(
    here: Path, model: str, adapter: str, capsys: pytest.CaptureFixture[str]
) -> None:
    reader, writer = os.pipe()
    first = os.fork()
    if first == 0:
        with locked(Path("run"), folder=True):
            os.write(writer, b"x")
            signal.pause()
    os.read(reader, 1)
    try:
        for command in ("fit", "test", "predict"):
            measured = [] if command == "fit" else ["--model.evaluation.adapter", adapter]
            assert main([command, *fit(model, *measured)]) == 1
            line = capsys.readouterr().err.splitlines()[-1]
            assert line.startswith(f"lovec: error: another run (process {first} on "), line
            assert line.endswith("writes run; wait for it, or choose another folder")
    finally:
        os.kill(first, signal.SIGKILL)
        os.waitpid(first, 0)
    assert in_child(lambda: main(["fit", *fit(model)])) == 0  # the lock is gone with the process
    assert Path("run/adapter").exists()


def test_the_second_of_two_new_folders_is_refused_too(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The folder of the first one did not exist when it was locked."""
    write_records("in.jsonl", records(2))
    with locked(Path("new/labels"), folder=True):
        code, line = error_of(capsys, "label", "--labelled", "in.jsonl", "--out", "new/labels")
    assert code == 1 and "another run" in line


def test_another_prediction_is_kept_aside_and_an_equal_one_replaced(
    here: Path, model: str, adapter: str, capfd: Any
) -> None:
    words = ["predict", *fit(model, "--model.evaluation.adapter", adapter)]
    for _ in range(2):
        assert in_child(lambda: main(words)) == 0
        assert "is kept in" not in capfd.readouterr().err
    Path("run/predictions/rows.jsonl").write_text("another")
    assert in_child(lambda: main(words)) == 0
    assert Path("run/predictions-1/rows.jsonl").read_text() == "another"


# A full disk


FULL = """
import resource
from lightning.pytorch.callbacks import Callback

class Full(Callback):
    def on_test_batch_end(self, *args):
        resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))

    def on_train_end(self, *args):
        resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))
"""


def lovec_run(*words: str) -> tuple[int, str, str]:
    """Exit code, output and errors of a command in a process of its own; both go through pipes, which have no limit."""
    with Fork(lambda: main(list(words))) as fork:
        output, errors = fork.stdout.read(), fork.stderr.read()
    return fork.wait(), output, errors


def test_a_full_disk_at_the_end_of_a_test_leaves_the_table(here: Path, model: str, adapter: str) -> None:
    Path("my_disk.py").write_text(FULL)
    words = fit(model, "--model.evaluation.adapter", adapter, "--trainer.callbacks+", "my_disk.Full")
    code, output, errors = lovec_run("test", *words)
    assert code == 1 and "Traceback" not in errors, errors
    assert "Test of SFT" in output and "Best constant" in output
    last = errors.splitlines()[-1]
    assert last.startswith("lovec: error: cannot write run/test/") and "(File too large); make room" in last
    assert not Path("run/test/rows/results.json").exists() and not list(Path("run/test").glob("*.part"))
    assert lovec_run("test", *words[:-2])[0] == 0
    assert read_results("run/test/rows/results.json").rows


def test_a_full_disk_at_the_end_of_training_keeps_the_older_adapter(here: Path, model: str) -> None:
    Path("my_disk.py").write_text(FULL)
    Path("run/adapter").mkdir(parents=True)
    Path("run/adapter/old").touch()
    full = ["--trainer.callbacks", "my_disk.Full", "--trainer.enable_checkpointing", "false"]
    words = fit(model, *full, "--trainer.logger", "false")
    code, _, errors = lovec_run("fit", *words)
    assert code == 1 and "Traceback" not in errors, errors
    assert errors.splitlines()[-1].startswith("lovec: error: cannot write the adapter")
    assert Path("run/adapter/old").exists()
