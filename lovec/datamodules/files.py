"""Records from the user's own files: one file per split, or a share of the training file held out for validation."""

from __future__ import annotations

import hashlib
from typing import Any

from lightning.pytorch.utilities import rank_zero_info

from lovec.answers import untag
from lovec.datamodules.base import RecordsDataModule
from lovec.datasets.layouts import read_any
from lovec.types import LovecError, Record, check_range


class FilesDataModule(RecordsDataModule):
    """Reads files of any known layout; a subclass overrides :meth:`trainable` to select training records.

    Args:
        path: JSONL to train on.
        val_path: JSONL for validation; without it a share of ``path`` is held out.
        test_path: JSONL for ``lovec test``.
        val_fraction: share of ``path`` held out for validation if there is no ``val_path``; which records are held out
            depends only on their ids and the seed.
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
        check_range("--data.val_fraction", val_fraction, at_least=0, below=1)
        self.path = path
        self.val_path = val_path
        self.test_path = test_path
        self.val_fraction = val_fraction

    def load(self, split: str) -> list[Record]:
        """Read the file of a split.

        Raises:
            LovecError: the file is missing or broken, or no test file was given.
        """
        if split == "test":
            if self.test_path is None:
                raise LovecError("there are no test records; give a file of them with --data.test_path FILE.jsonl")
            return self._read(self.test_path)
        if split == "validation" and self.val_path is not None:
            return self._read(self.val_path)
        records = self._read(self.path)
        if self.val_path is None:
            held_out = split == "validation"
            records = [record for record in records if (self._draw(record.id) < self.val_fraction) == held_out]
        return self.trainable(records) if split == "train" else records

    def _read(self, path: str) -> list[Record]:
        """Return the records of a file, without the confidence tags that their texts hold; these are no labels."""
        untagged = [untag(record, self.tags) for record in read_any(path)]
        if tags := sum(read for _, read in untagged):
            rank_zero_info(f"{path}: the confidence tags of {tags} sentences were read as scores, and are no labels")
        return [record for record, _ in untagged]

    def trainable(self, records: list[Record]) -> list[Record]:
        """Return the records that can be trained on, ready for training; by default all of them."""
        return records

    def _draw(self, record_id: str) -> float:
        """Return a number in [0, 1) that depends only on seed and id, so that new records move no others."""
        digest = hashlib.sha256(f"validation/{self.seed}/{record_id}".encode()).digest()
        return int.from_bytes(digest[:8], "big") / 2**64
