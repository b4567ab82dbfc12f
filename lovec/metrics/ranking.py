"""How well confidences rank sentences by how true they are, whatever the confidences are as numbers.

Every function takes two tensors [N] in [0, 1] (or arrays or sequences) and depends on the confidences by their order
only. Equal confidences have no order: a pair of them counts half in AUROC and the C-index, average precision takes all
of them together, and AUARC and PRR are the exact expectation over all orders of them. An undefined value is NaN.
Functions with names that end in ``_of`` compute the same for several draws at the same time.
"""

from __future__ import annotations

import torch
from torch import Tensor

from lovec.core.settings import check_range
from lovec.metrics.functional import Values, checked_pair
from lovec.metrics.weighted import PairLayout, WeightedPairs

THRESHOLD = 0.5
"""Labels of this factuality or more count as true where a metric needs labels that are true or false."""

_EDGE = 1e-9  # keeps a mean of labels that rounds to just below the threshold on its upper side


def auroc(confidence: Values, factuality: Values, threshold: float = THRESHOLD) -> Tensor:
    """Compute the area under the ROC curve: how often a true sentence has more confidence than a false one.

    Ties of the confidence count half (Hanley and McNeil 1982). Of labels 0 and 1 it is the usual AUROC, whatever the
    threshold; graded labels become true or false, so that it says nothing about how true. For that see ``c_index``.

    Args:
        confidence: [N], in [0, 1].
        factuality: [N], in [0, 1].
        threshold: labels of this or more are true, above 0 and at most 1.

    Returns:
        Scalar in [0, 1], float64; NaN where all labels are true, or none is.

    Raises:
        LovecError: see ``lovec.metrics.functional.checked_pair``, or the threshold is out of range.
    """
    return auroc_of(PairLayout.of(confidence, factuality).whole(), threshold)[0]


def auroc_of(pairs: WeightedPairs, threshold: float = THRESHOLD) -> Tensor:
    """Compute ``auroc`` of every draw, [D]."""
    true, false = _true_and_false(pairs, threshold)
    below = false.cumsum(1) - false / 2  # halves of integers, so exact
    return (true * below).sum(1) / (true.sum(1) * false.sum(1))


def auprc(confidence: Values, factuality: Values, threshold: float = THRESHOLD) -> Tensor:
    """Compute the area under the precision-recall curve as average precision, true sentences being the positive ones.

    It is the sum over the different confidences, from the highest down, of precision x growth of recall, where equal
    confidences are taken together, as scikit-learn's ``average_precision_score`` does: no interpolation, which would
    be too optimistic (Davis and Goadrich 2006). A confidence that knows nothing gets the share of true sentences.

    Args:
        confidence: [N], in [0, 1].
        factuality: [N], in [0, 1].
        threshold: labels of this or more are true, above 0 and at most 1.

    Returns:
        Scalar in (0, 1], float64; NaN where no label is true, 1 where all are.

    Raises:
        LovecError: see ``lovec.metrics.functional.checked_pair``, or the threshold is out of range.
    """
    return auprc_of(PairLayout.of(confidence, factuality).whole(), threshold)[0]


def auprc_of(pairs: WeightedPairs, threshold: float = THRESHOLD) -> Tensor:
    """Compute ``auprc`` of every draw, [D]."""
    true, false = (side.flip(1) for side in _true_and_false(pairs, threshold))
    found = true.cumsum(1)
    precision = found / (found + false.cumsum(1)).clamp(min=1.0)
    return (true * precision).sum(1) / true.sum(1)


def c_index(confidence: Values, factuality: Values) -> Tensor:
    """Compute the concordance index: of two sentences, how often the truer one has more confidence.

    Harrell's C (Harrell et al. 1982) for graded labels without censoring: among all pairs of sentences with different
    factualities, the share in which the confidences have the same order; equal confidences count half. Of labels 0 and
    1 it is AUROC. 0.5 knows nothing.

    Args:
        confidence: [N], in [0, 1].
        factuality: [N], in [0, 1].

    Returns:
        Scalar in [0, 1], float64; NaN where all factualities are equal.

    Raises:
        LovecError: see ``lovec.metrics.functional.checked_pair``.
    """
    return c_index_of(PairLayout.of(confidence, factuality).whole())[0]


