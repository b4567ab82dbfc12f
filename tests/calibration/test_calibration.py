"""The file beside an adapter: what it does to records, what it refuses, and when it warns."""

from __future__ import annotations

import hashlib
import json
import math
import os
from dataclasses import replace

import numpy as np
import pytest
from answers import answers, sigmoid, tagged

from lovec.calibration import (
    Calibration,
    Identity,
    Promised,
    calibrate,
    read_calibrations,
    weights_digest,
    write_calibrations,
)
from lovec.calibration.drift import Histogram
from lovec.core.hub import CALIBRATION_FILE as FILE
from lovec.metrics.functional import ece_m
from lovec.metrics.records import sentence_pairs
from lovec.types import LovecError, Sentence

WEIGHTS = b"weights of an adapter"
DIGEST = hashlib.sha256(WEIGHTS).hexdigest()
OPTIONS = {"adapter": DIGEST, "base": "org/model", "mode": "iterative", "draws": 50}
STACK = ("mean", "entropy", "logp_mean")


@pytest.fixture(scope="module")
def labelled():
    return answers(80)


@pytest.fixture(scope="module")
def made(labelled):
    promised = [Promised.keep_factual(0.9), Promised.keep_factual(0.8), Promised(0.3, "share", 0.7)]
    return calibrate(labelled, **OPTIONS, promised=promised, data=["/somewhere/else/dev.jsonl"])[0]


@pytest.fixture(scope="module")
def stacked(labelled):
    return calibrate(labelled, **OPTIONS, readout=STACK)[0]


# ---------------------------------------------------------------- what it does


def test_confidences_of_new_answers_are_calibrated(made, stacked):
    new = answers(300, seed=1)
    for calibration in (made, stacked):
        after = calibration.apply(new)
        confidence, truth, missing = sentence_pairs(
            [replace(r, sentences=tuple(replace(s, score=None) for s in r.sentences)) for r in after], "stated"
        )
        assert missing == 0
        assert ece_m(*sentence_pairs(new, "mean")[:2]) > 0.15 and ece_m(confidence, truth) < 0.05
        assert confidence == [calibration.confidence(s) for r in new for s in r.sentences]


def test_only_the_confidence_changes(made, stacked):
    records = [*answers(3, seed=2), replace(answers(1)[0], id="x", sentences=(Sentence("No tag."),))]
    before = repr(records)
    for calibration in (made, stacked):
        after = calibration.apply(records)
        assert repr(records) == before
        for old, new in zip(records, after, strict=True):
            stripped = tuple(
                replace(s, confidence=o.confidence) for s, o in zip(new.sentences, old.sentences, strict=True)
            )
            assert replace(new, sentences=stripped) == old
        assert after[3].sentences[0].confidence is None
        assert calibration.apply(after) == after
        ranks = [calibration.rank(s) for r in after for s in r.sentences]
        assert ranks == [calibration.rank(s) for r in records for s in r.sentences]
    assert made.apply([]) == []


def test_the_map_keeps_the_order_of_the_ranks(made, stacked):
    for calibration in (made, stacked):
        pairs = sorted(
            (calibration.rank(s), calibration.confidence(s)) for r in answers(30, seed=3) for s in r.sentences
        )
        confidences = [confidence for _, confidence in pairs]
        assert confidences == sorted(confidences) and 0 <= confidences[0] < confidences[-1] <= 1


def test_another_scale_is_refused(made):
    other = answers(2, levels=5)
    with pytest.raises(LovecError, match=r"scored on 5 levels, and the calibration was fitted to 11; calibrate again"):
        made.apply(other)
    with pytest.raises(LovecError, match=r"scored on \[5, 11\] levels"):
        calibrate([*answers(4), *answers(4, levels=5)], **OPTIONS)
    assert calibrate(answers(40, levels=5), **OPTIONS)[0].levels == 5


def test_it_says_what_a_confidence_is(made, stacked):
    day = made.fitted.date
    assert made.describe() == (
        f"confidence: mean of the score distribution, calibrated ({made.map.name}, 480 sentences of 80 answers, {day})"
    )
    assert stacked.describe().startswith("confidence: from mean, entropy, logp_mean, calibrated (stack")
    assert "as it is, which no map improved" in replace(made, map=Identity()).describe()
    assert (made.needs_token_logps, stacked.needs_token_logps) == (False, True)


