"""WildHallucinations: entities from real conversations, each with the web pages found for it (Zhao et al. 2024)."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from lovec.datasets.hub import HubDataset
from lovec.datasets.names import Ids
from lovec.encoding import QUESTION
from lovec.notices import listed
from lovec.types import LovecError, Record

HUB = HubDataset("wentingzhao/WildHallucinations", "train", ("entity", "info"))
SPLITS = ("train", "validation", "test")
DOMAIN = "WildHallu"

log = logging.getLogger(__name__)


def read_wildhallu(path: str | os.PathLike[str] | None = None, split: str | None = None) -> Iterator[Record]:
    """Questions about the entities, with their pages as evidence, one by one: memory does not grow with them.

    A page counts if it was fetched (status 200) and has text. Entities without such a page are named at the end.

    Args:
        path: a copy of the data set, see ``HubDataset.table``; None asks the hub.
        split: "train", "validation" or "test" (see ``split_rows``); None is everything in the order of the data set.

    Returns:
        Records whose ``meta`` holds entity, category, split and domain, and wiki (1: the entity has a page in
        Wikipedia) where the data set says so.

    Raises:
        LovecError: an unknown split, or the data set is not there or of another form.
    """
    if split is not None and split not in SPLITS:
        raise LovecError(f"split is {split!r}, expected one of {', '.join(SPLITS)}")
    table = HUB.table(path)
    splits = split_rows(len(table))
    part = {row: name for name, rows in splits.items() for row in rows}
    ids = Ids()
    names = [ids.of(entity) for entity in table["entity"]]  # of all splits at once, so that they stay the same in each
    rows = range(len(table)) if split is None else splits[split]
    return _records(table, rows, names, part)


def split_rows(count: int) -> dict[str, list[int]]:
    """Numbers of the rows of each split, as the authors split: 8:1:1, seed 42.

    A fifth is drawn first, and halved into validation and test: 6333, 792 and 792 rows of 7917.

    Raises:
        LovecError: fewer rows than splits.
    """
    from datasets import Dataset

    if count < 2 * len(SPLITS):
        raise LovecError(f"the data set has {count} rows, expected at least 6 to split them 8:1:1")
    drawn = Dataset.from_dict({"row": range(count)}).train_test_split(test_size=0.2, seed=42)
    halves = drawn["test"].train_test_split(test_size=0.5, seed=42)
    return {
        "train": list(drawn["train"]["row"]),
        "validation": list(halves["train"]["row"]),
        "test": list(halves["test"]["row"]),
    }


def _records(table: Any, rows: Iterable[int], names: list[str], part: Mapping[int, str]) -> Iterator[Record]:
    bare = []
    for number in rows:
        row = table[number]
        meta = {"entity": row["entity"], "split": part[number], "domain": DOMAIN}
        meta |= {key: row[key] for key in ("category", "wiki") if row.get(key) is not None}
        evidence = tuple(_pages(row["info"]))
        if not evidence:
            bare.append(row["entity"])
        question = QUESTION.format(entity=row["entity"])
        yield Record(names[number], question, evidence, meta=meta)
    if bare:
        log.warning("%d entities have no page with status 200 and text, so no evidence: %s", len(bare), listed(bare))


def _pages(info: Any) -> Iterator[str]:
    """Texts of the pages that count."""
    if isinstance(info, Mapping):  # older loaders turn a list of pages into a page of lists
        info = [dict(zip(info, values, strict=True)) for values in zip(*info.values(), strict=True)]
    for page in info or ():
        if page["status_code"] == 200 and (page["text"] or "").strip():
            yield page["text"]
