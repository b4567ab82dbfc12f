"""Confidences and labels of other tools' files: layouts give exactly their numbers, and scales are never guessed."""

from __future__ import annotations

import json
import math
from collections import Counter
from pathlib import Path

import pyarrow
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow.parquet import write_table

from lovec.datasets.columns import Columns, value_at
from lovec.datasets.jsonl import write_records
from lovec.datasets.scored import read_scored
from lovec.datasets.values import confidence_of, label_of, plain_name
from lovec.types import LovecError, Record, Sentence

CORPUS = Path(__file__).with_name("corpus")
SHARED = Path(__file__).resolve().parents[3] / "shared" / "data"
FACTSCORE = SHARED / "factscore_labeled" / "ChatGPT.jsonl"


def read(path, **settings):
    """Confidences (None where there is none), labels and groups of every method of a file."""
    file = read_scored(path, **settings)
    return {
        method.name: (
            [None if math.isnan(c) else c for c in method.confidence.tolist()],
            method.factuality.tolist(),
            method.group.tolist(),
        )
        for method in file.methods
    }


def saved(tmp_path, *rows, name="x.jsonl"):
    """A file of rows."""
    path = tmp_path / name
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


# ---------------------------------------------------------------- values


@pytest.mark.parametrize(
    ("value", "scale", "expected"),
    [
        (0.25, None, 0.25), (7, 10, 0.7), (85, 100, 0.85), ("0.5", None, 0.5), (" 85 % ", None, 0.85),
        ("85%", 100, 0.85),
        ("", None, None), (None, None, None), ("nan", None, None), (math.nan, 10, None), ("N/A", 10, None),
        (-3, None, -3.0), ("1e-3", None, 0.001), (0, 100, 0.0),
    ],
)  # fmt: skip
def test_confidences_are_numbers_on_a_stated_scale(value, scale, expected):
    assert confidence_of(value, scale) == expected


@pytest.mark.parametrize("value", [True, [0.5], {"p": 1}, "high", "5/10", math.inf, -math.inf, "1e999"])
def test_what_is_no_confidence_is_refused(value):
    with pytest.raises(LovecError, match=r"^confidence is "):
        confidence_of(value)


@pytest.mark.parametrize(
    ("value", "scale", "expected"),
    [
        (True, None, 1.0), (False, 10, 0.0), (1, None, 1.0), (0.4, None, 0.4), (7, 10, 0.7), ("60%", None, 0.6),
        ("S", None, 1.0), ("NS", None, 0.0), ("IR", None, None), ("Supported", None, 1.0), ("Not Supported", None, 0.0),
        ("not-supported", 10, 0.0), ("TRUE", None, 1.0), ("no", None, 0.0), ("Incorrect.", None, 0.0), ("", None, None),
        ("1", None, 1.0), ("3", 5, 0.6), ("unknown", None, None), (None, None, None), ("refuted", None, 0.0),
    ],
)  # fmt: skip
def test_labels_are_numbers_or_words(value, scale, expected):
    assert label_of(value, scale) == expected


@pytest.mark.parametrize(
    ("value", "scale"), [(2, None), (-0.1, None), (11, 10), ("partly", None), ([1], None), ("2", None)]
)
def test_what_is_no_label_is_refused(value, scale):
    with pytest.raises(LovecError, match=r"^label is "):
        label_of(value, scale)


@settings(max_examples=50, deadline=None)
@given(st.text(max_size=12) | st.floats() | st.integers() | st.booleans() | st.none())
def test_any_value_is_read_or_refused_in_one_line(value):
    for read_value in (confidence_of, label_of):
        try:
            number = read_value(value)
        except LovecError as error:
            assert "\n" not in str(error) and len(str(error)) < 250
        else:
            assert number is None or math.isfinite(number)
            assert read_value is confidence_of or number is None or 0 <= number <= 1
    assert plain_name(str(value)) == plain_name(plain_name(str(value)))


# ---------------------------------------------------------------- columns


