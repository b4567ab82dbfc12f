"""The map is chosen on passages that it was not fitted to, and what cannot be fitted is refused in one line."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from answers import answers, sigmoid, tagged

from lovec.calibration import Identity, Isotonic, Platt, Stack, fit_map
from lovec.calibration.numbers import resolved
from lovec.metrics.functional import brier_score, ece_m
from lovec.metrics.records import sentence_pairs
from lovec.types import LovecError, Record, Sentence


@pytest.fixture(scope="module")
def labelled():
    return answers(60)


@pytest.fixture(scope="module")
def fitted(labelled):
    return fit_map(labelled)


def test_every_confidence_is_from_a_map_that_has_not_seen_the_passage(labelled):
    """The map of a passage is that of the other folds: changing the passage's own labels leaves it alone."""
    fitted = fit_map(labelled, maps=("isotonic",), folds=60)  # one fold per passage
    others, own = labelled[1:], labelled[0]
    rows, truths, _ = sentence_pairs(others, "mean")
    expected = Isotonic.fit(rows, truths)(sentence_pairs([own], "mean")[0])
    assert fitted.name == "isotonic" and fitted.after["p0"][0] == pytest.approx(expected.tolist(), abs=1e-12)
    lied = replace(own, sentences=tuple(replace(s, factuality=1 - s.factuality) for s in own.sentences))
    again = fit_map([lied, *others], maps=("isotonic",), folds=60)
    assert again.after["p0"][0] == fitted.after["p0"][0]
    assert again.after != fitted.after  # the other passages' maps have seen the change


def test_the_numbers_of_the_candidates_are_those_of_their_confidences(labelled, fitted):
    assert [candidate.name for candidate in fitted.candidates] == ["identity", "platt", "beta", "isotonic"]
    flat = [np.concatenate([np.array(pair[i]) for pair in fitted.after.values()]) for i in (0, 1)]
    chosen = next(candidate for candidate in fitted.candidates if candidate.name == fitted.name)
    assert (chosen.brier, chosen.ece_m) == (float(brier_score(*flat)), float(ece_m(*flat)))
    assert chosen.brier == min(candidate.brier for candidate in fitted.candidates)
    means, truth, _ = sentence_pairs(labelled, "mean")
    before = resolved(means)
    assert fitted.candidates[0].brier == pytest.approx(float(brier_score(before, truth)), abs=1e-12)
    whole = type(fitted.map).fit(before, truth)
    assert whole == fitted.map  # the map itself is fitted to everything
    assert (fitted.sentences, fitted.passages, fitted.missing, fitted.warnings) == (360, 60, 0, ())
    metrics = fitted.metrics(draws=200)
    assert metrics["after"]["brier"][0] == pytest.approx(chosen.brier)
    assert metrics["difference"]["brier"][2] < 0  # better beyond what other questions would change
    assert metrics["difference"]["ece_m"][0] == pytest.approx(chosen.ece_m - fitted.candidates[0].ece_m)


def test_fits_are_repeatable_and_do_not_depend_on_how_records_are_cut(labelled):
    assert fit_map(labelled, seed=3) == fit_map(labelled, seed=3)
    halves = [replace(r, sentences=part) for r in labelled for part in (r.sentences[:2], r.sentences[2:])]
    assert fit_map(halves, seed=3).after == fit_map(labelled, seed=3).after  # the id makes the passage


def test_answers_to_one_question_are_in_one_fold_and_one_draw(labelled):
    twice = [replace(r, id=f"{r.id}/sample-{n}") for r in labelled for n in (1, 2)]
    once, both = (fit_map(records, maps=("isotonic",), seed=3) for records in (labelled, twice))
    assert list(both.after) == list(once.after)
    for name, (confidences, _) in once.after.items():
        assert both.after[name][0] == pytest.approx(confidences * 2, abs=1e-12)  # no map has seen the other sample
    for stage, found in both.metrics(draws=100).items():
        expected = once.metrics(draws=100)[stage]
        assert {m: pytest.approx(ends, abs=1e-9) for m, ends in expected.items()} == found, stage
    with pytest.raises(LovecError, match="are all of one passage, 'p0'"):
        fit_map(twice[:2])


