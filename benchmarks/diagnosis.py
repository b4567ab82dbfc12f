"""What training does to the distribution over the scores, step by step.

``ScoreTrace`` is a callback for any run of ``lovec fit``::

    lovec fit --config expected.yaml --trainer.callbacks+=diagnosis.ScoreTrace
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback
from torch import Tensor

from lovec.metrics.functional import brier_score, expected_confidence, spearman
from lovec.modules.batching import Batch
from lovec.randomness import seeded
from lovec.taggers.scoring import Passage, Step, score_passages
from lovec.types import Record

TRACE = "trace.jsonl"


class ScoreTrace(Callback):
    """Writes what the validation answers are scored with, and what the gradient consists of, as the run goes.

    The lines of ``trace.jsonl``, in the folder of the run, are objects with ``step`` and the keys of ``measured`` and
    ``gradient_shares``. The run itself is not changed: nothing here uses its random streams.

    Args:
        every: steps between two lines; the start and the end of the run are always measured.
    """

    def __init__(self, every: int = 20) -> None:
        super().__init__()
        self.every = every
        self._lines: list[dict[str, Any]] = []

    def on_train_batch_start(self, trainer: Any, module: Any, batch: Any, batch_idx: int) -> None:
        """Measure before the step, with the gradient of the batch that it learns from."""
        if module.global_step % self.every == 0:
            self._measure(trainer, module, batch)

    def on_train_end(self, trainer: Any, module: Any) -> None:
        """Measure the last policy, and write the file."""
        self._measure(trainer, module, None)
        path = Path(trainer.default_root_dir) / TRACE
        path.write_text("".join(json.dumps(line) + "\n" for line in self._lines), encoding="utf-8")

    def _measure(self, trainer: Any, module: Any, batch: Any) -> None:
        training = module.training
        module.eval()
        line = {"step": module.global_step, **measured(module, trainer.datamodule.loaded("validation"))}
        if batch is not None and not hasattr(module, "rollouts"):  # answers are not sampled for this
            with seeded(module.seed, module.global_step, 0):
                line |= gradient_shares(module, batch)
        module.train(training)
        self._lines.append(line)


def measured(module: Any, rows: Sequence[Record]) -> dict[str, Any]:
    """Score given answers, each sentence after the most probable scores of those before it.

    Returns:
        ``distribution`` (mean probability of every score), ``said`` (share of the sentences with every score as the
        most probable one), ``entropy`` (nats) and ``spread`` (variance of the score, in squared points; means over
        sentences), and Brier score and Spearman's correlation of three readouts: ``stated`` (the most probable score),
        ``mean`` and ``rounded`` (the score nearest the mean).
    """
    steps = [[Step(sentence.text) for sentence in row.sentences] for row in rows]
    passages = [
        Passage(row.id, module.encoder.prompt(row.question), step) for row, step in zip(rows, steps, strict=True)
    ]
    module.engine.sync(module.policy)
    score_passages(module.engine, module.encoder, passages)
    probs = torch.tensor([logps for passage in passages for logps in passage.logps], dtype=torch.float64).softmax(-1)
    truth = torch.tensor([s.factuality for row in rows for s in row.sentences], dtype=torch.float64)
    size = probs.shape[-1]
    scores = torch.arange(size, dtype=torch.float64)
    mean = expected_confidence(probs)
    stated = probs.argmax(-1)
    readouts = {"stated": stated / (size - 1), "mean": mean, "rounded": (mean * (size - 1)).round() / (size - 1)}
    spread = (probs * (scores - mean[:, None] * (size - 1)) ** 2).sum(-1)
    result: dict[str, Any] = {
        "distribution": probs.mean(0).tolist(),
        "said": (torch.bincount(stated, minlength=size) / len(stated)).tolist(),
        "entropy": float(-(probs * probs.clamp(min=1e-300).log()).sum(-1).mean()),
        "spread": float(spread.mean()),
    }
    for name, values in readouts.items():
        result[f"{name}_brier"] = float(brier_score(values, truth))
        result[f"{name}_spearman"] = float(spearman(values, truth))
    return result


def gradient_shares(module: Any, batch: Any) -> dict[str, Any]:
    """Return the norm of every term's gradient, weighted as in the loss, and the cosine of the first two."""
    (examples,) = module.update_batches(batch)
    counts = module.counts(examples)
    out = module.loss(Batch.of(examples, module.device))
    parameters = module.policy.trainable()
    gradients: dict[str, Tensor] = {}
    for name, term in out.terms.items():
        total = term.weight * (term.values * term.mask).sum() / counts[term.per]
        parts = torch.autograd.grad(total, parameters, retain_graph=True, allow_unused=True)
        gradients[name] = torch.cat([part.flatten() for part in parts if part is not None])
    norms = {name: float(gradient.norm()) for name, gradient in gradients.items()}
    values = list(gradients.values())
    cosine = float(torch.cosine_similarity(*values[:2], dim=0)) if len(values) > 1 else None
    return {"gradient": norms, "cosine": cosine}
