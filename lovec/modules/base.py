"""The base class of every objective: one batch is one optimiser step, and its loss does not depend on micro-batches."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any, ClassVar

import torch
import torch.distributed as dist
from lightning.pytorch.cli import LRSchedulerCallable, OptimizerCallable
from lightning.pytorch.utilities import rank_zero_info, rank_zero_warn
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from lovec.callbacks import Monitor, Probe
from lovec.evaluation.module import EvaluationModule
from lovec.evaluation.processes import reduce_over_processes
from lovec.modules.batching import Batch, Example, micro_batches
from lovec.notices import DoublingWarning
from lovec.policy import TokenSequence
from lovec.randomness import seeded
from lovec.taggers.session import settings_file
from lovec.types import DEFAULT_SCALE, LossOutput, LovecError, Record, Scale

log = logging.getLogger(__name__)


class PolicyModule(EvaluationModule):
    """Trains a LoRA policy with the loss of a subclass.

    A subclass overrides ``loss``; ``encode`` where a row is not one demonstration; ``update_batches`` where rows are
    not learned from as they are.

    Args:
        optimizer: creates the optimiser from the adapter's parameters.
        lr_scheduler: creates the schedule, which is stepped once per optimiser step; null keeps the rate constant.
        micro_batch_tokens: padded tokens that run through the model at once. It changes the memory that is needed, and
            results by rounding only.
        grad_norm: gradients are clipped to this norm; 0 does not clip.
        kwargs: arguments of ``EvaluationModule``: policy, evaluation, engine, oracle, seed.
    """

    probes: ClassVar[bool] = True
    """Whether a run has a ``Probe`` by default; objectives that sample answers anyway need none."""

    updates_per_batch: int = 1
    """Number of optimiser steps for which ``update_batches`` yields examples."""

    def __init__(
        self,
        optimizer: OptimizerCallable = torch.optim.AdamW,
        lr_scheduler: LRSchedulerCallable | None = None,
        micro_batch_tokens: int = 16384,
        grad_norm: float = 1.0,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.automatic_optimization = False
        self.optimizer = optimizer
        self.lr_scheduler = lr_scheduler
        self.micro_batch_tokens = micro_batch_tokens
        self.grad_norm = grad_norm
        self._shortened = DoublingWarning(
            log,
            "%d rows so far are longer than policy.max_length or the model's context; their last sentences are cut: %s",
        )

    # What an objective defines

    def loss(self, batch: Batch[Any]) -> LossOutput:
        """Compute the terms of the objective for one micro-batch, as values with masks; no mean is taken.

        It must not change the batch. A subclass with examples of its own annotates the batch as ``Batch[ItsExample]``.
        """
        raise TypeError(f"{type(self).__name__} has no loss: override loss(batch) -> LossOutput")

    def encode(self, row: Record) -> Example:
        """Return what one row contributes: here, its answer with its true scores."""
        return Example((self.tagged(row, ratings(row, self.scale)),), row)

    def update_batches(self, rows: Sequence[Record]) -> Iterator[Sequence[Example]]:
        """Yield the examples of each optimiser step that uses a batch of rows: here, the rows themselves, once."""
        yield [self.example(row) for row in rows]

    def counts(self, examples: Sequence[Any]) -> dict[str, float]:
        """Count each unit that terms are divided by, before any forward pass: rows, pairs and tokens."""
        return {
            "row": len(examples),
            "pair": len(examples),
            "token": sum(len(example.sequences[0].completion) for example in examples),
        }

    # What an objective can use

    def tagged(self, row: Record, scores: Sequence[int]) -> TokenSequence:
        """Encode the row's question, and its sentences tagged with ``scores``."""
        completion = self.encoder.completion([s.text for s in row.sentences], scores)
        return TokenSequence(tuple(self.encoder.prompt(row.question)), tuple(completion))

    def token_logps(self, batch: Batch[Any], temperature: float = 1.0) -> Tensor:
        """Compute the log-probability of every completion token, [N, T], 0 where masked."""
        return self.policy.token_logps(batch.tokens, temperature)

    def reference_token_logps(self, batch: Batch[Any], temperature: float = 1.0) -> Tensor:
        """Compute the same under the policy that the run started from, without gradient."""
        with self.policy.reference():
            return self.policy.token_logps(batch.tokens, temperature)

    def example(self, row: Record) -> Example:
        """Encode a row with as many whole sentences as the context holds; both sides of a pair are cut alike.

        Raises:
            LovecError: the row has no sentence, or not even the first one fits.
        """
        if not row.sentences:
            raise LovecError(f"{row.id}: there is no sentence to learn from; leave such rows out of training")
        for n in range(len(row.sentences), 0, -1):
            rejected = None if row.rejected is None else row.rejected[:n]
            example = self.encode(replace(row, sentences=row.sentences[:n], rejected=rejected))
            if max(len(s) for s in example.sequences) <= self.policy.max_length:
                if n < len(row.sentences):
                    self._shortened.add(row.id)
                    self._shortened.flush()
                return example
        raise LovecError(
            f"{row.id}: prompt and first sentence are longer than the context of {self.policy.max_length} tokens; "
            "leave the row out, shorten the question, or raise policy.max_length"
        )

    # The loop

    def training_step(self, rows: Sequence[Record], batch_idx: int) -> None:
        """Learn from one optimiser batch of rows."""
        with seeded(self.seed, self.global_step, self.global_rank):
            for examples in self.update_batches(rows):
                self.update(examples)
        if (datamodule := getattr(self.trainer, "datamodule", None)) is not None:
            datamodule.batch_done()

    def update(self, examples: Sequence[Example]) -> None:
        """Make one optimiser step: forward and backward per micro-batch, clip, step, log.

        Terms are divided by counts over all micro-batches and processes, so the loss does not depend on either.
        """
        counts = reduce_over_processes(self.trainer, self.counts(examples), sum)
        sums: dict[str, float] = defaultdict(float)
        peaks: dict[str, float] = {}
        for group in micro_batches(examples, self.micro_batch_tokens):
            with self._no_sync():
                out = self.loss(Batch.of(group, self.device))
                total = self._total(out, counts)
                self.manual_backward(total)
            sums["loss"] += float(total.detach())
            for name, term in {**out.terms, **out.metrics}.items():
                sums[f"sum/{name}"] += float((term.values.detach() * term.mask).sum())
                sums[f"count/{name}"] += float(term.mask.sum())
            for name, values in out.peaks.items():
                peaks[name] = max(peaks.get(name, 0.0), float(values.max()))
        sums, peaks = reduce_over_processes(self.trainer, sums, sum), reduce_over_processes(self.trainer, peaks, max)
        for name, term in out.terms.items():
            if sums[f"count/{name}"] != counts[term.per]:
                raise LovecError(
                    f"the mask of the term {name!r} counts {sums[f'count/{name}']:g} {term.per}s, but the batch holds "
                    f"{counts[term.per]:g}: override counts() where a term counts something else"
                )
        means = {name: sums[f"sum/{name}"] / max(1.0, sums[f"count/{name}"]) for name in (*out.terms, *out.metrics)}
        metrics = {**means, **peaks, "grad_norm": self._step()}
        self.log("train/loss", sums["loss"], prog_bar=True, batch_size=len(examples))
        self.log_dict({f"train/{name}": value for name, value in metrics.items()}, batch_size=len(examples))

    def _total(self, out: LossOutput, counts: Mapping[str, float]) -> Tensor:
        """Return this micro-batch's share of the loss of the batch."""
        shares = []
        for name, term in out.terms.items():
            if term.per not in counts:
                raise LovecError(f"the term {name!r} is counted per {term.per!r}; counts() knows {sorted(counts)}")
            shares.append(term.weight * (term.values * term.mask).sum() / counts[term.per])
        return torch.stack([share.double() for share in shares]).sum()

    def _step(self) -> float:
        """Sum gradients over processes, clip them, step optimiser and schedule; return the norm before clipping."""
        parameters = self.policy.trainable()
        if self.trainer.world_size > 1:
            for p in parameters:
                p.grad = torch.zeros_like(p) if p.grad is None else p.grad
                dist.all_reduce(p.grad)
        norm = float(torch.nn.utils.clip_grad_norm_(parameters, self.grad_norm or float("inf")))
        if norm != norm or norm == float("inf"):
            raise LovecError(
                f"the gradient is {norm} at step {self.global_step}; lower the learning rate or look at the last rows"
            )
        optimizer: Any = self.optimizers()
        optimizer.step()
        optimizer.zero_grad()
        schedule: Any = self.lr_schedulers()
        if schedule is not None:
            schedule.step()
        return norm

    def _no_sync(self) -> AbstractContextManager[Any]:
        """Keep DDP from summing gradients in every micro-batch, of which processes may have unequal numbers."""
        model = self.trainer.strategy.model
        return model.no_sync() if isinstance(model, DistributedDataParallel) else nullcontext()

    # Lightning's hooks

    def configure_callbacks(self) -> list[Any]:
        """Refuse trainer flags that have another meaning here; return a probe and a monitor unless there are some."""
        trainer = self.trainer
        if trainer.accumulate_grad_batches != 1:
            raise LovecError(
                "trainer.accumulate_grad_batches is set, but a batch is an optimiser step here: use data.batch_size"
            )
        if trainer.gradient_clip_val:
            raise LovecError("trainer.gradient_clip_val is set; use model.grad_norm instead")
        if str(trainer.precision) in ("bf16-true", "16-true", "16-mixed"):
            raise LovecError(
                f"trainer.precision is {trainer.precision}; adapters stay in float32: use 32-true or bf16-mixed, "
                "and policy.dtype: bfloat16 for the base"
            )
        present: list[Any] = trainer.callbacks  # type: ignore[attr-defined]
        wanted = (Probe, Monitor) if self.probes else (Monitor,)
        return [kind() for kind in wanted if not any(isinstance(callback, kind) for callback in present)]

    def configure_optimizers(self) -> Any:
        """Create the optimiser, over the adapter's parameters only, and its schedule."""
        optimizer = self.optimizer(self.policy.trainable())
        if self.lr_scheduler is None:
            return optimizer
        schedule = self.lr_scheduler(optimizer)
        if hasattr(schedule, "set_total_steps"):
            steps = self.trainer.estimated_stepping_batches
            if steps == float("inf"):
                raise LovecError(
                    "the learning-rate schedule needs the length of the run: set trainer.max_epochs or "
                    "trainer.max_steps, or lr_scheduler: null"
                )
            steps = int(steps) * self.updates_per_batch  # Lightning counts batches
            schedule.set_total_steps(steps if self.trainer.max_steps < 0 else min(steps, self.trainer.max_steps))
        return [optimizer], [schedule]

    def on_train_batch_end(self, *args: Any) -> None:
        """On SIGTERM, write a checkpoint before the trainer stops."""
        if self.trainer.received_sigterm:
            path = self.run_dir / "terminated.ckpt"
            self.trainer.save_checkpoint(path)
            rank_zero_warn(f"SIGTERM at step {self.global_step}; resume with --ckpt_path {path}")

    def on_train_end(self) -> None:
        """Write the adapter in PEFT format, for ``lovec test``, for later runs and for plain ``peft``."""
        if self.trainer.is_global_zero:
            self.policy.save_adapter(self.run_dir / "adapter", extra_files=settings_file(self.encoder))
            rank_zero_info(f"adapter written to {self.run_dir / 'adapter'}")


def ratings(row: Record, scale: Scale = DEFAULT_SCALE) -> list[int]:
    """Return the true score of every sentence of a row on a confidence scale.

    Raises:
        LovecError: a sentence has no label.
    """
    if not row.labelled:
        raise LovecError(f"{row.id}: a sentence has no factuality (or there is none); leave such rows out of training")
    return [scale.nearest(s.factuality) for s in row.sentences if s.factuality is not None]