def test_calibrated_confidences_stay_as_they_are():
    """Where no map does better, none is deployed."""
    rng = np.random.default_rng(1)
    records = []
    for index in range(300):
        c = rng.choice([0.02, 0.3, 0.31, 0.9], 4)
        truth = np.where(rng.random(4) < c, 1.0, 0.0)
        records.append(Record(str(index), "Q?", sentences=tuple(tagged(*pair) for pair in zip(c, truth, strict=True))))
    fitted = fit_map(records, maps=("isotonic",))
    by_name = {candidate.name: candidate.brier for candidate in fitted.candidates}
    assert fitted.name == min(by_name, key=by_name.get)
    exact = [Record(str(i), "Q?", sentences=(tagged(0.2, 0.2), tagged(0.5, 0.5), tagged(0.9, 0.9))) for i in range(40)]
    fitted = fit_map(exact)  # isotonic and identity have the same score, up to rounding: the simpler one wins
    assert (fitted.name, fitted.map) == ("identity", Identity())


def test_the_identity_changes_nothing_in_a_fold_whose_confidences_are_equal():
    false = (0, 1, 2, 7)
    sure = [Sentence("A.", float(at not in false), confidence=0.95 if at == 7 else 1.0) for at in range(400)]
    fitted = fit_map([Record(str(at), "Q?", sentences=(one,)) for at, one in enumerate(sure)], "stated")
    assert fitted.name == "identity" and fitted.after == fitted.before
    expected = sum((one.confidence - one.factuality) ** 2 for one in sure) / 400
    assert fitted.candidates[0].brier == pytest.approx(expected)


def test_a_map_that_falls_is_never_deployed():
    """Confidences that rank worse than chance: Platt's curve would reverse their order."""
    reversed_ = [
        Record(r.id, "Q?", sentences=tuple(replace(s, factuality=1 - s.factuality) for s in r.sentences))
        for r in answers(60, excess=0.0)
    ]
    fitted = fit_map(reversed_, maps=("platt",))
    by_name = {candidate.name: candidate.brier for candidate in fitted.candidates}
    assert by_name["platt"] < by_name["identity"] and fitted.name == "identity"
    assert any("does not rank" in warning for warning in fitted.warnings)
    assert not isinstance(fit_map(reversed_).map, Platt)


def test_maps_of_too_few_labels_are_warned_of():
    few = fit_map(answers(12))
    (warning,) = few.warnings
    assert "72 labelled sentences of 12 passages; below 200 sentences or 30 passages" in warning
    assert "below 200" in fit_map(answers(29, 10)).warnings[0]
    assert fit_map(answers(34)).warnings == ()


def test_what_least_labels_promises_holds():
    """Its documentation gives the ECE-M that is left: 3.0 points of 17.6 on average."""
    rng = np.random.default_rng(9)
    odds = rng.normal(size=20_000) + rng.normal(size=20_000)
    truth = np.clip(np.round((sigmoid(odds) + rng.normal(0, 0.25, 20_000)) * 2) / 2, 0, 1)
    new = sigmoid(odds + 1)
    left = [float(ece_m(fit_map(answers(34, seed=seed)).map(new), truth)) for seed in range(12)]
    assert float(ece_m(new, truth)) == pytest.approx(0.176, abs=0.01)
    assert np.mean(left) < 0.045


# ---------------------------------------------------------------- stack


def test_a_stack_uses_what_one_readout_does_not_know():
    rng = np.random.default_rng(0)
    records = []
    for record in answers(60, excess=0.0):
        told = [
            replace(s, token_logps=(-1.0 - (1 - s.factuality) * rng.uniform(0.5, 1.5),) * 3) for s in record.sentences
        ]
        records.append(replace(record, sentences=tuple(told)))
    alone, together = fit_map(records), fit_map(records, ("mean", "entropy", "logp_mean"))
    assert isinstance(together.map, Stack) and together.readout == ("mean", "entropy", "logp_mean")
    best = min(candidate.brier for candidate in alone.candidates)
    assert min(candidate.brier for candidate in together.candidates) < 0.5 * best
    assert together.before == alone.before  # what it is compared with is the mean
    assert {candidate.name for candidate in together.candidates} == {"stack", "stack, isotonic"}
    held = fit_map(records[:5] + records[6:], together.readout)  # one passage more or less: another stack
    assert held.map != together.map


