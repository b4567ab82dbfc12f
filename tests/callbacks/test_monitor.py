"""Probes leave training as it is, and the monitor warns of what it should, once."""

from __future__ import annotations

import json
import math
import subprocess
import sys
import warnings
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch.callbacks import Callback, ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from tinyrun import Rows, module, sft_adapter, tiny, trainer

from lovec.callbacks import Limits, Monitor
from lovec.callbacks.monitor import judge
from lovec.modules import DPO, SFT, EvaluationConfig, PolicyConfig
from lovec.policy.checkpoints import read_checkpoint
from lovec.reports.curves import read_run
from lovec.types import LovecError, Record

GOOD = dict(
    malformed=0.01, entropy=1.5, distinct=6.0, words=60.0, confidence=0.7, factuality=0.68, brier=0.1, kl=0.05,
    zero_variance=0.05,
)  # fmt: skip


class Third:
    """An oracle that draws, and finds everything a third true."""

    def rate(self, records: Sequence[Record]) -> list[list[float | None]]:
        torch.rand(3)
        return [[0.3] * len(record.sentences) for record in records]


class Answers:
    """An engine that gives the same answers every time, but reads as the real one in all else."""

    def __init__(self, engine: Any, texts: Sequence[str]) -> None:
        self._engine, self.texts, self.asked = engine, texts, []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def generate(self, prompts: Any, sampling: Any, stop_ids: Any, keys: Any = None) -> Any:
        from lovec.types import Completion

        assert sampling.temperature == 0
        self.asked.append(list(keys))
        chosen = [self.texts[int(key[1:])] for key in keys]
        ids = [tuple(self.tokenizer(text, add_special_tokens=False)["input_ids"]) for text in chosen]
        return [[Completion(one, (0.0,) * len(one), True)] for one in ids]


class Logged(Callback):
    """Keeps the figures of every probe."""

    def __init__(self) -> None:
        self.rows: list[dict[str, float]] = []

    def on_train_batch_end(self, trainer: Any, pl_module: Any, *args: Any) -> None:
        found = {k: float(v) for k, v in trainer.callback_metrics.items() if k.startswith("train/probe_")}
        self.rows.append({k.removeprefix("train/probe_"): v for k, v in found.items()})


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return tiny(tmp_path_factory.mktemp("models"))


def probing(**options: Any) -> EvaluationConfig:
    return EvaluationConfig(**{"max_new_tokens": 8, "rows": 8, "probe_every": 2, "probe_rows": 3, **options})


def kinds(figures: dict[str, float], first: dict[str, float] | None = None) -> list[str]:
    return [alarm.kind for alarm in judge(figures, first or {})]


# ---------------------------------------------------------------- the decision


def test_nothing_is_wrong_with_good_figures_or_none() -> None:
    assert kinds(GOOD, GOOD) == kinds({}) == kinds({name: math.nan for name in GOOD}, GOOD) == []


@pytest.mark.parametrize(
    ("change", "kind", "words"),
    [
        ({"malformed": 0.12}, "malformed", "val/free-form/malformed is 12.0% (limit 5%): tags are breaking; lower"),
        ({"entropy": 0.09}, "entropy", "val/free-form/entropy is 0.09 nats, distinct scores 6 (limit 0.1 and 1)"),
        ({"distinct": 1.0, "entropy": 0.0}, "entropy", "distinct scores 1"),
        ({"confidence": 0.95}, "confidence", "confidence is 0.95 where factuality is 0.68 (limit 0.25 apart): over"),
        ({"confidence": 0.4}, "confidence", "under-confident"),
        ({"words": 29.0}, "words", "words fell from 60 to 29 an answer (limit 50%)"),
        ({"words": 0.0}, "words", "words fell from 60 to 0"),
        ({"factuality": 0.57}, "factuality", "mean_factuality fell from 0.68 to 0.57 (limit 0.1)"),
        ({"zero_variance": 0.6}, "zero_variance", "zero_variance is 60% (limit 50%): groups"),
        ({"kl": 0.7}, "kl", "kl is 0.70 nats a token (limit 0.5)"),
    ],
)  # fmt: skip
def test_each_kind_is_seen_alone_and_says_figure_and_limit(change: dict[str, float], kind: str, words: str) -> None:
    alarms = judge({**GOOD, **change}, GOOD, place="val/free-form/")
    assert [alarm.kind for alarm in alarms] == [kind]
    assert words in alarms[0].line and "\n" not in alarms[0].line
    assert alarms[0].severity > 0


