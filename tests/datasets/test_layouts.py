"""Files of other projects: every layout gives exactly the records it holds, and nothing is lost in silence."""

from __future__ import annotations

import csv
import gzip
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import datasets
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow.parquet import write_table

from lovec.cli import main
from lovec.datasets import jsonl as jsonl_module
from lovec.datasets import rows as rows_module
from lovec.datasets.bios import read_bios
from lovec.datasets.jsonl import read_records, record_from_dict, record_to_dict, write_records
from lovec.datasets.layouts import LAYOUTS, OWN, _say, known_layout, layout_of, read_any
from lovec.datasets.popqa import read_popqa
from lovec.datasets.rows import is_rows, read_rows
from lovec.datasets.stored import read_stored
from lovec.datasets.triviaqa import read_triviaqa, short_form
from lovec.encoding import QUESTION
from lovec.tagging import Documents
from lovec.types import LovecError, Record, Sentence

CORPUS = Path(__file__).with_name("corpus")
ADA, BO, CY, DI = (QUESTION.format(entity=name) for name in ("Ada", "Bo", "Cy", "Di"))


PASSAGE = (CORPUS / "wikibio.json").read_bytes().strip()[1:-1]


def answer(record_id, question, text="", sentences=(), evidence=(), rejected=None, **meta):
    """A record whose sentences are (text, factuality, confidence, score)."""
    made = tuple(Sentence(*values[:3], *values[3:]) for values in sentences)
    return Record(record_id, question, evidence, text, made, meta, rejected)


