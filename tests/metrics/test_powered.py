"""Prediction-powered estimates: the published estimator by hand, and intervals that cover at the stated rate."""

from __future__ import annotations

import math
from statistics import NormalDist

import pytest
import torch
from scipy.stats import binom

from lovec.metrics.functional import ece_m
from lovec.metrics.powered import (
    Judged,
    TooFewGroups,
    labels_needed,
    measure_judged,
    powered_ece_m,
    powered_mean,
    worth,
)
from lovec.types import LovecError

NAN = math.nan


def answers(
    labelled: int, groups: int = 300, seed: int = 0, right: float = 0.95, wrong: float = 0.3, too_sure: float = 0.5
) -> tuple[Judged, torch.Tensor]:
    """Answers of 2 to 6 sentences that are alike; a judge that says "true" of a share of the right and wrong ones.

    Returns:
        The rows, of whose first groups people have labelled all; and what people would say of every row.
    """
    draw = torch.Generator().manual_seed(seed)
    size = torch.randint(2, 7, (groups,), generator=draw)
    group = torch.arange(groups).repeat_interleave(size)
    one = {"generator": draw, "dtype": torch.float64}
    odds = 0.3 + torch.randn(len(group), **one) + torch.randn(groups, **one)[group]
    truth = (torch.rand(len(group), **one) < odds.sigmoid()).double()
    judge = (torch.rand(len(group), **one) < torch.where(truth == 1, right, wrong)).double()
    confidence = ((1 + 0.4 * too_sure) * odds + too_sure).sigmoid()
    return Judged(truth.where(group < labelled, NAN), judge, group, confidence), truth


def alone(rows: Judged) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    own = rows.among(rows.labelled)
    return own.people, own.people, own.group


def loss(rows: Judged, labels: torch.Tensor) -> torch.Tensor:
    return (rows.confidence - labels).square()


def band(rate: float, draws: int) -> tuple[float, float]:
    """The middle 99.9 % of how often one of ``draws`` intervals holds the value."""
    return tuple(binom.ppf([0.0005, 0.9995], draws, rate) / draws)


def test_independent_rows_give_the_published_estimate():
    rows, _ = answers(40)
    f, judge, group = rows.people, rows.judge, torch.arange(len(rows.people))
    known = rows.labelled
    n, every = int(known.sum()), len(f)
    found = powered_mean(f, judge, group)
    slope = torch.cov(torch.stack([f[known], judge[known]]), correction=0)[0, 1] / judge[known].var(correction=0)
    assert 0 < found.weight < 1 and found.weight == pytest.approx(float(slope), rel=0.1)  # all rows give the variance
    theirs = found.weight * (1 - n / every)  # lambda of PPI++, for the mean over the other rows
    value = f[known].mean() + theirs * (judge[~known].mean() - judge[known].mean())
    assert found.value == pytest.approx(float(value), abs=1e-12)
    spread = (f[known] - found.weight * judge[known]).var() / n + found.weight**2 * judge.var() / every
    assert found.error == pytest.approx(float(spread.sqrt()), rel=0.03)
    assert (found.labels, found.groups) == (n, n)


def test_lambda_has_the_narrowest_interval_and_stays_within_0_and_1():
    rows, truth = answers(60, right=0.8, wrong=0.4)
    best = powered_mean(rows.people, rows.judge, rows.group)
    for factor in (0.5, 0.9, 1.1, 2.0):  # the judge's labels times a factor ask for lambda divided by it
        other = powered_mean(rows.people, rows.judge * factor, rows.group)
        assert other.weight == pytest.approx(min(best.weight / factor, 1.0))
        assert other.error >= best.error - 1e-12
    assert powered_mean(rows.people, 1 - truth, rows.group).weight == 0.0
    same = powered_mean(*alone(rows))
    opposed = powered_mean(rows.people, 1 - truth, rows.group)
    assert (opposed.value, opposed.low, opposed.high) == pytest.approx((same.value, same.low, same.high))


def test_people_alone_have_the_variance_of_their_answers():
    people = torch.tensor([1.0, 1.0, 1.0, 0.0, 0.0, 1.0, 0.0, 0.0]).double()
    group = torch.tensor([0, 0, 1, 1, 2, 2, 3, 3])
    found = powered_mean(people, people, group)
    means = torch.tensor([1.0, 0.5, 0.5, 0.0]).double()  # equal sizes: as if every answer were one row
    assert found.value == 0.5 and found.weight == 0.0
    assert found.error == pytest.approx(float(means.std()) / 2)
    assert found.high - found.value == pytest.approx(3.182446 * found.error, rel=1e-6)  # t with 3 degrees of freedom
    copied = powered_mean(people.repeat(3), people.repeat(3), group.repeat(3))
    assert copied.error == pytest.approx(found.error)


