"""Calibration and ranking metrics of confidences against soft labels, as pure functions of tensors.

Unless stated otherwise, a function takes two tensors [N] in [0, 1] (or arrays or sequences, see ``checked_pair``),
computes in float64 (so that inputs of any precision agree) and returns NaN for N = 0.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Sequence
from functools import cache
from numbers import Real
from typing import TYPE_CHECKING, Literal, TypeAlias

import numpy as np
import torch
from torch import Tensor

from lovec.core.settings import check_choice, check_count, check_range
from lovec.types import N_SCORES, LovecError

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

Variant: TypeAlias = Literal["bins", "levels", "huang"]
"""Variants of ECE-M, see ``ece_m``."""

Values: TypeAlias = "Tensor | ArrayLike"
"""Numbers [N]: a tensor, a sequence of Python numbers, or an array with a ``dtype``, such as NumPy's."""

LOG_CLIP = 0.01
"""Confidences are clipped to [LOG_CLIP, 1 - LOG_CLIP] in the log score, unless told otherwise."""

F1_K = 64
"""Number of supported facts that F1@K asks for, unless told otherwise: the lower of those that its authors report."""

MOST_DIGITS = 6
"""The most digits of the decimals that numbers of less than double precision are read as."""
_EDGE = 1e-6  # keeps 0.7, which float32 stores as 0.69999999, in bin 7


def checked_pair(confidence: Values, factuality: Values) -> tuple[Tensor, Tensor]:
    """Return both as float64 tensors without gradient, after checking their shapes and values.

    Values of less than double precision are read as decimals, see ``exact_values``. Values on a device without float64
    come back on the CPU.

    Args:
        confidence: [N], in [0, 1]: a tensor, a NumPy array or a sequence of numbers.
        factuality: [N], in [0, 1]: likewise.

    Raises:
        LovecError: the shapes are not the same [N], or a value is missing, NaN, no number, or outside [0, 1].
    """
    pair = _tensor("confidence", confidence), _tensor("factuality", factuality)
    if pair[0].ndim != 1 or pair[0].shape != pair[1].shape:
        raise LovecError(
            f"confidence has shape {list(pair[0].shape)} and factuality {list(pair[1].shape)}, "
            "expected the same [N] for both; flatten them and leave out what has no label"
        )
    for name, values in zip(("confidence", "factuality"), pair, strict=True):
        wrong = values[~((values >= 0) & (values <= 1))]  # NaN compares false, so it is caught too
        if wrong.numel():
            value = wrong[0].item()
            shown = f"{value:g}" if not 0 <= float(f"{value:g}") <= 1 else repr(value)  # 1.0000000001 is not "1"
            raise LovecError(
                f"{name} contains {shown}, expected numbers in [0, 1] without NaN; "
                "divide scores by the top of their scale and ratings by 10, leave out what is missing"
            )
    return exact_values(pair[0]), exact_values(pair[1])


def exact_values(values: Tensor) -> Tensor:
    """Return values as float64, on a device that has it; those of less precision as the decimals they stand for.

    A float32, float16 or bfloat16 number becomes the decimal with the fewest digits, at most six, that rounds to it:
    bfloat16 stores 0.7 as 0.69921875, which would fall into another bin of ECE-M, and would not tie with the 0.7 of
    another batch. A number that no such decimal rounds to stays as it is.

    Args:
        values: any shape.

    Returns:
        The same shape, float64, without gradient.
    """
    values = values.detach().to(float64_device(values.device))
    stored = values.double()
    if not values.is_floating_point() or values.dtype == torch.float64:
        return stored
    exact = stored
    for digits in reversed(range(MOST_DIGITS + 1)):  # fewer digits overwrite more
        decimal = (stored * 10**digits).round() / 10**digits
        exact = decimal.where(decimal.to(values.dtype) == values, exact)
    return exact


@cache
def float64_device(device: torch.device) -> torch.device:
    """Return the device, or the CPU for a device whose tensors cannot be float64, such as Apple's GPUs."""
    try:
        torch.zeros(1, dtype=torch.float64, device=device)
    except (TypeError, RuntimeError):  # torch raises the one or the other, by device
        return torch.device("cpu")
    return device


