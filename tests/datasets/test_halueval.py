"""HaluEval 2.0: where an answer states the claims about it, and the labels that sentences and clauses get from them."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from lovec.datamodules import HaluEval
from lovec.datasets.halueval import read_halueval
from lovec.datasets.places import fact_sentences
from lovec.types import LovecError, Sentence

DATA = Path(os.environ.get("LOVEC_SHARED_DATA", Path(__file__).parents[3] / "shared" / "data")) / "halueval2"
real = pytest.mark.skipif(not DATA.exists(), reason="HaluEval 2.0 is not beside the checkout")

ROW = {
    "id": 0,
    "user_query": "Who was Ada?",
    "chatgpt_response": "# Her life\n\nAda was born in London and wrote a long program in 1843. She swam. "
    "She flew home.",
    "chatgpt_fact": [
        "Ada Lovelace was born in London.",
        "Ada wrote a program.",
        "In 1843 she wrote.",
        "Bo sat on ice.",
    ],
    "human_judge": ["true", "false", "true", "false"],
}


def saved(path: Path, *rows: Any) -> str:
    path.write_text(json.dumps(rows))
    return str(path)


def test_a_fact_is_of_the_sentence_that_has_most_of_its_words() -> None:
    sentences = ["Ada was born in London.", "Ada wrote programs.", "Ada wrote a program."]
    facts = ["Lovelace wrote programs.", "Born in Greater London.", "It rained.", "Ada sang long songs.", "And of the."]
    # The third and the fourth share fewer than half of their words with any; the last has none that tell anything.
    assert fact_sentences(sentences, facts) == [1, 0, None, None, None]


def test_sentences_and_clauses_have_the_labels_of_their_claims(tmp_path: Path) -> None:
    path = saved(tmp_path / "human-Science.json", ROW)
    (whole,) = read_halueval(path)
    assert [(s.text, s.factuality) for s in whole.sentences] == [
        ("Ada was born in London and wrote a long program in 1843.", pytest.approx(2 / 3)),
        ("She swam.", None),
        ("She flew home.", None),
    ]
    (clauses,) = read_halueval(path, "clause")
    assert clauses.sentences == (
        Sentence("Ada was born in London", 1.0, part_of=0),
        Sentence("and wrote a long program in 1843.", 0.5, part_of=0),
        Sentence("She swam.", None, part_of=1),
        Sentence("She flew home.", None, part_of=2),
    )
    assert (clauses.question, clauses.answer) == ("Who was Ada?", ROW["chatgpt_response"])
    assert clauses.meta == {"judged by": "human"}


def test_a_folder_is_all_files_that_people_judged(tmp_path: Path) -> None:
    for name in ("human-Science", "human-Finance", "model-Science"):
        saved(tmp_path / f"{name}.json", ROW)
    records = read_halueval(tmp_path)
    assert [record.id for record in records] == ["who-was-ada", "who-was-ada-2"]
    (tmp_path / "empty").mkdir()
    with pytest.raises(LovecError, match=r"has no file human-\*\.json, expected those of HaluEval 2\.0"):
        read_halueval(tmp_path / "empty")


@real
def test_the_real_answers_are_split_and_labelled() -> None:
    data = HaluEval(str(DATA), unit="clause")
    parts = {split: data.load(split) for split in ("train", "validation", "test")}
    assert len(data.questions("all")) == 1000
    assert len(parts["validation"]) == len(parts["test"]) == 100
    assert all(record.labelled and record.rejected is not None for record in parts["train"])
    ids = [record.id for records in parts.values() for record in records]
    assert len(set(ids)) == len(ids)
    labels = [s.factuality for record in data.questions("all") for s in record.sentences]
    assert sum(label is not None for label in labels) == 3301
