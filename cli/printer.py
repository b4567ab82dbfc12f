"""What `lovec tag` prints: documents in their order, every sentence as soon as its score is known."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Sequence
from typing import Literal, TextIO

from rich.console import Console

from lovec import display
from lovec.display import Breaks, sentence_text
from lovec.taggers.scoring import Tagged, WrittenSentence, space_before
from lovec.tags import SOURCE_WORDS, TagFormat, parse, render, thought_length, whole_mark
from lovec.text.clauses import whole_confidence
from lovec.types import Keeps, LovecError, Record, Sentence

_HEADING = 200  # characters of a line above a document


class Printer:
    """Prints tagged documents, sentence by sentence, in the order of the documents.

    Every sentence is followed by its confidence: on a terminal in brackets, with colours, and elsewhere between the tag
    words, so that a program can tell it from the text. A sentence without a score has no tag. Where clauses have
    confidences, that of a sentence with several of them follows the last one, as ``[sentence 0.48]``.

    Line breaks are those of the text. An answer that is printed as it is written has them in its sentences; of one that
    comes when it is complete, sentences wait for it.

    Args:
        file: file to print to.
        tags: how tags are written.
        headings: whether a line with its name (or its question, where ``asking``) is printed above every document.
        asking: whether documents are answers to questions.
        keeps: tells whether a sentence is printed.
        stated: whether the tag of the model, with the score that it has stated, stands in the place of the confidence.
    """

    def __init__(
        self,
        file: TextIO,
        tags: TagFormat,
        headings: bool = False,
        asking: bool = False,
        keeps: Keeps = lambda sentence: True,
        stated: bool = False,
    ) -> None:
        self._file, self._tags, self._headings, self._asking = file, tags, headings, asking
        self._keeps, self._stated = keeps, stated
        colours: Literal["auto"] | None = None if os.environ.get("NO_COLOR") else "auto"
        self._console = Console(file=file, highlight=False, soft_wrap=True, color_system=colours)
        self._documents = 0
        self._clauses: list[Sentence] = []  # of the sentence that is being printed
        self._records: list[Record] = []
        # Sentences, and the white space before those of an answer, as far as it is known.
        self._waiting: list[deque[tuple[Sentence, str | None]]] = []

    def begin(self, records: Sequence[Record]) -> None:
        """Start on documents that are tagged together."""
        self._records = list(records)
        self._waiting = [deque() for _ in records]
        self._received = [0 for _ in records]
        self._at = -1
        self._next()

    def add(self, item: Tagged) -> None:
        """Take a tagged sentence, and print it if its document is the one being printed; or the end of that document.

        Args:
            item: of documents that end in their order. What was taken as it was written is not printed once more.
        """
        if isinstance(item, Record):
            if self._asking and self._waiting[self._at]:
                self._find_spaces(item.answer)
                self._flush()
            self._next()
        elif item.at == self._received[item.record]:
            self._received[item.record] += 1
            before = item.before if isinstance(item, WrittenSentence) else None
            self._waiting[item.record].append((item.sentence, before))
        self._flush()

    def _find_spaces(self, answer: str) -> None:
        """Find the white space before the last sentences of an answer, which have not come as it was written."""
        waiting, parsed = self._waiting[self._at], parse(answer, self._tags)
        raws = [*(span.raw for span in parsed.sentences), *([parsed.tail] if parsed.tail.strip() else [])]
        spaces = [space_before(raw) for raw in raws[-len(waiting) :]]
        spaces = [""] * (len(waiting) - len(spaces)) + spaces
        self._waiting[self._at] = deque((sentence, space) for (sentence, _), space in zip(waiting, spaces, strict=True))

    def _next(self) -> None:
        """Close the document that is printed, and open the next one."""
        if self._at >= 0:
            self._end_sentence(None)
            self._file.write("\n")
        self._at += 1
        if self._at == len(self._records):
            return
        record = self._records[self._at]
        begin = thought_length(record.answer, not record.given)
        self._breaks, self._gap, self._begun = Breaks(record.answer[begin:]), "", False
        if self._headings:
            name = display.one_line(record.question if self._asking else record.id, _HEADING)
            self._file.write(f"{chr(10) if self._documents else ''}==> {name} <==\n")
        self._documents += 1

    def _flush(self) -> None:
        """Print what has arrived of the current document."""
        waiting = self._waiting[self._at] if self._at < len(self._waiting) else ()
        while waiting and not (self._asking and waiting[0][1] is None):
            sentence, space = waiting.popleft()
            self._end_sentence(sentence.part_of)
            self._clauses.append(sentence)
            if space is None:
                gap, indentation = self._breaks.before(sentence.text), self._breaks.indentation
            else:
                gap, indentation = _gap(space)
            self._gap = max(self._gap, gap, key=("", " ", "\n", "\n\n").index)
            if not self._keeps(sentence):
                continue
            self._file.write(self._gap + indentation * ("\n" in self._gap) if self._begun else "")
            self._gap, self._begun = "", True
            if self._console.is_terminal:
                tag = self._tags.tag(sentence.score) if self._stated and sentence.score is not None else None
                self._console.print(sentence_text(sentence, tag), end="")
            else:
                self._file.write(with_tag(sentence, self._tags, self._stated))
        self._file.flush()

    def _end_sentence(self, following: int | None) -> None:
        """Print the confidence of the sentence whose clauses have been printed, unless the next clause is part of it.

        Args:
            following: the place of the sentence that the next clause is part of; None where none follows.
        """
        if self._clauses and (following is None or self._clauses[-1].part_of != following):
            confidence = whole_confidence([clause.confidence for clause in self._clauses])
            if len(self._clauses) > 1 and confidence is not None and any(map(self._keeps, self._clauses)):
                self._file.write(f" {whole_mark(confidence)}")
            self._clauses = []


def _gap(space: str) -> tuple[str, str]:
    """Return what comes before a sentence of an answer, as ``Breaks`` has it of a given text, and its indentation."""
    _, line_break, indentation = space.rpartition("\n")
    if not line_break:
        return " ", ""  # also where the model writes nothing between a tag and the next sentence
    return ("\n\n" if space.count("\n") > 1 else "\n"), indentation


def with_tag(sentence: Sentence, tags: TagFormat, stated: bool = False) -> str:
    """Return a sentence and its confidence between the tag words, as ``It rained. <confidence> 0.64 </confidence>``.

    A confidence by source follows, as ``<by_source> 0.90 </by_source>``.

    Args:
        sentence: the sentence. There is no tag where it has no confidence, or where its text would break the tag.
        tags: the tag words, and the words of the scale.
        stated: whether the tag is the model's own, with the score that it has stated.
    """
    if sentence.confidence is None or (stated and sentence.score is None):
        return sentence.text
    score = sentence.score or 0  # any score shows whether the text would break a tag
    try:
        tagged = render([(sentence.text, score)], tags, opened=False)
    except LovecError:
        return sentence.text
    if stated:
        return tagged
    text = f"{tagged.removesuffix(tags.tag(score))}{tags.open} {display.number(sentence)} {tags.close}"
    if sentence.by_source is None:
        return text
    return f"{text} {SOURCE_WORDS[0]} {display.source_number(sentence)} {SOURCE_WORDS[1]}"
