"""The base class of every objective: one batch is one optimiser step, and its loss does not depend on micro-batches."""

from __future__ import annotations

import logging
import math
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import replace
from typing import Annotated, Any, ClassVar

import torch
from lightning.pytorch.cli import LRSchedulerCallable, OptimizerCallable
from lightning.pytorch.trainer.states import TrainerFn
from lightning.pytorch.utilities import rank_zero_info, rank_zero_warn
from torch import Tensor
from torch.optim import Optimizer

from lovec.callbacks import Monitor, Probe
from lovec.callbacks.estimate import VALIDATION
from lovec.core.files import free_name
from lovec.core.notices import DoublingWarning, counted, listed
from lovec.core.progress import Activity, doing
from lovec.core.randomness import seeded
from lovec.core.settings import NO_EFFECT, Count, NonNegative
from lovec.datasets.stored import Extent
from lovec.evaluation.module import EvaluationModule
from lovec.evaluation.processes import reduce_over_processes
from lovec.evaluation.run_folders import set_aside_measured
from lovec.evaluation.sampling import drawn, validation_size
from lovec.evaluation.stopping import TERMINATED, SignalConnector, StepDropped, name_of
from lovec.export.exporting import trained_files
from lovec.modules.batching import MOST_TOKENS, Batch, Example, fitting_tokens, micro_batches
from lovec.modules.checks import (
    check_rates,
    doubtful,
    long_answers,
    long_prompts,
    not_finite,
    unfit_records,
    unfit_summary,
)
from lovec.modules.costs import RunCosts, length_of
from lovec.modules.distributed import even_groups, hearing_signals, sum_gradients, without_sync
from lovec.policy import TokenSequence
from lovec.types import DEFAULT_SCALE, LossOutput, LovecError, Record, Scale, is_text

log = logging.getLogger(__name__)


