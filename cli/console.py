"""What several commands share: quiet loading, headings of stages, and what keeps the output of two runs apart."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from lovec.types import LovecError


@contextmanager
def quiet() -> Iterator[None]:
    """Show no progress bars of loading, and do not repeat Lightning's lines about the machine at every stage."""
    import lightning.pytorch  # noqa: F401 - it sets the levels of its loggers when it is imported
    from transformers.utils.logging import disable_progress_bar, enable_progress_bar

    disable_progress_bar()
    try:
        with log_level("lightning.pytorch", logging.WARNING), log_level("lightning.fabric", logging.WARNING):
            yield
    finally:
        enable_progress_bar()


@contextmanager
def log_level(name: str, level: int) -> Iterator[None]:
    """Let a logger log nothing below a level."""
    logger = logging.getLogger(name)
    previous = logger.level
    logger.setLevel(level)
    try:
        yield
    finally:
        logger.setLevel(previous)


@contextmanager
def locked(output: Path) -> Iterator[None]:
    """Keep other runs away from an output file or folder.

    Raises:
        LovecError: another run is writing it.
    """
    from filelock import FileLock, Timeout

    output.parent.mkdir(parents=True, exist_ok=True)
    lock = output / ".lock" if output.is_dir() else output.with_name(f".{output.name}.lock")
    try:
        with FileLock(lock, timeout=0):
            yield
    except Timeout:
        raise LovecError(f"another run writes {output}; wait for it, or choose another --out") from None


def weights_digest(adapter: str | None) -> str | None:
    """Return what tells the weights of an adapter from others: the same folder may hold others later.

    Args:
        adapter: PEFT adapter folder, or the folder of its run; None for no adapter.
    """
    if adapter is None:
        return None
    from lovec.labelling.sources import file_digest
    from lovec.taggers.session import adapter_folder

    weights = Path(adapter_folder(adapter), "adapter_model.safetensors")
    return file_digest(weights) if weights.exists() else adapter


def say(line: str) -> None:
    """Announce a stage on standard error."""
    print(f"\n{line}", file=sys.stderr, flush=True)