def _tensor(name: str, values: Values) -> Tensor:
    """Return values as a tensor, in their own precision; Python numbers are float64.

    Raises:
        LovecError: a value is missing or no number.
    """
    if isinstance(values, Tensor):
        return values
    try:
        if not hasattr(values, "dtype"):
            return torch.tensor(values, dtype=torch.float64)
        # A copy, since torch takes the index of a pandas column for positions, and reads no array backwards.
        array = np.array(values)
        return torch.tensor(array) if array.dtype != object else torch.tensor(array.tolist(), dtype=torch.float64)
    except (TypeError, ValueError, RuntimeError):
        pass
    listed = list(values) if isinstance(values, Iterable) else [values]
    place, wrong = next(((i, v) for i, v in enumerate(listed) if not isinstance(v, Real)), (0, values))
    raise LovecError(
        f"{name} contains {wrong!r} at index {place}, expected numbers in [0, 1]; leave out what has no label"
    )


def expected_confidence(weights: Tensor) -> Tensor:
    """Compute the expected confidence of distributions over the levels of a scale: E[score] / top.

    Args:
        weights: probabilities of the scores 0..top, up to a positive factor per distribution (they are renormalised),
            [..., top + 1]. Gradients flow through.

    Returns:
        [...] in [0, 1], in the dtype of ``weights``; NaN where all weights are 0.
    """
    top = weights.shape[-1] - 1
    scores = torch.arange(top + 1, dtype=weights.dtype, device=weights.device)
    return (weights @ scores / weights.sum(-1) / top).clamp(max=1.0)  # rounding can lift a certain top score above 1


def mean_confidence(weights: Sequence[float]) -> float | None:
    """Compute the expected confidence of one distribution, see ``expected_confidence``; None where it has no mass."""
    value = expected_confidence(torch.tensor(weights, dtype=torch.float64)).item()
    return None if math.isnan(value) else value