class PolicyModule(EvaluationModule):
    """Trains a LoRA policy with the loss of a subclass.

    A subclass overrides ``loss``; ``encode`` where a row is not one demonstration; ``update_batches`` where rows are
    not learned from as they are.

    Args:
        optimizer: creates the optimiser from the adapter's parameters.
        lr_scheduler: creates the schedule, which is stepped once per optimiser step; null keeps the rate constant.
        micro_batch_tokens: tokens that run through the model at once: distinct ones, or where sequences are padded (see
            ``policy.share_prefixes``) all of them. It changes the memory that is needed, and results by rounding only.
            null is 16,384, and on a CPU fewer where a large model would not fit a machine of 8 GB.
        grad_norm: gradients are clipped to this norm; 0 does not clip.
        kwargs: arguments of ``EvaluationModule``: policy, evaluation, engine, oracle, seed.

    Raises:
        LovecError: a setting is out of range.
    """

    probes: ClassVar[bool] = True
    """Whether a run has a ``Probe`` by default; objectives that sample answers anyway need none."""

    updates_per_batch: int = 1
    """Number of optimiser steps for which ``update_batches`` yields examples."""

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
        self._data_checked = False
        self._notices = [self._shortened, self._asks_for_tags]
        self.costs = RunCosts(self)
        self._validating = ExitStack()
        self._validation: Activity | None = None
        self._hearing = ExitStack()

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
        """Compute the same under the policy that the run started from, without gradient."""
        with self.policy.reference():
            return self.policy.token_logps(batch.tokens, temperature)

    def example(self, row: Record) -> Example:
        """Encode a row with as many whole sentences as the context holds; both sides of a pair are cut alike.

        An answer that is cut, here or by the limit that it was written under, does not teach to end after it.

        Raises:
            LovecError: the row has no sentence, a text cannot be encoded, a sentence contains a tag word, or not even
                the first one fits.
        """
        if not row.sentences:
            raise LovecError(f"{row.id}: there is no sentence to learn from; leave such rows out of training")
        texts = [row.question, *(sentence.text for sentence in row.sentences)]
        if any(not is_text(text) for text in texts):
            raise LovecError(
                f"{row.id}: a text holds half a surrogate pair, which no tokenizer takes; correct the text"
            )
        if any(map(self.has_tag_words, texts[1:])):
            raise LovecError(
                f"{row.id}: a sentence contains {self.encoder.tags.open} or {self.encoder.tags.close}, so its tag "
                "cannot be told from the text; remove these words (lovec.tags.strip), or choose other policy.tag_words"
            )
        for n in range(len(row.sentences), 0, -1):
            rejected = None if row.rejected is None else row.rejected[:n]
            kept = replace(row, sentences=row.sentences[:n], rejected=rejected)
            if n < len(row.sentences):
                kept = replace(kept, meta={**row.meta, "finished": False})
            example = self.encode(kept)
            if max(len(s) for s in example.sequences) <= self.policy.max_length:
                if n < len(row.sentences):
                    self._shortened.add(row.id)
                return example
        raise LovecError(
            f"{row.id}: prompt and first sentence are longer than the context of {self.policy.max_length} tokens; "
            "leave the row out, shorten the question, or raise policy.max_length"
        )

    def has_tag_words(self, text: str) -> bool:
        """Return whether a text contains one of the words that stand around a score."""
        return self.encoder.tags.open in text or self.encoder.tags.close in text

    # Before the first step

    @property
    def longest_answer(self) -> int:
        """The most tokens that the policy's own answers may have."""
        return self.evaluation.max_new_tokens

    def check_data(self) -> None:
        """Check the training records that are set up, once; those that are unfit are left out if the data say so.

        Raises:
            LovecError: records cannot be learned from, and are not to be left out or are all there are.
        """
        data: Any = getattr(self.trainer, "datamodule", None)
        if self._data_checked or not hasattr(data, "loaded"):
            return
        self._data_checked = True
        rows = data.loaded("train")
        if unfit := unfit_records(rows, self):
            summary = unfit_summary(unfit, rows)
            if data.unfit == "refuse" or len(unfit) == len(rows):
                raise LovecError(f"{summary}; correct them, or leave them out with --data.unfit leave_out")
            rank_zero_warn(f"{summary}; all of them are left out")
            data.leave_out(unfit)
        self.check_rows(data.loaded("train"))

    def configure_model(self) -> None:
        """Build the policy, and check the training records before anything counts them."""
        super().configure_model()
        if self.trainer.state.fn == TrainerFn.FITTING:
            with doing("checking the training records"):
                self.check_data()
            self._sample_validation()

    def _sample_validation(self) -> None:
        """Let validations within training measure a sample where all records would cost much of an epoch."""
        data: Any = getattr(self.trainer, "datamodule", None)
        if not hasattr(data, "sample_validation"):
            return
        records, wanted = len(data.loaded("validation")), self.evaluation.validation_records
        modes = self.evaluator.modes
        size = validation_size(records, len(data.loaded("train")), modes, wanted, cheap=self.policy.is_tiny)
        data.sample_validation(drawn(records, size, self.seed) if size < records else None)
        if size < records:
            why = (
                "as --model.evaluation.validation_records says"
                if wanted
                else "so that a validation costs about a tenth of an epoch"
            )
            rank_zero_info(
                f"validations during training measure {size} of {records} records, drawn with the seed, {why}"
                + ("" if wanted else "; --model.evaluation.validation_records 0 measures all")
            )

    def check_rows(self, rows: Sequence[Record]) -> None:
        """Check, before the first step, what the training records are together; each has passed ``check_row``."""
        for row in doubtful(rows, self.encoder.tags):
            if self.has_tag_words(row.question):
                self._asks_for_tags.add(row.id)
        self._log_notices()

    def check_row(self, row: Record) -> None:
        """Raise a ``LovecError`` for a training record that cannot be learned from: here, one that does not encode."""
        self.example(row)

    def surely_fits(self, extent: Extent) -> bool:
        """Return whether all records of an extent pass ``check_row``, which is then not called for them.

        A subclass that overrides how a row is encoded has all its rows checked, unless it overrides this too.
        """
        plain = extent.labelled and not extent.doubtful
        return plain and self.encoder.most_tokens(*extent[:3]) <= self.policy.max_length

    def _log_notices(self) -> None:
        for notice in self._notices:
            notice.flush()

    # The loop

    def training_step(self, rows: Sequence[Record], batch_idx: int) -> None:
        """Learn from one optimiser batch of rows."""
        work = self.work(rows)
        SignalConnector.of(self.trainer).expected = lambda: self.costs.estimate.step_left(work)
        self.costs.estimate.step_begins()
        with (
            self.droppable(),
            seeded(self.seed, self.global_step, self.global_rank),
            doing(f"step {self.global_step + 1}"),
        ):
            for examples in self.update_batches(rows):
                self.update(examples)
        self._log_notices()
        if (datamodule := getattr(self.trainer, "datamodule", None)) is not None:
            datamodule.batch_done()
        self.costs.estimate.step_ends(work)

    @contextmanager
    def droppable(self) -> Iterator[None]:
        """Let a signal end what is done inside the block, and save the run as it was before the step under way.

        What is done may change nothing that a checkpoint holds, up to the optimiser's step.
        """
        signals = SignalConnector.of(self.trainer)
        try:
            with signals.droppable():
                yield
        except StepDropped:
            signals.dropped()
            loop = self.trainer.fit_loop.epoch_loop
            if self.trainer.validating:
                # A resumed validation would measure the wrong records: the loader begins anew.
                loop.val_loop.batch_progress.reset()
            else:
                _take_back(loop)
            self._save_terminated()
            signals.end_if_agreed()

    def work(self, rows: Sequence[Record]) -> float:
        """Return what the cost of a step with some rows is about proportional to: here the length of their texts."""
        return 1.0 + sum(map(length_of, rows))

    @property
    def _most_tokens(self) -> int:
        """Tokens of a micro-batch."""
        if self.micro_batch_tokens is not None or self.policy.device.type != "cpu":
            return self.micro_batch_tokens or MOST_TOKENS
        settings = self.policy.model.config.get_text_config()
        return fitting_tokens(settings.num_hidden_layers, settings.hidden_size, settings.vocab_size)

    def update(self, examples: Sequence[Example]) -> None:
        """Make one optimiser step: forward and backward per micro-batch, clip, step, log.

        Terms are divided by counts over all micro-batches and processes, so the loss does not depend on either.
        """
        counts = reduce_over_processes(self.trainer, self.counts(examples), sum)
        sums: dict[str, float] = defaultdict(float)
        peaks: dict[str, float] = {}
        own = micro_batches(examples, self._most_tokens, self.policy.shares_prefixes)
        groups = even_groups(self.trainer, own)
        for number, group in enumerate(groups):
            several = doing(f"micro-batch {number + 1} of {len(groups)}") if len(groups) > 1 else nullcontext()
            with without_sync(self.trainer), several:
                out = self.loss(Batch.of(group, self.device))
                total = self._total(out, counts)
                self.manual_backward(total if number < len(own) else 0.0 * total)
            if number >= len(own):
                continue
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
        SignalConnector.of(self.trainer).keep_step()
        norm = sums["loss"] if not math.isfinite(sums["loss"]) else self._step()
        if not math.isfinite(norm):
            what = "gradient" if math.isfinite(sums["loss"]) else "loss"
            with seeded(self.seed, self.global_step, self.global_rank):  # the same dropout once more
                raise not_finite(
                    what,
                    norm,
                    self.global_step,
                    groups,
                    lambda batch: self._shares(self.loss(batch), counts),
                    self.policy.trainable(),
                )
        metrics = {"loss": sums["loss"], **means, **peaks, "grad_norm": norm}
        shown = "reward" if "reward" in metrics else "loss"  # the loss of rollouts does not tell whether they improve
        self.log(f"train/{shown}", metrics.pop(shown), prog_bar=True, batch_size=len(examples))
        self.log_dict({f"train/{name}": value for name, value in metrics.items()}, batch_size=len(examples))

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
        parameters = self.policy.trainable()
        sum_gradients(self.trainer, parameters)
        norm = float(torch.nn.utils.clip_grad_norm_(parameters, self.grad_norm or float("inf")))
        if not math.isfinite(norm):
            return norm
        optimizer: Any = self.optimizers()
        optimizer.step()
        optimizer.zero_grad()
        schedule: Any = self.lr_schedulers()
        if schedule is not None:
            schedule.step()
        return norm

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
        optimizer, schedule = self._optimizer_of(self.policy.trainable())
        if schedule is None:
            return optimizer
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

    def _optimizer_of(self, parameters: list[torch.nn.Parameter]) -> tuple[Optimizer, Any]:
        """Return the optimiser of parameters, and its schedule, None without one.

        Raises:
            LovecError: one of them refuses its settings, or a setting is not finite.
        """
        try:
            optimizer = self.optimizer(parameters)
            check_rates(optimizer)
            return optimizer, None if self.lr_scheduler is None else self.lr_scheduler(optimizer)
        except (ValueError, TypeError) as error:
            raise LovecError(f"the optimizer or its lr_scheduler refuses its settings: {error}") from error

    def setup(self, stage: str) -> None:
        """Refuse settings of the optimiser and its schedule before a model is loaded."""
        super().setup(stage)
        if stage == "fit":
            self._data_checked = False
            self.costs = RunCosts(self)
            self._validating.close()  # of an earlier run that was interrupted
            self._hearing.close()
            self._optimizer_of([torch.nn.Parameter(torch.zeros(1, 1))])

    def on_fit_start(self) -> None:
        """Check all records before the first step, and keep the checkpoint with which an earlier run was stopped."""
        if (loaded := getattr(getattr(self.trainer, "datamodule", None), "loaded", None)) is not None:
            context = getattr(self.policy.model.config.get_text_config(), "max_position_embeddings", math.inf)
            if long := long_prompts(loaded("validation"), self.encoder, context):
                rank_zero_warn(
                    f"{counted(len(long), 'validation record has', 'validation records have')} a prompt that fills the "
                    f"model's context of {context} tokens, "
                    f"so they cannot be measured: {listed(long)}"
                )
            limit = self.longest_answer
            if cut := long_answers(loaded("validation"), self.encoder, limit):
                rank_zero_warn(
                    f"{len(cut)} of {len(loaded('validation'))} validation answers have more than {limit} tokens with "
                    "their tags, and answers as long will be cut: raise --model.evaluation.max_new_tokens (and "
                    f"--model.max_new_tokens of rollouts, if it is set): {listed(cut)}"
                )
        path = self.run_dir / TERMINATED
        if self.trainer.is_global_zero and self.trainer.ckpt_path is None and path.exists():
            path.rename(free_name(path))

    def on_train_start(self) -> None:
        """Let SIGTERM, SIGHUP, SIGUSR1 and Ctrl-C wait for the end of a step, unless it takes long."""
        SignalConnector.of(self.trainer).training_begins()
        self._hearing.enter_context(hearing_signals(self.policy.model))
        self.costs.training_begins()

    def on_train_batch_end(self, *args: Any) -> None:
        """After such a signal to any process, write a checkpoint; the run ends at the next of the hooks below."""
        if SignalConnector.of(self.trainer).agree():
            self._save_terminated()

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        """End the run after a signal; what the last step logged is written by now."""
        SignalConnector.of(self.trainer).end_if_agreed()
        total: Any = self.trainer.fit_loop.epoch_loop.batch_progress.total
        total.started = total.ready - 1  # a run that goes on after a dropped step has counted that one

    def on_train_epoch_end(self) -> None:
        """End the run after a signal."""
        SignalConnector.of(self.trainer).end_if_agreed()

    @property
    def _within_training(self) -> bool:
        return self.trainer.state.fn == TrainerFn.FITTING and not self.trainer.sanity_checking

    def on_validation_start(self) -> None:
        """End the run after a signal; begin to measure a validation within training."""
        SignalConnector.of(self.trainer).end_if_agreed()
        if self._within_training:
            SignalConnector.of(self.trainer).expected = self.costs.validation_left
            records = self.costs.validation_records or None
            self._validation = self._validating.enter_context(doing("validation", records, "records"))
            self._validating.enter_context(self.costs.estimate.aside(VALIDATION))

    def validation_step(self, rows: Sequence[Record], batch_idx: int) -> None:
        """Tag and measure records in every mode."""
        if not self._within_training:
            super().validation_step(rows, batch_idx)
            return
        with self.droppable():
            super().validation_step(rows, batch_idx)
        if self._validation is not None:
            self._validation.advance(len(rows))

    def on_validation_batch_end(self, *args: Any, **kwargs: Any) -> None:
        """After a signal during a validation within training, write a checkpoint as of the last step, and end."""
        signals = SignalConnector.of(self.trainer)
        if self._within_training and signals.agree():
            # A resumed validation would measure the wrong records: the loader begins anew.
            self.trainer.fit_loop.epoch_loop.val_loop.batch_progress.reset()
            self._save_terminated()
            signals.end_if_agreed()

    def on_validation_end(self) -> None:
        """Count the time of a validation within training."""
        self._validating.close()

    def on_train_end(self) -> None:
        """Write the adapter in PEFT format, for ``lovec test``, for later runs and for plain ``peft``."""
        if self.trainer.is_global_zero:
            path = self.run_dir / "adapter"
            aside = free_name(path)
            files = trained_files(self, self.base_fingerprint)
            self.policy.save_adapter(path, extra_files=files, keep_other=True)
            rank_zero_info(f"adapter written to {path}{set_aside_measured(self.run_dir, aside)}")
        self._hearing.close()
        SignalConnector.of(self.trainer).training_ends()

    def _save_terminated(self) -> None:
        path = self.run_dir / TERMINATED
        self.trainer.save_checkpoint(path)
        name = name_of(SignalConnector.of(self.trainer).agreed)
        if self.trainer.is_global_zero:  # no warning, which may be switched off
            line = f"lovec: ended by {name} after step {self.global_step}; resume with --ckpt_path {path}"
            print(line, file=sys.stderr, flush=True)


def _take_back(loop: Any) -> None:
    """Count the batch under way of Lightning's loop as not begun, so that a run that goes on begins with it."""
    progress = loop.batch_progress
    for part in (progress.total, progress.current):
        part.ready = part.processed = part.completed
        # As many begun as ready would mean that the last thing that was saved is the end of a validation or a step.
        part.started = part.completed + 1
    loop._batches_that_stepped -= 1  # Lightning adds 1 when it goes on, for the step that it believes to be saved


def ratings(row: Record, scale: Scale = DEFAULT_SCALE) -> list[int]:
    """Return the true score of every sentence of a row on a confidence scale.

    Raises:
        LovecError: a sentence has no label.
    """
    if not row.labelled:
        raise LovecError(f"{row.id}: a sentence has no factuality (or there is none); leave such rows out of training")
    return [scale.nearest(s.factuality) for s in row.sentences if s.factuality is not None]