@pytest.mark.parametrize(
    ("row", "confidence", "label", "group"),
    [
        ({"Confidence": 0.5, "Is Correct": 1}, ["Confidence"], "Is Correct", ""),
        ({"score": 0.5, "label": "S", "topic": "Ada"}, ["score"], "label", "topic"),
        ({"base_confidence": 0.5, "rlcr_confidence": 1, "confidence_text": "x", "y": 0}, None, "y", ""),
        ({"noncontradiction": 0.5, "exact_match": 1, "score": 3, "response_correct": 1}, None, "response_correct", ""),
        ({"p_true": 0.5, "human_label": 1, "question": "Q"}, ["p_true"], "human_label", "question"),
    ],
)  # fmt: skip
def test_columns_are_guessed_by_their_names(tmp_path, row, confidence, label, group):
    file = read_scored(saved(tmp_path, row, row))
    expected = confidence or list(row)[:2]
    assert [method.name for method in file.methods] == expected
    said = f"columns guessed: confidence = {', '.join(expected)}; label = {label}; group = {group or 'none'}"
    assert file.said == said and file.methods[0].grouped == bool(group)
    assert file.methods[0].group.tolist() == ([0, 0] if group else [0, 1])


def test_named_columns_may_lie_in_objects_and_lists(tmp_path):
    row = {"id": "a", "claims": [{"p": 0.5, "ok": "S"}, {"p": None, "ok": "NS"}, {"ok": "IR"}]}
    path = saved(tmp_path, row, {"id": "b", "claims": []}, {"id": "c", "claims": [{"p": 1, "ok": 0.3}]})
    found = read(path, columns=Columns(("claims.p",), label="claims.ok"))
    assert found == {"claims.p": ([0.5, None, 1.0], [1.0, 0.0, 0.3], [0, 0, 1])}
    assert read_scored(path, Columns(("claims.p",), label="claims.ok")).methods[0].unlabelled == 1
    path = saved(tmp_path, {"m.p": 0.2, "m": {"p": 0.9, "ok": True}})
    assert read(path, columns=Columns(("m.p",), label="m.ok")) == {"m.p": ([0.2], [1.0], [0])}
    assert value_at({"a": {"b": [{"c": 1}, 2]}}, "a.b.c") == [1, None] and value_at({"a": 3}, "a.b") is None


def test_all_containers_give_the_same(tmp_path):
    rows = [{"confidence": 0.5, "label": True, "group": 1}, {"confidence": 1.0, "label": False, "group": 1}]
    expected = read(saved(tmp_path, *rows))
    (tmp_path / "x.json").write_text(json.dumps(rows, indent=1))
    (tmp_path / "x.csv").write_text("confidence,label,group\n0.5,True,1\n1.0,False,1\n")
    (tmp_path / "x.tsv").write_text("confidence\tlabel\tgroup\n0.5\ttrue\t1\n1.0\tfalse\t1\n")
    write_table(pyarrow.Table.from_pylist(rows), tmp_path / "x.parquet")
    for name in ("x.json", "x.csv", "x.tsv", "x.parquet"):
        assert read(tmp_path / name) == expected == {"confidence": ([0.5, 1.0], [1.0, 0.0], [0, 0])}


def test_numbers_outside_0_to_1_are_an_order_unless_a_scale_is_stated(tmp_path):
    path = saved(tmp_path, {"confidence": 7, "label": 8}, {"confidence": 10, "label": 2})
    scaled = read_scored(path, Columns(confidence_scale=10, label_scale=10)).methods[0]
    assert scaled.confidence.tolist() == [0.7, 1.0] and scaled.factuality.tolist() == [0.8, 0.2]
    assert scaled.order_only == ""
    plain = read_scored(path, Columns(label_scale=10)).methods[0]
    assert plain.confidence.tolist() == [7.0, 10.0] and "(say --confidence_scale 10 if" in plain.order_only
    negative = read_scored(path, Columns(uncertainty=("confidence",), label_scale=10)).methods[0]
    assert negative.confidence.tolist() == [-7.0, -10.0] and "uncertainties without a scale" in negative.order_only


