"""``--ckpt_path``: which checkpoint it means, and what is refused because it was written by another run."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import pytest
import torch
import yaml
from commandline import CPU, error_of
from tinyrun import records

from lovec.cli import main
from lovec.datasets.jsonl import write_records
from lovec.models.tiny import build_tiny
from lovec.policy.checkpoints import read_checkpoint
from lovec.taggers.session import base_model

SAVERS = [
    {"monitor": "train/loss", "every_n_train_steps": 1, "filename": "low-{train/loss}-{step}", "save_last": True},
    {"every_n_train_steps": 2, "save_top_k": -1},
]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with two base models of one shape, data, a recipe, and a run of SFT over four steps."""
    home = tmp_path_factory.mktemp("home")
    for seed in (0, 1):
        build_tiny("llama", home / f"base-{seed}", seed=seed)
    write_records(home / "pairs.jsonl", records(20))
    write_records(home / "more.jsonl", records(24))
    write_records(home / "test.jsonl", records(4, seed=1))
    recipe = {
        "trainer": {
            "default_root_dir": str(home / "sft"),
            "enable_progress_bar": False,
            "enable_model_summary": False,
            "limit_val_batches": 0,
            "max_epochs": 10,
            "max_steps": 4,
            "callbacks": [{"class_path": "ModelCheckpoint", "init_args": saver} for saver in SAVERS],
        },
        "model": {
            "init_args": {
                "policy": {"model": str(home / "base-0"), "adapter": None, "lora_r": 4},
                "evaluation": {"modes": ["iterative"]},
            }
        },
        "data": {
            "class_path": "Preferences",
            "init_args": {
                "path": str(home / "pairs.jsonl"),
                "test_path": str(home / "test.jsonl"),
                "val_fraction": 0,
                "batch_size": 4,
            },
        },
    }
    (home / "tiny.yaml").write_text(yaml.safe_dump(recipe))
    assert main(["fit", "--config", "sft.yaml", "--config", str(home / "tiny.yaml"), *CPU]) == 0
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TINY_RECIPE", str(home / "tiny.yaml"))
        yield home


@pytest.fixture
def run(home: Path, tmp_path: Path) -> Path:
    """A copy of the folder of that run."""
    return Path(shutil.copytree(home / "sft", tmp_path / "sft"))


def last_of(run: Path) -> str:
    return str(run / "logs" / "version_0" / "checkpoints" / "last.ckpt")


def in_folder(folder: Path, *words: str) -> list[str]:
    """A command line in this folder; own model and data are not taken from a checkpoint, so their recipe is named."""
    command, *rest = words
    return [command, "--config", os.environ["TINY_RECIPE"], *rest, "--trainer.default_root_dir", str(folder), *CPU]


def weights(adapter: Path) -> bytes:
    return (adapter / "adapter_model.safetensors").read_bytes()


def said(caplog: Any) -> str:
    """What was logged since the last call."""
    text = " ".join(record.getMessage() for record in caplog.records)
    caplog.clear()
    return text


def refusal(capsys: Any) -> str:
    """The only line with an error since the last call."""
    (line,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("lovec: error")]
    return line


# ---------------------------------------------------------------- which checkpoint


def test_last_goes_on_from_the_most_steps_and_says_from_where(run: Path, caplog: Any) -> None:
    before = weights(run / "adapter")
    assert main(in_folder(run, "fit", "--ckpt_path", "last", "--trainer.max_steps", "6")) == 0
    err = said(caplog)
    assert "--ckpt_path last is" in err and "step 4" in err
    saved = run / "logs" / "version_1" / "checkpoints" / "last.ckpt"
    assert read_checkpoint(saved)["global_step"] == 6
    assert weights(run / "adapter-1") == before  # it has seen fewer steps, but it is not lost
    assert "is kept in" in err

    assert main(in_folder(run, "fit", "--ckpt_path", "last", "--trainer.max_steps", "7")) == 0
    assert "version_1" in (err := said(caplog)) and "step 6" in err
    assert main(in_folder(run, "predict", "--ckpt_path", "last")) == 0
    assert "version_2" in (err := said(caplog)) and "step 7" in err