EXPECTED = {
    "veriscore.jsonl": (
        [
            answer("who-was-ada", "Who was Ada?", "Ada wrote. She swam. She flew.",
                   [("Ada wrote.", 1.0), ("Ada swam.", 0.0), ("Ada could swim.", 0.0), ("Ada flew.", None)],
                   abstained=False, unit="claim", model="m", prompt_source="own"),
            answer("who-was-bo", "Who was Bo?", "Sorry, I can't do that.",
                   abstained=True, unit="claim", model="m", prompt_source="own"),
        ],
        "2 rows read as VeriScore: claims and verdicts: 2 records, 4 sentences, 3 labels, 0 confidences; of these "
        "1 abstentions, 1 claims without a verdict, 1 sentences without a label",
    ),
    "triviaqa.jsonl": (
        [answer("tc_33", short_form("Which musical?"), aliases=["sunset blvd", "boulevard"],
                bare_question="Which musical?", domain="TriviaQA")],
        "1 rows read as TriviaQA: 1 records, 0 sentences, 0 labels, 0 confidences",
    ),
    "authors_demonstrations.json": (
        [
            answer("ada", ADA, "Ada wrote. She swam.", [("Ada wrote.", 0.9), ("She swam.", None)], abstained=False),
            answer("bo", BO, "I do not know Bo.", abstained=True),
            answer("cy", CY, "Cy ran. He sat.", abstained=False),
            answer("di", DI, "Di ran.", abstained=False),
            answer("ed", QUESTION.format(entity="Ed"), "Ed ran.", abstained=False),
        ],
        "5 rows read as the paper's authors: demonstrations: 5 records, 2 sentences, 1 labels, 0 confidences; of these "
        "1 abstentions, 2 answers with more or fewer ratings than sentences, 1 answers without ratings, 1 sentences "
        "without a label",
    ),
    "authors_pairs.jsonl": (
        [answer("ada", ADA, "Ada wrote. She swam.", [("Ada wrote.", 0.9), ("She swam.", 0.0)], rejected=(2, 10))],
        "1 rows read as pairs: the paper's authors, TRL: 1 records, 2 sentences, 2 labels, 0 confidences",
    ),
    "authors_grpo.jsonl": (
        [answer("ada", ADA, "Ada wrote.", evidence=("Page one.", "Page two."), entity="Ada"),
         answer("bo", BO, entity="Bo")],
        "2 rows read as the paper's authors: prompts for GRPO: 2 records, 0 sentences, 0 labels, 0 confidences",
    ),
    "authors_outputs.json": (
        [
            answer("ada/sample-1", ADA,
                   "Ada wrote. <confidence> 9 </confidence> She swam. <confidence> 1 </confidence>",
                   [("Ada wrote.", 1.0, 0.9, 9), ("She swam.", None, 0.1, 1)], entity="Ada"),
            answer("ada/sample-2", ADA, "Ada sang.", entity="Ada"),
            answer("bo/sample-1", BO, "I do not know Bo.", entity="Bo", abstained=True),
            answer("cy/sample-1", CY, "Cy ran. He sat.", [("Cy ran.", 0.4), ("He sat.", 0.6)], entity="Cy"),
            answer("di/sample-1", DI, "Di ran. <confidence> 5 </confidence>", [("Di ran.", None, 0.5, 5)], entity="Di"),
        ],
        "4 rows read as the paper's authors: outputs: 5 records, 5 sentences, 3 labels, 3 confidences; of these "
        "1 abstentions, 1 answers with more or fewer ratings than sentences, 2 sentences without a label",
    ),
    "factscore_labelled.jsonl": (
        [
            answer("ada", "Tell me a bio of Ada.", "Ada wrote. She swam.", [("Ada wrote.", 0.5), ("She swam.", None)],
                   topic="Ada", rarity="rare", region="Europe/Middle East", abstained=False),
            answer("bo", "Tell me a bio of Bo.", "I do not know Bo.",
                   topic="Bo", rarity="freq", region="Asia", abstained=True),
        ],
        "2 rows read as FActScore: labelled data: 2 records, 2 sentences, 1 labels, 0 confidences; of these "
        "1 abstentions, 1 sentences without a label",
    ),
    "factscore_decisions.json": (
        [
            answer("answer-1", "(answer 1)", sentences=[("Ada wrote.", 1.0), ("Ada swam.", 0.0)],
                   topic="answer 1", abstained=False, unit="claim"),
            answer("answer-2", "(answer 2)", topic="answer 2", abstained=True, unit="claim"),
        ],
        "1 rows read as FActScore: decisions: 2 records, 2 sentences, 2 labels, 0 confidences; of these 1 abstentions",
    ),
    "safe.json": (
        [
            answer("who-was-ada/side-1", "Who was Ada?", "Ada wrote. She swam. Hello.",
                   [("Ada wrote.", 0.5), ("She swam.", 0.0), ("Hello.", None)], side=1),
            answer("who-was-bo/side-1", "Who was Bo?", "Bo ran.", side=1),
        ],
        "2 rows read as SAFE: results: 2 records, 3 sentences, 2 labels, 0 confidences; of these 1 responses without a "
        "result, 1 sentences without a label",
    ),
    "longfact.jsonl": (
        [answer("what-is-a-canal", "What is a canal?", canary="CANARY GUID 1"),
         answer("what-is-a-canal-2", "What is a canal?", canary="CANARY GUID 1")],
        "2 rows read as LongFact: prompts: 2 records, 0 sentences, 0 labels, 0 confidences",
    ),
    "wikibio.json": (
        [answer("wikibio-7", ADA, "Ada is a poet. She was born in 1815.",
                [("Ada is a poet.", 0.0), ("She was born in 1815.", 1.0)], ("Ada wrote programs.",),
                entity="Ada", domain="WikiBio", samples=["Ada was."])],
        "1 rows read as WikiBio: 1 records, 2 sentences, 2 labels, 0 confidences",
    ),
    "uqlm_frame.csv": (
        [answer("who-was-ada", "Who was Ada?", "Ada wrote. She swam.",
                [("Ada wrote.", None, 0.9), ("Ada swam.", None, 0.5)],
                scores={"entailment": [0.9, 0.5]}, samples=["Ada sang.", "Ada wrote."], unit="claim")],
        "1 rows read as uqlm: results: 1 records, 2 sentences, 0 labels, 2 confidences",
    ),
    "uqlm_dict.json": (
        [
            answer("2-2", "2+2?", "4", [("4", 1.0, 1.0)],
                   scores={"exact_match": [1.0], "noncontradiction": [0.9]}, samples=["4"]),
            answer("3-3", "3+3?", "7", [("7", 0.0, 0.0)],
                   scores={"exact_match": [0.0], "noncontradiction": [0.2]}, samples=["6"]),
        ],
        "2 rows read as uqlm: results: 2 records, 2 sentences, 2 labels, 2 confidences",
    ),
    "polygraph.jsonl": (
        [answer("who-was-ada", "Who was Ada?", " Ada wrote.", [("Ada wrote.",)],
                uncertainty=-0.25, estimator="MaximumSequenceProbability", model_path="m")],
        "1 rows read as LM-Polygraph: uncertainty: 1 records, 1 sentences, 0 labels, 0 confidences; of these 1 answers "
        "with an uncertainty that is not a confidence in [0, 1] (kept in meta)",
    ),
    "rlcr.jsonl": (
        [
            answer("12/Base", "2+2?", "<think>Hm.</think><answer>5</answer><confidence>0.9</confidence>",
                   [("5", 0.0, 0.9)], model="Base", correct_answer="4"),
            answer("12/RLCR", "2+2?", "4", [("4", 1.0, 0.5)], model="RLCR", correct_answer="4"),
            answer("12/RLCR/2", "2+2?", "Four", [("Four", 1.0, 0.25)], model="RLCR", correct_answer="4"),
        ],
        "1 rows read as RLCR: outputs: 3 records, 3 sentences, 3 labels, 3 confidences",
    ),
    "rlcr_numbers.jsonl": (
        [answer("12/Base", "(question 12)", "", [("(answer of Base)", 0.0, 0.95)], model="Base"),
         answer("12/RLCR", "(question 12)", "", [("(answer of RLCR)", 1.0, 0.5)], model="RLCR")],
        "1 rows read as RLCR: numbers: 2 records, 2 sentences, 2 labels, 2 confidences; of these 2 sentences without "
        "their text, which the file does not have (a name stands in)",
    ),
    "lm_eval.jsonl": (  # written by lm-evaluation-harness 0.4.13; the probabilities are SciPy's softmax
        [
            answer("doc-0", "Question: What is the capital of France?\nAnswer:", "Lima",
                   [("Lima", 0.0, 0.6565836179497101)],
                   unit="answer", choices=["Oslo", "Lima", "Havana", "Paris"],
                   probabilities=[0.34341534017172887, 0.6565836179497101, 2.826038103528323e-12,
                                  1.0418757351359868e-06]),
            answer("doc-1", "Question: What is the capital of Italy?\nAnswer:", "Tokyo",
                   [("Tokyo", 0.0, 0.9999940823130594)],
                   unit="answer", choices=["Lima", "Rome", "Havana", "Tokyo"],
                   probabilities=[3.415420643753115e-06, 2.502266296831642e-06, 1.5076925547911078e-17,
                                  0.9999940823130594]),
        ],
        "2 rows read as lm-evaluation-harness: choices: 2 records, 2 sentences, 2 labels, 2 confidences",
    ),
    "polygraph_manager.json": (
        [answer("claim-1", "(claim 1)", "", [("(claim 1)", 0.0)], unit="claim", kinds={"PTrueClaim": "surprisal"},
                scores={"PTrueClaim": [1.0]})],
        "1 rows read as LM-Polygraph: manager: 1 records, 1 sentences, 1 labels, 0 confidences; of these "
        "1 sentences without their text, which the file does not have (a name stands in), "
        "1 levels without labels (token)",
    ),
    "subclaims.jsonl": (
        [answer("tell-me-of-ada", "Tell me of Ada", "",
                [("Ada wrote.", 1.0, 0.9), ("Ada was great.", 1.0, 1.0), ("Ada swam.", 0.0, 0.7)],
                unit="claim", scores={"gpt-score": [0.9, 1, 0.7], "frequency-score": [5.0, 4.0, 0.0]})],
        "1 rows read as conformal factuality: claims: 1 records, 3 sentences, 3 labels, 3 confidences",
    ),
    "subclaim_numbers.jsonl": (
        [answer("prompt-1", "(prompt 1)", "", [("(claim 1)", 1.0), ("(claim 2)", 0.0)],
                unit="claim", scores=[6.0006, -3.0])],
        "1 rows read as conformal factuality: numbers: 1 records, 2 sentences, 2 labels, 0 confidences; of these "
        "2 sentences without their text, which the file does not have (a name stands in)",
    ),
    "factbench.jsonl": (
        [answer("who-was-ada", "Who was Ada?", "Ada wrote. She swam.",
                [("Ada wrote.", 1.0), ("Ada swam.", 0.0), ("Ada flew.", None)], unit="claim"),
         answer("who-was-bo", "Who was Bo?", unit="claim")],
        "2 rows read as Factcheck-GPT: claims: 2 records, 3 sentences, 2 labels, 0 confidences; of these 1 prompts "
        "without a response, 1 sentences without a label",
    ),
    "factcheck_gpt.jsonl": (
        [answer("who-was-ada", "Who was Ada?", "Ada wrote. Hello!", [("Ada wrote.", 1.0), ("Hello!", None)]),
         answer("who-was-bo", "Who was Bo?", "Bo ran and swam. He won. Bye!",
                [("Bo ran and swam.", 0.0), ("He won.", 1.0), ("Bye!", None)],
                ("Bo, a runner.", "Bo ran far.", "Fish swim.", "Bo came first or second."),
                supported=[0.5, 0.5, None])],
        "2 rows read as Factcheck-GPT: sentences: 2 records, 5 sentences, 3 labels, 0 confidences; of these "
        "2 sentences without a label",
    ),
    "halueval.json": (
        [answer("who-was-ada", "Who was Ada?", "Ada wrote. She swam. She flew.",
                [("Ada wrote.", 1.0), ("Ada swam.", 0.0), ("Ada flew.", None)],
                unit="claim", **{"judged by": "human"}),
         answer("who-was-bo", "Who was Bo?", "Bo ran.", [("Bo ran.", None)], unit="claim", **{"judged by": "human"}),
         answer("who-was-cy", "Who was Cy?", "Cy sang.", [("Cy sang.", 0.0)],
                unit="claim", **{"judged by": "chatgpt"})],
        "3 rows read as HaluEval 2.0: claims: 3 records, 5 sentences, 3 labels, 0 confidences; of these 2 sentences "
        "without a label",
    ),
    "answered.jsonl": (
        [answer("who-was-ada", "Who was Ada?", "Ada wrote. She swam.", question_id=1),
         answer("who-was-bo", "Who was Bo?", "", question_id=2)],
        "2 rows read as questions with answers: 2 records, 0 sentences, 0 labels, 0 confidences; of these 1 questions "
        "without an answer; kept in meta: question_id",
    ),
    "prompts.jsonl": (
        [answer("who-was-ada", "Who was Ada?"), answer("who-was-bo", "Who was Bo?")],
        "2 rows read as prompts: 2 records, 0 sentences, 0 labels, 0 confidences; of these 2 questions without an "
        "answer",
    ),
    "chats.jsonl": (
        [answer("who-was-ada", "Who was Ada?", "Ada wrote."),
         answer("and-bo", "And Bo?", "Bo ran.", earlier_turns=[
             {"role": "system", "content": "Be brief."}, {"role": "user", "content": "Who was Ada?"},
             {"role": "assistant", "content": "Ada wrote."}]),
         answer("who-was-cy", "Who was Cy?")],
        "3 rows read as chats: 3 records, 0 sentences, 0 labels, 0 confidences; of these "
        "1 questions without an answer, 3 earlier turns (kept in meta)",
    ),
    "preferences.jsonl": (
        [answer("who-was-ada", "Who was Ada?", "A writer.", rejected_answer="A boxer."),
         answer("ada", ADA, "Ada wrote.", [("Ada wrote.", 0.9)], rejected=(2,)),
         answer("who-was-bo", "Who was Bo?", "A runner.", rejected_answer="A swimmer.")],
        "3 rows read as pairs: the paper's authors, TRL: 3 records, 1 sentences, 1 labels, 0 confidences; of these "
        "2 rejected answers without scores (kept in meta): lovec's pairs are one answer with true and wrong scores, "
        "which `lovec label --answers` makes of the chosen ones",
    ),
    "own_list.json": (
        [answer("line-1", "Who?", "Ada."), answer("b", "What?", "", [("One.", 0.5)], ("A page.",))],
        None,
    ),
    "own.csv": (
        [answer("7", "Who, then?", "1984", [("One.", 1.0)], ("a", "b"), popularity="3"),
         answer("line-4", "What?", "Two\nlines", popularity=None)],
        "2 rows read as lovec: 2 records, 1 sentences, 1 labels, 0 confidences; kept in meta: popularity",
    ),
    "mu_shroom.jsonl": (
        [
            answer("val-en-1", "Who was Ada?", " Ada wrote. She swam.\n", [("Ada wrote.", 1.0), ("She swam.", 0.25)],
                   soft_labels=[{"start": 16, "prob": 0.25, "end": 17}, {"start": 17, "prob": 0.75, "end": 21}],
                   hard_labels=[[17, 21]], model="m"),
            answer("val-en-2", "Who was Bo?", "Bo ran.", [("Bo ran.", 1.0)], soft_labels=[]),
        ],
        "2 rows read as Mu-SHROOM: marked characters: 2 records, 3 sentences, 3 labels, 0 confidences",
    ),
    "own.tsv": ([answer("line-2", "Who?", "True")], None),
}  # fmt: skip


