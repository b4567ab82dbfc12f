"""Training logs: what was logged, by step, however often a run was resumed, as tables and as curves."""

from __future__ import annotations

import csv
import io
import json
import warnings
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from rich.console import Console
from tinyrun import Rows, module, tiny, trainer

from lovec.callbacks import Probe
from lovec.cli import main
from lovec.modules import SFT, EvaluationConfig
from lovec.reports.curves import draw, write_curves
from lovec.reports.training_log import (
    TrainingLog,
    curve_rows,
    print_training_log,
    read_training_log,
    training_rows,
    validation_rows,
)
from lovec.types import LovecError


def log(folder: Path, version: int, *rows: dict[str, Any]) -> Path:
    """Write a log as CSVLogger does."""
    path = folder / "logs" / f"version_{version}" / "metrics.csv"
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, sorted({name for row in rows for name in row}))
        writer.writeheader()
        writer.writerows(rows)
    return path


def losses(*steps: int, loss: float = 1.0) -> list[dict[str, Any]]:
    return [{"epoch": 0, "step": step, "train/loss": loss} for step in steps]


def validation(step: int, mode: str = "val/", **changes: float) -> dict[str, Any]:
    metrics = {"brier": 0.1, "ece_m": 0.2, "spearman": 0.5, "malformed": 0.0, "mean_confidence": 0.9,
               "mean_factuality": 0.7, "entropy": 1.0, "distinct": 4.0, "words": 50.0, **changes}  # fmt: skip
    return {"step": step, **{mode + name: value for name, value in metrics.items()}}


def printed(run: TrainingLog) -> list[list[str]]:
    console = Console(file=io.StringIO(), width=100)
    print_training_log(run, console)
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert max(map(len, text.splitlines())) <= 100 and "…" not in text
    return [line.split() for line in text.splitlines()]


# ---------------------------------------------------------------- reading


def test_rows_of_a_step_are_put_together_and_nan_is_left_out(tmp_path: Path) -> None:
    log(tmp_path, 0, {"step": -1, "train/probe_words": 9}, *losses(0, 1), validation(1, spearman=float("nan")))
    run = read_training_log(tmp_path)
    assert list(run.logged) == [0, 1, 2]
    assert run.logged[0] == {"train/probe_words": 9.0}
    assert run.logged[2]["train/loss"] == 1.0 and run.logged[2]["val/brier"] == 0.1
    assert "val/spearman" not in run.logged[2] and "epoch" not in run.logged[1]
    assert run.series("train/words", "train/probe_words") == [(0, 9.0)]
    assert run.series("train/words") == []


def test_a_resumed_run_goes_on_and_a_new_one_begins_anew(tmp_path: Path) -> None:
    log(tmp_path, 0, *losses(9, 19, 29), validation(29))
    log(tmp_path, 2, *losses(19, 29, 39, loss=3.0))  # killed after 30 steps, resumed from 10
    log(tmp_path, 1, {"step": 0, "val/brier": 0.5, "val/malformed": 0.0})  # `lovec validate`
    log(tmp_path, 10, *losses(49, loss=4.0))  # 10 is after 2
    run = read_training_log(tmp_path)
    assert run.series("train/loss") == [(10, 1.0), (20, 3.0), (30, 3.0), (40, 3.0), (50, 4.0)]
    assert validation_rows(run, "val") == []
    log(tmp_path, 11, {"step": -1, "train/probe_words": 9}, *losses(9, loss=5.0))
    assert read_training_log(tmp_path).series("train/loss") == [(10, 5.0)]


def test_a_log_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(LovecError, match=r"has no logs/version_N/metrics.csv; give the folder of a run"):
        read_training_log(tmp_path)
    path = log(tmp_path, 0, validation(0))
    with pytest.raises(LovecError, match="has logged no step of training"):
        read_training_log(tmp_path)
    path.write_text("step,train/loss\n9,1.0\n19,one\n")
    with pytest.raises(LovecError, match=r"metrics.csv, line 3: expected numbers under step"):
        read_training_log(tmp_path)
    path.write_text("step,train/loss\n9,1.0\n19")  # cut by a kill
    assert read_training_log(tmp_path).series("train/loss") == [(10, 1.0)]
    path.write_text("time,train/loss\n9,1.0\n")
    with pytest.raises(LovecError, match="line 2"):
        read_training_log(tmp_path)


# ---------------------------------------------------------------- tables


