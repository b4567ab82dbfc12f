"""SIGTERM, SIGHUP and Ctrl-C: exit codes that stop `fit && test`, and training that goes on where it was stopped."""

from __future__ import annotations

import csv
import os
import shlex
import signal
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from forks import Fork, in_child, ranks

from lovec.cli import main
from lovec.cli.training import _resume_command
from lovec.evaluation.stopping import SignalConnector
from lovec.policy.checkpoints import read_checkpoint

STUCK = ["--trainer.callbacks+", "signalled.Stuck", "--trainer.callbacks.hook"]
CODES = {signal.SIGTERM: 143, signal.SIGHUP: 129, signal.SIGINT: 130}


def words(command: str, model: str, run: str, *more: str) -> list[str]:
    """A command on 11 records: two epochs of three steps, each with a validation, where it trains."""
    return [
        command, "--model", "SFT", "--model.policy.model", model, "--model.policy.lora_r", "4",
        "--data", "tinyrun.Rows", "--data.n", "11", "--data.batch_size", "4", "--model.evaluation.modes", "[iterative]",
        "--trainer.default_root_dir", run, "--trainer.enable_progress_bar", "false",
        *(["--trainer.max_epochs", "2"] if command == "fit" else []), *more,
    ]  # fmt: skip


def kick(hook: str, number: int, at: int = 1) -> list[str]:
    """Options that let a run send itself a signal."""
    return ["--trainer.callbacks+", "signalled.Signalled", "--trainer.callbacks.hook", hook,
            "--trainer.callbacks.number", str(int(number)), "--trainer.callbacks.at", str(at)]  # fmt: skip


def weights(run: str) -> bytes:
    return Path(run, "adapter", "adapter_model.safetensors").read_bytes()


def validations(run: str) -> dict[str, dict[str, str]]:
    """What a run has logged of each validation, by step, in all its parts."""
    found: dict[str, dict[str, str]] = {}
    for path in sorted(Path(run).glob("logs/version_*/metrics.csv")):
        for row in csv.DictReader(path.open()):
            if measured := {name: value for name, value in row.items() if name.startswith("val/") and value}:
                assert row["step"] not in found
                found[row["step"]] = measured
    return found