@pytest.fixture(autouse=True)
def say_again():
    """What a file held is said once in a process."""
    _say.cache_clear()


def test_the_corpus_has_every_layout():
    assert {path.name for path in CORPUS.iterdir()} == EXPECTED.keys()
    found = {known_layout(row) for name in EXPECTED for _, row in read_rows(CORPUS / name)}
    assert found == set(LAYOUTS)


@pytest.mark.parametrize("name", EXPECTED)
def test_every_layout_gives_its_records_and_says_what_was_read(name, caplog):
    records, said = EXPECTED[name]
    assert list(read_any(CORPUS / name)) == records
    assert [record.message for record in caplog.records] == ([f"{CORPUS / name}: {said}"] if said else [])
    list(read_any(CORPUS / name))
    assert len(caplog.records) == bool(said), "said twice"


@pytest.mark.parametrize("name", EXPECTED)
def test_every_layout_survives_compression_and_lovec_s_own_file(name, tmp_path):
    packed = tmp_path / f"{name}.gz"
    packed.write_bytes(gzip.compress((CORPUS / name).read_bytes()))
    records = list(read_any(packed))
    assert records == EXPECTED[name][0]
    write_records(tmp_path / "own.jsonl", records)
    assert list(read_any(tmp_path / "own.jsonl")) == records