def test_rewards_are_means_since_the_last_validation(tmp_path: Path) -> None:
    rewards = [{"step": step, "train/reward": float(step + 1)} for step in range(0, 12, 2)]  # 1, 3, 5, 7, 9, 11
    log(tmp_path, 0, *losses(0), *rewards, *(validation(step) for step in (-1, 3, 7, 9)))
    rows = training_rows(read_training_log(tmp_path))
    assert [(row.step, row.metrics["reward"]) for row in rows] == [(4, 2.0), (8, 6.0), (10, 9.0), (11, 11.0)]
    assert [row.metrics["loss"] for row in rows] == [1.0, None, None, None]


def test_a_run_without_validation_is_divided_into_ten_parts(tmp_path: Path) -> None:
    log(tmp_path, 0, *losses(*range(9, 200, 10)), validation(199))
    assert [row.step for row in training_rows(read_training_log(tmp_path))] == list(range(20, 201, 20))
    log(tmp_path, 0, *losses(0, 1, 2))
    assert [row.step for row in training_rows(read_training_log(tmp_path))] == [1, 2, 3]


def test_tables_are_those_of_the_log(tmp_path: Path) -> None:
    sampled = {"train/reward": 13.865, "train/malformed": 0.021, "train/confidence": 0.9, "train/probe_words": 61.26}
    log(tmp_path, 0, *losses(9), {"step": 9, **sampled}, validation(-1, brier=0.091), validation(9, spearman="nan"),
        validation(9, "val/free-form/", malformed=0.5))  # fmt: skip
    run = read_training_log(tmp_path)
    lines = printed(run)
    assert ["step", "bad", "tags↓", "mean", "c", "words", "mean", "reward↑", "loss↓"] in lines
    assert ["10", "2.1", "90.0", "61.3", "13.865", "1.000"] in lines
    assert ["0", "9.1", "20.0", "50.0", "0.0", "90.0", "70.0", "50.0", "4.0", "1.00"] in lines
    assert ["10", "10.0", "20.0", "-", "0.0", "90.0", "70.0", "50.0", "4.0", "1.00"] in lines
    assert ["10", "10.0", "20.0", "50.0", "50.0", "90.0", "70.0", "50.0", "4.0", "1.00"] in lines
    rows = curve_rows(run)
    assert [(row["table"], row["step"]) for row in rows] == [
        ("train", 10), ("val", 0), ("val", 10), ("val/free-form", 10),
    ]  # fmt: skip
    assert {row["run"] for row in rows} == {str(tmp_path)}
    assert (rows[0]["reward"], rows[1]["brier"], rows[2]["spearman"]) == (13.865, 0.091, None)


def test_bad_tags_are_those_of_probes_where_there_are_any(tmp_path: Path) -> None:
    """An objective that learns from given answers logs a probability there, and no tag is bad."""
    log(tmp_path, 0, *losses(9), {"step": 9, "train/malformed": 0.062, "train/probe_malformed": 0.0})
    run = read_training_log(tmp_path)
    assert [list(line.get_ydata()) for line in panels(run)["Bad tags, %"]] == [[0.0]]
    assert training_rows(run)[0].metrics["malformed"] == 0.0


def test_a_metric_of_the_users_own_has_a_column_and_a_panel(tmp_path: Path) -> None:
    logged = validation(19, mean_length=7.25, passage_mean_length=7.5, mean_mean_length=7.75, mean_brier=0.3)
    log(tmp_path, 0, *losses(9, 19), logged)
    run = read_training_log(tmp_path)
    assert run.validation_metrics("val")[-2:] == ["entropy", "mean_length"]
    (row,) = [line for line in printed(run) if line[:2] == ["20", "10.0"]]
    assert row[-1] == "7.250"
    assert [list(line.get_ydata()) for line in panels(run)["Validation: mean_length"]] == [[7.25]]


def test_modes_in_any_order_have_tables(tmp_path: Path) -> None:
    log(tmp_path, 0, *losses(9, 19), validation(19), validation(19, "val/iterative/", brier=0.3))
    run = read_training_log(tmp_path)
    assert run.modes == ["val", "val/iterative"]
    assert "Validation, iterative: BS, ECE-M, %" in panels(run)


# ---------------------------------------------------------------- plot


def panels(*runs: TrainingLog) -> dict[str, list[Any]]:
    return {ax.get_title(loc="left"): ax.lines for ax in draw(runs).axes if ax.get_visible()}


