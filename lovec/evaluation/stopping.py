"""Signals that end a run of the trainer: training stops after a step, on every process at once."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from lightning.pytorch import Trainer
from lightning.pytorch.trainer.connectors.signal_connector import _SignalConnector

from lovec.evaluation.processes import meet
from lovec.signals import SIGNALS, Terminated

TERMINATED = "terminated.ckpt"
"""Name of the checkpoint that is written after a signal, in the folder of the run."""

_SAME = 1.0  # seconds; signals that are no further apart are one, which torchrun and SLURM have passed on
_GRACE = 20.0  # seconds that the other processes of this machine have to end


class SignalConnector(_SignalConnector):
    """Handles SIGTERM, SIGHUP and SIGUSR1 for a trainer, in SLURM's jobs too.

    Lightning's own handler makes the processes talk to each other while it handles the signal, whatever they were
    saying before: two processes that both get SIGTERM wait for each other for ever. On SIGUSR1 in a job of SLURM it
    would save a checkpoint in the middle of a step. Here a signal is only noted, and said to be, while
    the model is trained. The processes agree on it at the end of a step, where all of them are at the same place. A
    second signal ends the process at once, and so does the first one at other times, when there is nothing to save.

    Attributes:
        agreed: number of the signal that ends training; 0 if there is none.
    """

    def __init__(self, trainer: Trainer) -> None:
        super().__init__(trainer)
        self.agreed = 0
        self._noted = 0
        self._noted_at = 0.0
        self._training = False
        self._children: list[subprocess.Popen[bytes]] = []

    @classmethod
    def of(cls, trainer: Any) -> SignalConnector:
        """Return the connector of a trainer, which gets one at the first call."""
        if not isinstance(trainer._signal_connector, cls):
            trainer._signal_connector = cls(trainer)
        connector: SignalConnector = trainer._signal_connector
        return connector

    def register_signal_handlers(self) -> None:
        """Replace Lightning's handlers of these signals; a signal that is ignored stays ignored."""
        super().register_signal_handlers()
        for number in SIGNALS:
            ignored = self._original_handlers[number] is signal.SIG_IGN
            self._register_signal(number, signal.SIG_IGN if ignored else self._handle)

    def training_begins(self) -> None:
        """Note signals from now on, and go on."""
        self.agreed = self._noted = 0
        self._training = True

    def training_ends(self) -> None:
        """End the process at a signal, from now on.

        Raises:
            Terminated: a signal came after the last step.
        """
        self._training = False
        if self._noted:
            raise Terminated.by(self._noted)

    def agree(self) -> bool:
        """Return whether a process has got a signal, the same on every process. Every process must call it."""
        self.agreed = self._noted
        if self.trainer.world_size > 1:
            meet(self.trainer)
            noted = torch.tensor(self._noted, device=self.trainer.strategy.root_device)
            dist.all_reduce(noted, op=dist.ReduceOp.MAX)
            self.agreed = int(noted)
        return bool(self.agreed)

    def end_if_agreed(self) -> None:
        """End the process if the processes have agreed on a signal.

        Raises:
            Terminated: they have.
        """
        if self.agreed:
            self._take_children()
            stop = Terminated.by(self.agreed)
            stop.announced = True
            raise stop

    def teardown(self) -> None:
        """Restore the earlier handlers; at the end by a signal, wait for the processes that this one has started."""
        super().teardown()
        stop = sys.exc_info()[1]
        if not isinstance(stop, Terminated):
            return
        self._take_children()
        for child in self._children:
            if not self.agreed and child.poll() is None:
                child.send_signal(stop.number)
        deadline = time.monotonic() + _GRACE
        for child in self._children:
            try:
                child.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                child.kill()

    def _handle(self, number: int, frame: Any) -> None:
        if self._training:
            now = time.monotonic()
            if not self._noted:
                self._noted, self._noted_at = number, now
                self._announce(number)
            elif not self.agreed and now - self._noted_at > _SAME:  # else the checkpoint is being written
                raise Terminated.by(number)
            return
        earlier = self._original_handlers.get(number)
        if not callable(earlier):
            raise Terminated.by(number)
        earlier(number, frame)  # that of the command, or one of a user's own

    def _announce(self, number: int) -> None:
        """Say what a signal will lead to; to the descriptor itself, since a handler may interrupt a ``print``."""
        if self.trainer.is_global_zero:
            path = Path(self.trainer.default_root_dir, TERMINATED)
            line = f"lovec: {signal.Signals(number).name}: training stops after this step, and is saved to {path}; a "
            line += "second signal ends it at once, without saving\n"
            os.write(2, ("\r\033[K" if os.isatty(2) else "").encode() + line.encode(errors="replace"))

    def _take_children(self) -> None:
        """Take over the processes that Lightning has started: it kills this one when one of them ends with an error."""
        started = getattr(self.trainer.strategy.launcher, "procs", [])
        self._children += started
        started.clear()