# ---------------------------------------------------------------- layouts


def test_uqlm_answers_and_claims(tmp_path):
    expected = {"exact_match": ([1.0, 0.0], [1.0, 0.0], [0, 1]), "noncontradiction": ([0.9, 0.2], [1.0, 0.0], [0, 1])}
    assert read(CORPUS / "uqlm_dict.json") == expected
    assert read(CORPUS / "uqlm_dict.json", layout="uqlm") == expected
    assert list(read(CORPUS / "uqlm_dict.json", layout="uqlm", columns=Columns(("exact_match",)))) == ["exact_match"]
    claims = [{"claim": "A.", "removed": False, "entailment": 0.9}, {"claim": "B.", "removed": True, "entailment": 0.5}]
    row = {"prompt": "Q?", "response": "A. B.", "claims_data": claims, "claim_grades": [True, False]}
    assert read(saved(tmp_path, row)) == {"entailment": ([0.9, 0.5], [1.0, 0.0], [0, 0])}
    del row["claim_grades"]
    row["claims_data"] = [{**claim, "correct": "yes"} for claim in claims]
    assert read(saved(tmp_path, row)) == {"entailment": ([0.9, 0.5], [1.0, 1.0], [0, 0])}
    with pytest.raises(LovecError, match=r"x.jsonl:1: there are 1 claim_grades and 2 claims"):
        read(saved(tmp_path, {**row, "claim_grades": [True]}))
    with pytest.raises(LovecError, match=r"has no row with a label, expected a label per row"):
        read(CORPUS / "uqlm_frame.csv")
    with pytest.raises(LovecError, match=r"has no method 'bleurt'; it has 'exact_match', 'noncontradiction'"):
        read(CORPUS / "uqlm_dict.json", layout="uqlm", columns=Columns(("bleurt",)))


def test_lm_polygraph_uncertainties(tmp_path):
    row = {"input_text": "Q?", "generation_text": "A.", "uncertainty": 0.5, "estimator": "PTrue", "correct": 1}
    file = read_scored(saved(tmp_path, row, {**row, "uncertainty": 2.0, "correct": 0, "generation_text": "B."}))
    (method,) = file.methods
    assert method.confidence.tolist() == pytest.approx([math.exp(-0.5), math.exp(-2)]) and method.order_only == ""
    assert method.factuality.tolist() == [1.0, 0.0]
    similar = read_scored(
        saved(tmp_path, {**row, "estimator": "LexicalSimilarity_rougeL", "uncertainty": -0.9})
    ).methods[0]
    assert similar.confidence.tolist() == [0.9] and "without a scale" in similar.order_only
    stated = read_scored(saved(tmp_path, {**row, "estimator": "Verbalized1S", "uncertainty": 0.25})).methods[0]
    assert stated.confidence.tolist() == [0.75] and stated.order_only == ""
    with pytest.raises(LovecError, match=r"PTrue is -1, expected minus the logarithm of a probability"):
        read(saved(tmp_path, {**row, "uncertainty": -1}))


