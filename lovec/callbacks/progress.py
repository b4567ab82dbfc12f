"""How far a run is, on one line of a terminal or as lines of a log."""

from __future__ import annotations

import math
import shutil
import sys
import time
from collections.abc import Iterator
from typing import Any

from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import ProgressBar

from lovec.metrics.table import metric_info
from lovec.types import check_range

_NARROWEST = 80
_EVERY_ON_TERMINAL = 0.2


class ProgressLine(ProgressBar):
    """Shows how far training, validation, test or prediction is, on standard error.

    On a terminal it is a single line that fits its width; elsewhere, as in the log of a batch job, a line is written
    every half minute, so that a run that is at work is told from one that hangs. The commands use it; in Python, give
    it to the trainer: ``Trainer(callbacks=[ProgressLine()])``. Of several processes, the first one writes.

    Args:
        every: seconds from one line to the next where there is no terminal; 0 writes one after every batch.

    Raises:
        LovecError: the option is out of range.
    """

    def __init__(self, every: float = 30.0) -> None:
        check_range("every of ProgressLine", every, at_least=0)
        super().__init__()
        self.every = every
        self._shown = True
        self._stage = ""
        self._before = 0
        self._begin = self._printed = 0.0

    def enable(self) -> None:
        """Write lines."""
        self._shown = True

    def disable(self) -> None:
        """Write no lines."""
        self._shown = False

    def print(self, *args: Any, **kwargs: Any) -> None:
        """Print something on standard error, on a line of its own."""
        if self._shown:
            self._clear()
            print(*args, **{"file": sys.stderr, **kwargs})

    # Lightning's hooks

    def on_train_start(self, trainer: Trainer, pl_module: Any) -> None:
        """Say what is trained, and start the clock."""
        weights, learning = _weights(pl_module)
        if weights:
            share = f"{learning / weights:.2%} of {_rounded(weights)}"
            self.print(f"lovec: {type(pl_module).__name__} trains {_rounded(learning)} weights ({share})")
        self._start("train", trainer.fit_loop.epoch_loop.total_batch_idx + 1)

    def on_train_batch_end(self, trainer: Trainer, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Show the number of the batch, and what the objective shows of it, with the direction that is better."""
        epochs = trainer.max_epochs or 1
        total = self.total_train_batches * max(epochs, 1)
        if trainer.max_steps > 0:
            total = min(total, trainer.max_steps)
        done = trainer.fit_loop.epoch_loop.total_batch_idx + 1
        shown = "".join(f", {part}" for part in learned(trainer))
        if epochs > 1:
            shown += f", epoch {trainer.current_epoch + 1} of {epochs}"
        self._show("train", done, total, shown)

    def on_train_end(self, trainer: Trainer, pl_module: Any) -> None:
        """End the line."""
        self._clear()

    def on_validation_start(self, trainer: Trainer, pl_module: Any) -> None:
        """Start the clock of a validation by itself; one within a training does not stop that of the training."""
        if trainer.state.fn != "fit":
            self._start("validate")

    def on_validation_batch_end(self, trainer: Trainer, pl_module: Any, outputs: Any, *place: Any) -> None:
        """Show the number of the batch."""
        self._evaluated("validate", trainer.num_val_batches, place)

    def on_validation_end(self, trainer: Trainer, pl_module: Any) -> None:
        """End the line."""
        self._clear()

    def on_test_start(self, trainer: Trainer, pl_module: Any) -> None:
        """Start the clock."""
        self._start("test")

    def on_test_batch_end(self, trainer: Trainer, pl_module: Any, outputs: Any, *place: Any) -> None:
        """Show the number of the batch."""
        self._evaluated("test", trainer.num_test_batches, place)

    def on_test_epoch_end(self, trainer: Trainer, pl_module: Any) -> None:
        """Say what comes between the last batch and the results."""
        if time.monotonic() - self._begin > self.every:
            self.print("lovec: all test records are tagged; what the method is compared with is measured now")

    def on_test_end(self, trainer: Trainer, pl_module: Any) -> None:
        """End the line."""
        self._clear()

    def on_predict_start(self, trainer: Trainer, pl_module: Any) -> None:
        """Start the clock."""
        self._start("predict")

    def on_predict_batch_end(self, trainer: Trainer, pl_module: Any, outputs: Any, *place: Any) -> None:
        """Show the number of the batch."""
        self._evaluated("predict", trainer.num_predict_batches, place)

    def on_predict_end(self, trainer: Trainer, pl_module: Any) -> None:
        """End the line."""
        self._clear()

    def on_exception(self, trainer: Trainer, pl_module: Any, exception: BaseException) -> None:
        """Leave the line to what is said about the end."""
        self._clear()

    # The line

    def _start(self, stage: str, before: int = 0) -> None:
        self._stage, self._before = stage, before
        self._begin = self._printed = time.monotonic()

    def _evaluated(self, stage: str, batches: Any, place: tuple[Any, ...]) -> None:
        """Show the progress of a loop over one or several loaders; ``place`` ends with numbers of batch and loader."""
        batches = batches if isinstance(batches, list) else [batches]
        loader = place[2] if len(place) > 2 else 0
        self._show(stage, sum(batches[:loader]) + place[1] + 1, sum(batches))

    def _show(self, stage: str, done: int, total: float, more: str = "") -> None:
        """Write the line if the last one is old enough."""
        terminal, now = sys.stderr.isatty(), time.monotonic()
        if not self._shown or now - self._printed < (_EVERY_ON_TERMINAL if terminal else self.every):
            return
        self._printed = now
        here = done - self._before if stage == self._stage else 0
        line = progress_line(stage, done, total, now - self._begin, here, more)
        if terminal:  # the cursor goes back to the beginning, so that a warning replaces the line
            line = line[: max(_NARROWEST, shutil.get_terminal_size().columns) - 1]
            print(f"\r{line}\033[K\r", end="", file=sys.stderr, flush=True)
        else:
            print(f"lovec: {line}", file=sys.stderr, flush=True)

    def _clear(self) -> None:
        if self._shown and sys.stderr.isatty():
            print("\r\033[K", end="", file=sys.stderr, flush=True)


def progress_line(stage: str, done: int, total: float, seconds: float, here: int, more: str = "") -> str:
    """Return one line of progress.

    Args:
        stage: what is being done, in a word.
        done: number of batches that are done, those of an earlier part of a resumed run included.
        total: number of all batches; infinite where it is not known.
        seconds: time since this process began with them.
        here: number of batches that this process has done in that time; 0 gives no estimate of the rest.
        more: text behind the numbers.
    """
    parts = [f"{stage} {done}{'' if math.isinf(total) else f'/{total:.0f}'}{more}", clock(seconds)]
    if here > 0 and not math.isinf(total) and total > done:
        parts.append(f"{clock((total - done) * seconds / here)} left")
    return ", ".join(parts)


def clock(seconds: float) -> str:
    """Return a time as ``0:07``, ``12:30`` or ``3:00:05``, hours first where there are some."""
    whole = round(seconds)
    minutes, rest = divmod(whole, 60)
    return f"{minutes // 60}:{minutes % 60:02}:{rest:02}" if minutes >= 60 else f"{minutes}:{rest:02}"


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
