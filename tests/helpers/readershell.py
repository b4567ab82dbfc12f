"""A shell that runs the code blocks of pages as a reader would, and remembers every command of lovec and python.

Commands are processes of their own (``Shell(warm=False)``), or forks of this process, which has everything loaded
(``warm=True``): the shell, its loops, pipes and background jobs are the same.
"""

from __future__ import annotations

import json
import os
import runpy
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from forks import Fork

COMMANDS = ("lovec", "python")

LOADED = (
    "lovec.baselines lovec.calibration lovec.callbacks lovec.datamodules lovec.engines lovec.evaluation "
    "lovec.export.exporting lovec.labelling lovec.modules lovec.oracles lovec.reports lovec.tagging lovec.cli.training "
    "lovec.cli.agreement lovec.cli.calibrate_run lovec.cli.curves lovec.cli.export lovec.cli.join lovec.cli.label "
    "lovec.cli.report lovec.cli.score lovec.cli.tag matplotlib.figure scipy.optimize scipy.stats "
    "transformers.models.llama.modeling_llama peft lightning.pytorch.loggers"
).split()
"""Modules that commands import; forks have them from the beginning."""

SHIM = """#!{python} -IS
import json, os, signal, socket, subprocess, sys, time
name, begin = os.path.basename(sys.argv[0]), time.time()
address = os.environ.get("READER_SOCKET")
if address:
    asked = socket.socket(socket.AF_UNIX)
    asked.connect(address)
    message = json.dumps([name, sys.argv[1:], os.getcwd(), dict(os.environ)]).encode()
    asked.sendall(len(message).to_bytes(8, "big"))
    socket.send_fds(asked, [b"x"], [0, 1, 2])
    asked.sendall(message)
    code = int(asked.makefile().read() or 70)
else:
    real = json.loads(os.environ["READER_COMMANDS"])[name]
    child = subprocess.Popen([*real, *sys.argv[1:]])
    signal.signal(signal.SIGTERM, lambda *_: child.terminate())
    code = child.wait()
record = dict(name=name, words=sys.argv[1:], code=code, seconds=round(time.time() - begin, 3))
with open(os.environ["READER_LOG"], "a") as log:
    log.write(json.dumps(record) + "\\n")
sys.exit(code if code >= 0 else 128 - code)
"""


@dataclass(frozen=True)
class Ran:
    """A command of lovec or python that has ended: its name, the words behind it, its exit code and wall seconds."""

    name: str
    words: list[str]
    code: int
    seconds: float


class Shell:
    """Runs scripts in a folder; a context manager, at whose end all background jobs are killed.

    Attributes:
        printed: standard output and standard error of the last script.
    """

    def __init__(
        self, folder: Path, warm: bool, rewrite: Callable[[list[str]], list[str] | None] | None = None
    ) -> None:
        """Prepare the shell.

        Args:
            folder: where scripts run.
            warm: whether commands are forks of this process.
            rewrite: gets the words of a command of lovec and returns those to run; None succeeds without running
                anything. It needs ``warm``.
        """
        self.folder, self.warm, self.rewrite = folder, warm, rewrite
        self.printed = ""
        self._home = Path(tempfile.mkdtemp(prefix="reader-"))  # a short path: those of sockets have a limit
        self._groups: list[int] = []
        self._servers: list[int] = []

    def __enter__(self) -> Shell:
        for name in COMMANDS:
            shim = self._home / "bin" / name
            shim.parent.mkdir(exist_ok=True)
            shim.write_text(SHIM.format(python=sys.executable))
            shim.chmod(0o755)
        self._log = self._home / "log"
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(self._home / "socket"))
        self._listener.listen(16)
        real = {"lovec": [sys.executable, "-m", "lovec.cli"], "python": [sys.executable]}
        self._environment = {
            **os.environ,
            "PATH": f"{self._home / 'bin'}:{os.environ['PATH']}",
            "PYTHONPATH": os.pathsep.join(p for p in sys.path if p),
            "READER_LOG": str(self._log),
            "READER_COMMANDS": json.dumps(real),
            "NO_COLOR": "1",
        }
        if self.warm:
            for module in LOADED:
                import_module(module)
            self._environment["READER_SOCKET"] = str(self._home / "socket")
        return self

    def __exit__(self, *_: object) -> None:
        for group in self._groups:
            try:
                os.killpg(group, signal.SIGKILL)
            except ProcessLookupError:
                pass
        for pid in self._servers:
            os.waitpid(pid, 0)
        self._listener.close()
        shutil.rmtree(self._home, ignore_errors=True)

    def run(self, script: str, limit: float = 1800.0) -> tuple[int, list[Ran]]:
        """Run a script to its end; return the code of its last failure, or 0, and the commands that ran.

        Args:
            script: text for bash.
            limit: seconds after which it is killed.
        """
        self._log.write_text("")
        with tempfile.TemporaryFile("w+") as output:
            whole = f"trap 'failed=$?' ERR\n{script}\nexit ${{failed:-0}}"
            shell = subprocess.Popen(
                ["bash", "-c", whole], cwd=self.folder, env=self._environment, stdin=subprocess.DEVNULL,
                stdout=output, stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip
            self._groups.append(shell.pid)
            self._serve(shell, time.monotonic() + limit)
            output.seek(0)
            self.printed = output.read()
        return shell.wait(), [Ran(**json.loads(line)) for line in self._log.read_text().splitlines()]

    def _serve(self, shell: subprocess.Popen[bytes], end: float) -> None:
        """Fork for every command that a script asks for, until the script has ended."""
        running: list[tuple[int, socket.socket]] = []
        while shell.poll() is None:
            if time.monotonic() > end:
                os.killpg(shell.pid, signal.SIGKILL)
            if select.select([self._listener], [], [], 0.01)[0]:
                running.append(self._fork(self._listener.accept()[0]))
            for pid, asked in list(running):
                done, status = os.waitpid(pid, os.WNOHANG)
                if done:
                    running.remove((pid, asked))
                    asked.sendall(str(os.waitstatus_to_exitcode(status)).encode())
                    asked.shutdown(socket.SHUT_RDWR)  # forks that still run have copies of it
                    asked.close()
        self._servers += [pid for pid, _ in running]  # in the background
        self._groups += self._servers

    def _fork(self, asked: socket.socket) -> tuple[int, socket.socket]:
        size = int.from_bytes(asked.recv(8, socket.MSG_WAITALL), "big")
        _, descriptors, _, _ = socket.recv_fds(asked, 1, 3)
        name, words, folder, environment = json.loads(asked.recv(size, socket.MSG_WAITALL))
        pid = os.fork()
        if pid == 0:
            os.setpgid(0, 0)
            self._command(name, words, folder, environment, descriptors)
        for descriptor in descriptors:
            os.close(descriptor)
        return pid, asked

    def _command(
        self, name: str, words: list[str], folder: str, environment: dict[str, str], descriptors: Sequence[int]
    ) -> None:
        """Run a command in a fork that has just begun, and end it."""

        def work() -> Any:
            os.chdir(folder)
            os.environ.clear()
            os.environ.update(environment)
            sys.stdin = open(0, closefd=False)
            sys.path.insert(0, folder)
            if name == "python":
                sys.argv = words
                runpy.run_path(words[0], run_name="__main__")
                return 0
            from lovec.cli import main

            chosen = self.rewrite(words) if self.rewrite else words
            return 0 if chosen is None else main(chosen)

        os.dup2(descriptors[0], 0)
        Fork.become(work, descriptors[1], descriptors[2])
