"""The log of the server: what clients send can neither forge lines, nor steer a terminal, nor show the key."""

from __future__ import annotations

import logging
import re

_CONTROL = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


class SafeFormatter(logging.Formatter):
    """Escapes control characters; the later lines of an entry (a traceback) begin with a bar.

    Args:
        key: the API key, which is left out wherever it stands; None where there is none.
    """

    def __init__(self, key: str | None = None) -> None:
        super().__init__("lovec: %(levelname)s: %(message)s")
        self._key = key

    def format(self, record: logging.LogRecord) -> str:
        """Return an entry as text."""
        text = super().format(record)
        if self._key:
            text = text.replace(self._key, "***")
        return _CONTROL.sub(lambda match: ascii(match[0])[1:-1], text).replace("\n", "\n  | ")


def log_to_stderr(key: str | None) -> None:
    """Send the log of this process to standard error, with ``SafeFormatter``.

    Args:
        key: the API key.
    """
    handler = logging.StreamHandler()
    handler.setFormatter(SafeFormatter(key))
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
