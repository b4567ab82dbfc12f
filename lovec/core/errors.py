"""The error that every part of lovec raises where a user can fix something."""

from __future__ import annotations


class LovecError(Exception):
    """An error that the user can fix: says what was given, what was expected, and the fix, in one line."""


class NoTrainingLabels(LovecError):
    """There are no labelled answers to learn from, or too few."""
