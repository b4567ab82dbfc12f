"""The pages that commands write, and how they are told from those of others."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

_MARK = "Written by lovec"


def foot() -> str:
    """Return the sentence at the end of a page."""
    return f"{_MARK} {import_module('lovec').__version__}."


def has_own_page(folder: Path) -> bool:
    """Return whether a folder holds a page that a command has written."""
    try:
        return _MARK in (folder / "index.html").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False
