"""Smooth calibration error: ECE with a kernel in place of bins, and a bandwidth that follows from the data.

Blasiok and Nakkiran (2024), "Smooth ECE: principled reliability diagrams via kernel smoothing", ICLR, arXiv 2309.12236.
"""

from __future__ import annotations

import torch
from torch import Tensor

from lovec.core.settings import check_range
from lovec.metrics.functional import Values
from lovec.metrics.weighted import PairLayout, WeightedPairs

_CELLS = 4000  # of the grid; confidences with two or three digits lie on it
_NARROWEST = 1e-3  # bandwidth, the same as the authors' code has; a grid resolves no other
_FINEST, _COARSEST = 8192, 512  # steps of the integral for the narrowest bandwidths, and for wide ones
_FIRST, _STEPS = 0.1, 10  # bandwidth that the search starts from, and its length
_CLOSE = 1e-12  # two bandwidths that are no farther apart are equal


def smooth_ece(confidence: Values, factuality: Values, bandwidth: float | None = None) -> Tensor:
    """Compute the smooth calibration error (smECE): the integral of abs(mean of (f - c) K(t, c)) over t in [0, 1].

    K is the reflected Gaussian kernel: mass that a Gaussian would put outside [0, 1] is folded back, so that none is
    lost at the ends. Without a bandwidth, it is the one that equals its own smECE, of which there is exactly one: the
    wider the kernel, the lower smECE. Unlike ECE, smECE is continuous in the confidences, and it bounds how far they
    are from calibrated ones on both sides. Labels may be graded.

    Residuals lie on a grid of 1/4000 (those between its points are split between both neighbours), and the integral has
    at least eight steps per bandwidth: an error below 1e-4 altogether. Bandwidths below 0.001 are not tried: a smECE
    below 0.001 is the one at that bandwidth.

    Args:
        confidence: c, [N], in [0, 1].
        factuality: f, [N], in [0, 1].
        bandwidth: standard deviation of the Gaussian, from 0.001 to 1; None: see above.

    Returns:
        Scalar in [0, 1], float64; 0 is best.

    Raises:
        LovecError: see ``lovec.metrics.functional.checked_pair``, or the bandwidth is out of range.
    """
    check_range("bandwidth", bandwidth, at_least=_NARROWEST, at_most=1)
    modes = _modes(PairLayout.of(confidence, factuality).whole())
    if bandwidth is None:
        return _at_fixed_point(modes)[0]
    return _integral(modes, torch.full_like(modes[:, 0], bandwidth))[0]


def smooth_ece_of(pairs: WeightedPairs) -> Tensor:
    """Compute ``smooth_ece`` with its own bandwidth for every draw, [D]; NaN for a draw without pairs."""
    return _at_fixed_point(_modes(pairs))


def _modes(pairs: WeightedPairs) -> Tensor:
    """Return the cosine coefficients of the residuals, mean of (f - c) cos(pi k c) for k = 0..4000: [D, 4001]."""
    levels, _ = pairs.layout.by_confidence
    residual = (pairs.truth - pairs.mass * levels) / pairs.n[:, None]
    spot = levels * _CELLS
    cell = spot.floor().long().clamp(max=_CELLS - 1)
    share = spot - cell
    grid = residual.new_zeros(len(residual), _CELLS + 1)
    grid.index_add_(1, cell, residual * (1.0 - share)).index_add_(1, cell + 1, residual * share)
    mirrored = torch.cat([grid, grid[:, 1:-1].flip(1)], 1)
    ends = grid[:, :1] + grid[:, -1:] * (1.0 - 2.0 * (torch.arange(_CELLS + 1, device=grid.device) % 2))
    modes: Tensor = (torch.fft.rfft(mirrored).real + ends) / 2
    return modes.where(pairs.n[:, None] > 0, float("nan"))


def _integral(modes: Tensor, bandwidth: Tensor) -> Tensor:
    """Return smECE at the given bandwidths, [D], each with as many steps as it needs; NaN where the coefficients are.

    The reflected Gaussian is 1 + 2 sum_k exp(-(pi k s)^2 / 2) cos(pi k t) cos(pi k c), so a smoothed residual is a sum
    of cosines with damped coefficients.
    """
    steps = (8.0 / bandwidth).log2().ceil().exp2().clamp(_COARSEST, _FINEST)
    area = torch.full_like(bandwidth, float("nan"))
    for number in sorted(set(steps.tolist())):
        rows = steps == number
        area[rows] = _integral_in_steps(modes[rows, : int(number) + 1], bandwidth[rows], int(number))
    return area


def _integral_in_steps(modes: Tensor, bandwidth: Tensor, steps: int) -> Tensor:
    number = torch.arange(modes.shape[1], dtype=modes.dtype, device=modes.device)
    damped = modes * torch.exp(-0.5 * (torch.pi * number * bandwidth[:, None]).square())
    values = torch.fft.irfft(damped.to(torch.complex128), n=2 * steps)[:, : steps + 1] * (2 * steps)
    # The area under the line through the values, which also crosses zero between two of them, is taken exactly.
    left, right = values[:, :-1], values[:, 1:]
    apart = left.abs() + right.abs()
    crossed = (left.square() + right.square()) / (2 * apart)
    return torch.where(left * right < 0, crossed, apart / 2).mean(1)


def _at_fixed_point(modes: Tensor) -> Tensor:
    """Return smECE at the bandwidth that equals it: [D]; NaN where the coefficients are.

    Since smECE falls with the bandwidth, the one that is sought lies between any bandwidth and its smECE. Secants look
    for it there, until both are equal.
    """
    found = torch.full_like(modes[:, 0], float("nan"))
    rows = modes[:, 0].isfinite().nonzero()[:, 0]
    low = torch.full_like(found[rows], _NARROWEST)
    high, bandwidth = torch.ones_like(low), torch.full_like(low, _FIRST)
    last = last_gap = torch.full_like(low, float("nan"))
    for _ in range(_STEPS + 1):
        value = _integral(modes[rows], bandwidth)
        found[rows], gap = value, value - bandwidth
        low, high = low.maximum(value.minimum(bandwidth)), high.minimum(value.maximum(bandwidth)).clamp(min=_NARROWEST)
        secant = bandwidth - gap * (bandwidth - last) / (gap - last_gap)
        last, last_gap = bandwidth, gap
        bandwidth = secant.where(secant.isfinite(), (low + high) / 2).maximum(low).minimum(high)
        going = (bandwidth - last).abs() > _CLOSE
        rows, low, high, bandwidth = rows[going], low[going], high[going], bandwidth[going]
        last, last_gap = last[going], last_gap[going]
        if not len(rows):
            break
    return found
