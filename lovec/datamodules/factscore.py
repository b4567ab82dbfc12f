"""FActScore's biographies with human labels as training and test data."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lovec.datamodules.annotated import AnnotatedDataModule
from lovec.datasets.factscore import read_factscore
from lovec.types import Record, Unit


class FActScore(AnnotatedDataModule):
    """Biographies whose atomic facts were labelled by people; wrong scores are drawn for preference training.

    The people whom the model wrote about are split 8:1:1, stratified by how rare they are. Training keeps only passages
    whose sentences are all labelled; validation and test keep all passages and measure the labelled sentences.

    Args:
        path: a labelled file of FActScore, such as ``ChatGPT.jsonl``.
        unit: what has a label and gets a confidence: a sentence, or each of its clauses.
        **kwargs: ``batch_size``, ``eval_batch_size`` and ``seed`` (also of the split) of the datamodule.
    """

    def __init__(self, path: str, unit: Unit = "sentence", **kwargs: Any) -> None:
        super().__init__(path, unit, **kwargs)

    def read(self) -> Sequence[Record]:
        """Return the labelled biographies; where the model abstained they have no sentences."""
        return read_factscore(self.path, self.unit)

    def group(self, record: Record) -> str:
        """Return how rare the person is."""
        return str(record.meta["rarity"])
