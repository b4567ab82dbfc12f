"""Ids from names: short, readable, and never the same twice in a file."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter


class Ids:
    """Gives out ids; the second "Zoë Ötz" becomes ``zoe-otz-2``."""

    def __init__(self) -> None:
        self._asked: Counter[str] = Counter()
        self._given: set[str] = set()

    def of(self, name: str) -> str:
        """An id for a name, other than all given out before."""
        base = slug(name) or "unnamed"
        while True:
            self._asked[base] += 1
            found = base if self._asked[base] == 1 else f"{base}-{self._asked[base]}"
            if found not in self._given:  # somebody may be called "Zoë Ötz 2"
                self._given.add(found)
                return found


def slug(name: str) -> str:
    """Lower-case ASCII words with hyphens; a name in another script keeps its own letters."""
    ascii_only = unicodedata.normalize("NFKD", name).encode("ascii", "ignore").decode()
    return re.sub(r"\W+", "-", (ascii_only if ascii_only.strip() else name).lower()).strip("-")
