"""Files of records in whatever layout: ours, the authors', or that of a human-labelled data set."""

from __future__ import annotations

import os
from collections.abc import Iterator

from lovec.datasets.authors import layout_of, read_authors, read_items
from lovec.datasets.factscore import read_factscore
from lovec.datasets.jsonl import read_records
from lovec.datasets.wikibio import is_wikibio, read_wikibio
from lovec.types import Record


def read_any(path: str | os.PathLike[str]) -> Iterator[Record]:
    """Read records one by one; the keys of the first line say which layout it is.

    Args:
        path: our JSONL, one of the authors' layouts (``lovec.datasets.authors``), FActScore's labelled data, or the
            labelled WikiBio passages.

    Yields:
        Records in file order.

    Raises:
        LovecError: the file is missing or broken, or of no layout that is known: then it is read as our own, and the
            message says what that needs.
    """
    _, first = next(read_items(path), (0, {}))
    if "question" not in first:
        if layout_of(first) is not None:
            yield from read_authors(path)
            return
        if {"input", "output", "annotations"} <= first.keys():
            yield from read_factscore(path)
            return
        if is_wikibio(first):
            yield from read_wikibio(path)
            return
    yield from read_records(path)
