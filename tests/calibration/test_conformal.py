"""Thresholds: the published ones to the last digit, and the coverage that they promise."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from answers import answers, sampled

from lovec.calibration import Guarantee, Promised, calibrate, guarantee
from lovec.calibration.conformal import (
    Passage,
    conformal_scores,
    conformal_threshold,
    holds,
    keeps,
    passages_of,
    retention,
    risk_threshold,
)
from lovec.calibration.numbers import resolved_number
from lovec.metrics.records import confidence_of
from lovec.types import LovecError, Record, Sentence, question_id

PUBLISHED = Path(__file__).parents[3] / "shared" / "data" / "conformal_subclaims"


def published(name):
    path = PUBLISHED / f"{name}.jsonl"
    if not path.is_file():
        pytest.skip("no shared/data/conformal_subclaims beside the checkout")
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    return [Passage(row["scores"], [bool(true) for true in row["true"]]) for row in rows]


@pytest.mark.parametrize(
    ("name", "alpha", "share", "threshold"),
    [
        ("factscore", 0.15, 1.0, 4.8998812119930735),
        ("factscore", 0.15, 0.7, 4.00022563726816),
        ("nq", 0.1, 0.8, 3.7987289281099534),
        ("nq", 0.1, 0.9, 3.999139923235701),
        ("nq", 0.1, 1.0, 3.999139923235701),
    ],
)
def test_published_thresholds(name, alpha, share, threshold):
    assert conformal_threshold(conformal_scores(published(name), share), alpha) == threshold


def test_the_score_of_a_passage_by_hand():
    passage = Passage([0.9, 0.8, 0.7, 0.6, None], [True, False, True, True, False])
    assert conformal_scores([passage], 1.0) == [0.8]
    assert conformal_scores([passage], 0.6) == [0.8]  # 1 of 2
    assert conformal_scores([passage], 0.5) == [-math.inf]  # 1, 1/2, 2/3, 3/4
    assert conformal_scores([Passage([0.7] * 10, [True] * 7 + [False] * 3)], 0.7) == [-math.inf]  # 7/10 is enough
    assert conformal_scores([Passage([0.7] * 10, [True] * 6 + [False] * 4)], 0.7) == [0.7]
    assert conformal_scores([Passage([0.5, 0.5], [True, False])], 1.0) == [0.5]  # ties enter together
    assert conformal_scores([Passage([], []), Passage([None], [False])], 1.0) == [-math.inf] * 2


def test_the_rank_of_a_threshold():
    scores = [float(i) for i in range(1, 30)]  # n = 29
    assert conformal_threshold(scores, 0.1) == 27.0  # (29 + 1) 0.9 is 27 exactly, and no 28 by rounding
    assert conformal_threshold(scores, 0.05) == 29.0
    assert conformal_threshold(scores, 0.03) == math.inf
    assert conformal_threshold(scores[:19], 0.05) == 19.0
    assert conformal_threshold(scores[:18], 0.05) == math.inf
    assert conformal_threshold([], 0.5) == math.inf


def test_the_threshold_of_risk_control_by_hand():
    passages = [Passage([0.9, 0.5], [False, True]), Passage([0.7, 0.7, None], [False, True, False])] + [
        Passage([0.8], [True])
    ] * 7
    # losses: 1/2 below 0.9 and 1/3 below 0.7, of n = 9
    assert risk_threshold(passages, (1 / 2 + 1 / 3 + 1) / 10) == -math.inf
    assert risk_threshold(passages, 0.15) == 0.7
    assert risk_threshold(passages, 0.149) == 0.9
    assert risk_threshold(passages, 0.1) == 0.9
    assert risk_threshold(passages, 0.099) == math.inf
    assert risk_threshold([Passage([0.5], [True])] * 9, 0.1) == -math.inf
    assert risk_threshold([], 0.5) == math.inf


def test_risk_control_takes_the_lowest_threshold_that_is_allowed():
    """Against a search over all thresholds, with ties and missing scores."""
    rng = np.random.default_rng(5)
    for _ in range(20):
        passages = drawn(rng, 12, levels=5)
        found = risk_threshold(passages, 0.25)
        allowed = [
            t
            for t in [-math.inf, *(i / 5 for i in range(6))]
            if (12 * retention(passages, t).errors + 1) / 13 <= 0.25 + 1e-12
        ]
        assert retention(passages, found) == retention(passages, min(allowed))


# ---------------------------------------------------------------- coverage


def drawn(rng, n, levels):
    """Passages whose scores are worth something; on a few levels, so that they tie."""
    made = []
    for _ in range(n):
        size = rng.integers(1, 8)
        p = rng.beta(4, 1.2, size) * rng.uniform(0.6, 1)
        scores = np.round(np.clip(p + rng.normal(0, 0.1, size), 0, 1) * levels) / levels
        made.append(
            Passage([None if rng.random() < 0.03 else float(s) for s in scores], (rng.random(size) < p).tolist())
        )
    return made


@pytest.mark.parametrize("levels", [10, 10**6], ids=["ties", "no ties"])
def test_the_promised_coverage_is_reached(levels):
    """One new passage for each of 500 calibrations: the number of failures is binomial, with alpha at most."""
    rng, draws = np.random.default_rng(11), 300
    alphas, kinds = (0.05, 0.1, 0.2), {"all-true": 1.0, "share": 0.7}
    failures = dict.fromkeys([(kind, alpha) for kind in kinds for alpha in alphas], 0)
    losses = {alpha: [] for alpha in alphas}
    for _ in range(draws):
        *known, new = drawn(rng, 60, levels)
        for kind, share in kinds.items():
            scores = conformal_scores(known, share)
            for alpha in alphas:
                failures[kind, alpha] += not holds(new, conformal_threshold(scores, alpha), share)
        for alpha in alphas:
            losses[alpha].append(retention([new], risk_threshold(known, alpha)).errors)
    for (_, alpha), count in failures.items():
        band = 2.6 * math.sqrt(draws * alpha * (1 - alpha))  # 99.5 %
        assert count <= draws * alpha + band
        if levels > 10:  # without ties it is not much more cautious than promised: by 1/(n + 1) at most
            assert count >= draws * (alpha - 1 / 60) - band
    for alpha, values in losses.items():
        assert np.mean(values) <= alpha + 2.6 * np.std(values) / math.sqrt(draws)
        assert np.mean(values) >= alpha - 2 / 60 - 2.6 * np.std(values) / math.sqrt(draws)  # nor much below


def test_keeping_what_lies_at_the_threshold_is_not_sound():
    """Every passage has a false sentence with the same score: the published rule keeps all of them."""
    passages = [Passage([0.9, 0.8], [True, False])] * 40
    threshold = conformal_threshold(conformal_scores(passages), 0.1)
    assert threshold == 0.8
    new = Passage([0.9, 0.8], [True, False])
    assert holds(new, threshold) and retention([new], threshold).kept == 1
    assert [keeps(score, threshold) for score in (0.9, 0.8, None)] == [True, False, False]


# ---------------------------------------------------------------- guarantees


def test_a_guarantee_says_what_it_keeps():
    rng = np.random.default_rng(2)
    passages = drawn(rng, 200, 100)
    for kind, share in (("all-true", 1.0), ("share", 0.8), ("errors", 1.0)):
        kept = [guarantee(passages, alpha, kind, share).kept for alpha in (0.05, 0.1, 0.2, 0.4)]
        assert kept == sorted(kept) and 0 < kept[1] < 1
        made = guarantee(passages, 0.2, kind, share)
        assert made.kept == retention(passages, made.threshold).share


def test_a_guarantee_from_too_few_passages_keeps_nothing_and_says_so():
    made = guarantee([Passage([1.0, 0.5], [True, True])] * 8, 0.1)
    assert made.keeps_nothing and made.kept == 0 and not made.keeps(1.0)
    assert "8 labelled answers, too few" in made.describe() and "nothing is kept" in made.describe()
    made = guarantee([Passage([1.0, 0.5], [True, True])] * 9, 0.1)
    assert made.threshold == -math.inf and made.kept == 1.0 and made.keeps(0.0) and not made.keeps(None)
    assert made.describe() == (
        "all kept sentences of an answer are true (factuality of at least 0.5) with probability 0.9 or more; 100 % of "
        "18 sentences of 9 answers are kept"
    )
    assert "nothing is kept" in guarantee([Passage([1.0], [True])] * 8, 0.1, "errors").describe()


def test_passages_hold_the_labelled_sentences():
    records = [
        Record("a", "Q?", sentences=(Sentence("A.", 0.5, 0.9), Sentence("B.", 0.4), Sentence("C.", None, 0.8))),
        Record("b", "Q?", sentences=(Sentence("D.", None, 0.7),)),
        Record("c", "Q?"),
    ]
    stated = lambda s: confidence_of(s, "stated")  # noqa: E731
    assert passages_of(records, stated) == ([Passage([0.9, None], [True, False])], 2)
    assert passages_of(records, stated, 0.4)[0] == [Passage([0.9, None], [True, True])]
    assert passages_of(records, stated, 0.51)[0] == [Passage([0.9, None], [False, False])]


def test_guarantees_come_back_from_json_as_they_were():
    passages = drawn(np.random.default_rng(0), 30, 10)
    for made in (guarantee(passages, 0.1), guarantee(passages, 0.01), guarantee(passages, 0.2, "share", 0.5)):
        assert Guarantee.from_dict(json.loads(json.dumps(made.to_dict(), allow_nan=False))) == made
    everything = replace(made, threshold=-math.inf)
    assert everything.to_dict()["threshold"] == "everything"
    assert Guarantee.from_dict(everything.to_dict()) == everything


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ({"kind": "surely"}, "kind of a guarantee is 'surely', expected one of all-true, share, errors"),
        ({"kind": ["all-true"]}, "kind of a guarantee is"),
        ({"threshold": None}, "threshold of a guarantee is None"),
        ({"threshold": "some"}, "threshold of a guarantee is 'some'"),
        ({"threshold": math.nan}, "threshold of a guarantee is NaN"),
        ({"threshold": math.inf}, "threshold of a guarantee is inf"),
        ({"alpha": 1.5}, "alpha of a guarantee is 1.5"),
        ({"share": -0.1}, "share of a guarantee is -0.1"),
        ({"true_from": "1"}, "true_from of a guarantee is '1'"),
        ({"kept": 2}, "kept of a guarantee is 2"),
        ({"passages": 1.5}, "passages of a guarantee is 1.5, expected an integer"),
        ({"sentences": -1}, "sentences of a guarantee is -1"),
        ({"x": 1}, "unknown key 'x'"),
    ],
)
def test_what_is_no_guarantee_is_refused(change, line):
    data = guarantee([Passage([1.0, 0.5], [True, False])] * 12, 0.1).to_dict()
    with pytest.raises(LovecError, match=line):
        Guarantee.from_dict(data | change)


@pytest.mark.parametrize(
    ("passages", "options", "line"),
    [
        ([], {}, "got no labelled passage"),
        ([Passage([0.5], [True])], {"alpha": 0.0}, "alpha is 0.0, expected above 0 and below 1"),
        ([Passage([0.5], [True])], {"alpha": 1.0, "kind": "errors"}, "alpha is 1.0"),
        ([Passage([0.5], [True])], {"alpha": math.nan}, "alpha is nan"),
        ([Passage([0.5], [True])], {"kind": "share", "share": 0.0}, "share is 0.0, expected above 0 and at most 1"),
        ([Passage([0.5], [True])], {"share": 0.9}, "share of a guarantee that all .* is 0.9, expected at least 1"),
        ([Passage([0.5], [True])], {"kind": "mostly"}, "kind of a guarantee is 'mostly'"),
        ([Passage([0.5], [True])], {"true_from": 0.0}, "true_from is 0.0, expected above 0"),
        ([Passage([math.nan], [True])], {}, "1 scores and 1 truths, expected .* finite"),
        ([Passage([math.inf], [True])], {"kind": "errors"}, "scores that are finite"),
        ([Passage([0.5, 0.4], [True])], {}, "2 scores and 1 truths, expected equally many"),
    ],
)
def test_promises_that_cannot_be_made_are_refused(passages, options, line):
    with pytest.raises(LovecError, match=line) as error:
        guarantee(passages, **{"alpha": 0.1, **options})
    assert "\n" not in str(error.value)


def test_answers_to_one_question_count_as_much_as_one():
    """Copies of answers, of some more than of others, change no threshold; without weights they would."""
    records = answers(60)
    several = sampled(records)
    stated = lambda s: confidence_of(s, "stated")  # noqa: E731
    single, copies = passages_of(records, stated)[0], passages_of(several, stated)[0]
    assert len(copies) == 120 and sum(passage.weight for passage in copies) == pytest.approx(60)
    promised = [Promised(alpha, *kind) for alpha in (0.05, 0.1, 0.3) for kind in ((), ("errors",), ("share", 0.7))]
    thresholds = [guarantee(single, *one).threshold for one in promised]
    assert [guarantee(copies, *one).threshold for one in promised] == thresholds
    assert [guarantee([p._replace(weight=1.0) for p in copies], *one).threshold for one in promised] != thresholds
    options = {"adapter": "a", "base": "b", "mode": "iterative", "promised": promised, "draws": 1}
    once, made = (calibrate(found, **options)[0] for found in (records, several))
    assert [one.threshold for one in made.guarantees] == [one.threshold for one in once.guarantees]
    assert {made.fitted.passages, *(one.passages for one in made.guarantees)} == {120}
    stacked, fitted = calibrate(several, **options, readout=("mean", "logp_mean"))
    assert len(fitted.after) == 30  # questions: the thresholds are on all answers to the others
    assert stacked.fitted.passages == sum(question_id(r.id) in fitted.after for r in several)
    assert stacked.guarantees[0].passages == 120 - stacked.fitted.passages


def test_thresholds_are_on_what_no_label_has_touched():
    records, promised = answers(40), [Promised(0.2), Promised(0.1, "errors"), Promised(0.2, "share", 0.6)]
    options = {"adapter": "a", "base": "b", "mode": "iterative", "promised": promised, "draws": 1}
    made, _ = calibrate(records, **options, maps=("isotonic",))
    readouts, _ = passages_of(records, lambda s: resolved_number(confidence_of(s, "mean")))
    assert made.guarantees == tuple(guarantee(readouts, *one) for one in promised)
    assert made.keeps(made_sentence := records[0].sentences[0], made.guarantees[1]) == (
        confidence_of(made_sentence, "mean") > made.guarantees[1].threshold
    )
    stacked, fitted = calibrate(records, **options, readout=("mean", "logp_mean"))
    others = [record for record in records if record.id not in fitted.after]  # the stack has seen one half only
    assert len(others) == len(fitted.after) == 20
    ranked, _ = passages_of(others, stacked.confidence)
    assert stacked.guarantees == tuple(guarantee(ranked, *one) for one in promised)
    assert (stacked.fitted.passages, stacked.guarantees[0].passages) == (20, 20)
    whole, fitted = calibrate(records, **{**options, "promised": ()}, readout=("mean", "logp_mean"))
    assert len(fitted.after) == 40 and whole.guarantees == ()
