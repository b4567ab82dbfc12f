"""A training that a signal ends: it is saved as of its last step, and goes on bit for bit."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.trainer.states import TrainerFn

from lovec.core.files import free_name
from lovec.evaluation.stopping import TERMINATED, SignalConnector, StepDropped, name_of


class EndBySignal(Callback):
    """Saves a training after SIGTERM, SIGHUP, SIGUSR1 or Ctrl-C as ``terminated.ckpt``, and ends it.

    What it saves must hold what all other callbacks know of the last step, so it comes after them, ``ModelCheckpoint``
    included; ``PolicyModule`` sees to that. What takes long is not waited for, see ``droppable``.
    """

    def __init__(self) -> None:
        self._hearing = ExitStack()

    def on_fit_start(self, trainer: Trainer, pl_module: Any) -> None:
        """Keep the checkpoint with which an earlier run was stopped, unless this one goes on from a checkpoint."""
        path = _checkpoint(trainer)
        if trainer.is_global_zero and trainer.ckpt_path is None and path.exists():
            path.rename(free_name(path))

    def on_train_start(self, trainer: Trainer, pl_module: Any) -> None:
        """Let signals wait for the end of a step, unless it takes long."""
        SignalConnector.of(trainer).training_begins()
        self._hearing.enter_context(hearing_signals(pl_module.policy.model))

    def on_train_batch_end(self, trainer: Trainer, pl_module: Any, *args: Any) -> None:
        """After a signal to any process, write a checkpoint; the run ends at the next of the hooks below.

        Where a validation comes next, it is written as that begins: one that is written here would say that the
        validation was done.
        """
        if SignalConnector.of(trainer).agree() and not _validation_follows(trainer):
            _save(trainer)

    def on_train_batch_start(self, trainer: Trainer, pl_module: Any, batch: Any, batch_idx: int) -> None:
        """End the run after a signal; what the last step logged is written by now."""
        SignalConnector.of(trainer).end_if_agreed()
        total: Any = trainer.fit_loop.epoch_loop.batch_progress.total
        total.started = total.ready - 1  # a run that goes on after a dropped step has counted that one

    def on_train_epoch_end(self, trainer: Trainer, pl_module: Any) -> None:
        """End the run after a signal."""
        SignalConnector.of(trainer).end_if_agreed()

    def on_validation_start(self, trainer: Trainer, pl_module: Any) -> None:
        """After a signal, write a checkpoint from which a run goes on with this validation, and end the run."""
        if trainer.state.fn == TrainerFn.FITTING and not trainer.sanity_checking:
            if SignalConnector.of(trainer).agreed:
                _end_before_validation(trainer)
            total: Any = trainer.fit_loop.epoch_loop.val_loop.batch_progress.total
            total.ready = total.started = total.processed = total.completed  # one that was put off has counted a batch

    def on_validation_batch_end(self, trainer: Trainer, pl_module: Any, *args: Any) -> None:
        """After a signal during a validation within training, write a checkpoint as of the last step, and end."""
        fitting = trainer.state.fn == TrainerFn.FITTING and not trainer.sanity_checking
        if fitting and SignalConnector.of(trainer).agree():
            _end_before_validation(trainer)

    def on_train_end(self, trainer: Trainer, pl_module: Any) -> None:
        """End the process at a signal, from now on, and after one that came since the last step."""
        self._hearing.close()
        SignalConnector.of(trainer).training_ends()

    def on_exception(self, trainer: Trainer, pl_module: Any, exception: BaseException) -> None:
        """Leave the model as it was."""
        self._hearing.close()


@contextmanager
def droppable(trainer: Any) -> Iterator[None]:
    """Let a signal end what is done inside the block, and save the run as it was before the step under way.

    What is done may change nothing that a checkpoint holds, up to the optimiser's step.
    """
    signals = SignalConnector.of(trainer)
    try:
        with signals.droppable():
            yield
    except StepDropped:
        signals.dropped()
        if trainer.validating:
            _end_before_validation(trainer)
        else:
            _take_back(trainer.fit_loop.epoch_loop)
            _save(trainer)
            signals.end_if_agreed()


@contextmanager
def hearing_signals(model: Any) -> Iterator[None]:
    """Let Python handle signals between two layers of a backward pass on a CPU, inside the block.

    It calls handlers between two of its own instructions only, and a backward pass of minutes has none. Gradients on a
    GPU are computed by a thread that handles no signals.

    Args:
        model: the transformers model; without layers where those of Llama are, nothing changes.
    """

    def after(layer: Any, arguments: Any, output: Any) -> None:
        states = output[0] if isinstance(output, tuple) else output
        if isinstance(states, torch.Tensor) and states.requires_grad and states.device.type == "cpu":
            states.register_hook(_let_handlers_run)  # type: ignore[no-untyped-call]

    layers = getattr(model.get_decoder(), "layers", None) or []
    handles = [layer.register_forward_hook(after) for layer in layers]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _let_handlers_run(gradient: torch.Tensor) -> None:
    """Do nothing; handlers of signals that have come are called before this."""


def _checkpoint(trainer: Any) -> Path:
    return Path(trainer.default_root_dir, TERMINATED)


def _save(trainer: Any) -> None:
    path = _checkpoint(trainer)
    trainer.save_checkpoint(path)
    name = name_of(SignalConnector.of(trainer).agreed)
    if trainer.is_global_zero:  # no warning, which may be switched off
        line = f"lovec: ended by {name} after step {trainer.global_step}; resume with --ckpt_path {path}"
        print(line, file=sys.stderr, flush=True)


def _validation_follows(trainer: Any) -> bool:
    """Return whether a validation begins after the batch that ends."""
    loop = trainer.fit_loop.epoch_loop
    return not loop.val_loop.skip and loop._should_check_val_fx(trainer.fit_loop._data_fetcher)


def _end_before_validation(trainer: Any) -> None:
    """Write a checkpoint from which a run goes on with the validation under way, from its first record; end the run.

    Nothing is counted of the validation but that it has begun. One that went on where it was would measure the wrong
    records: the loader begins anew. Where validations are due after an interval of time, Lightning counts that anew.
    """
    progress = trainer.fit_loop.epoch_loop.val_loop.batch_progress
    progress.reset()
    progress.total.ready = progress.total.started = 1  # how Lightning tells a validation that was not finished
    _save(trainer)
    SignalConnector.of(trainer).end_if_agreed()


def _take_back(loop: Any) -> None:
    """Count the batch under way of Lightning's loop as not begun, so that a run that goes on begins with it."""
    progress = loop.batch_progress
    for part in (progress.total, progress.current):
        part.ready = part.processed = part.completed
        # As many begun as ready would mean that the last thing that was saved is the end of a validation or a step.
        part.started = part.completed + 1
    loop._batches_that_stepped -= 1  # Lightning adds 1 when it goes on, for the step that it believes to be saved
