"""The list of batches on disk: which batch holds which request, so that none is submitted, and paid for, twice."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from lovec.oracles.sqlite_file import SqliteFile
from lovec.types import LovecError

_LOCK_SECONDS = 0.2  # between two looks whether another process still submits


@dataclass(frozen=True, slots=True)
class Load:
    """What requests come to.

    Attributes:
        calls: number of requests.
        tokens_in: tokens of their prompts.
        tokens_out: tokens of their replies.
    """

    calls: int = 0
    tokens_in: int = 0
    tokens_out: int = 0

    def __add__(self, other: Load) -> Load:
        return Load(self.calls + other.calls, self.tokens_in + other.tokens_in, self.tokens_out + other.tokens_out)


@dataclass(frozen=True, slots=True)
class Batch:
    """A batch in the list.

    Attributes:
        number: its number in the list.
        file: the server's name of the uploaded requests; None before the upload.
        remote: the server's name of the batch; None before it is known to be there.
        at: when it was last changed, in seconds since 1970.
        finished: whether its replies are in the cache, or none will come.
        load: what it is expected to take; once it is finished, what it took.
    """

    number: int
    file: str | None
    remote: str | None
    at: float
    finished: bool
    load: Load


class BatchList(SqliteFile):
    """Batches and their requests, in one sqlite file beside the reply cache; see `SqliteFile`.

    A request is claimed for one batch before anything is uploaded, and let go of when its reply is in the cache, or
    when the batch has ended without it. A batch is written down before every step: with its file before the server is
    told to begin, and with its name after that. So whatever moment a process is killed at, the next one knows, or can
    ask the server, what has been submitted. Requests that a batch has failed to answer are marked: they are asked one
    by one.

    Args:
        cache: file of the reply cache that the replies go to.

    Raises:
        LovecError: the file cannot be written, is damaged, or is not a list of batches. It is left unchanged.
    """

    KIND = "list of batches"
    FIX = "name another reply cache with cache"
    APPLICATION_ID = 0x4C6F5642  # "LoVB"
    TABLES: ClassVar[Mapping[str, str]] = {
        "batches": "(number INTEGER PRIMARY KEY, server TEXT NOT NULL, file TEXT, remote TEXT, at REAL NOT NULL, "
        "finished INTEGER NOT NULL DEFAULT 0, calls INTEGER NOT NULL, tokens_in INTEGER NOT NULL, "
        "tokens_out INTEGER NOT NULL)",
        "requests": "(key TEXT PRIMARY KEY, batch INTEGER) WITHOUT ROWID",  # batch is NULL: asked by itself
    }

    def __init__(self, cache: Path) -> None:
        super().__init__(cache.with_name(f"{cache.name}.batches"))

    @asynccontextmanager
    async def submitting(self) -> AsyncIterator[None]:
        """Keep other processes from submitting. The lock is the operating system's, and ends with the process.

        Raises:
            LovecError: the file system has no locks.
        """
        from filelock import FileLock, Timeout

        lock = FileLock(self.path.with_name(f"{self.path.name}.lock"), timeout=0)
        while not lock.is_locked:
            try:
                lock.acquire()
            except Timeout:
                await asyncio.sleep(_LOCK_SECONDS)
            except (OSError, NotImplementedError) as error:
                raise LovecError(
                    f"{self.path.parent} has no locks ({error}), so two runs might submit the same batch; name a cache "
                    "on a local disk"
                ) from None
        try:
            yield
        finally:
            lock.release()

    def claim(
        self, server: str, requests: Mapping[str, Load], is_answered: Callable[[str], bool]
    ) -> tuple[int, set[str]]:
        """Claim requests for a new batch, unless another batch holds them, or has answered them.

        Args:
            server: address of the server.
            requests: what each request is expected to take, by its key.
            is_answered: returns whether the reply to a request is in the cache. It is asked once nobody holds the
                request: a batch puts replies into the cache before it lets go of their requests.

        Returns:
            The number of the batch, and the keys of the requests that it holds.
        """
        with self._transaction():
            claimed = set()
            number = self._db.execute(
                "INSERT INTO batches (server, at, calls, tokens_in, tokens_out) VALUES (?, ?, 0, 0, 0)",
                (server, time.time()),
            ).lastrowid
            assert number is not None
            for key in requests:
                added = self._db.execute("INSERT OR IGNORE INTO requests VALUES (?, ?)", (key, number))
                if added.rowcount and is_answered(key):
                    self._db.execute("DELETE FROM requests WHERE key = ?", (key,))
                elif added.rowcount:
                    claimed.add(key)
            load = sum((requests[key] for key in claimed), Load())
            self._db.execute(
                "UPDATE batches SET calls = ?, tokens_in = ?, tokens_out = ? WHERE number = ?",
                (load.calls, load.tokens_in, load.tokens_out, number),
            )
        return number, claimed

    def set_file(self, number: int, file: str) -> None:
        """Write down the uploaded file of a batch, before the server is told to begin."""
        with self._clear_errors():
            self._db.execute("UPDATE batches SET file = ?, at = ? WHERE number = ?", (file, time.time(), number))

    def set_remote(self, number: int, remote: str) -> None:
        """Write down the server's name of a batch."""
        with self._clear_errors():
            self._db.execute("UPDATE batches SET remote = ?, at = ? WHERE number = ?", (remote, time.time(), number))

    def drop(self, number: int) -> None:
        """Forget a batch that the server was not told to begin, and let go of its requests."""
        with self._transaction():
            self._db.execute("DELETE FROM requests WHERE batch = ?", (number,))
            self._db.execute("DELETE FROM batches WHERE number = ?", (number,))

    def finish(self, number: int, took: Load, alone: Iterable[str] = ()) -> None:
        """End a batch, and let go of its requests; where another process was faster nothing changes.

        Args:
            number: the batch.
            took: what it took.
            alone: keys of its requests that are to be asked one by one.
        """
        with self._transaction():
            marked = [(key, number) for key in alone]
            self._db.executemany("UPDATE requests SET batch = NULL WHERE key = ? AND batch = ?", marked)
            self._db.execute("DELETE FROM requests WHERE batch = ?", (number,))
            self._db.execute(
                "UPDATE batches SET finished = 1, calls = ?, tokens_in = ?, tokens_out = ?, at = ? "
                "WHERE number = ? AND NOT finished",
                (took.calls, took.tokens_in, took.tokens_out, time.time(), number),
            )

    def is_alone(self, key: str) -> bool:
        """Return whether a batch has failed to answer a request, so that it is asked by itself."""
        with self._clear_errors():
            row = self._db.execute("SELECT batch FROM requests WHERE key = ?", (key,)).fetchone()
        return row is not None and row[0] is None

    def holder(self, key: str) -> Batch | None:
        """Return the batch that holds a request; None where no batch does."""
        with self._clear_errors():
            row = self._db.execute("SELECT batch FROM requests WHERE key = ?", (key,)).fetchone()
        return None if row is None or row[0] is None else self.batch(row[0])

    def batch(self, number: int) -> Batch:
        """Return a batch by its number.

        Raises:
            LovecError: there is none.
        """
        for batch in self._select("number = ?", number):
            return batch
        raise LovecError(f"{self.path} has no batch {number}")

    def unfinished(self, server: str) -> list[Batch]:
        """Return the batches for a server that have not ended."""
        return self._select("NOT finished AND server = ?", server)

    def keys(self, number: int) -> set[str]:
        """Return the keys of the requests that a batch holds."""
        with self._clear_errors():
            return {key for (key,) in self._db.execute("SELECT key FROM requests WHERE batch = ?", (number,))}

    def _select(self, condition: str, value: str | int) -> list[Batch]:
        names = "number, file, remote, at, finished, calls, tokens_in, tokens_out"
        with self._clear_errors():
            rows = self._db.execute(f"SELECT {names} FROM batches WHERE {condition}", (value,)).fetchall()
        return [
            Batch(number, file, remote, at, bool(finished), Load(*load))
            for number, file, remote, at, finished, *load in rows
        ]
