"""HaluEval 2.0's answers with people's verdicts on their claims as training and test data."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lovec.datamodules.annotated import AnnotatedDataModule
from lovec.datasets.halueval import read_halueval
from lovec.types import Record, Unit


class HaluEval(AnnotatedDataModule):
    """ChatGPT's answers to questions of five domains, with claims that people judged; wrong scores are drawn.

    The answers are split 8:1:1. A sentence, or clause, has the true share of the claims that it states, or completes,
    and no label where there is none. Training keeps only answers whose sentences, or clauses, are all labelled;
    validation and test keep all answers and measure the labelled sentences.

    Args:
        path: a file such as ``human-Science.json``, or the folder of these files.
        unit: what has a label and gets a confidence: a sentence, or each of its clauses.
        **kwargs: ``batch_size``, ``eval_batch_size`` and ``seed`` (also of the split) of the datamodule.
    """

    def __init__(self, path: str, unit: Unit = "sentence", **kwargs: Any) -> None:
        super().__init__(path, unit, **kwargs)

    def read(self) -> Sequence[Record]:
        """Return the answers with their labels."""
        return read_halueval(self.path, self.unit)
