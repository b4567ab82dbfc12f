"""Find out why objectives state the scores that they state: what training does to the distribution over the scores.

    python benchmarks/diagnosis.py --world runs/world            # -> benchmarks/results/diagnosis.json
    python benchmarks/diagnosis.py --world runs/world --quick    # the small world, two steps: only shows that it runs
    python benchmarks/ablation.py --page                         # writes what was found into docs/results/ablation.md

It needs the adapters of SFT, the second epoch of SFT, DPO and expected reward of some seeds, as ``benchmarks/world.py``
leaves them in its folder. From the SFT adapter of the first seed it trains the runs of ``RUNS`` while ``ScoreTrace``
watches. Everything is measured on the things of the dev split. Finished runs are not repeated.

``ScoreTrace`` is a callback for any run of ``lovec fit``::

    lovec fit --config expected.yaml --trainer.callbacks+=diagnosis.ScoreTrace
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch: on matrices this small more threads mostly wait

import torch
from common import ROOT, provenance, results_file, training_samples, write_json
from lightning.pytorch import Callback
from torch import Tensor

from lovec.core.randomness import seeded
from lovec.encoding import Encoder
from lovec.losses import score_entropy, score_variance
from lovec.metrics.functional import brier_score, expected_confidence, spearman
from lovec.modules.batching import Batch
from lovec.taggers.scoring import Passage, Step, score_passages
from lovec.types import Engine, Record

RESULTS = results_file("diagnosis")
TRACE = "trace.jsonl"
METHODS = {"SFT": "sft", "SFT-2": "sft2", "DPO": "dpo", "Expected reward": "expected"}
"""Methods whose adapters are looked at, with the folders of their runs."""

EXPECTED = ("--config", "expected.yaml")
RUNS: dict[str, tuple[str, ...]] = {
    "Brier rule": EXPECTED,
    "k=10": (*EXPECTED, "--model.score_weight", "10"),
    "k=10, w=0.3": (*EXPECTED, "--model.score_weight", "10", "--model.variance_weight", "0.3"),
    "k=3, t=0.02": (*EXPECTED, "--model.score_weight", "3", "--model.entropy_weight", "0.02"),
    "DPO": ("--config", "dpo.yaml"),
    "DPO, near": ("--config", "dpo.yaml", "--data.wrong_scores", "near"),
    "GRPO": ("--config", "grpo.yaml"),
}
"""Runs that are traced: k is ``score_weight``, w ``variance_weight``, t ``entropy_weight``."""

FREE = ((1.0, 0.0), (0.3, 0.0), (1.0, 0.02))
"""Weights of spread and entropy under which free distributions are followed."""

FREE_STEPS = (0, 20, 60, 180, 2000)
QUICK_STEPS = 2


class ScoreTrace(Callback):
    """Writes what the validation answers are scored with, and what the gradient consists of, as the run goes.

    The lines of ``trace.jsonl``, in the folder of the run, are objects with ``step`` and the keys of ``summary`` and
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
        rows = trainer.datamodule.loaded("validation")
        module.engine.sync(module.policy)
        line = {"step": module.global_step, **summary(scored(module.engine, module.encoder, rows), truths(rows))}
        if batch is not None and not hasattr(module, "rollouts"):  # answers are not sampled for this
            with seeded(module.seed, module.global_step, 0):
                line |= gradient_shares(module, batch)
        module.train(training)
        self._lines.append(line)


def scored(engine: Engine, encoder: Encoder, rows: Sequence[Record]) -> Tensor:
    """Score given answers, each sentence after the most probable scores of those before it.

    Returns:
        Log-probabilities of all scores at every sentence, [M, K], float64.
    """
    passages = [
        Passage(row.id, encoder.prompt(row.question), [Step(sentence.text) for sentence in row.sentences])
        for row in rows
    ]
    score_passages(engine, encoder, passages)
    return torch.tensor([logps for passage in passages for logps in passage.logps], dtype=torch.float64)


def truths(rows: Sequence[Record]) -> Tensor:
    """Return the factuality of every sentence, [M], float64."""
    return torch.tensor([sentence.factuality for row in rows for sentence in row.sentences], dtype=torch.float64)


def summary(logps: Tensor, truth: Tensor) -> dict[str, Any]:
    """Summarise distributions over the scores.

    Args:
        logps: log-probability of every score, [M, K].
        truth: factuality of every sentence, [M].

    Returns:
        ``distribution`` (mean probability of every score), ``said`` (share of the sentences with every score as the
        most probable one), ``entropy`` (nats) and ``spread`` (variance of the score, in squared points; means over
        sentences), and Brier score and Spearman's correlation of three readouts: ``stated`` (the most probable score),
        ``mean`` and ``rounded`` (the score nearest the mean). A correlation that is undefined is None.
    """
    logps = logps.log_softmax(-1)
    probs, top = logps.exp(), logps.shape[-1] - 1
    mean, stated = expected_confidence(probs), probs.argmax(-1)
    result: dict[str, Any] = {
        "distribution": probs.mean(0).tolist(),
        "said": (torch.bincount(stated, minlength=top + 1) / len(stated)).tolist(),
        "entropy": float(score_entropy(logps).mean()),
        "spread": float(score_variance(logps).mean()),
    }
    for name, values in (("stated", stated / top), ("mean", mean), ("rounded", (mean * top).round() / top)):
        result[f"{name}_brier"] = float(brier_score(values, truth))
        rank = float(spearman(values, truth)) if len(values.unique()) > 1 else None
        result[f"{name}_spearman"] = rank
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


