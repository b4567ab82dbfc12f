"""Probe how the policy answers freely during training, for every objective."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.utilities import rank_zero_info
from torchmetrics import Metric

from lovec.callbacks.ending import droppable
from lovec.callbacks.estimate import PROBE
from lovec.core.progress import doing, rounded_time
from lovec.core.randomness import seeded
from lovec.core.settings import Count, CountFromZero, PositiveShare, checked
from lovec.datasets.stored import domains_of
from lovec.evaluation.evaluator import label
from lovec.evaluation.processes import barrier, own_share, reduce_over_processes
from lovec.metrics import suite
from lovec.metrics.records import answer_statistics, sentence_pairs
from lovec.taggers import FreeFormTagger
from lovec.types import OnToken, Record, Sampling

PROBE_PREFIX = "train/probe_"


@checked("{} of {kind}")
class Probe(Callback):
    """Lets the policy answer a few validation questions now and then, and logs ``train/probe_...``.

    Objectives that learn from given text do not show what text the policy would write itself: it may lose the format,
    state one score everywhere or answer ever more briefly while its loss falls. Answers are sampled greedily. A probe
    changes nothing in the run: with and without probes it is the same.

    Probes take at most a share of the run's time, which is predicted from a row that is tried before the first step,
    and from measured steps later. When that time is up, answers end where they are; a line says so, an unfinished
    sentence is left out, and ``words`` and ``cut_off`` are undefined. A model of less than 50 million weights is probed
    in full, so that its metrics do not depend on time.

    Every training of ``PolicyModule`` has one; give the trainer another one to change the options. Objectives whose
    class attribute ``probes`` is False are not probed.

    Args:
        every: optimiser batches from one probe to the next; the first batch begins with one, 0 makes none.
        questions: number of validation questions per probe.
        share: the largest share of the run's time that all probes take together, above 0; 1 is no limit.

    Raises:
        LovecError: an option is out of range.
    """

    def __init__(self, every: CountFromZero = 50, questions: Count = 8, share: PositiveShare = 0.05) -> None:
        self.every = every
        self.questions = questions
        self.share = share
        self._said = False

    def on_train_start(self, trainer: Trainer, pl_module: Any) -> None:
        """Forget what was said in an earlier run."""
        self._said = False

    def is_due(self, trainer: Trainer, pl_module: Any) -> bool:
        """Return whether the current optimiser batch begins with a probe."""
        return pl_module.probes and self.every > 0 and trainer.fit_loop.epoch_loop.total_batch_idx % self.every == 0

    def on_train_batch_start(self, trainer: Trainer, pl_module: Any, batch: Any, batch_idx: int) -> None:
        """Probe the policy if it is due, and log the metrics.

        Every process answers its share of the questions. Loggers get the metrics at once: at Lightning's next logging
        step they would be of an older policy than the metrics beside them.
        """
        if not self.is_due(trainer, pl_module) or not (questions := self._questions(trainer, pl_module)):
            return
        step = trainer.fit_loop.epoch_loop.total_batch_idx
        with droppable(trainer), doing("probe"):
            allowed = self.allowed_seconds(trainer, pl_module, batch)
            engine = TimedEngine(pl_module.engine, allowed)
            with (
                pl_module.costs.estimate.aside(PROBE),
                seeded(pl_module.seed, pl_module.global_step, pl_module.global_rank),  # an oracle may draw
                trainer.precision_plugin.val_step_context(),
                pl_module.policy.without_casts(),
            ):
                records = _answer(pl_module, engine, own_share(trainer, questions))
            barrier(trainer)
            ended = reduce_over_processes(trainer, {"ended": float(engine.ended_after)}, max)["ended"]
            metrics = _metrics(pl_module, records)
        if ended:
            metrics |= {PROBE_PREFIX + name: math.nan for name in ("cut_off", "words")}
            self._say_once(int(ended), allowed, pl_module)
        pl_module.log_dict(metrics, logger=False, batch_size=len(questions))
        for logger in trainer.loggers:
            logger.log_metrics(metrics, step - 1)  # the last batch learned from; the first one has number 0

    def allowed_seconds(self, trainer: Trainer, pl_module: Any, rows: Sequence[Record]) -> float:
        """Return how long the probe that is due may take: an equal part of what is left of the budget of all.

        Before the first step it is half of that, since a row by itself takes longer than as one of a batch.

        Args:
            trainer: the trainer of the run.
            pl_module: the module that is trained.
            rows: the batch that comes next, one row of which is tried where no step was measured yet.
        """
        if self.share == 1 or pl_module.policy.is_tiny:
            return math.inf
        costs, done = pl_module.costs, trainer.fit_loop.epoch_loop.total_batch_idx
        share = self.share
        if costs.estimate.rate is None:
            costs.trial(rows)
            share /= 2
        rest, probes = costs.seconds_left(done), costs.left(done).counts.get(PROBE, 0)
        if rest is None:  # an endless run
            return math.inf
        return allowance(share, costs.estimate.seconds + rest, costs.estimate.spent(PROBE), probes)

    def _say_once(self, tokens: int, allowed: float, pl_module: Any) -> None:
        if not self._said:
            self._said = True
            rank_zero_info(
                f"probes end answers early, this one after {tokens} of {pl_module.evaluation.max_new_tokens} tokens "
                f"and {rounded_time(allowed)}, so that all of them take at most {self.share:.0%} of the run; share, "
                "questions and every of lovec.callbacks.Probe change that"
            )

    def _questions(self, trainer: Trainer, pl_module: Any) -> list[Record]:
        """Return validation questions of the first domain, the same for every probe, spread over the records."""
        loaded = getattr(getattr(trainer, "datamodule", None), "loaded", None)
        if loaded is None:  # the user's own loaders, or a datamodule without records
            return []
        records = loaded("validation")
        own = [i for i, domain in enumerate(domains_of(records)) if domain == pl_module.evaluator.domains[0]]
        n = min(self.questions, len(own))
        chosen = [records[own[i * len(own) // n]] for i in range(n)]
        return [replace(record, answer="", sentences=(), rejected=None) for record in chosen]


class TimedEngine:
    """An engine that ends answers when a time is up; all else is that of the engine inside.

    Args:
        engine: the engine.
        seconds: time of each call of ``generate``; infinite is no limit.

    Attributes:
        ended_after: tokens of the longest answer that was ended; 0 if there is none.
    """

    def __init__(self, engine: Any, seconds: float) -> None:
        self._engine = engine
        self._seconds = seconds
        self.ended_after = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def generate(
        self, prompts: Any, sampling: Sampling, stop_ids: Any, keys: Any = None, on_token: OnToken | None = None
    ) -> Any:
        """Sample as the engine does, until the time is up."""
        if math.isinf(self._seconds):
            return self._engine.generate(prompts, sampling, stop_ids, keys, on_token)
        deadline = time.monotonic() + self._seconds
        counts: dict[tuple[int, int], int] = {}

        def timed(prompt: int, sample: int, token: int) -> bool:
            count = counts[prompt, sample] = counts.get((prompt, sample), 0) + 1
            wanted = on_token is None or on_token(prompt, sample, token)
            if time.monotonic() < deadline or token in stop_ids or count == sampling.max_new_tokens:
                return wanted
            self.ended_after = max(self.ended_after, count)
            return False

        return self._engine.generate(prompts, sampling, stop_ids, keys, timed)


def allowance(share: float, total: float, spent: float, number: int) -> float:
    """Return how long the next probe may take, in seconds.

    Args:
        share: share of the run's time that all probes may take.
        total: how long the run takes, in seconds.
        spent: how long earlier probes have taken, in seconds.
        number: how many probes are still to come, the next one included.
    """
    return max(0.0, share * total - spent) / max(1, number)


def _answer(module: Any, engine: Any, questions: Sequence[Record]) -> list[Record]:
    """Return the policy's greedy answers, labelled where there is an oracle."""
    if not questions:  # a process may have none
        return []
    engine.sync(module.policy)
    sampling = Sampling(max_new_tokens=module.evaluation.max_new_tokens)
    records = FreeFormTagger(engine, module.encoder, sampling).tag(questions)
    if engine.ended_after:
        records = list(map(_without_tail, records))
    oracle = module.evaluator.oracle
    return records if oracle is None else label(records, oracle)


