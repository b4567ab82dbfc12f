"""Questions from the user's own files, answered anew in training."""

from __future__ import annotations

from lovec.datamodules.files import FilesDataModule


class Prompts(FilesDataModule):
    """Online prompts from JSONL files: what objectives learn from that let the policy answer and an oracle judge.

    A line needs no more than a question: ``{"question": ..., "id": ..., "evidence": text or list of texts}``. Whole
    records will do as well; in training their answers and labels are not looked at. Validation and test let the
    model answer, too, and measure it by the oracle's ratings; records that come with an answer are tagged as well, and
    their labelled sentences measured.

    Args:
        path: JSONL with questions to train on.
        val_path: JSONL for validation; without it a share of ``path`` is held out.
        test_path: JSONL for ``lovec test``.
        val_fraction: share of ``path`` held out for validation where there is no ``val_path``.
        **kwargs: ``batch_size``, ``eval_batch_size`` and ``seed`` of the datamodule.
    """
