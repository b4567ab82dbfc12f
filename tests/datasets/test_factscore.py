"""FActScore's labelled biographies: counts of the real file, and errors on other files."""

import json
from collections import Counter
from pathlib import Path

import pytest

from lovec.datamodules import FActScore
from lovec.datasets.factscore import read_factscore
from lovec.datasets.places import fact_places
from lovec.types import LovecError, Sentence, to_rating

FILE = Path(__file__).parents[3] / "shared" / "data" / "factscore_labeled" / "ChatGPT.jsonl"
real = pytest.mark.skipif(not FILE.exists(), reason=f"needs FActScore's labelled ChatGPT.jsonl in {FILE.parent}")

FACTS = [{"text": "x", "label": label} for label in ("S", "S", "NS", "IR")]
ROW = {
    "input": "Question: Tell me a bio of Zoë Ötz.",
    "output": "Zoë sang. She lived.",
    "topic": "Zoë Ötz",
    "cat": ["rare", "Europe/Middle East"],
    "annotations": [
        {"text": " Zoë sang.", "human-atomic-facts": FACTS},
        {"text": "She lived.", "human-atomic-facts": [FACTS[3]]},
        {"text": "Fin.", "human-atomic-facts": None},
    ],
}


def write(path, *rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    return path


def test_a_line_becomes_a_record(tmp_path):
    first, second, third = read_factscore(
        write(tmp_path / "f.jsonl", ROW, {**ROW, "annotations": None}, {**ROW, "topic": "王小明"})
    )
    assert first.id == "zoe-otz" and second.id == "zoe-otz-2" and third.id == "王小明"
    assert first.question == "Tell me a bio of Zoë Ötz."
    assert first.answer == ROW["output"]
    assert [(s.text, s.factuality) for s in first.sentences] == [
        ("Zoë sang.", pytest.approx(2 / 3)),
        ("She lived.", None),
        ("Fin.", None),
    ]
    assert first.meta == {"topic": "Zoë Ötz", "rarity": "rare", "region": "Europe/Middle East", "abstained": False}
    assert second.sentences == () and second.meta["abstained"] and second.answer == ROW["output"]


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"question": "Who?"}, "which has input, output, topic, cat, annotations ('cat' is missing)"),
        ({**ROW, "cat": ["rare"]}, "ValueError"),
        ({**ROW, "annotations": [{"text": "A.", "human-atomic-facts": [{"label": "X"}]}]}, "label 'X', expected S, NS"),
        ({**ROW, "annotations": ["A."]}, "TypeError"),
    ],
)
def test_other_files_are_refused(tmp_path, row, said):
    path = write(tmp_path / "f.jsonl", ROW, row)
    with pytest.raises(LovecError, match=r"f\.jsonl:2: not a row of FActScore") as caught:
        read_factscore(path)
    assert said in str(caught.value)


@real
def test_counts_of_the_real_file():
    records = read_factscore(FILE)
    assert len(records) == len({r.id for r in records}) == 183
    assert sum(r.meta["abstained"] for r in records) == 26
    labels = [s.factuality for r in records for s in r.sentences if s.factuality is not None]
    assert len(labels) == 1209
    assert sum(labels) / len(labels) == pytest.approx(0.596, abs=5e-4)
    assert all(not r.question.startswith("Question") and r.meta["topic"] in r.question for r in records)
    assert sum(r.labelled for r in records) == 146


@real
def test_split_is_stratified_complete_and_seeded():
    def splits(seed):
        data = FActScore(str(FILE), seed=seed)
        return data, {split: data.load(split) for split in ("train", "validation", "test")}

    data, rows = splits(0)
    ids = {split: {r.id for r in records} for split, records in rows.items()}
    assert not ids["train"] & ids["validation"] and not (ids["train"] | ids["validation"]) & ids["test"]
    dropped = data.summary["train"]["a sentence without a label, or no sentence"]
    assert len(ids["train"]) + len(ids["validation"]) + len(ids["test"]) + dropped == 157
    assert len(ids["validation"]) == len(ids["test"]) == 16
    written = Counter(r.meta["rarity"] for r in read_factscore(FILE) if r.sentences)
    for split in ("validation", "test"):
        share = Counter(r.meta["rarity"] for r in rows[split])
        assert all(abs(share[rarity] - n / 10) <= 1 for rarity, n in written.items())
    for r in rows["train"]:
        assert len(r.rejected) == len(r.sentences)
        assert all(w != to_rating(s.factuality) for w, s in zip(r.rejected, r.sentences, strict=True))
    _, again = splits(0)
    _, other = splits(1)
    assert again == rows
    assert {r.id for r in other["test"]} != ids["test"]


@real
def test_all_biographies_can_be_labelled():
    data = FActScore(str(FILE))
    assert data.answered and data.splits[0] == "all"
    assert len(data.questions("all")) == 183 and data.questions("test") == data.load("test")


@real
def test_partly_labelled_passages_are_tested_on_but_not_trained_on():
    partly = {r.id for r in read_factscore(FILE) if r.sentences and not r.labelled}
    tested, trained = set(), set()
    for seed in range(4):
        data = FActScore(str(FILE), seed=seed)
        tested |= {r.id for r in data.load("test")} & partly
        trained |= {r.id for r in data.load("train")} & partly
    assert tested and not trained


def test_a_file_of_abstentions_is_refused(tmp_path):
    path = write(tmp_path / "f.jsonl", {**ROW, "annotations": None})
    with pytest.raises(LovecError, match="has abstentions only"):
        FActScore(str(path)).load("test")


def fact_words(sentence, *facts, topic="Ada Lovelace"):
    """The part of a sentence where each fact stands."""
    places = fact_places(sentence, facts, topic)
    return [place and sentence[slice(*place)] for place in places]


def test_facts_stand_where_their_new_words_are():
    sentence = "She was born in London, England, and later published the first program in 1843."
    assert fact_words(
        sentence,
        "Ada Lovelace was born.",
        "Ada Lovelace was born in London.",
        "London is in England.",
        "She published a program.",
        "The program was published in 1843.",
        "The program was the first.",
        "She was born in London.",
        "She liked horses.",
    ) == ["born", "London", "England", "published the first program", "1843", "first", "born in London", None]


def test_clauses_have_the_labels_of_the_facts_that_they_complete(tmp_path):
    facts = [("She was born in London.", "S"), ("She wrote a program.", "NS"), ("The program was long.", "IR")]
    facts += [("She wrote in 1843.", "S"), ("She was in London and in 1843.", "NS"), ("She was born and wrote.", "NS")]
    annotation = {
        "text": "She was born in London and wrote a long program in 1843.",
        "is-relevant": True,
        "human-atomic-facts": [{"text": text, "label": label} for text, label in facts],
    }
    other = {"text": "She died.", "is-relevant": True, "human-atomic-facts": None}
    row = {"input": "Question: Who was Ada?", "output": "...", "topic": "Ada", "cat": ["rare", "Europe"]}
    path = tmp_path / "ChatGPT.jsonl"
    path.write_text(json.dumps({**row, "annotations": [annotation, other]}))
    (record,) = read_factscore(path, "clause")
    assert record.sentences == (
        Sentence("She was born in London", 1.0, part_of=0),
        Sentence("and wrote a long program in 1843.", 1 / 4, part_of=0),
        Sentence("She died.", None, part_of=1),
    )
    (whole,) = read_factscore(path)
    assert [s.factuality for s in whole.sentences] == [2 / 5, None]
