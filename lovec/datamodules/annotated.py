"""Answers that people have annotated, split into tenths: the base of such data sets."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

from lovec.datamodules.base import RecordsDataModule
from lovec.types import LovecError, Record, Unit

_TENTHS = {"train": (1, 2, 3, 4, 6, 7, 8, 9), "validation": (0,), "test": (5,)}


class AnnotatedDataModule(RecordsDataModule):
    """Answers with people's labels of their sentences or clauses; a subclass overrides :meth:`read`.

    They are split 8:1:1, each group of them (see :meth:`group`) alike. Training keeps only answers whose sentences, or
    clauses, are all labelled; validation and test keep all answers and measure the labelled ones.

    Args:
        path: the annotated file.
        unit: what has a label and gets a confidence: a sentence, or each of its clauses.
        **kwargs: ``batch_size``, ``eval_batch_size`` and ``seed`` (also of the split) of the datamodule.
    """

    splits = ("all", *_TENTHS)
    answered = True

    def __init__(self, path: str, unit: Unit = "sentence", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.path = path
        self.unit = unit

    def read(self) -> Sequence[Record]:
        """Return all answers, those without sentences included. To be overridden."""
        raise LovecError(f"{type(self).__name__} has no answers; override read()")

    def group(self, record: Record) -> str:
        """Return the group of an answer, of which every split has its share; by default all are one."""
        return ""

    def questions(self, split: str) -> Sequence[Record]:
        """Return the annotated answers of a split; "all" includes those without sentences."""
        records = self.read()
        if split == "all":
            return records
        answers = [record for record in records if record.sentences]
        if not answers:
            raise LovecError(f"{self.path} has abstentions only; give a file with annotated answers")
        ranked = sorted(answers, key=lambda record: (self.group(record), self._draw(record.id)))
        return [record for place, record in enumerate(ranked) if place % 10 in _TENTHS[split]]

    def load(self, split: str) -> Sequence[Record]:
        """Return the answers of a split; for training, with wrong scores."""
        records = self.questions(split)
        return self.training_pairs(records) if split == "train" else records

    def _draw(self, record_id: str) -> bytes:
        return hashlib.sha256(f"split/{self.seed}/{record_id}".encode()).digest()