def brier_score(confidence: Values, factuality: Values) -> Tensor:
    """Compute the Brier score with soft labels: mean (c - f)^2 (Brier 1950). 0 is best, 1 worst.

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


def group_count(variant: str, bins: int, levels: int) -> int:
    """Return the number of groups that a variant of ECE-M sorts confidences into.

    Raises:
        LovecError: the variant is unknown, or there are fewer than one bin or two levels.
    """
    check_choice("variant of ECE-M", variant, Variant)
    check_count("bins of ECE-M", bins)
    check_count("levels of ECE-M", levels, at_least=2)
    return bins if variant == "bins" else levels


def group_of(confidence: Tensor, variant: str, bins: int = 10, levels: int = N_SCORES) -> Tensor:
    """Return the group 0, 1, ... that each confidence belongs to.

    Args:
        confidence: [N], float64, from ``checked_pair``.
        variant: see ``ece_m``.
        bins: see ``ece_m``.
        levels: see ``ece_m``.

    Returns:
        [N], int64.
    """
    groups = group_count(variant, bins, levels)
    if variant == "bins":
        return (groups * confidence + _EDGE).floor().long().clamp(max=groups - 1)
    return ((groups - 1) * confidence + 0.5 + _EDGE).floor().long()


def group_sums(confidence: Tensor, factuality: Tensor, variant: str, bins: int = 10, levels: int = N_SCORES) -> Tensor:
    """Compute the sums per group from which ``ece_from_sums`` computes ECE-M; sums of batches add up.

    Args:
        confidence: [N], float64, from ``checked_pair``.
        factuality: [N], float64, from ``checked_pair``.
        variant: see ``ece_m``.
        bins: see ``ece_m``.
        levels: see ``ece_m``.

    Returns:
        [3, groups], float64: number of pairs, sum of the confidences (of the levels themselves for "huang"), sum of the
        factualities.
    """
    groups = group_count(variant, bins, levels)
    group = group_of(confidence, variant, bins, levels)
    stated = group.double() / (groups - 1) if variant == "huang" else confidence
    rows = torch.stack([torch.ones_like(confidence), stated, factuality])
    return rows.new_zeros(3, groups).index_add(1, group, rows)


def ece_from_sums(sums: Tensor) -> Tensor:
    """Compute ECE-M from ``group_sums`` [3, groups]: sum |B| |mean f - mean c| / N = sum |sum f - sum c| / N."""
    count, confidence, factuality = sums.unbind()
    return (factuality - confidence).abs().sum() / count.sum()


def ece_m(
    confidence: Values, factuality: Values, variant: str = "bins", bins: int = 10, levels: int = N_SCORES
) -> Tensor:
    """Compute the expected calibration error with soft labels: sum over groups B of |B|/N |mean f - mean c|.

    0 is best, 1 worst. Of hard labels it is the usual ECE.

    Variants:
        - "bins": equal bins of the confidence, bin = min(floor(bins c + 1e-6), bins - 1). Zeros are kept; 1 is in the
          last bin; with 10 bins 0.3 is in bin 3 and 0.7 in bin 7, in float32 and float64 alike.
        - "levels": one group per level of the scale; a confidence belongs to the nearest level (halves go up). On the
          default scale these are 0, 0.1, ..., 1, so 0.9 and 1, which share a bin above, are told apart.
        - "huang": groups as in "levels", but the mean factuality is compared with the level itself instead of with the
          mean confidence: sum |B|/N |mean f - level|. Huang et al. (2024, arXiv 2402.06544) treat confidence and
          correctness as distributions over fixed levels; a single number is taken here as all mass on its nearest
          level, which is our reading of theirs for scalars, not a port of their code. For stated scores it equals
          "levels"; it differs for continuous confidences, whose rounding it counts as error.

    Args:
        confidence: c, [N], in [0, 1].
        factuality: f, [N], in [0, 1].
        variant: "bins", "levels" or "huang".
        bins: number of bins of the variant "bins".
        levels: number of levels of the scale for the other two variants.

    Returns:
        Scalar, float64.

    Raises:
        LovecError: see ``checked_pair`` and ``group_count``.
    """
    return ece_from_sums(group_sums(*checked_pair(confidence, factuality), variant, bins, levels))


def spearman(confidence: Values, factuality: Values) -> Tensor:
    """Compute Spearman's rank correlation (Spearman 1904): Pearson's correlation of the ranks, ties at their mid-rank.

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
        pairs = confidence.numel()
        verb = "is" if len(constant) == 1 else "are"
        why = "there is only one pair" if pairs == 1 else f"{' and '.join(constant)} {verb} constant over {pairs} pairs"
        warnings.warn(f"Spearman's correlation is undefined (NaN): {why}", stacklevel=2)
    x, y = _midranks(confidence), _midranks(factuality)
    x, y = x - x.mean(), y - y.mean()
    # Ranks are halves of integers, so a constant side is exactly 0 here, and 0 / 0 is NaN.
    return ((x * y).sum() / (x.square().sum() * y.square().sum()).sqrt()).clamp(-1.0, 1.0)


def log_score(confidence: Values, factuality: Values, clip: float = LOG_CLIP) -> Tensor:
    """Compute the logarithmic score: mean of -(f ln c + (1 - f) ln (1 - c)) (Good 1952), the cross-entropy in nats.

    A confidence of 0 or 1 would cost infinitely much where it is wrong, so confidences are clipped to [clip, 1 - clip]
    first: the score depends on the clip wherever confidences lie outside. Lower is better; the lowest for given labels
    is the mean of their entropies, which is 0 for labels 0 and 1 only (up to the clip: -ln (1 - clip)).

    Args:
        confidence: c, [N], in [0, 1].
        factuality: f, [N], in [0, 1].
        clip: above 0 and below 0.5.

    Returns:
        Scalar from 0 to -ln clip, in nats, float64.

    Raises:
        LovecError: see ``checked_pair``, or the clip is out of range.
    """
    return log_losses(*checked_pair(confidence, factuality), clip).mean()


