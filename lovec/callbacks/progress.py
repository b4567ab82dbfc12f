"""How far a run is, on one line of a terminal or as lines of a log."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import ProgressBar

from lovec.core.progress import EVERY, LINES, Heartbeat, clock, doing, is_quiet
from lovec.core.settings import NonNegative, checked
from lovec.metrics.table import metric_info

_WORTH_SAYING = 20.0  # seconds; how long a shorter training takes is not said


@checked("{} of {kind}")
class ProgressLine(ProgressBar):
    """Shows how far training, validation, test or prediction is, on standard error.

    On a terminal it is a single line that fits its width; elsewhere, as in the log of a batch job, a line is written
    every ten seconds, also while a single step takes minutes, so that a run that is at work is told from one that
    hangs. After the first steps a line says how long the training takes. The commands use it; in Python, give it to the
    trainer: ``Trainer(callbacks=[ProgressLine()])``. Of several processes, the first one writes.

    Args:
        every: seconds from one line to the next where there is no terminal; 0 writes one after every batch.

    Raises:
        LovecError: the option is out of range.
    """

    def __init__(self, every: NonNegative = EVERY) -> None:
        super().__init__()
        self.every = every
        self._shown = True
        self._stage = ""
        self._before = 0
        self._begin = time.monotonic()
        self._line: Callable[[float], str] = lambda now: ""
        self._summed_up = False
        self._open = ExitStack()

    def enable(self) -> None:
        """Write lines."""
        self._shown = True

    def disable(self) -> None:
        """Write no lines."""
        self._shown = False

    def print(self, *args: Any, **kwargs: Any) -> None:
        """Print something on standard error, on a line of its own."""
        if self._shown and not is_quiet():
            LINES.clear()
            print(*args, **{"file": sys.stderr, **kwargs})

    # Lightning's hooks

    def setup(self, trainer: Trainer, pl_module: Any, stage: str) -> None:
        """Begin to say what is done; other processes than the first one say nothing."""
        super().setup(trainer, pl_module, stage)
        self._open.close()
        self._stage, self._summed_up = "", False
        self._line = lambda now: ""
        LINES.restart()
        if self._shown:
            self._open.enter_context(doing(stage, text=lambda: self._line(time.monotonic())))
            if self.every > 0:
                self._open.enter_context(Heartbeat(self.every))

    def teardown(self, trainer: Trainer, pl_module: Any, stage: str) -> None:
        """End the lines."""
        self._open.close()

    def on_exception(self, trainer: Trainer, pl_module: Any, exception: BaseException) -> None:
        """Leave the line to what is said about the end."""
        self._open.close()
        self._clear()

    def on_train_start(self, trainer: Trainer, pl_module: Any) -> None:
        """Say what is trained, and start the clock."""
        weights, learning = _weights(pl_module)
        if weights:
            share = f"{learning / weights:.2%} of {_rounded(weights)}"
            self.print(f"lovec: {type(pl_module).__name__} trains {_rounded(learning)} weights ({share})")
        done = trainer.fit_loop.epoch_loop.total_batch_idx + 1
        self._start("train", done)

    def on_train_batch_end(self, trainer: Trainer, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Show the number of the batch, and what the objective shows of it, with the direction that is better.

        Once enough was measured, say how long the training takes.
        """
        total = self._total(trainer)
        done = trainer.fit_loop.epoch_loop.total_batch_idx + 1
        shown = "".join(f", {part}" for part in learned(trainer))
        if (trainer.max_epochs or 1) > 1:
            shown += f", epoch {trainer.current_epoch + 1} of {trainer.max_epochs}"
        costs: Any = getattr(pl_module, "costs", None)
        left = None if costs is None else costs.seconds_left(done)
        if left is not None and not self._summed_up and costs.estimate.settled:
            self._summed_up = True
            if costs.estimate.seconds + left > _WORTH_SAYING:
                self.print(f"lovec: {costs.summary(done)}")
        self._show("train", done, total, shown, left)

    def on_train_end(self, trainer: Trainer, pl_module: Any) -> None:
        """End the line; the ends of validation, test and prediction do the same."""
        self._clear()

    on_validation_end = on_test_end = on_predict_end = on_train_end

    def on_validation_start(self, trainer: Trainer, pl_module: Any) -> None:
        """Start the clock of a validation by itself; one within a training does not stop that of the training."""
        if trainer.state.fn != "fit":
            self._start("validate")

    def on_validation_batch_end(self, trainer: Trainer, pl_module: Any, outputs: Any, *place: Any) -> None:
        """Show the number of the batch."""
        if trainer.state.fn != "fit":  # within a training, the costs of the module speak of it
            self._evaluated("validate", trainer.num_val_batches, place)

    def on_test_start(self, trainer: Trainer, pl_module: Any) -> None:
        """Start the clock."""
        self._start("test")

    def on_test_batch_end(self, trainer: Trainer, pl_module: Any, outputs: Any, *place: Any) -> None:
        """Show the number of the batch."""
        self._evaluated("test", trainer.num_test_batches, place)

    def on_test_epoch_end(self, trainer: Trainer, pl_module: Any) -> None:
        """Say what comes between the last batch and the results."""
        self._line = lambda now: f"test, {clock(now - self._begin)}"
        if time.monotonic() - self._begin > self.every:
            self.print("lovec: all test records are tagged; what the method is compared with is measured now")

    def on_predict_start(self, trainer: Trainer, pl_module: Any) -> None:
        """Start the clock."""
        self._start("predict")

    def on_predict_batch_end(self, trainer: Trainer, pl_module: Any, outputs: Any, *place: Any) -> None:
        """Show the number of the batch."""
        self._evaluated("predict", trainer.num_predict_batches, place)

    # The line

    def _start(self, stage: str, before: int = 0) -> None:
        self._stage, self._before = stage, before
        self._begin = time.monotonic()
        self._line = lambda now: f"{stage}, {clock(now - self._begin)}"
        LINES.restart()

    def _total(self, trainer: Trainer) -> float:
        """Return the number of batches of a training; infinite where it is not known."""
        module: Any = trainer.lightning_module
        return planned_batches(trainer, getattr(module, "updates_per_batch", 1))

    def _evaluated(self, stage: str, batches: Any, place: tuple[Any, ...]) -> None:
        """Show the progress of a loop over one or several loaders; ``place`` ends with numbers of batch and loader."""
        batches = batches if isinstance(batches, list) else [batches]
        loader = place[2] if len(place) > 2 else 0
        self._show(stage, sum(batches[:loader]) + place[1] + 1, sum(batches))

    def _show(self, stage: str, done: int, total: float, more: str = "", left: float | None = None) -> None:
        """Set the line, and write it if the last one is old enough."""
        here = done - self._before if stage == self._stage else 0
        then = time.monotonic()

        def line(now: float) -> str:
            # Until the next batch has ended, its time runs down.
            rest = (total - done) * (then - self._begin) / here if left is None and here else left
            rest = None if rest is None else max(0.0, rest - (now - then))
            return progress_line(stage, done, total, now - self._begin, rest, more)

        self._line = line
        if self._shown and LINES.due(self.every):
            LINES.write(line(then))

    def _clear(self) -> None:
        if self._shown:
            LINES.clear()


