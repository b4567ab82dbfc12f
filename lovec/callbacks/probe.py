"""Probes: now and then in training, a look at how the policy answers freely, for every objective.

Objectives that learn on given text say nothing of the text the policy would write: it may lose the format, say one
score of everything or answer ever more briefly while its loss falls. A probe asks a few validation questions, greedily,
and logs ``train/probe_...``. It draws nothing and changes nothing: a run is the same with and without probes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from lovec.evaluation.evaluator import label
from lovec.metrics.functional import entropy
from lovec.metrics.records import sentence_pairs, statements
from lovec.randomness import seeded
from lovec.taggers import FreeFormTagger
from lovec.types import N_SCORES, Record, Sampling

PLACE = "train/probe_"


def probe_due(module: Any) -> bool:
    """Whether this optimiser batch is one that begins with a probe; the first one of a run is."""
    every = module.evaluation.probe_every
    return module.probes and bool(every) and module.trainer.fit_loop.epoch_loop.total_batch_idx % every == 0


def log_probe(module: Any) -> None:
    """Answer some validation questions with the current policy and log what the answers are like.

    Every process answers its share. Loggers get the figures at once: at Lightning's next logging step they would be of
    an older policy than the figures beside them.
    """
    questions = _questions(module)
    if not questions:
        return
    trainer = module.trainer
    share = questions[trainer.global_rank :: trainer.world_size]
    with seeded(module.seed, module.global_step, module.global_rank):  # an oracle may draw; the run must not notice
        sums = module._sum(_sums(_answers(module, share)))
    figures = {PLACE + name: value for name, value in _figures(sums, module.evaluator.oracle is not None).items()}
    module.log_dict(figures, logger=False, batch_size=len(questions))
    step = trainer.fit_loop.epoch_loop.total_batch_idx - 1  # the last batch learned from; the first one has number 0
    for logger in trainer.loggers:
        logger.log_metrics(figures, step)


def _questions(module: Any) -> list[Record]:
    """Validation questions of the first domain, the same ones at every probe, spread over the records."""
    loaded = getattr(getattr(module.trainer, "datamodule", None), "loaded", None)
    if loaded is None:  # loaders of the user's own, or a datamodule without records
        return []
    domain = module.evaluator.domains[0]
    rows = [row for row in loaded("validation") if str(row.meta.get("domain", "in-domain")) == domain]
    n = min(module.evaluation.probe_rows, len(rows))
    return [replace(rows[i * len(rows) // n], answer="", sentences=(), rejected=None) for i in range(n)]


def _answers(module: Any, questions: Sequence[Record]) -> list[Record]:
    """The policy's greedy answers, labelled where there is an oracle."""
    if not questions:  # a process may have none
        return []
    module.engine.sync(module.policy)
    sampling = Sampling(max_new_tokens=module.evaluation.max_new_tokens)
    tagged = FreeFormTagger(module.engine, module.encoder, sampling).tag(questions)
    oracle = module.evaluator.oracle
    if oracle is None:
        return tagged
    return [label(record, rates) for record, rates in zip(tagged, oracle.rate(tagged), strict=True)]


def _sums(records: Sequence[Record]) -> dict[str, float]:
    """What the figures are made of; sums of processes add up."""
    stated = statements(records)
    confidence, factuality, _ = sentence_pairs(records, "stated")
    counts = {f"score/{score}": float(n) for score, n in enumerate(stated.scores)}
    return counts | {
        "missing": stated.missing,
        "words": stated.words,
        "answers": stated.answers,
        "confidence": sum(confidence),
        "factuality": sum(factuality),
        "error": sum((c - f) ** 2 for c, f in zip(confidence, factuality, strict=True)),
        "pairs": len(confidence),
    }


def _figures(sums: Mapping[str, float], judged: bool) -> dict[str, float]:
    """What is logged; NaN where it is undefined."""
    scores = torch.tensor([sums[f"score/{score}"] for score in range(N_SCORES)])
    stated = float(scores.sum())
    figures = {
        "malformed": sums["missing"] / (sums["missing"] + stated),
        "entropy": float(entropy(scores)),
        "distinct": float((scores > 0).sum()) if stated else float("nan"),
        "words": sums["words"] / sums["answers"],
    }
    if judged:
        for name, total in (("confidence", "confidence"), ("factuality", "factuality"), ("brier", "error")):
            figures[name] = sums[total] / sums["pairs"] if sums["pairs"] else float("nan")
    return figures
