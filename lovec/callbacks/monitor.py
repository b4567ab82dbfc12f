"""Warn during training when the format breaks, confidence collapses, or a reward is earned without what it is for.

``judge`` decides from plain numbers; ``Monitor`` follows a run and gives each warning once.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import yaml
from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.trainer.states import TrainerFn
from lightning.pytorch.utilities import rank_zero_warn

from lovec.callbacks.probe import PROBE_PREFIX, Probe
from lovec.core.settings import Count, CountFromZero, NonNegative, Setting, checked
from lovec.types import MODES

VALIDATION_PREFIXES = ("val/", *(f"val/{mode}/" for mode in MODES))
ROLLOUT_PREFIX = "train/"
_NAMES = (
    "malformed", "cut_off", "entropy", "distinct", "words", "confidence", "factuality", "brier", "zero_variance", "kl",
)  # fmt: skip
_VALIDATION_NAMES = {"confidence": "mean_confidence", "factuality": "mean_factuality"}
_ADVICE: dict[str, dict[str, Any]] = yaml.safe_load(Path(__file__).with_name("advice.yaml").read_text(encoding="utf-8"))
_LIMITED = (
    ("malformed", "is {:.1%}", "{:.0%}"),
    ("cut_off", "is {:.1%} of the answers", "{:.0%}"),
    ("zero_variance", "is {:.0%}", "{:.0%}"),
    ("kl", "is {:.2f} nats per token", "{:g}"),
)
"""Metrics that must not exceed their limit: name, and how value and limit are shown."""
_HALF_A_LEVEL = 0.05  # of the default scale: factuality that varies by less is the same everywhere
_MOSTLY_MALFORMED = 0.5  # answers with more malformed tags than that are nothing to compare later ones with


@checked("limits.{}")
@dataclass(frozen=True)
class Limits:
    """The values of metrics from which on ``Monitor`` warns.

    Attributes:
        malformed: highest share of sentences without a valid score.
        cut_off: highest share of answers that end at the longest length allowed.
        entropy: lowest entropy of the stated scores, in nats (0.1: 98 of 100 sentences get the same score).
        distinct: this number of distinct scores, or fewer, is as bad as too little entropy.
        gap: largest difference between mean confidence and mean factuality.
        words: lowest number of words per answer, as a share of that at the beginning of the run.
        factuality: largest drop of the mean factuality since the beginning of the run.
        zero_variance: highest share of groups whose answers all earn the same reward.
        kl: highest mean k3 estimate of the KL divergence from the reference per token, in nats. At 0.5 it is as large
            as the remaining uncertainty about a token of fluent text, and adds up to tens of nats over an answer; runs
            of ``grpo.yaml`` stay below 0.2.

    Raises:
        LovecError: a limit is not a number from 0 up.
    """

    malformed: NonNegative = 0.05
    cut_off: NonNegative = 0.05
    entropy: NonNegative = 0.1
    distinct: CountFromZero = 1
    gap: NonNegative = 0.25
    words: NonNegative = 0.5
    factuality: NonNegative = 0.1
    zero_variance: NonNegative = 0.5
    kl: NonNegative = 0.5


@dataclass(frozen=True)
class Alarm:
    """One warning.

    Attributes:
        kind: the metric that is beyond its limit.
        severity: above 0, comparable among alarms of a kind.
        line: metric, limit and what to do.
    """

    kind: str
    severity: float
    line: str


def judge(
    metrics: Mapping[str, float],
    first: Mapping[str, float],
    limits: Limits | None = None,
    prefix: str = "",
    options: Mapping[str, Any] | None = None,
) -> list[Alarm]:
    """Return what is wrong with a policy, judged by its metrics alone.

    Args:
        metrics: any of ``malformed``, ``cut_off``, ``entropy``, ``distinct``, ``words``, ``confidence`` and
            ``factuality`` (means), ``brier``, ``zero_variance``, ``kl``; what is missing or NaN is not judged.
        first: the same at the beginning of the run.
        limits: the limits; None takes the defaults.
        prefix: prefix of the names under which the metrics are logged.
        options: what the options of the objective are now, see ``remedy_options``; None advises without values.
    """
    limits = limits or Limits()
    now = {name: value for name, value in metrics.items() if not math.isnan(value)}
    first = {name: value for name, value in first.items() if not math.isnan(value)}
    alarms = []

    def alarm(name: str, severity: float, state: str, limit: str, advice: str) -> None:
        line = f"{_logged_name(prefix, name)} {state} (limit {limit}): {advice_on(advice, options)}"
        alarms.append(Alarm(name, severity, line))

    for name, state, limit in _LIMITED:
        if (value := now.get(name, 0.0)) > (highest := getattr(limits, name)):
            alarm(name, value, state.format(value), limit.format(highest), name)
    if _is_collapsed(now, limits):
        state = f"is {now.get('entropy', 0.0):.2f} nats, distinct scores {now['distinct']:g}"
        alarm("entropy", 1.0, state, f"{limits.entropy:g} and {limits.distinct}", "entropy")
    if {"confidence", "factuality"} <= now.keys() and abs(gap := now["confidence"] - now["factuality"]) > limits.gap:
        state = f"is {now['confidence']:.2f} where factuality is {now['factuality']:.2f}"
        alarm("confidence", abs(gap), state, f"{limits.gap:g} apart", f"{'over' if gap > 0 else 'under'}confident")
    if (drop := first.get("factuality", 0.0) - now.get("factuality", 1.0)) > limits.factuality:
        state = f"fell from {first['factuality']:.2f} to {now['factuality']:.2f}"
        alarm("factuality", drop, state, f"{limits.factuality:g}", "factuality")
    if now.get("words", math.inf) < limits.words * first.get("words", 0.0):
        state = f"fell from {first['words']:.0f} to {now['words']:.0f} per answer"
        alarm("words", first["words"] / max(now["words"], 1e-9), state, f"{limits.words:.0%}", "words")
    return alarms


def advice_on(kind: str, options: Mapping[str, Any] | None = None) -> str:
    """Return what is the matter and what to do about it, with the options to set.

    Args:
        kind: key of ``advice.yaml``.
        options: as for ``judge``.
    """
    remedies = []
    for remedy in _ADVICE[kind]["remedies"]:
        option = remedy.get("option")
        if option is None:
            remedies.append(remedy["do"])
        elif options is None:
            remedies.append(f"{remedy['do']} (--model.{option})")
        elif option in options and (value := _better(remedy, options[option])) is not None:
            remedies.append(f"{remedy['do']} (--model.{option} {value})")
    return "; ".join([_ADVICE[kind]["state"], *([" or ".join(remedies)] if remedies else [])])


def _better(remedy: Mapping[str, Any], now: Any) -> str | None:
    """Return the value that an option should have; None where it has it."""
    if "value" in remedy:
        return None if type(now).__name__ == remedy["value"] else str(remedy["value"])
    better = remedy["times"] * now if now else remedy.get("from")
    return None if better is None else f"{better:.3g}"


def remedy_options(module: Any) -> dict[str, Any]:
    """Return what the options in ``advice.yaml`` are now, of those that an objective has.

    Args:
        module: the objective, in training.
    """
    found: dict[str, Any] = {}
    for option in {remedy["option"] for kind in _ADVICE.values() for remedy in kind["remedies"] if "option" in remedy}:
        if option == "optimizer.lr":
            groups = [group for optimizer in module.trainer.optimizers for group in optimizer.param_groups]
            if groups:
                found[option] = groups[0].get("initial_lr", groups[0]["lr"])
            continue
        value = module
        for part in option.split("."):
            value = getattr(value, part, None)
        if value is not None and (option == "reward" or type(value) in (int, float)):
            found[option] = value
    return found


def _is_collapsed(now: Mapping[str, float], limits: Limits) -> bool:
    """Return whether nearly all sentences get the same score although they are not equally true."""
    if "distinct" not in now or (now["distinct"] > limits.distinct and now.get("entropy", math.inf) >= limits.entropy):
        return False
    if not {"brier", "confidence", "factuality"} <= now.keys():
        return True  # without labels: sentences are hardly ever all equally true
    # Where c is the same everywhere, mean (c - f)^2 - (mean c - mean f)^2 is the variance of f.
    variance = now["brier"] - (now["confidence"] - now["factuality"]) ** 2
    return variance > _HALF_A_LEVEL**2


@checked("{} of {kind}")
class Monitor(Callback):
    """Watches the logged metrics of a run and warns, once per kind and again where it has become much worse.

    It judges every validation, every probe, and, of objectives that sample answers and so have no probes, the mean of
    the last batches. (Others log the probability of what is not a score as ``train/malformed``: no tag has broken
    there.)
    A probe is a few dozen sentences in the middle of learning, where scores may be all alike or tags may break for a
    moment: it is believed if the probe before it said the same.
    Metrics from before the first step are only what later ones are compared with: what was so already, such as one
    score for every sentence, is warned of where it has become much worse, since training did not cause it. Every
    training of ``PolicyModule`` has one; give the trainer another one to change the limits.

    A full validation before training (``--trainer.num_sanity_val_steps -1``) is logged, too, as step -1: loggers
    number batches from 0.

    Args:
        limits: the limits that metrics are judged by.
        every: batches from one judgement of sampled answers to the next.
        window: number of batches whose mean is judged then.
        worse: an alarm is repeated where its severity is this many times that of the last one.

    Raises:
        LovecError: an option is out of range.
    """

    def __init__(
        self,
        limits: Limits = Limits(),
        every: Count = 10,
        window: Count = 50,
        worse: Annotated[float, Setting(above=1)] = 2.0,
    ) -> None:
        self.limits = limits
        self.every = every
        self.worse = worse
        self._sampled: deque[dict[str, float]] = deque(maxlen=window)
        self._first: dict[str, dict[str, float]] = {}
        self._warned: dict[str, float] = {}
        self._doubted: set[str] = set()

    def setup(self, trainer: Trainer, pl_module: Any, stage: str) -> None:
        """Start anew; a checkpoint is read after this."""
        if stage == "fit":
            self._sampled.clear()
            self._first, self._warned, self._doubted = {}, {}, set()

    def on_sanity_check_end(self, trainer: Trainer, pl_module: Any) -> None:
        """Keep a full validation before the first step as the beginning of the run."""
        if trainer.num_sanity_val_steps != math.inf:
            return
        logged = {name: float(value) for name, value in trainer.callback_metrics.items()}
        for logger in trainer.loggers:
            logger.log_metrics(logged, -1)
        for prefix in VALIDATION_PREFIXES:
            self._look(pl_module, prefix, logged, judged=False)

    def on_validation_end(self, trainer: Trainer, pl_module: Any) -> None:
        """Judge a validation, in both modes."""
        if trainer.state.fn == TrainerFn.FITTING and not trainer.sanity_checking:
            for prefix in VALIDATION_PREFIXES:
                self._look(pl_module, prefix, trainer.callback_metrics)

    def on_train_batch_end(self, trainer: Trainer, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Judge a probe, and every few batches what was sampled."""
        number = trainer.fit_loop.epoch_loop.total_batch_idx
        callbacks: list[Callback] = trainer.callbacks  # type: ignore[attr-defined]
        if any(isinstance(callback, Probe) and callback.is_due(trainer, pl_module) for callback in callbacks):
            self._look(pl_module, PROBE_PREFIX, trainer.callback_metrics, judged=number > 0)
        if not pl_module.probes and (sampled := metrics_at(trainer.callback_metrics, ROLLOUT_PREFIX)):
            self._sampled.append(sampled)
            if (number + 1) % self.every == 0:
                means = {f"{ROLLOUT_PREFIX}{name}": value for name, value in _means(self._sampled).items()}
                self._look(pl_module, ROLLOUT_PREFIX, means, kept=len(self._sampled) == self._sampled.maxlen)

    def state_dict(self) -> dict[str, Any]:
        """Return the beginning of the run, the severity of warnings so far and what the last probe said, to resume."""
        return {"first": self._first, "warned": self._warned, "doubted": sorted(self._doubted)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue from a checkpoint."""
        self._first, self._warned = state_dict["first"], state_dict["warned"]
        self._doubted = set(state_dict.get("doubted", ()))  # older checkpoints have none

    def _look(
        self, module: Any, prefix: str, logged: Mapping[str, Any], judged: bool = True, kept: bool = True
    ) -> None:
        """Judge logged metrics if ``judged``; if ``kept``, the first ones are the beginning of the run.

        Metrics of answers that are mostly malformed are not kept: later ones could not be compared with them.
        """
        metrics = metrics_at(logged, prefix)
        first = self._first.get(prefix, {})
        alarms = judge(metrics, first, self.limits, prefix, remedy_options(module)) if metrics else []
        kept = kept and not metrics.get("malformed", 0.0) > _MOSTLY_MALFORMED
        if not judged:
            self._warned |= {alarm.kind: alarm.severity for alarm in alarms} if kept else {}
            alarms = []
        if judged and prefix == PROBE_PREFIX:
            doubted, self._doubted = self._doubted, {alarm.kind for alarm in alarms}
            alarms = [alarm for alarm in alarms if alarm.kind in doubted]
        for alarm in alarms:
            if alarm.severity >= self.worse * self._warned.get(alarm.kind, 0.0):
                self._warned[alarm.kind] = alarm.severity
                rank_zero_warn(alarm.line)
        if metrics and kept:
            self._first.setdefault(prefix, metrics)


def metrics_at(logged: Mapping[str, Any], prefix: str) -> dict[str, float]:
    """Return the logged metrics with a prefix that ``judge`` knows, by the names it knows them by."""
    values = {name: logged.get(_logged_name(prefix, name)) for name in _NAMES}
    return {name: float(value) for name, value in values.items() if value is not None}


def _logged_name(prefix: str, name: str) -> str:
    """Return the name that a metric is logged by."""
    return prefix + (_VALIDATION_NAMES.get(name, name) if prefix in VALIDATION_PREFIXES else name)


def _means(rows: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """Return the mean of each metric over the rows where it is defined."""
    values: dict[str, list[float]] = {}
    for row in rows:
        for name, value in row.items():
            if not math.isnan(value):
                values.setdefault(name, []).append(value)
    return {name: sum(column) / len(column) for name, column in values.items()}
