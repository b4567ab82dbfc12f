"""What a training costs: how much work it consists of, and how long that takes here."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import Callback, Timer
from lightning.pytorch.trainer.states import TrainerFn

from lovec.callbacks import Probe
from lovec.callbacks.estimate import PROBE, VALIDATION, Left, RunEstimate, due_before, validations_before
from lovec.callbacks.progress import planned_batches
from lovec.core.progress import Activity, doing, rounded_time
from lovec.core.randomness import seeded
from lovec.evaluation.processes import barrier
from lovec.evaluation.stopping import SignalConnector
from lovec.modules.batching import Batch
from lovec.modules.distributed import without_sync
from lovec.types import ITERATIVE, Record

_SAMPLED = 256  # records whose lengths stand for those of all


class RunCosts(Callback):
    """Measures a training of a module, and knows what is left of it: of the run, a step or a validation.

    Args:
        module: the ``PolicyModule`` that is trained.

    Attributes:
        estimate: what was measured.
        begun: whether a training has begun; one that has no step left does not.
    """

    def __init__(self, module: Any) -> None:
        self.estimate = RunEstimate()
        self.begun = False
        self._module = module
        self._batch_work = self._validation_work = 0.0
        self._first = self._records = 0
        self._validating = ExitStack()
        self._validation: Activity | None = None

    def on_train_start(self, trainer: Trainer, pl_module: Any) -> None:
        """Find out how much work a step and a validation are on average, and begin to measure."""
        self.begun = True
        self._first = trainer.fit_loop.epoch_loop.total_batch_idx + 1
        data: Any = getattr(trainer, "datamodule", None)
        if hasattr(data, "loaded") and len(rows := data.loaded("train")):
            some = _some(rows)
            share = len(rows) / data.train_batches() / trainer.world_size
            self._batch_work = self._module.work(some) / len(some) * share
        validated = data.validated() if hasattr(data, "validated") else ()
        self._records = len(range(trainer.global_rank, len(validated), trainer.world_size))
        if self._records and ITERATIVE in self._module.evaluator.modes:
            self._validation_work = self._records * statistics.fmean(map(length_of, _some(validated)))
        self.estimate.steps_begin()

    @contextmanager
    def step(self, rows: Sequence[Record]) -> Iterator[None]:
        """Measure a step on some rows inside the block."""
        work = self._module.work(rows)
        SignalConnector.of(self._module.trainer).expected = lambda: self.estimate.step_left(work)
        self.estimate.step_begins()
        yield
        self.estimate.step_ends(work)

    def on_validation_start(self, trainer: Trainer, pl_module: Any) -> None:
        """Begin to measure a validation within training, and to speak of it."""
        if trainer.state.fn == TrainerFn.FITTING and not trainer.sanity_checking:
            SignalConnector.of(trainer).expected = lambda: self.estimate.aside_left(VALIDATION)
            self._validation = self._validating.enter_context(doing("validation", self._records or None, "records"))
            self._validating.enter_context(self.estimate.aside(VALIDATION))

    def on_validation_batch_end(self, trainer: Trainer, pl_module: Any, outputs: Any, batch: Any, *place: Any) -> None:
        """Count the records as measured."""
        if self._validation is not None:
            self._validation.advance(len(batch))

    def on_validation_end(self, trainer: Trainer, pl_module: Any) -> None:
        """Count the time of a validation within training."""
        self._validating.close()
        self._validation = None

    def on_exception(self, trainer: Trainer, pl_module: Any, exception: BaseException) -> None:
        """Speak no more of a validation that does not go on."""
        self._validating.close()

    def left(self, done: int) -> Left:
        """Return what is left to do after so many batches, those of earlier parts of the run included."""
        total = self._total(done)
        if math.isinf(total):
            return Left(math.inf, {})
        return Left((total - done) * self._batch_work, self._counts_left(int(total)))

    def seconds_left(self, done: int) -> float | None:
        """Return how long the rest takes after so many batches; None where it is not known.

        It is at most what ``trainer.max_time`` leaves.
        """
        self._guess_validation()
        left = self.left(done)
        planned = None if math.isinf(left.work) or not self._batch_work else self.estimate.left(left)
        known = [seconds for seconds in (planned, self._time_remaining()) if seconds is not None]
        return min(known, default=None)

    def _total(self, done: int) -> float:
        """Return after how many batches the training ends, of those that ``trainer.max_time`` has time for."""
        planned = planned_batches(self._module.trainer, self._module.updates_per_batch)
        each = (self.estimate.rate or 0.0) * self._batch_work
        rest = self._time_remaining()
        return planned if rest is None or not each else min(planned, done + math.ceil(rest / each))

    def _time_remaining(self) -> float | None:
        """Return the seconds that are left of ``trainer.max_time``; None where there is no such limit."""
        timers = (callback for callback in self._module.trainer.callbacks if isinstance(callback, Timer))
        known = [rest for timer in timers if (rest := timer.time_remaining()) is not None]
        return max(0.0, min(known)) if known else None

    def summary(self, done: int) -> str:
        """Return how long the whole run takes, and what of, after so many batches."""
        left, total, seconds = self.seconds_left(done), self._total(done), self.estimate.seconds
        if math.isinf(total):  # nothing but its end is known
            return f"about {rounded_time(seconds + (left or 0.0))}"
        return self.estimate.summary(self.left(done), int(total) - self._first, left)

    def trial(self, rows: Sequence[Record]) -> None:
        """Measure how long one row takes, for what has to be decided before the first step; nothing is learned."""
        module, trainer = self._module, self._module.trainer
        row = sorted(rows, key=length_of)[len(rows) // 2 :][:1]
        names = module.own_names()
        own = {name: value.clone() for name, value in module.named_buffers() if name in names}
        for _ in range(2):  # the first time, memory is taken and kernels are chosen
            begin = time.monotonic()
            with (
                doing("measuring how long a step takes"),
                seeded(module.seed, module.global_step, module.global_rank),
                trainer.precision_plugin.train_step_context(),
                module.policy.without_casts(),
            ):
                examples = next(iter(module.update_batches(row)), ())
                barrier(trainer)  # scores of its own take each process another number of passes
                if not examples:
                    return
                with without_sync(trainer):
                    out = module.loss(Batch.of(examples, module.device))
                    module.manual_backward(module._total(out, module.counts(examples)))
            for parameter in module.trained_parameters():
                parameter.grad = None
            for name, value in own.items():
                module.get_buffer(name).copy_(value)
            self.estimate.rate_guess = (time.monotonic() - begin) / module.work(row)

    def _counts_left(self, total: int) -> dict[str, int]:
        trainer, module = self._module.trainer, self._module
        probe = next((callback for callback in trainer.callbacks if isinstance(callback, Probe)), None)
        every = 0 if probe is None or not module.probes else probe.every
        planned = {
            VALIDATION: validations_before(trainer, total) - validations_before(trainer, self._first),
            PROBE: due_before(total, every) - due_before(self._first, every),
        }
        return {kind: max(0, number - self.estimate.done(kind)) for kind, number in planned.items()}

    def _guess_validation(self) -> None:
        """Guess how long a validation takes: given texts as a step on them, written ones by the last probe.

        Rows that are written together take the longer the more they are, about as the square root of their number.
        """
        module = self._module
        guess = (self.estimate.rate or 0.0) * self._validation_work
        if any(mode != ITERATIVE for mode in module.evaluator.modes):
            records, rows = self._records, module.evaluation.rows
            questions = next((c.questions for c in module.trainer.callbacks if isinstance(c, Probe)), 1)
            several = math.sqrt(max(1, min(records, rows)) / questions)
            guess += self.estimate.each(PROBE) * -(-records // rows) * several
        self.estimate.guesses[VALIDATION] = guess


def _some(rows: Sequence[Record]) -> list[Record]:
    """Return rows from all over some rows, which may be many and in a file; all of them where they are few."""
    count = min(_SAMPLED, len(rows))
    return [rows[number * len(rows) // count] for number in range(count)]


def length_of(row: Record) -> int:
    """Return the number of characters of a record's question and sentences, and once more those that are rejected."""
    answer = sum(len(sentence.text) for sentence in row.sentences)
    return len(row.question) + answer * (1 if row.rejected is None else 2)