@pytest.mark.parametrize("name", [name for name in EXPECTED if name.endswith(".jsonl") and name != "subclaims.jsonl"])
def test_lines_a_list_and_parquet_are_the_same(name, tmp_path):
    rows = [row for _, row in read_rows(CORPUS / name)]
    listed = tmp_path / "list.jsonl"  # a list under the name of lines, with Windows' newlines and a byte-order mark
    listed.write_bytes(b"\xef\xbb\xbf" + json.dumps(rows, indent=2).replace("\n", "\r\n").encode())
    assert list(read_any(listed)) == EXPECTED[name][0]
    lines = tmp_path / "lines.json"
    lines.write_bytes(b"\r\n".join(json.dumps(row).encode() for row in rows))
    assert list(read_any(lines)) == EXPECTED[name][0]
    datasets.Dataset.from_list(rows).to_parquet(tmp_path / "rows.parquet")
    shutil.copy(tmp_path / "rows.parquet", tmp_path / "rows")  # the content decides
    packed = tmp_path / "rows.parquet.gz"
    packed.write_bytes(gzip.compress((tmp_path / "rows").read_bytes()))
    for path in (tmp_path / "rows.parquet", tmp_path / "rows", packed):
        assert list(read_any(path)) == EXPECTED[name][0]


def test_the_documentation_lists_every_layout():
    page = (Path(__file__).parents[2] / "docs" / "data.md").read_text("utf-8")
    table = [line for line in page.splitlines() if line.startswith("| ") and line.count("|") > 3]
    for layout in LAYOUTS:
        if layout is not OWN:
            keys = ", ".join(" or ".join(f"`{key}`" for key in names.split("|")) for names in layout.keys)
            (line,) = (line for line in table if line.startswith(f"| {layout.name} | {keys}"))
            assert line.split("|")[3].strip(), "says not what it is read as"


# ---------------------------------------------------------------- questions, answers and chats of trainers


def turns(*texts):
    return [{"role": role, "content": text} for role, text in zip(["user", "assistant"] * 9, texts, strict=False)]


@pytest.mark.parametrize(
    ("row", "question", "text"),
    [
        ({"prompt": "Who?"}, "Who?", ""),
        ({"prompt": "Who?", "completion": "Ada."}, "Who?", "Ada."),
        ({"prompt": turns("Who?"), "completion": turns("", "Ada.")[1:]}, "Who?", "Ada."),
        ({"question": "Who?", "response": "Ada."}, "Who?", "Ada."),
        ({"prompt": "Who?", "response": None}, "Who?", ""),
        ({"messages": turns("Who?", "Ada.", "And Bo?", "Ran.")}, "And Bo?", "Ran."),
        ({"messages": [{"role": "user", "content": [{"type": "text", "text": "Who?"}]}]}, "Who?", ""),
        ({"chosen": turns("Who?", "Ada."), "rejected": turns("Who?", "Bo.")}, "Who?", "Ada."),
        ({"prompt": "Who?", "chosen": "Ada.", "rejected": "Bo."}, "Who?", "Ada."),
        ({"prompt": "Who?", "prompt_id": "x", "messages": turns("Who?", "Ada.")}, "Who?", "Ada."),
        ({"prompt": "Who?", "messages": []}, "Who?", ""),
        ({"prompt": "Who?", "chosen": turns("Who?", "Ada."), "rejected": turns("Who?", "Bo.")}, "Who?", "Ada."),
    ],
)  # fmt: skip
def test_rows_of_trainers_are_questions_and_answers(tmp_path, row, question, text):
    path = tmp_path / "x.jsonl"
    path.write_text(json.dumps({**row, "id": "7"}) + "\n")
    (record,) = read_any(path)
    assert (record.id, record.question, record.answer, record.sentences) == ("7", question, text, ())
    assert "earlier_turns" not in record.meta or (len(row["messages"]) > 2 and "prompt" not in row)
    assert "messages" not in record.meta or not row["messages"]
    assert record.meta.get("rejected_answer", "Bo.") == "Bo."


@pytest.mark.parametrize("written", [json.dumps, str], ids=["json", "python"])
@pytest.mark.parametrize(
    ("row", "text"),
    [
        ({"prompt": turns("Who?"), "completion": turns("", "Ada.")[1:]}, "Ada."),
        ({"prompt": "Who?", "response": turns("", "[1] says so.")[1:]}, "[1] says so."),
        ({"chosen": turns("Who?", "Ada."), "rejected": turns("Who?", "Bo.")}, "Ada."),
        ({"prompt": turns("Who?"), "completion": "[1] says so."}, "[1] says so."),
        ({"prompt": turns("Who?"), "response": '["a"]'}, '["a"]'),
        ({"prompt": turns("Who?"), "completion": '[{"role": 3}]'}, '[{"role": 3}]'),
    ],
)
def test_cells_with_messages_are_read_as_messages_and_others_stay_text(tmp_path, row, text, written):
    path = tmp_path / "x.csv"
    with open(path, "w", newline="") as file:
        cells = [value if isinstance(value, str) else written(value) for value in row.values()]
        csv.writer(file).writerows([row, cells])
    (record,) = read_any(path)
    assert (record.question, record.answer) == ("Who?", text)


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"messages": turns()}, "no question is asked, expected a prompt, or messages with one of the role user"),
        ({"messages": [{"role": "assistant", "content": "Ada."}]}, "no question is asked"),
        ({"messages": "Who?"[:0]}, "no question is asked"),
        ({"messages": [3]}, '[3] is neither text nor a list of messages such as {"role": "user"'),
        ({"messages": [{"role": "user", "content": 3}]}, "the content of a message is 3, expected a text"),
        ({"prompt": None}, "no question is asked"),
        ({"prompt": "Who?", "chosen": 3, "rejected": "A."}, "3 is neither text nor a list of"),
    ],
)
def test_chats_that_ask_nothing_are_named(tmp_path, row, said):
    path = tmp_path / "x.jsonl"
    path.write_text(json.dumps(row) + "\n")
    with pytest.raises(LovecError, match=r"x\.jsonl:1: ") as caught:
        list(read_any(path))
    assert said in str(caught.value) and "\n" not in str(caught.value)


