"""Records from the user's own files: one for each split, or a share of the training file held out."""

from __future__ import annotations

import hashlib
from typing import Any

from lovec.datamodules.base import RecordsDataModule
from lovec.datasets.layouts import read_any
from lovec.types import LovecError, Record


class FilesDataModule(RecordsDataModule):
    """Reads JSONL files of any layout that is known; a subclass says in :meth:`trainable` what can be learned from.

    Args:
        path: JSONL to train on.
        val_path: JSONL for validation; without it a share of ``path`` is held out.
        test_path: JSONL for ``lovec test``.
        val_fraction: share of ``path`` held out for validation where there is no ``val_path``; which records these
            are depends on their ids and the seed alone.
        **kwargs: ``batch_size``, ``eval_batch_size`` and ``seed`` of the datamodule.
    """

    def __init__(
        self,
        path: str,
        val_path: str | None = None,
        test_path: str | None = None,
        val_fraction: float = 0.1,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        if not 0.0 <= val_fraction < 1.0:
            raise LovecError(f"--data.val_fraction is {val_fraction}, expected a number in [0, 1)")
        self.path = path
        self.val_path = val_path
        self.test_path = test_path
        self.val_fraction = val_fraction

    def load(self, split: str) -> list[Record]:
        """Read the file of a split.

        Raises:
            LovecError: a file is missing or broken, or there is none to test on.
        """
        if split == "test":
            if self.test_path is None:
                raise LovecError("there are no test records; give a file of them with --data.test_path FILE.jsonl")
            return list(read_any(self.test_path))
        if split == "validation" and self.val_path is not None:
            return list(read_any(self.val_path))
        records = list(read_any(self.path))
        if self.val_path is None:
            held_out = split == "validation"
            records = [record for record in records if (self._draw(record.id) < self.val_fraction) == held_out]
        return self.trainable(records) if split == "train" else records

    def trainable(self, records: list[Record]) -> list[Record]:
        """Those records that can be learned from, made ready for it: here, all of them."""
        return records

    def _draw(self, name: str) -> float:
        """A number in [0, 1) that belongs to a record: adding records moves no other one to the other side."""
        digest = hashlib.sha256(f"validation/{self.seed}/{name}".encode()).digest()
        return int.from_bytes(digest[:8], "big") / 2**64
