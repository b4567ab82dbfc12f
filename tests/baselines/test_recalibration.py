"""Recalibration: a recalibrated tagger changes the confidence only, and a test measures it."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from tinyrun import Rows, module, sft_adapter, tiny, trainer

from lovec.baselines import ConstantTagger, recalibrate
from lovec.calibration import Isotonic, Platt
from lovec.datasets.jsonl import read_records
from lovec.evaluation.evaluator import tagged_file
from lovec.metrics.records import sentence_pairs
from lovec.metrics.results import read_results
from lovec.modules import SFT
from lovec.types import LovecError, Record, Sentence


def test_recalibration_replaces_the_confidence_and_drops_score_and_distribution():
    sure = tuple([0.0] * 5 + [0.5] + [0.0] * 4 + [0.5])  # its mean is 0.75
    record = Record("a", "Q?", answer="A. B.", meta={"k": 1}, sentences=(
        Sentence("A.", factuality=0.2, confidence=1.0, score=10, distribution=sure), Sentence("B.", factuality=0.4)
    ))  # fmt: skip

    halved = Isotonic((0.0, 1.0), (0.0, 0.5))
    for readout, expected in (("stated", 0.5), ("mean", 0.375)):
        (tagged,) = recalibrate([record], halved, readout)
        assert tagged.sentences == (
            replace(record.sentences[0], confidence=expected, score=None, distribution=None),
            record.sentences[1],
        )
        assert replace(tagged, sentences=record.sentences) == record
        assert sentence_pairs([tagged], "stated") == ([expected], [0.2], 1)
    (constant,) = recalibrate(ConstantTagger(4).tag([record]), halved, "stated")
    assert [s.confidence for s in constant.sentences] == [0.2, 0.2]
    with pytest.raises(LovecError, match="readout is 'mode'"):
        recalibrate([record], halved, "mode")


# ---------------------------------------------------------------- lovec test


class Writer:
    """Writes two sentences per question, one of them as long as the question's number."""

    def tag(self, records):
        return [replace(r, sentences=tuple(map(sentence, (int(r.id[-1]) + 1, 9))), rejected=None) for r in records]


def sentence(n):
    """Return a sentence of n letters with the confidence n / 10."""
    return Sentence("x" * n, confidence=n / 10, score=n, distribution=tuple(float(n == i) for i in range(11)))


class Judge:
    """Rates a sentence of n letters n / 20, and keeps the ids of the records."""

    def __init__(self):
        self.seen = []

    def rate(self, records):
        self.seen.append([record.id for record in records])
        return [[len(s.text) / 20 for s in record.sentences] for record in records]


class Splits(Rows):
    """Rows with their split in their ids."""

    def load(self, split):
        return [replace(row, id=f"{split}/{row.id}") for row in super().load(split)]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return tiny(tmp_path_factory.mktemp("models"))


@pytest.fixture(scope="module")
def adapter(model, tmp_path_factory):
    return sft_adapter(tmp_path_factory.mktemp("sft"), model)


def measured(folder, model, adapter, rows, oracle=None, **evaluation):
    """Return a module after its test with recalibrated rows; ``Writer`` gives the free-form answers."""
    method = module(SFT, model, oracle=oracle)
    method.evaluation = replace(method.evaluation, vanilla=False, recalibrated=True, adapter=adapter, **evaluation)
    configure = method.configure_model

    def configured():
        configure()
        method.evaluator.taggers["free-form"] = Writer()

    method.configure_model = configured
    trainer(folder).test(method, rows, verbose=False)
    return method


def test_a_test_reports_recalibrated_rows(model, adapter, tmp_path):
    method = measured(tmp_path, model, adapter, Rows(), name="Mine 2", modes=["iterative"])
    assert {row.method for row in method.results} == {
        "Mine 2", "Mine 2 + isotonic", "Mine 2 + Platt", "Best constant"
    }  # fmt: skip
    assert {path.name for path in (tmp_path / "test" / "rows").glob("*.jsonl")} == {
        "mine-2.iterative.jsonl", "best-constant.iterative.jsonl",
        "mine-2-isotonic.iterative.jsonl", "mine-2-isotonic.iterative.mean.jsonl",
        "mine-2-platt.iterative.jsonl", "mine-2-platt.iterative.mean.jsonl",
    }  # fmt: skip
    assert read_results(tmp_path / "test" / "rows" / "results.json").rows == tuple(method.results)
    tagged = list(read_records(tmp_path / "test" / "rows" / "mine-2.iterative.jsonl"))
    validation = method.evaluator.tag_and_label(Rows().load("validation"), "iterative")
    for readout, (name, form) in product(("stated", "mean"), (("isotonic", Isotonic), ("Platt", Platt))):
        before, truth, _ = sentence_pairs(tagged, readout)
        after = form.fit(*sentence_pairs(validation, readout)[:2])(before)
        written = read_records(tmp_path / "test" / "rows" / tagged_file(f"Mine 2 + {name}", "iterative", readout))
        sentences = [s for record in written for s in record.sentences]
        assert [s.confidence for s in sentences] == pytest.approx(after.tolist(), abs=1e-6)
        assert {(s.score, s.distribution) for s in sentences} == {(None, None)}
        (row,) = (
            row
            for row in method.results
            if (row.method, row.level, row.readout) == (f"Mine 2 + {name}", "sentence", readout)
        )
        assert (row.kind, row.bases, row.variant) == ("recalibrated", ("Mine 2",), name.lower())
        assert row.metrics["brier"] == pytest.approx(((after - np.array(truth)) ** 2).mean(), abs=1e-6)
        assert (row.n, row.metrics["malformed"], row.mode) == (len(truth), 0.0, "iterative")


def test_the_map_of_free_form_answers_is_fitted_on_labelled_free_form_answers(model, adapter, tmp_path):
    judge = Judge()
    measured(tmp_path, model, adapter, Splits(), judge, modes=["free-form"])
    assert judge.seen == [[f"{split}/r{i}" for i in range(4)] for split in ("test", "validation")]
    for readout in ("stated", "mean"):  # halved, as the judge of the validation answers has it
        mapped = read_records(tmp_path / "test" / "rows" / tagged_file("SFT + isotonic", "free-form", readout))
        assert [s.confidence for r in mapped for s in r.sentences] == pytest.approx(
            [n / 20 for i in range(4) for n in (i + 1, 9)]
        )


def test_a_method_that_cannot_be_recalibrated_has_no_such_row(model, adapter, tmp_path):
    class Without(Rows):
        def load(self, split):
            return [] if split == "validation" else super().load(split)

    with pytest.warns(UserWarning, match=r"no row 'SFT \+ isotonic' for iterative tagging, stated readout: .* got 0"):
        method = measured(tmp_path, model, adapter, Without(), modes=["iterative"])
    assert {row.method for row in method.results} == {"SFT"}
