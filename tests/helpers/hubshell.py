"""A process in which the hub is at another address: it runs commands of lovec, one after the other.

The address is read when the client is imported, so it takes a new interpreter; one serves all tests of a file.
"""

from __future__ import annotations

import contextlib
import faulthandler
import io
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

LIMIT = 300.0
"""Seconds that a command may take; then the process says where it is, and ends."""


class HubShell:
    """Starts the process.

    Args:
        address: address of the hub.
        cache: folder of its cache.
    """

    def __init__(self, address: str, cache: Path) -> None:
        environment = {
            **os.environ,
            "HF_ENDPOINT": address,
            "HF_HOME": str(cache),
            "HF_HUB_OFFLINE": "0",
            "HF_HUB_DISABLE_XET": "1",
            "HF_HUB_DISABLE_PROGRESS_BARS": "1",
        }
        environment.pop("HF_TOKEN", None)
        command = [sys.executable, __file__]
        self._process = subprocess.Popen(
            command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def run(self, words: Sequence[str], folder: Path, **environment: str) -> tuple[int, str, str]:
        """Run a command in a folder; return its exit code and what it printed on both streams."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps([list(map(str, words)), str(folder), environment]) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        assert line, f"the process has ended, or the command took more than {LIMIT} seconds"
        code, out, err = json.loads(line)
        return code, out, err

    def end(self) -> None:
        """End the process."""
        try:
            self._process.communicate(timeout=60)
        finally:
            self._process.kill()
            self._process.wait()


def serve() -> None:
    """Run the commands that come in on standard input."""
    replies, sys.stdout, errors = sys.stdout, sys.stderr, sys.stderr
    faulthandler.dump_traceback_later(LIMIT, exit=True, file=errors)
    from lovec.cli import main
    from lovec.core import hub
    from lovec.datasets import hub_rows

    faulthandler.cancel_dump_traceback_later()
    for line in sys.stdin:
        faulthandler.dump_traceback_later(LIMIT, exit=True, file=errors)
        words, folder, environment = json.loads(line)
        os.chdir(folder)
        hub_rows.STREAMED = int(environment.pop("STREAMED", 2**30))
        os.environ.update(environment)
        for remembered in (hub._fetched_adapter, hub._fetched_model, hub._files_on_hub, hub_rows._opened):
            remembered.cache_clear()  # a command is a process of its own elsewhere
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = main(words)
        faulthandler.cancel_dump_traceback_later()
        for name in environment:
            del os.environ[name]
        print(json.dumps([code, out.getvalue(), err.getvalue()]), file=replies, flush=True)


if __name__ == "__main__":
    serve()