@pytest.fixture(scope="module")
def whole(model: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A run that nothing has disturbed."""
    run = str(tmp_path_factory.mktemp("whole"))
    assert in_child(lambda: main(words("fit", model, run, "--trainer.callbacks", "null"))) == 0
    return run


@pytest.mark.parametrize(
    ("hook", "at", "number", "step"),
    [
        ("on_train_batch_start", 2, signal.SIGTERM, 2),
        ("on_train_batch_end", 3, signal.SIGHUP, 3),  # before a validation that is due
        ("on_validation_batch_end", 1, signal.SIGTERM, 3),  # during it
        ("on_train_batch_start", 6, signal.SIGTERM, 6),  # the last step of all
        ("on_train_batch_end", 2, signal.SIGINT, 2),  # Ctrl-C
    ],
)
def test_a_signal_saves_and_the_run_goes_on_bit_for_bit(
    here: Path, model: str, whole: str, capfd: pytest.CaptureFixture[str], hook: str, at: int, number: int, step: int
) -> None:
    assert in_child(lambda: main(words("fit", model, "run", *kick(hook, number, at)))) == CODES[number]
    lines = capfd.readouterr().err.splitlines()
    name = {signal.SIGINT: "Ctrl-C"}.get(number, signal.Signals(number).name)
    assert [line for line in lines if name in line] == [
        f"lovec: {name}: training stops after this step, and is saved to run/terminated.ckpt; a second signal ends it "
        "at once, without saving",
        f"lovec: ended by {name} after step {step}; resume with --ckpt_path run/terminated.ckpt",
    ]
    (resume,) = [line for line in lines if line.startswith("next: ")]
    assert shlex.split(resume, comments=True)[1:] == [
        "lovec", *words("fit", model, "run", *kick(hook, number, at)), "--ckpt_path", "run/terminated.ckpt"
    ]  # fmt: skip
    assert read_checkpoint("run/terminated.ckpt")["global_step"] == step
    assert not Path("run/adapter").exists()
    resumed = [*words("fit", model, "run"), "--ckpt_path", "run/terminated.ckpt", "--trainer.callbacks", "null"]
    assert in_child(lambda: main(resumed)) == 0
    assert weights("run") == weights(whole)
    assert list(validations(whole)) == ["2", "5"] and validations("run") == validations(whole)


@pytest.mark.parametrize(
    ("hook", "at"),
    [("on_train_batch_end", 2), ("on_validation_batch_end", 2), ("on_train_batch_end", 6), ("on_validation_start", 6)],
)
def test_no_validation_within_an_epoch_is_left_out(here: Path, model: str, hook: str, at: int) -> None:
    fit = words("fit", model, "run", "--trainer.val_check_interval", "1", "--trainer.num_sanity_val_steps", "0")
    assert in_child(lambda: main([*fit, *kick(hook, signal.SIGTERM, at)])) == 143
    saver = ["--trainer.callbacks+", "ModelCheckpoint", "--trainer.callbacks.filename", "validated"]
    resumed = [*fit, "--ckpt_path", "run/terminated.ckpt", "--trainer.callbacks", "null", *saver]
    twice = [*fit, "--ckpt_path", "run/terminated.ckpt", *kick("on_train_batch_start", signal.SIGTERM)]
    assert in_child(lambda: main(twice if at < 6 else resumed)) == (143 if at < 6 else 0)
    assert at == 6 or in_child(lambda: main(resumed)) == 0
    assert list(validations("run")) == ["0", "1", "2", "3", "4", "5"]
    (saved,) = Path("run").glob("**/validated.ckpt")  # behind the last validation, which is not made once more
    progress = torch.load(saved, weights_only=False)["loops"]["fit_loop"]["epoch_loop.val_loop.batch_progress"]
    assert len({*progress["total"].values()}) == 1 and progress["total"]["completed"] > 0


def loops(run: str) -> dict[str, Any]:
    """How far Lightning's loops were at the end of a run."""
    saved = max(Path(run).glob("**/epoch=*.ckpt"), key=lambda path: path.stat().st_mtime)
    state = torch.load(saved, weights_only=False)["loops"]["fit_loop"]
    return {name: value for name, value in state.items() if name.startswith("epoch_loop.") and "val_loop" not in name}


@pytest.mark.parametrize(
    ("hook", "at", "backward", "number", "step"),
    [
        ("on_train_batch_start", 0, False, signal.SIGTERM, 0),  # the probe before the first step
        ("on_train_batch_start", 2, False, signal.SIGTERM, 2),
        ("on_train_batch_start", 3, False, signal.SIGHUP, 3),  # the first step of an epoch
        ("on_train_batch_start", 4, True, signal.SIGINT, 4),
        ("on_validation_batch_start", 0, False, signal.SIGTERM, 3),
    ],
)
def test_what_takes_long_is_dropped_and_the_run_goes_on_bit_for_bit(
    here: Path, model: str, whole: str, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch,
    hook: str, at: int, backward: bool, number: int, step: int,
) -> None:  # fmt: skip
    monkeypatch.setattr("lovec.evaluation.stopping._PATIENCE", 0.5)
    fit = words("fit", model, "run", "--trainer.num_sanity_val_steps", "0")
    stuck = [*STUCK, hook, "--trainer.callbacks.at", str(at), "--trainer.callbacks.backward", str(backward),
             "--trainer.callbacks.number", str(int(number))]  # fmt: skip
    begin = time.monotonic()
    assert in_child(lambda: main([*fit, *stuck])) == CODES[number]
    assert time.monotonic() - begin < 50  # what it was stuck in takes a minute
    said = capfd.readouterr().err
    assert "is dropped" in said and "Traceback" not in said
    assert f" after step {step}; resume with --ckpt_path run/terminated.ckpt" in said
    assert read_checkpoint("run/terminated.ckpt")["global_step"] == step
    resumed = [*fit, "--ckpt_path", "run/terminated.ckpt", "--trainer.callbacks", "null"]
    assert in_child(lambda: main(resumed)) == 0
    assert weights("run") == weights(whole)
    assert loops("run") == loops(whole)
    assert validations("run") == validations(whole)


def test_a_step_that_was_dropped_leaves_later_checkpoints_as_they_are(
    here: Path, model: str, whole: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that is stopped after it went on from a dropped step goes on bit for bit, too."""
    monkeypatch.setattr("lovec.evaluation.stopping._PATIENCE", 0.5)
    fit = words("fit", model, "run")
    stuck = [*STUCK, "on_train_batch_start", "--trainer.callbacks.at", "1"]
    assert in_child(lambda: main([*fit, *stuck])) == 143
    goes_on = [*fit, "--ckpt_path", "run/terminated.ckpt", "--trainer.callbacks", "null"]
    assert in_child(lambda: main([*goes_on, *kick("on_train_batch_end", signal.SIGTERM, 2)])) == 143
    assert read_checkpoint("run/terminated.ckpt")["global_step"] == 3
    assert in_child(lambda: main(goes_on)) == 0
    assert weights("run") == weights(whole)
    assert loops("run") == loops(whole)


@pytest.mark.parametrize(
    ("command", "hook", "number"),
    [
        ("fit", "setup", signal.SIGTERM),
        ("fit", "on_fit_start", signal.SIGHUP),
        ("fit", "on_train_end", signal.SIGTERM),
        ("fit", "on_fit_start", signal.SIGINT),
        ("test", "on_test_batch_end", signal.SIGTERM),
        ("test", "on_test_batch_end", signal.SIGHUP),
        ("test", "on_test_batch_end", signal.SIGINT),
        ("validate", "on_validation_batch_end", signal.SIGTERM),
        ("predict", "on_predict_batch_end", signal.SIGTERM),
    ],
)
def test_where_there_is_nothing_to_save_a_signal_ends_the_command(
    here: Path, model: str, whole: str, capfd: pytest.CaptureFixture[str], command: str, hook: str, number: int
) -> None:
    adapter = ["--model.evaluation.adapter", f"{whole}/adapter"] if command != "fit" else []
    assert in_child(lambda: main(words(command, model, "run", *adapter, *kick(hook, number)))) == CODES[number]
    err = capfd.readouterr().err
    assert "Traceback" not in err
    line = "interrupted" if number == signal.SIGINT else f"ended by {signal.Signals(number).name}"
    assert err.count(f"lovec: {line}\n") == 1
    assert not Path("run/terminated.ckpt").exists()


def test_a_signal_that_is_ignored_stays_ignored(here: Path, model: str) -> None:
    """As under nohup."""

    def work() -> int:
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        return main(words("fit", model, "run", *kick("on_train_batch_start", signal.SIGHUP)))

    assert in_child(work) == 0 and Path("run/adapter").exists()


def test_a_second_signal_while_the_checkpoint_is_written_changes_nothing(here: Path, model: str) -> None:
    twice = kick("on_train_batch_start", signal.SIGTERM, 2) + kick("on_save_checkpoint", signal.SIGTERM)
    assert in_child(lambda: main(words("fit", model, "run", *twice))) == 143
    assert read_checkpoint("run/terminated.ckpt")["global_step"] == 2


def test_a_second_signal_in_a_long_step_ends_the_run_at_once(
    here: Path, model: str, capfd: pytest.CaptureFixture[str]
) -> None:
    begin = time.monotonic()
    assert in_child(lambda: main(words("fit", model, "run", "--trainer.callbacks+", "signalled.Insistent"))) == 143
    assert time.monotonic() - begin < 20  # the step takes a minute
    err = capfd.readouterr().err
    assert err.index("lovec: SIGTERM: training stops after this step") < err.index("lovec: ended by SIGTERM\n")
    assert not Path("run/terminated.ckpt").exists() and "Traceback" not in err
    assert "# starts again: no checkpoint was written yet" in err


@pytest.mark.parametrize(
    ("ckpt", "does"),
    [(None, "starts again: no checkpoint was written yet"), ("x.ckpt", "goes on where it began: no newer checkpoint")],
)
def test_a_run_that_has_saved_nothing_says_where_the_same_command_begins(
    here: Path, ckpt: str | None, does: str
) -> None:
    trainer = SimpleNamespace(default_root_dir=str(here), checkpoint_callbacks=[], _signal_connector=None)
    trainer._signal_connector = SignalConnector(trainer)
    cli: Any = SimpleNamespace(trainer=trainer, config=SimpleNamespace(ckpt_path=ckpt))
    command, said = _resume_command(cli, ["--config", "sft.yaml"])
    assert command == "lovec fit --config sft.yaml" and said.startswith(does)


def test_ctrl_c_says_how_to_go_on(here: Path, model: str, capfd: pytest.CaptureFixture[str]) -> None:
    saver = ["--trainer.callbacks+", "ModelCheckpoint", "--trainer.callbacks.every_n_train_steps", "1",
             "--trainer.callbacks.save_last", "true"]  # fmt: skip
    given = words("fit", model, "run", "--ckpt_path", "auto", *saver, *kick("on_train_batch_start", signal.SIGINT, 3))
    assert in_child(lambda: main(given)) == 130
    (line,) = [line for line in capfd.readouterr().err.splitlines() if line.startswith("next: ")]
    command = shlex.split(line, comments=True)[1:]
    assert command[:2] == ["lovec", "fit"] and command[2:].count("--ckpt_path") == 1 and "auto" not in command
    assert command[-1] == "run/terminated.ckpt" and read_checkpoint(command[-1])["global_step"] == 3
    saved = torch.load(command[-1], weights_only=False)["callbacks"]
    (state,) = [state for name, state in saved.items() if "'every_n_train_steps': 1," in name]
    assert "step=3" in state["best_model_path"]  # it knows what was written after the same step
    assert in_child(lambda: main([*command[1:], "--trainer.callbacks", "null"])) == 0


# Two processes


def start_two(folder: Path, *command: str) -> list[Fork]:
    """Two processes of one group, with the environment that torchrun and SLURM give them."""
    forks: list[Fork] = []
    work = [*command, "--trainer.devices", "2", "--trainer.strategy", "ddp"]
    for rank, environment in enumerate(ranks(2)):
        with open(folder / f"errors-{rank}.txt", "w") as errors:
            forks.append(Fork(lambda: main(work), environment, errors, group=forks[0].pid if forks else 0))
    return forks


def wait_for(process: Fork, line: str) -> None:
    assert any(said.strip() == line for said in process.stdout)


def test_sigterm_to_a_group_of_two_saves_and_the_run_goes_on_bit_for_bit(here: Path, model: str) -> None:
    brief = ["--trainer.max_epochs", "1"]
    fit = words("fit", model, "run", *brief)
    steps = ["--trainer.callbacks+", "signalled.Steps", "--trainer.callbacks.seconds", "0.3"]
    two = start_two(here, *fit, *steps)
    wait_for(two[0], "step 1")
    os.killpg(two[0].pid, signal.SIGTERM)
    assert [process.wait(120) for process in two] == [143, 143]
    errors = "".join(Path(f"errors-{rank}.txt").read_text() for rank in range(2))
    assert errors.count("SIGTERM") == 2 and "Traceback" not in errors and "rror" not in errors, errors
    assert read_checkpoint("run/terminated.ckpt")["global_step"] in (1, 2)

    resumed = start_two(here, *fit, "--ckpt_path", "run/terminated.ckpt", "--trainer.callbacks", "null")
    assert [process.wait(240) for process in resumed] == [0, 0]
    undisturbed = start_two(here, *words("fit", model, "whole", *brief))
    assert [process.wait(240) for process in undisturbed] == [0, 0]
    assert weights("run") == weights("whole")
