"""Evidence: pages of Wikipedia or of a file, found by title, and cut to what a judge can read."""

from __future__ import annotations

import json
import logging
import os
import re
import sqlite3
import unicodedata
from collections.abc import Iterable, Iterator
from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path
from typing import Protocol

from lovec.datasets.jsonl import read_objects
from lovec.datasets.names import slug
from lovec.types import LovecError, Record

SEPARATOR = "####SPECIAL####SEPARATOR####"
"""Stands between the passages of a page in FActScore's database."""

_SQLITE = b"SQLite format 3\0"
_NEIGHBOURS = 200  # titles looked at on either side of the place where a missing one would stand
_OFFERED = 3
_ALIKE = 0.6

log = logging.getLogger(__name__)


class EvidenceSource(Protocol):
    """Finds the pages that records are about."""

    def find(self, title: str) -> tuple[str, ...]:
        """The texts of a page; () where there is no such title."""

    def nearest(self, title: str) -> list[str]:
        """Titles that may have been meant, the likeliest first."""


def open_evidence(path: str | os.PathLike[str]) -> EvidenceSource:
    """Evidence in a file: FActScore's sqlite database, or JSONL.

    Raises:
        LovecError: there is no such file, or it is of neither form.
    """
    try:
        with open(path, "rb") as file:
            head = file.read(len(_SQLITE))
    except OSError as error:
        raise LovecError(
            f"cannot read {path} ({error.strerror}); give FActScore's sqlite file or JSONL with title and text"
        ) from None
    return Wikipedia(path) if head == _SQLITE else EvidenceFile(path)


def with_evidence(records: Iterable[Record], source: EvidenceSource) -> Iterator[Record]:
    """Records with the page they are about, one by one; a record that has evidence keeps its own.

    The page is that of ``meta["title"]``, or else of ``meta["entity"]``; an ``EvidenceFile`` may name it by the
    record's id as well. A record whose page is not there is named in a warning, together with the nearest titles, and
    comes without evidence.
    """
    found = missing = 0
    for record in records:
        if record.evidence:
            yield record
            continue
        title = str(record.meta.get("title") or record.meta.get("entity") or "")
        texts = source.find(record.id) if isinstance(source, EvidenceFile) else ()
        texts = texts or source.find(title)
        found, missing = found + bool(texts), missing + (not texts)
        if not texts:
            near = ", ".join(map(repr, source.nearest(title)))
            why = f"there is no page {title!r}" if title else "it has neither meta.title nor meta.entity"
            log.warning("record %s gets no evidence: %s%s", record.id, why, f"; nearest: {near}" if near else "")
        yield replace(record, evidence=texts)
    if missing:
        log.warning(
            "%d of %d records have no evidence; where a nearest title is the right one, put it into meta.title",
            missing,
            found + missing,
        )


class Wikipedia:
    """Wikipedia as FActScore keeps it: an sqlite file with the table ``documents(title PRIMARY KEY, text)``.

    Args:
        path: the database, such as FActScore's ``enwiki-20230401.db``. It is only read.

    Raises:
        LovecError: there is no such file, or it is no such database.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        try:
            self._database = sqlite3.connect(f"{Path(path).resolve().as_uri()}?mode=ro", uri=True)
            self._database.execute("SELECT title, text FROM documents LIMIT 1").fetchone()
        except sqlite3.Error as error:
            raise LovecError(
                f"cannot read {path} as Wikipedia ({error}); expected FActScore's sqlite file with the table "
                "documents(title, text)"
            ) from None

    def find(self, title: str) -> tuple[str, ...]:
        """The passages of a page; a small first letter, underscores and Unicode forms do not matter."""
        plain = _plain(title)
        for spelling in dict.fromkeys((title, plain, _capital(plain), unicodedata.normalize("NFD", _capital(plain)))):
            row = self._database.execute("SELECT text FROM documents WHERE title = ?", (spelling,)).fetchone()
            if row is not None:
                texts = row[0].replace("<s>", "").replace("</s>", "").split(SEPARATOR)
                return tuple(text.strip() for text in texts if text.strip())
        return ()

    def nearest(self, title: str) -> list[str]:
        """Up to three titles that are most alike.

        Only the index is used, so that millions of titles cost milliseconds: the titles before and behind the place
        where this one, or a variant of it (without accents, without a first word such as "Sir", without what stands
        in brackets), would stand. A mistake in the first letters is not found.
        """
        known: set[str] = set()
        for variant in _variants(_plain(title)):
            for sign, order in ((">=", "ASC"), ("<", "DESC")):
                query = f"SELECT title FROM documents WHERE title {sign} ? ORDER BY title {order} LIMIT {_NEIGHBOURS}"
                known.update(row[0] for row in self._database.execute(query, (variant,)))
        return _most_alike(title, known)


class EvidenceFile:
    """Texts in a JSONL file: ``{"title": ..., "text": ...}`` a line, or ``"id"`` instead of ``"title"``, or both.

    ``text`` is a text or a list of texts; lines of one title belong to one page. Only titles are kept in memory.

    Args:
        path: the file.

    Raises:
        LovecError: the file is missing, or a line is not of this form; the message names file and line.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = path
        self._places: dict[str, list[int]] = {}
        place, begins = 0, []
        with open(path, "rb") as file:
            for line in file:
                begins.append(place)
                place += len(line)
        for number, row in read_objects(path):
            names = [str(row[key]) for key in ("title", "id") if row.get(key) not in (None, "")]
            text = row.get("text")
            texts = [text] if isinstance(text, str) else text
            if not names or not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
                raise LovecError(
                    f"{path}:{number}: no line of evidence; expected title (or id) and text, a text or a list of texts"
                )
            for name in names:
                self._places.setdefault(_plain(name), []).append(begins[number - 1])

    def find(self, title: str) -> tuple[str, ...]:
        """The texts under a title or an id; underscores and Unicode forms do not matter."""
        texts: list[str] = []
        if places := self._places.get(_plain(title)):
            with open(self._path, "rb") as file:
                for place in dict.fromkeys(places):
                    file.seek(place)
                    text = json.loads(file.readline().decode("utf-8-sig"))["text"]
                    texts += [text] if isinstance(text, str) else text
        return tuple(text for text in texts if text.strip())

    def nearest(self, title: str) -> list[str]:
        """Up to three titles or ids that are most alike."""
        return _most_alike(title, self._places)


def _plain(title: str) -> str:
    """A title with spaces for underscores, in composed Unicode."""
    return " ".join(unicodedata.normalize("NFC", title).replace("_", " ").split())


def _capital(title: str) -> str:
    return title[:1].upper() + title[1:]


def _variants(title: str) -> Iterable[str]:
    """Ways to begin under which a title might be found."""
    bare = re.sub(r"\s*\([^()]*\)$", "", title)
    unaccented = unicodedata.normalize("NFKD", title).encode("ascii", "ignore").decode()
    shorter = title.partition(" ")[2]
    return dict.fromkeys(_capital(variant) for variant in (title, bare, unaccented, shorter) if variant)


def _most_alike(title: str, known: Iterable[str]) -> list[str]:
    """The known titles that say more than this one ("William Waldegrave, Baron ..."), then those that look like it."""
    folded: dict[str, list[str]] = {}
    for name in known:
        folded.setdefault(slug(name), []).append(name)
    wanted = slug(title)
    longer = sorted((other for other in folded if wanted and other.startswith(wanted)), key=len)
    found = dict.fromkeys([*longer[:_OFFERED], *get_close_matches(wanted, folded, n=_OFFERED, cutoff=_ALIKE)])
    return [name for near in found for name in sorted(folded[near])][:_OFFERED]