def free_run(logps: Tensor, truth: Tensor, variance_weight: float, entropy_weight: float) -> list[dict[str, Any]]:
    """Follow the gradient of expected reward where no two sentences share a parameter.

    Every sentence has logits of its own, which begin at the given distribution; that distribution is also what its
    factuality is drawn from, so nothing is left to learn but how to state it. The loss is (E c - f)^2 + w Var c less t
    times the entropy, in units of the whole scale; the rate, 30 per sentence, only sets the unit of the steps.

    Args:
        logps: log-probability of every score at the start, [M, K].
        truth: factuality of every sentence, for the metrics alone, [M].
        variance_weight: w.
        entropy_weight: t.

    Returns:
        A summary for each of ``FREE_STEPS``.
    """
    start = logps.log_softmax(-1)
    top = start.shape[-1] - 1
    scores = torch.arange(top + 1, dtype=torch.float64)
    loss_of = start.exp() @ ((scores[:, None] - scores) ** 2 / top**2)  # expected loss of every score, [M, K]
    logits = start.clone().requires_grad_()
    lines = []
    for step in range(FREE_STEPS[-1] + 1):
        now = logits.log_softmax(-1)
        if step in FREE_STEPS:
            lines.append({"step": step, **summary(now.detach(), truth)})
        spread = (variance_weight - 1.0) / top**2 * score_variance(now)
        loss = ((now.exp() * loss_of).sum(-1) + spread - entropy_weight * score_entropy(now)).sum()
        (gradient,) = torch.autograd.grad(loss, logits)
        logits = (logits - 30.0 * gradient).detach().requires_grad_()
    return lines


def looked_at(world: Path, seeds: Sequence[int], variant: str) -> tuple[list[dict[str, Any]], Tensor, Tensor]:
    """Score the dev things with the adapters of ``METHODS``.

    Returns:
        A summary per method and seed, with the share of sentences that are stated as by SFT-2 (``as_sft2``); and the
        log-probabilities of SFT and the truths of the first seed.
    """
    from lovec.datamodules import World
    from lovec.engines import TransformersEngine
    from lovec.policy import Policy, PolicyConfig

    lines, first = [], None
    for seed in seeds:
        data = World(variant, samples=training_samples(), seed=seed)
        rows = data.load("validation")
        truth = truths(rows)
        found = {}
        for method, folder in METHODS.items():
            adapter = world / f"seed-{seed}" / folder / "adapter"
            policy = Policy(PolicyConfig(model=str(data.world.model_path), adapter=str(adapter)))
            engine = TransformersEngine()
            engine.sync(policy)
            found[method] = scored(engine, Encoder(policy.tokenizer, data.instruction), rows)
        second = found["SFT-2"].argmax(-1)
        for method, logps in found.items():
            same = float((logps.argmax(-1) == second).double().mean())
            lines.append({"method": method, "seed": seed, "as_sft2": same, **summary(logps, truth)})
        first = first or (found["SFT"], truth)
    assert first is not None
    return lines, *first


def labels(variant: str) -> list[float]:
    """Return the share of every score among the true scores of the training answers."""
    from lovec.datamodules import World
    from lovec.modules.base import ratings

    rows = World(variant, samples=training_samples()).load("train")
    counts = torch.bincount(torch.tensor([r for row in rows for r in ratings(row)]))
    return (counts / counts.sum()).tolist()


def traced(flags: argparse.Namespace) -> list[dict[str, Any]]:
    """Train what is not finished, and return the lines of all runs."""
    from lovec.cli.training import execute

    world = ["--config", "world-small.yaml"] if flags.quick else []
    seed = flags.seeds[0]
    start = flags.world / f"seed-{seed}" / "sft" / "adapter"
    lines = []
    for name in flags.runs:
        folder = flags.out / "".join(c if c.isalnum() or c == "." else "-" for c in name)
        if not (folder / TRACE).exists():
            words = [*RUNS[name], *world, "--model.policy.adapter", str(start), "--seed_everything", str(seed)]
            words += ["--trainer.default_root_dir", str(folder), "--trainer.limit_val_batches", "0"]
            words += ["--trainer.max_steps", str(QUICK_STEPS)] if flags.quick else []
            execute("fit", [*words, "--trainer.callbacks+=diagnosis.ScoreTrace"])
        text = (folder / TRACE).read_text(encoding="utf-8")
        lines += [{"run": name, "seed": seed, **json.loads(line)} for line in text.splitlines()]
    return lines


def main() -> None:
    """Run the benchmark as the command line says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--world", type=Path, default=ROOT / "runs" / "world", help="folder of benchmarks/world.py")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0], help="seeds whose adapters are looked at")
    parser.add_argument("--runs", nargs="+", default=list(RUNS), choices=list(RUNS), help="runs to trace")
    parser.add_argument("--out", type=Path, default=ROOT / "runs" / "diagnosis", help="folder of the traced runs")
    parser.add_argument("--quick", action="store_true", help="try it out; the results go to --out")
    flags = parser.parse_args()
    variant = "world-small" if flags.quick else "world"
    origin = provenance()
    found, logps, truth = looked_at(flags.world, flags.seeds, variant)
    free = [{"w": w, "t": t, **line} for w, t in FREE for line in free_run(logps, truth, w, t)]
    results = {"variant": variant, "labels": labels(variant), "methods": found, "free": free, "traces": traced(flags)}
    write_json(flags.out / RESULTS.name if flags.quick else RESULTS, origin | results)


if __name__ == "__main__":
    main()
