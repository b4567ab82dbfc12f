"""What `lovec tag` says about texts beside their sentences: problems, a summary, and the sentences to doubt."""

from __future__ import annotations

import re
import sys
from bisect import bisect_right
from collections.abc import Iterator

from lovec.core.notices import counted
from lovec.display import number
from lovec.display import one_line as shortened
from lovec.text.sentences import Places
from lovec.types import LovecError, Record, Sentence, ThresholdBy

from .console import warn

MOST = 3
"""Documents that are reported on one by one."""

_UNIT = 1_000_000  # confidences are summed as integers, whose sum does not depend on the order: shards are joined

_PLACE = re.compile(r"^\S.*?:\d+: |\d+")  # of a line in its file, and numbers within a message

DOUBT = 0.5
"""Confidence below which sentences are counted where ``--doubt`` names no other."""


class Tally:
    """Counts tagged sentences and what their confidences are; headings and the like are not among them.

    Args:
        limit: confidence below which a sentence is doubted.
        by: which of its confidences that is.

    Attributes:
        documents: number of records that were counted.
    """

    def __init__(self, limit: float, by: ThresholdBy) -> None:
        self.limit = limit
        self.by: ThresholdBy = by
        self.documents = 0
        self.counts: dict[str, float] = {"sentences": 0, "scored": 0, "confidence": 0, "doubted": 0}

    def add(self, record: Record) -> dict[str, float]:
        """Count the sentences of a record, and return their counts."""
        self.documents += 1
        sentences = [sentence for sentence in record.sentences if sentence.is_statement]
        known = [confidence for s in sentences if (confidence := s.confidence_by(self.by)) is not None]
        counts: dict[str, float] = {
            "sentences": len(sentences),
            "scored": len(known),
            "confidence": round(_UNIT * sum(known)),
            "doubted": sum(confidence < self.limit for confidence in known),
        }
        self.counts = {name: self.counts[name] + value for name, value in counts.items()}
        return counts

    def summary(self, counts: dict[str, float] | None = None) -> str:
        """Return the counts in a line: sentences, mean confidence, how many lie below the limit."""
        found = self.counts if counts is None else counts
        n, scored, doubted = (int(found.get(name, 0)) for name in ("sentences", "scored", "doubted"))
        words, by = [counted(n, "sentence")], "" if self.by == "knowledge" else " by source"
        if scored:
            share = f"{doubted} below {self.limit:g} ({100 * doubted / scored:.0f} %)"
            words += [f"mean confidence{by} {found['confidence'] / _UNIT / scored:.2f}", share]
        words += [f"{n - scored} without a confidence{by}"] if n > scored else []
        return ", ".join(words)


def doubtful(sentence: Sentence, limit: float, by: ThresholdBy) -> bool:
    """Return whether a sentence is to be doubted.

    Args:
        sentence: the sentence.
        limit: it is doubted below this confidence in [0, 1], and without one.
        by: which of its confidences is compared.
    """
    confidence = sentence.confidence_by(by)
    return sentence.is_statement and (confidence is None or confidence < limit)


def doubtful_lines(
    record: Record, text: str, limit: float, by: ThresholdBy, name: str, before: int | None = 0
) -> Iterator[str]:
    """Yield a line for every sentence to doubt: document, line of the text, confidence, sentence.

    Args:
        record: the tagged text.
        text: the text line by line as it was given, without tags and a thought; a sentence that is not in it has its
            number in the record instead, after "#".
        limit: as for ``doubtful``, as is ``by``.
        by: the confidence that is compared, and shown.
        name: the document.
        before: lines of the document before the text, which is a part of it; None where its lines are not those of the
            document, so that a sentence has its number.
    """
    places = Places(text)
    breaks = [at for at, character in enumerate(text) if character == "\n"]
    for at, sentence in enumerate(record.sentences, 1):
        found = places.find(sentence.text)
        if doubtful(sentence, limit, by):
            place = f"#{at}"
            if found is not None and before is not None:
                place = str(before + bisect_right(breaks, found[0]) + 1)
            yield f"{name}:{place}: [{number(sentence, by)}] {shortened(sentence.text, sys.maxsize)}"


class Problems:
    """Reports on standard error what is wrong with the input and with what became of it.

    Args:
        hint: what to try for texts that are longer than the context.

    Attributes:
        unread: number of lines and files that could not be read.
        left_out: number of sentences that are left out, or worded as uncertain.
    """

    def __init__(self, hint: str) -> None:
        self.unread = self.left_out = self._records = 0
        self._hint = hint
        self._unread: dict[str, tuple[LovecError, int]] = {}  # first and number of each kind

    def unreadable(self, error: LovecError) -> None:
        """Count a line or a file that cannot be read; `close` reports each kind once."""
        self.unread += 1
        kind = _PLACE.sub("", str(error))
        first, count = self._unread.get(kind, (error, 0))
        self._unread[kind] = first, count + 1

    def check(self, record: Record) -> Record:
        """Return the record; report its problems if it is among the first records that have some."""
        self.left_out += record.meta.get("left_out", 0) + record.meta.get("hedged", 0)
        if problems := record.meta.get("problems"):
            self._records += 1
            more = f"; and {counted(len(problems) - 1, 'problem')} more" if len(problems) > 1 else ""
            hint = self._hint if any("context holds" in problem for problem in problems) else ""
            if self._records <= MOST:
                warn(f"{record.id}: {problems[0]}{more}{hint}")
        return record

    def close(self) -> None:
        """Report what could not be read, each kind once with its first example, and how many more have problems."""
        for first, count in [*self._unread.values()][:MOST]:
            more = f", and {counted(count - 1, 'line or file', 'lines or files')} more like it" if count > 1 else ""
            warn(f"{first}; left out{more}")
        if len(self._unread) > MOST:
            rest = sum(count for _, count in [*self._unread.values()][MOST:])
            more = counted(rest, "line or file more is", "lines or files more are")
            warn(f"{more} left out for other reasons")
        if self._records > MOST:
            more = counted(self._records - MOST, "document more has", "documents more have")
            warn(f'{more} problems; JSONL names them in "meta"')
