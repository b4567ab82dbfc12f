"""Confidences and labels of other tools' files: layouts give exactly their numbers, and scales are never guessed."""

from __future__ import annotations

import json
import math
from collections import Counter
from pathlib import Path

import pandas
import pyarrow
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow.parquet import write_table
from scipy.special import softmax

from lovec.datasets.columns import Columns, value_at
from lovec.datasets.jsonl import write_records
from lovec.datasets.layouts import _say, read_any
from lovec.datasets.rows import read_rows
from lovec.datasets.scored import read_scored, read_scores
from lovec.datasets.values import confidence_of, flag_of, label_of, plain_name, says_opposite, share_of
from lovec.types import LovecError, Record, Sentence

CORPUS = Path(__file__).with_name("corpus")
SHARED = Path(__file__).resolve().parents[3] / "shared" / "data"
FACTSCORE = SHARED / "factscore_labeled" / "ChatGPT.jsonl"


@pytest.fixture(autouse=True)
def say_again():
    """What a file held is said once in a process."""
    _say.cache_clear()


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


@pytest.mark.parametrize("value", ["150%", "-1 %", "100.1%"])
def test_a_share_outside_0_to_100_per_cent_is_on_no_scale(value):
    assert confidence_of(value) == pytest.approx(float(value.rstrip("% ")) / 100)
    with pytest.raises(LovecError, match=f'^confidence is "{value}", expected a share from 0% to 100%'):
        confidence_of(value, 100)


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


@pytest.mark.parametrize("over", [2e-16, 1e-7, 9e-7])
def test_a_number_that_rounding_carried_past_an_end_is_this_end(tmp_path, over):
    for value, scale, expected in ((1 + over, 1, 1), (-over, 1, 0), (100 + 90 * over, 100, 1), (f"{1 + over}", 1, 1)):
        assert confidence_of(value, scale) == label_of(value, scale) == expected
    assert share_of(1 + over, "p") == 1 and share_of(-over, "p") == 0
    assert label_of(1 + over, opposite=True) == 0 and label_of(-over, opposite=True) == 1
    path = saved(tmp_path, {"confidence": 1 + over, "label": 1 + over}, {"confidence": -over, "label": -over})
    [method] = read_scored(path).methods
    assert method.order_only == "" and method.confidence.tolist() == method.factuality.tolist() == [1, 0]
    row = {"input_text": "Q?", "generation_text": "A.", "uncertainty": -over, "estimator": "PTrue", "correct": 1}
    assert read_scored(saved(tmp_path, row)).methods[0].confidence.tolist() == [1]
    sentences = [{"text": "A.", "factuality": 1 + over, "confidence": 1 + over, "distribution": [0] * 10 + [1 + over]}]
    own = read_scored(saved(tmp_path, {"question": "Q?", "answer": "A.", "sentences": sentences}))
    assert [method.confidence.tolist() for method in own.methods] == [[1], [1]]


@pytest.mark.parametrize(
    ("high", "advice"), [(1.00001, ""), (1.5, ""), (2, "10"), (10, "10"), (99.5, "100"), (101, "")]
)
def test_a_scale_is_proposed_only_where_numbers_may_be_on_it(tmp_path, high, advice):
    rows = ({"confidence": 0.5, "label": 1}, {"confidence": high, "label": 0})
    said = read_scored(saved(tmp_path, *rows)).methods[0].order_only
    assert said.startswith(f"its confidences lie between 0.5 and {high}, so only their order is measured")
    assert said.partition("(say ")[2] == (f"--confidence_scale {advice} if that is their scale)" if advice else "")


@pytest.mark.parametrize("value", [1.5, -0.1, 1.000002])
def test_a_label_just_out_of_range_is_not_told_to_name_a_scale(value):
    with pytest.raises(LovecError, match=f"^label is {value}, expected a number from 0 to 1; correct it$"):
        label_of(value)