# ---------------------------------------------------------------- rows that no layout has


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({}, "no known layout has the keys (none); the nearest, lovec, also needs 'question'"),
        ({"ask": "Who?"}, "keys ask; the nearest, lovec, also needs 'question'"),
        ({"question ": "Who?", "answer": "A."}, "also needs"),
        (
            {"output": "A.", "annotations": None, "input": "Q", "topic": "A"},
            "FActScore: labelled data, also needs 'cat'",
        ),
        ({"entity": "Ada", "evidence": "A page."}, "prompts for GRPO, also needs 'base_prediction'"),
        ({"problem": "2+2?", "answer": "4"}, "RLCR: outputs, also needs '*-confidence_levels'"),
        ({str(n): n for n in range(99)}, "keys 0, 1, 2, 3, 4, 5, 6, 7, ...; the nearest"),
    ],
)
def test_the_nearest_layout_is_named(row, said):
    with pytest.raises(LovecError, match=r"^x:3: no known layout has the keys") as caught:
        layout_of(row, "x:3")
    assert said in str(caught.value) and "\n" not in str(caught.value) and len(str(caught.value)) < 250


@pytest.mark.parametrize(
    ("name", "change", "said"),
    [
        ("veriscore.jsonl", {"claim_verification_result": [{"claim": "A."}]}, "VeriScore: claims and verdicts ('verif"),
        (
            "safe.json",
            {"side1_posthoc_eval_data": {"checked_statements": [{}]}},
            "SAFE: results ('sentence' is missing)",
        ),
        ("uqlm_dict.json", {"noncontradiction": 1.5}, "noncontradiction is 1.5, expected a confidence in [0, 1]"),
        ("rlcr.jsonl", {"Base-confidence_levels": 3}, "RLCR: outputs (TypeError"),
        ("rlcr_numbers.jsonl", {"Base": {"confidence": 2, "correct": 1}}, "confidence is 2, expected a confidence"),
        ("subclaim_numbers.jsonl", {"true": [1]}, "there are 2 scores and 1 labels"),
        ("subclaims.jsonl", {"claims": [{}]}, "conformal factuality: claims ('subclaim' is missing)"),
        (
            "factscore_decisions.json",
            {"decisions": [[{"is_supported": 1}]]},
            "FActScore: decisions ('atom' is missing)",
        ),
        (
            "factbench.jsonl",
            {"claim_labels": [True]},
            "there are 3 claims and 1 claim_labels, expected one label per cl",
        ),
        ("lm_eval.jsonl", {"filtered_resps": [["-1", "False"], ["-2", "False"]]}, "2 log-likelihoods for 4 choices"),
        ("lm_eval.jsonl", {"filtered_resps": [["-inf", "False"]] * 4}, "confidence is"),
        ("halueval.json", {"human_judge": ["true"]}, "there are 3 claims and 1 verdicts in human_judge, expected one"),
        ("halueval.json", {"human_judge": ["maybe"] * 3}, "a verdict is 'maybe', expected true, false or unknown"),
        ("mu_shroom.jsonl", {"id": "x", "hard_labels": [[17, 40]]}, "a span is 17 to 40, expected characters 0 to 22"),
        (
            "mu_shroom.jsonl",
            {"id": "x", "soft_labels": [{"start": 1}]},
            "soft_labels and hard_labels are lists such as",
        ),
        (
            "mu_shroom.jsonl",
            {"id": "x", "soft_labels": [{"start": 1, "end": 2, "prob": 40}]},
            "the probability of a span is 40, expected at least 0 and at most 1",
        ),
        ("triviaqa.jsonl", {"answer": []}, "there is no answer; take the validation split"),
    ],
)
def test_broken_rows_are_named(tmp_path, name, change, said):
    first = next(read_rows(CORPUS / name))[1]
    path = tmp_path / "broken.jsonl"
    path.write_text(json.dumps(first) + "\n" + json.dumps({**first, **change}) + "\n")
    with pytest.raises(LovecError, match=r"broken\.jsonl:2: ") as caught:
        list(read_any(path))
    assert said in str(caught.value) and "\n" not in str(caught.value)


def test_lovec_s_own_rows_and_others_do_not_mix(tmp_path):
    path = tmp_path / "x.jsonl"
    path.write_text('{"scores": [1], "true": [1]}\n{"question": "Who?"}\n')
    with pytest.raises(LovecError, match=r"x\.jsonl:2: has the layout of lovec's own files"):
        list(read_any(path))


# ---------------------------------------------------------------- files that are odd


