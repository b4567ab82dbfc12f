"""Words about many things: how many, which ones, warnings that are logged again as their number doubles; near names."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from difflib import get_close_matches

_NAMED = 10


class DoublingWarning:
    """Collects record ids and logs a warning each time their number has doubled since the last one.

    Args:
        log: logger of the calling module.
        message: a ``%``-format whose last two slots are ``%d``, the number of records so far, and ``%s``, the ids of
            those added since the last warning.
        args: values for the slots before these two.

    Attributes:
        ids: ids collected so far, in order, without repetition.
    """

    def __init__(self, log: logging.Logger, message: str, *args: object) -> None:
        self.ids: dict[str, None] = {}
        self._log = log
        self._message = message
        self._args = args
        self._warned = 0

    def add(self, record_id: str) -> None:
        """Collect an id; nothing is logged until ``flush``."""
        self.ids[record_id] = None

    def flush(self) -> None:
        """Log the warning if there are at least twice as many ids as at the last one."""
        if len(self.ids) >= max(1, 2 * self._warned):
            new = list(self.ids)[self._warned :]
            self._warned = len(self.ids)
            self._log.warning(self._message, *self._args, self._warned, listed(new))


class SingleWarning(DoublingWarning):
    """Logs a warning once, about the records collected by then; later ones are collected in silence."""

    def flush(self) -> None:
        """Log the warning if there is an id, and it was not logged before."""
        if not self._warned:
            super().flush()


def listed(names: Sequence[str]) -> str:
    """The first ten names, separated by commas, with ", ..." if there are more."""
    return ", ".join(names[:_NAMED]) + (", ..." if len(names) > _NAMED else "")


def counted(number: int, noun: str, plural: str = "") -> str:
    """Return a number with its noun, such as "1 sentence" and "2 sentences".

    Args:
        number: how many.
        noun: what is counted, in the singular; a verb may follow it ("record has").
        plural: the same in the plural; "" is the noun with an s.
    """
    return f"{number} {noun if number == 1 else plural or f'{noun}s'}"


def nearest(word: str, known: Iterable[str]) -> str:
    """Return ``"; did you mean X?"`` for the known word most like ``word``, or "" if none comes close."""
    matches = get_close_matches(word, list(known), n=1, cutoff=0.6)
    return f"; did you mean {matches[0]}?" if matches else ""
