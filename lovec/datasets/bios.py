"""Bios: FActScore's questions about 183 people with a page in Wikipedia (Min et al. 2023)."""

from __future__ import annotations

import os

from lovec.datasets.jsonl import open_input
from lovec.datasets.names import Ids
from lovec.encoding import QUESTION
from lovec.types import LovecError, Record

DOMAIN = "Bios"


def read_bios(path: str | os.PathLike[str] | None = None) -> list[Record]:
    """Return a question about every name in a file; the name is the title of the person's page in Wikipedia.

    Args:
        path: text file with one name per line, such as FActScore's ``prompt_entities.txt``.

    Returns:
        Records whose ``meta`` has entity and domain.

    Raises:
        LovecError: the file is missing, or has no names, or is JSON.
    """
    expected = "FActScore's prompt_entities.txt (183 names, one per line) as path (--data.path prompt_entities.txt)"
    hint = f"give {expected}"
    if path is None:
        raise LovecError(f"the names of Bios are not on the Hugging Face hub; {hint}")
    try:
        with open_input(path, expected) as file:
            lines = file.read().decode("utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise LovecError(f"cannot read {path} ({getattr(error, 'strerror', None) or error}); {hint}") from None
    names = list(dict.fromkeys(filter(None, map(str.strip, lines))))
    if not names or names[0].startswith(("{", "[")):
        raise LovecError(f"{path} {'is JSON' if names else 'is empty'}, expected names; {hint}")
    ids = Ids()
    return [
        Record(ids.of(name), QUESTION.format(entity=name), meta={"entity": name, "domain": DOMAIN}) for name in names
    ]