def test_last_is_of_the_training_that_was_started_last(run: Path, home: Path, caplog: Any) -> None:
    words = ["fit", "--config", "sft.yaml", "--config", str(home / "tiny.yaml"), "--trainer.max_steps", "2"]
    assert main(in_folder(run, *words)) == 0
    assert f"{run} holds an earlier run" in (err := said(caplog)) and "--ckpt_path last" in err
    os.utime(last_of(run))
    assert main(in_folder(run, "validate", "--ckpt_path", "last")) == 0
    assert "version_1" in (err := said(caplog)) and "step 2" in err


def test_best_is_the_one_that_was_tracked(run: Path, caplog: Any, tmp_path: Path) -> None:
    tracked = next(iter(run.glob("logs/version_0/checkpoints/low-train/loss=*.ckpt")))
    assert main(in_folder(run, "predict", "--ckpt_path", "best")) == 0
    assert f"--ckpt_path best is {tracked}" in (err := said(caplog)) and "train/loss" in err
    moved = run.rename(tmp_path / "moved")
    assert main(in_folder(moved, "predict", "--ckpt_path", "best")) == 0
    assert f"--ckpt_path best is {moved / tracked.relative_to(run)}" in said(caplog)


def test_best_is_that_of_all_parts_of_a_run(run: Path, caplog: Any) -> None:
    """Lightning forgets how good the best one was as soon as a run goes on."""
    tracked = next(iter(run.glob("logs/version_0/checkpoints/low-train/loss=*.ckpt")))
    assert main(in_folder(run, "fit", "--ckpt_path", "last", "--trainer.max_steps", "6")) == 0
    newest = read_checkpoint(run / "logs" / "version_1" / "checkpoints" / "last.ckpt")
    for state in newest["callbacks"].values():
        if state.get("monitor"):
            state["best_model_score"] = torch.tensor(1e9)
    torch.save(newest, run / "logs" / "version_1" / "checkpoints" / "last.ckpt")
    for path in run.glob("logs/version_1/checkpoints/**/*step*"):
        path.unlink()
    said(caplog)
    assert main(in_folder(run, "predict", "--ckpt_path", "best")) == 0
    assert f"--ckpt_path best is {tracked}" in said(caplog)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"monitor": None}, "no ModelCheckpoint keeps the best"),
        ({"best_model_path": "none.ckpt"}, "none.ckpt is gone"),
    ],
)
def test_best_needs_a_monitor_and_its_file(
    changed: dict[str, Any], message: str, run: Path, capsys: Any, tmp_path: Path
) -> None:
    checkpoint = torch.load(last_of(run), weights_only=True)
    checkpoint["callbacks"] = {name: {**state, **changed} for name, state in checkpoint["callbacks"].items()}
    torch.save(checkpoint, tmp_path / "only.ckpt")
    code, line = error_of(capsys, *in_folder(tmp_path, "fit", "--ckpt_path", "best", "--config", "sft.yaml"))
    assert code == 1 and message in line and "give last" in line


@pytest.mark.parametrize(
    ("command", "name", "message"),
    [
        ("fit", "last", "there is no checkpoint in"),
        ("test", "best", "there is no checkpoint in"),
        ("validate", "hpc", "hpc is not supported; give auto, last, best or the path"),
        ("predict", "registry:mine", "registry:mine is not supported"),
        ("test", "auto", "auto is for fit; test needs last, best or the path"),
        ("fit", "", "--ckpt_path is empty"),
    ],
)
def test_what_is_not_there_is_refused(command: str, name: str, message: str, capsys: Any, tmp_path: Path) -> None:
    words = in_folder(tmp_path / "none", command, "--config", "sft.yaml", "--ckpt_path", name)
    code, line = error_of(capsys, *words)
    assert code == (2 if name in ("", "auto") else 1) and message in line
    assert not (tmp_path / "none").exists()