def planned_batches(trainer: Any, updates_per_batch: int = 1) -> float:
    """Return the number of batches of a whole training, its earlier parts included; infinite where it is not known.

    Args:
        trainer: the Lightning trainer, whose loaders are set up.
        updates_per_batch: optimiser steps per batch, which ``trainer.max_steps`` counts.
    """
    epochs = math.inf if trainer.max_epochs in (-1, None) else trainer.max_epochs
    total = trainer.num_training_batches * epochs if epochs else 0.0
    return min(total, -(-trainer.max_steps // updates_per_batch)) if trainer.max_steps > 0 else total


def progress_line(
    stage: str, done: int, total: float, seconds: float, left: float | None = None, more: str = ""
) -> str:
    """Return one line of progress.

    Args:
        stage: what is being done, in a word.
        done: number of batches that are done, those of an earlier part of a resumed run included.
        total: number of all batches; infinite where it is not known.
        seconds: time since this process began with them.
        left: seconds that the rest takes; None where nothing is known about it.
        more: text behind the numbers.
    """
    parts = [f"{stage} {done}{'' if math.isinf(total) else f'/{total:.0f}'}{more}", clock(seconds)]
    if left is not None and not math.isinf(left) and (left or done < total):
        parts.append(f"{clock(left)} left")
    return ", ".join(parts)


def learned(trainer: Trainer) -> Iterator[str]:
    """Yield what the objective shows of the last batch, such as "loss 0.345 (lower is better)"."""
    for name, value in trainer.progress_bar_metrics.items():
        if isinstance(value, (int, float)):
            name = name.removeprefix("train/")
            better = metric_info(name).better
            yield f"{name} {value:.3g}" + (f" ({better} is better)" if better else "")


def _weights(module: Any) -> tuple[int, int]:
    """Return the number of weights of a module's model, and of those that learn."""
    parameters = [*module.parameters()]
    packed = (getattr(p, "quant_state", None) for p in parameters)  # several weights of 4 bits are one number
    sizes = [p.numel() if q is None else q.shape.numel() for p, q in zip(parameters, packed, strict=True)]
    return sum(sizes), sum(p.numel() for p in parameters if p.requires_grad)


def _rounded(number: int) -> str:
    for unit, name in ((1e9, " billion"), (1e6, " million")):
        if number >= unit:
            return f"{number / unit:.1f}{name}"
    return f"{number:,}"
