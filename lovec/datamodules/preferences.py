"""Labelled answers and preference pairs from the user's own files."""

from __future__ import annotations

from lovec.datamodules.files import FilesDataModule
from lovec.datasets.pairs import with_rejected
from lovec.types import Record


class Demonstrations(FilesDataModule):
    """Labelled answers from JSONL files, as the label command writes them: what SFT and expected reward learn from.

    A training record with an unlabelled sentence is left out and counted; in validation and test only that sentence
    is left out of the figures.

    Args:
        path: JSONL with labelled answers to train on.
        val_path: JSONL for validation; without it a share of ``path`` is held out.
        test_path: JSONL for ``lovec test``.
        val_fraction: share of ``path`` held out for validation where there is no ``val_path``.
        **kwargs: ``batch_size``, ``eval_batch_size`` and ``seed`` of the datamodule.
    """

    def trainable(self, records: list[Record]) -> list[Record]:
        """The fully labelled records."""
        return self.keep_labelled(records, "train")


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
