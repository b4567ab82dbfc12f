"""FActScore's biographies with human labels as training and test data."""

from __future__ import annotations

import hashlib
from typing import Any

from lovec.datamodules.base import RecordsDataModule
from lovec.datasets.factscore import read_factscore
from lovec.types import LovecError, Record, Unit

_TENTHS = {"train": (1, 2, 3, 4, 6, 7, 8, 9), "validation": (0,), "test": (5,)}


class FActScore(RecordsDataModule):
    """Biographies whose atomic facts were labelled by people; wrong scores are drawn for preference training.

    The people whom the model wrote about are split 8:1:1, stratified by how rare they are. Training keeps only passages
    whose sentences are all labelled; validation and test keep all passages and measure the labelled sentences.

    Args:
        path: a labelled file of FActScore, such as ``ChatGPT.jsonl``.
        unit: what has a label and gets a confidence: a sentence, or each of its clauses.
        **kwargs: ``batch_size``, ``eval_batch_size`` and ``seed`` (also of the split) of the datamodule.
    """

    splits = ("all", *_TENTHS)
    answered = True

    def __init__(self, path: str, unit: Unit = "sentence", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.path = path
        self.unit = unit

    def questions(self, split: str) -> list[Record]:
        """Return the labelled biographies of a split; "all" includes those in which the model abstained."""
        records = read_factscore(self.path, self.unit)
        if split == "all":
            return records
        biographies = [record for record in records if record.sentences]
        if not biographies:
            raise LovecError(f"{self.path} has abstentions only; give a labelled file such as ChatGPT.jsonl")
        ranked = sorted(biographies, key=lambda record: (record.meta["rarity"], self._draw(record.id)))
        return [record for place, record in enumerate(ranked) if place % 10 in _TENTHS[split]]

    def load(self, split: str) -> list[Record]:
        """Return the biographies of a split; for training, with wrong scores."""
        records = self.questions(split)
        return self.training_pairs(records) if split == "train" else records

    def _draw(self, record_id: str) -> bytes:
        return hashlib.sha256(f"split/{self.seed}/{record_id}".encode()).digest()
