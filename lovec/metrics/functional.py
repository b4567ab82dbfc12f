"""Calibration and ranking of confidences against soft labels: pure functions of two tensors [N] in [0, 1].

Everything is computed in float64, so float32 and float64 inputs agree. With N = 0 every figure is NaN.
"""

from __future__ import annotations

import warnings

import torch
from torch import Tensor

from lovec.types import N_SCORES, LovecError

VARIANTS = ("bins", "levels", "huang")
"""Variants of ECE-M, see ``ece_m``."""

_EDGE = 1e-6  # keeps 0.7, which float32 stores as 0.69999999, in bin 7


def checked_pair(confidence: Tensor, factuality: Tensor) -> tuple[Tensor, Tensor]:
    """Both tensors as float64, without gradient.

    Args:
        confidence: [N], in [0, 1].
        factuality: [N], in [0, 1].

    Raises:
        LovecError: the shapes are not the same [N], or a value is NaN or outside [0, 1].
    """
    if confidence.ndim != 1 or confidence.shape != factuality.shape:
        raise LovecError(
            f"confidence has shape {list(confidence.shape)} and factuality {list(factuality.shape)}, "
            "expected the same [N] for both; flatten them and leave out what has no label"
        )
    for name, values in (("confidence", confidence), ("factuality", factuality)):
        wrong = values[~((values >= 0) & (values <= 1))]  # NaN compares false, so it is caught too
        if wrong.numel():
            raise LovecError(
                f"{name} holds {wrong[0].item():g}, expected numbers in [0, 1] without NaN; "
                "divide scores and ratings by 10, leave out what is missing"
            )
    return confidence.detach().double(), factuality.detach().double()


def brier_score(confidence: Tensor, factuality: Tensor) -> Tensor:
    """Brier score with soft labels: mean (c - f)^2 (Brier 1950). 0 is best, 1 worst.

    Args:
        confidence: c, [N], in [0, 1].
        factuality: f, [N], in [0, 1].

    Returns:
        Scalar, float64.

    Raises:
        LovecError: see ``checked_pair``.
    """
    confidence, factuality = checked_pair(confidence, factuality)
    return (confidence - factuality).square().mean()


def group_count(variant: str, bins: int) -> int:
    """Number of groups of a variant of ECE-M.

    Raises:
        LovecError: an unknown variant, or fewer than one bin.
    """
    if variant not in VARIANTS:
        raise LovecError(f"variant of ECE-M is {variant!r}, expected one of {', '.join(VARIANTS)}")
    if bins < 1:
        raise LovecError(f"ECE-M got bins={bins}, expected 1 or more; the usual number is 10")
    return bins if variant == "bins" else N_SCORES


def group_of(confidence: Tensor, variant: str, bins: int) -> Tensor:
    """The group 0, 1, ... of every confidence.

    Args:
        confidence: [N], float64, from ``checked_pair``.
        variant: see ``ece_m``.
        bins: see ``ece_m``.

    Returns:
        [N], int64.
    """
    if variant == "bins":
        return (bins * confidence + _EDGE).floor().long().clamp(max=bins - 1)
    return ((group_count(variant, bins) - 1) * confidence + 0.5 + _EDGE).floor().long()


def group_sums(confidence: Tensor, factuality: Tensor, variant: str, bins: int) -> Tensor:
    """What ECE-M needs to know of each group; sums of batches add up to the sums of the whole.

    Args:
        confidence: [N], float64, from ``checked_pair``.
        factuality: [N], float64, from ``checked_pair``.
        variant: see ``ece_m``.
        bins: see ``ece_m``.

    Returns:
        [3, groups], float64: count, sum of what the group states, sum of factuality.
    """
    groups = group_count(variant, bins)
    group = group_of(confidence, variant, bins)
    stated = group.double() / (groups - 1) if variant == "huang" else confidence
    rows = torch.stack([torch.ones_like(confidence), stated, factuality])
    return rows.new_zeros(3, groups).index_add(1, group, rows)


def ece_from_sums(sums: Tensor) -> Tensor:
    """ECE-M of the sums [3, groups] of ``group_sums``: sum |B| |mean f - mean c| / N = sum |sum f - sum c| / N."""
    count, stated, factuality = sums.unbind()
    return (factuality - stated).abs().sum() / count.sum()