def test_limits_are_the_last_good_values_and_can_be_set() -> None:
    edge = {**GOOD, "malformed": 0.05, "entropy": 0.1, "words": 30.0, "zero_variance": 0.5, "kl": 0.5}
    assert kinds(edge, GOOD) == []
    strict = Limits(malformed=0.0, gap=0.01, words=0.99, kl=0.01)
    assert {a.kind for a in judge(edge, GOOD, strict)} == {"malformed", "confidence", "words", "kl"}


def test_one_score_is_right_where_everything_is_as_true() -> None:
    said = {"distinct": 1.0, "entropy": 0.0, "confidence": 0.7}
    same = {**said, "factuality": 0.6, "brier": 0.01 + 0.03**2}  # f varies by 0.03 around 0.6
    varied = {**said, "factuality": 0.6, "brier": 0.01 + 0.2**2}
    assert kinds(same) == [] and kinds(varied) == kinds(said) == ["entropy"]


# ---------------------------------------------------------------- the callback


class Staged(SFT):
    """Logs what a sampling objective would, from a list."""

    probes = False
    staged: Sequence[dict[str, float]] = ()

    def training_step(self, rows: Any, batch_idx: int) -> None:
        super().training_step(rows, batch_idx)
        self.log_dict({f"train/{k}": v for k, v in self.staged[batch_idx].items()})


def staged(
    model: str, folder: Path, rows: Sequence[dict[str, float]], monitor: Monitor, ckpt: Any = None, **kwargs: Any
) -> list[str]:
    """The warnings of a run that logs ``rows``."""
    made = module(Staged, model)
    made.staged = rows
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        run = trainer(folder, callbacks=[monitor], max_steps=len(rows), **kwargs)
        run.fit(made, Rows(4 * len(rows)), ckpt_path=ckpt)
    return [str(w.message) for w in caught if str(w.message).startswith(("train/", "val/"))]


def test_an_alarm_is_given_once_and_again_when_much_worse(model: str, tmp_path: Path) -> None:
    rates = [0.0, 0.06, 0.08, 0.11, 0.0, 0.13, 0.2]
    said = staged(model, tmp_path, [{"malformed": rate} for rate in rates], Monitor(every=1, window=1))
    assert [line.split(" (")[0] for line in said] == ["train/malformed is 6.0%", "train/malformed is 13.0%"]


def test_sampled_figures_are_judged_by_their_mean(model: str, tmp_path: Path) -> None:
    noisy = [{"factuality": f, "words": w} for f, w in [(0.9, 30), (0.5, 10), (0.9, 25), (0.4, 6)]]
    assert len(staged(model, tmp_path, noisy, Monitor(every=1, window=1))) == 2
    assert staged(model, tmp_path, noisy, Monitor(every=2, window=2)) == []
    lucky = [{"words": words} for words in (60.0, 10.0, 14.0, 22.0)]  # one long answer is no beginning to compare with
    assert staged(model, tmp_path, lucky, Monitor(every=1, window=3)) == []
    worse = [*noisy, {"factuality": 0.3, "words": 6.0}, {"factuality": 0.2, "words": 5.0}]
    said = staged(model, tmp_path, worse, Monitor(every=2, window=2))
    assert [line.split(" (")[0] for line in said] == [
        "train/factuality fell from 0.70 to 0.25",
        "train/words fell from 20 to 6 an answer",
    ]


def test_a_resumed_run_remembers_its_beginning_and_its_alarms(model: str, tmp_path: Path) -> None:
    rows = [{"words": 40.0, "malformed": 0.06}] * 2 + [{"words": 10.0, "malformed": 0.07}] * 2
    saver = ModelCheckpoint(dirpath=tmp_path, filename="two", every_n_train_steps=2, save_top_k=-1)
    options = {"enable_checkpointing": True}
    whole = Monitor(every=1, window=1)
    made = module(Staged, model)
    made.staged = rows
    with pytest.warns(UserWarning, match="malformed is 6"):
        run = trainer(tmp_path, callbacks=[whole, saver], max_steps=2, **options)
        run.fit(made, Rows(16))
    said = staged(model, tmp_path, rows, Monitor(every=1, window=1), ckpt=tmp_path / "two.ckpt")
    assert [line.split(" (")[0] for line in said] == ["train/words fell from 40 to 10 an answer"]


