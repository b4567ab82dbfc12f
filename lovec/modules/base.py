"""The module every objective subclasses: one optimiser step is one batch, exact over ragged micro-batches."""

from __future__ import annotations

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

from lovec.callbacks.monitor import Monitor
from lovec.callbacks.probe import log_probe, probe_due
from lovec.evaluation.module import EvaluationModule
from lovec.modules.batching import Batch, Example, micro_batches
from lovec.policy import TokenSequence
from lovec.randomness import seeded
from lovec.taggers.session import settings_file
from lovec.types import LossOutput, LovecError, Record, to_rating


class PolicyModule(EvaluationModule):
    """Trains a LoRA policy with a loss that a subclass gives.

    A subclass overrides ``loss``; ``encode`` if a row is more than one demonstration; ``update_batches`` if rows are not
    learned from as they come.

    Args:
        optimizer: makes the optimiser from the adapter's parameters.
        lr_scheduler: makes the schedule, stepped once an optimiser step; null keeps the rate.
        micro_batch_tokens: padded tokens run through the model at once (memory, not arithmetic).
        grad_norm: gradients are clipped to this norm; 0 does not clip.
        kwargs: arguments of ``EvaluationModule``: policy, evaluation, engine, oracle, seed.
    """

    probes: ClassVar[bool] = True
    """Whether free-form answers are looked at in training; objectives that sample answers anyway need no probe."""

    updates_per_batch: int = 1
    """Optimiser steps that ``update_batches`` makes of one batch."""

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
        self._shortened: set[str] = set()

    # What an objective gives

    def loss(self, batch: Batch) -> LossOutput:
        """Per-example values and masks of the objective's terms for one micro-batch; never a mean."""
        raise TypeError(f"{type(self).__name__} has no loss: override loss(batch) -> LossOutput")

    def encode(self, row: Record) -> Example:
        """What one row contributes: here, its answer with its true scores."""
        return Example((self.tagged(row, ratings(row)),), row)

    def update_batches(self, rows: Sequence[Record]) -> Iterator[Sequence[Example]]:
        """What to learn from, one optimiser step each: here, the rows themselves, once."""
        yield [self.example(row) for row in rows]

    def counts(self, examples: Sequence[Example]) -> dict[str, float]:
        """How many of each unit the examples hold, known before any forward pass."""
        return {
            "row": len(examples),
            "pair": len(examples),
            "token": sum(len(example.sequences[0].completion) for example in examples),
        }

    # Given to objectives

    def tagged(self, row: Record, scores: Sequence[int]) -> TokenSequence:
        """The row's question and sentences, tagged with ``scores``, as token ids."""
        completion = self.encoder.completion([s.text for s in row.sentences], scores)
        return TokenSequence(tuple(self.encoder.prompt(row.question)), tuple(completion))

    def token_logps(self, batch: Batch, temperature: float = 1.0) -> Tensor:
        """Log-probability of every completion token: [N, T], 0 where masked."""
        return self.policy.token_logps(batch.tokens, temperature)

    def reference_token_logps(self, batch: Batch, temperature: float = 1.0) -> Tensor:
        """The same under the start-of-run policy, without gradient."""
        with self.policy.reference():
            return self.policy.token_logps(batch.tokens, temperature)

    def example(self, row: Record) -> Example:
        """The row encoded, with as many whole sentences as the context holds; both sides of a pair are cut alike.

        Raises:
            LovecError: not even one sentence fits.
        """
        if not row.sentences:
            raise LovecError(f"{row.id}: there is no sentence to learn from; leave such rows out of training")
        for n in range(len(row.sentences), 0, -1):
            rejected = None if row.rejected is None else row.rejected[:n]
            example = self.encode(replace(row, sentences=row.sentences[:n], rejected=rejected))
            if max(len(s) for s in example.sequences) <= self.policy.max_length:
                if n < len(row.sentences) and row.id not in self._shortened:
                    self._shortened.add(row.id)
                    rank_zero_warn(
                        f"{row.id}: {len(row.sentences)} sentences are longer than the context of "
                        f"{self.policy.max_length} tokens; the first {n} are kept ({len(self._shortened)} rows so far)"
                    )
                return example
        raise LovecError(
            f"{row.id}: prompt and first sentence are longer than the context of {self.policy.max_length} tokens; "
            "leave the row out, shorten the question, or raise policy.max_length"
        )

    # The loop

    def training_step(self, rows: Sequence[Record], batch_idx: int) -> None:
        """Learn from one optimiser batch of rows; now and then look at free-form answers before."""
        if probe_due(self):
            log_probe(self)
        with seeded(self.seed, self.global_step, self.global_rank):
            for examples in self.update_batches(rows):
                self.update(examples)
        if (datamodule := getattr(self.trainer, "datamodule", None)) is not None:
            datamodule.batch_done()

    def update(self, examples: Sequence[Example]) -> None:
        """One optimiser step: micro-batches, exact normalisers over all of them and all processes, clip, step."""
        counts = self._sum(self.counts(examples))
        sums: dict[str, float] = {}
        peaks: dict[str, float] = {}
        for group in micro_batches(examples, self.micro_batch_tokens):
            with self._no_sync():
                out = self.loss(Batch.of(group, self.device))
                total = self._total(out, counts)
                self.manual_backward(total)
            _add(sums, "loss", float(total.detach()))
            for name, term in {**out.terms, **out.metrics}.items():
                _add(sums, f"sum/{name}", float((term.values.detach() * term.mask).sum()))
                _add(sums, f"count/{name}", float(term.mask.sum()))
            for name, values in out.peaks.items():
                peaks[name] = max(peaks.get(name, 0.0), float(values.max()))
        sums, peaks = self._sum(sums), self._most(peaks)
        for name, term in out.terms.items():
            if sums[f"count/{name}"] != counts[term.per]:
                raise LovecError(
                    f"the mask of the term {name!r} counts {sums[f'count/{name}']:g} {term.per}s, but the batch holds "
                    f"{counts[term.per]:g}: override counts() where a term counts something else"
                )
        means = {name: sums[f"sum/{name}"] / max(1.0, sums[f"count/{name}"]) for name in (*out.terms, *out.metrics)}
        norm = self._step()
        self.log("train/loss", sums["loss"], prog_bar=True, batch_size=len(examples))
        figures = {**means, **peaks, "grad_norm": norm}
        self.log_dict({f"train/{name}": value for name, value in figures.items()}, batch_size=len(examples))

    def _total(self, out: LossOutput, counts: Mapping[str, float]) -> Tensor:
        """This micro-batch's share of the batch's loss."""
        shares = []
        for name, term in out.terms.items():
            if term.per not in counts:
                raise LovecError(f"the term {name!r} is counted per {term.per!r}; counts() knows {sorted(counts)}")
            shares.append(term.weight * (term.values * term.mask).sum() / counts[term.per])
        return torch.stack([share.double() for share in shares]).sum()

    def _step(self) -> float:
        """Sum gradients over processes, clip, step optimiser and schedule; the norm before clipping."""
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
        """Gradients are summed once a step by ``_step``, so that processes may have unequal micro-batches."""
        model = self.trainer.strategy.model
        return model.no_sync() if isinstance(model, DistributedDataParallel) else nullcontext()

    def _sum(self, values: Mapping[str, float]) -> dict[str, float]:
        """Sum named values over processes."""
        total: dict[str, float] = {}
        for part in self._everywhere(values):
            for name, value in part.items():
                _add(total, name, value)
        return total

    def _most(self, values: Mapping[str, float]) -> dict[str, float]:
        """The largest of each of the named values over processes."""
        most: dict[str, float] = {}
        for part in self._everywhere(values):
            for name, value in part.items():
                most[name] = max(most.get(name, value), value)
        return most

    def _everywhere(self, values: Mapping[str, float]) -> list[dict[str, float]]:
        """The named values of every process."""
        if self.trainer.world_size == 1:
            return [dict(values)]
        gathered: list[dict[str, float]] = [{} for _ in range(self.trainer.world_size)]
        dist.all_gather_object(gathered, dict(values))
        return gathered

    # Lightning's hooks

    def configure_callbacks(self) -> list[Any]:
        """A monitor, unless there is one; trainer flags that mean something else here are refused first."""
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
        given: list[Any] = trainer.callbacks  # type: ignore[attr-defined]
        return [] if any(isinstance(callback, Monitor) for callback in given) else [Monitor()]

    def configure_optimizers(self) -> Any:
        """Optimiser over the adapter alone, and its schedule."""
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
            rank_zero_warn(f"SIGTERM at step {self.global_step}; go on with --ckpt_path {path}")

    def on_train_end(self) -> None:
        """Write the adapter in PEFT format, for tests, for later runs and for plain ``peft``."""
        if self.trainer.is_global_zero:
            self.policy.save_adapter(self.run_dir / "adapter", extra_tokens=settings_file(self.encoder))
            rank_zero_info(f"adapter written to {self.run_dir / 'adapter'}")


def ratings(row: Record) -> list[int]:
    """True scores 0..10 of a row's sentences.

    Raises:
        LovecError: a sentence has no label.
    """
    if not row.labelled:
        raise LovecError(f"{row.id}: a sentence has no factuality (or there is none); leave such rows out of training")
    return [to_rating(s.factuality) for s in row.sentences if s.factuality is not None]


def _add(sums: dict[str, float], name: str, value: float) -> None:
    sums[name] = sums.get(name, 0.0) + value
