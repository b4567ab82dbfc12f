"""Scores as numbers, whatever precision they come in."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from lovec.calibration.logistic import Array
from lovec.metrics.functional import MOST_DIGITS, exact_values

_SINGLE = np.finfo(np.float32)


def resolved(values: ArrayLike) -> Array:
    """Return numbers as float64, the same for all that float32 stores alike (about seven digits).

    A score may come as a float32, a float64 or a decimal, in whatever type a file gives it. Each becomes the decimal
    that the float32 stands for, see ``exact_values``, so that they tie with each other and with a threshold. Numbers
    outside the range of float32 stay as they are.

    Args:
        values: any shape.

    Returns:
        The same shape; NaN where a number is NaN.
    """
    given = as_numbers(values)
    size = np.abs(given)
    known = exact_values(torch.tensor(given).float()).numpy()
    return np.where((size >= _SINGLE.tiny) & (size <= _SINGLE.max), known, given)


def resolved_number(value: float) -> float:
    """Return what ``resolved`` returns of one number, sooner."""
    if not _SINGLE.tiny <= abs(value) <= _SINGLE.max:
        return value
    stored = np.float32(value)
    decimals = (round(float(stored) * 10**digits) / 10**digits for digits in range(MOST_DIGITS + 1))
    return next((decimal for decimal in decimals if np.float32(decimal) == stored), float(stored))


def as_numbers(values: ArrayLike) -> Array:
    """Return numbers or a tensor of any shape as float64; those of half precision as the decimals they stand for."""
    if getattr(values, "dtype", None) == np.float16:
        values = torch.tensor(np.array(values))
    return exact_values(values).cpu().numpy() if isinstance(values, Tensor) else np.array(values, dtype=np.float64)
