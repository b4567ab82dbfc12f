"""Live warnings: the format is breaking, confidence has collapsed, or a reward is earned without what it was for.

``judge`` decides, from plain numbers; ``Monitor`` watches a run and says each thing once.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.trainer.states import TrainerFn
from lightning.pytorch.utilities import rank_zero_warn

from lovec.callbacks.probe import PLACE as PROBE
from lovec.callbacks.probe import probe_due
from lovec.evaluation.evaluator import MODES
from lovec.types import LovecError

VALIDATION = ("val/", *(f"val/{mode}/" for mode in MODES))
ROLLOUTS = "train/"
_NAMES = ("malformed", "entropy", "distinct", "words", "confidence", "factuality", "brier", "zero_variance", "kl")
_LONG = {"confidence": "mean_confidence", "factuality": "mean_factuality"}  # their names in validation
_HALF_A_SCORE = 0.05
_SPEAKS = 0.5  # an answer with most of its tags broken is no measure of later ones


@dataclass(frozen=True)
class Limits:
    """Where worry begins.

    Attributes:
        malformed: highest share of sentences without a valid score.
        entropy: least entropy of the stated scores, in nats (0.1: 98 of 100 sentences get the same score).
        distinct: as many distinct scores are as bad as too little entropy.
        gap: largest difference between mean confidence and mean factuality.
        words: least share of the words that answers had at first.
        factuality: largest drop of the mean factuality since the first figures.
        zero_variance: highest share of groups whose answers all earn the same.
        kl: highest mean k3 a token to the reference, in nats. At 0.5 it is as large as what is left unsure of a token
            of fluent text, and adds up to tens of nats over an answer; runs of ``grpo.yaml`` stay below 0.2.
    """

    malformed: float = 0.05
    entropy: float = 0.1
    distinct: int = 1
    gap: float = 0.25
    words: float = 0.5
    factuality: float = 0.1
    zero_variance: float = 0.5
    kl: float = 0.5


@dataclass(frozen=True)
class Alarm:
    """Something to say.

    Attributes:
        kind: the figure that is wrong.
        severity: above 0, comparable among alarms of a kind.
        line: figure, limit and what to do.
    """

    kind: str
    severity: float
    line: str


def judge(
    figures: Mapping[str, float], first: Mapping[str, float], limits: Limits | None = None, place: str = ""
) -> list[Alarm]:
    """What is wrong with a policy, judged by its figures alone.

    Args:
        figures: any of ``malformed``, ``entropy``, ``distinct``, ``words``, ``confidence`` and ``factuality`` (means),
            ``brier``, ``zero_variance``, ``kl``; what is missing or NaN is not judged.
        first: the same at the beginning of the run.
        limits: where worry begins; None takes the defaults.
        place: what the names begin with where they are logged.
    """
    limits = limits or Limits()
    now = {name: value for name, value in figures.items() if value == value}
    then = {name: value for name, value in first.items() if value == value}
    alarms = []

    def alarm(name: str, severity: float, said: str, limit: str, advice: str) -> None:
        alarms.append(Alarm(name, severity, f"{_logged(place, name)} {said} (limit {limit}): {advice}"))

    if (broken := now.get("malformed", 0.0)) > limits.malformed:
        advice = "tags are breaking; lower the learning rate, add weight on text (sft_weight) or keep their penalty"
        alarm("malformed", broken, f"is {broken:.1%}", f"{limits.malformed:.0%}", advice)
    if _collapsed(now, limits):
        said = f"is {now.get('entropy', 0.0):.2f} nats, distinct scores {now['distinct']:g}"
        advice = "one score is said of nearly everything; lower the learning rate, or go on with the quadratic reward"
        alarm("entropy", 1.0, said, f"{limits.entropy:g} and {limits.distinct}", advice)
    if {"confidence", "factuality"} <= now.keys() and abs(gap := now["confidence"] - now["factuality"]) > limits.gap:
        said = f"is {now['confidence']:.2f} where factuality is {now['factuality']:.2f}"
        advice = f"{'over' if gap > 0 else 'under'}-confident; go on with the quadratic reward, or recalibrate"
        alarm("confidence", abs(gap), said, f"{limits.gap:g} apart", advice)
    if (drop := then.get("factuality", 0.0) - now.get("factuality", 1.0)) > limits.factuality:
        said = f"fell from {then['factuality']:.2f} to {now['factuality']:.2f}"
        advice = "answers get less true; hold on to reference or text (beta, sft_weight) or lower the learning rate"
        alarm("factuality", drop, said, f"{limits.factuality:g}", advice)
    if now.get("words", math.inf) < limits.words * then.get("words", 0.0):
        said = f"fell from {then['words']:.0f} to {now['words']:.0f} an answer"
        advice = "saying less may pay; hold on to reference or text (beta, sft_weight) or reward what is true (bonus)"
        alarm("words", then["words"] / max(now["words"], 1e-9), said, f"{limits.words:.0%}", advice)
    if (even := now.get("zero_variance", 0.0)) > limits.zero_variance:
        advice = "groups whose answers all earn the same teach nothing; raise temperature or group_size"
        alarm("zero_variance", even, f"is {even:.0%}", f"{limits.zero_variance:.0%}", advice)
    if (kl := now.get("kl", 0.0)) > limits.kl:
        advice = "the policy has left its reference; lower the learning rate or raise beta"
        alarm("kl", kl, f"is {kl:.2f} nats a token", f"{limits.kl:g}", advice)
    return alarms


def _collapsed(now: Mapping[str, float], limits: Limits) -> bool:
    """Whether nearly everything gets one score, and it should not."""
    if "distinct" not in now or (now["distinct"] > limits.distinct and now.get("entropy", math.inf) >= limits.entropy):
        return False
    if not {"brier", "confidence", "factuality"} <= now.keys():
        return True  # nobody knows how true it is; it hardly ever is all the same
    # Where c is the same everywhere, mean (c - f)^2 - (mean c - mean f)^2 is the variance of f.
    variance = now["brier"] - (now["confidence"] - now["factuality"]) ** 2
    return variance > _HALF_A_SCORE**2


class Monitor(Callback):
    """Looks at what a run logs and warns, once a kind and again where it has become much worse.

    It judges every validation, every probe, and, where an objective logs what it sampled, the mean of the last
    batches. Figures from before the first step are only what later ones are compared with. Every training of
    ``PolicyModule`` has one; give the trainer another one to change the limits.

    A whole validation before training (``--trainer.num_sanity_val_steps -1``) is logged, too, as step -1: loggers
    number batches from 0.

    Args:
        malformed: a limit, see ``Limits``; so are the next seven.
        entropy: a limit.
        distinct: a limit.
        gap: a limit.
        words: a limit.
        factuality: a limit.
        zero_variance: a limit.
        kl: a limit.
        every: batches between two looks at sampled answers.
        window: batches whose mean is looked at then.
        worse: an alarm is repeated where its severity is this many times that of the last one.

    Raises:
        LovecError: an option is out of range.
    """

    def __init__(
        self,
        malformed: float = Limits.malformed,
        entropy: float = Limits.entropy,
        distinct: int = Limits.distinct,
        gap: float = Limits.gap,
        words: float = Limits.words,
        factuality: float = Limits.factuality,
        zero_variance: float = Limits.zero_variance,
        kl: float = Limits.kl,
        every: int = 10,
        window: int = 50,
        worse: float = 2.0,
    ) -> None:
        if every < 1 or window < 1 or worse <= 1:
            raise LovecError(
                f"Monitor got every {every}, window {window} and worse {worse}; expected at least 1, 1 and above 1"
            )
        self.limits = Limits(malformed, entropy, distinct, gap, words, factuality, zero_variance, kl)
        self.every = every
        self.worse = worse
        self._sampled: deque[dict[str, float]] = deque(maxlen=window)
        self._first: dict[str, dict[str, float]] = {}
        self._warned: dict[str, float] = {}

    def setup(self, trainer: Trainer, pl_module: Any, stage: str) -> None:  # type: ignore[override]
        """Begin anew; a checkpoint is read after this."""
        if stage == "fit":
            self._sampled.clear()
            self._first, self._warned = {}, {}

    def on_sanity_check_end(self, trainer: Trainer, pl_module: Any) -> None:  # type: ignore[override]
        """Keep a whole validation before the first step as what the run begins with."""
        if trainer.num_sanity_val_steps != math.inf:
            return
        figures = {name: float(value) for name, value in trainer.callback_metrics.items()}
        for logger in trainer.loggers:
            logger.log_metrics(figures, -1)
        for place in VALIDATION:
            self._look(place, figures_of(figures, place), judged=False)

    def on_validation_end(self, trainer: Trainer, pl_module: Any) -> None:  # type: ignore[override]
        """Look at both ways of tagging."""
        if trainer.state.fn == TrainerFn.FITTING and not trainer.sanity_checking:
            for place in VALIDATION:
                self._look(place, figures_of(trainer.callback_metrics, place))

    def on_train_batch_end(  # type: ignore[override]
        self, trainer: Trainer, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Look at a probe, and now and then at what was sampled."""
        number = trainer.fit_loop.epoch_loop.total_batch_idx
        if probe_due(pl_module):
            self._look(PROBE, figures_of(trainer.callback_metrics, PROBE), judged=number > 0)
        if sampled := figures_of(trainer.callback_metrics, ROLLOUTS):
            self._sampled.append(sampled)
            if (number + 1) % self.every == 0:
                self._look(ROLLOUTS, _means(self._sampled), kept=len(self._sampled) == self._sampled.maxlen)

    def state_dict(self) -> dict[str, Any]:
        """What the run began with and what was said of it, so that a resumed one goes on from there."""
        return {"first": self._first, "warned": self._warned}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from a checkpoint."""
        self._first, self._warned = state_dict["first"], state_dict["warned"]

    def _look(self, place: str, figures: dict[str, float], judged: bool = True, kept: bool = True) -> None:
        """Warn of ``figures`` if they are ``judged``; they are the first ones if they are to be ``kept``."""
        if not figures:
            return
        for alarm in judge(figures, self._first.get(place, {}), self.limits, place) if judged else ():
            if alarm.severity >= self.worse * self._warned.get(alarm.kind, 0.0):
                self._warned[alarm.kind] = alarm.severity
                rank_zero_warn(alarm.line)
        if kept and not figures.get("malformed", 0.0) > _SPEAKS:
            self._first.setdefault(place, figures)


def _logged(place: str, name: str) -> str:
    """The name that a figure is logged by."""
    return f"{place}{_LONG.get(name, name) if place in VALIDATION else name}"


def figures_of(metrics: Mapping[str, Any], place: str) -> dict[str, float]:
    """Figures that ``judge`` knows, out of logged ones, by their plain names."""
    found = {name: metrics.get(_logged(place, name)) for name in _NAMES}
    return {name: float(value) for name, value in found.items() if value is not None}


def _means(rows: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """Means of figures over the rows where they are defined."""
    known: dict[str, list[float]] = {}
    for row in rows:
        for name, value in row.items():
            if value == value:
                known.setdefault(name, []).append(value)
    return {name: sum(values) / len(values) for name, values in known.items()}