@pytest.mark.parametrize(
    ("name", "data", "said"),
    [
        ("x.jsonl", b"", "x.jsonl is empty, expected JSON Lines, JSON, CSV or Parquet"),
        ("x.jsonl", b"\xef\xbb\xbf \r\n", "x.jsonl is empty"),
        ("x.jsonl", '{"question": "Who?"}'.encode("utf-16"), "x.jsonl is in UTF-16, expected UTF-8; convert it"),
        ("x.csv", "question\nWho?\n".encode("utf-16-le"), "x.csv is a binary file"),
        (
            "ue_manager",
            b"PK\x03\x04 and more",
            "ue_manager is a binary file, expected text in UTF-8 or Parquet; save the",
        ),
        ("x.pkl", b"\x80\x04\x95", "runs code when it is opened"),
        ("x.parquet", b"PAR1 nothing", "as Parquet ("),
        ("x.gz", gzip.compress(b'{"question": "Who?"}' * 99, mtime=0)[:-9], "it is damaged or cut off"),
        ("x.gz", gzip.compress(b'{"question": "Who?"}', mtime=0)[:10], "it is damaged or cut off"),
        ("x.csv.gz", gzip.compress(b"question\nWho?", mtime=0)[:12], "it is damaged or cut off"),
        ("x.jsonl.gz", b"\x1f\x8b", "it is damaged or cut off"),
        ("x.jsonl.gz", gzip.compress(b"", mtime=0), "x.jsonl.gz is empty, expected JSON Lines"),
        ("x.jsonl", b'{"question": ' + b"[" * 980 + b"]" * 980 + b"}", "x.jsonl:1: "),
        ("x.json", b'[{"question": "Who?"}, ', "not valid JSON"),
        ("x.json", b'[{"question": "half \\ud83d"}]', "not valid UTF-8 text (surrogates not allowed)"),
        ("x.json", b'[{"question": "Who?"}, 3]', "x.json:2: holds 3, expected an object"),
        ("x.json", b'{\n "question": "Who?"\n', "x.json:1: not valid JSON"),
        (
            "x.json",
            b'{"data": {"prompts": ["a", "b"], "responses": ["c"]}}',
            "'data' has 1 values of 'responses', expected 2",
        ),
        ("x.csv", b"question,question\na,b\n", "x.csv:1: two columns have the name 'question'"),
        ("x.csv", b"question,answer\nWho?\n", "x.csv:2: has 1 cells, expected 2 as in the first line"),
        ("x.csv", b'question,answer\n"Who?,A.\n', "not a table in UTF-8 (unexpected end of data)"),
        ("x.csv", b"question\nWho\xff?\n", "x.csv:2: not a table in UTF-8 (invalid start byte); convert it, as with "),
        ("x.csv", b"question\n" + b"Who?\n" * 9999 + b"Caf\xe9?\n", "x.csv:10001: not a table in UTF-8 (invalid cont"),
        ("x.csv", b"question,answer,sentences\nWho?,A.,no list\n", "'sentences' is \"no list\", expected a list"),
        ("x.json", b"[%b, %b]" % (PASSAGE, PASSAGE), "x.json:2: id 'wikibio-7' is already that of an earlier row"),
        ("x.jsonl", b'{"id": 1, "question": "a"}\n{"id": 1, "question": "b"}', "id '1' is already that of line 1"),
    ],
)
def test_odd_files_are_one_line(tmp_path, name, data, said):
    path = tmp_path / name
    path.write_bytes(data)
    with pytest.raises(LovecError) as caught:
        list(read_any(path))
    assert said in str(caught.value) and name in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ('confidence;label;"note, with, many, commas"\n0,5;1;x\n', ["confidence", "label", "note, with, many, commas"]),
        ('"a, ""b, c""";b\n1;2\n', ['a, "b, c"', "b"]),
        ('"a,\nb,c";d\n1;2\n', ["a,\nb,c", "d"]),
        ('5",b,"c;d;e;f"\n1,2,3\n', ['5"', "b", "c;d;e;f"]),
    ],
)
def test_a_separator_in_quotes_is_part_of_a_name(tmp_path, text, names):
    (tmp_path / "x.csv").write_text(text)
    [(_, row)] = read_rows(tmp_path / "x.csv")
    assert list(row) == names


def test_cells_that_json_cannot_hold_stay_text_and_an_empty_list_is_no_record(tmp_path):
    (tmp_path / "x.csv").write_text("question,list\nWho?,[1e999]\nWhat?,[NaN]\nWhy?,\"[1, 'a']\"\n")
    assert [record.meta["list"] for record in read_any(tmp_path / "x.csv")] == ["[1e999]", [None], [1, "a"]]
    (tmp_path / "x.json").write_text("[]")
    assert list(read_any(tmp_path / "x.json")) == []


@pytest.mark.parametrize("name", ["x.jsonl.gz", "x.csv.gz", "x.jsonl", "x.csv", "x.json.gz"])
def test_a_line_that_expands_beyond_the_memory_is_refused(tmp_path, monkeypatch, name):
    text = b"question\n" + b"w" * 2**21 if ".csv" in name else b'{"question": "' + b"w" * 2**21 + b'"}'
    (tmp_path / name).write_bytes(gzip.compress(text) if name.endswith(".gz") else text)
    assert len(list(read_any(tmp_path / name))) == 1
    monkeypatch.setattr(jsonl_module, "LARGEST", 2**20)
    with pytest.raises(LovecError, match=r": a line of more than 1 MiB, expected one record per line"):
        list(read_any(tmp_path / name))
    with pytest.raises(LovecError, match=r": a line of more than 1 MiB"):
        read_stored(str(tmp_path / name), {"train": lambda record: record})


@pytest.mark.slow
def test_a_bomb_of_one_line_is_one_error_within_little_memory(tmp_path):
    with gzip.open(tmp_path / "x.jsonl.gz", "wb", compresslevel=1) as file:
        file.write(b'{"question": "')
        for _ in range(3 * 2**10):
            file.write(b"w" * 2**20)
    code = """
import resource, sys
resource.setrlimit(resource.RLIMIT_AS, (3 * 2**30, 3 * 2**30))
from lovec.datasets.layouts import read_any
from lovec.types import LovecError
try:
    list(read_any(sys.argv[1]))
except LovecError as error:
    print(error)
"""
    words = [sys.executable, "-c", code, str(tmp_path / "x.jsonl.gz")]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    assert "x.jsonl.gz:1: a line of more than 512 MiB" in done.stdout