def test_the_plot_shows_what_was_logged_and_nothing_else(tmp_path: Path) -> None:
    log(tmp_path, 0, *losses(9, 19))
    alone = panels(read_training_log(tmp_path))
    assert list(alone) == ["Loss in training"]
    log(tmp_path, 0, *({**row, "train/reward": 3.0} for row in losses(9, 19)), validation(-1), validation(19))
    both = panels(read_training_log(tmp_path))
    assert list(both) == ["Reward in training", "Bad tags, %", "Validation: BS, ECE-M, %",
                          "Validation: confidence, factuality, %"]  # fmt: skip
    assert [list(line.get_xdata()) for line in both["Reward in training"]] == [[10, 20]]
    errors = both["Validation: BS, ECE-M, %"]
    assert [list(line.get_xydata()[0]) for line in errors] == [[0, 10.0], [0, 20.0]]
    assert len({line.get_color() for line in errors}) == len({line.get_linestyle() for line in errors}) == 2


@pytest.mark.parametrize("runs", [1, 2])
def test_a_run_that_has_logged_step_0_only_is_drawn_without_a_warning(tmp_path: Path, runs: int) -> None:
    log(tmp_path, 0, {"step": -1, "train/probe_words": 9}, validation(-1))
    run = read_training_log(tmp_path)
    assert run.last_step == 0
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        write_curves([run] * runs, tmp_path / "curves.svg")


def test_several_runs_have_a_colour_each(tmp_path: Path) -> None:
    for name in "abcdefg":
        log(tmp_path / name, 0, *losses(9, 19), validation(19))
    runs = [read_training_log(tmp_path / name) for name in "abcdefg"]
    errors = panels(*runs[:6])["Validation: BS, ECE-M, %"]
    assert len({line.get_color() for line in errors}) == 6 and len(errors) == 12
    legend = draw(runs[:2]).legends[0]
    assert [text.get_text() for text in legend.get_texts()] == ["a", "b"]  # without what their folders share
    assert [text.get_text() for text in draw([runs[0]] * 2).legends[0].get_texts()] == ["a", "a"]
    with pytest.raises(LovecError, match="got 7 runs to draw, expected 1 to 6"):
        write_curves(runs, tmp_path / "c.svg")


# ---------------------------------------------------------------- the command, on a real run


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two epochs of five steps, validated before training and every second step, stopped after 6 and resumed."""
    model = tiny(tmp_path_factory.mktemp("models"))
    folder = tmp_path_factory.mktemp("runs") / "sft"

    def fit(ckpt: Any = None, **kwargs: Any) -> None:
        sft = module(SFT, model, evaluation=EvaluationConfig(max_new_tokens=8, rows=8))
        saver = ModelCheckpoint(dirpath=folder, filename="six", every_n_train_steps=6, save_top_k=-1)
        logger = CSVLogger(folder, name="logs")
        trainer(folder, limit_val_batches=1.0, num_sanity_val_steps=-1, val_check_interval=2, log_every_n_steps=1,
                check_val_every_n_epoch=None, logger=logger, callbacks=[saver, Probe(3, 2)],
                enable_checkpointing=True, max_epochs=2, **kwargs).fit(sft, Rows(20), ckpt_path=ckpt)  # fmt: skip

    fit(max_steps=8)
    fit(ckpt=folder / "six.ckpt")
    return folder


def test_a_real_run_has_a_point_at_every_validation(run: Path) -> None:
    logged = read_training_log(run)
    assert sorted(file.parent.name for file in run.glob("logs/*/metrics.csv")) == ["version_0", "version_1"]
    assert [row.step for row in validation_rows(logged, "val")] == [0, 2, 4, 6, 8, 10]
    assert [step for step, _ in logged.series("train/loss")] == list(range(1, 11))
    assert [step for step, _ in logged.series("train/probe_words")] == [0, 3, 6, 9]
    assert [row.step for row in training_rows(logged)] == [2, 4, 6, 8, 10]


def test_the_command_prints_and_writes(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(run.parent)
    assert main(["curves", "sft"]) == 0
    output = capsys.readouterr().out
    assert "Validation, val/" in output and "written to sft/curves.json and sft/curves.svg" in output
    rows = json.loads((run / "curves.json").read_text())
    assert [row["step"] for row in rows if row["table"] == "val"] == [0, 2, 4, 6, 8, 10]
    first = (run / "curves.svg").read_bytes()
    text = "".join(ElementTree.fromstring(first).itertext())
    assert "Validation: BS, ECE-M, %" in text
    assert main(["curves", "sft"]) == 0
    assert (run / "curves.svg").read_bytes() == first
    assert main(["curves", "sft", str(run)]) == 0  # several runs: into the folder above them
    log(run.parent / "other", 0, *losses(9, 19))
    assert main(["curves", "sft", "other"]) == 0
    assert (run.parent / "curves.json").is_file() and (run.parent / "curves.svg").is_file()


def test_a_mistyped_run_is_an_error_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["curves", str(tmp_path / "none")]) == 1
    assert main(["curves"]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 2 and "give the folder of a run" in lines[0] and "RUN" in lines[1]