def test_intervals_cover_at_the_stated_rate():
    """1,000 draws: correlated rows of answers, a judge that calls three of ten false sentences true, lambda tuned."""
    many, truth = answers(0, groups=200_000, seed=10**6)
    values = float(truth.mean()), float(loss(many, truth).mean())
    held, biased, narrower = torch.zeros(2), 0, torch.zeros(2)
    for seed in range(1000):
        rows, _ = answers(40, groups=200, seed=seed)
        for at, (people, judge) in enumerate(
            [(rows.people, rows.judge), (loss(rows, rows.people), loss(rows, rows.judge))]
        ):
            found = powered_mean(people, judge, rows.group, 0.9)
            held[at] += found.low <= values[at] <= found.high
            known = rows.labelled
            without = powered_mean(people[known], people[known], rows.group[known], 0.9)
            narrower[at] += (found.high - found.low) / (without.high - without.low) / 1000
        wrong = powered_mean(rows.judge, rows.judge, rows.group, 0.9)
        biased += wrong.low <= values[0] <= wrong.high
    low, high = band(0.9, 1000)
    assert all(low <= share <= high for share in (held / 1000).tolist()), held
    assert biased < 100 and narrower[0] < 0.8 and narrower[1] < 0.95


@pytest.mark.slow
def test_intervals_of_ece_m_cover_nearly_so():
    many, truth = answers(0, groups=200_000, seed=10**6)
    value = float(ece_m(many.confidence, truth))
    held, off, widths = 0, 0.0, torch.zeros(2)
    for seed in range(300):
        rows, _ = answers(60, groups=200, seed=seed)
        found = powered_ece_m(rows.confidence, rows.people, rows.judge, rows.group, 200, seed)
        own = rows.among(rows.labelled)
        without = powered_ece_m(own.confidence, own.people, own.people, own.group, 200, seed)
        held += found.low <= value <= found.high
        off += (found.value - value) / 300
        widths += torch.tensor([found.high - found.low, without.high - without.low]) / 300
        assert found.low <= found.value <= found.high
    assert held / 300 > 0.88 and abs(off) < 0.01
    assert widths[0] < 0.95 * widths[1]


def test_ece_m_of_many_labels_is_that_of_other_tables():
    rows, truth = answers(3000, groups=3000)
    found = powered_ece_m(rows.confidence, rows.people, rows.people, rows.group)
    assert found.value == pytest.approx(float(ece_m(rows.confidence, truth)), abs=0.002)
    assert found.low < found.value < found.high < found.low + 0.03
    again = powered_ece_m(rows.confidence, rows.people, rows.people, rows.group)
    assert again == found


def test_a_perfect_judge_makes_bins_of_few_labels_exact():
    rows, truth = answers(60, groups=2000)
    found = powered_ece_m(rows.confidence, rows.people, truth, rows.group)
    assert found.value == pytest.approx(float(ece_m(rows.confidence, truth)), abs=0.01)


def test_where_the_judge_cannot_tell_people_say_what_it_counts():
    people = torch.tensor([1.0, 0.0, 0.0, 1.0, NAN, NAN]).double()
    judge = torch.tensor([1.0, NAN, NAN, NAN, NAN, 0.0]).double()
    rows = Judged(people, judge, torch.tensor([0, 0, 1, 1, 2, 2]))
    assert rows.told().judge.tolist() == pytest.approx([1.0, 1 / 3, 1 / 3, 1 / 3, 1 / 3, 0.0])
    assert rows.untold == 4
    unseen = Judged(people, judge.nan_to_num(0.0).where(torch.arange(6) != 4, NAN), rows.group)
    assert unseen.told().judge[4] == 0.5


def test_what_is_needed_is_what_is_there_for_the_width_that_is_there():
    rows, _ = answers(100, groups=400)
    normal = 2 * NormalDist().inv_cdf(0.975)
    for people, judge, group in (alone(rows), (rows.people, rows.judge, rows.group)):
        found = powered_mean(people, judge, group)
        needed = labels_needed(people, judge, group, normal * found.error)
        assert needed == pytest.approx(found.labels, rel=0.06)
        assert labels_needed(people, judge, group, normal * found.error / 2) > 3.9 * needed
    assert labels_needed(rows.people, rows.judge, rows.group, 0.001) is None
    assert labels_needed(*alone(rows), 0.001) > 10**6


