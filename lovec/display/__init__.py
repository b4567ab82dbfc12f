"""Tagged answers to look at: as an HTML page, in a notebook and on a terminal."""

from lovec.core.shown import one_line, visible
from lovec.display.marks import (
    BANDS,
    DISAGREEMENT,
    TENTHS,
    TERMINAL,
    Breaks,
    band,
    describe,
    disagrees,
    number,
    sentence_text,
    source_number,
)
from lovec.display.markup import PALETTES, legend_html, notebook_html, page, passage_html, style

__all__ = [
    "BANDS",
    "DISAGREEMENT",
    "PALETTES",
    "TENTHS",
    "TERMINAL",
    "Breaks",
    "band",
    "describe",
    "disagrees",
    "legend_html",
    "notebook_html",
    "number",
    "one_line",
    "page",
    "passage_html",
    "sentence_text",
    "source_number",
    "style",
    "visible",
]
