"""Resuming and distributed runs, with real processes and real signals."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import torch
from forks import Fork, ranks, run_forks
from layouts import check_equal_tables

from lovec.datasets.jsonl import read_records
from lovec.policy.checkpoints import AtomicCheckpointIO, read_checkpoint

SCRIPT = """
import json, time, torch
from pathlib import Path
from tinyrun import Drifted, Lengths, Rows, Truth, module, trainer
from lightning.pytorch.callbacks import Callback, ModelCheckpoint
from lovec.modules import {cls}, PolicyConfig, WarmupCosine

class Gate(Callback):
    # stays at one step until there is a file: however slow the machine, a signal comes at this step
    def on_train_batch_end(self, trainer, *args):
        print("step", trainer.global_step, flush=True)
        while trainer.global_step == {stop} and not (folder / "go").exists():
            time.sleep(0.02)

class Odd(Rows):
    # three test records in batches of two: on two processes the last batch of the second one is empty
    def load(self, split):
        self.eval_batch_size = 1 if run.world_size == 2 else 2
        return super().load(split)[: 3 if split == "test" else None]

folder, ckpt = Path({folder!r}), {ckpt!r}
policy = PolicyConfig({model!r}, {adapter!r}, 4, 8, 0.3)
objective = module({cls}, {model!r}, policy=policy, sgd={sgd}, lr_scheduler=WarmupCosine, micro_batch_tokens=400,
                   seed=5, grad_norm=0.0 if {sgd} else 1.0, **dict({options}))
saver = ModelCheckpoint(dirpath=folder / "ck", filename="last", every_n_train_steps=2, enable_version_counter=False)
run = trainer(folder, enable_checkpointing=True, callbacks=[saver, Gate()], max_epochs=3, **{kwargs!r})
run.fit(objective, Rows(11), ckpt_path=ckpt)
metrics = {{k: float(v) for k, v in run.callback_metrics.items()}}
if {test}:
    objective.evaluation.recalibrated = True
    run.test(objective, Odd(11), verbose=False)
if run.is_global_zero:
    (folder / "metrics.json").write_text(json.dumps(metrics))
    torch.save([p.detach() for p in objective.policy.trainable()], folder / "weights.pt")