@pytest.mark.parametrize(
    ("value", "scale"), [(2, None), (-0.1, None), (11, 10), ("partly", None), ([1], None), ("2", None)]
)
def test_what_is_no_label_is_refused(value, scale):
    with pytest.raises(LovecError, match=r"^label is "):
        label_of(value, scale)


@pytest.mark.parametrize("word", ["错误", "неверно", "\u2717", "λάθος"])
def test_a_word_of_another_script_is_not_an_empty_cell(word):
    for read_value in (confidence_of, label_of, lambda value: flag_of(value, "abstained")):
        with pytest.raises(LovecError, match=word):
            read_value(word)
        for blank in ("", "-", "\u2013", "?", "…", " \t"):
            assert not read_value(blank)


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


def test_rows_of_lists_without_labels_are_left_out(tmp_path):
    path = tmp_path / "x.jsonl"
    rows = [{"confidence": [0.1, 0.2], "label": [1, 0]}, {"confidence": [0.3, 0.4], "label": None}]
    path.write_text("\n".join(map(json.dumps, rows)))
    [method] = read_scored(str(path), Columns(("confidence",), label="label")).methods
    assert method.factuality.tolist() == [1, 0] and method.confidence.tolist() == [0.1, 0.2]
    assert method.unlabelled == 2


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


@pytest.mark.parametrize(
    ("layout", "name", "row"),
    [
        ("factscore", "confidence", {
            "input": "Q?", "output": "A.", "topic": "Ada", "cat": ["rare", "Asia"],
            "annotations": [{"text": "A.", "human-atomic-facts": [{"text": "A.", "confidence": 0.5}]}],
        }),
        ("factscore", "confidence", {"decisions": [[{"atom": "A.", "confidence": 0.5}]]}),
        ("safe", "side 1", {
            "prompt": "Q?", "side1_response": "A.", "side1_posthoc_eval_data": {
                "checked_statements": [{"sentence": "A.", "atomic_fact": "A.", "confidence": 0.5}]
            },
        }),
        ("rlcr", "Base", {"id": 1, "Base": {"confidence": 0.5}}),
        ("rlcr", "Base", {"problem": "Q?", "Base-confidence_levels": [0.5]}),
        ("conformal", "", {"scores": [0.5]}),
        ("lm-polygraph", "PTrue", {"estimations": {"sequence PTrue": [math.log(2)]}}),
        ("lm-eval", "", {
            "doc_id": 0, "arguments": [["Q?", " a"], ["Q?", " b"]],
            "filtered_resps": [["-1", "False"], ["-1", "False"]],
        }),
        ("lm-eval", "", {
            "doc_id": 0, "arguments": [["Q?", " a"], ["Q?", " b"], ["", "a"], ["", "b"]],
            "filtered_resps": [["-1", "False"], ["-1", "False"], ["-2", "False"], ["-1", "False"]],
        }),
        ("mu-shroom", "confidence", {
            "id": "a", "model_input": "Q?", "model_output_text": "It is.",
            "predicted": {"soft_labels": [{"start": 0, "end": 2, "prob": 0.5}]},
        }),
    ],
)  # fmt: skip
def test_new_rows_of_a_layout_need_no_labels(tmp_path, layout, name, row):
    path = saved(tmp_path, row)
    assert [row.scores for row in read_scores(path, Columns((name,)), layout)] == [((0.5,),)]
    with pytest.raises(LovecError, match="has no row with a label, expected a label per row"):
        read_scored(path, layout=layout)


def test_each_estimator_of_lm_polygraph_has_rows_of_its_own(tmp_path):
    rows = [
        {"input_text": f"Q{at}?", "generation_text": "A.", "uncertainty": u, "estimator": name, "correct": at}
        for at in range(2)
        for name, u in (("PTrue", 0.0), ("SemanticEntropy", 0.5))
    ]
    methods = read_scored(saved(tmp_path, *rows)).methods
    assert [method.name for method in methods] == ["PTrue", "SemanticEntropy"]
    for method, confidence in zip(methods, (1.0, -0.5), strict=True):
        assert method.confidence.tolist() == [confidence] * 2 and method.factuality.tolist() == [0.0, 1.0]
        assert method.missing == method.unlabelled == 0


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


