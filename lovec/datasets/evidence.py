"""Evidence: pages of Wikipedia or of a file, looked up by title."""

from __future__ import annotations

import json
import logging
import os
import re
import sqlite3
import unicodedata
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from difflib import get_close_matches
from functools import cached_property
from pathlib import Path
from typing import Any

from lovec.datasets.jsonl import open_input, read_objects
from lovec.datasets.names import slug
from lovec.encoding import QUESTION
from lovec.types import LovecError, Record

SEPARATOR = "####SPECIAL####SEPARATOR####"
"""Separates the passages of a page in FActScore's database."""

_SQLITE = b"SQLite format 3\0"
PAPERS_QUESTION = re.compile(re.escape(QUESTION).replace(re.escape("{entity}"), "(.+)"))
"""The paper's question; the group is what it asks about."""

_ASKED = (PAPERS_QUESTION, re.compile(r"Tell me a bio of (.+)\."))  # the latter is FActScore's
_NEIGHBOURS = 200  # titles that are compared on either side of the place where a missing one would be
_SUGGESTIONS = 3
_SIMILARITY = 0.6

log = logging.getLogger(__name__)


def open_evidence(path: str | os.PathLike[str]) -> Wikipedia | EvidenceFile:
    """Open a file with evidence: FActScore's sqlite database, or JSONL.

    Raises:
        LovecError: the file is missing, or is neither of them.
    """
    with open_input(path, "FActScore's sqlite file or JSONL with title and text") as file:
        head = file.read(len(_SQLITE))
    return Wikipedia(path) if head == _SQLITE else EvidenceFile(path)


def with_evidence(records: Iterable[Record], source: Wikipedia | EvidenceFile) -> Iterator[Record]:
    """Yield records one by one with the page they are about as evidence; a record that has evidence keeps it.

    The page is that of ``meta["title"]``, or else of ``meta["entity"]``, or else of the name in the paper's or
    FActScore's question; an ``EvidenceFile`` is first asked for the record's id. If there is no such page, the record
    stays without evidence, and a warning names it and similar titles.
    """
    searched = missing = 0
    for record in records:
        if record.evidence:
            yield record
            continue
        title = str(record.meta.get("title") or record.meta.get("entity") or _asked_about(record.question))
        texts = source.find(record.id) if isinstance(source, EvidenceFile) else ()
        texts = texts or source.find(title)
        searched, missing = searched + 1, missing + (not texts)
        if not texts:
            reason = f"there is no page {title!r}" if title else "it has neither meta.title nor meta.entity"
            nearest = ", ".join(map(repr, source.nearest(title)))
            log.warning(
                "record %s gets no evidence: %s%s", record.id, reason, f"; nearest: {nearest}" if nearest else ""
            )
        yield replace(record, evidence=texts)
    if missing:
        log.warning(
            "%d of %d records have no evidence; where a nearest title is the right one, put it into meta.title",
            missing,
            searched,
        )