def test_thresholds_are_found_by_their_probability(made):
    assert made.threshold(0.9) == made.guarantees[0] and made.threshold(1 - 0.2) == made.guarantees[1]
    assert made.threshold(0.7) == made.guarantees[2] and made.guarantees[2].kind == "share"
    with pytest.raises(LovecError) as error:
        made.threshold(0.95)
    assert str(error.value) == (
        "there is no threshold for --keep_factual 0.95, only for 0.9, 0.8, 0.7 (share); calibrate again with "
        "those that promise the same as the first: `lovec calibrate RUN --keep_factual '[0.9,0.8,0.95]'`"
    )
    shared = replace(made, guarantees=made.guarantees[2:])
    with pytest.raises(LovecError) as error:
        shared.threshold(0.95)
    assert str(error.value).endswith(
        "only for 0.7 (share); calibrate again with all of them: "
        f"`lovec calibrate RUN --keep_factual '[0.7,0.95]' --promise share --share {shared.guarantees[0].share:g}`"
    )
    with pytest.raises(LovecError, match="only for none"):
        replace(made, guarantees=()).threshold(0.9)
    for wrong in (0, 1, 1.5, math.nan, "0.9"):
        with pytest.raises(LovecError, match="keep_factual is"):
            made.threshold(wrong)
        with pytest.raises(LovecError, match="keep_factual is"):
            Promised.keep_factual(wrong)


# ---------------------------------------------------------------- the file


@pytest.fixture
def folder(tmp_path):
    """The folder of an adapter."""
    (tmp_path / "adapter_model.safetensors").write_bytes(WEIGHTS)
    return tmp_path


def test_they_come_back_from_their_file_as_they_were(made, stacked, folder):
    for calibration in (made, stacked, replace(made, map=Identity(), guarantees=())):
        both = {"iterative": calibration, "free-form": replace(made, mode="free-form")}
        path = write_calibrations(folder, both)
        again = read_calibrations(folder)
        assert again == both and list(again) == list(both) and path == folder / FILE
        sentence = answers(1)[0].sentences[0]
        assert again["iterative"].confidence(sentence) == calibration.confidence(sentence)
        assert [again[mode].to_dict() for mode in both] == json.loads(path.read_text())["calibrations"]
    assert sorted(file.name for file in folder.iterdir()) == ["adapter_model.safetensors", FILE]


def test_the_file_names_no_folder(made, folder):
    text = write_calibrations(folder, {"iterative": made}).read_text()
    assert made.fitted.data == ("dev.jsonl",) and "somewhere" not in text
    assert calibrate(answers(4), **{**OPTIONS, "base": "/somewhere/model"})[0].base == "model"


def test_the_file_of_other_weights_is_refused(made, folder):
    write_calibrations(folder, {"iterative": made})
    assert weights_digest(folder) == DIGEST
    (folder / "adapter_model.safetensors").write_bytes(b"weights")
    with pytest.raises(LovecError) as error:
        read_calibrations(folder)
    assert f"was fitted to other weights ({DIGEST[:12]}, here they are 9a129038d9a0)" in str(error.value)
    assert str(error.value).endswith(
        "calibrate again, or leave confidences as they are: without that file, or by --raw of `lovec tag` and `serve`"
    )


def test_a_model_in_several_files_has_a_digest(tmp_path):
    with pytest.raises(
        LovecError, match=r"there are no weights in .*, expected adapter_model.safetensors, .* or pytorch_model.bin"
    ):
        weights_digest(tmp_path)
    seen = set()
    for name, content in (("a", b"1"), ("b", b"2"), ("b", b"3"), ("b", b"33"), ("b", bytes(3 << 20) + b"4")):
        (tmp_path / f"{name}.safetensors").write_bytes(content)
        seen.add(weights_digest(tmp_path))
    assert len(seen) == 5
    assert weights_digest(tmp_path) in seen


def test_without_a_file_there_is_no_calibration(folder):
    assert read_calibrations(folder) == {} == read_calibrations(folder / "none")
    (folder / FILE).mkdir()
    with pytest.raises(LovecError, match="cannot read"):
        read_calibrations(folder)


def test_a_pipe_is_not_waited_for(folder):
    os.mkfifo(folder / FILE)
    with pytest.raises(LovecError, match="it is not a regular file"):
        read_calibrations(folder)


def promise(data, at, **changes):
    return {"guarantees": [{**g, **changes} if i == at else g for i, g in enumerate(data["guarantees"])]}


def test_promises_that_contradict_each_other_are_refused(made, folder):
    data = made.to_dict()
    strict, loose = (guarantee["threshold"] for guarantee in data["guarantees"][:2])
    assert isinstance(strict, float) and isinstance(loose, float) and strict > loose
    for change, line in (
        (promise(data, 0, threshold=-1), "threshold of a guarantee is -1, expected a number from 0 to 1"),
        (promise(data, 0, threshold=1.5), "threshold of a guarantee is 1.5"),
        (promise(data, 1, alpha=0.1), "there are two guarantees for 0.9, expected one"),
        (promise(data, 0, threshold=loose / 2), "the guarantee for 0.9 keeps more than that for 0.8"),
        (promise(data, 0, threshold="everything"), "the guarantee for 0.9 keeps more than that for 0.8"),
    ):
        (folder / FILE).write_text(json.dumps({"calibrations": [data | change]}))
        with pytest.raises(LovecError, match=line):
            read_calibrations(folder)


