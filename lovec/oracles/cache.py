"""A cache of replies on disk, so that no call is paid for twice: one sqlite file that several processes may share."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from lovec.core.files import cache_folder
from lovec.core.provenance import text_digest
from lovec.oracles.sqlite_file import SqliteFile


@dataclass(frozen=True, slots=True)
class ReplyToken:
    """A token of a reply, and what the model might have written in its place.

    Attributes:
        begin: number of characters of the reply before it.
        text: its text.
        logps: log-probabilities of the most probable tokens in its place, by their texts; its own is among them.
    """

    begin: int
    text: str
    logps: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class ChatReply:
    """The reply of a server to a chat.

    Attributes:
        text: the message.
        finish: why it ended ("stop", "length", ...); "" where the server does not say.
        tokens_in: tokens of the prompt as the server counted them; None where it does not say.
        tokens_out: tokens of the reply, likewise.
        tokens: tokens with log-probabilities, in their order; empty where they were not asked for, or not given.
    """

    text: str
    finish: str = ""
    tokens_in: int | None = None
    tokens_out: int | None = None
    tokens: tuple[ReplyToken, ...] = ()

    def token_at(self, place: int) -> int | None:
        """Return the index of the token that holds the character at a place; None where it is not known."""
        holds = (at for at, token in enumerate(self.tokens) if token.begin <= place < token.begin + len(token.text))
        return next(holds, None)


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
    return text_digest([json.dumps(call, sort_keys=True)])


def default_cache() -> Path:
    """Return the file that is used by default: in ``$LOVEC_CACHE``, else in the user's cache folder."""
    return cache_folder() / "replies.sqlite"


class ReplyCache(SqliteFile):
    """Replies by their keys, in one sqlite file that processes on one machine may share; see `SqliteFile`.

    The file holds hashes, replies and token counts: no prompts, no addresses and no API keys.

    Args:
        path: the file; it and its folder are created if they are missing. None is `default_cache`.

    Raises:
        LovecError: the file cannot be written, is damaged, or is not a reply cache. It is left unchanged.
    """

    KIND = "reply cache"
    FIX = "name another with cache"
    APPLICATION_ID = 0x4C6F5665  # "LoVe"
    TABLES: ClassVar[Mapping[str, str]] = {
        "replies": "(key TEXT PRIMARY KEY, text TEXT NOT NULL, finish TEXT NOT NULL, tokens_in INTEGER, "
        "tokens_out INTEGER, tokens TEXT) WITHOUT ROWID"
    }

    def __init__(self, path: str | os.PathLike[str] | None = None) -> None:
        super().__init__(default_cache() if path is None else path)

    def get(self, key: str) -> ChatReply | None:
        """Return the reply to a call; None if it is not in the cache.

        Raises:
            LovecError: the file cannot be read.
        """
        with self._clear_errors():
            row = self._db.execute(
                "SELECT text, finish, tokens_in, tokens_out, tokens FROM replies WHERE key = ?", (key,)
            ).fetchone()
        return None if row is None else ChatReply(row[0], row[1], row[2], row[3], _read_tokens(row[4]))

    def put(self, key: str, reply: ChatReply) -> None:
        """Store a reply, unless there is one with this key already. Raises the error of ``put_all``."""
        self.put_all({key: reply})

    def put_all(self, replies: Mapping[str, ChatReply]) -> None:
        """Store replies by their keys, all or none; those that have a reply already keep it.

        Raises:
            LovecError: the file cannot be written, for example because the disk is full.
        """
        rows = [
            (key, reply.text, reply.finish, reply.tokens_in, reply.tokens_out, _written_tokens(reply.tokens))
            for key, reply in replies.items()
        ]
        columns = "key, text, finish, tokens_in, tokens_out, tokens"
        with self._transaction():
            self._db.executemany(f"INSERT OR IGNORE INTO replies ({columns}) VALUES (?, ?, ?, ?, ?, ?)", rows)

    def _open(self) -> None:
        super()._open()
        self._db.execute("BEGIN IMMEDIATE")
        if "tokens" not in [name for _, name, *_ in self._db.execute("PRAGMA table_info(replies)")]:
            self._db.execute("ALTER TABLE replies ADD COLUMN tokens TEXT")  # an earlier version has made the file
        self._db.execute("COMMIT")

    def __len__(self) -> int:
        with self._clear_errors():
            return int(self._db.execute("SELECT count(*) FROM replies").fetchone()[0])


def _written_tokens(tokens: Sequence[ReplyToken]) -> str | None:
    """Return tokens as JSON; None without any."""
    return json.dumps([[token.begin, token.text, dict(token.logps)] for token in tokens]) if tokens else None


def _read_tokens(text: str | None) -> tuple[ReplyToken, ...]:
    """Return the tokens that `_written_tokens` has written."""
    return () if text is None else tuple(ReplyToken(*token) for token in json.loads(text))