class Wikipedia:
    """Wikipedia in FActScore's format: an sqlite file with the table ``documents(title PRIMARY KEY, text)``.

    Args:
        path: the database, such as FActScore's ``enwiki-20230401.db``; it is opened read-only.

    Raises:
        LovecError: the file cannot be read as such a database.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = path
        with self._readable():
            self._database = sqlite3.connect(f"{Path(path).resolve().as_uri()}?mode=ro", uri=True)
        self._rows("SELECT title, text FROM documents LIMIT 1")

    def find(self, title: str) -> tuple[str, ...]:
        """Return the passages of a page; a lower-case first letter, underscores and Unicode forms do not matter."""
        plain = _normalised(title)
        for spelling in dict.fromkeys((title, plain, _capital(plain), unicodedata.normalize("NFD", _capital(plain)))):
            rows = self._rows("SELECT CAST(text AS TEXT) FROM documents WHERE title = ? AND text NOTNULL", spelling)
            if rows:
                texts = rows[0][0].replace("<s>", "").replace("</s>", "").split(SEPARATOR)
                return tuple(text.strip() for text in texts if text.strip())
        return ()

    def nearest(self, title: str) -> list[str]:
        """Return up to three similar titles.

        Only the index is searched, so that millions of titles take milliseconds: candidates are the titles before and
        after the place where this title would be, or a variant of it (without accents, without a first word such as
        "Sir", without a suffix in brackets). A mistake in the first letters is not found.
        """
        candidates: set[str] = set()
        for variant in _variants(_normalised(title)):
            for sign, order in ((">=", "ASC"), ("<", "DESC")):
                places = f"WHERE title {sign} ? ORDER BY title {order} LIMIT {_NEIGHBOURS}"
                query = f"SELECT CAST(title AS TEXT) FROM documents {places}"
                candidates.update(row[0] for row in self._rows(query, variant) if row[0])
        return _most_similar(title, candidates)

    def _rows(self, query: str, *values: str) -> list[tuple[str, ...]]:
        """Return what a query finds.

        Raises:
            LovecError: the database cannot be read.
        """
        with self._readable():
            return self._database.execute(query, values).fetchall()

    @contextmanager
    def _readable(self) -> Iterator[None]:
        try:
            yield
        except (sqlite3.Error, UnicodeError) as error:  # a broken file may have bytes that are no text
            raise LovecError(
                f"cannot read {self._path} as Wikipedia ({error}); expected FActScore's sqlite file with the table "
                "documents(title, text)"
            ) from None


class EvidenceFile:
    """Texts in a JSONL file: ``{"title": ..., "text": ...}`` per line, or ``"id"`` instead of ``"title"``, or both.

    ``text`` is a text or a list of texts; lines with the same title belong to one page. Only titles are kept in memory.

    Args:
        path: the file.

    Raises:
        LovecError: the file is missing, or a line has another form; the message names file and line.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = path
        self._offsets: dict[str, list[int]] = {}
        end, offsets = 0, []
        with open(path, "rb") as file:
            for line in file:
                offsets.append(end)
                end += len(line)
        for number, row in read_objects(path):
            names = [str(row[key]) for key in ("title", "id") if row.get(key) not in (None, "")]
            texts = _texts(row.get("text"))
            if not names or not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
                raise LovecError(
                    f"{path}:{number}: not a line of evidence; expected title (or id) and text, a text or a list of "
                    "texts"
                )
            for name in names:
                self._offsets.setdefault(_normalised(name), []).append(offsets[number - 1])

    def find(self, title: str) -> tuple[str, ...]:
        """Return the texts with a title or an id; underscores and Unicode forms do not matter."""
        texts: list[str] = []
        if offsets := self._offsets.get(_normalised(title)):
            with open(self._path, "rb") as file:
                for offset in dict.fromkeys(offsets):
                    file.seek(offset)
                    texts += _texts(json.loads(file.readline().decode("utf-8-sig"))["text"])
        return tuple(text for text in texts if text.strip())

    def nearest(self, title: str) -> list[str]:
        """Return up to three similar titles or ids, of those that `Wikipedia.nearest` would compare."""
        candidates: set[str] = set()
        for variant in _variants(_normalised(title)):
            place = bisect_left(self._sorted, variant, key=_capital)
            candidates.update(self._sorted[max(place - _NEIGHBOURS, 0) : place + _NEIGHBOURS])
        return _most_similar(title, candidates)

    @cached_property
    def _sorted(self) -> list[str]:
        return sorted(self._offsets, key=_capital)


def _asked_about(question: str) -> str:
    """Return the name that a question in the paper's or FActScore's wording is about; "" in another wording."""
    asked = (wording.fullmatch(question.strip()) for wording in _ASKED)
    return next((match[1] for match in asked if match), "")


def _texts(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


def _normalised(title: str) -> str:
    """Return a title with spaces for underscores, in composed Unicode."""
    return " ".join(unicodedata.normalize("NFC", title).replace("_", " ").split())


def _capital(title: str) -> str:
    return title[:1].upper() + title[1:]


def _variants(title: str) -> Iterable[str]:
    """Return beginnings under which a title might be found."""
    without_suffix = re.sub(r"\s*\([^()]*\)$", "", title)
    unaccented = unicodedata.normalize("NFKD", title).encode("ascii", "ignore").decode()
    without_first_word = title.partition(" ")[2]
    variants = (title, without_suffix, unaccented, without_first_word)
    return dict.fromkeys(_capital(variant) for variant in variants if variant)


def _most_similar(title: str, candidates: Iterable[str]) -> list[str]:
    """Return titles that begin with this one ("William Waldegrave, Baron ..."), then those with similar letters."""
    titles_by_slug: dict[str, list[str]] = {}
    for candidate in candidates:
        titles_by_slug.setdefault(slug(candidate), []).append(candidate)
    wanted = slug(title)
    longer = sorted((other for other in titles_by_slug if wanted and other.startswith(wanted)), key=len)
    close = get_close_matches(wanted, titles_by_slug, n=_SUGGESTIONS, cutoff=_SIMILARITY)
    slugs = dict.fromkeys([*longer[:_SUGGESTIONS], *close])
    return [name for near in slugs for name in sorted(titles_by_slug[near])][:_SUGGESTIONS]
