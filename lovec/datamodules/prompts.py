"""Questions from the user's own files, which the policy answers during training."""

from __future__ import annotations

from lovec.datamodules.files import FilesDataModule


class Prompts(FilesDataModule):
    """Questions from JSONL files, for objectives whose policy writes the answers and whose oracle rates them.

    A line needs a question only: ``{"question": ..., "id": ..., "evidence": text or list of texts}``. Whole records are
    accepted too; training ignores their answers and labels. In validation and test the model answers and the oracle
    rates; the answers of records that have some are tagged as well, and their labelled sentences measured.

    Args:
        path: JSONL with questions to train on.
        val_path: JSONL for validation; without it a share of ``path`` is held out.
        test_path: JSONL for ``lovec test``.
        val_fraction: share of ``path`` held out for validation if there is no ``val_path``.
        **kwargs: ``batch_size``, ``eval_batch_size`` and ``seed`` of the datamodule.
    """
