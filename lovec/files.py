"""Files and folders that are written whole or not at all: the only place that renames into position.

Everything is written beside its target under a temporary name, flushed to the disk, and renamed. A reader sees the old
content or the new one, and a kill or a full disk leaves the old one as it was.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def atomic_file(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield a temporary path that replaces ``path`` if the block ends without an error, and is removed if not.

    Args:
        path: file to write; its folder is created if it is missing.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        yield temporary
        _flush_to_disk(temporary)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def write_text(path: str | os.PathLike[str], text: str, errors: str = "strict") -> None:
    """Write a UTF-8 text file, whole or not at all.

    Args:
        path: file to write.
        text: its new content.
        errors: how characters that UTF-8 cannot encode are handled, as for ``str.encode``.
    """
    with atomic_file(path) as temporary:
        temporary.write_text(text, encoding="utf-8", errors=errors)


@contextmanager
def atomic_folder(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield a new, empty folder that replaces ``path`` if the block ends without an error, and is removed if not.

    Args:
        path: folder to write; what it held before is gone only once the new one is in place.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh, old = (path.with_name(f".{path.name}.{os.getpid()}.{kind}") for kind in ("new", "old"))
    for leftover in (fresh, old):
        shutil.rmtree(leftover, ignore_errors=True)
    fresh.mkdir()
    try:
        yield fresh
        for file in fresh.rglob("*"):
            if file.is_file():
                _flush_to_disk(file)
        if path.exists():
            os.replace(path, old)
        os.replace(fresh, path)
    finally:
        for leftover in (fresh, old):
            shutil.rmtree(leftover, ignore_errors=True)


def _flush_to_disk(path: Path) -> None:
    with open(path, "rb") as file:
        os.fsync(file.fileno())
