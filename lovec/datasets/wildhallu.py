"""WildHallucinations: entities from real conversations, with the web pages found for each (Zhao et al. 2024)."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from lovec.core.notices import listed
from lovec.datasets.hub import HubDataset
from lovec.datasets.names import Ids
from lovec.encoding import QUESTION
from lovec.types import LovecError, Record

HUB = HubDataset("wentingzhao/WildHallucinations", "train", ("entity", "info"))
SPLITS = ("train", "validation", "test")
DOMAIN = "WildHallu"

log = logging.getLogger(__name__)


def read_wildhallu(path: str | os.PathLike[str] | None = None, split: str | None = None) -> Iterator[Record]:
    """Return questions about the entities with their web pages as evidence, one by one, so that memory stays flat.

    A page counts if it was fetched (status 200) and has text. A warning at the end names entities without such a page.

    Args:
        path: a copy of the data set, see ``HubDataset.table``; None reads it from the hub.
        split: "train", "validation" or "test" (see ``split_rows``); None is all rows in the order of the data set.

    Returns:
        Records whose ``meta`` has entity, category, split and domain, and wiki (1: the entity has a page in Wikipedia)
        if the data set has that column.

    Raises:
        LovecError: the split is unknown, or the data set is not available or has another form.
    """
    if split is not None and split not in SPLITS:
        raise LovecError(f"the split of WildHallucinations is {split!r}, expected one of {', '.join(SPLITS)}")
    table = HUB.table(path)
    splits = split_rows(len(table))
    split_of = {row: name for name, rows in splits.items() for row in rows}
    ids = Ids()
    names = [ids.of(entity) for entity in table["entity"]]  # of all rows, so that an id is the same in every split
    rows = range(len(table)) if split is None else splits[split]
    return _records(table, rows, names, split_of)


def split_rows(count: int) -> dict[str, list[int]]:
    """Return the row numbers of each split, 8:1:1 with seed 42, as the authors split them.

    A fifth is drawn first and halved into validation and test: 6333, 792 and 792 of 7917 rows.

    Raises:
        LovecError: there are fewer than 6 rows.
    """
    from datasets import Dataset

    if count < 2 * len(SPLITS):
        raise LovecError(f"the data set has {count} rows, expected at least 6 to split them 8:1:1")
    first = Dataset.from_dict({"row": range(count)}).train_test_split(test_size=0.2, seed=42)
    second = first["test"].train_test_split(test_size=0.5, seed=42)
    parts = (first["train"], second["train"], second["test"])
    return {name: list(part["row"]) for name, part in zip(SPLITS, parts, strict=True)}


def _records(table: Any, rows: Iterable[int], ids: list[str], split_of: Mapping[int, str]) -> Iterator[Record]:
    without_page = []
    for number in rows:
        row = table[number]
        meta = {"entity": row["entity"], "split": split_of[number], "domain": DOMAIN}
        meta |= {key: row[key] for key in ("category", "wiki") if row.get(key) is not None}
        pages = tuple(_pages(row["info"]))
        if not pages:
            without_page.append(row["entity"])
        yield Record(ids[number], QUESTION.format(entity=row["entity"]), pages, meta=meta)
    if without_page:
        names = listed(without_page)
        log.warning("%d entities have no page with status 200 and text, so no evidence: %s", len(without_page), names)


def _pages(info: Any) -> Iterator[str]:
    """Yield the texts of the pages that count."""
    if isinstance(info, Mapping):  # older loaders return a mapping of lists instead of a list of mappings
        info = [dict(zip(info, values, strict=True)) for values in zip(*info.values(), strict=True)]
    for page in info or ():
        if page["status_code"] == 200 and (page["text"] or "").strip():
            yield page["text"]
