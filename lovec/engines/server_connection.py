"""A connection to a vLLM server: its event loop and the adapter that was loaded through it."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Coroutine
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from lovec.core.calls import CallFailed, ServerRefused
from lovec.engines.adapters import AdapterFolders
from lovec.engines.completions import CompletionClient
from lovec.types import LovecError

T = TypeVar("T")

_UNLOAD_TIMEOUT_S = 5.0


class Connection:
    """A connection to a server, with an event loop in a thread of its own, so that it outlives a call.

    Args:
        client: makes the calls; its ``api`` is entered here, and left by ``end``. Its ``model`` is what calls ask for.
        adapter_dir: where to create adapter folders, see ``AdapterFolders``.

    Attributes:
        client: to be used inside ``run``.
        folders: folders of the policy's adapters.
        base: name of the base model on the server.
        names: all names of the base model.
        adapter: name of the adapter that was loaded through this connection; "" for none.
        adapter_folder: folder of that adapter.
        temperature_checked: whether the server is known to return log-probabilities at the temperature of a call.
    """

    def __init__(self, client: CompletionClient, adapter_dir: str | None) -> None:
        self.client = client
        self.folders = AdapterFolders(adapter_dir)
        self.base = self.adapter = ""
        self.names: set[str | None] = set()
        self.adapter_folder: Path | None = None
        self.temperature_checked = False
        self._process = os.getpid()
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, name="lovec-server-engine", daemon=True).start()
        self.run(client.api.__aenter__())

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Return the result of a coroutine, which runs in the event loop; Ctrl-C cancels it.

        Raises:
            LovecError: this process is a fork of the one that opened the connection, and has no such thread.
        """
        if os.getpid() != self._process:
            work.close()
            raise LovecError("a connection to a server cannot be used in a fork of its process; open an engine there")
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def unload_adapter(self) -> None:
        """Let the server unload the adapter; a server that does not answer is taken to have none."""
        if self.adapter:
            call = self.client.api.post("/unload_lora_adapter", {"lora_name": self.adapter}, str, retries=0)
            with suppress(CallFailed, ServerRefused, TimeoutError):
                self.run(asyncio.wait_for(call, _UNLOAD_TIMEOUT_S))
            self.adapter, self.adapter_folder = "", None

    def end(self) -> None:
        """Unload the adapter, close the connection and remove the adapter folders."""
        with suppress(RuntimeError):  # new connections are refused while Python shuts down
            self.unload_adapter()
            self.run(self.client.api.__aexit__())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self.folders.close()
