"""FActScore's biographies with human labels (Min et al. 2023, "FActScore", labelled data).

Annotators split every sentence into atomic facts and labelled each S (supported), NS (not supported) or IR
(irrelevant). The factuality of a sentence is the supported share S / (S + NS), and None if it has no such fact.
"""

from __future__ import annotations

import os
from collections import Counter
from typing import Any

from lovec.datasets.jsonl import read_objects
from lovec.datasets.names import Ids
from lovec.types import LovecError, Record, Sentence


def read_factscore(path: str | os.PathLike[str]) -> list[Record]:
    """Read a labelled file of FActScore, such as its ``ChatGPT.jsonl``.

    Args:
        path: JSONL with the keys input, output, topic, cat [rarity, region] and annotations.

    Returns:
        One record per line. ``meta`` has topic, rarity, region and abstained; a line whose annotations are null is an
        abstention, which keeps its answer and has no sentences.

    Raises:
        LovecError: the file is missing, or a line has another form; the message names file and line.
    """
    records: list[Record] = []
    ids = Ids()
    for number, row in read_objects(path):
        try:
            records.append(_record(row, ids))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise LovecError(
                f"{path}:{number}: not a line of FActScore's labelled data ({type(error).__name__}: {error}); "
                "expected input, output, topic, cat [rarity, region] and annotations"
            ) from None
    return records


def _record(row: dict[str, Any], ids: Ids) -> Record:
    rarity, region = row["cat"]
    annotations = row["annotations"]
    return Record(
        id=ids.of(row["topic"]),
        question=row["input"].removeprefix("Question:").strip(),
        answer=row["output"],
        sentences=tuple(Sentence(a["text"].strip(), factuality=_supported(a)) for a in annotations or ()),
        meta={"topic": row["topic"], "rarity": rarity, "region": region, "abstained": annotations is None},
    )


def _supported(annotation: dict[str, Any]) -> float | None:
    labels = Counter(fact["label"] for fact in annotation["human-atomic-facts"] or ())
    if unknown := labels.keys() - {"S", "NS", "IR"}:
        raise ValueError(f"label {sorted(unknown)[0]!r}, expected S, NS or IR")
    judged = labels["S"] + labels["NS"]
    return labels["S"] / judged if judged else None
