"""The embedded world with the labels of a few things only, for the label curve of benchmarks/distil.py."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

from lovec.core.settings import check_count
from lovec.datamodules import World
from lovec.types import Record


class FewLabels(World):
    """A world in which only some of the training questions have labels.

    Args:
        labelled: number of training questions whose answers have labels; null is all of them. Which ones depends on the
            seed, and fewer are a part of more.
        others: whether the answers to the other questions are trained on without labels, or left out.
        **kwargs: settings of ``World``.
    """

    def __init__(self, labelled: int | None = None, others: bool = True, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        check_count("--data.labelled", labelled, at_least=2)
        self.labelled = labelled
        self.others = others

    def load(self, split: str) -> Sequence[Record]:  # type: ignore[override]
        """Return the records of a split; for training, with the labels of some questions."""
        records = super().load(split)
        if split != "train" or self.labelled is None:
            return records
        questions = sorted({r.question for r in records if r.labelled}, key=self._place)
        kept = set(questions[: self.labelled])
        known = [record for record in records if record.question in kept]
        rest = [record for record in records if record.question not in kept and record.sentences]
        return known + (self.keep_unlabelled(rest) if self.others else [])

    def _place(self, question: str) -> str:
        return hashlib.sha256(f"{self.seed}/{question}".encode()).hexdigest()