"""


OPTIONS = {
    "GRPO": "reward=Truth(), oracle=Lengths(), engine=Drifted(8), group_size=3, max_new_tokens=10, inner_epochs={inner}"
}
"""Arguments of an objective beside the defaults, as source text."""


def script(
    cls: str,
    folder: Path,
    model: str,
    adapter: str | None,
    ckpt: str | None = None,
    stop: int = 0,
    sgd: bool = False,
    test: bool = False,
    inner: int = 1,
    **kwargs: Any,
) -> Callable[[], None]:
    folder.mkdir(exist_ok=True)
    text = SCRIPT.format(
        cls=cls,
        folder=str(folder),
        model=model,
        adapter=adapter,
        ckpt=ckpt,
        stop=stop,
        sgd=sgd,
        test=test,
        options=OPTIONS.get(cls, "").format(inner=inner),
        kwargs=kwargs,
    )
    return lambda: exec(compile(text, str(folder), "exec"), {"__name__": "run"})


@pytest.mark.parametrize(("cls", "inner"), [("SFT", 1), ("DPO", 1), ("GRPO", 2), ("ExpectedReward", 1)])
def test_a_killed_run_resumes_bit_for_bit(cls: str, inner: int, model: str, adapter: str, tmp_path: Path) -> None:
    """Dropout, order, draws, schedule and optimiser included; killed in the middle of the second epoch."""
    whole_run = script(cls, tmp_path / "whole", model, adapter, inner=inner)
    [(code, printed)] = run_forks(whole_run)
    assert code == 0, printed
    with Fork(script(cls, tmp_path / "cut", model, adapter, stop=5 * inner, inner=inner)) as process:
        for line in process.stdout:
            if line.strip() == f"step {5 * inner}":
                process.send_signal(signal.SIGKILL)
                break
    assert process.returncode == -signal.SIGKILL
    ckpt = str(tmp_path / "cut" / "ck" / "last.ckpt")
    [(code, printed)] = run_forks(script(cls, tmp_path / "cut", model, adapter, ckpt, inner=inner))
    assert code == 0, printed
    steps = [int(line.split()[1]) for line in printed.splitlines() if line.startswith("step")]
    assert steps == [batch * inner for batch in range(5, 10)]
    whole, cut = (torch.load(tmp_path / name / "weights.pt") for name in ("whole", "cut"))
    assert all(torch.equal(a, b) for a, b in zip(whole, cut, strict=True))


def test_sigterm_saves_and_stops(model: str, tmp_path: Path) -> None:
    with Fork(script("SFT", tmp_path / "run", model, None, stop=3)) as process:
        for line in process.stdout:
            if line.strip() == "step 3":
                process.send_signal(signal.SIGTERM)
                (tmp_path / "run" / "go").touch()
                break
        process.stdout.read()
    checkpoint = read_checkpoint(tmp_path / "run" / "terminated.ckpt")
    assert checkpoint["global_step"] in (3, 4)
    assert checkpoint["Rows"]["served"] == checkpoint["global_step"]
    assert not (tmp_path / "run" / "adapter").exists()


@pytest.mark.parametrize(
    ("cls", "logged"), [("DPO", "train/margin"), ("GRPO", "train/mismatch_max"), ("ExpectedReward", "train/confidence")]
)
def test_two_processes_equal_one(cls: str, logged: str, model: str, adapter: str, tmp_path: Path) -> None:
    """With different numbers of micro-batches; dropout is off in all but SFT."""
    brief = {"limit_train_batches": 2, "limit_val_batches": 1.0}
    same = {"sgd": True, "test": True, **brief}
    two_devices = {"devices": 2, "strategy": "ddp", "use_distributed_sampler": False}
    [done] = run_forks(script(cls, tmp_path / "one", model, adapter, **same))
    rank = script(cls, tmp_path / "two", model, adapter, **same, **two_devices)
    for code, printed in [done, *run_forks(rank, rank, environments=ranks(2))]:
        assert code == 0, printed[-3000:]
    one, two = (torch.cat([p.flatten() for p in torch.load(tmp_path / n / "weights.pt")]) for n in ("one", "two"))
    assert (one - two).norm() / one.norm() < 1e-5
    alone, together = (json.loads((tmp_path / n / "metrics.json").read_text()) for n in ("one", "two"))
    assert {"train/loss", logged, "val/brier", "val/passage_ece_m"} <= alone.keys()
    assert together == pytest.approx(alone, rel=1e-4, abs=1e-5, nan_ok=True)

    assert check_equal_tables(tmp_path / "one", tmp_path / "two") > 8
    method = cls.lower()
    for name in (
        f"{method}.iterative",
        f"{method}-isotonic.iterative.mean",
        "vanilla.iterative",
        "best-constant.iterative",
    ):
        one, two = (
            [r.id for r in read_records(tmp_path / n / "test" / "rows" / f"{name}.jsonl")] for n in ("one", "two")
        )
        assert one == two == ["r0", "r1", "r2"]


def test_a_kill_while_a_checkpoint_is_written_leaves_the_older_one(tmp_path: Path) -> None:
    path = tmp_path / "last.ckpt"

    def save_on_and_on() -> None:
        io = AtomicCheckpointIO()
        whole: dict[str, Any] = {"lovec": {"lora": {}, "reference": False}, "state_dict": {}, "global_step": 0}
        io.save_checkpoint({**whole, "n": 0}, path)
        print("saved")
        for n in count(1):
            io.save_checkpoint({**whole, "n": n, "x": torch.zeros(4_000_000)}, path)

    for _ in range(2):
        with Fork(save_on_and_on) as process:
            process.stdout.readline()
            time.sleep(0.15)
            process.send_signal(signal.SIGKILL)
        assert read_checkpoint(path)["n"] >= 0
