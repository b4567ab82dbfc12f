"""PopQA, long form: questions for a paragraph about the subject of each row (Mallen et al. 2023, Jiang et al. 2024)."""

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
    """Return a question about every subject, named by the title of its page in Wikipedia.

    Rows about the same subject become one question.

    Args:
        path: a copy of the data set (for example a TSV of its 17 columns), see ``HubDataset.table``; None reads it from
            the hub. There is a question for every subject in the file; give a subset of the rows to ask fewer.

    Returns:
        Records in the order of first appearance. ``meta`` has entity (the title), domain, popularity (monthly page
        views) and rows (ids of the rows about it).

    Raises:
        LovecError: the data set is not available or has another form.
    """
    subjects: dict[str, dict[str, Any]] = {}
    for number, row in enumerate(HUB.table(path).select_columns(list(HUB.columns)), 1):
        title = (row["s_wiki_title"] or row["subj"] or "").strip()
        try:
            meta: dict[str, Any] = {"entity": title, "domain": DOMAIN, "popularity": int(row["s_pop"]), "rows": []}
            subjects.setdefault(title, meta)["rows"].append(int(row["id"]))
        except (TypeError, ValueError):
            raise LovecError(
                f"{path or HUB.name}, row {number}: id is {row['id']!r} and s_pop {row['s_pop']!r}, expected integers"
            ) from None
    ids = Ids()
    return [Record(ids.of(title), QUESTION.format(entity=title), meta=meta) for title, meta in subjects.items()]
