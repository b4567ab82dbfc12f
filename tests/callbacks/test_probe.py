"""Probes report what the answers are like, and leave training as it is."""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from forks import ranks, run_forks
from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import Callback, ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from tinyrun import Rows, module, sft_adapter, trainer

from lovec.callbacks import Probe
from lovec.callbacks.probe import allowance
from lovec.modules import DPO, SFT, EvaluationConfig, PolicyConfig
from lovec.policy import Policy
from lovec.policy.checkpoints import read_checkpoint
from lovec.reports.training_log import read_training_log
from lovec.types import LovecError, Record


class Third:
    """An oracle that draws random numbers, and rates everything 0.3."""

    def rate(self, records: Sequence[Record]) -> list[list[float | None]]:
        torch.rand(3)
        return [[0.3] * len(record.sentences) for record in records]


class Answers:
    """An engine that writes the same answers every time; all else is that of the real one."""

    def __init__(self, engine: Any, texts: Sequence[str]) -> None:
        self._engine, self.texts, self.keys = engine, texts, []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def generate(self, prompts: Any, sampling: Any, stop_ids: Any, keys: Any = None, on_token: Any = None) -> Any:
        from lovec.types import Completion

        assert sampling.temperature == 0
        self.keys.append(list(keys))
        chosen = [self.texts[int(key[1:])] for key in keys]
        ids = [tuple(self.tokenizer(text, add_special_tokens=False)["input_ids"]) for text in chosen]
        return [[Completion(one, (0.0,) * len(one), True)] for one in ids]


CONFIG = EvaluationConfig(max_new_tokens=8, rows=8)


class Logged(Callback):
    """Keeps the metrics of every probe."""

    def __init__(self) -> None:
        self.rows: list[dict[str, float]] = []

    def on_train_batch_end(self, trainer: Any, pl_module: Any, *args: Any) -> None:
        found = {k: float(v) for k, v in trainer.callback_metrics.items() if k.startswith("train/probe_")}
        self.rows.append({k.removeprefix("train/probe_"): v for k, v in found.items()})


def test_a_probe_measures_the_answers(model: str, tmp_path: Path) -> None:
    made = module(SFT, model, oracle=Third(), evaluation=CONFIG)
    texts = [
        "Ada wrote it. <confidence> 3 </confidence> So they say. <confidence> 9 </confidence>",
        "No tag here at all",
        "",
        "Yes. <confidence> 3 </confidence> Eleven. <confidence> 11 </confidence>",
    ]
    made.engine = Answers(made.engine, texts)
    logged = Logged()

    class Tokenizer(Callback):
        def on_train_start(self, trainer: Any, pl_module: Any) -> None:
            made.engine.tokenizer = made.encoder.tokenizer

    logger = CSVLogger(tmp_path, name="logs")
    trainer(tmp_path, callbacks=[Probe(2, 4), Tokenizer(), logged], logger=logger, log_every_n_steps=1).fit(
        made, Rows()
    )
    # scores 3, 9, 3; missing: no tag, nothing at all, 11
    expected = {
        "malformed": 3 / 6,
        "entropy": -(2 / 3 * math.log(2 / 3) + 1 / 3 * math.log(1 / 3)),
        "distinct": 2.0,
        "cut_off": 0.0,
        "words": (3 + 3 + 5 + 0 + 1 + 1) / 4,
        "confidence": 0.5,
        "factuality": 0.3,
        "brier": 0.36 / 3,
    }
    assert logged.rows[0] == pytest.approx(expected, abs=1e-6)
    assert made.engine.keys == [["r0", "r1", "r2", "r3"]] * 2  # before batches 0 and 2
    run = read_training_log(tmp_path)
    assert [step for step, _ in run.series("train/probe_words")] == [0, 2]
    assert [step for step, _ in run.series("train/loss")] == [1, 2, 3]


