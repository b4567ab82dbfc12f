"""What was computed for a test that has not ended, so that the next one need not compute it again."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from lovec.core.files import write_text


class KeptFiles:
    """JSON objects in a folder, one to a file, each written whole or not at all.

    Args:
        folder: the folder; it is made when something is kept.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def read(self) -> Iterator[Any]:
        """Yield what all processes have kept; files that are no JSON are passed over."""
        for path in sorted(self.folder.glob("*.json")):
            with suppress(OSError, ValueError):
                yield json.loads(path.read_text(encoding="utf-8"))

    def add(self, data: Mapping[str, Any]) -> None:
        """Keep an object, if JSON and the disk can hold it; the test reports a full disk itself."""
        with suppress(OSError, TypeError, ValueError):
            self.folder.mkdir(parents=True, exist_ok=True)
            write_text(self.folder / f"{uuid.uuid4().hex}.json", json.dumps(data) + "\n")
