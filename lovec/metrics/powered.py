"""Prediction-powered estimates: means from a few labels of people and many of a judge, corrected for its errors.

The judge's labels alone give its own mean, with its bias. People's labels of some of the same rows show how far the
judge is off, and the estimate is the mean by people plus lambda times what the judge's labels of all rows add:

    mean of f over people's rows + lambda (mean of F over all rows - mean of F over people's rows)

with f people's labels, F the judge's (Angelopoulos et al. 2023, arXiv 2301.09633; the weight lambda is that of PPI++,
Angelopoulos, Duchi and Zrnic 2023, arXiv 2311.01453). Whatever the judge is worth, the estimate is about people's
labels: a bad judge gets a small lambda. What is assumed is that people's rows are a random sample of all rows, and
that groups (the rows of an answer) are independent.

The authors take the judge's mean over the rows that people have not labelled. With n of N rows labelled that is the
same estimate, with their lambda being (1 - n/N) times the one here. Their library, ppi-python, takes rows as
independent; here all variances are over groups, as labels of one answer are alike.

All functions compute in float64; rows that people have not labelled are NaN in their labels.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from statistics import NormalDist

import torch
from torch import Tensor

from lovec.core.notices import counted
from lovec.core.settings import check_count, check_range, check_seed
from lovec.metrics.bootstrap import Interval
from lovec.metrics.functional import group_of
from lovec.types import LovecError

LEVEL = 0.95
"""Share of intervals that contain the true value, unless told otherwise."""

UNSEEN = 0.5
"""What a judge's "cannot tell" counts where people have labelled no such row."""

_BINS = 10
_STEPS = 20  # of bisection: to a millionth
_NOTHING = 1e-24  # a variance that is rounding


class TooFewGroups(LovecError):
    """There are too few labelled groups for an interval over groups."""