def test_two_calibrations_of_one_mode_are_refused(made, folder):
    (folder / FILE).write_text(json.dumps({"calibrations": [made.to_dict()] * 2}))
    with pytest.raises(LovecError, match="has two calibrations for iterative tagging"):
        read_calibrations(folder)


@pytest.mark.parametrize(
    ("content", "line"),
    [
        (b"", "is not JSON"),
        (b"\xff\xfe", "is not JSON"),
        (b"[" * 100_000, "is not JSON|holds no calibrations"),
        (b"9" * 10_000, "is not JSON|holds no calibrations"),
        (b"[]", "the file is a list of 0 items, expected an object"),
        (b"{}", "the file lacks 'calibrations'"),
        (b'{"calibrations": [1, 2, 3, 4, 5]}', "calibrations is a list of 5 items, expected a list of at most 4"),
        (b'{"calibrations": [{"version": 3}]}', "version of a calibration is 3, expected 1 or 2"),
        (b'{"calibrations": [{"version": true}]}', "version of a calibration is True"),
        (b'{"calibrations": [{"version": 2}]}', "lacks 'adapter', expected the keys .* provenance"),
        (b'{"calibrations": [], "calibrations": []}', "the key 'calibrations' is there twice"),
        (b'{"calibrations": [NaN]}', "NaN is not a number of JSON"),
        (b'{"calibrations": [{"version": 1}]}', "a calibration lacks 'adapter'"),
        (b" " * 8_000_001, "has more than 8000000 bytes"),
    ],
)
def test_what_is_no_calibration_is_refused(content, line, folder):
    (folder / FILE).write_bytes(content)
    with pytest.raises(LovecError, match=line) as error:
        read_calibrations(folder)
    assert str(error.value).endswith("by --raw of `lovec tag` and `serve`") and "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ({"readout": "mode"}, "readout of a calibration is 'mode'"),
        ({"readout": ["mean"]}, "does not belong to the readout"),
        ({"readout": [["mean"]]}, "a feature is a list"),
        ({"readout": ["mean", "mode"]}, "the features are"),
        ({"readout": None}, "readout is None, expected a list"),
        ({"map": {"kind": "platt", "slope": -1, "intercept": 0, "clip": 0.1}}, "keeps the order"),
        ({"map": None}, "kind of a map is None"),
        ({"guarantees": {}}, "guarantees of a calibration is an object of 0 items"),
        ({"guarantees": [1]}, "a guarantee is 1, expected an object"),
        ({"adapter": 1}, "adapter of a calibration is 1"),
        ({"base": "\x1b[31mred"}, r"base of a calibration is .* expected a printable text"),
        ({"base": "x" * 501}, "base of a calibration"),
        ({"mode": "both ways"}, "mode of a calibration is 'both ways'"),
        ({"mode": ["both"]}, "mode of a calibration is"),
        ({"levels": 1}, "levels of a calibration is 1"),
        ({"levels": True}, "levels of a calibration is True"),
        ({"fitted": None}, "what was fitted on is None"),
        ({"histogram": {}}, "a histogram lacks 'counts'"),
        ({"__reduce__": "os.system"}, "unknown key '__reduce__'"),
    ],
)
def test_a_changed_file_is_refused(made, change, line, folder):
    (folder / FILE).write_text(json.dumps({"calibrations": [made.to_dict() | change]}))
    with pytest.raises(LovecError, match=line) as error:
        read_calibrations(folder)
    assert "\n" not in str(error.value) and "\x1b" not in str(error.value)


@pytest.mark.parametrize(
    ("part", "change", "line"),
    [
        ("fitted", {"date": "today"}, "date of a calibration is 'today'"),
        ("fitted", {"sentences": 0}, "sentences of a calibration is 0"),
        ("fitted", {"data": ["a\nb"]}, "data of a calibration is"),
        ("fitted", {"metrics": {}}, "metrics of a calibration lacks"),
        ("fitted", {"metrics": {"before": {}, "after": {}, "difference": {}}}, "metrics of a calibration lacks"),
        ("histogram", {"counts": [1] * 19}, "19 counts"),
        ("histogram", {"counts": [0] * 20}, "sum 0"),
        ("histogram", {"counts": [0.5] * 20}, "counts of a histogram is 0.5"),
        ("histogram", {"likeness": 2}, "likeness of a histogram is 2"),
        ("histogram", {"effective": 0}, "effective number of a histogram is 0"),
    ],
)
def test_a_changed_part_is_refused(made, part, change, line):
    data = made.to_dict()
    with pytest.raises(LovecError, match=line):
        Calibration.from_dict(data | {part: data[part] | change})