def test_binary_columns_of_parquet_are_text_and_maps_are_pairs(tmp_path):
    path = str(tmp_path / "x.parquet")
    columns = {"question": pa.array(["Qé?".encode()], pa.binary()), "m": pa.array([[("a", 1)]], pa.map_("str", "i4"))}
    write_table(pa.table(columns), path)
    assert list(read_rows(path)) == [(1, {"question": "Qé?", "m": [["a", 1]]})]
    write_table(pa.table({"question": pa.array([b"Q?", b"Q\xe9?"], pa.binary())}), path)
    with pytest.raises(LovecError, match=r"x.parquet:2: the column 'question' holds bytes that are not text in UTF-8"):
        list(read_rows(path))
    image = {"question": ["Q?"], "image": [{"bytes": b"\x89PNG\xff", "path": "a.png"}]}
    write_table(pa.table(image), path)  # as data sets of the hub hold pictures
    assert list(read_rows(path)) == [(1, {"question": "Q?", "image": {"path": "a.png"}})]


def test_columns_of_one_name_are_refused_in_parquet(tmp_path):
    table = pa.Table.from_arrays([pa.array([0.1]), pa.array([0.9])], names=["confidence", "confidence"])
    write_table(table, tmp_path / "x.parquet")
    with pytest.raises(
        LovecError, match=r"x.parquet: two columns have the name 'confidence'; give each column its own"
    ):
        list(read_rows(tmp_path / "x.parquet"))


def test_pipes_are_refused_and_not_waited_for(tmp_path):
    for name in ("x.jsonl", "x.csv", "x.parquet"):
        os.mkfifo(tmp_path / name)
        for reader in (read_any, read_rows, read_records):
            with pytest.raises(
                LovecError, match=r"a pipe or a device, which cannot be read twice\); write it to a file"
            ):
                list(reader(tmp_path / name))
    with pytest.raises(LovecError, match="a pipe or a device"):
        read_stored(str(tmp_path / "x.jsonl"), {})
    with pytest.raises(LovecError, match="a pipe or a device"):
        read_bios(tmp_path / "x.jsonl")
    with pytest.raises(LovecError, match="it is a pipe or a device, expected a file"):
        read_popqa(tmp_path / "x.csv")


def test_a_folder_is_no_file(tmp_path):
    with pytest.raises(LovecError, match=r"cannot read .* \(Is a directory\); give a file of JSON Lines, JSON, CSV or"):
        list(read_any(tmp_path))


def test_a_document_is_read_whole_up_to_a_limit(tmp_path, monkeypatch):
    path = tmp_path / "x.json"
    path.write_text(json.dumps([{"question": "Who?"}] * 9))
    monkeypatch.setattr(rows_module, "LARGEST", 2**20)
    assert len(list(read_rows(path))) == 9
    monkeypatch.setattr(rows_module, "LARGEST", 20)
    with pytest.raises(LovecError, match=r"of more than 0 MiB, which has to be read whole; make it JSON Lines"):
        list(read_rows(path))
    lines = tmp_path / "x.jsonl"
    lines.write_text('{"question": "Who?"}\n' * 9)
    assert len(list(read_rows(lines))) == 9  # line by line, without a limit


def test_lines_stream(tmp_path):
    path = tmp_path / "x.jsonl"
    path.write_text('{"question": "Who?"}\n{broken\n')
    reader = read_any(path)
    assert next(reader).question == "Who?"
    with pytest.raises(LovecError, match=r"x\.jsonl:2: not valid JSON"):
        next(reader)


@pytest.mark.parametrize(
    ("name", "text", "kept", "broken"),
    [
        ("x.jsonl", '{\n{"a": 1}\n3\n{"a": 2}\n', [2, 4], ["x.jsonl:1: not valid", "x.jsonl:3: holds 3"]),
        (
            "x.jsonl",
            '{"a": 1}\n{"a": 2,\n{"a": 3}\n{"a": 4,\n{"a": 5}\n{"a": 6}\n',
            [1, 3, 5, 6],
            ["x.jsonl:2: not valid", "x.jsonl:4: not valid"],
        ),
        ("x.json", '[{"a": 1}, 3, {"a": 2}]', [1, 3], ["x.json:2: holds 3"]),
        ("x.csv", "a,b\n1,2\n3\n4,5\n", [2, 4], ["x.csv:3: has 1 cells"]),
    ],
)
def test_a_broken_row_loses_no_other(tmp_path, name, text, kept, broken):
    path = tmp_path / name
    path.write_text(text)
    errors = []
    assert [number for number, _ in read_rows(path, name, errors.append)] == kept
    assert len(errors) == len(broken) and all(
        str(error).startswith(said) for error, said in zip(errors, broken, strict=True)
    )


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("x.txt", "[1] A note on sources.", False),
        ("x.txt", "{curly} prose", False),
        ("x.txt", "", False),
        ("x.txt", "Prose.", False),
        ("x.txt", '[{"text": "A."}]', True),
        ("x", '{"text": "A."}\n{"text": "B."}', True),
        ("x.json", "", True),
        ("x.csv.gz", "", True),
    ],
)
def test_rows_are_told_from_prose(tmp_path, name, text, expected):
    (tmp_path / name).write_text(text)
    assert is_rows(tmp_path / name) is expected


# ---------------------------------------------------------------- the doors of the commands


def test_documents_come_from_rows_of_any_kind(tmp_path):
    (tmp_path / "own.json").write_text(json.dumps([{"text": "Ada ran."}, 3, {"text": " "}, {"text": "Bo sat."}]))
    (tmp_path / "own.csv").write_text("text,question\nCy ran.,Who?\n")
    (tmp_path / "note.txt").write_text("[1] Prose.")
    names = ["own.json", "own.csv", "note.txt"]
    errors = []
    files = [(name, tmp_path / name) for name in names]
    files += [(name, CORPUS / name) for name in ("safe.json", "veriscore.jsonl", "longfact.jsonl")]
    found = list(Documents(files, on_error=errors.append).records(0))
    assert [(record.id, record.answer) for record in found] == [
        ("own.json:1", "Ada ran."),
        ("own.json:4", "Bo sat."),
        ("own.csv:2", "Cy ran."),
        ("note.txt", "[1] Prose."),
        ("who-was-ada/side-1", "Ada wrote. She swam. Hello."),
        ("who-was-bo/side-1", "Bo ran."),
        ("who-was-ada", "Ada wrote. She swam. She flew."),
        ("who-was-bo", "Sorry, I can't do that."),
    ]
    assert found[2].question == "Who?" and found[4].question == "Who was Ada?"
    assert [str(error).partition(",")[0] for error in errors] == [
        "own.json:2: holds 3",
        "own.json:3: has no 'text'",
        "longfact.jsonl:1: has no 'text'",
        "longfact.jsonl:2: has no 'text'",
    ]
    asked = Documents([("longfact.jsonl", CORPUS / "longfact.jsonl")], asking=True).records(0)
    assert [(record.id, record.question) for record in asked] == [
        ("what-is-a-canal", "What is a canal?"),
        ("what-is-a-canal-2", "What is a canal?"),
    ]