@dataclass(frozen=True, slots=True)
class Judged:
    """Rows that a judge has labelled, and people some of them.

    Attributes:
        people: factuality by people, [N], float64, in [0, 1]; NaN where they have not labelled.
        judge: factuality by the judge, [N], float64, in [0, 1]; NaN where it cannot tell.
        group: number of the answer that each row belongs to, [N], int64, from 0.
        confidence: [N], float64, in [0, 1]; None where there are none.
    """

    people: Tensor
    judge: Tensor
    group: Tensor
    confidence: Tensor | None = None

    @property
    def labelled(self) -> Tensor:
        """Whether people have labelled a row, [N]."""
        return ~self.people.isnan()

    @property
    def untold(self) -> int:
        """Number of rows of which the judge cannot tell."""
        return int(self.judge.isnan().sum())

    def among(self, rows: Tensor) -> Judged:
        """Return some of the rows, [N] bool."""
        confidence = None if self.confidence is None else self.confidence[rows]
        return Judged(self.people[rows], self.judge[rows], self.group[rows], confidence)

    def told(self) -> Judged:
        """Return the rows with a number where the judge cannot tell: the mean of people's labels of such rows.

        That such rows are mostly false, or mostly true, is something that the judge knows. Any numbers would do: the
        estimates correct them, so that it only matters for how narrow intervals become.
        """
        untold = self.judge.isnan()
        seen = self.people[untold & self.labelled]
        value = float(seen.mean()) if len(seen) else UNSEEN
        return replace(self, judge=self.judge.where(~untold, value))


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean over rows with its confidence interval.

    Attributes:
        value: the mean.
        low: lower end of the interval.
        high: upper end of the interval.
        error: standard error of the mean.
        weight: lambda, in [0, 1]; 0 does not use the judge.
        labels: number of rows that people have labelled.
        groups: number of groups that these belong to.
    """

    value: float
    low: float
    high: float
    error: float
    weight: float
    labels: int
    groups: int

    def interval(self, lowest: float = 0.0) -> Interval:
        """Return value and interval, cut to where the mean can be: from ``lowest`` to 1."""
        return Interval(*(min(max(end, lowest), 1.0) for end in (self.value, self.low, self.high)))

    def stands_for(self, alone: Estimate) -> float:
        """Return the number of labels of people alone that give the same variance.

        Args:
            alone: the mean by people's labels alone.
        """
        return self.labels * (alone.error / self.error) ** 2 if self.error else float(self.labels)


def powered_mean(people: Tensor, judge: Tensor, group: Tensor, level: float = LEVEL) -> Estimate:
    """Estimate the mean of what people's labels give to each row, from few of them and the judge's of all rows.

    That may be the label itself, or a loss of it. The variance is that of the sum over groups of how far each moves the
    estimate, so the rows of a group may be alike, and may be labelled in part. lambda is the one with the lowest such
    variance, within [0, 1]. The interval is that of the t distribution; its degrees of freedom are the labelled groups
    less the numbers that are fitted to them (the mean, and lambda unless it is 0).

    Args:
        people: the values by people's labels, [N]; NaN for rows without one.
        judge: the values by the judge's labels, [N]. With ``people`` themselves, all labelled, it is the plain mean
            over rows and its interval over groups.
        group: number of the group of each row, [N], int64, from 0.
        level: share of intervals that contain the mean.

    Raises:
        LovecError: people have labelled rows of fewer than two groups, the shapes differ, or the level is out of range.
    """
    check_range("level", level, above=0, below=1)
    found = _ByBin.of(people, judge, group, torch.zeros_like(group), 1)
    weight = found.weights()
    value, error, reach = (float(one) for one in (found.means(weight), *found.reach(weight, (1 + level) / 2)))
    return Estimate(value, value - reach, value + reach, error, float(weight), found.labels, found.groups)


def powered_means(people: Tensor, judge: Tensor, group: Tensor, place: Tensor, bins: int) -> Tensor:
    """Estimate the mean of people's labels in each bin, as ``powered_mean`` does, with one lambda for all of them.

    Args:
        people: see ``powered_mean``.
        judge: see ``powered_mean``.
        group: see ``powered_mean``.
        place: the bin of each row, [N], int64, from 0.
        bins: number of bins, B.

    Returns:
        [B], in [0, 1]; NaN where people have labelled nothing.

    Raises:
        LovecError: see ``powered_mean``.
    """
    found = _ByBin.of(people, judge, group, place, bins)
    return found.means(found.weight(torch.bincount(place, minlength=bins) / len(place))).clamp(0.0, 1.0)


def upper_bounds(people: Tensor, judge: Tensor, level: float) -> Tensor:
    """Return upper confidence bounds of the mean losses of groups by people's labels, one bound per loss.

    The bound is that of ``powered_mean``, on one side. One more group is counted, with the highest loss and without
    a say in what the judge is worth, as in conformal risk control: without it a few groups that happen to have no loss
    would have no variance, either.

    Args:
        people: losses of groups by people's labels, [G, T], in [0, 1]; NaN for groups that they have not labelled.
        judge: losses of all groups by the judge's labels, [G, T].
        level: share of bounds that are not below the mean, for each loss by itself.

    Returns:
        [T]; with no group that people have labelled, infinite.

    Raises:
        LovecError: the level is out of range.
    """
    check_range("level", level, above=0, below=1)
    known = ~people[:, 0].isnan()
    if not known.any():
        return people.new_full(people.shape[1:], math.inf)
    worst = torch.ones_like(people[:1]), judge[known].mean(0, keepdim=True)
    found = _ByBin.of_groups(torch.cat([people, worst[0]]), torch.cat([judge, worst[1]]))
    weight = found.weights()
    return found.means(weight) + found.reach(weight, level)[1]


def labels_needed(people: Tensor, judge: Tensor, group: Tensor, width: float, level: float = LEVEL) -> int | None:
    """Compute how many labels of people an interval of a width takes, with as many of the judge as there are.

    Labels are assumed to come as they did: so many to a group, and as alike as these. The interval is that of the
    normal distribution.

    Args:
        people: see ``powered_mean``.
        judge: see ``powered_mean``.
        group: see ``powered_mean``.
        width: of the interval, from end to end.
        level: see ``powered_mean``.

    Returns:
        The number; None where no number suffices with this lambda, since the judge has labelled too few rows.

    Raises:
        LovecError: see ``powered_mean``, or the width is not above 0.
    """
    check_range("width", width, above=0)
    check_range("level", level, above=0, below=1)
    found = _ByBin.of(people, judge, group, torch.zeros_like(group), 1)
    weight = found.weight(torch.ones(1, dtype=torch.float64))
    per_label = found.labels * float((found.people - weight * found.seen).square().sum())
    left = (width / 2 / NormalDist().inv_cdf((1 + level) / 2)) ** 2 - float((weight * found.every).square().sum())
    return math.ceil(per_label / left) if left > 0 else None


@dataclass(frozen=True, slots=True)
class Worth:
    """What the labels of a judge are worth beside those of people, for mean factuality.

    Attributes:
        rows: number of rows that the judge has rated.
        untold: number of these of which it could not tell.
        labels: number of these that people have labelled.
        groups: number of groups that the labelled ones belong to.
        bias: mean of the judge's label less people's, over rows with both.
        people: mean factuality by people's labels alone.
        powered: the same with the judge's labels.
        weight: lambda.
        effective: number of labels of people alone that would give an interval as narrow as that of ``powered``.
        width: of an interval, from end to end.
        needed: number of labels that such an interval takes of people alone; None where all of theirs are alike.
        needed_powered: the same beside the judge's labels; None where no number suffices.
    """

    rows: int
    untold: int
    labels: int
    groups: int
    bias: Interval
    people: Interval
    powered: Interval
    weight: float
    effective: float
    width: float
    needed: int | None
    needed_powered: int | None


def worth(rows: Judged, width: float, level: float = LEVEL) -> Worth:
    """Compute what the labels of a judge are worth.

    Args:
        rows: rows that the judge has rated, and people some of them.
        width: of an interval of mean factuality, from end to end.
        level: share of such intervals that contain the mean.

    Raises:
        LovecError: see ``powered_mean`` and ``labels_needed``, or rows with both labels are of fewer than two groups.
    """
    theirs, told = rows.among(rows.labelled), rows.told()
    both = rows.among(rows.labelled & ~rows.judge.isnan())
    apart = both.judge - both.people
    alone = powered_mean(theirs.people, theirs.people, theirs.group, level)
    powered = powered_mean(told.people, told.judge, told.group, level)
    return Worth(
        rows=len(rows.judge),
        untold=rows.untold,
        labels=alone.labels,
        groups=alone.groups,
        bias=powered_mean(apart, apart, both.group, level).interval(-1.0),
        people=alone.interval(),
        powered=powered.interval(),
        weight=powered.weight,
        effective=powered.stands_for(alone),
        width=width,
        needed=labels_needed(theirs.people, theirs.people, theirs.group, width, level) or None,
        needed_powered=labels_needed(told.people, told.judge, told.group, width, level),
    )


@dataclass(frozen=True, slots=True)
class Measured:
    """Estimates of metrics of the same rows from three sources, by the metric's name.

    Attributes:
        people: from people's labels alone.
        judge: from the judge's labels alone, with the judge's bias; rows of which it cannot tell are left out.
        powered: from both.
        effective: number of labels of people alone that would give an interval as narrow as that from both; of means.
    """

    people: Mapping[str, Interval]
    judge: Mapping[str, Interval]
    powered: Mapping[str, Interval]
    effective: Mapping[str, float]


def measure_judged(rows: Judged, draws: int = 1000, seed: int = 0, level: float = LEVEL) -> Measured:
    """Estimate mean factuality and, where there are confidences, the Brier score and ECE-M.

    Args:
        rows: rows that a judge has rated, and people some of them.
        draws: see ``powered_ece_m``; 0 leaves ECE-M out.
        seed: see ``powered_ece_m``.
        level: see ``powered_mean``.

    Raises:
        TooFewGroups: people have labelled, or the judge can tell, rows of fewer than two groups.
        LovecError: see ``powered_mean`` and ``powered_ece_m``.
    """
    own, told = rows.among(rows.labelled), rows.among(~rows.judge.isnan())
    for who, some in (("people have labelled", own), ("the judge can tell", told)):
        if (groups := int((torch.bincount(some.group) > 0).sum())) < 2:
            raise TooFewGroups(
                f"{who} {counted(len(some.group), 'row')} of {counted(groups, 'group')}"
                f"{'' if rows.confidence is None else ' among those with a confidence'}, expected rows of two groups "
                "at least: intervals are over groups"
            )
    sources = replace(own, judge=own.people), replace(told, people=told.judge), rows.told()
    means: list[dict[str, Estimate]] = []
    errors: list[dict[str, Interval]] = []
    for source in sources:
        c, f, g = source.confidence, source.people, source.judge
        losses = {"mean_factuality": (f, g)} | ({} if c is None else {"brier": ((c - f) ** 2, (c - g) ** 2)})
        means.append({name: powered_mean(*loss, source.group, level) for name, loss in losses.items()})
        errors.append(
            {"ece_m": powered_ece_m(c, f, g, source.group, draws, seed, level)} if draws and c is not None else {}
        )
    people, judge, powered = (
        {name: estimate.interval() for name, estimate in of_means.items()} | of_ece
        for of_means, of_ece in zip(means, errors, strict=True)
    )
    effective = {name: estimate.stands_for(means[0][name]) for name, estimate in means[2].items()}
    return Measured(people, judge, powered, effective)


def powered_ece_m(
    confidence: Tensor,
    people: Tensor,
    judge: Tensor,
    group: Tensor,
    draws: int = 1000,
    seed: int = 0,
    level: float = LEVEL,
) -> Interval:
    """Estimate ECE-M with ten bins, from few labels of people and the judge's of all rows.

    In each bin, mean factuality is estimated as in ``powered_mean``; shares of the bins and mean confidences are those
    of all rows. One lambda serves all bins: that with the lowest sum of the variances of share x mean factuality. Bins
    in which people have labelled nothing are left out.

    The sum of absolute gaps that this gives, T, is too high on few labels, as noise in a gap never cancels, and an
    interval of percentiles is too high by the same once more. So the bootstrap's test is inverted (Carpenter 1999,
    Statistics in Medicine 18): the gaps are multiplied by s, and noise with the covariance of the gaps over groups is
    added (a multiplier bootstrap over groups, with normal multipliers). The interval is all s T for which T is between
    the percentiles of such draws, and the value is the s T for which T is their median. So a value differs from
    ``functional.ece_m`` of the same rows, by less the more labels there are.

    Args:
        confidence: [N], in [0, 1].
        people: factuality by people, [N]; NaN for rows without one.
        judge: factuality by the judge, [N]. With ``people`` themselves, all labelled, the judge has no part in it.
        group: see ``powered_mean``.
        draws: number of draws of the bootstrap.
        seed: seed of the draws.
        level: see ``powered_mean``.

    Raises:
        LovecError: see ``powered_mean``, or a setting is out of range.
    """
    check_range("level", level, above=0, below=1)
    check_count("draws", draws)
    check_seed("seed", seed)
    place = group_of(confidence, "bins", _BINS)
    found = _ByBin.of(people, judge, group, place, _BINS)
    stated, of_stated = _means(confidence, group, place, _BINS)
    there = ~found.mean[0].isnan()
    rows = torch.bincount(group * _BINS + place, minlength=of_stated.numel()).view(-1, _BINS) * there
    share = rows.sum(0) / rows.sum()
    weight = found.weight(share)
    gap = (found.means(weight).clamp(0.0, 1.0) - stated).where(there, 0.0)
    of_share = (rows - rows.sum(1, keepdim=True) * share) / rows.sum()
    moved = (share * (found.moved(weight) - of_stated)).where(there, 0.0) + gap * of_share
    _, scales, directions = torch.linalg.svd(moved, full_matrices=False)
    drawn = torch.randn(draws, len(scales), dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    noise = drawn @ (scales[:, None] * directions)
    value, low, high = (_scaled(share * gap, noise, q) for q in (0.5, (1 + level) / 2, (1 - level) / 2))
    return Interval(value, low, high)


def _scaled(gaps: Tensor, noise: Tensor, quantile: float) -> float:
    """Return s T, for the s with which T, the sum of absolute gaps, is a quantile of those of s x gaps + noise.

    Args:
        gaps: [B].
        noise: [draws, B].
        quantile: in (0, 1); the higher, the lower is s.
    """
    total = float(gaps.abs().sum())
    low, high = 0.0, 1.0 / total if total else 0.0  # ECE-M is 1 at most
    for _ in range(_STEPS):
        middle = (low + high) / 2
        if float(torch.quantile((middle * gaps + noise).abs().sum(1), quantile)) < total:
            low = middle
        else:
            high = middle
    return low * total


def _means(
    values: Tensor, group: Tensor, place: Tensor, bins: int, rows: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Return means by bin, and how far each group moves them, to first order.

    The second is scaled so that its sum of squares over groups is the variance of the mean, with m - 1 degrees of
    freedom for m groups.

    Args:
        values: [N].
        group: [N].
        place: the bin of each row, [N].
        bins: number of bins, B.
        rows: the rows that count, [N]; None is all.

    Returns:
        [B], NaN for bins without rows; and [G, B], 0 for these.
    """
    groups = int(group.max()) + 1
    used = torch.ones_like(values, dtype=torch.bool) if rows is None else rows
    values, group, place = values[used], group[used], place[used]
    count = torch.bincount(place, minlength=bins)
    mean = torch.zeros(bins, dtype=torch.float64).index_add(0, place, values) / count
    cell = group * bins + place
    moved = torch.zeros(groups * bins, dtype=torch.float64).index_add(0, cell, (values - mean[place]) / count[place])
    owners = (torch.bincount(cell, minlength=groups * bins).view(groups, bins) > 0).sum(0)
    return mean, moved.view(groups, bins) * (owners / (owners - 1).clamp(min=1)).sqrt()