def test_lm_evaluation_harness(tmp_path):
    logps = [[-1.0, -2.5, -0.5], [-3.0, -1.0, -7.0], [-2.0, -2.0, -2.0]]
    accs = [0.0, 1.0, 1.0]

    def row(at, made=list, more=()):
        asked = [made((f"Q{at}?", f" {choice}")) for choice in "abc"]
        results = [[str(logp), "False"] for logp in logps[at]]
        return {"doc_id": at, "arguments": asked, "filtered_resps": [*results, *more], "acc": accs[at]}

    def named(values):
        return {f"arg_{at}": value for at, value in enumerate(values)}

    expected = [float(max(softmax(values))) for values in logps]
    confidence, factuality, _ = read(saved(tmp_path, *map(row, range(3))))[""]
    assert confidence == pytest.approx(expected, abs=1e-15) and factuality == accs
    rows = [row(at, named) for at in range(3)]
    for one in rows:
        one["arguments"] = {f"gen_args_{at}": request for at, request in enumerate(one["arguments"])}
    assert read(saved(tmp_path, *rows), layout="lm-eval")[""][0] == confidence
    unconditional = [["-0.1", "False"]] * 3  # as acc_mutual_info asks for
    both = [row(at, more=unconditional) | {"acc_mutual_info": 0.0} for at in range(3)]
    for one in both:
        one["arguments"] += [["", f" {choice}"] for choice in "abc"]
    assert read(saved(tmp_path, *both))[""] == (confidence, accs, [0, 1, 2])


def test_answers_that_the_harness_had_written_have_no_likelihoods(tmp_path):
    written = {"doc_id": 0, "arguments": {"gen_args_0": {}}, "filtered_resps": ["Lima"], "exact_match": 0.0}
    with pytest.raises(LovecError, match="not the layout lm-eval; the nearest, lm-evaluation-harness"):
        read_scored(saved(tmp_path, written), layout="lm-eval")


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


def test_samples_that_answer_one_question_belong_together(tmp_path):
    sentences = (Sentence("A.", 1.0, score=7), Sentence("B.", 0.0, score=3))
    ids = ["q/sample-1", "q/sample-2", "q/sample-x", "q"]
    write_records(tmp_path / "tagged.jsonl", [Record(name, "Q?", sentences=sentences) for name in ids])
    (method,) = read_scored(tmp_path / "tagged.jsonl").methods
    assert method.group.tolist() == [0, 0, 0, 0, 1, 1, 0, 0]


def test_records_are_grouped_by_question_or_by_a_key_of_meta(tmp_path):
    rows = [
        {"id": f"r{at}", "question": f"Q{at // 2}?", "answer": "A.", "model": model, "sentences": [
            {"text": "A.", "confidence": 0.5, "factuality": 1}, {"text": "B.", "confidence": 0.5, "factuality": 0}
        ]}
        for at, model in enumerate(["a", "b", "a", None])
    ]  # fmt: skip
    path = saved(tmp_path, *rows)

    def groups(name):
        (method,) = read_scored(path, Columns(group=name)).methods
        return method.group.tolist(), method.grouped

    assert groups(None) == ([0, 0, 1, 1, 2, 2, 3, 3], True)
    assert groups("question") == ([0, 0, 0, 0, 1, 1, 1, 1], True)
    assert groups("model") == ([0, 0, 1, 1, 0, 0, 2, 2], True)  # a record without one belongs to no other
    assert groups("") == (list(range(8)), False)
    with pytest.raises(
        LovecError, match=r"x.jsonl: no row has a group in the column 'topic'; its columns are model, q"
    ):
        groups("topic")
    applied = read_scores(path, Columns(("stated",), group="question"), "lovec")
    assert [row.group for row in applied] == ["Q0?"] * 4 + ["Q1?"] * 4