def test_every_training_has_a_monitor_and_one_of_ones_own_takes_its_place(model: str, tmp_path: Path) -> None:
    run = trainer(tmp_path, max_steps=1)
    run.fit(module(SFT, model), Rows())
    run.fit(module(SFT, model), Rows())  # not a second one
    assert [type(c) for c in run.callbacks].count(Monitor) == 1
    own = Monitor(kl=1.0)
    run = trainer(tmp_path, max_steps=1, callbacks=[own])
    run.fit(module(SFT, model), Rows())
    assert [c for c in run.callbacks if isinstance(c, Monitor)] == [own]
    assert own.limits == Limits(kl=1.0)
    with pytest.raises(LovecError, match="every 0, window 50 and worse 2"):
        Monitor(every=0)


def test_validation_is_judged_and_the_figures_before_training_are_not(model: str, tmp_path: Path) -> None:
    """An untrained model writes no tag: that is said after the first steps, not before them."""
    monitor = Monitor()
    seen: list[tuple[int, int]] = []

    class Order(Callback):
        def on_sanity_check_end(self, trainer: Any, pl_module: Any) -> None:
            seen.append((-1, len(monitor._warned)))

        def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
            seen.append((trainer.global_step, len(monitor._warned)))

    made = module(SFT, model, oracle=Third(), evaluation=probing(probe_every=0))
    logger = CSVLogger(tmp_path, name="logs")
    run = trainer(tmp_path, limit_val_batches=1.0, num_sanity_val_steps=-1, val_check_interval=2, logger=logger,
                  log_every_n_steps=1, callbacks=[monitor, Order()])  # fmt: skip
    with pytest.warns(UserWarning, match="val/free-form/malformed is 100"):
        run.fit(made, Rows(16))
    assert [step for step, _ in seen] == [0, -1, 2, 4]
    assert [count > 0 for _, count in seen] == [False, False, True, True]
    logged = read_run(tmp_path).logged
    assert sorted(step for step, row in logged.items() if "val/brier" in row) == [0, 2, 4]
    assert logged[0]["val/words"] == logged[4]["val/words"] == 14.25  # iterative: the text is given
    assert 1 <= logged[0]["val/distinct"] <= 11 and logged[0]["val/entropy"] <= math.log(11)
    assert {"val/free-form/words", "val/free-form/malformed"} <= logged[2].keys()
    assert "val/mean_words" not in logged[0] and "val/passage_entropy" not in logged[0]


# ---------------------------------------------------------------- probes


def test_a_probe_says_what_the_answers_are_like(model: str, tmp_path: Path) -> None:
    made = module(SFT, model, oracle=Third(), evaluation=probing(probe_rows=4))
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
    trainer(tmp_path, callbacks=[Tokenizer(), logged], logger=logger, log_every_n_steps=1).fit(made, Rows())
    # scores 3, 9, 3; missing: no tag, nothing at all, 11
    expected = {
        "malformed": 3 / 6,
        "entropy": -(2 / 3 * math.log(2 / 3) + 1 / 3 * math.log(1 / 3)),
        "distinct": 2.0,
        "words": (3 + 3 + 5 + 0 + 1 + 1) / 4,
        "confidence": 0.5,
        "factuality": 0.3,
        "brier": 0.36 / 3,
    }
    assert logged.rows[0] == pytest.approx(expected, abs=1e-6)
    assert made.engine.asked == [["r0", "r1", "r2", "r3"]] * 2  # before batches 0 and 2
    run = read_run(tmp_path)
    assert [step for step, _ in run.series("train/probe_words")] == [0, 2]
    assert [step for step, _ in run.series("train/loss")] == [1, 2, 3]


def test_without_an_oracle_or_questions_a_probe_says_what_it_can(model: str, tmp_path: Path) -> None:
    logged = Logged()
    trainer(tmp_path, callbacks=[logged], max_steps=1).fit(module(SFT, model, evaluation=probing()), Rows())
    assert logged.rows[0].keys() == {"malformed", "entropy", "distinct", "words"}

    class Unasked(Rows):
        def load(self, split: str) -> list[Record]:
            rows = super().load(split)
            return rows if split == "train" else [replace(row, meta={"domain": str(i)}) for i, row in enumerate(rows)]

    class Blind(Rows):
        def load(self, split: str) -> list[Record]:
            return super().load(split) if split == "train" else []

    logged = Logged()
    run = trainer(tmp_path, callbacks=[logged], max_steps=1)
    run.fit(module(SFT, model, evaluation=probing()), Blind())
    assert logged.rows == [{}]
    made = module(SFT, model, evaluation=probing())
    made.engine = Answers(made.engine, ["A."] * 4)
    made.engine.tokenizer = lambda text, **_: {"input_ids": [5]}
    trainer(tmp_path, max_steps=1).fit(made, Unasked())
    assert made.engine.asked == [["r0"]]  # the first domain alone


