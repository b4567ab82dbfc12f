"""Random streams that are functions of explicit keys, so that a resumed run draws what an uninterrupted one draws."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def seeded(*key: int) -> Iterator[None]:
    """Seed torch's random streams with a function of ``key`` inside the block, and restore their state afterwards."""
    with torch.random.fork_rng(devices=[torch.cuda.current_device()] if torch.cuda.is_available() else []):
        torch.manual_seed(stream_seed(*key))
        yield


def stream_seed(*key: int) -> int:
    """Return a 63-bit seed that is a function of several integers, the same in every process and Python version."""
    return hash(key) & 0x7FFF_FFFF_FFFF_FFFF  # the hash of a tuple of ints is not salted
