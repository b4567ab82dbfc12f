"""Maps and thresholds from few labels of people and many of a judge, corrected for the judge's errors.

See ``lovec.metrics.powered`` for how a mean is estimated from both. Whatever the judge is worth, what is fitted is
about people's labels. It is assumed that the groups which people have labelled are a random sample of all groups.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from lovec.calibration.conformal import Guarantee, Passage, losses, retention
from lovec.calibration.logistic import Array
from lovec.metrics.powered import Judged, powered_means, upper_bounds
from lovec.types import Promise

CERTAINTY = 0.9
"""Share of thresholds that keep their promise, each by itself."""

LEAST_GROUPS = 20
"""Number of groups that people have labelled below which a judge's errors are not known well enough."""

_MOST_THRESHOLDS = 500  # that are tried
_MOST_LOSSES = 2**21  # that are held at once, each in some eight copies of 8 bytes
_MOST_BINS = 10
_PER_BIN = 20  # labels of people in a bin


def corrected_labels(scores: Array, rows: Judged) -> Array:
    """Return labels for all rows whose mean, among rows of similar scores, is that of people's labels.

    The rows are divided into bins with equally many of people's labels, at most ten with 20 labels or more each, and
    the label of a row is the prediction-powered mean of its bin. Of maps that are constant in the bins, the one with
    the lowest Brier score or cross-entropy to these labels also has the lowest prediction-powered (rectified) loss,
    since a label enters both losses linearly.

    Args:
        scores: what is mapped, [N].
        rows: the labels, see ``Judged.told``; people have labelled rows of two groups at least.

    Returns:
        [N], in [0, 1].

    Raises:
        LovecError: see ``powered_mean``.
    """
    known = scores[rows.labelled.numpy()]
    bins = int(np.clip(len(known) // _PER_BIN, 1, _MOST_BINS))
    edges = np.unique(np.quantile(known, np.arange(1, bins) / bins, method="inverted_cdf"))
    edges = edges[edges < known.max()]  # so that people have labelled rows above the last one, too
    place = torch.from_numpy(np.searchsorted(edges, scores))
    return powered_means(rows.people, rows.judge, rows.group, place, len(edges) + 1)[place].numpy()


def judged_threshold(
    people: Sequence[Passage | None], judge: Sequence[Passage], alpha: float, kind: Promise, share: float = 1.0
) -> float:
    """Return the threshold for a promise, see ``lowest_safe``.

    Args:
        people: groups by people's labels; None where they have labelled nothing.
        judge: the same groups by the judge's labels.
        alpha: how often the promise may fail, or the bound on the share of errors; in (0, 1).
        kind: what is promised.
        share: for "share", the share of the kept sentences that is true.

    Returns:
        The threshold; infinity where there is none, as with no group that people have labelled.

    Raises:
        LovecError: see ``losses``.
    """
    known = np.array([passage is not None for passage in people])
    theirs = [passage for passage in people if passage is not None]
    scores = np.unique([score for passage in [*theirs, *judge] for score in passage.scores if score is not None])
    chosen = np.unique(np.linspace(0, len(scores) - 1, min(len(scores), _MOST_THRESHOLDS)).round().astype(np.int64))
    tried = np.append(-np.inf, scores[chosen])
    # Thresholds do not depend on each other, so of very many groups some are tried at a time, from the highest down.
    at_once, found = max(1, _MOST_LOSSES // max(1, len(judge))), np.inf
    for end in range(len(tried), 0, -at_once):
        some = tried[max(0, end - at_once) : end]
        by_judge = losses(judge, kind, share, some)
        by_people = np.full_like(by_judge, np.nan)
        by_people[known] = losses(theirs, kind, share, some)
        lowest = lowest_safe(some, by_people, by_judge, alpha)
        found = min(found, lowest)
        if lowest > some[0]:  # one of them is unsafe
            break
    return float(found)


def lowest_safe(thresholds: Array, people: Array, judge: Array, alpha: float) -> float:
    """Return the lowest threshold from which on upwards the mean loss is at most alpha, with ``CERTAINTY``.

    The mean loss of each threshold has an upper confidence bound by people's labels and the judge's (``upper_bounds``).
    From the highest threshold downwards the bound is compared with alpha, up to the first one that is above it. Since
    losses never rise with the threshold, only the bound at one of them, where the true mean passes alpha, must hold
    (risk-controlling prediction sets, Bates et al. 2021, arXiv 2101.02703). The bound is that of the t distribution,
    which is not exact: benchmarks/judged.py tries it.

    Args:
        thresholds: [T], ascending.
        people: losses of groups by people's labels, [G, T]; NaN where they have labelled nothing.
        judge: losses of all groups by the judge's labels, [G, T].
        alpha: bound on the mean loss, in (0, 1).

    Returns:
        One of the thresholds; infinity where none is safe.
    """
    bounds = upper_bounds(torch.from_numpy(people), torch.from_numpy(judge), CERTAINTY).numpy()
    unsafe = np.flatnonzero(~(bounds <= alpha))  # NaN is no bound
    return float(np.append(thresholds, np.inf)[unsafe[-1] + 1 if unsafe.size else 0])


def judged_guarantee(
    people: Sequence[Passage | None],
    judge: Sequence[Passage],
    alpha: float,
    kind: Promise,
    share: float,
    true_from: float,
) -> Guarantee:
    """Compute the threshold for a promise from people's labels and a judge's.

    Args:
        people: see ``judged_threshold``.
        judge: see ``judged_threshold``.
        alpha: see ``judged_threshold``.
        kind: see ``judged_threshold``.
        share: see ``judged_threshold``.
        true_from: factuality from which a sentence is true, to be kept with the threshold.

    Raises:
        LovecError: see ``judged_threshold``.
    """
    threshold = judged_threshold(people, judge, alpha, kind, share)
    theirs = [passage for passage in people if passage is not None]
    found = retention(theirs, threshold)
    return Guarantee(kind, alpha, share, true_from, threshold, len(theirs), found.sentences, found.share, CERTAINTY)