def test_lm_polygraph_managers(tmp_path):
    manager = {
        "estimations": {
            "sequence PTrue": [0.5, 1.0], "('claim', 'PTrueClaim')": [[0.1, 0.2], [3.0]],
            "claim_ClaimConditionedProbabilityClaim": [[-0.5, None], [-0.1]],
            "token MaximumTokenProbability": [1, 2, 3],
        },
        "gen_metrics": {"sequence AlignScore": [0.25, 1.0], "claim OpenAIFactCheck": [[0, 1], [None]]},
    }  # fmt: skip
    file = read_scored(saved(tmp_path, manager))
    found = {method.name: method for method in file.methods}
    assert list(found) == ["PTrue", "PTrueClaim", "ClaimConditionedProbabilityClaim"]
    assert found["PTrue"].factuality.tolist() == [0.25, 1.0]
    assert found["PTrueClaim"].factuality.tolist() == [1.0, 0.0]  # the check is 1 where a claim is false
    assert found["PTrueClaim"].confidence.tolist() == pytest.approx([math.exp(-0.1), math.exp(-0.2)])
    assert found["PTrueClaim"].group.tolist() == [0, 0] and found["PTrueClaim"].unlabelled == 1
    conditioned = found["ClaimConditionedProbabilityClaim"]
    assert conditioned.missing == 1 and conditioned.confidence[0] == 0.5 and conditioned.order_only
    with pytest.raises(LovecError, match=r"PTrue has 1 numbers for 1 answers, expected as many as labels, 2 for 2"):
        read(saved(tmp_path, {**manager, "estimations": {"sequence PTrue": [0.5]}}))
    with pytest.raises(LovecError, match=r"the key 'PTrue' names no level"):
        read(saved(tmp_path, {**manager, "estimations": {"PTrue": [0.5, 1.0]}}))


def test_fact_checkers_are_read_fact_by_fact(tmp_path):
    decisions = {"decisions": [[{"atom": "A.", "is_supported": True}, {"atom": "B.", "is_supported": False}], None]}
    assert read(saved(tmp_path, decisions)) == {"": ([None, None], [1.0, 0.0], [0, 0])}
    decisions["decisions"][0][0]["confidence"] = 0.75
    assert read(saved(tmp_path, decisions)) == {"confidence": ([0.75, None], [1.0, 0.0], [0, 0])}
    safe = read(CORPUS / "safe.json")
    rows = json.loads((CORPUS / "safe.json").read_text())["per_prompt_data"]
    checked = [(row.get("side1_posthoc_eval_data") or {}).get("checked_statements", ()) for row in rows]
    labels = Counter(fact["annotation"] for facts in checked for fact in facts)
    assert Counter(safe["side 1"][1]) == {1.0: labels["Supported"], 0.0: labels["Not Supported"]}


@pytest.mark.skipif(not FACTSCORE.exists(), reason=f"needs {FACTSCORE}")
def test_human_labels_of_factscore():
    (method,) = read_scored(FACTSCORE).methods
    rows = [json.loads(line) for line in FACTSCORE.read_text().splitlines()]
    facts = [f["label"] for row in rows for a in row["annotations"] or () for f in a["human-atomic-facts"] or ()]
    assert len(method.factuality) == facts.count("S") + facts.count("NS") == method.missing
    assert method.factuality.sum() == facts.count("S") and method.unlabelled == facts.count("IR")
    assert int(method.group.max()) + 1 == 157


def test_rlcr_and_records_of_lovec(tmp_path):
    assert read(CORPUS / "rlcr.jsonl") == {"Base": ([0.9], [0.0], [0]), "RLCR": ([0.5, 0.25], [1.0, 1.0], [0, 0])}
    assert read(CORPUS / "rlcr_numbers.jsonl")["RLCR"] == ([0.5], [1.0], [0])
    peaked = tuple(float(score == 8) for score in range(11))
    sentences = (Sentence("A.", 1.0, score=7, distribution=peaked), Sentence("B.", 0.0), Sentence("C.", None, score=3))
    write_records(tmp_path / "tagged.jsonl", [Record("a", "Q?", sentences=sentences, meta={"scores": {"x": [1]}})])
    expected = {
        "stated": ([0.7, None], [1.0, 0.0], [0, 0]),
        "mean of the distribution": ([0.8, None], [1.0, 0.0], [0, 0]),
    }
    assert read(tmp_path / "tagged.jsonl") == expected


def test_a_table_that_has_the_keys_of_a_layout_is_read_as_a_table(tmp_path):
    row = {"question": "Q?", "prompt": "Q?", "response": "A.", "confidence": 0.5, "label": 1}
    assert read(saved(tmp_path, row)) == {"confidence": ([0.5], [1.0], [0])}