def c_index_of(pairs: WeightedPairs) -> Tensor:
    """Compute ``c_index`` of every draw, [D], in N log K steps, with K different confidences.

    The pairs are sorted by factuality, and `_in_order` counts those that are in the same order by confidence.
    """
    layout, n = pairs.layout, pairs.n
    _, place = layout.by_confidence
    joint = torch.stack([place, layout.by_factuality[1]])
    _, cell, in_cell = torch.unique(joint, dim=1, return_inverse=True, return_counts=True)
    both = pairs.weight.new_zeros(len(n), len(in_cell)).index_add_(1, cell, pairs.weight)
    tied = (pairs.mass.square().sum(1) - both.square().sum(1)) / 2  # equal confidences, different factualities
    comparable = (n.square() - pairs.factuality_mass.square().sum(1)) / 2
    # Equally true pairs stand with the higher confidence first, so that none of them is counted.
    order = place.argsort(descending=True, stable=True)
    order = order[layout.factuality[order].argsort(stable=True)]
    bits = int(place.max()).bit_length() if len(place) else 0
    above = _in_order(place[order], pairs.weight[:, order], bits)
    return (above + tied / 2) / comparable


def order_within(confidence: Values, factuality: Values, group: Tensor) -> Tensor:
    """Compute the concordance index within groups: only two sentences of the same group are compared.

    Among all pairs of sentences of the same group with different factualities, the share in which the truer one has
    more confidence; equal confidences count half. Groups are sentences that claim the same, so that a confidence which
    has only learned how often such claims are true has 0.5, like one that knows nothing.

    Args:
        confidence: [N], in [0, 1].
        factuality: [N], in [0, 1].
        group: [N], integers: the group of each sentence; a negative number stands for none.

    Returns:
        Scalar in [0, 1], float64; NaN where no group has two factualities.

    Raises:
        LovecError: see ``lovec.metrics.functional.checked_pair``.
    """
    confidence, factuality = checked_pair(confidence, factuality)
    known = group >= 0
    of = torch.unique(group[known], return_inverse=True)[1]
    place = torch.unique(confidence[known], return_inverse=True)[1]
    level = torch.unique(factuality[known], return_inverse=True)[1]
    comparable = _pairs_alike(of) - _pairs_alike(of, level)
    tied = _pairs_alike(of, place) - _pairs_alike(of, place, level)  # equal confidences, different factualities
    order = place.argsort(descending=True, stable=True)  # as in c_index_of
    order = order[level[order].argsort(stable=True)]
    bits = int(place.max()).bit_length() if len(place) else 0
    key = ((of << bits) + place)[order]  # pairs of different groups differ above the bits that are looked at
    above = _in_order(key, torch.ones_like(key, dtype=torch.float64)[None], bits).sum()
    return (above + tied / 2) / comparable


def _pairs_alike(*keys: Tensor) -> Tensor:
    """Return the number of pairs of rows, each with itself counted half, that are alike in all keys, each [N]."""
    count: Tensor = torch.unique(torch.stack(keys), dim=1, return_counts=True)[1].double()
    return count.square().sum() / 2


def _in_order(key: Tensor, weight: Tensor, bits: int) -> Tensor:
    """Return the weight of the pairs of rows whose earlier one has the lower key, and that share the bits above, [D].

    Two rows are in order if, at the first bit in which their keys differ, the earlier one has 0 and the later one 1.
    So for every bit, and all rows that share the bits above, the ones count the zeros before them.

    Args:
        key: [N], integers from 0.
        weight: of each row in each draw, [D, N].
        bits: number of low bits in which keys may differ; rows that differ above them are not compared.
    """
    total = weight.new_zeros(len(weight))
    for bit in range(bits):
        rows = (key >> (bit + 1)).argsort(stable=True)
        group = key[rows] >> (bit + 1)
        one = ((key[rows] >> bit) & 1).double()
        here = weight[:, rows]
        zeros = torch.nn.functional.pad((here * (1.0 - one)).cumsum(1), (1, 0))
        start = torch.searchsorted(group, group)
        total += (here * one * (zeros[:, 1:] - zeros[:, start])).sum(1)
    return total


def auarc(confidence: Values, factuality: Values) -> Tensor:
    """Compute the area under the accuracy-rejection curve: mean factuality of what is kept, over the shares rejected.

    The k most confident sentences are kept, k = 1..N; the area is that under the line through their mean factualities,
    by the trapezoid rule, over N - 1 equal steps of rejection from 0 to 1 (Nadeem et al. 2009; these steps as in Lin et
    al. 2024, arXiv 2305.19187). Without the halved ends it would be 1 - AURC. Among equal confidences the value is the
    exact expectation over all orders. A confidence that knows nothing gets the mean factuality.

    Args:
        confidence: [N], in [0, 1].
        factuality: [N], in [0, 1].

    Returns:
        Scalar in [0, 1], float64; NaN for fewer than two sentences.

    Raises:
        LovecError: see ``lovec.metrics.functional.checked_pair``.
    """
    return auarc_of(PairLayout.of(confidence, factuality).whole())[0]