def _without_tail(record: Record) -> Record:
    """Return an answer that was ended early without the sentence that it ends in."""
    if record.finished or not record.sentences or record.sentences[-1].score is not None:
        return record
    return replace(record, sentences=record.sentences[:-1] or record.sentences)


def _metrics(module: Any, records: Sequence[Record]) -> dict[str, float]:
    """Compute what is logged of the answers of all processes; NaN where it is undefined."""
    answers, levels = answer_statistics(records, written=True), module.scale.size
    scores = torch.tensor(answers.scores, dtype=torch.float64)
    both = [torch.tensor(values, dtype=torch.float64) for values in sentence_pairs(records, "stated")[:2]]
    metrics: dict[str, tuple[Metric, Sequence[Any]]] = {
        "malformed": (suite.MalformedShare(), (scores, answers.missing)),
        "entropy": (suite.ScoreEntropy(levels), (answers,)),
        "distinct": (suite.DistinctScores(levels), (answers,)),
        "cut_off": (suite.AnswerMean("cut_off"), (answers,)),
        "words": (suite.AnswerMean("words"), (answers,)),
    }
    if module.evaluator.oracle is not None:
        metrics["confidence"] = suite.MeanConfidence(), both
        metrics["factuality"] = suite.MeanFactuality(), both
        metrics["brier"] = suite.BrierScore(), both
    for metric, arguments in metrics.values():
        metric.to(module.device).update(*arguments)
    return {PROBE_PREFIX + name: float(metric.compute()) for name, (metric, _) in metrics.items()}
