"""Signals that end a run of the trainer: training stops after a step, on every process at once."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from lightning.pytorch import Trainer
from lightning.pytorch.trainer.connectors.signal_connector import _SignalConnector

from lovec.core.progress import rounded_time
from lovec.core.signals import SIGNALS, Terminated
from lovec.evaluation.processes import barrier

TERMINATED = "terminated.ckpt"
"""Name of the checkpoint that is written after a signal, in the folder of the run."""

_SAME = 1.0  # seconds; signals that are no further apart are one, which torchrun and SLURM have passed on
_GRACE = 20.0  # seconds that the other processes of this machine have to end
_PATIENCE = 10.0  # seconds that a step may still take after a signal; one that takes longer is dropped
_AGAIN = 0.5  # seconds from one attempt to drop it to the next


class StepDropped(Terminated):
    """A signal has ended a step, a probe or a validation before its end; what was learned before is to be saved."""


class SignalConnector(_SignalConnector):
    """Handles SIGTERM, SIGHUP and SIGUSR1 for a trainer, in SLURM's jobs too, and Ctrl-C while it trains.

    Lightning's own handler makes the processes talk to each other while it handles the signal, whatever they were
    saying before: two processes that both get SIGTERM wait for each other for ever. On SIGUSR1 in a job of SLURM it
    would save a checkpoint in the middle of a step. Here a signal is only noted, and said to be, while
    the model is trained. The processes agree on it at the end of a step, where all of them are at the same place. A
    second signal ends the process at once, and so does the first one at other times, when there is nothing to save.

    What would take more than some seconds is not waited for where there is a single process: ``StepDropped`` is raised
    inside ``droppable``. A thread listens for signals, because Python calls handlers between two of its own
    instructions only, and a backward pass may last minutes: the thread says at once what will happen.

    Attributes:
        agreed: number of the signal that ends training; 0 if there is none.
        expected: returns how many seconds what is under way still takes; None where it is not known.
    """

    def __init__(self, trainer: Trainer) -> None:
        super().__init__(trainer)
        self.agreed = 0
        self._noted = 0
        self._noted_at = 0.0
        self._training = False
        self._droppable = self._dropping = False
        self._ears: socket.socket | None = None
        self._mouth: socket.socket | None = None
        self._said = threading.Event()
        self._earlier_interrupt: Any = None
        self._earlier_wakeup = -1
        self.expected: Callable[[], float | None] = lambda: None
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
        self._droppable = self._dropping = False
        self._said.clear()
        self._training = True
        self._listen()

    def training_ends(self) -> None:
        """End the process at a signal, from now on.

        Raises:
            Terminated: a signal came after the last step.
        """
        self._training = False
        self._stop_listening()
        if self._noted:
            raise Terminated.by(self._noted)

    @contextmanager
    def droppable(self) -> Iterator[None]:
        """Let a signal raise ``StepDropped`` inside the block, until ``keep_step`` is called.

        Nothing that a checkpoint holds may change before that. With several processes nothing is raised: they agree at
        the end of a step.
        """
        self._droppable = self._training and self.trainer.world_size == 1
        try:
            yield
        finally:
            self._droppable = False

    def keep_step(self) -> None:
        """From now on the step under way is not dropped, since it changes what a checkpoint holds."""
        self._droppable = False

    def dropped(self) -> None:
        """After ``StepDropped``, agree with the signal, so that what was learned is saved."""
        self.agreed = self._noted

    def agree(self) -> bool:
        """Return whether a process has got a signal, the same on every process. Every process must call it."""
        self.agreed = self._noted
        if self.trainer.world_size > 1:
            barrier(self.trainer)
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
        self._stop_listening()
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
            if self._dropping:  # sent by the listening thread
                self._dropping = False
                if self._droppable:
                    self._droppable = False
                    raise StepDropped.by(self._noted)
            elif not self._noted:
                self._noted, self._noted_at = number, now
                if self._ears is None:
                    self._announce(number, None, False)
                else:
                    self._said.wait(1.0)
            elif not self.agreed and now - self._noted_at > _SAME:  # else the checkpoint is being written
                raise Terminated.by(number)
            return
        earlier = self._original_handlers.get(number)
        if not callable(earlier):
            raise Terminated.by(number)
        earlier(number, frame)  # that of the command, or one of a user's own

    def _listen(self) -> None:
        """Start the thread that hears signals at once, and handle Ctrl-C like them."""
        if self._ears is not None or threading.current_thread() is not threading.main_thread():
            return
        self._ears, self._mouth = socket.socketpair()
        self._mouth.setblocking(False)  # the interpreter writes the numbers of signals to it
        self._earlier_wakeup = signal.set_wakeup_fd(self._mouth.fileno(), warn_on_full_buffer=False)
        self._earlier_interrupt = signal.getsignal(signal.SIGINT)
        if self._earlier_interrupt is not signal.SIG_IGN:
            signal.signal(signal.SIGINT, self._handle)
        handled = {n for n in (*SIGNALS, signal.SIGINT) if signal.getsignal(n) == self._handle}
        threading.Thread(target=self._hear, args=(self._ears, handled), daemon=True, name="lovec-signals").start()

    def _stop_listening(self) -> None:
        if self._ears is None or self._mouth is None:
            return
        signal.set_wakeup_fd(self._earlier_wakeup)
        signal.signal(signal.SIGINT, self._earlier_interrupt)
        self._mouth.close()  # ends the thread
        self._ears = self._mouth = None

    def _hear(self, ears: socket.socket, handled: set[int]) -> None:
        """Announce the first signal, and have the main thread drop what takes too long after it."""
        heard, drop_at, long = 0, 0.0, False
        with ears:
            while True:
                try:
                    if not (numbers := ears.recv(64)):
                        return
                except TimeoutError:
                    numbers = b""
                for number in numbers:
                    if number in handled and not heard:
                        heard, left = number, self.expected()
                        long = self._droppable and left is not None and left > _PATIENCE
                        drop_at = time.monotonic() + (0.0 if long else _PATIENCE)
                        ears.settimeout(_AGAIN)
                        self._announce(number, left, long)
                        self._said.set()
                if heard and not self.agreed and self._noted and self._droppable and time.monotonic() >= drop_at:
                    if not long:
                        _say("lovec: that takes long, and is dropped; the run is saved as it was before\n")
                        long = True
                    self._dropping = True
                    signal.pthread_kill(threading.main_thread().ident or 0, heard)

    def _announce(self, number: int, left: float | None, dropped: bool) -> None:
        """Say what a signal will lead to.

        Args:
            number: the signal.
            left: seconds that what is under way still takes; None where it is not known.
            dropped: whether it is not waited for.
        """
        if not self.trainer.is_global_zero:
            return
        path = Path(self.trainer.default_root_dir, TERMINATED)
        soon = f", in about {rounded_time(left)}," if left is not None and left >= 1 else ","
        line = f"training stops after this step{soon} and is saved to {path}"
        if dropped and left is not None:
            line = f"what is under way would take about {rounded_time(left)} more, and is dropped; the run is saved as "
            line += f"it was before to {path}"
        _say(f"lovec: {name_of(number)}: {line}; a second signal ends it at once, without saving\n")

    def _take_children(self) -> None:
        """Take over the processes that Lightning has started: it kills this one when one of them ends with an error."""
        started = getattr(self.trainer.strategy.launcher, "procs", [])
        self._children += started
        started.clear()


def name_of(number: int) -> str:
    """Return what users call a signal."""
    return "Ctrl-C" if number == signal.SIGINT else signal.Signals(number).name


def _say(line: str) -> None:
    """Write a line on standard error: to the descriptor itself, since a handler may interrupt a ``print``."""
    os.write(2, ("\r\033[K" if os.isatty(2) else "").encode() + line.encode(errors="replace"))
