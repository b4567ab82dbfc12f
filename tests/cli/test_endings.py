"""What a training and its test print: no noise, and at the end what was made and what can be run next."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest
import yaml
from commandline import build
from tinyrun import records, tiny

from lovec.cli import main
from lovec.cli.console import say_next
from lovec.datasets.jsonl import write_records

NOISE = ("TPU", "FLOPs", "v_num", "Epoch", "Seed set", "Trainer.fit", "estimate number", "Loading weights")


@pytest.mark.parametrize("test_path", ["rows.jsonl", None])
def test_a_training_and_its_test_end_with_what_to_run_next(here, capsys, tmp_path_factory, test_path) -> None:
    write_records("rows.jsonl", records(12))
    Path("own.yaml").write_text(yaml.safe_dump({
        "trainer": {"accelerator": "cpu", "default_root_dir": "runs/own", "limit_val_batches": 0},
        "model": {"init_args": {"policy": {"model": tiny(tmp_path_factory.getbasetemp())},
                                "evaluation": {"modes": ["iterative"]}}},
        "data": {"class_path": "Demonstrations",
                 "init_args": {"path": "rows.jsonl", "test_path": test_path, "batch_size": 4}},
    }))  # fmt: skip
    words = ["fit", "--config", "sft.yaml", "--config", "own.yaml", "--trainer.limit_train_batches", "1"]
    assert main(words) == 0
    printed = capsys.readouterr()
    assert not [noise for noise in NOISE if noise in printed.err + printed.out]
    assert "lovec: 1 step in 0:" in printed.err and "last loss" in printed.err  # 1 is one batch
    assert "lovec: SFT trains " in printed.err
    card = Path("runs/own/adapter/README.md").read_text()
    assert "# own\n" in card and "More Information Needed" not in card
    (following,) = [line for line in printed.err.splitlines() if line.startswith("next: ")]
    command = shlex.split(following.removeprefix("next:").partition("  # ")[0])
    assert command == ["lovec", "test", *words[1:], *([] if test_path else ["--data.test_path", "FILE.jsonl"])]
    assert "--adapter runs/own " in printed.err
    assert main([word.replace("FILE", "rows") for word in command[1:]]) == 0
    printed = capsys.readouterr()
    assert not [noise for noise in NOISE if noise in printed.err + printed.out]
    assert "next: lovec report runs/own" in printed.err and "lovec calibrate runs/own" in printed.err
    assert max(map(len, printed.out.splitlines())) <= 80


def test_a_test_after_going_on_is_of_what_was_trained_last(here, capsys, tmp_path_factory) -> None:
    write_records("rows.jsonl", records(12))
    data = ["--data.path", "rows.jsonl", "--data.test_path", "rows.jsonl"]
    model = ["--model.policy.model", tiny(tmp_path_factory.getbasetemp())]
    words = [
        *("fit", "--config", "sft.yaml", "--data", "Demonstrations", *data, "--data.batch_size", "4"),
        *model,
        *("--trainer.accelerator", "cpu"),
        *("--trainer.limit_val_batches", "0", "--trainer.default_root_dir", "runs/own", "--trainer.max_steps"),
    ]
    assert main([*words, "1"]) == 0
    first = "runs/own/logs/version_0/checkpoints/last.ckpt"
    for given, following in (
        ([*words, "2", "--ckpt-path", first], ["lovec", "test", *words[1:], "2"]),
        (["fit", "--ckpt_path", first, *data, *model, "--trainer.max_steps", "2"],
         ["lovec", "test", "--config", "runs/own/logs/version_2/config.yaml"]),
    ):  # fmt: skip
        capsys.readouterr()
        assert main(given) == 0
        (line,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("next: ")]
        assert shlex.split(line.removeprefix("next:").partition("  # ")[0]) == following
    settings = yaml.safe_load(Path("runs/own/logs/version_2/config.yaml").read_text())
    assert settings["ckpt_path"] is None and settings["trainer"]["max_steps"] == 2


def test_a_command_that_did_nothing_says_so(here, capsys, tmp_path_factory) -> None:
    write_records("rows.jsonl", records(12))
    Path("own.yaml").write_text(yaml.safe_dump({
        "trainer": {"accelerator": "cpu", "default_root_dir": "runs/own", "enable_progress_bar": False},
        "model": {"init_args": {"policy": {"model": tiny(tmp_path_factory.getbasetemp())},
                                "evaluation": {"modes": ["iterative"], "max_new_tokens": 8}}},
        "data": {"class_path": "Demonstrations",
                 "init_args": {"path": "rows.jsonl", "test_path": "rows.jsonl", "batch_size": 4}},
    }))  # fmt: skip
    recipes = ["--config", "sft.yaml", "--config", "own.yaml", "--trainer.limit_val_batches", "0"]

    def ends(command: str, *flags: str) -> str:
        capsys.readouterr()
        assert main([command, *recipes, *flags]) == 1
        printed = capsys.readouterr()
        assert "next: " not in printed.err and "records: runs" not in printed.err
        (line,) = [line for line in printed.err.splitlines() if line.startswith("lovec: error: ")]
        return line.removeprefix("lovec: error: ")

    assert ends("fit", "--trainer.limit_train_batches", "0") == "nothing was trained: trainer.limit_train_batches is 0"
    over = "nothing was trained: the run had already ended at step {}; raise trainer.max_steps, max_epochs or max_time"
    assert ends("fit", "--trainer.max_epochs", "0") == over.format(0)
    flags = ["--trainer.limit_val_batches", "1", "--trainer.val_check_interval", "1000"]
    assert ends("fit", *flags).startswith("trainer.val_check_interval is 1000, but an epoch has ")
    assert not Path("runs/own/adapter").exists()
    assert main(["fit", *recipes, "--trainer.max_steps", "1"]) == 0
    again = ["--trainer.max_steps", "1", "--ckpt_path"]
    assert ends("fit", *again, "last") == over.format(1)
    assert main(["fit", *recipes, *again, "auto"]) == 0  # a job that is started again
    assert "lovec: nothing was trained: the run had already ended at step 1" in capsys.readouterr().err
    empty = "the test split is empty, or trainer.limit_{}_batches is 0"
    assert ends("test", "--trainer.limit_test_batches", "0") == "no test record was measured: " + empty.format("test")
    assert ends("predict", "--trainer.limit_predict_batches", "0") == "no record was tagged: " + empty.format("predict")


@pytest.mark.parametrize(("given", "wanted"), [("1", 1), ("1.0", 1.0), ("3", 3), ("0.5", 0.5), ("0", 0)])
def test_a_whole_number_is_of_batches_and_one_with_a_point_a_share(given, wanted, monkeypatch) -> None:
    from lovec.cli.training import TrainingCLI

    monkeypatch.setattr(TrainingCLI, "instantiate_classes", lambda self: None)
    names = [f"limit_{stage}_batches" for stage in ("train", "val", "test", "predict")]
    settings = build("fit", "--config", "sft.yaml", *(f"--trainer.{name}={given}" for name in names)).config.trainer
    assert [(settings[name], type(settings[name])) for name in names] == [(wanted, type(wanted))] * 4


def test_what_comes_next_is_said_by_one_process(capsys, monkeypatch) -> None:
    say_next(("lovec tag a.txt", "tag it"), ("lovec " + "x" * 60, "long"))
    first, second = capsys.readouterr().err.splitlines()
    assert first.startswith("next: lovec tag a.txt ") and first.endswith("  # tag it")
    assert second == f"      lovec {'x' * 60}  # long"
    monkeypatch.setenv("RANK", "1")
    say_next(("lovec tag a.txt", "tag it"))
    assert capsys.readouterr().err == ""


def test_a_protocol_says_how_a_class_must_be_annotated(here, capsys) -> None:
    assert main(["label", "--oracle.help"]) == 0
    printed = capsys.readouterr().out
    assert "OpenAIOracle" in printed
    assert "rate(records: Sequence[Record]) -> list[list[float | None]]" in printed
