"""Human labels from files: people as an oracle."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from lovec.datasets.layouts import read_any
from lovec.types import LovecError, Record, Sentence


class LabelFile:
    """Looks labels up in a file, by the id of the record and the text of the sentence.

    White space in a sentence does not matter. A sentence that stands twice in an answer gets its labels in their order.

    Args:
        path: our own labelled JSONL, FActScore's labelled data, the labelled WikiBio passages, or one of the authors'
            layouts. Its labels are kept in memory.

    Attributes:
        failures: ids of records that the file does not know at all, and why that is so; their sentences were rated
            None. A single sentence that it does not know is None, too.

    Raises:
        LovecError: the file is missing or broken, or holds no label.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self.failures: dict[str, str] = {}
        self._gold: list[Record] = list(read_any(path))
        self._labels = {record.id: _by_text(record.sentences) for record in self._gold}
        if not any(s.factuality is not None for record in self._gold for s in record.sentences):
            raise LovecError(f"{path} holds no labelled sentence; give a file of labels")

    @property
    def fingerprint(self) -> str:
        """Digest of the file: other labels are another oracle."""
        return hashlib.sha256(Path(self.path).read_bytes()).hexdigest()

    def rate(self, records: Sequence[Record]) -> list[list[float | None]]:
        """Factuality of every sentence of every record as people have it, or None."""
        return [self._looked_up(record) for record in records]

    def validate(self) -> int:
        """Score gold: the file's own records, labels removed, must be given their labels back.

        Returns:
            Number of labelled sentences.

        Raises:
            LovecError: a label is not found again.
        """
        found = 0
        for record in self._gold:
            bare = replace(record, sentences=tuple(replace(s, factuality=None) for s in record.sentences))
            for sentence, rating in zip(record.sentences, self._looked_up(bare), strict=True):
                if rating != sentence.factuality:
                    raise LovecError(
                        f"{self.path}: {sentence.text!r} of {record.id} is rated {rating}, but labelled "
                        f"{sentence.factuality}; do two records share the id?"
                    )
                found += rating is not None
        return found

    def _looked_up(self, record: Record) -> list[float | None]:
        known = self._labels.get(record.id)
        if known is None:
            self.failures[record.id] = f"{self.path} has no record of this id"
            return [None] * len(record.sentences)
        ratings: list[float | None] = []
        seen: dict[str, int] = {}
        for sentence in record.sentences:
            text = _plain(sentence.text)
            labels = known.get(text, ())
            place = seen.get(text, 0)
            ratings.append(labels[min(place, len(labels) - 1)] if labels else None)
            seen[text] = place + 1
        return ratings


def _by_text(sentences: Sequence[Sentence]) -> Mapping[str, list[float | None]]:
    labels: dict[str, list[float | None]] = {}
    for sentence in sentences:
        labels.setdefault(_plain(sentence.text), []).append(sentence.factuality)
    return labels


def _plain(text: str) -> str:
    return " ".join(text.split())
