"""FActScore's biographies with human labels as training and test data."""

from __future__ import annotations

import hashlib
from typing import Any

from lovec.datamodules.base import RecordsDataModule
from lovec.datasets.factscore import read_factscore
from lovec.datasets.pairs import with_rejected
from lovec.types import LovecError, Record

_TENTHS = {"validation": (0,), "test": (5,), "train": (1, 2, 3, 4, 6, 7, 8, 9)}


class FActScore(RecordsDataModule):
    """Real biographies whose facts were judged by people, with wrong scores drawn for preference training.

    The people whom the model wrote about are split 8:1:1, evenly over how rare they are. Training keeps passages in
    which every sentence has a label; validation and test keep the others too, and leave the unlabelled sentences out
    of the figures.

    Args:
        path: a labelled file of FActScore, such as its ``ChatGPT.jsonl``.
        **kwargs: ``batch_size``, ``eval_batch_size`` and ``seed`` (of the split, too) of the datamodule.
    """

    def __init__(self, path: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.path = path

    def load(self, split: str) -> list[Record]:
        """Read the file and keep one split of it."""
        written = [record for record in read_factscore(self.path) if record.sentences]
        if not written:
            raise LovecError(f"{self.path} holds abstentions only; give a labelled file such as ChatGPT.jsonl")
        ranked = sorted(written, key=lambda record: (record.meta["rarity"], self._draw(record.id)))
        own = [record for place, record in enumerate(ranked) if place % 10 in _TENTHS[split]]
        if split != "train":
            return own
        return [with_rejected(record, self.seed) for record in self.keep_labelled(own, split)]

    def _draw(self, name: str) -> bytes:
        return hashlib.sha256(f"split/{self.seed}/{name}".encode()).digest()
