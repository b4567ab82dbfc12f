"""The baseline of words: by hand, against scikit-learn, and that it knows claims but no things."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.linear_model import Ridge as SklearnRidge

from lovec.baselines import Words
from lovec.baselines.ridge import Ridge
from lovec.types import LovecError, Record, Sentence


def answer(number, *sentences):
    return Record(str(number), f"Question {number}?", sentences=tuple(Sentence(*pair) for pair in sentences))


def corpus(n=60):
    """Answers in which what is said of France is true, and that the moon is cheese is false."""
    for number in range(n):
        place, truth = ("France", 1.0) if number % 3 else ("Atlantis", 0.0)
        yield answer(number, (f"X is in {place}.", truth), ("It is large.", truth), ("The moon is cheese.", 0.0))


def test_it_learns_which_claims_are_true_and_what_the_first_sentence_names():
    words = Words()
    words.fit(list(corpus()))
    seen = words.tag([answer("new", ("Y is in France.", None), ("It is large.", None), ("The moon is cheese.", None))])
    other = words.tag([answer("new", ("Y is in Atlantis.", None), ("It is large.", None), ("Unheard of.", None))])
    first, large, moon = (sentence.confidence for sentence in seen[0].sentences)
    assert min(first, large) > 0.8 and moon < 0.3  # a sum of weights cannot know that the moon is no place
    elsewhere, small, _ = (sentence.confidence for sentence in other[0].sentences)
    assert elsewhere < 0.3 and large - small > 0.4  # the same sentence after another first one
    assert all(sentence.score is None for sentence in seen[0].sentences)


def test_words_that_are_rare_or_new_do_not_count():
    words = Words(least=3)
    words.fit([*corpus(), answer("rare", ("Zanzibar.", 1.0), ("Zanzibar.", 1.0))])
    assert "zanzibar" not in words._columns and {"france", "first: france", "place: 2"} <= words._columns.keys()
    assert words.confidences([answer("a", ("Zanzibar.", None))]) == words.confidences([answer("a", ("Nowhere.", None))])
    assert words.confidences([answer("empty")]) == [[]]


def test_sentences_without_a_label_are_not_learned_from():
    records = list(corpus())
    some = [*records, answer("unlabelled", *[("France is false.", None)] * 50)]
    fitted = [Words(), Words()]
    for words, part in zip(fitted, (records, some), strict=True):
        words.fit(part)
    assert fitted[0]._columns == fitted[1]._columns and fitted[0].penalty == fitted[1].penalty


@pytest.mark.parametrize("penalty", [1e-3, 0.1, 10.0])
def test_the_ridge_without_scaling_is_that_of_scikit_learn(penalty):
    rng = np.random.default_rng(0)
    x, y = (rng.random((50, 8)) < rng.random(8)).astype(float), rng.random(50)
    [ours] = Ridge.path(torch.tensor(x), torch.tensor(y), [penalty], scaled=False)
    theirs = SklearnRidge(alpha=penalty * len(y)).fit(x, y)
    assert ours.weights.numpy() == pytest.approx(theirs.coef_, abs=1e-9)
    assert float(ours.intercept) == pytest.approx(theirs.intercept_, abs=1e-9)


def test_the_penalty_grows_with_the_noise():
    rng = np.random.default_rng(0)
    clean = list(corpus(150))
    noisy = [
        answer(r.id, *((f"{s.text} w{rng.integers(200)}", float(rng.random() < 0.5)) for s in r.sentences))
        for r in clean
    ]
    penalties = []
    for records in (clean, noisy):
        words = Words(least=1)
        words.fit(records)
        penalties.append(words.penalty)
    assert penalties[0] < penalties[1]


def test_what_is_wrong_is_said():
    with pytest.raises(LovecError, match="'Words' is not fitted"):
        Words().confidences([])
    with pytest.raises(LovecError, match="labelled sentences of 1 questions, expected at least two"):
        Words().fit([answer(1, ("A.", 1.0))])
    with pytest.raises(LovecError, match="least is 0"):
        Words(least=0)


def test_held_out_values_of_a_question_do_not_depend_on_its_labels(monkeypatch):
    monkeypatch.setattr("lovec.baselines.words._PENALTIES", (1e-3,))  # the choice of a penalty may see all labels
    records = list(corpus(20))
    flipped = [answer(0, *[(s.text, 1.0 - s.factuality) for s in records[0].sentences]), *records[1:]]
    first, second = (Words(folds=20, least=1).held_out(part) for part in (records, flipped))
    assert first[0] == pytest.approx(second[0], abs=1e-9)
    assert first[1] != pytest.approx(second[1], abs=1e-4)


def test_held_out_values_of_sentences_without_labels_are_those_of_other_questions():
    records = [*corpus(), answer("bare", ("X is in France.", None))]
    words = Words()
    held = words.held_out(records)
    assert [len(values) for values in held] == [len(record.sentences) for record in records]
    assert held[-1] == pytest.approx(words.confidences(records[-1:])[0], abs=0.05)
    assert held[0] != words.confidences(records[:1])[0]