def ece_m(confidence: Tensor, factuality: Tensor, variant: str = "bins", bins: int = 10) -> Tensor:
    """Expected calibration error with soft labels: sum over groups B of |B|/N |mean f - mean c|. 0 is best, 1 worst.

    Variants:
        - "bins": equal bins of the confidence, bin = min(floor(bins c + 1e-6), bins - 1). Zeros are kept; 1 is in the
          last bin; with 10 bins 0.3 is in bin 3 and 0.7 in bin 7, in float32 and float64 alike.
        - "levels": one group for each of the 11 scores a tag can hold; a confidence belongs to the nearest of 0, 0.1,
          ..., 1 (halves go up). 0.9 and 1, which share a bin above, are told apart.
        - "huang": groups as in "levels", but the mean factuality is held against the level itself instead of against
          the mean confidence: sum |B|/N |mean f - level|. Huang et al. (2024, arXiv 2402.06544) treat confidence and
          correctness as distributions over fixed levels; a single number is taken here as all mass on its nearest
          level, which is our reading of theirs for scalars, not a port of their code. For integer scores it equals
          "levels"; it differs for continuous confidences, whose rounding it counts as error.

    Args:
        confidence: c, [N], in [0, 1].
        factuality: f, [N], in [0, 1].
        variant: "bins", "levels" or "huang".
        bins: number of bins of the variant "bins".

    Returns:
        Scalar, float64.

    Raises:
        LovecError: see ``checked_pair`` and ``group_count``.
    """
    return ece_from_sums(group_sums(*checked_pair(confidence, factuality), variant, bins))


def spearman(confidence: Tensor, factuality: Tensor) -> Tensor:
    """Spearman's rank correlation (Spearman 1904): Pearson's correlation of the ranks, ties at their middle rank.

    Args:
        confidence: [N], in [0, 1].
        factuality: [N], in [0, 1].

    Returns:
        Scalar in [-1, 1], float64; NaN with a warning where one side is constant (a single pair included).

    Raises:
        LovecError: see ``checked_pair``.
    """
    confidence, factuality = checked_pair(confidence, factuality)
    constant = [
        name
        for name, values in (("confidence", confidence), ("factuality", factuality))
        if values.numel() and bool((values == values[0]).all())
    ]
    if constant:
        warnings.warn(
            f"Spearman's correlation is undefined (NaN): {' and '.join(constant)} is the same in all "
            f"{confidence.numel()} pairs",
            stacklevel=2,
        )
    x, y = _midranks(confidence), _midranks(factuality)
    x, y = x - x.mean(), y - y.mean()
    # Ranks are halves of integers, so a constant side is exactly 0 here, and 0 / 0 is NaN.
    return ((x * y).sum() / (x.square().sum() * y.square().sum()).sqrt()).clamp(-1.0, 1.0)


def auroc(confidence: Tensor, factuality: Tensor) -> Tensor:
    """Area under the ROC curve: how often a true answer has more confidence than a false one, ties counting half.

    For hard labels, as short answers have. (ECE-M of hard labels is the usual ECE: nothing else is needed for it.)

    Args:
        confidence: [N], in [0, 1].
        factuality: [N], 0 or 1.

    Returns:
        Scalar in [0, 1], float64; NaN where a label is neither 0 nor 1, or all are the same.

    Raises:
        LovecError: see ``checked_pair``.
    """
    confidence, factuality = checked_pair(confidence, factuality)
    true = factuality == 1
    n, others = true.sum().double(), (factuality == 0).sum().double()
    if n + others < factuality.numel():
        return confidence.new_tensor(float("nan"))
    # Mann and Whitney (1947): the ranks of the true ones, less what they would be if the true ones stood lowest.
    return (_midranks(confidence)[true].sum() - n * (n + 1) / 2) / (n * others)


def entropy(counts: Tensor) -> Tensor:
    """Entropy of a histogram: sum p log 1/p over the values that occur. 0 where all are the same, log K for K alike.

    Args:
        counts: how often each value occurs, [K].

    Returns:
        Scalar in nats, float64; NaN without any.
    """
    counts = counts[counts > 0].double()
    total = counts.sum()
    return (counts / total * (total / counts).log()).sum() if counts.numel() else counts.new_tensor(float("nan"))


def ordinality(distributions: Tensor) -> Tensor:
    """How far probabilities of scores fall with distance from the most probable one (paper, "numerical consistency").

    The share of pairs of scores on the same side of the most probable score (the lowest of equals) of which the nearer
    one has more probability; a tie is half a pair. Pairs with the most probable score itself tell nothing and do not
    count. Only the order counts, however small the probabilities.

    Args:
        distributions: probabilities of the scores 0..10 (whole score strings, however many tokens they are), up to a
            factor, [N, 11].

    Returns:
        [N] in [0, 1], float64: 1 where every probability falls with distance, 0.5 in expectation for an order drawn at
        random; NaN where no score has any probability.
    """
    p = distributions.detach().double()
    scores = torch.arange(p.shape[1], device=p.device)
    far, near = torch.meshgrid(scores, scores, indexing="ij")
    top = p.argmax(1)[:, None, None]
    outward = ((far < near) & (near < top)) | ((far > near) & (near > top))  # [N, 11, 11]
    share = (1.0 + (p[:, None, :] - p[:, :, None]).sign()) / 2.0
    value = (share * outward).sum((1, 2)) / outward.sum((1, 2))
    return value.where(p.sum(1) > 0, float("nan"))


def _midranks(values: Tensor) -> Tensor:
    """Ranks 1..N of values [N]; equal values share the middle of their ranks."""
    ordered = values.sort().values
    below = torch.searchsorted(ordered, values)
    not_above = torch.searchsorted(ordered, values, right=True)
    return (below + not_above + 1).double() / 2
