"""PopQA, long form: a paragraph about the subject of every question (Mallen et al. 2023, Jiang et al. 2024)."""

from __future__ import annotations

import os
from typing import Any

from lovec.datasets.hub import HubDataset
from lovec.datasets.names import Ids
from lovec.encoding import QUESTION
from lovec.types import LovecError, Record

HUB = HubDataset("akariasai/PopQA", "test", ("id", "subj", "s_wiki_title", "s_pop"), files=".tsv or .parquet")
DOMAIN = "PopQA"


def read_popqa(path: str | os.PathLike[str] | None = None) -> list[Record]:
    """A question about every subject, by the title of its page in Wikipedia; rows of one subject are one question.

    Args:
        path: a copy of the data set (a TSV of its 17 columns, for instance), see ``HubDataset.table``; None asks the
            hub. Every subject of the file is asked about: give a chosen subset to ask about fewer.

    Returns:
        Records in order of first appearance. ``meta`` holds entity (the title), domain, popularity (views of the page
        a month) and rows (ids of the rows about it).

    Raises:
        LovecError: the data set is not there or of another form.
    """
    subjects: dict[str, dict[str, Any]] = {}
    for number, row in enumerate(HUB.table(path).select_columns(list(HUB.columns)), 1):
        title = (row["s_wiki_title"] or row["subj"] or "").strip()
        try:
            meta: dict[str, Any] = {"entity": title, "domain": DOMAIN, "popularity": int(row["s_pop"]), "rows": []}
            subjects.setdefault(title, meta)["rows"].append(int(row["id"]))
        except (TypeError, ValueError):
            given = f"id {row['id']!r} and s_pop {row['s_pop']!r}"
            raise LovecError(f"{path or HUB.name}, row {number}: {given}, expected whole numbers") from None
    ids = Ids()
    return [Record(ids.of(title), QUESTION.format(entity=title), meta=meta) for title, meta in subjects.items()]
