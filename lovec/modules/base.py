"""The base class of every objective: one batch is one optimiser step, and its loss does not depend on micro-batches."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Annotated, Any, ClassVar

import torch
from lightning.pytorch.cli import LRSchedulerCallable, OptimizerCallable
from lightning.pytorch.trainer.states import TrainerFn
from torch import Tensor

from lovec.callbacks import Monitor, Probe
from lovec.callbacks.adapter import AdapterWriter
from lovec.callbacks.ending import EndBySignal, droppable
from lovec.callbacks.lengths import LengthWarnings
from lovec.core.notices import DoublingWarning, counted
from lovec.core.progress import doing
from lovec.core.randomness import seeded
from lovec.core.settings import NO_EFFECT, Count, NonNegative
from lovec.datasets.stored import RecordSize
from lovec.evaluation.module import EvaluationModule
from lovec.evaluation.processes import reduce_over_processes
from lovec.evaluation.sampling import sample_validation
from lovec.evaluation.stopping import SignalConnector
from lovec.modules.batching import Batch, Example, ExampleT, default_budget, enough_memory, micro_batches
from lovec.modules.checks import (
    check_records,
    check_step_counts,
    check_texts,
    check_trainer,
    check_validation_interval,
    not_finite,
    questions_with_tag_words,
)
from lovec.modules.costs import RunCosts, length_of
from lovec.modules.distributed import even_groups, sum_gradients, without_sync
from lovec.modules.optimizers import create_optimizer, set_total_steps, step_schedule
from lovec.modules.sums import BatchSums
from lovec.policy import TokenSequence
from lovec.types import DEFAULT_SCALE, LossOutput, LovecError, Record, Scale

log = logging.getLogger(__name__)


class PolicyModule(EvaluationModule):
    """Trains a LoRA policy with the loss of a subclass.

    A subclass overrides ``loss``; ``encode`` where a row is not one demonstration; ``update_batches`` where rows are
    not learned from as they are.

    Args:
        optimizer: creates the optimiser from the adapter's parameters, and those that a subclass has of its own.
        lr_scheduler: creates the schedule, which is stepped once per optimiser step; null keeps the rate constant.
        micro_batch_tokens: tokens that run through the model at once: distinct ones, or where sequences are padded (see
            ``policy.share_prefixes``) all of them. It changes the memory that is needed, and results by rounding only;
            with dropout it changes which inputs are dropped. null is 16,384, and fewer where a large model would not
            fit: a machine of 8 GB, or the memory of the GPU.
        grad_norm: gradients are clipped to this norm; 0 does not clip.
        kwargs: arguments of ``EvaluationModule``: policy, evaluation, engine, oracle, seed.

    Raises:
        LovecError: a setting is out of range.
    """

    probes: ClassVar[bool] = True
    """Whether a run has a ``Probe`` by default; objectives that sample answers anyway need none."""

    updates_per_batch: int = 1
    """The most optimiser steps for which ``update_batches`` yields examples, by which schedules count."""

    costs: RunCosts

    def __init__(
        self,
        optimizer: OptimizerCallable = torch.optim.AdamW,
        lr_scheduler: LRSchedulerCallable | None = None,
        micro_batch_tokens: Annotated[Count | None, NO_EFFECT] = None,
        grad_norm: NonNegative = 1.0,
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
        self._asks_for_tags = DoublingWarning(
            log, "%d training questions so far contain the tag words, which the model will read in its prompt: %s"
        )
        self._notices = [self._shortened, self._asks_for_tags]

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
        """Encode the row's question, and its sentences tagged with ``scores``; a cut answer has no end of turn."""
        completion = self.encoder.completion([s.text for s in row.sentences], scores, row.finished)
        return TokenSequence(tuple(self.encoder.record_prompt(row)), tuple(completion))

    def token_logps(self, batch: Batch[Any], temperature: float = 1.0) -> Tensor:
        """Compute the log-probability of every completion token, [N, T], 0 where masked."""
        return self.policy.token_logps(batch.tokens, temperature)

    def reference_token_logps(self, batch: Batch[Any], temperature: float = 1.0) -> Tensor:
        """Compute the same under the policy that the run started from, without gradient.

        Raises:
            LovecError: the class does not say that it needs that policy, so it was not kept.
        """
        if not self.needs_reference:
            raise LovecError(
                f"{type(self).__name__} asks for log-probabilities of the reference, which is kept only where a class "
                "says that it needs one: set needs_reference = True in it"
            )
        with self.policy.reference():
            return self.policy.token_logps(batch.tokens, temperature)

    def example(self, row: Record) -> Example:
        """Encode a row with as many whole sentences as the context holds; both sides of a pair are cut alike.

        An answer that is cut, here or by the limit that it was written under, does not teach to end after it.

        Raises:
            LovecError: the row has no sentence, a text cannot be encoded, a sentence contains a tag word, or not even
                the first one fits.
        """
        check_texts(row, self.encoder.tags)
        if self._fits(whole := self.encode(row)):
            return whole

        def begin(n: int) -> Example:
            rejected = None if row.rejected is None else row.rejected[:n]
            meta = {**row.meta, "finished": False}
            return self.encode(replace(row, sentences=row.sentences[:n], rejected=rejected, meta=meta))

        longest: Example | None = None
        fitting, too_many = 0, len(row.sentences)  # the more sentences there are, the longer is the answer
        hopeless = too_many
        while too_many - fitting > 1:
            n = (fitting + too_many) // 2
            if self._fits(example := begin(n)):
                longest, fitting = example, n
            else:
                too_many = n
                if max(len(sequence.completion) for sequence in example.sequences) > self.policy.max_length:
                    hopeless = n
        if self.encoder.has_source(row):  # it is cut by the sentences, so more of them may make a shorter row
            longest = next(filter(self._fits, map(begin, range(hopeless - 1, fitting, -1))), longest)
        if longest is None:
            raise LovecError(
                f"{row.id}: prompt and first sentence are longer than the context of {self.policy.max_length} tokens; "
                "leave the row out, shorten the question, or raise policy.max_length"
            )
        self._shortened.add(row.id)
        return longest

    def _fits(self, example: Example) -> bool:
        """Return whether the context holds every sequence of an example."""
        return max(len(sequence) for sequence in example.sequences) <= self.policy.max_length

    # Before the first step

    @property
    def longest_answer(self) -> int:
        """The most tokens that the policy's own answers may have."""
        return self.evaluation.max_new_tokens

    def check_row(self, row: Record) -> None:
        """Raise a ``LovecError`` for a training record that cannot be learned from: here, one that does not encode."""
        self.example(row)

    def check_rows(self, rows: Sequence[Record]) -> None:
        """Check, before the first step, what the training records are together; each has passed ``check_row``."""
        for name in questions_with_tag_words(rows, self.encoder.tags):
            self._asks_for_tags.add(name)
        self._log_notices()

    def most_tokens(self, size: RecordSize) -> int | None:
        """Return the most tokens that a training record of a size takes; None where that is not known.

        ``check_row`` is called for those only that may take more than ``policy.max_length``. What is said here is true
        of records that are encoded as here: where a subclass overrides how, all are checked.
        """
        return self.most_answer_tokens(size) if self.encodes_as(PolicyModule) else None

    def most_answer_tokens(self, size: RecordSize) -> int | None:
        """Return the most tokens of a prompt and its tagged answer; None where the record cannot be learned from."""
        if size.must_be_read or not size.labelled:
            return None
        return self.encoder.most_tokens(size.question, size.answer, size.sentences)

    def encodes_as(self, cls: type[PolicyModule]) -> bool:
        """Return whether records are encoded and checked by the methods of a class, none of which is overridden."""
        own = type(self)
        return all(getattr(own, name) is getattr(cls, name) for name in ("check_row", "example", "encode", "tagged"))

    def _log_notices(self) -> None:
        for notice in self._notices:
            notice.flush()

    # The loop

    def training_step(self, rows: Sequence[Record], batch_idx: int) -> None:
        """Learn from one optimiser batch of rows."""
        with self.costs.step(rows):
            with (
                droppable(self.trainer),
                seeded(self.seed, self.global_step, self.global_rank),
                doing(f"step {self.global_step + 1}"),
                self.policy.without_casts(),
            ):
                for number, examples in enumerate(self.update_batches(rows)):
                    self._check_updates(number)
                    self.update(examples)
            self._log_notices()
            if (datamodule := getattr(self.trainer, "datamodule", None)) is not None:
                datamodule.batch_done()

    def _check_updates(self, made: int) -> None:
        """Check that a batch may have one more optimiser step, after those that were made."""
        if made == self.updates_per_batch:
            raise LovecError(
                f"{type(self).__name__}.update_batches yields more than {counted(made, 'set')} of examples per batch, "
                "and a schedule of the learning rate would end too early: set updates_per_batch to how many it yields"
            )

    def validation_step(self, rows: Sequence[Record], batch_idx: int) -> None:
        """Tag and measure records in every mode."""
        with droppable(self.trainer):
            super().validation_step(rows, batch_idx)

    def work(self, rows: Sequence[Record]) -> float:
        """Return what the cost of a step with some rows is about proportional to: here the length of their texts."""
        return 1.0 + sum(map(length_of, rows))

    def update(self, examples: Sequence[Example]) -> None:
        """Make one optimiser step: forward and backward per micro-batch, clip, step, log.

        Terms are divided by counts over all micro-batches and processes, so the loss does not depend on either.
        """
        counts = reduce_over_processes(self.trainer, self.counts(examples), sum)
        own, budget = self._groups(examples), self._budget
        groups = even_groups(self.trainer, own)
        sums = BatchSums()
        for number, group in enumerate(groups):
            several = doing(f"micro-batch {number + 1} of {len(groups)}") if len(groups) > 1 else nullcontext()
            with without_sync(self.trainer), several, enough_memory(budget):
                out = self.loss(Batch.of(group, self.device))
                total = self._total(out, counts)
                self.manual_backward(total if number < len(own) else 0.0 * total)
            if number < len(own):
                sums.add(total, out)
        sums.reduce(self.trainer)
        sums.check(counts)
        SignalConnector.of(self.trainer).keep_step()
        norm = self._step() if math.isfinite(sums.loss) else sums.loss
        if not math.isfinite(norm):
            what = "gradient" if math.isfinite(sums.loss) else "loss"
            with seeded(self.seed, self.global_step, self.global_rank):  # the same dropout once more
                raise not_finite(
                    what,
                    norm,
                    self.global_step,
                    groups,
                    lambda batch: self._shares(self.loss(batch), counts),
                    self.trained_parameters(),
                )
        metrics = {**sums.metrics(), "grad_norm": norm}
        shown = "reward" if "reward" in metrics else "loss"  # the loss of rollouts does not tell whether they improve
        self.log(f"train/{shown}", metrics.pop(shown), prog_bar=True, batch_size=len(examples))
        self.log_dict({f"train/{name}": value for name, value in metrics.items()}, batch_size=len(examples))

    def _groups(self, examples: Sequence[ExampleT]) -> list[list[ExampleT]]:
        """Return examples in groups that run through the model at once, see ``micro_batch_tokens``."""
        shared = self.policy.shares(max((example.length for example in examples), default=0))
        return micro_batches(examples, self._budget, shared)

    @property
    def _budget(self) -> int:
        """The most tokens that run through the model at once."""
        checkpointing = self.policy_config.gradient_checkpointing
        return self.micro_batch_tokens or default_budget(self.policy.model, self.policy.device, checkpointing)

    def trained_parameters(self) -> list[torch.nn.Parameter]:
        """Return the weights of the adapter that is trained, and the parameters that a subclass has of its own."""
        own = self.own_names()
        return [*self.policy.trainable(), *(p for name, p in self.named_parameters() if name in own)]

    def _total(self, out: LossOutput, counts: Mapping[str, float]) -> Tensor:
        """Return this micro-batch's share of the loss of the batch."""
        return torch.stack([share.double() for share in self._shares(out, counts).values()]).sum()

    def _shares(self, out: LossOutput, counts: Mapping[str, float]) -> dict[str, Tensor]:
        """Return the share of this micro-batch in each term of the loss of the batch."""
        shares = {}
        for name, term in out.terms.items():
            if term.per not in counts:
                raise LovecError(f"the term {name!r} is counted per {term.per!r}; counts() knows {sorted(counts)}")
            shares[name] = term.weight * (term.values * term.mask).sum() / counts[term.per]
        return shares

    def _step(self) -> float:
        """Sum gradients over processes, clip them, step optimiser and schedule; return the norm before clipping.

        Where the norm is not finite no step is made.
        """
        parameters = self.trained_parameters()
        sum_gradients(self.trainer, parameters)
        norm = float(torch.nn.utils.clip_grad_norm_(parameters, self.grad_norm or float("inf")))
        if not math.isfinite(norm):
            return norm
        optimizer: Any = self.optimizers()
        optimizer.step()
        optimizer.zero_grad()
        schedule: Any = self.lr_schedulers()
        if schedule is not None:
            step_schedule(schedule)
        return norm

    # Lightning's hooks

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Keep what a longer run goes on with, also where the end of this one has cut an epoch short."""
        super().on_save_checkpoint(checkpoint)
        go_on_after_the_end(checkpoint["loops"]["fit_loop"], self.trainer.num_training_batches)

    def configure_callbacks(self) -> list[Any]:
        """Refuse trainer flags that have another meaning here; return a probe and a monitor unless there are some."""
        check_trainer(self.trainer)
        check_step_counts(self.trainer, self.updates_per_batch)
        present: list[Any] = self.trainer.callbacks  # type: ignore[attr-defined]
        wanted = (Probe, Monitor) if self.probes else (Monitor,)
        return [kind() for kind in wanted if not any(isinstance(callback, kind) for callback in present)]

    def setup(self, stage: str) -> None:
        """Refuse settings of the optimiser and its schedule before a model is loaded, and add our last callbacks."""
        super().setup(stage)
        if stage == "fit":
            check_validation_interval(self.trainer, getattr(self.trainer, "datamodule", None))
            create_optimizer(self.optimizer, self.lr_scheduler, [torch.nn.Parameter(torch.zeros(1, 1))])
            self.costs = RunCosts(self)
            last = [LengthWarnings(), AdapterWriter(), EndBySignal(), self.costs]
            trainer: Any = self.trainer
            others = [callback for callback in trainer.callbacks if type(callback) not in map(type, last)]
            trainer.callbacks = [*others, *last]  # behind ModelCheckpoint, which Lightning has put last by now

    def asks_oracle(self, stage: str) -> bool:
        """Return whether a stage asks the oracle: a probe does in training, and what `EvaluationModule` measures."""
        callbacks: list[Any] = self.trainer.callbacks  # type: ignore[attr-defined]
        probed = self.probes and any(isinstance(callback, Probe) and callback.every > 0 for callback in callbacks)
        return super().asks_oracle(stage) or (stage == "fit" and probed)

    def configure_model(self) -> None:
        """Build the policy, and check the training records before anything counts them."""
        super().configure_model()
        if self.trainer.state.fn == TrainerFn.FITTING:
            data: Any = getattr(self.trainer, "datamodule", None)
            with doing("checking the training records"):
                check_records(self, data)
                check_validation_interval(self.trainer, data)  # once more: there may be fewer now
            wanted = self.evaluation.validation_records
            domain, modes = self.evaluator.domains[0], self.evaluator.modes
            sample_validation(data, domain, modes, wanted, self.policy.is_tiny, self.seed)

    def configure_optimizers(self) -> Any:
        """Create the optimiser, of the adapter and of parameters of a subclass, and its schedule."""
        optimizer, schedule = create_optimizer(self.optimizer, self.lr_scheduler, self.trained_parameters())
        if schedule is None:
            return optimizer
        set_total_steps(schedule, self.trainer, self.updates_per_batch)
        return [optimizer], [schedule]


def go_on_after_the_end(loop: dict[str, Any], batches: float) -> None:
    """Let the state of Lightning's loop that is saved after the last step of a run go on from that step.

    Lightning counts an epoch that ``max_steps`` or ``max_time`` has cut short as a whole one, so a longer run would
    leave out its rest; and after a whole one, a run with ``max_steps`` would count the batches of the next one from
    there, and end it at once. A state that is saved within an epoch stays as it is.

    Args:
        loop: the state of the loop, as a checkpoint holds it.
        batches: number of batches of an epoch; infinite where it is not known.
    """
    epochs, batch = loop["epoch_progress"].values(), loop["epoch_loop.batch_progress"]
    if any(epoch["processed"] < epoch["started"] for epoch in epochs):
        return
    cut_short = 0 < batch["current"]["ready"] < batches and not batch["is_last_batch"]
    for epoch in epochs:
        epoch["processed"] = epoch["completed"] = epoch["started"] - cut_short
    if not cut_short:
        batch["current"] = dict.fromkeys(batch["current"], 0)
        batch["is_last_batch"] = False


def ratings(row: Record, scale: Scale = DEFAULT_SCALE) -> list[int]:
    """Return the true score of every sentence of a row on a confidence scale.

    Raises:
        LovecError: a sentence has no label.
    """
    if not row.labelled:
        raise LovecError(f"{row.id}: a sentence has no factuality (or there is none); leave such rows out of training")
    return [scale.nearest(s.factuality) for s in row.sentences if s.factuality is not None]
