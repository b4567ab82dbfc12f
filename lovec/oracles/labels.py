"""Human labels from a file as an oracle."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from itertools import islice

from lovec.core.notices import DoublingWarning
from lovec.core.provenance import file_digest
from lovec.datasets.layouts import read_any
from lovec.types import LovecError, Oracle, Record, comparable

_SEARCHES = 40  # sentences for which the most similar one is looked up
_CANDIDATES = 60  # sentences of a record that are compared with it
_LONGEST = 300  # characters of a sentence that are compared
_SHOWN = 80  # characters of a sentence that a warning shows
_SIMILARITY = 0.5

log = logging.getLogger(__name__)


class LabelFile(Oracle):
    """Looks up labels in a file, by the id of the record and the text of the sentence.

    Citation marks, the style of quotation marks and white space in a sentence are ignored. A sentence that occurs twice
    in an answer gets its labels in their order. Sentences that have no label in the file are named in a warning, with
    the most similar sentence of the same record.

    Args:
        path: labelled records in any layout of ``lovec.datasets.layouts``. Its labels are kept in memory.

    Attributes:
        failures: the reason, by record id, for each record that is not in the file; its sentences are rated None. A
            single sentence that is not in the file is rated None as well.

    Raises:
        LovecError: the file is missing or broken, or contains no label.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self.failures: dict[str, str] = {}
        self._labels = {record.id: record.labels_by_text() for record in read_any(path)}
        if all(label is None for texts in self._labels.values() for labels in texts.values() for label in labels):
            raise LovecError(f"{path} contains no labelled sentence; give a file with labels")
        self._unmatched = DoublingWarning(log, "%s does not have %d sentences: %s", path)

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the file; it identifies the oracle, since other labels give other ratings."""
        return file_digest(self.path)

    def rate(self, records: Sequence[Record]) -> list[list[float | None]]:
        """Return the labelled factuality of every sentence of every record; None where there is no label."""
        ratings = [self._labels_of(record) for record in records]
        self._unmatched.flush()
        return ratings

    def _labels_of(self, record: Record) -> list[float | None]:
        labels_by_text = self._labels.get(record.id)
        if labels_by_text is None:
            self.failures[record.id] = f"{self.path} has no record of this id"
            return [None] * len(record.sentences)
        ratings: list[float | None] = []
        counts: Counter[str] = Counter()
        for number, sentence in enumerate(record.sentences, 1):
            text = comparable(sentence.text)
            if (labels := labels_by_text.get(text)) is None:
                nearest = self._nearest(text, labels_by_text)
                self._unmatched.add(f"{record.id}, sentence {number}, {_short(sentence.text)!r}{nearest}")
                labels = [None]
            ratings.append(labels[min(counts[text], len(labels) - 1)])
            counts[text] += 1
        return ratings

    def _nearest(self, text: str, known: Iterable[str]) -> str:
        """Return a phrase that names the most similar sentence, for the first sentences that are not known."""
        if len(self._unmatched.ids) >= _SEARCHES:  # a search takes time, and the warnings show only a few
            return ""
        beginnings = {other[:_LONGEST]: other for other in islice(known, _CANDIDATES)}
        close = get_close_matches(text[:_LONGEST], beginnings, n=1, cutoff=_SIMILARITY)
        return f" (nearest: {_short(beginnings[close[0]])!r})" if close else ""


def _short(text: str) -> str:
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."
