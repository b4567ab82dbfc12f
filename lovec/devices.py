"""The device that a model runs on, by its name."""

from __future__ import annotations

import torch

from lovec.types import LovecError


def device_of(name: str | None) -> torch.device:
    """Return a device of this machine.

    Args:
        name: such as "cpu", "cuda" or "cuda:1"; None takes CUDA if there is a device, else the CPU.

    Raises:
        LovecError: there is no such device here.
    """
    cuda = [f"cuda:{number}" for number in range(torch.cuda.device_count())]
    try:
        device = torch.device(name or ("cuda" if cuda else "cpu"))
        torch.zeros(1, device=device).item()  # "meta" is a device without memory
    except (RuntimeError, AssertionError) as error:
        reason = str(error).strip().splitlines()[0][:120]
        raise LovecError(
            f"device is {name!r}, which this machine does not have; expected {', '.join(['cpu', *cuda])} ({reason})"
        ) from None
    return device