def test_a_kind_that_no_record_has_is_refused(tmp_path):
    claims = [{"subclaim": "A.", "gpt-score": 0.5, "annotation": "Y"}]
    path = saved(tmp_path, {"prompt": "Q?", "claims": claims, "metadata": ["rare", "Asia"]})
    assert read_scored(path, Columns(by="rarity")).methods[0].by == ("rare",)
    says = r"x.jsonl: no row has a kind in the column 'rarety'; did you mean rarity\?"
    with pytest.raises(LovecError, match=says):
        read_scored(path, Columns(by="rarety"))
    with pytest.raises(LovecError, match=says):
        list(read_scores(path, Columns(("gpt-score",), by="rarety"), "conformal"))
    with pytest.raises(LovecError, match=r"in the column 'kind'; its columns are unit, rarity, region, question$"):
        read_scored(path, Columns(by="kind"))


def test_a_table_that_has_the_keys_of_a_layout_is_read_as_a_table(tmp_path):
    row = {"question": "Q?", "prompt": "Q?", "response": "A.", "confidence": 0.5, "label": 1}
    assert read(saved(tmp_path, row)) == {"confidence": ([0.5], [1.0], [0])}


# ---------------------------------------------------------------- names that say the opposite


def test_a_column_that_is_empty_is_said_to_be(tmp_path):
    with pytest.raises(LovecError, match="the column 'label' is empty in every row, expected a label"):
        read(saved(tmp_path, {"confidence": 0.5, "label": None}))


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("hallucination_label", True), ("hallucinated", True), ("is_false", True), ("Error", True), ("refuted", True),
        ("Not Supported", True), ("unsupported", True), ("is_not_correct", True), ("entropy", True),
        ("semantic_entropy", True), ("hallucination_risk", True), ("claims.hallucinated", True), ("p_false", True),
        ("label", False), ("correct", False), ("semantic_negentropy", False), ("no_hallucination", False),
        ("hallucination_free", False), ("not_hallucinated", False), ("1_minus_entropy", False), ("p_true", False),
        ("noncontradiction", False), ("score", False), ("errors.correct", False), ("", False), ("not", False),
        ("unfaithful", True), ("inconsistent", True), ("is_ungrounded", True), ("unverified", True), ("untrue", True),
        ("unreliable", True), ("not_faithful", True), ("faithful", False),
    ],
)  # fmt: skip
def test_names_say_which_way_numbers_go(name, expected):
    assert says_opposite(name) is expected


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (1, 0.0), (0, 1.0), ("0.25", 0.75), (True, 0.0), ("no", 1.0), ("True", 0.0), (None, None), ("unknown", None),
        ("hallucinated", 0.0), ("supported", 1.0), ("Not Hallucination", 1.0), ("NS", 0.0),
    ],
)  # fmt: skip
def test_labels_of_what_is_wrong_are_turned_round_and_words_are_not(value, expected):
    assert label_of(value, opposite=True) == expected


@pytest.mark.parametrize("words", [{}, {"columns": Columns(label="hallucination_label")}])
def test_a_perfect_detector_of_hallucinations_is_perfect(tmp_path, words):
    rows = [{"confidence": c, "hallucination_label": label} for c, label in ((0.9, 0), (0.8, 0), (0.2, 1), (0.1, 1))]
    file = read_scored(saved(tmp_path, *rows), **words)
    assert file.methods[0].factuality.tolist() == [1.0, 1.0, 0.0, 0.0]
    assert file.said.endswith("labels turned round: by its name, 1 in hallucination_label is wrong and 0 right")


