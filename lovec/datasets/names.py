"""Record ids made from names: short, readable and unique within a file."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter


class Ids:
    """Makes unique ids from names; the second "Zoë Ötz" becomes ``zoe-otz-2``."""

    def __init__(self) -> None:
        self._uses: Counter[str] = Counter()
        self._ids: set[str] = set()

    def of(self, name: str) -> str:
        """Return an id for a name, different from all earlier ones."""
        base = slug(name) or "unnamed"
        while True:
            self._uses[base] += 1
            new_id = base if self._uses[base] == 1 else f"{base}-{self._uses[base]}"
            if new_id not in self._ids:  # another name may be "Zoë Ötz 2"
                self._ids.add(new_id)
                return new_id


def slug(name: str) -> str:
    """Return a name as lower-case ASCII words with hyphens; a name in another script keeps its letters."""
    ascii_only = unicodedata.normalize("NFKD", name).encode("ascii", "ignore").decode()
    return re.sub(r"\W+", "-", (ascii_only if ascii_only.strip() else name).lower()).strip("-")