def test_without_an_oracle_or_questions_a_probe_measures_less(model: str, tmp_path: Path) -> None:
    logged = Logged()
    trainer(tmp_path, callbacks=[Probe(2, 3), logged], max_steps=1).fit(module(SFT, model), Rows())
    assert logged.rows[0].keys() == {"malformed", "entropy", "distinct", "cut_off", "words"}

    class Unasked(Rows):
        def load(self, split: str) -> list[Record]:
            rows = super().load(split)
            return rows if split == "train" else [replace(row, meta={"domain": str(i)}) for i, row in enumerate(rows)]

    class Blind(Rows):
        def load(self, split: str) -> list[Record]:
            return super().load(split) if split == "train" else []

    logged = Logged()
    run = trainer(tmp_path, callbacks=[Probe(2, 3), logged], max_steps=1)
    run.fit(module(SFT, model), Blind())
    assert logged.rows == [{}]
    made = module(SFT, model)
    made.engine = Answers(made.engine, ["A."] * 4)
    made.engine.tokenizer = lambda text, **_: {"input_ids": [5]}
    trainer(tmp_path, max_steps=1, callbacks=[Probe(2, 3)]).fit(made, Unasked())
    assert made.engine.keys == [["r0"]]  # the first domain alone


def test_a_probe_before_the_first_step_is_not_judged(model: str, tmp_path: Path) -> None:
    """An untrained model writes no tag; that is worth a warning only where two later probes say so."""
    both = ["train/probe_malformed is 100.0%", "train/probe_cut_off is 100.0% of the answers"]
    for steps, expected in ((1, []), (3, []), (5, both)):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            trainer(tmp_path, max_steps=steps, callbacks=[Probe(2, 3)]).fit(module(SFT, model), Rows(20))
        lines = [str(w.message) for w in caught if str(w.message).startswith("train/")]
        assert [line.split(" (")[0] for line in lines] == expected


def test_probe_settings_out_of_range_are_refused() -> None:
    with pytest.raises(LovecError, match=r"every of Probe is -1, expected at least 0"):
        Probe(every=-1)
    with pytest.raises(LovecError, match="questions of Probe is 0, expected at least 1"):
        Probe(questions=0)
    with pytest.raises(LovecError, match="share of Probe is 0, expected above 0"):
        Probe(share=0)


def test_every_training_has_a_probe_unless_the_trainer_or_the_objective_says_otherwise(
    model: str, tmp_path: Path
) -> None:
    class Unprobed(SFT):
        probes = False

    given = Probe(2, 3)
    for cls, callbacks, logged in ((SFT, [], True), (SFT, [Probe(every=0)], False), (Unprobed, [given], False)):
        run = Trainer(default_root_dir=tmp_path, max_steps=1, accelerator="cpu", logger=False, callbacks=callbacks,
                      enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False)  # fmt: skip
        run.fit(module(cls, model), Rows())
        assert len([callback for callback in run.callbacks if isinstance(callback, Probe)]) == 1
        assert any(name.startswith("train/probe_") for name in run.callback_metrics) == logged


def weights(made: Any) -> list[torch.Tensor]:
    return [p.detach().clone() for p in made.policy.trainable()]


@pytest.mark.parametrize("objective", [SFT, DPO])
def test_probes_change_nothing(objective: type, model: str, tmp_path: Path) -> None:
    """With dropout, an oracle that draws, a validation between, and across a resume: the same bits."""
    adapter = sft_adapter(tmp_path / "sft", model)
    policy = PolicyConfig(model=model, adapter=adapter, lora_r=4, lora_dropout=0.3)

    def fit(name: str, every: int, ckpt: Any = None, **kwargs: Any) -> Any:
        saver = ModelCheckpoint(dirpath=tmp_path / name, filename="last", every_n_train_steps=3, save_top_k=-1)
        made = module(objective, model, policy=policy, oracle=Third(), evaluation=CONFIG)
        flags: list[set[bool]] = []

        class Flags(Callback):
            def on_train_batch_end(self, *args: Any) -> None:
                flags.append({m.training for m in made.policy.modules()})

        torch.manual_seed(1)
        run = trainer(tmp_path / name, callbacks=[Probe(every, 3), saver, Flags()], enable_checkpointing=True, **kwargs)
        run.fit(made, Rows(20), ckpt_path=ckpt)
        assert flags and set.union(*flags) == {True}
        return made, torch.rand(1)

    plain, drawn = fit("plain", 0)
    probed, drawn_too = fit("probed", 1)
    watched, _ = fit("watched", 1, limit_val_batches=1.0, val_check_interval=2)
    resumed, _ = fit("resumed", 2, ckpt=tmp_path / "watched" / "last.ckpt")
    for one in (probed, watched, resumed):
        assert all(torch.equal(a, b) for a, b in zip(weights(plain), weights(one), strict=True))
    assert torch.equal(drawn, drawn_too)
    names = set(read_checkpoint(tmp_path / "probed" / "last.ckpt")["state_dict"])
    assert names == set(read_checkpoint(tmp_path / "plain" / "last.ckpt")["state_dict"])


