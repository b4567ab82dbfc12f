"""Scores as numbers, whatever precision they come in."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from lovec.calibration.logistic import Array
from lovec.metrics.functional import exact_values


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
    size, single = np.abs(given), np.finfo(np.float32)
    known = exact_values(torch.tensor(given).float()).numpy()
    return np.where((size >= single.tiny) & (size <= single.max), known, given)


def as_numbers(values: ArrayLike) -> Array:
    """Return numbers or a tensor of any shape as float64; those of half precision as the decimals they stand for."""
    if getattr(values, "dtype", None) == np.float16:
        values = torch.tensor(np.array(values))
    return exact_values(values).cpu().numpy() if isinstance(values, Tensor) else np.array(values, dtype=np.float64)
