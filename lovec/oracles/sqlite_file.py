"""One sqlite file that several processes share and that survives a kill at any moment."""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import ClassVar, Self

from lovec.types import LovecError

_TIMEOUT = 60.0  # seconds


class SqliteFile:
    """Tables in one sqlite file; a subclass says which.

    What is written is on the disk when a statement outside a transaction, or a COMMIT, returns: it survives a kill of
    the process at any moment and a power cut (write-ahead log, flushed at every commit). Processes on one machine may
    share the file; they wait for each other. Network file systems do not provide the locks that sqlite needs, so keep
    it on a local disk.

    Args:
        path: the file; it and its folder are created if they are missing.

    Raises:
        LovecError: the file cannot be written, is damaged, or is another program's. It is left unchanged.
    """

    KIND: ClassVar[str]
    """What the file is, for errors."""

    FIX: ClassVar[str]
    """What to do about a file that cannot be used, for errors."""

    APPLICATION_ID: ClassVar[int]
    """The number in the header of the file that marks it as one of this kind."""

    TABLES: ClassVar[Mapping[str, str]]
    """The columns of every table, by its name."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path).expanduser()
        with self._clear_errors():
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._db = sqlite3.connect(self.path, timeout=_TIMEOUT, isolation_level=None)
        try:
            with self._clear_errors():
                self._open()
        except BaseException:
            self._db.close()
            raise

    def close(self) -> None:
        """Close the file."""
        self._db.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _open(self) -> None:
        """Create the tables in a new file, or check that an existing file is one of this kind that can be written."""
        self._has_tables()  # before anything else: not even the journal mode of another program's file may change
        self._use_write_ahead_log()
        self._db.execute("PRAGMA synchronous = FULL")
        self._db.execute("BEGIN IMMEDIATE")  # two processes may find the file new
        if not self._has_tables():
            self._db.execute(f"PRAGMA application_id = {self.APPLICATION_ID}")
            for name, columns in self.TABLES.items():
                self._db.execute(f"CREATE TABLE {name} {columns}")
        self._db.execute("COMMIT")

    def _use_write_ahead_log(self) -> None:
        """Switch to a write-ahead log; sqlite does not wait by itself where another process is about to do the same."""
        deadline = time.monotonic() + _TIMEOUT
        while True:
            try:
                self._db.execute("PRAGMA journal_mode = WAL")
                return
            except sqlite3.OperationalError as error:
                if error.sqlite_errorcode != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                    raise
            time.sleep(0.01)

    def _has_tables(self) -> bool:
        """Return whether the tables exist.

        Raises:
            LovecError: the file belongs to another program.
        """
        begin = not self._db.in_transaction
        if begin:
            self._db.execute("BEGIN")  # one snapshot for both queries: another process may be creating the tables
        try:
            application_id = self._db.execute("PRAGMA application_id").fetchone()[0]
            tables = [name for (name,) in self._db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        finally:
            if begin:
                self._db.execute("COMMIT")
        if (tables or application_id) and (application_id != self.APPLICATION_ID or {*tables} != {*self.TABLES}):
            raise LovecError(f"{self.path} is another program's database, not a {self.KIND}; {self.FIX}")
        return bool(tables)

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        """Make changes together or not at all, after those of any other process."""
        with self._clear_errors():
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield
                self._db.execute("COMMIT")
            except BaseException:
                if self._db.in_transaction:  # sqlite has ended it itself where the disk is full
                    self._db.execute("ROLLBACK")
                raise

    @contextmanager
    def _clear_errors(self) -> Iterator[None]:
        """Turn errors of sqlite and of the file system into errors that name the file and what to do."""
        try:
            yield
        except (sqlite3.Error, OSError) as error:
            raise LovecError(
                f"cannot use the {self.KIND} {self.path} ({error}); it is left unchanged: mend it or move it away, or "
                f"{self.FIX}"
            ) from None
