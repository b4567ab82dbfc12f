"""Labelled answers and preference pairs from the user's own files."""

from __future__ import annotations

import hashlib
from typing import Any

from lovec.datamodules.base import RecordsDataModule
from lovec.datasets.jsonl import read_records
from lovec.datasets.pairs import with_rejected
from lovec.types import LovecError, Record


class Demonstrations(RecordsDataModule):
    """Labelled answers from JSONL files, as the label command writes them: what SFT and expected reward learn from.

    A training record with an unlabelled sentence is left out and counted; in validation and test only that sentence
    is left out of the figures.

    Args:
        path: JSONL with labelled answers to train on.
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
                raise LovecError("there are no test records; give a labelled file with --data.test_path FILE.jsonl")
            return list(read_records(self.test_path))
        if split == "validation" and self.val_path is not None:
            return list(read_records(self.val_path))
        records = list(read_records(self.path))
        if self.val_path is None:
            held_out = split == "validation"
            records = [record for record in records if (self._draw(record.id) < self.val_fraction) == held_out]
        return self.trainable(records) if split == "train" else records

    def trainable(self, records: list[Record]) -> list[Record]:
        """Those records that can be learned from, made ready for it."""
        return self.keep_labelled(records, "train")

    def _draw(self, name: str) -> float:
        """A number in [0, 1) that belongs to a record: adding records moves no other one to the other side."""
        digest = hashlib.sha256(f"validation/{self.seed}/{name}".encode()).digest()
        return int.from_bytes(digest[:8], "big") / 2**64


class Preferences(Demonstrations):
    """Preference pairs from JSONL files: answers with their true scores against the same answers with wrong ones.

    The wrong scores are the file's ``rejected`` where it has them; the others are drawn by the paper's Algorithm 1
    from the seed and the record's id. Everything else is as in ``Demonstrations``.

    Args:
        path: JSONL with labelled answers or pairs to train on.
        val_path: JSONL for validation; without it a share of ``path`` is held out.
        test_path: JSONL for ``lovec test``.
        val_fraction: share of ``path`` held out for validation where there is no ``val_path``.
        **kwargs: ``batch_size``, ``eval_batch_size`` and ``seed`` of the datamodule.
    """

    def trainable(self, records: list[Record]) -> list[Record]:
        """The fully labelled records, each with a wrong score a sentence."""
        return [r if r.rejected is not None else with_rejected(r, self.seed) for r in super().trainable(records)]