def test_a_stack_without_a_confidence_is_compared_with_the_mean_truth(labelled):
    fitted = fit_map(labelled, ("logp_mean", "logp_min"))
    constants = {c for confidences, _ in fitted.before.values() for c in confidences}
    assert len(constants) == 1
    assert fitted.metrics(draws=20)["before"]["spearman"] is None


# ---------------------------------------------------------------- what breaks


def one_of_each(change):
    return [replace(r, sentences=tuple(map(change, r.sentences))) for r in answers(4)]


@pytest.mark.parametrize(
    ("records", "options", "line"),
    [
        ([], {}, "no sentence has a label and mean, expected tagged records"),
        (one_of_each(lambda s: replace(s, factuality=None)), {}, "no sentence has a label"),
        (one_of_each(lambda s: replace(s, distribution=None)), {}, "none of 24 labelled sentences has mean"),
        (one_of_each(lambda s: s), {"readout": ("mean", "logp_mean", "x")}, "the features are"),
        (answers(1), {}, "all of one passage, 'p0', expected two or more"),
        (one_of_each(lambda s: replace(s, factuality=1.0)), {}, r"have the factuality 1 \(one class\)"),
        (one_of_each(lambda s: replace(s, factuality=0.0)), {"readout": ("mean", "entropy")}, "one class"),
        (one_of_each(lambda s: replace(tagged(0.7), factuality=s.factuality)), {}, r"same confidence \(mean 0\.7\)"),
        (one_of_each(lambda s: replace(s, factuality=math.nan)), {}, "factuality contains nan"),
        (one_of_each(lambda s: replace(s, factuality=7.0)), {}, "factuality contains 7"),
        (one_of_each(lambda s: replace(s, score=None, confidence=math.nan)), {"readout": "stated"}, "none of 24"),
        (answers(4), {"readout": "mode"}, "readout is 'mode', expected one of stated, mean"),
        (answers(4), {"maps": ("spline",)}, "the map 'spline' is unknown"),
        (answers(4), {"folds": 1}, "folds is 1, expected at least 2"),
        (answers(4), {"seed": -1}, "seed is -1"),
    ],
)
def test_data_without_a_calibration_are_refused(records, options, line):
    with pytest.raises(LovecError, match=line) as error:
        fit_map(records, **options)
    assert "\n" not in str(error.value)


def test_two_passages_with_a_confidence_each_are_enough():
    """A fold has one confidence only, so its best map is the mean of its labels."""
    records = [
        Record(str(i), "Q?", sentences=(tagged(0.2 + i * 0.5, 0.0), tagged(0.2 + i * 0.5, float(i)))) for i in range(2)
    ]
    fitted = fit_map(records)
    assert {c.name: c.brier for c in fitted.candidates}["isotonic"] == pytest.approx((0.25 + 0.25 + 0 + 1) / 4)


def test_confidences_beyond_the_clip_do_not_stop_a_fit():
    records = [
        Record(str(i), "Q?", sentences=(Sentence("A.", 0.0, confidence=0.0), Sentence("B.", 1.0, confidence=0.005)))
        for i in range(10)
    ]
    fitted = fit_map(records, "stated")
    assert fitted.name == "isotonic"
    assert {c.name: c.brier for c in fitted.candidates}["platt"] == pytest.approx(0.25)


def test_sentences_without_a_feature_are_left_out_and_counted():
    records = answers(40)
    bare = replace(records[0], sentences=(*records[0].sentences[1:], Sentence("A.", factuality=1.0)))
    fitted = fit_map([bare, *records[1:]])
    assert (fitted.sentences, fitted.missing) == (239, 1)
    assert any("1 labelled sentence lacks mean" in warning for warning in fitted.warnings)
