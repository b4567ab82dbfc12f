"""The monitor warns of what it should, once."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from copy import deepcopy
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from lightning.pytorch.callbacks import Callback, ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from tinyrun import Lengths, Rows, module, trainer

import lovec.modules
import lovec.rewards
from lovec.callbacks import Limits, Monitor, Probe
from lovec.callbacks.monitor import _ADVICE, advice_on, judge, remedy_options
from lovec.core.settings import declared
from lovec.modules import DPO, SFT
from lovec.reports.training_log import read_training_log
from lovec.rewards import QuadraticReward
from lovec.types import LovecError

GOOD = dict(
    malformed=0.01, entropy=1.5, distinct=6.0, words=60.0, confidence=0.7, factuality=0.68, brier=0.1, kl=0.05,
    zero_variance=0.05,
)  # fmt: skip


def kinds(metrics: dict[str, float], first: dict[str, float] | None = None) -> list[str]:
    return [alarm.kind for alarm in judge(metrics, first or {})]


# ---------------------------------------------------------------- the decision


def test_nothing_is_wrong_with_good_metrics_or_none() -> None:
    assert kinds(GOOD, GOOD) == kinds({}) == kinds({name: math.nan for name in GOOD}, GOOD) == []


@pytest.mark.parametrize(
    ("change", "kind", "words"),
    [
        ({"malformed": 0.12}, "malformed", "val/free-form/malformed is 12.0% (limit 5%): tags are breaking; lower"),
        ({"cut_off": 0.06}, "cut_off", "val/free-form/cut_off is 6.0% of the answers (limit 5%): answers are cut"),
        ({"entropy": 0.09}, "entropy", "val/free-form/entropy is 0.09 nats, distinct scores 6 (limit 0.1 and 1)"),
        ({"distinct": 1.0, "entropy": 0.0}, "entropy", "distinct scores 1"),
        ({"confidence": 0.95}, "confidence", "confidence is 0.95 where factuality is 0.68 (limit 0.25 apart): over"),
        ({"confidence": 0.4}, "confidence", "underconfident"),
        ({"words": 29.0}, "words", "words fell from 60 to 29 per answer (limit 50%)"),
        ({"words": 0.0}, "words", "words fell from 60 to 0"),
        ({"factuality": 0.57}, "factuality", "mean_factuality fell from 0.68 to 0.57 (limit 0.1)"),
        ({"zero_variance": 0.6}, "zero_variance", "zero_variance is 60% (limit 50%): groups"),
        ({"kl": 0.7}, "kl", "kl is 0.70 nats per token (limit 0.5)"),
    ],
)  # fmt: skip
def test_each_kind_is_found_alone_and_names_metric_and_limit(change: dict[str, float], kind: str, words: str) -> None:
    alarms = judge({**GOOD, **change}, GOOD, prefix="val/free-form/")
    assert [alarm.kind for alarm in alarms] == [kind]
    assert words in alarms[0].line and "\n" not in alarms[0].line
    assert alarms[0].severity > 0


def test_limits_are_the_last_good_values_and_can_be_set() -> None:
    edge = {**GOOD, "malformed": 0.05, "entropy": 0.1, "words": 30.0, "zero_variance": 0.5, "kl": 0.5}
    assert kinds(edge, GOOD) == []
    strict = Limits(malformed=0.0, gap=0.01, words=0.99, kl=0.01)
    assert {a.kind for a in judge(edge, GOOD, strict)} == {"malformed", "confidence", "words", "kl"}


def test_one_score_is_right_where_everything_is_equally_true() -> None:
    constant = {"distinct": 1.0, "entropy": 0.0, "confidence": 0.7}
    same = {**constant, "factuality": 0.6, "brier": 0.01 + 0.03**2}  # f varies by 0.03 around 0.6
    varied = {**constant, "factuality": 0.6, "brier": 0.01 + 0.2**2}
    assert kinds(same) == [] and kinds(varied) == kinds(constant) == ["entropy"]


def test_advice_names_options_that_the_objective_has_and_better_values(model: str, tmp_path: Path) -> None:
    made = module(DPO, model, sft_weight=0.0, beta=0.1, lr=0.004)
    trainer(tmp_path, max_steps=1).fit(made, Rows())
    options = remedy_options(made)
    assert options == {"optimizer.lr": 0.004, "beta": 0.1, "sft_weight": 0.0, "evaluation.max_new_tokens": 8}
    assert advice_on("malformed", options) == (
        "tags are breaking; lower the learning rate (--model.optimizer.lr 0.002) or add weight on text "
        "(--model.sft_weight 0.1)"
    )
    assert advice_on("zero_variance", options) == "groups whose answers all earn the same teach nothing"
    assert "(--model.reward.bonus)" in advice_on("words")  # of any objective
    best = {"reward": QuadraticReward()}
    assert advice_on("overconfident", best) == "overconfident; recalibrate after training, with lovec calibrate"


def test_advice_is_about_options_that_objectives_have() -> None:
    known = {name for kind in vars(lovec.modules).values() if isinstance(kind, type) for name in declared(kind)}
    advised = {remedy["option"] for kind in _ADVICE.values() for remedy in kind["remedies"] if "option" in remedy}
    assert {option.partition(".")[0] for option in advised} <= known
    rewards = {name for name in declared(lovec.rewards.LogReward)}
    assert {option.partition(".")[2] for option in advised if option.startswith("reward.")} <= rewards


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
    lines = staged(model, tmp_path, [{"malformed": rate} for rate in rates], Monitor(every=1, window=1))
    assert [line.split(" (")[0] for line in lines] == ["train/malformed is 6.0%", "train/malformed is 13.0%"]


def test_metrics_of_sampled_answers_are_judged_by_their_mean(model: str, tmp_path: Path) -> None:
    noisy = [{"factuality": f, "words": w} for f, w in [(0.9, 30), (0.5, 10), (0.9, 25), (0.4, 6)]]
    assert len(staged(model, tmp_path, noisy, Monitor(every=1, window=1))) == 2
    assert staged(model, tmp_path, noisy, Monitor(every=2, window=2)) == []
    lucky = [
        {"words": words} for words in (60.0, 10.0, 14.0, 22.0)
    ]  # one long answer is not a beginning to compare with
    assert staged(model, tmp_path, lucky, Monitor(every=1, window=3)) == []
    worse = [*noisy, {"factuality": 0.3, "words": 6.0}, {"factuality": 0.2, "words": 5.0}]
    lines = staged(model, tmp_path, worse, Monitor(every=2, window=2))
    assert [line.split(" (")[0] for line in lines] == [
        "train/factuality fell from 0.70 to 0.25",
        "train/words fell from 20 to 6 per answer",
    ]


def test_a_probe_is_believed_if_the_one_before_it_said_the_same() -> None:
    monitor, made = Monitor(), SimpleNamespace(trainer=SimpleNamespace(optimizers=[]))

    def warned(monitor: Monitor, **metrics: float) -> int:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            monitor._look(made, "train/probe_", {f"train/probe_{name}": value for name, value in metrics.items()})
        return len(caught)

    assert [warned(monitor, malformed=rate) for rate in (0.2, 0.0, 0.2)] == [0, 0, 0]
    resumed = Monitor()
    resumed.load_state_dict(deepcopy(monitor.state_dict()))
    assert warned(resumed, malformed=0.2) == warned(monitor, malformed=0.2) == 1
    assert warned(monitor, malformed=0.2) == 0  # said already
    resumed.load_state_dict({"first": {}, "warned": {}})  # of an older checkpoint
    assert warned(resumed, malformed=0.2) == 0


def test_what_was_so_before_training_is_warned_of_where_it_became_much_worse() -> None:
    alike = {"distinct": 1.0, "entropy": 0.0, "brier": 0.2, "confidence": 1.0, "factuality": 0.7}  # as a base model is
    worse = {**alike, "factuality": 0.35, "brier": 0.5}  # a gap of 0.65, where it was 0.3

    def said(monitor: Monitor, metrics: dict[str, float], judged: bool = True) -> list[str]:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            logged = {f"train/probe_{name}": value for name, value in metrics.items()}
            monitor._look(untrained, "train/probe_", logged, judged=judged)
        return [str(w.message).split()[0] for w in caught]

    untrained = SimpleNamespace(trainer=SimpleNamespace(optimizers=[]))
    monitor, fresh = Monitor(), Monitor()
    assert said(monitor, alike, judged=False) == []
    assert [said(monitor, alike) for _ in range(3)] == [[]] * 3
    assert said(monitor, worse) == ["train/probe_confidence"]
    assert said(monitor, worse) == ["train/probe_factuality"]  # which one probe alone may get wrong
    assert said(fresh, GOOD, judged=False) == said(fresh, alike) == []  # another run, where training did it
    assert {"train/probe_entropy", "train/probe_confidence"} <= {*said(fresh, alike)}


def test_probabilities_of_given_answers_are_no_broken_tags(model: str, tmp_path: Path) -> None:
    """What is probed says itself whether its tags break."""

    class Probed(Staged):
        probes = True

    made = module(Probed, model)
    made.staged = [{"malformed": 0.2}] * 3
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        trainer(tmp_path, callbacks=[Monitor(every=1, window=1), Probe(0)], max_steps=3).fit(made, Rows(12))
    assert not [w for w in caught if "train/malformed" in str(w.message)]


def test_a_resumed_run_keeps_its_beginning_and_its_alarms(model: str, tmp_path: Path) -> None:
    rows = [{"words": 40.0, "malformed": 0.06}] * 2 + [{"words": 10.0, "malformed": 0.07}] * 2
    saver = ModelCheckpoint(dirpath=tmp_path, filename="two", every_n_train_steps=2, save_top_k=-1)
    options = {"enable_checkpointing": True}
    whole = Monitor(every=1, window=1)
    made = module(Staged, model)
    made.staged = rows
    with pytest.warns(UserWarning, match="malformed is 6"):
        run = trainer(tmp_path, callbacks=[whole, saver], max_steps=2, **options)
        run.fit(made, Rows(16))
    lines = staged(model, tmp_path, rows, Monitor(every=1, window=1), ckpt=tmp_path / "two.ckpt")
    assert [line.split(" (")[0] for line in lines] == ["train/words fell from 40 to 10 per answer"]


def test_every_training_has_a_monitor_unless_the_trainer_has_one(model: str, tmp_path: Path) -> None:
    run = trainer(tmp_path, max_steps=1)
    run.fit(module(SFT, model), Rows())
    run.fit(module(SFT, model), Rows())  # not a second one
    assert [type(c) for c in run.callbacks].count(Monitor) == 1
    own = Monitor(Limits(kl=1.0))
    run = trainer(tmp_path, max_steps=1, callbacks=[own])
    run.fit(module(SFT, model), Rows())
    assert [c for c in run.callbacks if isinstance(c, Monitor)] == [own]
    assert own.limits == Limits(kl=1.0)
    with pytest.raises(LovecError, match="every of Monitor is 0, expected at least 1"):
        Monitor(every=0)


def test_validation_is_judged_and_the_metrics_before_training_are_not(model: str, tmp_path: Path) -> None:
    """An untrained model writes no tag: it warns after the first steps, not before them."""
    monitor = Monitor()
    seen: list[tuple[int, int]] = []

    class Order(Callback):
        def on_sanity_check_end(self, trainer: Any, pl_module: Any) -> None:
            seen.append((-1, len(monitor._warned)))

        def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
            seen.append((trainer.global_step, len(monitor._warned)))

    made = module(SFT, model, oracle=Lengths())
    logger = CSVLogger(tmp_path, name="logs")
    run = trainer(tmp_path, limit_val_batches=1.0, num_sanity_val_steps=-1, val_check_interval=2, logger=logger,
                  log_every_n_steps=1, callbacks=[monitor, Order()])  # fmt: skip
    with pytest.warns(UserWarning, match="val/free-form/malformed is 100"):
        run.fit(made, Rows(16))
    assert [step for step, _ in seen] == [0, -1, 2, 4]
    assert [count > 0 for _, count in seen] == [False, False, True, True]
    logged = read_training_log(tmp_path).logged
    assert sorted(step for step, row in logged.items() if "val/brier" in row) == [0, 2, 4]
    assert logged[0]["val/words"] == logged[4]["val/words"] == 14.25  # iterative: the text is given
    assert 1 <= logged[0]["val/distinct"] <= 11 and logged[0]["val/entropy"] <= math.log(11)
    assert {"val/free-form/words", "val/free-form/malformed"} <= logged[2].keys()
    assert "val/mean_words" not in logged[0] and "val/passage_entropy" not in logged[0]
