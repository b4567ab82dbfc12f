"""Few labels of people and many of a judge: thresholds that hold by themselves, and labels that are corrected."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy import stats

from lovec.calibration import Promised, calibrate_scores
from lovec.calibration import judged as module
from lovec.calibration.conformal import Guarantee, Passage, holds, losses, retention
from lovec.calibration.judged import CERTAINTY, corrected_labels, judged_guarantee, judged_threshold, lowest_safe
from lovec.calibration.scores import ScoreCalibration
from lovec.metrics.powered import Judged, upper_bounds
from lovec.types import LovecError


def drawn(groups: int, seed: int, size: int = 4, lenient: float = 0.5) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Scores, truth and a judge's verdicts of groups, [groups, size]; it takes a share of what is false for true."""
    rng = np.random.default_rng(seed)
    scores = rng.random((groups, size))
    truth = (rng.random((groups, size)) < 0.5 + 0.5 * scores).astype(float)
    judge = np.where((truth == 0) & (rng.random((groups, size)) < lenient), 1.0, truth)
    return scores, truth, judge


def passages(scores: np.ndarray, true: np.ndarray) -> list[Passage]:
    return [Passage(s.tolist(), (t >= 0.5).tolist()) for s, t in zip(scores, true, strict=True)]


@pytest.mark.parametrize(("kind", "share"), [("all-true", 1.0), ("share", 0.7), ("errors", 1.0)])
def test_losses_are_those_of_the_promise(kind, share):
    scores, truth, _ = drawn(30, 0)
    scores = scores.round(1)
    found = [*passages(scores, truth), Passage([None, 0.5], [False, False])]
    thresholds = [-math.inf, 0.0, 0.35, 0.5, 1.0]
    made = losses(found, kind, share, thresholds)
    for row, passage in zip(made, found, strict=True):
        for loss, threshold in zip(row, thresholds, strict=True):
            if kind == "errors":
                assert loss == pytest.approx(retention([passage], threshold).errors)
            elif not loss:
                assert all(holds(passage, above, share) for above in (threshold, 1.0))
    assert (np.diff(made) <= 0).all() and made[:, 0].any()


def test_a_bound_by_people_alone_is_that_of_the_t_distribution_with_one_more_group():
    values = torch.tensor([[0.0], [0.2], [0.1], [0.6]], dtype=torch.float64)
    counted = [0.0, 0.2, 0.1, 0.6, 1.0]
    expected = np.mean(counted) + stats.t.ppf(0.9, 4) * np.std(counted, ddof=1) / math.sqrt(5)
    assert upper_bounds(values, values, 0.9).tolist() == pytest.approx([expected])
    # a judge who says the same of all groups tells nothing
    more = torch.cat([values, torch.full((50, 1), math.nan, dtype=torch.float64)])
    assert upper_bounds(more, torch.full_like(more, 0.3), 0.9).tolist() == pytest.approx([expected])


def test_thresholds_hold_by_themselves_and_a_good_judge_lowers_them():
    every = drawn(40_000, 1)
    grid = np.append(-np.inf, np.linspace(0, 1, 101))
    population = losses(passages(every[0], every[1]), "errors", 1.0, grid)
    by_judge = losses(passages(every[0], every[2]), "errors", 1.0, grid)
    risk, alpha = np.append(population.mean(0), 0.0), 0.1
    rng = np.random.default_rng(2)
    right, found = {"both": 0, "people": 0, "judge": 0}, {"both": [], "people": [], "judge": []}
    for _ in range(300):
        chosen = rng.choice(len(population), 600, replace=False)
        people, judge = population[chosen], by_judge[chosen]
        people[60:] = np.nan
        pairs = {"both": (people, judge), "people": (people[:60], people[:60]), "judge": (judge, judge)}
        for name, pair in pairs.items():
            at = int(np.searchsorted(grid, lowest_safe(grid, *pair, alpha)))
            right[name] += risk[at] <= alpha
            found[name].append(np.append(grid, np.inf)[at])
    band = 1.96 * math.sqrt(CERTAINTY * (1 - CERTAINTY) * 300)
    assert right["both"] >= 300 * CERTAINTY - band and right["people"] >= 300 * CERTAINTY - band
    assert right["judge"] == 0  # a judge who takes half of what is false for true
    assert np.median(found["both"]) < np.median(found["people"])


@pytest.mark.parametrize(("kind", "alpha"), [("errors", 0.05), ("errors", 0.2), ("errors", 0.9), ("share", 0.4)])
def test_of_many_groups_some_thresholds_are_tried_at_a_time(monkeypatch, kind, alpha):
    scores, truth, judge = drawn(300, 6)
    theirs, of_judge = passages(scores, truth), passages(scores, judge)
    people = [one if at < 100 else None for at, one in enumerate(theirs)]
    sizes = []

    def noted(people, judge, level):
        sizes.append(judge.numel())
        return upper_bounds(people, judge, level)

    monkeypatch.setattr(module, "upper_bounds", noted)
    whole = judged_threshold(people, of_judge, alpha, kind, 0.7)
    assert sizes == [300 * 501]
    sizes.clear()
    monkeypatch.setattr(module, "_MOST_LOSSES", 300 * 30)
    assert judged_threshold(people, of_judge, alpha, kind, 0.7) == whole
    assert max(sizes) == 300 * 30 and len(sizes) <= 17


