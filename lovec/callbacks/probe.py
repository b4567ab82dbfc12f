"""Probe how the policy answers freely during training, for every objective."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import Callback
from torchmetrics import Metric

from lovec.evaluation.evaluator import label
from lovec.evaluation.processes import meet, own_share
from lovec.metrics import pairs, suite
from lovec.metrics.records import answer_statistics, sentence_pairs
from lovec.randomness import seeded
from lovec.taggers import FreeFormTagger
from lovec.types import Record, Sampling, check_count

PROBE_PREFIX = "train/probe_"


class Probe(Callback):
    """Lets the policy answer a few validation questions now and then, and logs ``train/probe_...``.

    Objectives that learn from given text do not show what text the policy would write itself: it may lose the format,
    state one score everywhere or answer ever more briefly while its loss falls. Answers are sampled greedily. A probe
    changes nothing in the run: with and without probes it is the same.

    Every training of ``PolicyModule`` has one; give the trainer another one to change the options. Objectives whose
    class attribute ``probes`` is False are not probed.

    Args:
        every: optimiser batches from one probe to the next; the first batch begins with one, 0 makes none.
        questions: number of validation questions per probe.

    Raises:
        LovecError: an option is out of range.
    """

    def __init__(self, every: int = 50, questions: int = 8) -> None:
        check_count("every of Probe", every, at_least=0)
        check_count("questions of Probe", questions)
        self.every = every
        self.questions = questions

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
        with (
            seeded(pl_module.seed, pl_module.global_step, pl_module.global_rank),  # an oracle may draw
            trainer.precision_plugin.val_step_context(),
        ):
            records = _answer(pl_module, own_share(trainer, questions))
        meet(trainer)
        metrics = _metrics(pl_module, records)
        pl_module.log_dict(metrics, logger=False, batch_size=len(questions))
        for logger in trainer.loggers:
            logger.log_metrics(metrics, step - 1)  # the last batch learned from; the first one has number 0

    def _questions(self, trainer: Trainer, pl_module: Any) -> list[Record]:
        """Return validation questions of the first domain, the same for every probe, spread over the records."""
        loaded = getattr(getattr(trainer, "datamodule", None), "loaded", None)
        if loaded is None:  # the user's own loaders, or a datamodule without records
            return []
        records = loaded("validation")
        own = [i for i, record in enumerate(records) if record.domain == pl_module.evaluator.domains[0]]
        n = min(self.questions, len(own))
        chosen = [records[own[i * len(own) // n]] for i in range(n)]
        return [replace(record, answer="", sentences=(), rejected=None) for record in chosen]


def _answer(module: Any, questions: Sequence[Record]) -> list[Record]:
    """Return the policy's greedy answers, labelled where there is an oracle."""
    if not questions:  # a process may have none
        return []
    module.engine.sync(module.policy)
    sampling = Sampling(max_new_tokens=module.evaluation.max_new_tokens)
    records = FreeFormTagger(module.engine, module.encoder, sampling).tag(questions)
    oracle = module.evaluator.oracle
    return records if oracle is None else label(records, oracle)


def _metrics(module: Any, records: Sequence[Record]) -> dict[str, float]:
    """Compute what is logged of the answers of all processes; NaN where it is undefined."""
    answers, levels = answer_statistics(records, written=True), module.scale.size
    scores = torch.tensor(answers.scores, dtype=torch.float64)
    both = [torch.tensor(values, dtype=torch.float64) for values in sentence_pairs(records, "stated")[:2]]
    metrics: dict[str, tuple[Metric, Sequence[Any]]] = {
        "malformed": (pairs.MalformedShare(), (scores, answers.missing)),
        "entropy": (suite.ScoreEntropy(levels), (answers,)),
        "distinct": (suite.DistinctScores(levels), (answers,)),
        "cut_off": (suite.AnswerMean("cut_off"), (answers,)),
        "words": (suite.AnswerMean("words"), (answers,)),
    }
    if module.evaluator.oracle is not None:
        metrics["confidence"] = pairs.MeanConfidence(), both
        metrics["factuality"] = pairs.MeanFactuality(), both
        metrics["brier"] = pairs.BrierScore(), both
    for metric, arguments in metrics.values():
        metric.to(module.device).update(*arguments)
    return {PROBE_PREFIX + name: float(metric.compute()) for name, (metric, _) in metrics.items()}