@dataclass(frozen=True, slots=True)
class _ByBin:
    """Means by bin, and how far every group moves them.

    Attributes:
        mean: the mean by people, the judge's over people's rows, and the judge's over all rows, [3, B].
        people: how far each group moves the first, [G, B].
        seen: the second.
        every: the third.
        labels: number of rows that people have labelled.
        groups: number of groups that these belong to.
    """

    mean: Tensor
    people: Tensor
    seen: Tensor
    every: Tensor
    labels: int
    groups: int

    @classmethod
    def of(cls, people: Tensor, judge: Tensor, group: Tensor, place: Tensor, bins: int) -> _ByBin:
        """Compute it from values [N], groups [N] and bins [N].

        Raises:
            LovecError: see ``powered_mean``.
        """
        shapes = [list(values.shape) for values in (people, judge, group)]
        if people.ndim != 1 or shapes != [shapes[0]] * 3 or bool(judge.isnan().any()):
            raise LovecError(
                f"labels of people, of a judge and groups have shapes {shapes}, and {int(judge.isnan().sum())} labels "
                "of the judge are NaN, expected the same [N] for all, and no NaN; see Judged.told"
            )
        known = ~people.isnan()
        if (labelled := int((torch.bincount(group[known]) > 0).sum())) < 2:
            raise TooFewGroups(
                f"people have labelled {int(known.sum())} rows of {labelled} groups, expected rows of two groups at "
                "least: intervals are over groups; label more answers"
            )
        by_people, seen = (_means(values, group, place, bins, known) for values in (people, judge))
        every = _means(judge, group, place, bins)
        mean = torch.stack([by_people[0], seen[0], every[0]])
        return cls(mean, by_people[1], seen[1], every[1], int(known.sum()), labelled)

    @classmethod
    def of_groups(cls, people: Tensor, judge: Tensor) -> _ByBin:
        """Compute it from one value of each group in each bin, [G, B]; NaN for groups that people have not labelled."""
        known = ~people[:, 0].isnan()
        means, moved = [], []
        for values, used in ((people, known), (judge, known), (judge, torch.ones_like(known))):
            number, mean = int(used.sum()), values[used].mean(0)
            means.append(mean)
            moved.append(((values - mean) / math.sqrt(number * (number - 1))).where(used[:, None], 0.0))
        of_people, seen, every = moved
        return cls(torch.stack(means), of_people, seen, every, int(known.sum()), int(known.sum()))

    def weight(self, share: Tensor) -> float:
        """Return lambda: the one within [0, 1] with the lowest variance of the means, each times its share [B]."""
        judge = share * (self.seen - self.every)
        both, spread = float((judge * share * self.people).sum()), float(judge.square().sum())
        return min(max(both / spread, 0.0), 1.0) if spread > _NOTHING else 0.0

    def weights(self) -> Tensor:
        """Return lambda for each bin by itself, [B]; 0 with two groups, which leave nothing to fit it to."""
        if self.groups < 3:  # the mean and lambda would take all degrees of freedom, and the interval would be infinite
            return torch.zeros_like(self.mean[0])
        judge = self.seen - self.every
        both, spread = (judge * self.people).sum(0), judge.square().sum(0)
        return (both / spread).clamp(0.0, 1.0).where(spread > _NOTHING, 0.0)

    def means(self, weight: float | Tensor) -> Tensor:
        """Return the estimated mean of each bin, [B]; NaN where people have labelled nothing."""
        people, seen, every = self.mean.unbind()
        return people + weight * (every - seen)

    def moved(self, weight: float | Tensor) -> Tensor:
        """Return how far each group moves it, [G, B]."""
        return self.people - weight * (self.seen - self.every)

    def reach(self, weight: Tensor, quantile: float) -> tuple[Tensor, Tensor]:
        """Return the standard error of the mean of each bin, [B], and times the quantile of the t distribution."""
        from scipy.special import stdtrit  # takes a moment, which commands that need no interval need not wait

        free = self.groups - 1 - (weight > 0).double()
        error = ((self.groups - 1) / free * self.moved(weight).square().sum(0)).sqrt().where(free > 0, math.inf)
        return error, torch.from_numpy(stdtrit(free.clamp(min=1).numpy(), quantile)) * error
