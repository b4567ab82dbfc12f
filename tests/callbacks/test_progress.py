"""Progress is one short line of a terminal, and lines of a log."""

from __future__ import annotations

import io
import math
import re
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import Callback, Timer
from tinyrun import Rows, module, trainer

from lovec.callbacks import ProgressLine
from lovec.callbacks.estimate import RunEstimate
from lovec.callbacks.progress import progress_line
from lovec.core.progress import clock
from lovec.modules import SFT
from lovec.types import LovecError


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (("train", 30, 120, 60.0, 180.0, ", loss 0.5"), "train 30/120, loss 0.5, 1:00, 3:00 left"),
        (("train", 120, 120, 60.0, 0.0), "train 120/120, 1:00"),
        (("train", 120, 120, 60.0, 40.0), "train 120/120, 1:00, 0:40 left"),  # a validation follows
        (("test", 1, 65, 3.2), "test 1/65, 0:03"),
        (("predict", 7, math.inf, 3661.0, math.inf), "predict 7, 1:01:01"),
    ],
)
def test_a_line_says_what_is_done_and_how_long_the_rest_takes(arguments, line) -> None:
    assert progress_line(*arguments) == line


def test_times_carry_over() -> None:
    assert [clock(s) for s in (0, 59.6, 3599.6, 3600 * 30)] == ["0:00", "1:00", "1:00:00", "30:00:00"]


def run(model: str, folder: Path, bar: ProgressLine, **options: object) -> None:
    trainer(folder, callbacks=[bar], enable_progress_bar=True, **options).fit(module(SFT, model), Rows(12))


def test_a_log_has_lines_and_none_where_bars_are_disabled(model: str, tmp_path: Path, capsys) -> None:
    run(model, tmp_path, ProgressLine(every=0), max_steps=3)
    lines = capsys.readouterr().err.splitlines()
    assert [line[-1] for line in lines if line.startswith("lovec: SFT trains ")] == [")"]
    lines = [line for line in lines if line.startswith("lovec: train ")]
    assert [line.split(", loss ")[0] for line in lines] == [f"lovec: train {n}/3" for n in (1, 2, 3)]
    assert all(re.search(r", loss [\d.]+ \(lower is better\), 0:\d\d", line) for line in lines)
    run(model, tmp_path, ProgressLine(every=1000), max_steps=1)
    assert "train 1/" not in capsys.readouterr().err
    silent = ProgressLine(every=0)
    silent.disable()
    run(model, tmp_path, silent, max_steps=1)
    assert "lovec: " not in capsys.readouterr().err


@pytest.mark.parametrize("epochs", [1000, -1])
def test_a_run_takes_no_longer_than_its_limit(epochs: int, model: str, tmp_path: Path) -> None:
    class Seen(Callback):
        def on_train_batch_end(self, trainer: Trainer, pl_module: Any, *place: Any) -> None:
            left.append(pl_module.costs.seconds_left(trainer.global_step))
            said.append(pl_module.costs.summary(trainer.global_step))
            trainer.should_stop = True

    left: list[float | None] = []
    said: list[str] = []
    limits = [Timer(timedelta(seconds=25), verbose=False), Seen()]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RunEstimate, "rate", 3600.0)
        run = trainer(tmp_path, callbacks=limits, max_epochs=epochs)
        run.fit(module(SFT, model), Rows(12))
    assert left and all(0 <= seconds <= 25 for seconds in left if seconds is not None)
    assert None not in left and re.match(r"about (\d\d s|1 min): ", said[0])


def test_a_terminal_has_one_line_that_fits_it(model: str, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr("lovec.core.progress.EVERY_ON_TERMINAL", 0.0)
    monkeypatch.setenv("COLUMNS", "80")
    screen = Terminal()
    monkeypatch.setattr(sys, "stderr", screen)
    bar = ProgressLine()
    bar._shown = True
    run(model, tmp_path, bar, max_steps=2, max_epochs=3)
    bar._show("train", 1, 2, ", " + "x" * 200)
    shown = [line.removesuffix("\033[K") for line in screen.getvalue().split("\r") if line.startswith("train ")]
    assert len(shown) >= 3 and all(len(line) <= 79 for line in shown)
    assert "\ntrain " not in screen.getvalue()
    assert "epoch 1 of 3" in shown[0]


def test_settings_out_of_range_are_refused() -> None:
    with pytest.raises(LovecError, match="every of ProgressLine is -1"):
        ProgressLine(every=-1)
