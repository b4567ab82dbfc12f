"""Pairs in groups: means, ranks, and all metrics with intervals over groups."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from scipy.stats import rankdata

from lovec.metrics.bootstrap import BOOTSTRAPPED, draws_of, intervals, measure, resample, resample_groups
from lovec.metrics.functional import brier_score, ece_m
from lovec.metrics.grouped import GroupedPairs, group_means, grouped_pairs, ranks
from lovec.metrics.ranking import c_index
from lovec.metrics.table import METRICS
from lovec.types import LovecError, Record, Sentence

ALL = ("probability", "order", "labels")


def pairs(n: int = 60, groups: int = 12, graded: bool = False) -> GroupedPairs:
    """Pairs with ties, in groups that are not in order."""
    generator = torch.Generator().manual_seed(n)
    confidence, factuality = (torch.randint(11, (n,), generator=generator).double() / 10 for _ in range(2))
    group = torch.randint(groups, (n,), generator=generator)
    return GroupedPairs(confidence, factuality if graded else factuality.round(), group, groups)


def test_records_and_pairs_are_drawn_alike():
    drawn = pairs(graded=True)
    places = [drawn.group == group for group in range(drawn.groups)]
    by_question = {
        f"{number:02}": (drawn.confidence[place].tolist(), drawn.factuality[place].tolist())
        for number, place in enumerate(places)
    }
    names = [name for name in BOOTSTRAPPED if name != "smooth_ece"]
    expected = intervals(resample([by_question], draws=40, metrics=names))
    measured = measure(drawn, ALL, draws=40)
    for name, interval in expected.items():
        found = measured[name]
        assert [found.value, found.low, found.high] == pytest.approx([interval.value, interval.low, interval.high])
    values = resample_groups(drawn, 0, metrics=("mean_confidence", "brier"))
    assert [len(value) for value in values.values()] == [1, 1]
    assert float(values["mean_confidence"]) == pytest.approx(float(drawn.confidence.mean()))


@pytest.mark.parametrize("graded", [False, True])
def test_only_what_can_be_used_is_measured(graded):
    drawn = pairs(graded=graded)
    whole = measure(drawn, ALL, draws=0)
    assert whole["brier"].value == pytest.approx(float(brier_score(drawn.confidence, drawn.factuality)))
    assert whole["ece_m"].value == pytest.approx(float(ece_m(drawn.confidence, drawn.factuality)))
    assert whole["c_index"].value == pytest.approx(float(c_index(drawn.confidence, drawn.factuality)))
    assert math.isnan(whole["brier"].low) and whole["graded"].value == pytest.approx(
        float(((drawn.factuality % 1) > 0).double().mean())
    )
    labels = measure(drawn, ("labels",), draws=5)
    assert list(labels) == list(whole)
    assert {name for name, interval in labels.items() if interval is not None} == {
        name for name in whole if METRICS[name].uses == "labels"
    }
    order = measure(drawn, ("order", "labels"), draws=0)
    ranked = measure(GroupedPairs(ranks(drawn.confidence), drawn.factuality, drawn.group, 12), ("order",), draws=0)
    for name, interval in ranked.items():
        if METRICS[name].uses == "order":  # the order alone decides
            assert interval.value == pytest.approx(order[name].value) == pytest.approx(whole[name].value)


def test_every_metric_of_pairs_says_what_it_uses():
    assert {name for name, info in METRICS.items() if info.uses} == {
        *BOOTSTRAPPED, "mean_confidence", "mean_factuality", "graded"
    }  # fmt: skip


def test_one_pair_and_groups_of_one():
    alone = GroupedPairs(torch.tensor([0.5]), torch.tensor([1.0]), torch.tensor([0]), 1)
    measured = measure(alone, ALL, draws=3)
    assert measured["brier"].value == 0.25 and measured["auroc"] is None and "f1_at_k" not in measured
    assert "f1_at_k" in measure(pairs(), ALL, draws=0)
    empty = torch.zeros(0, dtype=torch.float64)
    with pytest.raises(LovecError, match="groups is 0"):
        measure(GroupedPairs(empty, empty, empty.long(), 0), ALL)
    with pytest.raises(LovecError, match="draws is -1"):
        measure(alone, ALL, draws=-1)
    with pytest.raises(LovecError, match="expected some of brier"):
        resample_groups(alone, metrics=("typo",))


def test_very_many_pairs_are_drawn_less_often():
    many = torch.zeros(1_000_000)
    assert draws_of(GroupedPairs(many, many, many.long(), 1), 1000) == 100
    assert draws_of(GroupedPairs(many, many, many.long(), 1), 7) == 7
    assert draws_of(pairs(), 1000) == 1000


def test_means_of_groups_tie_where_they_are_equal():
    group = torch.tensor([3, 0, 0, 0, 1, 1, 1, 1])
    confidence = torch.tensor([0.1, 0.7, 0.7, 0.7, 0.7, 0.7, 0.7, 0.7], dtype=torch.float64)
    means = group_means(GroupedPairs(confidence, 1 - confidence, group, 5))
    assert means.confidence.tolist() == [0.7, 0.7, 0.1] and means.group.tolist() == [0, 1, 2] and means.groups == 3
    assert means.factuality.tolist() == [0.3, 0.3, 0.9]


def test_ranks_keep_order_and_ties():
    values = torch.tensor([3.0, -7.5, 3.0, 1e300, 0.0], dtype=torch.float64)
    assert ranks(values).tolist() == pytest.approx((rankdata(values.numpy()) - 0.5) / 5)
    assert ranks(values[:0]).tolist() == [] and ranks(values[:1]).tolist() == [0.5]


def test_records_become_pairs():
    tagged = [
        Record("a", "Q?", sentences=(Sentence("A.", 1.0, 0.5), Sentence("B.", None, 0.5), Sentence("C.", 0.0))),
        Record("b", "Q?"),
        Record("c", "Q?", sentences=(Sentence("A.", 0.25, 1.0),)),
    ]
    found = grouped_pairs(tagged, "stated")
    assert (found.confidence.tolist(), found.factuality.tolist()) == ([0.5, 1.0], [1.0, 0.25])
    assert found.group.tolist() == [0, 2] and found.groups == 3
    sampled = [replace(record, id=name) for record, name in zip(tagged, ("a/sample-1", "b", "a/sample-2"), strict=True)]
    found = grouped_pairs(sampled, "stated")
    assert found.group.tolist() == [0, 0] and found.groups == 2


def test_groups_without_a_pair_change_no_metric():
    group = torch.tensor([0, 0, 1, 2, 3, 4])
    values = torch.tensor([0.1, 0.9, 0.3, 0.4, 0.8, 0.6], dtype=torch.float64)
    few, many = (measure(GroupedPairs(values, values.flip(0), group, groups), ALL, draws=0) for groups in (5, 10))
    assert few.keys() == many.keys() and "f1_at_k" in few
    assert "f1_at_k" not in measure(GroupedPairs(values, values, torch.arange(6), 10), ALL, draws=0)
