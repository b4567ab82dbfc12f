"""Texts of a model or a stranger, made safe to show: what steers a terminal or changes their direction is replaced."""

from __future__ import annotations

import re

# Control characters except tab and line break; characters that override the direction of text; unpaired surrogates.
# The marks U+200E and U+200F override nothing, and texts in Arabic or Hebrew need them.
_UNSAFE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def visible(text: str) -> str:
    """Return the text without characters that steer a terminal, change the direction of text, or are invalid."""
    return _UNSAFE.sub("\ufffd", text)


def one_line(text: str, longest: int | None = None) -> str:
    """Return a text as one `visible` line, of at most so many characters if a number is given; a cut ends in "…"."""
    text = " ".join(visible(text).split())
    return text if longest is None or len(text) <= longest else text[: longest - 1] + "…"