@pytest.mark.parametrize("name", ["hallucinated", "is_hallucination", "error", "is_false", "refuted", "unsupported"])
def test_labels_of_what_is_wrong_are_found_and_read_everywhere(tmp_path, name):
    assert read(saved(tmp_path, {"p_true": 0.2, name: 1}, {"p_true": 0.9, name: 0}))["p_true"][1] == [0.0, 1.0]
    row = {"prompt": "Q?", "response": "A.", "entailment": 0.2, name: True}
    assert read(saved(tmp_path, row), layout="uqlm") == {"entailment": ([0.2], [0.0], [0])}
    with pytest.raises(LovecError, match="cannot tell which column is the label"):
        read(saved(tmp_path, {"p_true": 0.2, name: "a message"}))


def test_scores_of_what_is_less_sure_are_uncertainties_or_refused(tmp_path):
    path = saved(tmp_path, {"entropy": 2.5, "correct": 0}, {"entropy": 0.5, "correct": 1})
    file = read_scored(path)
    assert file.methods[0].confidence.tolist() == [-2.5, -0.5] and file.methods[0].order_only
    assert file.said == "columns guessed: uncertainty = entropy; label = correct; group = none"
    with pytest.raises(
        LovecError, match=r"--confidence is 'entropy', whose name says .* say --uncertainty entropy, or"
    ):
        read(path, columns=Columns(("entropy",)))
    manager = {"estimations": {"claim PTrueClaim": [0.0]}, "gen_metrics": {"claim hallucination": [0.75]}}
    assert read(saved(tmp_path, manager)) == {"PTrueClaim": ([1.0], [0.25], [0])}


def test_numbers_that_are_not_read_are_named(tmp_path):
    row = {"id": 7, "judge_1": 0.5, "judge_2": 1, "max": 1, "rouge": 0.25, "note": "x", "response_correct": 1}
    said = read_scored(saved(tmp_path, row, row)).said
    assert said.startswith(
        "columns guessed: confidence = judge_1, judge_2, max; label = response_correct; group = none"
    )
    assert said.endswith("; numbers that are not read: rouge (--confidence COLUMN or --uncertainty COLUMN)")


# ---------------------------------------------------------------- groups are names


def test_a_row_without_a_group_belongs_to_no_other(tmp_path):
    rows = [{"confidence": 0.5, "correct": 1, "topic": topic or None} for topic in ("", "a", "a", "", "b")]
    path = saved(tmp_path, *rows)
    assert read(path, columns=Columns(group="topic"))["confidence"][2] == [0, 1, 1, 2, 3]
    path = saved(tmp_path, *({**row, "judge": 1} for row in rows))
    (method,) = read_scored(path, Columns(group="topic", judge="judge")).methods
    assert method.judged.group.tolist() == [0, 1, 1, 2, 3]


@pytest.mark.parametrize("groups", [["1.1", "1.10", "0x10", "16", "1e1", "10", "007", "7", "1_0", "True", "true"]])
def test_groups_are_never_numbers(tmp_path, groups):
    rows = [{"section": group, "confidence": 0.5, "label": 1} for group in groups]
    table = "\n".join(["section,confidence,label", *(f"{group},0.5,1" for group in groups)])
    (tmp_path / "x.csv").write_text(table)
    (tmp_path / "x.tsv").write_text(table.replace(",", "\t"))
    write_table(pyarrow.Table.from_pylist(rows), tmp_path / "x.parquet")
    for path in (saved(tmp_path, *rows), *(tmp_path / f"x.{end}" for end in ("csv", "tsv", "parquet"))):
        assert read(path, columns=Columns(group="section")) == {
            "confidence": ([0.5] * len(groups), [1.0] * len(groups), [*range(len(groups))])
        }