def test_the_folder_of_a_run_may_be_in_the_home_folder(
    home: Path, tmp_path: Path, caplog: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    write_records(tmp_path / "rows.jsonl", records(12))
    Path("own.yaml").write_text(
        "trainer: {default_root_dir: ~/x}\n"
        "data: {class_path: Demonstrations, init_args: {path: ~/rows.jsonl, batch_size: 4}}"
    )
    words = ["fit", *("--config", os.environ["TINY_RECIPE"]), "--config", "sft.yaml", "--config", "own.yaml", *CPU]
    assert main([*words, "--trainer.max_steps", "2"]) == 0
    assert Path(last_of(tmp_path / "x")).is_file() and not Path("~").exists()
    assert main([*words, "--trainer.max_steps", "3", "--ckpt_path", "auto"]) == 0
    assert f"--ckpt_path auto is {tmp_path / 'x' / 'logs'}" in said(caplog)


def test_auto_is_the_last_one_or_none(run: Path, tmp_path: Path, caplog: Any) -> None:
    words = ["fit", "--config", "sft.yaml", "--ckpt_path", "auto"]
    assert main(in_folder(tmp_path / "new", *words, "--trainer.max_steps", "2")) == 0
    assert read_checkpoint(last_of(tmp_path / "new"))["global_step"] == 2
    assert main(in_folder(run, *words, "--trainer.max_steps", "5")) == 0
    assert "--ckpt_path auto is" in said(caplog)
    assert read_checkpoint(run / "logs" / "version_1" / "checkpoints" / "last.ckpt")["global_step"] == 5


@pytest.mark.parametrize("own", [False, True])
def test_options_of_data_that_a_later_recipe_replaces_are_dropped_as_without_a_checkpoint(
    own: bool, run: Path, tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """grpo.yaml has an option of the embedded world, and a checkpoint names other data before that recipe is read."""
    words = ["--config", os.environ["TINY_RECIPE"], *CPU]
    if own:  # a run on a data set of the user's own
        lines = ["from lovec.datamodules import Preferences", "", "class Own(Preferences): ..."]
        (tmp_path / "own_pairs.py").write_text("\n".join(lines))
        monkeypatch.syspath_prepend(tmp_path)
        run = tmp_path / "own"
        words += ["--data", "own_pairs.Own"]
        assert main(["fit", "--config", "sft.yaml", *words, "--trainer.default_root_dir", str(run)]) == 0
    words += ["--trainer.default_root_dir", str(run), "--trainer.max_steps", "5", "--ckpt_path", "auto"]
    capsys.readouterr()
    for option in ("sampels", "samples"):
        (tmp_path / "earlier.yaml").write_text(yaml.safe_dump({"data": {"init_args": {option: 0}}}))
        earlier = ["fit", "--config", "sft.yaml", "--config", str(tmp_path / "earlier.yaml")]
        code = main([*earlier, *words])
        if option == "samples":
            assert code == 0
        else:
            assert code and "earlier.yaml, line 3: unknown option --data.sampels" in refusal(capsys)
    assert read_checkpoint(run / "logs" / "version_1" / "checkpoints" / "last.ckpt")["global_step"] == 5


def test_a_recipe_may_name_the_checkpoint(run: Path, tmp_path: Path) -> None:
    (tmp_path / "go-on.yaml").write_text(yaml.safe_dump({"ckpt_path": "last", "trainer": {"max_steps": 5}}))
    assert main(in_folder(run, "fit", "--config", str(tmp_path / "go-on.yaml"))) == 0
    assert read_checkpoint(run / "logs" / "version_1" / "checkpoints" / "last.ckpt")["global_step"] == 5


def test_a_broken_file_is_passed_over_with_a_warning(run: Path) -> None:
    whole = Path(last_of(run))
    (run / "terminated.ckpt").write_bytes(whole.read_bytes()[:1000])
    with pytest.warns(UserWarning, match=r"terminated\.ckpt is not a readable checkpoint .*; it is left out"):
        assert main(in_folder(run, "predict", "--ckpt_path", "last")) == 0


# ---------------------------------------------------------------- nothing is lost


def test_the_same_run_again_leaves_one_adapter_and_another_run_two(run: Path, home: Path, caplog: Any) -> None:
    before = weights(run / "adapter")
    shutil.copy(last_of(run), run / "terminated.ckpt")
    write_records(run / "labelled.jsonl", records(40, seed=3))
    flags = ["--data", str(run / "labelled.jsonl"), "--keep_factual", "0.5", "--device", "cpu"]
    assert main(["calibrate", str(run), *flags]) == 0
    fitted = (run / "adapter" / "calibration.json").read_bytes()
    words = ["fit", "--config", "sft.yaml", "--config", str(home / "tiny.yaml")]
    assert main(in_folder(run, *words)) == 0
    assert (run / "adapter" / "calibration.json").read_bytes() == fitted
    assert weights(run / "adapter") == before and not (run / "adapter-1").exists()
    assert (run / "terminated-1.ckpt").exists() and not (run / "terminated.ckpt").exists()
    assert main(in_folder(run, *words, "--seed_everything", "1")) == 0
    assert weights(run / "adapter-1") == before != weights(run / "adapter")
    assert (run / "adapter-1" / "calibration.json").read_bytes() == fitted
    assert not (run / "adapter" / "calibration.json").exists()
    assert f"is kept in {run / 'adapter-1'}" in said(caplog)


# ---------------------------------------------------------------- another run

OTHER_BASE = ["--model.policy.model", "{home}/base-1"]
OTHER_DATA = ["--data.path", "{home}/more.jsonl"]


@pytest.mark.parametrize(
    ("flags", "parts", "named"),
    [
        (OTHER_BASE, "base", "base-0, is {home}/base-1 with other weights"),
        (OTHER_DATA, "data", "data.path was {home}/pairs.jsonl, is {home}/more.jsonl"),
        (["--data.batch_size", "5"], "data", "batch_size was 4, is 5"),
        (["--seed_everything", "1"], "data,seed", "seed was 0, is 1"),
        (["--model.policy.instruction", "Say how sure you are."], "prompt", "instruction was"),
        (["--model.optimizer.lr", "0.5"], "settings", "model.optimizer.lr was 0.007, is 0.5"),
        (["--trainer.precision", "bf16-mixed"], "settings", "trainer.precision was 32-true, is bf16-mixed"),
        (["--model", "ExpectedReward"], "objective", "is lovec.modules.expected.ExpectedReward"),
        ([*OTHER_BASE, "--seed_everything", "1"], "base,data,seed", "with other weights; data: seed was 0, is 1"),
    ],
)
def test_training_goes_on_with_the_same_things_only(
    flags: list[str], parts: str, named: str, home: Path, run: Path, capsys: Any, tmp_path: Path
) -> None:
    words = in_folder(tmp_path / "new", "fit", "--ckpt_path", last_of(run), "--trainer.max_steps", "5")
    words += [flag.format(home=home) for flag in flags]
    code = main(words)
    line = refusal(capsys)
    assert code == 1
    assert named.format(home=home) in line
    assert line.endswith(f"--ckpt_despite {parts}")
    assert not (tmp_path / "new" / "adapter").exists()


def test_training_goes_on_despite_what_is_named(run: Path, home: Path, tmp_path: Path) -> None:
    words = ["fit", "--ckpt_path", last_of(run), "--trainer.max_steps", "5", "--ckpt_despite", "data,seed,settings"]
    words += ["--data.path", str(home / "more.jsonl"), "--seed_everything", "1", "--model.grad_norm", "0.5"]
    assert main(in_folder(tmp_path / "new", *words)) == 0
    saved = tmp_path / "new" / "logs" / "version_0" / "checkpoints" / "last.ckpt"  # and not in the folder of the run
    assert read_checkpoint(saved)["lovec_fingerprint"]["data"]["records"] == 24
    assert read_checkpoint(saved)["global_step"] == 5


def test_what_decides_nothing_about_learning_may_change(run: Path, home: Path, tmp_path: Path) -> None:
    words = ["fit", "--ckpt_path", last_of(run), "--trainer.max_steps", "5", "--trainer.log_every_n_steps", "1"]
    words += ["--model.micro_batch_tokens", "200", "--model.evaluation.max_new_tokens", "9"]
    words += ["--data.eval_batch_size", "3", "--data.path", str(shutil.copy(home / "pairs.jsonl", tmp_path))]
    assert main(in_folder(tmp_path / "new", *words)) == 0
    assert read_checkpoint(last_of(tmp_path / "new"))["global_step"] == 5


def test_a_base_by_a_relative_path_is_found_from_any_folder(
    run: Path, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    adapter, config = run / "adapter", run / "adapter" / "adapter_config.json"
    config.write_text(config.read_text().replace(str(home / "base-0"), "base-0"))  # as earlier versions wrote it
    flags = ["--model.policy.model", "base-0"]
    monkeypatch.chdir(home)
    assert main(in_folder(run, "predict", "--model", "SFT", *flags)) == 0
    assert main(in_folder(run, "fit", *flags, "--ckpt_path", last_of(run), "--trainer.max_steps", "5")) == 0
    monkeypatch.chdir(tmp_path)
    assert base_model(str(adapter)) == str(home / "base-0")
    assert json.loads((adapter / "lovec.json").read_text())["base"]["name"] == str(home / "base-0")


def test_the_adapter_that_a_run_started_from_need_not_be_named_again(
    run: Path, home: Path, capsys: Any, tmp_path: Path
) -> None:
    more, start = tmp_path / "more", ["--model.policy.adapter", str(run / "adapter")]
    assert main(in_folder(more, "fit", "--config", "sft.yaml", *start, "--trainer.max_steps", "1")) == 0
    own = ["--model.policy.model", str(home / "base-0"), "--data.path", str(home / "pairs.jsonl"), *CPU]
    own += ["--data.test_path", str(home / "test.jsonl")]
    assert main(["fit", "--ckpt_path", last_of(more), "--trainer.max_steps", "2", *own]) == 0  # without a recipe
    assert main(in_folder(more, "fit", "--ckpt_path", "last", "--trainer.max_steps", "3", *start)) == 0
    capsys.readouterr()
    other = str(shutil.copytree(more / "adapter", tmp_path / "other"))
    words = in_folder(more, "fit", "--ckpt_path", "last", "--trainer.max_steps", "4", "--model.policy.adapter", other)
    assert main(words) == 1
    assert "does not fit this run: settings: model.policy.adapter was " in refusal(capsys)


def test_an_sft_checkpoint_is_no_beginning_for_dpo(run: Path, capsys: Any, tmp_path: Path) -> None:
    words = ["fit", "--config", "dpo.yaml", "--ckpt_path", last_of(run), "--model.policy.adapter", "null"]
    for despite in ([], ["--ckpt_despite", "objective,settings"]):
        assert main(in_folder(tmp_path / "dpo", *words, *despite)) == 1
        line = refusal(capsys)
        assert "was not written by DPO" in line and "--model.policy.adapter FOLDER" in line


def test_measuring_takes_other_data_but_no_other_base(run: Path, home: Path, capsys: Any, tmp_path: Path) -> None:
    words = in_folder(tmp_path / "new", "predict", "--ckpt_path", last_of(run), "--seed_everything", "3")
    words += ["--data.test_path", str(home / "more.jsonl"), "--data.batch_size", "3"]
    assert main(words) == 0
    for flags, named in (
        (["--model.policy.model", str(home / "base-1")], "base: it was"),
        (["--model.policy.instruction", "Rate."], "prompt: instruction was"),
        (["--config", "dpo.yaml"], "objective: class was lovec.modules.sft.SFT"),
    ):
        capsys.readouterr()
        assert main([*words, *flags]) == 1
        assert named in capsys.readouterr().err


def test_an_unknown_part_is_refused(run: Path, capsys: Any) -> None:
    assert main(in_folder(run, "fit", "--ckpt_path", last_of(run), "--ckpt_despite", "dat")) == 2
    assert refusal(capsys) == "lovec: error: unknown part in --ckpt_despite: dat; did you mean data?"


@pytest.mark.slow  # two processes that Lightning starts: each imports all
def test_two_processes_refuse_together_with_one_message(run: Path, tmp_path: Path) -> None:
    words = ["fit", "--ckpt_path", last_of(run), "--seed_everything", "1", "--trainer.devices", "2"]
    done = subprocess.run(
        [sys.executable, "-m", "lovec.cli", *in_folder(tmp_path / "new", *words, "--trainer.strategy", "ddp")],
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(__file__).parents[2])},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 1, done.stderr
    lines = [line for line in done.stderr.splitlines() if "lovec: error" in line]
    assert len(lines) == 1 and "seed was 0, is 1" in lines[0]
    assert "Traceback" not in done.stderr


# ---------------------------------------------------------------- broken checkpoints


def planted(path: str, out: Path, what: str) -> str:
    """A copy of a checkpoint with one defect."""
    checkpoint = torch.load(path, weights_only=True)
    name = sorted(checkpoint["state_dict"])[0]
    if what == "nan":
        checkpoint["state_dict"][name][0] = float("nan")
    elif what == "inf":
        checkpoint["optimizer_states"][0]["state"][0]["exp_avg"][0] = float("inf")
    elif what == "size":
        checkpoint["state_dict"][name] = checkpoint["state_dict"][name][:, :1].clone()
    elif what == "weights only":
        del checkpoint["optimizer_states"]
    elif what != "bit":
        del checkpoint[what]
    torch.save(checkpoint, out)
    if what == "bit":
        with ZipFile(out) as archive:
            tensor = max((p for p in archive.infolist() if "/data/" in p.filename), key=lambda part: part.file_size)
        data = bytearray(out.read_bytes())
        data[tensor.header_offset + tensor.file_size // 2] ^= 1
        out.write_bytes(data)
    return str(out)


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("nan", "holds numbers that are not finite, in state_dict.policy."),
        ("inf", "holds numbers that are not finite, in optimizer_states.0.state.0.exp_avg"),
        ("bit", "is damaged: a checksum in it is wrong"),
        ("size", "has the size"),
        ("weights only", "holds weights only"),
        ("state_dict", "is not a whole checkpoint of lovec"),
        ("lovec_fingerprint", "the checkpoint does not say"),
    ],
)
def test_a_broken_checkpoint_is_one_line(run: Path, what: str, message: str, capsys: Any, tmp_path: Path) -> None:
    broken = planted(last_of(run), tmp_path / "broken.ckpt", what)
    assert main(in_folder(tmp_path / "new", "fit", "--ckpt_path", broken, "--trainer.max_steps", "5")) == 1
    line = refusal(capsys)
    assert message in line
    assert not (tmp_path / "new" / "adapter").exists()


def test_the_adapter_says_which_base_it_belongs_to(run: Path, home: Path) -> None:
    from transformers import AutoModelForCausalLM

    from lovec.policy.fingerprint import loaded_digest

    base = json.loads((run / "adapter" / "lovec.json").read_text())["base"]
    digests = [loaded_digest(AutoModelForCausalLM.from_pretrained(home / f"base-{seed}")) for seed in (0, 1)]
    assert base["weights"] == digests[0] != digests[1]
    half = AutoModelForCausalLM.from_pretrained(home / "base-0", dtype=torch.bfloat16)
    assert loaded_digest(half) == digests[0]