def test_a_probe_gets_an_equal_part_of_what_is_left_of_the_budget() -> None:
    assert allowance(0.05, 2000.0, 0.0, 4) == 25.0
    assert allowance(0.05, 2000.0, 60.0, 2) == 20.0
    assert allowance(0.05, 2000.0, 101.0, 2) == 0.0 and allowance(0.05, 2000.0, 0.0, 0) == 100.0


def test_probes_of_a_large_model_take_their_share_of_the_time(
    model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """With next to no time every answer ends after its first token; what is learned is the same."""
    said = "so that all of them take at most 0% of the run"
    moved, rows = [], []
    for large, probe in ((False, Probe(2, 3, 1e-9)), (True, Probe(2, 3, 1e-9)), (True, Probe(2, 3, 1.0))):
        monkeypatch.setattr(Policy, "is_tiny", not large)
        caplog.clear()
        made, logged = module(SFT, model, oracle=Third(), evaluation=CONFIG), Logged()
        torch.manual_seed(1)
        trainer(tmp_path, callbacks=[probe, logged]).fit(made, Rows())
        moved.append(weights(made))
        rows.append(logged.rows)
        assert caplog.text.count(said) == (large and probe.share < 1)
        assert ("this one after 1 of 8 tokens" in caplog.text) == (large and probe.share < 1)
    for one in moved[1:]:
        assert all(torch.equal(a, b) for a, b in zip(moved[0], one, strict=True))
    small, ended, unlimited = rows
    assert [row["words"] for row in small] == [row["words"] for row in unlimited] and small[0]["cut_off"] == 1.0
    assert all(math.isnan(row["words"]) and math.isnan(row["cut_off"]) for row in ended)


def test_probes_work_in_mixed_precision(model: str, tmp_path: Path) -> None:
    """What autocast keeps of a forward without gradients must not reach the training step."""
    moved = []
    for every in (0, 1):
        made = module(SFT, model)
        torch.manual_seed(1)
        trainer(tmp_path, precision="bf16-mixed", callbacks=[Probe(every, 3)]).fit(made, Rows())
        moved.append(weights(made))
    assert all(torch.equal(a, b) for a, b in zip(*moved, strict=True))


class Fewer(Callback):
    """One question from the third batch on: the second process gets none."""

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        if batch_idx == 2:
            next(callback for callback in trainer.callbacks if isinstance(callback, Probe)).questions = 1


def probed_run(model: str, folder: str, devices: int) -> None:
    """Write the metrics of probes of 3, 3 and 1 questions into a file."""
    torch.manual_seed(0)
    logged = Logged()
    made = module(SFT, model, oracle=Third(), evaluation=EvaluationConfig(max_new_tokens=24, rows=8), lr=0.1, sgd=True)
    strategy = "ddp" if devices > 1 else "auto"
    callbacks = [Probe(2, 3), logged, Fewer()]
    run = trainer(Path(folder), devices=devices, strategy=strategy, callbacks=callbacks, max_epochs=2,
                  use_distributed_sampler=False)  # fmt: skip
    run.fit(made, Rows())
    if run.is_global_zero:
        Path(folder, f"{devices}.json").write_text(json.dumps(logged.rows))


def test_two_processes_probe_as_one(model: str, tmp_path: Path) -> None:
    probed_run(model, str(tmp_path), 1)
    rank = partial(probed_run, model, str(tmp_path), 2)
    for code, printed in run_forks(rank, rank, environments=ranks(2)):
        assert code == 0, printed[-2000:]
    one, two = (json.loads((tmp_path / f"{devices}.json").read_text()) for devices in (1, 2))
    assert len(one) == len(two) == 6
    for a, b in zip(one, two, strict=True):
        assert a["words"] > 0
        assert b == pytest.approx(a, abs=1e-6, nan_ok=True)