def test_thresholds_of_earlier_files_keep_what_they_kept(made):
    """They may be finer than the readouts that they are compared with, which are as fine as float32."""
    data = made.to_dict()
    for score in (0.7, 1 / 3, 2 / 3, 0.123456789012):
        found = [one | {"threshold": score} for one in data["guarantees"][:1]]
        read = Calibration.from_dict(data | {"guarantees": found})
        weights = [0.0] * 11
        weights[0], weights[10] = 1 - score, score
        for change, is_kept in ((0.0, False), (1e-9, False), (-1e-3, False), (1e-3, True)):
            weights[0], weights[10] = 1 - score - change, score + change
            sentence = Sentence("A.", score=5, distribution=tuple(weights))
            assert read.keeps(sentence, read.guarantees[0]) == is_kept


def test_metrics_that_are_no_interval_are_refused(made):
    data = json.loads(json.dumps(made.to_dict()))
    data["fitted"]["metrics"]["after"]["brier"] = [0.1, 0.2]
    with pytest.raises(LovecError, match="brier of a calibration has 2 numbers"):
        Calibration.from_dict(data)
    data["fitted"]["metrics"]["after"]["brier"] = None
    assert Calibration.from_dict(data).fitted.metrics["after"]["brier"] is None


# ---------------------------------------------------------------- drift


def test_other_texts_are_noticed_and_the_same_kind_is_not(made, stacked):
    for calibration in (made, stacked):
        assert calibration.drift(answers(60, seed=4)) is None
        message = calibration.drift(answers(60, seed=4, excess=-1.0))
        assert message.startswith("these 360 sentences look unlike those that the calibration was fitted to")
    assert made.drift(answers(29, 1, excess=-5.0)) is None  # too few to say
    assert made.drift([]) is None
    assert made.drift([replace(r, sentences=(Sentence("No tag."),) * 40) for r in answers(3)]) is None
    assert made.drift(answers(30, 1, excess=-5.0)) is not None
    copies = [replace(answers(1, 30, excess=-5.0)[0], id=f"q/sample-{n}") for n in range(30)]
    assert made.drift(copies) is None  # however often it was answered, it is one question


def test_false_alarms_are_rarer_than_their_level():
    """Of texts like the fitted ones, whose sentences resemble each other within a passage as much as in the test."""
    rng, alarms, naive = np.random.default_rng(0), 0, 0
    runs = 1500

    def passages(k, m):
        return sigmoid(rng.normal(size=(k, 1)) + 0.5 * rng.normal(size=(k, m))).tolist()

    for _ in range(runs):
        fitted, new = Histogram.of(passages(40, 6)), passages(20, 6)
        alarms += fitted.unlike(new) is not None
        alone = replace(fitted, likeness=0.0, effective=240.0)
        naive += alone.unlike(new) is not None
    assert alarms <= 0.01 * runs
    assert naive > 0.05 * runs  # sentences are not independent: a test that takes them for it cries wolf


def test_a_histogram_by_hand():
    histogram = Histogram.of([[0.0, 0.05], [1.0, 0.999]])
    assert (histogram.counts[0], histogram.counts[1], histogram.counts[19]) == (1, 1, 2)
    assert histogram.mean == pytest.approx(0.51225)
    assert histogram.likeness > 0.99 and histogram.effective == pytest.approx(2, abs=0.02)
    alike = Histogram.of([[0.1, 0.9], [0.1, 0.9], [0.9, 0.1]])
    assert (alike.likeness, alike.effective) == (0.0, 6.0)
    assert Histogram.of([[0.5, 0.5], [0.5]]).likeness == 1.0  # constant: nothing is known of it
    assert Histogram.of([[0.5, 0.7]]).effective == 1.0  # one passage
    assert Histogram.of([[0.5], [0.7]]).effective == 2.0
    with pytest.raises(LovecError, match="got no confidence"):
        Histogram.of([])


def test_scores_on_few_levels_do_not_raise_alarms():
    rng = np.random.default_rng(1)
    fitted = Histogram.of((rng.integers(0, 11, (60, 5)) / 10).tolist())
    alarms = [fitted.unlike((rng.integers(0, 11, (30, 5)) / 10).tolist()) for _ in range(200)]
    assert sum(alarm is not None for alarm in alarms) <= 6


def test_tagged_makes_what_it_says():
    assert [round(sentence_mean(tagged(c)), 9) for c in (0.0, 0.33, 0.999, 1.0)] == [0.0, 0.33, 0.999, 1.0]


def sentence_mean(sentence):
    return sum(i * p for i, p in enumerate(sentence.distribution)) / sum(sentence.distribution) / 10
