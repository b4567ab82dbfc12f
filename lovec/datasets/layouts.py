"""Files of records in any known layout: lovec's own, the authors', or that of a human-labelled data set."""

from __future__ import annotations

import os
from collections.abc import Iterator

from lovec.datasets.authors import layout_of, read_authors, read_items
from lovec.datasets.factscore import read_factscore
from lovec.datasets.jsonl import read_records
from lovec.datasets.wikibio import is_wikibio, read_wikibio
from lovec.types import Record


def read_any(path: str | os.PathLike[str]) -> Iterator[Record]:
    """Read records one by one; the layout is recognised by the keys of the first line.

    Args:
        path: lovec's JSONL, a file in one of the authors' layouts (``lovec.datasets.authors``), FActScore's labelled
            data, or the labelled WikiBio passages.

    Yields:
        Records in file order.

    Raises:
        LovecError: the file is missing or broken. A file of unknown layout is read as lovec's own, and the message says
            what that needs.
    """
    _, first = next(read_items(path), (0, {}))
    if "question" in first:
        yield from read_records(path)
    elif layout_of(first) is not None:
        yield from read_authors(path)
    elif {"input", "output", "annotations"} <= first.keys():
        yield from read_factscore(path)
    elif is_wikibio(first):
        yield from read_wikibio(path)
    else:
        yield from read_records(path)
