"""Records from the user's own files: one file per split, or a share of the training file held out for validation."""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from lightning.pytorch.utilities import rank_zero_info, rank_zero_warn

from lovec.core.notices import counted
from lovec.core.settings import PlainWord, ProperShare
from lovec.datamodules.base import UNLABELLED, RecordsDataModule
from lovec.datasets.names import slug
from lovec.datasets.stored import read_stored
from lovec.tags import TagFormat
from lovec.text.untag import bare_statements, untag
from lovec.types import LovecError, Record, question_id


class FilesDataModule(RecordsDataModule):
    """Reads files of any known layout; a subclass overrides :meth:`trainable` to select training records.

    Args:
        path: JSONL to train on.
        val_path: JSONL for validation; without it a share of ``path`` is held out.
        test_path: JSONL for ``lovec test``.
        val_fraction: share of ``path`` held out for validation if there is no ``val_path``; which records are held out
            depends only on their ids and the seed, and of ids that end in "/sample-N" all or none.
        name: name of the data set in tables and folders; None is that of ``test_path``, or else of ``path``, without
            its ending.
        **kwargs: ``batch_size``, ``eval_batch_size`` and ``seed`` of the datamodule.
    """

    def __init__(
        self,
        path: str,
        val_path: str | None = None,
        test_path: str | None = None,
        val_fraction: ProperShare = 0.1,
        name: PlainWord | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.path = path
        self.val_path = val_path
        self.test_path = test_path
        self.val_fraction = val_fraction
        if name is not None and not slug(name):
            raise LovecError(f"--data.name is {name!r}, expected a name with letters or digits")
        self._name = name
        self._read_ahead: dict[str, Sequence[Record]] = {}

    @property
    def title(self) -> str:
        """Name of the data set."""
        return self._name or Path(self.test_path or self.path).name.partition(".")[0] or super().title

    @property
    def training_files(self) -> Sequence[str]:
        """The files that training records are read from."""
        return [self.path]

    def load(self, split: str) -> Sequence[Record]:
        """Read the file of a split; where it also holds the validation records, these are read with it.

        Raises:
            LovecError: the file is missing or broken, or no test file was given.
        """
        if (ahead := self._read_ahead.pop(split, None)) is not None:
            return ahead
        path = {"train": self.path, "validation": self.val_path or self.path, "test": self.test_path}[split]
        if path is None:
            raise LovecError("there are no test records; give a file of them with --data.test_path FILE.jsonl")
        splits = ("train", "validation") if split == "train" and self.val_path is None else (split,)
        rows, tagged, tags = 0, 0, self.tags
        trained, held_out = array("q"), array("q")  # hashes of the questions and what they are about

        def count(record: Record) -> None:
            nonlocal rows, tagged
            rows += 1
            tagged += untag(record, tags)[1]
            if len(splits) > 1 and record.question:
                asked = hash((record.question, record.evidence))
                (held_out if self._holds_out(record) else trained).append(asked)

        changes = {name: partial(self._prepared, split=name, tags=tags) for name in splits}
        found = read_stored(path, changes, tags, count)
        if tagged:
            read = f"the confidence tags of {counted(tagged, 'sentence')} were read as scores"
            rank_zero_info(f"{path}: {read}, and are no labels")
        if shared := sum(map(set(held_out).intersection(trained).__contains__, held_out)):
            rank_zero_warn(
                f"{path}: {shared} of {counted(len(held_out), 'answer')} held out for validation have a question that "
                "other answers have, too, which are not held out; give answers to one question ids that differ only in "
                "an ending /sample-N, or other questions with --data.val_path"
            )
        if split == "train" and (left_out := rows - sum(map(len, found.values()))):
            self.summary.setdefault(split, {})[UNLABELLED] = left_out
        records = found.pop(split)
        self._read_ahead = found
        return records

    def _forget(self, split: str) -> None:
        """Let a split be loaded again, and those that were read ahead."""
        super()._forget(split)
        self._read_ahead.clear()

    def _prepared(self, record: Record, split: str, tags: TagFormat) -> Record | None:
        """Return a record of a file as a split has it, without the confidence tags in its texts; None if it has not."""
        if self.val_path is None and split != "test":
            if self._holds_out(record) != (split == "validation"):
                return None
        record = bare_statements(record, tags)
        return self.trainable(record) if split == "train" else self.with_domain(record)

    def _holds_out(self, record: Record) -> bool:
        """Return whether a record of ``path`` is held out for validation, as all answers to its question are."""
        return is_held_out(question_id(record.id), self.val_fraction, self.seed)

    def trainable(self, record: Record) -> Record | None:
        """Return a record ready for training, or None if it cannot be trained on; by default as it is.

        It is called whenever a record is read, and must return the same every time.
        """
        return record


def is_held_out(record_id: str, share: float, seed: int) -> bool:
    """Return whether a record is held out of training: by seed and id alone, so that new records move no others.

    Args:
        record_id: id of the record, or of its question where several records answer it.
        share: share of the records that is held out.
        seed: seed of the data.
    """
    digest = hashlib.sha256(f"validation/{seed}/{record_id}".encode()).digest()
    return int.from_bytes(digest[:8], "big") / 2**64 < share