def test_two_labelled_groups_are_never_worse_off_with_a_judge():
    group = torch.arange(8) // 2
    for shift in (0.0, 0.3):
        people = torch.tensor([1.0, 0.8, 0.1, 0.2] + [NAN] * 4, dtype=torch.float64)
        judge = torch.tensor([1.0, 0.9, 0.2, 0.1, 0.5, 0.6, 0.7, 0.1], dtype=torch.float64) * (1 - shift)
        powered = powered_mean(people, judge, group)
        alone = powered_mean(people[:4], people[:4], group[:4])
        assert 0 < powered.high - powered.low <= alone.high - alone.low < math.inf
        assert powered.stands_for(alone) == pytest.approx(4)


def test_what_a_judge_is_worth():
    rows, truth = answers(60, groups=4000)
    found = worth(rows, 0.05)
    own = rows.among(rows.labelled)
    assert found.bias.value == pytest.approx(float((own.judge - own.people).mean()))
    assert found.bias.low < 0.1 < found.bias.high and found.bias.low > 0
    assert found.labels == len(own.people) and found.groups == 60 and found.rows == len(truth)
    ratio = (found.people.high - found.people.low) / (found.powered.high - found.powered.low)
    assert found.effective == pytest.approx(found.labels * ratio**2, rel=0.05)
    assert found.effective > 1.3 * found.labels and found.needed_powered < 0.8 * found.needed
    nobody = worth(Judged(own.people, own.judge, own.group), 0.05)  # it has rated nothing else
    assert nobody.weight == 0.0 and nobody.effective == pytest.approx(found.labels)


def test_metrics_by_source():
    rows, truth = answers(60, groups=600)
    judge = rows.judge.where(torch.arange(len(truth)) % 7 > 0, NAN)
    found = measure_judged(Judged(rows.people, judge, rows.group, rows.confidence), 100)
    own, told = rows.labelled, ~judge.isnan()
    assert found.people["mean_factuality"].value == pytest.approx(float(truth[own].mean()))
    assert found.people["brier"].value == pytest.approx(float(loss(rows, truth)[own].mean()))
    assert found.judge["mean_factuality"].value == pytest.approx(float(judge[told].mean()))
    assert found.judge["brier"].value == pytest.approx(float(loss(rows, judge)[told].mean()))
    for name, value in (("mean_factuality", truth.mean()), ("brier", loss(rows, truth).mean())):
        widths = [s[name].high - s[name].low for s in (found.people, found.powered)]
        assert widths[1] < widths[0] and abs(found.powered[name].value - float(value)) < widths[1]
    assert set(measure_judged(rows, 0).powered) == {"mean_factuality", "brier"}
    assert set(measure_judged(Judged(rows.people, judge, rows.group)).powered) == {"mean_factuality"}


def test_shares_stay_shares():
    rows = Judged(
        torch.tensor([1.0, 0.0, NAN]).double(), torch.tensor([0.0, 1.0, 1.0]).double(), torch.tensor([0, 1, 2])
    )
    found = measure_judged(rows)
    assert (found.people["mean_factuality"].low, found.people["mean_factuality"].high) == (0.0, 1.0)


def test_labels_that_are_alike_do_not_tell_how_many_are_needed():
    people = torch.tensor([1.0, 1.0, 1.0, 1.0, NAN, NAN]).double()
    judge = torch.tensor([1.0, 1.0, 1.0, 1.0, 1.0, 0.0]).double()
    rows = Judged(people, judge, torch.arange(6))
    found = worth(rows, 0.1)
    assert (found.needed, found.people.value, found.labels) == (None, 1.0, 4)


def test_who_has_labelled_too_few_groups_is_said():
    people = torch.tensor([1.0, 0.0, NAN, NAN]).double()
    judge = torch.tensor([NAN, NAN, 1.0, NAN]).double()
    rows = Judged(people, judge, torch.arange(4), torch.full((4,), 0.5).double())
    with pytest.raises(TooFewGroups, match="the judge can tell 1 row of 1 group among those with a confidence"):
        measure_judged(rows, 20)
    with pytest.raises(TooFewGroups, match="people have labelled 2 rows of 1 group, expected rows of two groups"):
        measure_judged(Judged(people, people, torch.tensor([0, 0, 1, 2])))


def test_what_cannot_be_estimated_is_refused():
    rows, _ = answers(1)
    with pytest.raises(LovecError, match="of 1 groups, expected rows of two groups at least"):
        powered_mean(rows.people, rows.judge, rows.group)
    rows, _ = answers(9)
    with pytest.raises(LovecError, match=r"2 labels of the judge are NaN.*see Judged.told"):
        powered_mean(rows.people, rows.judge.where(torch.arange(len(rows.judge)) > 1, NAN), rows.group)
    with pytest.raises(LovecError, match="expected the same"):
        powered_mean(rows.people, rows.judge[1:], rows.group)
    with pytest.raises(LovecError, match="width is 0"):
        labels_needed(rows.people, rows.judge, rows.group, 0.0)