def log_losses(confidence: Tensor, factuality: Tensor, clip: float = LOG_CLIP) -> Tensor:
    """Compute the logarithmic loss of every pair, [N], of tensors from ``checked_pair``; see ``log_score``.

    Raises:
        LovecError: the clip is out of range.
    """
    check_range("clip of the log score", clip, above=0, below=0.5)
    clipped = confidence.clamp(clip, 1.0 - clip)
    return -(factuality * clipped.log() + (1.0 - factuality) * (1.0 - clipped).log())


def f1_at_k(supported: Values, total: Values, k: int = F1_K) -> Tensor:
    """Compute F1@K of passages: the harmonic mean of precision and of recall up to K facts (Wei et al. 2024, LongFact).

    Precision is S / N and recall min(S / K, 1), with S the number of supported sentences or claims of a passage and N
    that of all; see arXiv 2403.18802, eq. 1. It rewards what precision alone does not: saying more that is true. K is
    how many supported facts a reader wants; the authors report 64 and 178. With graded labels S is their sum.

    Args:
        supported: S of each passage, [P].
        total: N of each passage, [P].
        k: K, at least 1.

    Returns:
        [P] in [0, 1], float64; 0 where nothing is supported, NaN where N = 0.

    Raises:
        LovecError: the shapes differ, S is not in [0, N], or K is below 1.
    """
    check_count("K of F1@K", k)
    s, n = (_tensor(name, values).detach().double() for name, values in (("supported", supported), ("total", total)))
    if s.ndim != 1 or s.shape != n.shape or not ((s >= 0) & (s <= n + _EDGE)).all():
        raise LovecError(
            f"supported is {str(s.tolist())[:60]} and total {str(n.tolist())[:60]}, expected one number per passage in "
            "each, and no more supported than there are"
        )
    recall = (s / k).clamp(max=1.0)
    return (2 * s * recall / (s + n * recall)).where(s > 0, 0.0).where(n > 0, float("nan"))


def entropy(counts: Tensor) -> Tensor:
    """Compute the entropy of a histogram: sum p log 1/p over the values that occur.

    0 where all values are the same, log K for K equally frequent ones.

    Args:
        counts: how often each value occurs, [K].

    Returns:
        Scalar in nats, float64; NaN where all counts are 0.
    """
    counts = counts[counts > 0].double()
    total = counts.sum()
    return (counts / total * (total / counts).log()).sum() if counts.numel() else counts.new_tensor(float("nan"))


def ordinality(distributions: Tensor) -> Tensor:
    """Compute how consistently probabilities of scores fall with distance from the most probable score.

    It makes a number of what the paper calls "numerical consistency": the share of pairs of scores on the same side of
    the most probable score (the lowest of equals) of which the nearer one has more probability; a tie is half a pair.
    Pairs with the most probable score itself say nothing and do not count. Only the order counts, however small the
    probabilities.

    Args:
        distributions: probabilities of the scores 0..K-1 (whole score strings, however many tokens they are), up to a
            factor, [N, K].

    Returns:
        [N] in [0, 1], float64: 1 where every probability falls with distance, 0.5 in expectation for an order drawn at
        random; NaN where no score has any probability, or the scale is too short to have such a pair.
    """
    p = distributions.detach().double()
    scores = torch.arange(p.shape[1], device=p.device)
    far, near = torch.meshgrid(scores, scores, indexing="ij")
    top = p.argmax(1)[:, None, None]
    outward = ((far < near) & (near < top)) | ((far > near) & (near > top))  # [N, K, K]
    share = (1.0 + (p[:, None, :] - p[:, :, None]).sign()) / 2.0
    value = (share * outward).sum((1, 2)) / outward.sum((1, 2))
    return value.where(p.sum(1) > 0, float("nan"))


def _midranks(values: Tensor) -> Tensor:
    """Return the ranks 1..N of values [N]; equal values share the middle of their ranks."""
    ordered = values.sort().values
    below = torch.searchsorted(ordered, values)
    not_above = torch.searchsorted(ordered, values, right=True)
    return (below + not_above + 1).double() / 2
