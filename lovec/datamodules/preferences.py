"""Labelled answers and preference pairs from the user's own files."""

from __future__ import annotations

from lovec.datamodules.files import FilesDataModule
from lovec.datasets.pairs import with_rejected
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
        name: name of the data set in tables and folders; None is that of the test file.
        **kwargs: ``batch_size``, ``eval_batch_size`` and ``seed`` of the datamodule.
    """

    def trainable(self, record: Record) -> Record | None:
        """Return a fully labelled record."""
        return record if record.labelled else None


class Preferences(FilesDataModule):
    """Preference pairs from JSONL files: answers with their true scores against the same answers with wrong scores.

    The wrong scores are those of the file ("rejected"); where it has none, they are drawn by the paper's Algorithm 1
    from the seed and the record's id. Otherwise this is the same as ``Demonstrations``.

    Args:
        path: JSONL with labelled answers or pairs to train on.
        val_path: JSONL for validation; without it a share of ``path`` is held out.
        test_path: JSONL for ``lovec test``.
        val_fraction: share of ``path`` held out for validation if there is no ``val_path``.
        name: name of the data set in tables and folders; None is that of the test file.
        **kwargs: ``batch_size``, ``eval_batch_size`` and ``seed`` of the datamodule.
    """

    def trainable(self, record: Record) -> Record | None:
        """Return a fully labelled record, with one wrong score per sentence."""
        return with_rejected(record, self.seed, self.scale) if record.labelled else None