@pytest.mark.parametrize(
    ("text", "confidences"),
    [
        ("confidence;label\n0,9;1\n0,25;0\n", [0.9, 0.25]),
        ("confidence;label;note\n90%;1;a, b\n1,5 %;0;c\n", [0.9, 0.015]),
        ("confidence|label\n0.9|1\n", [0.9]),
        ("confidence\tlabel\n0.9\t1\n", [0.9]),
        ("\n\nconfidence;label\r\n0.9;1\r\n", [0.9]),
    ],
)
def test_columns_may_be_separated_otherwise(tmp_path, text, confidences):
    (tmp_path / "x.csv").write_bytes(b"\xef\xbb\xbf" + text.encode())
    assert read(tmp_path / "x.csv")["confidence"][0] == pytest.approx(confidences)


def test_a_comma_that_may_be_of_thousands_is_refused():
    assert confidence_of("85,5") == 85.5 and confidence_of("0,125") == 0.125
    with pytest.raises(LovecError, match=r'"1,234", expected a number; this may be 1234 or 1\.234: write it without'):
        confidence_of("1,234")


# ---------------------------------------------------------------- results of uqlm 0.6


def uqlm_claim(text, score, own=True, **more):
    """A claim as the graph scorers of uqlm write it."""
    return {"claim": text, "original_response": own, "degree_centrality": score, "removed": False, **more}


@pytest.mark.parametrize("grades", [[True, False, True, True], [True, False]])
def test_claims_of_sampled_answers_are_not_the_answer_s(tmp_path, grades, caplog):
    claims = [uqlm_claim("A.", 0.9), uqlm_claim("B.", 0.1), uqlm_claim("C.", 0.5, False), uqlm_claim("D.", 0.6, False)]
    row = {"prompt": "Q?", "response": "A. B.", "claims_data": claims, "claim_grades": grades}
    assert read(saved(tmp_path, row)) == {"degree_centrality": ([0.9, 0.1], [1.0, 0.0], [0, 0])}
    assert "of these 2 claims of sampled answers" in caplog.text
    with pytest.raises(LovecError, match="there are 3 claim_grades and 4 claims"):
        read(saved(tmp_path, {**row, "claim_grades": [True] * 3}))


@pytest.mark.parametrize("name", ["x.csv", "x.parquet", "x.jsonl"])
def test_a_claim_without_a_score_loses_no_other(tmp_path, name):
    rows = [
        {
            "prompt": f"Q{at}?",
            "response": "A. B.",
            "claims_data": [uqlm_claim("A.", None), uqlm_claim("B.", None if at else 0.5)],
            "claim_grades": [True, False],
        }
        for at in range(2)
    ]
    if name == "x.csv":
        table = pandas.DataFrame(rows)
        table["claims_data"] = [str(claims).replace("None", "nan") for claims in table["claims_data"]]
        table.to_csv(tmp_path / name, index=False)
    elif name == "x.parquet":
        write_table(pyarrow.Table.from_pylist(rows), tmp_path / name)
    else:
        saved(tmp_path, *rows)
    expected = ([None, 0.5, None, None], [1.0, 0.0, 1.0, 0.0], [0, 0, 1, 1])
    assert read(tmp_path / name) == {"degree_centrality": expected}


def test_numbers_of_numpy_are_read_as_pandas_writes_them(tmp_path):
    claims = "[{'claim': 'A.', 'degree_centrality': np.float64(0.5), 'removed': np.False_}, "
    claims += "{'claim': 'nan', 'degree_centrality': nan, 'samples': array(['np.nan', -1], dtype=object)}]"
    (tmp_path / "x.csv").write_text(f'prompt,response,claims_data,claim_grades\nQ?,A.,"{claims}","[True, False]"\n')
    assert read(tmp_path / "x.csv") == {"degree_centrality": ([0.5, None], [1.0, 0.0], [0, 0])}
    (row,) = [row for _, row in read_rows(tmp_path / "x.csv")]
    assert row["claims_data"][1]["samples"] == ["np.nan", -1] and row["claims_data"][0]["removed"] is False
    (tmp_path / "x.csv").write_text("question,a\nQ?,\"[__import__('os').getcwd(), open('x')]\"\n")
    assert next(read_rows(tmp_path / "x.csv"))[1]["a"].startswith("[__import__")  # nothing is called
    (tmp_path / "x.csv").write_text("prompt,response,claims_data\nQ?,A.,[no list\n")
    with pytest.raises(
        LovecError, match=r'x\.csv:2: claims_data is "\[no list", expected a list of objects, one per cl'
    ):
        read(tmp_path / "x.csv")


