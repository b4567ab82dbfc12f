"""What a threshold on the confidence achieves: how true the most confident sentences are, and how many are kept.

Risk is 1 - factuality, coverage the share that is kept, the most confident first (El-Yaniv and Wiener 2010; Geifman
and El-Yaniv 2017, arXiv 1705.08500). All are pure functions of two tensors [N] in [0, 1], NaN for N = 0.
"""

from __future__ import annotations

import torch
from torch import Tensor

from lovec.metrics.functional import Values, checked_pair
from lovec.types import N_SCORES

_EDGE = 1e-6  # keeps 0.7, which float32 stores as 0.69999999, above the threshold 7


def risk_coverage(confidence: Values, factuality: Values) -> tuple[Tensor, Tensor]:
    """Compute the risk-coverage curve at the coverages that a threshold can reach: those between groups of ties.

    Args:
        confidence: [N], in [0, 1].
        factuality: [N], in [0, 1].

    Returns:
        Coverage, ascending, in (0, 1], and risk, the mean of 1 - f of what is kept: [groups] each, float64; one group
        per different confidence.

    Raises:
        LovecError: see ``lovec.metrics.functional.checked_pair``.
    """
    count, loss = _groups(*checked_pair(confidence, factuality))
    kept = count.cumsum(0).double()
    return kept / kept[-1:], loss.cumsum(0) / kept


def aurc(confidence: Values, factuality: Values) -> Tensor:
    """Compute the area under the risk-coverage curve: the mean, over k = 1..N, of the risk of the k most confident.

    0 is best. Among equal confidences the order is open: the value is the exact expectation over all orders. A sentence
    of a group then loses what the group does on average, so the k most confident lose, in expectation, the sum of such
    means. A constant confidence gives 1 - mean f, as any order without information does.

    Args:
        confidence: [N], in [0, 1].
        factuality: [N], in [0, 1].

    Returns:
        Scalar in [0, 1], float64.

    Raises:
        LovecError: see ``lovec.metrics.functional.checked_pair``.
    """
    count, loss = _groups(*checked_pair(confidence, factuality))
    expected = (loss / count).repeat_interleave(count)
    return (expected.cumsum(0) / torch.arange(1, len(expected) + 1, device=expected.device)).mean()


def thresholds(confidence: Values, factuality: Values, levels: int = N_SCORES) -> tuple[Tensor, Tensor]:
    """Compute, for each score of a scale, what remains if only sentences of that score or more are kept.

    Args:
        confidence: [N], in [0, 1]; any number, not only those of the levels.
        factuality: [N], in [0, 1].
        levels: number of levels of the scale.

    Returns:
        Share of sentences with c >= score / (levels - 1), and their mean factuality, NaN where there are none:
        [levels] each, float64.

    Raises:
        LovecError: see ``lovec.metrics.functional.checked_pair``.
    """
    confidence, factuality = checked_pair(confidence, factuality)
    least = torch.arange(levels, dtype=confidence.dtype, device=confidence.device) / (levels - 1)
    kept = (confidence >= least[:, None] - _EDGE).double()  # [levels, N]
    return kept.mean(1), kept @ factuality / kept.sum(1)


def _groups(confidence: Tensor, factuality: Tensor) -> tuple[Tensor, Tensor]:
    """Return size and summed loss 1 - f of each group of equal confidences, the most confident first: [groups] each."""
    _, place, count = torch.unique(-confidence, return_inverse=True, return_counts=True)
    return count, torch.zeros_like(count, dtype=torch.float64).index_add(0, place, 1.0 - factuality)
