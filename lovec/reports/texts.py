"""The words of reports: names of modes and readouts, and longer texts, which stand in a file beside the templates."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from lovec.types import ELSEWHERE

HERE = Path(__file__).parent
"""Folder of the templates, style sheets and texts."""

MODE_TITLES: Mapping[str, str] = {
    "iterative": "Iterative tagging",
    "free-form": "Free-form tagging",
    ELSEWHERE: "Scores made elsewhere",
}
"""Headings of the evaluation modes, and of the rows that no evaluation has made."""

READOUT_TITLES: Mapping[str, str] = {
    "stated": "stated score",
    "mean": "mean of the distribution",
    "deployed": "deployed confidence",
}
"""The readouts in words."""

MAIN_READOUT = "stated"
"""The readout of every table, plot and number that is not about another one."""


@cache
def texts() -> dict[str, Any]:
    """Return the titles and captions of plots ("plots"), the notes below tables ("tables") and "terms", by name."""
    import yaml

    content: dict[str, Any] = yaml.safe_load((HERE / "texts.yaml").read_text(encoding="utf-8"))
    return content


def explained(terms: Iterable[str]) -> str:
    """Return what words mean, each once and without a full stop; what has no explanation is left out."""
    known: Mapping[str, str] = texts()["terms"]
    return "; ".join(f"{term}: {known[term]}" for term in dict.fromkeys(terms) if term in known)