def test_with_too_few_labels_nothing_is_kept():
    scores, truth, judge = drawn(100, 3)
    theirs, of_judge = passages(scores, truth), passages(scores, judge)
    few = [one if at < 5 else None for at, one in enumerate(theirs)]
    assert judged_threshold(few, of_judge, 0.1, "errors") == math.inf
    made = judged_guarantee(few, of_judge, 0.1, "errors", 1.0, 0.5)
    assert made.keeps_nothing and (made.passages, made.sentences, made.certainty) == (5, 20, CERTAINTY)
    for kind in ("all-true", "share", "errors"):
        made = judged_guarantee([None] * 100, of_judge, 0.3, kind, 0.7, 0.5)
        assert made.threshold == math.inf and made.keeps_nothing and (made.passages, made.sentences) == (0, 0)


def test_without_a_group_that_people_have_labelled_bounds_are_infinite():
    judge = torch.rand(30, 4, dtype=torch.float64)
    assert upper_bounds(torch.full_like(judge, math.nan), judge, 0.9).tolist() == [math.inf] * 4


def test_labels_are_corrected_for_a_judge_who_calls_everything_true():
    rng = np.random.default_rng(4)
    scores, group = rng.random(4000), np.arange(4000) // 4
    truth = (rng.random(4000) < scores).astype(float)
    people = torch.from_numpy(np.where(group % 5 == 0, truth, math.nan))
    lenient = np.where((truth == 0) & (rng.random(4000) < 0.5), 1.0, truth)
    for judge in (np.ones(4000), lenient):
        made = corrected_labels(scores, Judged(people, torch.from_numpy(judge), torch.from_numpy(group)))
        for low in np.arange(0, 1, 0.2):
            inside = (scores >= low) & (scores < low + 0.2)
            assert made[inside].mean() == pytest.approx(truth[inside].mean(), abs=0.08)
    assert len(np.unique(made)) == 10


def test_a_calibration_with_a_judge():
    scores, truth, judge = (values.ravel() for values in drawn(400, 5))
    group = np.arange(1600) // 4
    people = np.where(group < 80, truth, math.nan)
    promised = [Promised(0.1, "errors"), Promised(0.2, "errors")]
    made, fitted = calibrate_scores({"p": scores}, people, group.tolist(), judge=("gpt", judge), promised=promised)
    assert made.judge == "gpt" and "with the labels of the judge in gpt" in made.describe()
    assert made.fitted.sentences == 320 and fitted.warnings == ()
    assert {"beta", "beta with the judge"} <= {candidate.name for candidate in fitted.candidates}
    assert [found.certainty for found in made.guarantees] == [CERTAINTY] * 2
    assert "on average at most 0.1 of all rows, which 0.9 of such thresholds keep" in made.guarantees[0].promise("row")
    assert made.guarantees[0].threshold > made.guarantees[1].threshold
    assert ScoreCalibration.from_dict(made.to_dict()) == made
    # people's labels of a group of which no row is held out may not be seen by the map that rates it
    at = next(iter(fitted.after))
    other = people.copy()
    other[group == int(at)] = 1 - other[group == int(at)]
    again = calibrate_scores({"p": scores}, other, group.tolist(), judge=("gpt", judge))[1]
    first = calibrate_scores({"p": scores}, people, group.tolist(), judge=("gpt", judge))[1]
    if again.name == first.name:
        assert again.after[at][0] == first.after[at][0]
    # below twenty groups of people's the judge is not used
    few = np.where(group < 15, truth, math.nan)
    made, fitted = calibrate_scores({"p": scores}, few, group.tolist(), judge=("gpt", judge), promised=promised)
    assert made.judge == "" and [found.certainty for found in made.guarantees] == [None] * 2
    assert "rows of 15 groups, fewer than the 20" in fitted.warnings[-1]
    alone, _ = calibrate_scores({"p": scores[:60]}, truth[:60], group[:60].tolist(), promised=promised)
    assert [g.threshold for g in made.guarantees] == [g.threshold for g in alone.guarantees]
    with pytest.raises(LovecError, match="a single column"):
        calibrate_scores({"p": scores, "q": scores**2}, people, group.tolist(), judge=("gpt", judge))
    in_part = people.copy()
    in_part[0] = math.nan
    warnings = calibrate_scores({"p": scores}, in_part, group.tolist(), judge=("gpt", judge))[1].warnings
    assert "labelled 1 group in part" in warnings[-1]


def test_guarantees_of_earlier_files_are_read():
    made = Guarantee("all-true", 0.1, 1.0, 0.5, 0.7, 30, 100, 0.4)
    assert "certainty" not in made.to_dict() and Guarantee.from_dict(made.to_dict()) == made
    certain = replace(made, certainty=0.9)
    assert Guarantee.from_dict(certain.to_dict()) == certain