def auarc_of(pairs: WeightedPairs) -> Tensor:
    """Compute ``auarc`` of every draw, [D]."""
    count, truth = pairs.mass.flip(1), pairs.truth.flip(1)
    first = (count > 0).int().argmax(1, keepdim=True) if count.shape[1] else None
    top = pairs.mean if first is None else (truth.gather(1, first) / count.gather(1, first)).squeeze(1)
    inner = _sum_of_running_means(count, truth) - (top + pairs.mean) / 2
    return inner / (pairs.n - 1).where(pairs.n > 1, float("nan"))


def aurc_of(pairs: WeightedPairs) -> Tensor:
    """Compute ``lovec.metrics.risk.aurc`` of every draw, [D]."""
    return 1.0 - _sum_of_running_means(pairs.mass.flip(1), pairs.truth.flip(1)) / pairs.n


def prr(confidence: Values, factuality: Values) -> Tensor:
    """Compute the prediction rejection ratio: how much of what rejecting the right sentences would gain is gained.

    (A - R) / (O - R) with A the mean, over k = 1..N, of the mean factuality of the k most confident sentences, R the
    same in random order (the mean factuality) and O in the order of the factualities themselves (Malinin and Gales
    2021, arXiv 2002.07650; Vashurin et al. 2025, arXiv 2406.15627, whose lm-polygraph has R from 1000 shuffles, here it
    is exact, and takes equal confidences in the order of the file, here it is the expectation over all orders). 1 is
    the best order, 0 knows nothing; below 0 the order is worse than a random one.

    Args:
        confidence: [N], in [0, 1].
        factuality: [N], in [0, 1].

    Returns:
        Scalar, at most 1, float64; NaN where all factualities are equal.

    Raises:
        LovecError: see ``lovec.metrics.functional.checked_pair``.
    """
    return prr_of(PairLayout.of(confidence, factuality).whole())[0]


def prr_of(pairs: WeightedPairs) -> Tensor:
    """Compute ``prr`` of every draw, [D]."""
    levels, _ = pairs.layout.by_factuality
    given = _sum_of_running_means(pairs.mass.flip(1), pairs.truth.flip(1))
    best = _sum_of_running_means(pairs.factuality_mass.flip(1), (pairs.factuality_mass * levels).flip(1))
    random = pairs.truth.sum(1)
    varies = (pairs.factuality_mass > 0).sum(1) > 1
    return ((given - random) / (best - random)).clamp(max=1.0).where(varies, float("nan"))


def _true_and_false(pairs: WeightedPairs, threshold: float) -> tuple[Tensor, Tensor]:
    """Return the numbers of true and of false pairs by confidence, [D, K] each.

    Raises:
        LovecError: the threshold is out of range.
    """
    check_range("threshold of true labels", threshold, above=0, at_most=1)
    true = (pairs.layout.factuality >= threshold - _EDGE).double()
    positive = pairs.by_confidence(pairs.weight * true)
    return positive, pairs.mass - positive


def _sum_of_running_means(count: Tensor, total: Tensor) -> Tensor:
    """Compute the sum over k = 1..n of the mean of the first k values, in expectation over all orders within groups.

    After n0 values with the sum s0, the j-th value of a group of m with the mean v makes a mean of (s0 + j v) / (n0 +
    j) = v + (s0 - n0 v) / (n0 + j). Over j that is m v + (s0 - n0 v) (H(n0 + m) - H(n0)), with H the harmonic numbers.

    Args:
        count: number of values of each group, in the order of the groups, [D, K]; some may be 0.
        total: sum of the values of each group, [D, K].

    Returns:
        [D].
    """
    after = count.cumsum(1)
    before = after - count
    most = int(after[:, -1].max()) if after.numel() else 0
    harmonic = torch.arange(most + 1, dtype=torch.float64, device=count.device)
    harmonic[1:] = harmonic[1:].reciprocal().cumsum(0)
    value = total / count.clamp(min=1.0)
    grown = (total.cumsum(1) - total) - before * value
    return (total + grown * (harmonic[after.long()] - harmonic[before.long()])).sum(1)
