"""Labelled answers and preference pairs from the user's own files."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lovec.core.settings import ProperShare
from lovec.datamodules.files import FilesDataModule
from lovec.datasets.layouts import read_any
from lovec.text.untag import bare_statements
from lovec.types import Record


class Demonstrations(FilesDataModule):
    """Labelled answers from JSONL files, as ``lovec label`` writes them, for SFT and expected reward.

    A training record with an unlabelled sentence is left out and counted; in validation and test only that sentence is
    not measured.

    Args:
        path: JSONL with labelled answers to train on.
        val_path: JSONL for validation; without it a share of ``path`` is held out.
        test_path: JSONL for ``lovec test``.
        val_fraction: share of ``path`` held out for validation if there is no ``val_path``.
        unlabelled: JSONL with answers that are added to training without labels, whatever labels they have, for
            objectives that learn without labels from some answers, such as ``lovec.modules.Distil``; null adds none.
            ``sentences.jsonl`` of ``lovec label`` is such a file. It is kept in memory.
        name: name of the data set in tables and folders; None is that of the test file.
        **kwargs: ``batch_size``, ``eval_batch_size`` and ``seed`` of the datamodule.
    """

    def __init__(
        self,
        path: str,
        val_path: str | None = None,
        test_path: str | None = None,
        val_fraction: ProperShare = 0.1,
        unlabelled: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(path, val_path, test_path, val_fraction, **kwargs)
        self.unlabelled = unlabelled

    @property
    def training_files(self) -> Sequence[str]:
        """The files that training records are read from."""
        return [*super().training_files, *([] if self.unlabelled is None else [self.unlabelled])]

    def load(self, split: str) -> Sequence[Record]:
        """Read the file of a split; for training, and the file without labels.

        Raises:
            LovecError: a file is missing or broken, no test file was given, or an unlabelled record has no sentences.
        """
        records = super().load(split)
        if split != "train" or self.unlabelled is None:
            return records
        tags = self.tags
        return [*records, *self.keep_unlabelled([bare_statements(row, tags) for row in read_any(self.unlabelled)])]

    def trainable(self, record: Record) -> Record | None:
        """Return a record with enough labels."""
        return record if self.is_usable(record) else None


class Preferences(FilesDataModule):
    """Preference pairs from JSONL files: answers with their true scores against the same answers with wrong scores.

    The wrong scores are those of the file ("rejected"); where it has none, they are drawn from
    the seed and the record's id as ``wrong_scores`` says, by default by the paper's Algorithm 1. Otherwise this is the
    same as ``Demonstrations``.

    Args:
        path: JSONL with labelled answers or pairs to train on.
        val_path: JSONL for validation; without it a share of ``path`` is held out.
        test_path: JSONL for ``lovec test``.
        val_fraction: share of ``path`` held out for validation if there is no ``val_path``.
        name: name of the data set in tables and folders; None is that of the test file.
        **kwargs: ``batch_size``, ``eval_batch_size``, ``seed`` and ``wrong_scores`` of the datamodule.
    """

    def trainable(self, record: Record) -> Record | None:
        """Return a record with enough labels, with one wrong score per sentence."""
        return self.with_wrong_scores(record) if self.is_usable(record) else None
