"""``lovec calibrate``: of the adapter of a run, or of scores of any origin in a file."""

from __future__ import annotations

import os
from collections.abc import Sequence
from importlib import import_module
from itertools import pairwise

from lovec.core.hub import ADAPTER_FILES, CALIBRATION_FILE

from .parser import with_underscores

_ENDINGS = (".csv", ".tsv", ".json", ".jsonl", ".parquet")
_SWITCHES = ("--redo", "--help", "-h")


def run(words: list[str]) -> None:
    """Fit and write a calibration.

    Args:
        words: the command line after ``calibrate``.

    Raises:
        LovecError: see ``calibrate_run.py`` and ``calibrate_scores.py``.
    """
    module = ".calibrate_run" if scores_file(words) is None else ".calibrate_scores"
    import_module(module, __package__).run(words)


def scores_file(words: Sequence[str]) -> str | None:
    """Return the file with scores that a command line of ``lovec calibrate`` begins with or names; None for a run.

    Args:
        words: the command line after ``calibrate``; a calibration that such a file has given is one as well.
    """
    for before, word in pairwise(["", *with_underscores(words)]):
        is_value = before.startswith("-") and "=" not in before and before not in _SWITCHES
        if not word.startswith("-") and not is_value:
            missing = not os.path.exists(word) and word.removesuffix(".gz").endswith(_ENDINGS)
            named = [os.path.isfile(os.path.join(word, name)) for name in (CALIBRATION_FILE, ADAPTER_FILES[0])]
            fitted = named == [True, False]
            return word if os.path.isfile(word) or missing or fitted else None
    return None