@pytest.mark.parametrize("layout", [None, "uqlm"])
def test_all_scores_of_a_panel_are_methods_with_all_rows(tmp_path, layout):
    text = "prompt,response,judge_1,judge_2,avg,max,min,median,response_correct\n"
    (tmp_path / "x.csv").write_text(f"{text}Q?,A.,0.5,,,,,,0\nR?,B.,0.25,0.75,0.5,0.75,0.25,0.5,1\n")
    found = read(tmp_path / "x.csv", layout=layout)
    assert list(found) == ["judge_1", "judge_2", "avg", "max", "min", "median"]
    assert all(labels == [0.0, 1.0] for _, labels, _ in found.values())
    assert found["judge_2"][0] == [None, 0.75] and found["max"][0] == [None, 0.75]


def test_uqlm_names_the_numbers_that_it_does_not_know(tmp_path, caplog):
    row = {"prompt": "Q?", "response": "0.5", "min_token_negentropy": 0.5, "rouge": 0.4, "response_correct": 0.3}
    assert read(saved(tmp_path, row, row), layout="uqlm") == {"min_token_negentropy": ([0.5] * 2, [0.3] * 2, [0, 1])}
    assert "of these 2 values of rouge, which is not a known score of uqlm" in caplog.text


@pytest.mark.parametrize("layout", [None, "conformal"])
@pytest.mark.parametrize("more", [{}, {"response": "A. B."}])
@pytest.mark.parametrize("score", ["0.9", 0.9, "90%"])
def test_claims_beside_a_response_keep_their_labels(tmp_path, layout, more, score):
    claims = [{"subclaim": "A.", "gpt-score": score, "annotation": "Y"}, {"subclaim": "B.", "annotation": "N"}]
    found = read(saved(tmp_path, {"prompt": "Q?", **more, "claims": claims}), layout=layout)
    assert found == {"gpt-score": ([0.9, None], [1.0, 0.0], [0, 0])}


def test_labels_of_claims_without_scores_are_kept(tmp_path):
    claims = [{"claim": "A."}, {"claim": "B."}]
    row = {"prompt": "Q?", "response": "A. B.", "claims_data": claims, "claim_grades": [True, False]}
    assert read(saved(tmp_path, row)) == {"": ([None, None], [1.0, 0.0], [0, 0])}


def test_an_answer_whose_facts_have_no_confidence_belongs_to_the_others(tmp_path):
    rows = [{"decisions": [{"atom": "A.", "is_supported": True}]} for _ in range(3)]
    rows[1]["decisions"][0]["confidence"] = 0.75
    assert read(saved(tmp_path, *rows)) == {"confidence": ([None, 0.75, None], [1.0] * 3, [0, 1, 2])}


@pytest.mark.parametrize("number", [10**400, "1" * 5000, 1e308, -(10**400)])
def test_huge_numbers_are_one_line(tmp_path, number):
    for row in ({"confidence": number, "label": 0.5}, {"confidence": 0.5, "label": number}):
        try:
            read(saved(tmp_path, row))
        except LovecError as error:
            assert "\n" not in str(error) and len(str(error)) < 300
    row = {"prompt": "Q?", "model_output": "A.", "ratings_openai": [number], "rated_output_openai": ""}
    try:
        list(read_any(saved(tmp_path, row)))
    except LovecError as error:
        assert "\n" not in str(error) and str(error).startswith(f"{tmp_path / 'x.jsonl'}:1: ")