def test_label_and_agreement_take_other_projects_files(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    path = str(CORPUS / "veriscore.jsonl")
    words = ["--answers", path, "--oracle", "LabelFile", "--oracle.path", path, "--stages", "sentences,label"]
    assert main(["label", *words, "--out", "out"]) == 0
    labelled = list(read_records("out/labelled.jsonl"))
    assert [[s.factuality for s in record.sentences] for record in labelled] == [[1.0, 0.0, 0.0, None], []]
    assert main(["agreement", "out/labelled.jsonl", path, "--json"]) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["exact"] == 1.0
    assert main(["agreement", path, str(CORPUS / "own.tsv")]) == 1
    assert main(["agreement", path, str(CORPUS)]) == 1
    assert "cannot read" in capsys.readouterr().err.splitlines()[-1]


# ---------------------------------------------------------------- what lovec writes comes back

values = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9), inner, max_size=3),
    max_leaves=5,
)
share = st.none() | st.floats(0, 1)
texts = st.text(min_size=1).map(str.strip).filter(bool)


@st.composite
def own_records(draw):
    data = {
        "id": draw(st.text(min_size=1)),
        "question": draw(texts),
        "evidence": draw(st.lists(st.text(), max_size=2)),
        "answer": draw(st.text()),
        "sentences": [
            {"text": draw(texts), "factuality": draw(share), "confidence": draw(share)}
            for _ in range(draw(st.integers(0, 3)))
        ],
        "meta": draw(st.dictionaries(st.sampled_from(["data", "claims", "response", "scores", "true", "x"]), values)),
    }
    return record_from_dict(data)


@given(records=st.lists(own_records(), min_size=1, max_size=4, unique_by=lambda record: record.id))
@settings(max_examples=200, deadline=None)
def test_what_lovec_writes_comes_back_from_every_container(records, tmp_path_factory):
    folder = tmp_path_factory.mktemp("own")
    write_records(folder / "lines.jsonl", records)
    assert list(read_any(folder / "lines.jsonl")) == records
    (folder / "lines.jsonl.gz").write_bytes(gzip.compress((folder / "lines.jsonl").read_bytes()))
    assert list(read_any(folder / "lines.jsonl.gz")) == records
    (folder / "list.json").write_text(json.dumps(list(map(record_to_dict, records)), indent=1), "utf-8")
    assert list(read_any(folder / "list.json")) == records


def written(path, *rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_a_row_of_lovec_s_own_file_with_an_answer_under_another_key_is_refused(tmp_path):
    path = written(tmp_path / "mixed.jsonl", {"question": "Q1?"}, {"question": "Q2?", "response": "It is."})
    with pytest.raises(LovecError, match=r"mixed\.jsonl:2: has its answer under another key"):
        list(read_any(path))


def test_claims_without_a_text_are_left_out_with_their_scores(tmp_path, caplog):
    claims = [{"subclaim": " One. ", "annotation": "T", "gpt-score": 0.9}, {"subclaim": " ", "gpt-score": 0.1}]
    claims += [{"subclaim": "Two.", "annotation": "F", "gpt-score": 0.4}]
    (record,) = read_any(written(tmp_path / "c.jsonl", {"prompt": "Q?", "claims": claims}), units=True)
    assert [(s.text, s.confidence) for s in record.sentences] == [("One.", 0.9), ("Two.", 0.4)]
    assert record.meta["scores"] == {"gpt-score": [0.9, 0.4]}
    assert "1 claims without a text" in caplog.text
    row = {"prompt": "Q", "response": "A b.", "claims": ["x is y", "", " z. "], "claim_labels": [True, None, False]}
    (record,) = read_any(written(tmp_path / "f.jsonl", row))
    assert record_from_dict(json.loads(json.dumps(record_to_dict(record)))) == record
    assert [(s.text, s.factuality) for s in record.sentences] == [("x is y", 1.0), ("z.", 0.0)]


@pytest.mark.parametrize("inner", [[{"prompt": "inner", "response": "no"}], {"tags": ["x", "y"]}])
def test_a_row_with_a_column_called_data_is_a_row(tmp_path, inner):
    rows = [{"prompt": f"Q{number}", "response": "A b.", "data": inner} for number in range(2)]
    records = list(read_any(written(tmp_path / "d.jsonl", *rows)))
    assert [(r.question, r.answer) for r in records] == [("Q0", "A b."), ("Q1", "A b.")]


def test_a_byte_order_mark_may_stand_on_a_blank_line(tmp_path):
    path = tmp_path / "marked.jsonl"
    path.write_bytes(b"\xef\xbb\xbf\n" + json.dumps({"question": "Q?"}).encode() + b"\n")
    assert [r.question for r in read_any(path)] == ["Q?"] == [r.question for r in read_records(path)]
    assert [r.question for r in read_stored(str(path), {"train": lambda record: record})["train"]] == ["Q?"]


@pytest.mark.parametrize("answer", ["Paris", '["Paris", "paris"]', "['Paris']", ["Paris"], {"value": "Paris"}])
def test_the_aliases_of_a_short_answer_may_be_one_text(tmp_path, answer):
    (record,) = read_triviaqa(written(tmp_path / "t.jsonl", {"question": "Q?", "question_id": "q1", "answer": answer}))
    assert record.meta["aliases"] == ["paris"]