def test_a_probe_before_the_first_step_is_not_judged(model: str, tmp_path: Path) -> None:
    """An untrained model writes no tag; that is worth a word after some steps."""
    for steps, expected in ((1, []), (3, ["train/probe_malformed is 100.0%"])):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            trainer(tmp_path, max_steps=steps).fit(module(SFT, model, evaluation=probing()), Rows())
        said = [str(w.message) for w in caught if str(w.message).startswith("train/")]
        assert [line.split(" (")[0] for line in said] == expected


def test_probe_settings_out_of_range_are_refused() -> None:
    with pytest.raises(LovecError, match=r"probe_every is -1 and probe_rows 8"):
        EvaluationConfig(probe_every=-1)
    with pytest.raises(LovecError, match="probe_rows 0"):
        EvaluationConfig(probe_rows=0)


def weights(made: Any) -> list[torch.Tensor]:
    return [p.detach().clone() for p in made.policy.trainable()]


@pytest.mark.parametrize("objective", [SFT, DPO])
def test_probes_change_nothing(objective: type, model: str, tmp_path: Path) -> None:
    """With dropout, an oracle that draws, a validation between, and across a resume: the same bits."""
    adapter = sft_adapter(tmp_path / "sft", model)
    policy = PolicyConfig(model=model, adapter=adapter, lora_r=4, lora_dropout=0.3)

    def fit(name: str, every: int, ckpt: Any = None, **kwargs: Any) -> Any:
        saver = ModelCheckpoint(dirpath=tmp_path / name, filename="last", every_n_train_steps=3, save_top_k=-1)
        evaluation = probing(probe_every=every)
        made = module(objective, model, policy=policy, oracle=Third(), evaluation=evaluation)
        flags: list[set[bool]] = []

        class Flags(Callback):
            def on_train_batch_end(self, *args: Any) -> None:
                flags.append({m.training for m in made.policy.modules()})

        torch.manual_seed(1)
        run = trainer(tmp_path / name, callbacks=[saver, Flags()], enable_checkpointing=True, **kwargs)
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


def test_probes_work_in_mixed_precision(model: str, tmp_path: Path) -> None:
    """What autocast keeps of a forward without gradients must not reach the training step."""
    moved = []
    for every in (0, 1):
        made = module(SFT, model, evaluation=probing(probe_every=every))
        torch.manual_seed(1)
        trainer(tmp_path, precision="bf16-mixed").fit(made, Rows())
        moved.append(weights(made))
    assert all(torch.equal(a, b) for a, b in zip(*moved, strict=True))


class Fewer(Callback):
    """One question from the third batch on: the second process is left without."""

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        if batch_idx == 2:
            pl_module.evaluation.probe_rows = 1


def probed_run(model: str, folder: str, devices: int) -> None:
    """What probes of 3, 3 and 1 questions find, in a file."""
    torch.manual_seed(0)
    logged = Logged()
    made = module(SFT, model, oracle=Third(), evaluation=probing(max_new_tokens=24), lr=0.1, sgd=True)
    strategy = "ddp" if devices > 1 else "auto"
    run = trainer(Path(folder), devices=devices, strategy=strategy, callbacks=[logged, Fewer()], max_epochs=2,
                  use_distributed_sampler=False)  # fmt: skip
    run.fit(made, Rows())
    if run.is_global_zero:
        Path(folder, f"{devices}.json").write_text(json.dumps(logged.rows))


def test_two_processes_probe_as_one(model: str, tmp_path: Path) -> None:
    probed_run(model, str(tmp_path), 1)
    script = tmp_path / "run.py"
    script.write_text(
        f"import sys; sys.path[:0] = {[str(Path(__file__).parent), str(Path(__file__).parents[1] / 'helpers')]!r}\n"
        f"from test_monitor import probed_run; probed_run({model!r}, {str(tmp_path)!r}, 2)\n"
    )
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    one, two = (json.loads((tmp_path / f"{devices}.json").read_text()) for devices in (1, 2))
    assert len(one) == len(two) == 6
    for a, b in zip(one, two, strict=True):
        assert a["words"] > 0
        assert b == pytest.approx(a, abs=1e-6, nan_ok=True)
