"""What commands that run several others have in common."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager

_TALKATIVE = ("lightning.pytorch", "lightning.fabric")


@contextmanager
def quiet() -> Iterator[None]:
    """Inside: no bars for loading a tiny model, and not the same lines about the machine at every stage."""
    import lightning.pytorch  # noqa: F401 - it sets the levels of its loggers when it is imported
    from transformers.utils.logging import disable_progress_bar, enable_progress_bar

    before = {name: logging.getLogger(name).level for name in _TALKATIVE}
    for name in _TALKATIVE:
        logging.getLogger(name).setLevel(logging.WARNING)
    disable_progress_bar()
    try:
        yield
    finally:
        for name, level in before.items():
            logging.getLogger(name).setLevel(level)
        enable_progress_bar()


def say(line: str) -> None:
    """Announces a stage, on standard error."""
    print(f"\n{line}", file=sys.stderr, flush=True)
