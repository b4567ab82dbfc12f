"""Human labels from a file as an oracle."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from lovec.datasets.layouts import read_any
from lovec.types import LovecError, Oracle, Record


class LabelFile(Oracle):
    """Looks up labels in a file, by the id of the record and the text of the sentence.

    White space in a sentence is ignored. A sentence that occurs twice in an answer gets its labels in their order.

    Args:
        path: lovec's labelled JSONL, FActScore's labelled data, the labelled WikiBio passages, or one of the authors'
            layouts. Its labels are kept in memory.

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

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the file; it identifies the oracle, since other labels give other ratings."""
        return hashlib.sha256(Path(self.path).read_bytes()).hexdigest()

    def rate(self, records: Sequence[Record]) -> list[list[float | None]]:
        """Return the labelled factuality of every sentence of every record; None where there is no label."""
        return [self._labels_of(record) for record in records]

    def _labels_of(self, record: Record) -> list[float | None]:
        labels_by_text = self._labels.get(record.id)
        if labels_by_text is None:
            self.failures[record.id] = f"{self.path} has no record of this id"
            return [None] * len(record.sentences)
        ratings: list[float | None] = []
        counts: Counter[str] = Counter()
        for sentence in record.sentences:
            text = " ".join(sentence.text.split())
            labels = labels_by_text.get(text, [None])
            ratings.append(labels[min(counts[text], len(labels) - 1)])
            counts[text] += 1
        return ratings
