"""The folder of the templates and style sheets of reports, and their longer texts, which stand in a file there."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
"""Folder of the templates, style sheets and texts."""


@cache
def texts() -> dict[str, Any]:
    """Return the titles and captions of the plots ("plots") and the notes below the tables ("tables"), by name."""
    import yaml

    content: dict[str, Any] = yaml.safe_load((HERE / "texts.yaml").read_text(encoding="utf-8"))
    return content
