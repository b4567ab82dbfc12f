"""Replies on disk, so that no call is paid for twice: one sqlite file that several processes may share."""

from __future__ import annotations

import hashlib
import json
import os
import sqlite3
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from lovec.types import LovecError

_OURS = 0x4C6F5665  # "LoVe" in the header of the file: whose it is
_PATIENCE_MS = 60_000
_SCHEMA = """CREATE TABLE replies (key TEXT PRIMARY KEY, text TEXT NOT NULL, finish TEXT NOT NULL, tokens_in INTEGER,
tokens_out INTEGER) WITHOUT ROWID"""


@dataclass(frozen=True, slots=True)
class Reply:
    """What a server said.

    Attributes:
        text: the message.
        finish: why it ended ("stop", "length", ...); "" where the server does not say.
        tokens_in: tokens of the prompt as the server counted them; None where it does not say.
        tokens_out: tokens of the reply, likewise.
    """

    text: str
    finish: str = ""
    tokens_in: int | None = None
    tokens_out: int | None = None


def reply_key(
    model: str, base_url: str, messages: Sequence[Mapping[str, str]], parameters: Mapping[str, Any], attempt: int
) -> str:
    """Name of a call: the SHA-256 of everything that the reply is drawn from.

    - model and messages, to the letter: another cut of the evidence is another question.
    - parameters (temperature, seed, ...): they shape the reply.
    - base_url: the same model name stands for other weights, or another quantisation, on another server.
    - attempt: when a reply is unusable the same question is asked again, and the second reply must not be the first
      one from the cache; a resumed run finds both and goes on with the third.

    Left out is what changes the way to a reply and not the reply: the key to the server, time-outs, retries, prices.
    """
    what = {
        "model": model,
        "base_url": base_url.rstrip("/"),
        "messages": [dict(message) for message in messages],
        "parameters": dict(parameters),
        "attempt": attempt,
    }
    return hashlib.sha256(json.dumps(what, sort_keys=True).encode()).hexdigest()


def default_cache() -> Path:
    """The file used where none is named: in ``$LOVEC_CACHE``, else in the user's cache folder."""
    from platformdirs import user_cache_dir

    return Path(os.environ.get("LOVEC_CACHE") or user_cache_dir("lovec")).expanduser() / "replies.sqlite"


class ReplyCache:
    """Replies by their keys, in one sqlite file.

    A reply that ``put`` has taken is on the disk: it survives a kill of the process at any moment and a power cut
    (write-ahead log, flushed at every commit). Processes on one machine may share the file; they wait for each other.
    Network file systems do not give sqlite the locks it needs, so keep it on a local disk.

    The file holds hashes, replies and token counts: no prompt, no address and no key to a server.

    Args:
        path: the file; it and its folder are made where missing. Null is `default_cache`.

    Raises:
        LovecError: the file cannot be written, is damaged, or is something else. It is left as it is.
    """

    def __init__(self, path: str | os.PathLike[str] | None = None) -> None:
        self.path = default_cache() if path is None else Path(path).expanduser()
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise LovecError(
                f"cannot make the folder of the reply cache {self.path} ({error.strerror}); name another with cache"
            ) from None
        with self._told():
            self._db = sqlite3.connect(self.path, timeout=_PATIENCE_MS / 1000, isolation_level=None)
        try:
            with self._told():
                self._open()
        except BaseException:
            self._db.close()
            raise

    def get(self, key: str) -> Reply | None:
        """The reply to a call, if it is known.

        Raises:
            LovecError: the file cannot be read.
        """
        with self._told():
            row = self._db.execute(
                "SELECT text, finish, tokens_in, tokens_out FROM replies WHERE key = ?", (key,)
            ).fetchone()
        return None if row is None else Reply(*row)

    def put(self, key: str, reply: Reply) -> None:
        """Keep a reply; the first one under a key stays.

        Raises:
            LovecError: the file cannot be written, for example because the disk is full.
        """
        row = (key, reply.text, reply.finish, reply.tokens_in, reply.tokens_out)
        with self._told():
            self._db.execute("INSERT OR IGNORE INTO replies VALUES (?, ?, ?, ?, ?)", row)

    def __len__(self) -> int:
        with self._told():
            return int(self._db.execute("SELECT count(*) FROM replies").fetchone()[0])

    def close(self) -> None:
        """Let go of the file."""
        self._db.close()

    def __enter__(self) -> ReplyCache:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _open(self) -> None:
        """Make the table in a new file; in an old one see that it is ours and can be written, before money is spent."""
        self._db.execute(f"PRAGMA busy_timeout = {_PATIENCE_MS}")
        self._refuse_others()  # first of all: not even the journal mode of somebody else's file may change
        self._write_ahead()
        self._db.execute("PRAGMA synchronous = FULL")
        self._db.execute("BEGIN IMMEDIATE")  # two processes may find the file new
        if not self._refuse_others():
            self._db.execute(f"PRAGMA application_id = {_OURS}")
            self._db.execute(_SCHEMA)
        self._db.execute("COMMIT")

    def _write_ahead(self) -> None:
        """Switch to a write-ahead log; sqlite does not wait by itself where another process is about to do the same."""
        deadline = time.monotonic() + _PATIENCE_MS / 1000
        while True:
            try:
                self._db.execute("PRAGMA journal_mode = WAL")
                return
            except sqlite3.OperationalError as error:
                if error.sqlite_errorcode != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                    raise
            time.sleep(0.01)

    def _refuse_others(self) -> bool:
        """Whether the table is there; raises if the file is another program's."""
        alone = not self._db.in_transaction
        if alone:
            self._db.execute("BEGIN")  # both as of one moment: another process may be making the table
        try:
            mark = self._db.execute("PRAGMA application_id").fetchone()[0]
            tables = [name for (name,) in self._db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        finally:
            if alone:
                self._db.execute("COMMIT")
        if (tables or mark) and (mark != _OURS or tables != ["replies"]):
            raise LovecError(f"{self.path} is another program's database, not a reply cache; name another with cache")
        return bool(tables)

    @contextmanager
    def _told(self) -> Iterator[None]:
        """Faults of sqlite in our words."""
        try:
            yield
        except sqlite3.Error as error:
            raise LovecError(
                f"cannot use the reply cache {self.path} ({error}); it is left as it is: mend it or move it away, or "
                "name another with cache"
            ) from None
