"""The error that every part of lovec raises where a user can fix something."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager


class LovecError(Exception):
    """An error that the user can fix: says what was given, what was expected, and the fix, in one line."""


class NoTrainingLabels(LovecError):
    """There are no labelled answers to learn from, or too few."""


@contextmanager
def error_in(place: str = "", end: str = "", kind: Callable[[str], Exception] = LovecError) -> Iterator[None]:
    """Raise the errors of the block with a longer message.

    Args:
        place: what comes before the message.
        end: what comes behind it.
        kind: makes what they become of the longer message.
    """
    try:
        yield
    except LovecError as error:
        raise kind(f"{place}{error}{end}") from None
