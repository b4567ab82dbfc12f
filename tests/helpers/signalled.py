"""Signals that a run of the trainer sends to itself, or waits for, at a place that does not depend on time."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

from lightning.pytorch.callbacks import Callback


class Signalled(Callback):
    """Sends a signal to its own process when a hook is called for the n-th time."""

    def __init__(self, hook: str, number: int, at: int = 1) -> None:
        self.left = at

        def called(*args: Any, **kwargs: Any) -> None:
            self.left -= 1
            if self.left == 0:
                os.kill(os.getpid(), number)

        setattr(self, hook, called)


class Insistent(Callback):
    """Sends SIGTERM twice before the first step, which takes a minute."""

    def on_train_batch_start(self, *args: Any) -> None:
        for seconds in (1.2, 60.0):
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(seconds)


class Stuck(Callback):
    """Sends a signal to its own process inside the model, which then takes a minute.

    Args:
        hook: name of the hook before it: that of a step, which may begin with a probe, or of a validation's batch.
        at: the hook's number, from 0.
        backward: whether it is in the backward pass.
        number: the signal.
    """

    def __init__(self, hook: str, at: int, backward: bool = False, number: int = 15) -> None:
        self.left, self.backward, self.number = at, backward, number
        setattr(self, hook, self.called)

    def called(self, trainer: Any, pl_module: Any, *args: Any) -> None:
        self.left -= 1
        if self.left == -1:
            layer = pl_module.policy.model.get_decoder().layers[0]
            layer.register_forward_hook(self.hang_later if self.backward else self.hang)

    def hang_later(self, layer: Any, arguments: Any, output: Any) -> None:
        states = output[0] if isinstance(output, tuple) else output
        states.register_hook(lambda gradient: self.hang())

    def hang(self, *args: Any) -> None:
        os.kill(os.getpid(), self.number)
        end = time.monotonic() + 60
        while time.monotonic() < end:
            time.sleep(0.1)


class Steps(Callback):
    """The first process says on standard output which step is done; each step takes some time."""

    def __init__(self, seconds: float = 0.0) -> None:
        self.seconds = seconds

    def on_train_batch_end(self, trainer: Any, *args: Any) -> None:
        if trainer.is_global_zero:
            print(f"step {trainer.global_step}", flush=True)
        time.sleep(self.seconds)
