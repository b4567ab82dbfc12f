"""What `lovec tag` prints: documents in their order, every sentence as soon as it is known."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Sequence
from typing import TextIO

from rich.console import Console

from lovec.reports.passages import Breaks, sentence_text
from lovec.tags import TagFormat, render
from lovec.types import LovecError, Record, Sentence


class Printer:
    """Prints tagged documents, sentence by sentence, in the order of the documents.

    On a terminal sentences are coloured and carry their score in brackets; elsewhere they carry their tag, a sentence
    without a score none.

    Args:
        file: where to.
        tags: the tag words.
        headings: whether a line with its name (or its question, where ``asking``) stands above every document.
        asking: whether documents are answers to questions.
        min_score: sentences with a lower score, or none, are left out.

    Attributes:
        left_out: how many were.
    """

    def __init__(
        self, file: TextIO, tags: TagFormat, headings: bool = False, asking: bool = False, min_score: int | None = None
    ) -> None:
        self.left_out = 0
        self._file, self._tags, self._headings, self._asking = file, tags, headings, asking
        self._min_score = min_score
        self._console = Console(file=file, highlight=False, soft_wrap=True)
        self._coloured = self._console.is_terminal and not self._console.is_dumb_terminal
        self._coloured = self._coloured and not os.environ.get("NO_COLOR")
        self._documents = 0
        self._records: list[Record] = []
        self._waiting: list[deque[Sentence]] = []

    def begin(self, records: Sequence[Record]) -> None:
        """Documents that are worked on from now on, together."""
        self._records = list(records)
        self._waiting = [deque() for _ in records]
        self._given = [0 for _ in records]
        self._at = -1
        self._next()

    def on_sentence(self, number: int, at: int, sentence: Sentence) -> None:
        """A sentence of one of them is known."""
        self._given[number] += 1
        self._waiting[number].append(sentence)
        self._flush()

    def end(self, records: Sequence[Record]) -> None:
        """They are done: what nobody has heard yet is in the records."""
        for number, record in enumerate(records):
            self._waiting[number].extend(record.sentences[self._given[number] :])
        for _ in records:
            self._flush()
            self._next()

    def _next(self) -> None:
        """Close the document at hand, open the next one."""
        if self._at >= 0:
            self._write("\n")
        self._at += 1
        if self._at == len(self._records):
            return
        record = self._records[self._at]
        self._breaks, self._gap, self._begun = Breaks("" if self._asking else record.answer), "", False
        if self._headings:
            name = record.question if self._asking else record.id
            self._write(f"{chr(10) if self._documents else ''}==> {name} <==\n")
        self._documents += 1

    def _flush(self) -> None:
        waiting = self._waiting[self._at]
        while waiting:
            sentence = waiting.popleft()
            self._gap = max(self._gap, self._breaks.before(sentence.text), key=_strength)
            if self._min_score is not None and (sentence.score is None or sentence.score < self._min_score):
                self.left_out += 1
                continue
            self._write(self._gap if self._begun else "")
            self._gap, self._begun = "", True
            if self._coloured:
                self._console.print(sentence_text(sentence), end="")
            else:
                self._write(canonical(sentence, self._tags))
        self._file.flush()

    def _write(self, text: str) -> None:
        self._file.write(text)


def canonical(sentence: Sentence, tags: TagFormat) -> str:
    """A sentence with its tag; without one where it has no score."""
    if sentence.score is None:
        return sentence.text
    try:
        return render([(sentence.text, sentence.score)], tags)
    except LovecError:  # its text would make another tag of it
        return sentence.text


def _strength(gap: str) -> int:
    return ("", " ", "\n", "\n\n").index(gap)
