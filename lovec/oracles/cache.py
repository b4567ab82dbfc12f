"""A cache of replies on disk, so that no call is paid for twice: one sqlite file that several processes may share."""

from __future__ import annotations

import hashlib
import json
import os
import sqlite3
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lovec.types import LovecError

_APPLICATION_ID = 0x4C6F5665  # "LoVe" in the header of the file marks it as a reply cache
_TIMEOUT = 60.0  # seconds
_SCHEMA = """CREATE TABLE replies (key TEXT PRIMARY KEY, text TEXT NOT NULL, finish TEXT NOT NULL, tokens_in INTEGER,
tokens_out INTEGER) WITHOUT ROWID"""


@dataclass(frozen=True, slots=True)
class ChatReply:
    """The reply of a server to a chat.

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
    """Return the key of a call: the SHA-256 of everything that the reply depends on.

    - model and messages, to the letter: evidence that is cut elsewhere makes another question.
    - parameters (temperature, seed, ...): they shape the reply.
    - base_url: the same model name stands for other weights, or another quantisation, on another server.
    - attempt: when a reply is unusable the same question is asked again, and the second reply must not be the first
      one from the cache; a resumed run finds both and goes on with the third.

    Settings that change how a reply is obtained, and not the reply, are left out: the API key, time-outs, retries,
    prices.
    """
    call = {
        "model": model,
        "base_url": base_url.rstrip("/"),
        "messages": [dict(message) for message in messages],
        "parameters": dict(parameters),
        "attempt": attempt,
    }
    return hashlib.sha256(json.dumps(call, sort_keys=True).encode()).hexdigest()


def default_cache() -> Path:
    """Return the file that is used by default: in ``$LOVEC_CACHE``, else in the user's cache folder."""
    from platformdirs import user_cache_dir

    return Path(os.environ.get("LOVEC_CACHE") or user_cache_dir("lovec")).expanduser() / "replies.sqlite"


class ReplyCache(AbstractContextManager["ReplyCache"]):
    """Replies by their keys, in one sqlite file.

    A reply is on the disk when ``put`` returns: it survives a kill of the process at any moment and a power cut
    (write-ahead log, flushed at every commit). Processes on one machine may share the file; they wait for each other.
    Network file systems do not provide the locks that sqlite needs, so keep it on a local disk.

    The file holds hashes, replies and token counts: no prompts, no addresses and no API keys.

    Args:
        path: the file; it and its folder are created if they are missing. None is `default_cache`.

    Raises:
        LovecError: the file cannot be written, is damaged, or is not a reply cache. It is left unchanged.
    """

    def __init__(self, path: str | os.PathLike[str] | None = None) -> None:
        self.path = default_cache() if path is None else Path(path).expanduser()
        with self._clear_errors():
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._db = sqlite3.connect(self.path, timeout=_TIMEOUT, isolation_level=None)
        try:
            with self._clear_errors():
                self._open()
        except BaseException:
            self._db.close()
            raise

    def get(self, key: str) -> ChatReply | None:
        """Return the reply to a call; None if it is not in the cache.

        Raises:
            LovecError: the file cannot be read.
        """
        with self._clear_errors():
            row = self._db.execute(
                "SELECT text, finish, tokens_in, tokens_out FROM replies WHERE key = ?", (key,)
            ).fetchone()
        return None if row is None else ChatReply(*row)

    def put(self, key: str, reply: ChatReply) -> None:
        """Store a reply, unless there is one with this key already.

        Raises:
            LovecError: the file cannot be written, for example because the disk is full.
        """
        row = (key, reply.text, reply.finish, reply.tokens_in, reply.tokens_out)
        with self._clear_errors():
            self._db.execute("INSERT OR IGNORE INTO replies VALUES (?, ?, ?, ?, ?)", row)

    def __len__(self) -> int:
        with self._clear_errors():
            return int(self._db.execute("SELECT count(*) FROM replies").fetchone()[0])

    def close(self) -> None:
        """Close the file."""
        self._db.close()

    def __exit__(self, *_: object) -> None:
        self.close()

    def _open(self) -> None:
        """Create the table in a new file, or check that an existing file is a reply cache that can be written."""
        self._has_table()  # before anything else: not even the journal mode of another program's file may change
        self._use_write_ahead_log()
        self._db.execute("PRAGMA synchronous = FULL")
        self._db.execute("BEGIN IMMEDIATE")  # two processes may find the file new
        if not self._has_table():
            self._db.execute(f"PRAGMA application_id = {_APPLICATION_ID}")
            self._db.execute(_SCHEMA)
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

    def _has_table(self) -> bool:
        """Return whether the table exists.

        Raises:
            LovecError: the file belongs to another program.
        """
        begin = not self._db.in_transaction
        if begin:
            self._db.execute("BEGIN")  # one snapshot for both queries: another process may be creating the table
        try:
            application_id = self._db.execute("PRAGMA application_id").fetchone()[0]
            tables = [name for (name,) in self._db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        finally:
            if begin:
                self._db.execute("COMMIT")
        if (tables or application_id) and (application_id != _APPLICATION_ID or tables != ["replies"]):
            raise LovecError(f"{self.path} is another program's database, not a reply cache; name another with cache")
        return bool(tables)

    @contextmanager
    def _clear_errors(self) -> Iterator[None]:
        """Turn errors of sqlite and of the file system into errors that name the file and what to do."""
        try:
            yield
        except (sqlite3.Error, OSError) as error:
            raise LovecError(
                f"cannot use the reply cache {self.path} ({error}); it is left unchanged: mend it or move it away, or "
                "name another with cache"
            ) from None
