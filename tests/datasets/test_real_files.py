"""The public data sets, read by the real loaders: from the real files if they are beside the checkout, otherwise from
small files of the exact schema."""

from __future__ import annotations

import json
import os
import tracemalloc
from pathlib import Path

import datasets
import pyarrow
import pytest

from lovec.cli import main
from lovec.datasets import bios, popqa, triviaqa, wikibio, wildhallu
from lovec.datasets.factscore import read_factscore
from lovec.datasets.jsonl import read_records, write_records
from lovec.datasets.layouts import read_any
from lovec.datasets.names import Ids
from lovec.datasets.scored import read_scored
from lovec.encoding import QUESTION
from lovec.metrics.records import passage_pairs, sentence_pairs
from lovec.models.tiny import build_tiny
from lovec.types import LovecError, Scale, to_rating

SHARED = Path(os.environ.get("LOVEC_SHARED_DATA") or Path(__file__).parents[3] / "shared" / "data")


def real(name):
    """The real file, or a skip that names it."""
    path = SHARED / name
    return pytest.param(path, marks=pytest.mark.skipif(not path.exists(), reason=f"needs {name} in {SHARED}"))


@pytest.fixture(autouse=True)
def offline(tmp_path, monkeypatch):
    """No network, and a cache of one's own."""
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    monkeypatch.setattr("datasets.config.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)


def jsonl(path, *rows):
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), "utf-8")
    return path


# ---------------------------------------------------------------- WildHallucinations


def entity(i, **more):
    pages = [
        {"status_code": 200, "text": f"Page one of {i}.", "url": "https://a.example"},
        {"status_code": 404, "text": "Not found.", "url": "https://b.example"},
        {"status_code": 200, "text": " \n", "url": "https://c.example"},
        {"status_code": 200, "text": None, "url": "https://d.example"},
        {"status_code": 200, "text": f"Page two of {i}.", "url": "https://e.example"},
    ]
    return {"entity": f"Entity {i}", "perplexity": 9.5, "info": pages, "category": "geographic", **more}


def wild(path, rows):
    datasets.Dataset.from_list(rows).to_parquet(path)
    return path


def test_wildhallu_keeps_pages_that_were_fetched(tmp_path, caplog):
    rows = [entity(i, wiki=i % 2) for i in range(19)] + [entity(19, info=[], wiki=0)]
    records = list(wildhallu.read_wildhallu(wild(tmp_path / "w.parquet", rows)))
    assert [r.id for r in records] == [f"entity-{i}" for i in range(20)]
    assert records[3].evidence == ("Page one of 3.", "Page two of 3.")
    assert records[3].question == "In a paragraph, could you tell me what you know about Entity 3?"
    assert records[3].meta["category"] == "geographic" and records[3].meta["wiki"] == 1
    assert records[3].meta["domain"] == "WildHallu"
    assert records[19].evidence == ()
    (said,) = [r.message for r in caplog.records if r.name.startswith("lovec")]
    assert said == "1 entities have no page with status 200 and text, so no evidence: Entity 19"


def test_wildhallu_splits(tmp_path):
    path = wild(tmp_path / "w.parquet", [entity(i // 2) for i in range(50)])  # every name twice
    parts = {split: list(wildhallu.read_wildhallu(path, split)) for split in wildhallu.SPLITS}
    assert [len(parts[split]) for split in wildhallu.SPLITS] == [40, 5, 5]
    whole = {r.id: r for r in wildhallu.read_wildhallu(path)}
    assert len(whole) == 50
    assert {r.id: r for records in parts.values() for r in records} == whole  # the same ids, whatever is read
    assert all(r.meta["split"] == split for split, records in parts.items() for r in records)
    with pytest.raises(LovecError, match="'dev', expected one of train, validation, test"):
        wildhallu.read_wildhallu(path, "dev")


def test_the_split_is_that_of_the_authors():
    """8:1:1 as ``datasets`` itself splits 7917 rows with seed 42."""
    rows = wildhallu.split_rows(7917)
    assert {split: len(part) for split, part in rows.items()} == {"train": 6333, "validation": 792, "test": 792}
    assert sorted(row for part in rows.values() for row in part) == list(range(7917))
    table = datasets.Dataset.from_dict({"entity": [f"e{i}" for i in range(7917)]})
    drawn = table.train_test_split(test_size=0.2, seed=42)
    assert [f"e{i}" for i in rows["train"]] == list(drawn["train"]["entity"])
    halves = drawn["test"].train_test_split(test_size=0.5, seed=42)
    assert [f"e{i}" for i in rows["validation"]] == list(halves["train"]["entity"])
    assert rows["test"][:5] == [6009, 7009, 5313, 6265, 6799]
    with pytest.raises(LovecError, match="has 5 rows"):
        wildhallu.split_rows(5)


@pytest.mark.parametrize("kind", ["folder", "jsonl", "page of lists"])
def test_wildhallu_is_read_from_every_form_of_copy(tmp_path, kind):
    rows = [entity(i) for i in range(10)]
    if kind == "folder":  # as `hf download` leaves it
        (tmp_path / "copy" / "data").mkdir(parents=True)
        wild(tmp_path / "copy" / "data" / "train-00000-of-00001.parquet", rows)
        (tmp_path / "copy" / "README.md").write_text("---\nlicense: mit\n---\n")
        path = tmp_path / "copy"
    elif kind == "jsonl":
        path = jsonl(tmp_path / "w.jsonl", *rows)
    else:
        for row in rows:
            row["info"] = {key: [page[key] for page in row["info"]] for key in ("status_code", "text", "url")}
        path = wild(tmp_path / "w.parquet", rows)
    records = list(wildhallu.read_wildhallu(path))
    assert len(records) == 10 and records[9].evidence == ("Page one of 9.", "Page two of 9.")


def test_memory_does_not_grow_with_wildhallu(tmp_path):
    page = {"status_code": 200, "text": "word " * 20_000, "url": "u"}  # 100 kB; 40 MB in all
    path = wild(tmp_path / "w.parquet", [entity(i, info=[page]) for i in range(400)])
    records = wildhallu.read_wildhallu(path, "train")
    next(records)
    tracemalloc.start()
    arrow, highest, count = pyarrow.total_allocated_bytes(), 0, 1
    try:
        for record in records:
            count += len(record.evidence[0]) == 100_000
            highest = max(highest, pyarrow.total_allocated_bytes() - arrow)
        python = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert count == 320
    assert python < 4e6 and highest < 4e6


# ---------------------------------------------------------------- Bios


@pytest.mark.parametrize("path", [real("factscore_labeled/prompt_entities.txt")])
def test_bios_are_the_people_of_factscore(path):
    records = bios.read_bios(path)
    assert len(records) == len({r.id for r in records}) == 183
    assert records[0].question == QUESTION.format(entity="Kang Ji-hwan")
    assert records[0].meta == {"entity": "Kang Ji-hwan", "domain": "Bios"}
    labelled = read_factscore(path.with_name("ChatGPT.jsonl"))
    assert {r.id: r.meta["entity"] for r in records} == {r.id: r.meta["topic"] for r in labelled}


def test_bios_need_names(tmp_path):
    path = tmp_path / "names.txt"
    path.write_text("\ufeffAda Lovelace\n\n  Zoë Ötz \nAda Lovelace\n", "utf-8")
    assert [(r.id, r.meta["entity"]) for r in bios.read_bios(path)] == [
        ("ada-lovelace", "Ada Lovelace"), ("zoe-otz", "Zoë Ötz"),
    ]  # fmt: skip
    hint = r"give FActScore's prompt_entities\.txt \(183 names, one per line\) as path \(--data\.path prompt_entities"
    with pytest.raises(LovecError, match=rf"not on the Hugging Face hub; {hint}"):
        bios.read_bios()
    with pytest.raises(LovecError, match=rf"nowhere\.txt \(No such file or directory\); {hint}"):
        bios.read_bios("nowhere.txt")
    path.write_text('{"name": "Ada"}')
    with pytest.raises(LovecError, match="is JSON, expected names"):
        bios.read_bios(path)


def test_ids_are_unique():
    ids = Ids()
    names = ["Zoë", "Zoe", "Zoe 2", "zoe", "!", "?", "王小明"]
    assert [ids.of(name) for name in names] == [
        "zoe", "zoe-2", "zoe-2-2", "zoe-3", "unnamed", "unnamed-2", "王小明",
    ]  # fmt: skip


# ---------------------------------------------------------------- PopQA

POPQA = (
    "id subj prop obj subj_id prop_id obj_id s_aliases o_aliases s_uri o_uri s_wiki_title o_wiki_title s_pop o_pop "
    "question possible_answers"
).split()


def popqa_row(number, title, subject="X"):
    row = dict.fromkeys(POPQA, "1") | {"id": str(number), "subj": subject, "s_wiki_title": title, "s_pop": "12"}
    return "\t".join(row[name] for name in POPQA)


@pytest.mark.parametrize("path", [real("popqa_longform/popqa_filtered.tsv")])
def test_popqa_asks_about_every_subject_once(path):
    records = popqa.read_popqa(path)
    assert len(records) == len({r.id for r in records}) == len({r.question for r in records}) == 2025
    assert sum(len(r.meta["rows"]) for r in records) == 2127
    graduate = next(r for r in records if r.meta["entity"] == "The Graduate")
    assert graduate.meta == {"entity": "The Graduate", "domain": "PopQA", "popularity": 79381, "rows": [128, 261, 1966]}
    assert records[0].question == "In a paragraph, could you tell me what you know about On the Town (film)?"


def test_popqa_titles_are_texts(tmp_path):
    path = tmp_path / "p.tsv"
    titles = ["1984", "None", "nan", "", '"""Weird Al"" Yankovic"']
    lines = ["\t".join(POPQA), *(popqa_row(i, title, "Subject") for i, title in enumerate(titles))]
    path.write_text("\n".join(lines) + "\n")
    assert [r.meta["entity"] for r in popqa.read_popqa(path)] == [
        "1984", "None", "nan", "Subject", '"Weird Al" Yankovic',
    ]  # fmt: skip
    path.write_text("\n".join([*lines, popqa_row("x", "Y")]) + "\n")
    with pytest.raises(LovecError, match=r"p\.tsv, row 6: id is 'x' and s_pop '12', expected integers"):
        popqa.read_popqa(path)


def test_popqa_as_the_hub_has_it(tmp_path):
    rows = [{**dict.fromkeys(POPQA, "x"), "id": i, "s_pop": 7, "s_wiki_title": f"T{i % 2}"} for i in range(3)]
    datasets.Dataset.from_list(rows).to_parquet(tmp_path / "test.parquet")
    assert [r.meta["rows"] for r in popqa.read_popqa(tmp_path)] == [[0, 2], [1]]


# ---------------------------------------------------------------- TriviaQA


@pytest.mark.parametrize("path", [real("triviaqa_sample/triviaqa_validation_2000.jsonl")])
def test_triviaqa_sample(path):
    records = triviaqa.read_triviaqa(path)
    assert len(records) == 1696  # of 2000 rows: many questions are there for the web and for Wikipedia
    assert all(triviaqa.matches(alias, r.meta["aliases"]) for r in records for alias in r.meta["aliases"])
    assert not any(triviaqa.matches("", r.meta["aliases"]) for r in records)
    first = next(r for r in records if r.id == "qb_1285")
    assert first.meta["aliases"] == ["dave lamb"]
    assert first.question.startswith("Who does the commentary in the UK tv programme")
    assert "from 0 " in first.question and "<confidence> X </confidence>" in first.question


@pytest.mark.parametrize("path", [real("triviaqa_sample/triviaqa_original_format_sample.json")])
def test_answers_are_normalised_as_triviaqa_does(path):
    for row in json.loads(path.read_text())["Data"]:
        answer = row["Answer"]
        assert {triviaqa.normalise(alias) for alias in answer["Aliases"]} == set(answer["NormalizedAliases"])
        assert triviaqa.normalise(answer["Value"]) == answer["NormalizedValue"]


HUB_ANSWER = {
    "aliases": ["Sunset Blvd", "Sunset Blvd."], "normalized_aliases": ["sunset blvd"], "matched_wiki_entity_name": "",
    "normalized_matched_wiki_entity_name": "", "normalized_value": "sunset boulevard", "type": "WikipediaEntity",
    "value": "Sunset Boulevard",
}  # fmt: skip


def test_triviaqa_as_the_hub_has_it(tmp_path):
    """A snapshot with several configurations; a question that is there twice."""
    folder = tmp_path / "trivia_qa"
    (folder / "rc.nocontext").mkdir(parents=True)
    rows = [
        {"question": "Which musical? ", "question_id": "tc_33", "question_source": "", "answer": HUB_ANSWER},
        {"question": "Which musical?", "question_id": "tc_33", "question_source": "",
         "answer": {**HUB_ANSWER, "aliases": ["The Boulevard"], "normalized_aliases": ["boulevard"]}},
    ]  # fmt: skip
    for split in ("train", "validation"):
        datasets.Dataset.from_list(rows).to_parquet(folder / "rc.nocontext" / f"{split}-00000-of-00001.parquet")
    (folder / "README.md").write_text(
        "---\nconfigs:\n- config_name: rc.nocontext\n  data_files:\n"
        "  - split: train\n    path: rc.nocontext/train-*\n"
        "  - split: validation\n    path: rc.nocontext/validation-*\n---\n"
    )
    (record,) = triviaqa.read_triviaqa(folder)
    assert record.meta == {
        "aliases": ["sunset blvd", "sunset boulevard", "boulevard"],
        "bare_question": "Which musical?",
        "domain": "TriviaQA",
    }
    assert record.question == triviaqa.short_form("Which musical?")
    withheld = {**rows[0], "answer": {**HUB_ANSWER, "aliases": [], "normalized_aliases": [], "value": ""}}
    with pytest.raises(LovecError, match=r"'tc_33' of .* has no answer; take the validation split"):
        triviaqa.read_triviaqa(jsonl(tmp_path / "t.jsonl", withheld))


def test_triviaqa_ids_may_be_numbers(tmp_path):
    rows = [{"question": f"Which {n}?", "question_id": n, "answer": HUB_ANSWER} for n in (7, 0)]
    path = jsonl(tmp_path / "x.jsonl", *rows)
    for records in (read_any(path), triviaqa.read_triviaqa(path)):
        assert [(r.id, r.question) for r in records] == [(str(n), triviaqa.short_form(f"Which {n}?")) for n in (7, 0)]


@pytest.mark.parametrize(
    ("answer", "right"),
    [
        ("Sunset Boulevard", True),
        ("the SUNSET boulevard!", True),
        ("Sunset", True),  # 2 of 3: 0.67
        ("Sunset Sunset Sunset", True),  # sets: said once
        ("It is Sunset Boulevard", True),  # 4 of 6
        ("I think it is Sunset Boulevard in Hollywood", False),  # 4 of 10
        ("Sunset Park Avenue Hotel", False),  # 2 of 6
        ("Hill Boulevard", False),  # exactly 0.5 is not enough
        ("Cats", False),
        ("", False),
        ("the", False),
    ],
)
def test_matches(answer, right):
    assert triviaqa.matches(answer, ["Sunset Boulevard", "unrelated words here"]) is right


def test_the_question_asks_for_the_levels_of_the_scale():
    text = triviaqa.short_form("Which musical?", Scale(("no", "perhaps", "yes")))
    assert "as one of no, perhaps, yes, from no (almost certainly wrong) to yes (almost certainly right)" in text
    assert "as a whole number from 0 (almost certainly wrong) to 100" in triviaqa.short_form(
        "?", Scale(tuple(map(str, range(101))))
    )


def test_matches_of_unusual_aliases():
    assert triviaqa.matches("A", ["a"]) and triviaqa.matches("The A-Team", ["A Team"])
    assert not triviaqa.matches("", [""]) and not triviaqa.matches("x", [])


# ---------------------------------------------------------------- WikiBio


@pytest.mark.parametrize("path", [real("wikibio_gpt3_human/dataset-generated.json")])
def test_wikibio(path):
    records = wikibio.read_wikibio(path)
    assert len(records) == len({r.id for r in records}) == 119
    labels = [s.factuality for r in records for s in r.sentences]
    assert [labels.count(f) for f in (1.0, 0.5, 0.0)] == [254, 327, 378]
    assert all(r.labelled and len(r.evidence) == 1 and len(r.meta["samples"]) == 10 for r in records)
    assert records[0].question == QUESTION.format(entity="John Russell Reynolds")
    assert records[0].evidence[0].startswith("Sir John Russell Reynolds, 1st Baronet")
    subjects = {r.meta["entity"] for r in records}
    assert {"Pattern is Movement", "Carter Henry Harrison Sr.", "Zhuang of Chu", "Clay timpani"} <= subjects
    assert max(map(len, subjects)) <= 40
    assert all(" ".join(s.text for s in r.sentences)[:40] == r.answer[:40] for r in records)


@pytest.mark.parametrize("path", [real("wikibio_gpt3_human/selfcheck_reference_scores.json")])
def test_wikibio_reproduces_published_metrics(path):
    """Confidence = 1 - SelfCheck-NLI's score gives the Brier score and correlations that the data set's notes state."""
    from dataclasses import replace

    scores = {f"wikibio-{row['wiki_bio_test_idx']}": row["scores"]["nli"] for row in json.loads(path.read_text())}
    records = [
        replace(
            r, sentences=tuple(replace(s, confidence=1 - x) for s, x in zip(r.sentences, scores[r.id], strict=True))
        )
        for r in wikibio.read_wikibio(path.with_name("dataset-generated.json"))
    ]
    c, f, missing = sentence_pairs(records, "stated")
    assert missing == 0 and sum((a - b) ** 2 for a, b in zip(c, f, strict=True)) / len(c) == pytest.approx(
        0.1554, abs=5e-5
    )
    from scipy.stats import spearmanr

    assert spearmanr(c, f).statistic == pytest.approx(0.5516, abs=5e-5)
    assert spearmanr(*passage_pairs(records, "stated")[:2]).statistic == pytest.approx(0.7792, abs=5e-5)


ORIGINAL = {
    "gpt3_text": "Ada is a poet. She was born in 1815.", "wiki_bio_text": "Ada wrote programs.",
    "gpt3_sentences": ["Ada is a poet.", "She was born in 1815. "], "annotation": ["major_inaccurate", "accurate"],
    "wiki_bio_test_idx": 7, "gpt3_text_samples": ["Ada was.", "Ada is."],
}  # fmt: skip


def test_wikibio_as_the_hub_has_it(tmp_path):
    datasets.Dataset.from_list([ORIGINAL]).to_parquet(tmp_path / "evaluation-00000-of-00001.parquet")
    (record,) = wikibio.read_wikibio(tmp_path)
    assert (record.id, record.meta["entity"], record.meta["samples"]) == ("wikibio-7", "Ada", ["Ada was.", "Ada is."])
    assert [(s.text, s.factuality) for s in record.sentences] == [
        ("Ada is a poet.", 0.0),
        ("She was born in 1815.", 1.0),
    ]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"annotation": ["accurate"]}, r"row 1: the labels of 2 sentences are \['accurate'\]"),
        ({"annotation": ["accurate", "fine"]}, r"row 1: .*'fine'\], expected one of accurate, minor_inaccurate"),
        ({"gpt3_text": None}, "row 1: no column gpt3_text or main_passage"),
    ],
)
def test_broken_passages_are_named(tmp_path, change, said):
    with pytest.raises(LovecError, match=said):
        wikibio.read_wikibio(jsonl(tmp_path / "w.jsonl", ORIGINAL | change))


# ---------------------------------------------------------------- labels of claims and sentences


@pytest.mark.parametrize(
    ("path", "answers", "true", "false"),
    [
        pytest.param(*real(name).values, *counts, marks=real(name).marks)
        for name, counts in {
            "conformal_bios/factscore_processed.json": (421, 9709, 5880),
            "factcheck_gpt/Factbench.jsonl": (328, 1034, 362),
            "halueval2/human-Open-Domain.json": (200, 18, 276),
            "halueval2/human-Science.json": (200, 504, 492),
            "conformal_subclaims/factscore.jsonl": (50, 287, 121),
            "conformal_subclaims/nq.jsonl": (50, 276, 18),
        }.items()
    ],
)
def test_labels_of_claims_beside_prompt_and_response_are_read(path, answers, true, false):
    records = list(read_any(path))
    labels = [sentence.factuality for record in records for sentence in record.sentences]
    assert (len(records), labels.count(1.0), labels.count(0.0)) == (answers, true, false)
    (method,) = read_scored(path).methods
    assert len(method.factuality) == true + false and method.factuality.sum() == true


@pytest.mark.parametrize("path", [real("factcheck_gpt/factcheck-GPT-benchmark.jsonl")])
def test_the_benchmark_of_factcheck_gpt_has_labelled_sentences(path):
    records = list(read_any(path))
    assert len(records) == 94 and all(record.answer and record.sentences for record in records)
    assert sum(sentence.factuality is not None for record in records for sentence in record.sentences) == 277
    assert sum(bool(record.evidence) for record in records) == 92  # the others have no sentence that needs a check
    supported = [
        (support, sentence.factuality)
        for record in records
        for support, sentence in zip(record.meta.get("supported", ()), record.sentences, strict=False)
        if support is not None
    ]
    assert len(supported) == 277 and supported.count((1.0, 1.0)) == 71 and supported.count((0.0, 1.0)) == 15


# ---------------------------------------------------------------- what is not there


@pytest.mark.parametrize(
    ("read", "name", "folder", "files"),
    [
        (wildhallu.read_wildhallu, "wentingzhao/WildHallucinations", "WildHallucinations", r"\.parquet or \.jsonl"),
        (popqa.read_popqa, "akariasai/PopQA", "PopQA", r"\.tsv or \.parquet"),
        (triviaqa.read_triviaqa, "mandarjoshi/trivia_qa", "trivia_qa", r"\.parquet or \.jsonl"),
        (wikibio.read_wikibio, "potsawee/wiki_bio_gpt3_hallucination", "wiki_bio_gpt3", r"\.parquet or \.jsonl"),
    ],
)
def test_offline_says_what_to_put_where(tmp_path, read, name, folder, files):
    with pytest.raises(
        LovecError, match=f"^{name} is neither in the cache of datasets nor can it be downloaded"
    ) as caught:
        read()
    said = str(caught.value)
    assert "\n" not in said and f"`hf download {name} --repo-type dataset --local-dir {folder}" in said
    assert f"(--data.path {folder}" in said
    with pytest.raises(
        LovecError, match=rf"cannot read nowhere\.parquet as {name} .*one {files} file with the columns"
    ):
        read("nowhere.parquet")
    with pytest.raises(LovecError, match=r"ends in \.txt, expected one of \.parquet, \.jsonl"):
        read("nowhere.txt")
    with pytest.raises(LovecError, match=r"other\.jsonl has no column .*, only question; expected the columns of"):
        read(jsonl(tmp_path / "other.jsonl", {"question": "Who?"}))
    (tmp_path / "broken.jsonl").write_text("{not json\n")
    with pytest.raises(LovecError, match=r"cannot read .*broken\.jsonl as"):
        read(tmp_path / "broken.jsonl")


# ---------------------------------------------------------------- the authors' layouts

QUESTION_ADA = QUESTION.format(entity="Ada Lovelace")
TAGGED = "Ada wrote. <confidence> 9 </confidence> She swam. <confidence> 0 </confidence>"
WRONG = "Ada wrote. <confidence> 2 </confidence> She swam. <confidence> 10 </confidence>"
DEMONSTRATION = {
    "prompt": QUESTION_ADA, "model_output": "Ada wrote. She swam.", "is_abstained": False, "ratings_openai": [9, 0],
    "rated_output_openai": TAGGED,
}  # fmt: skip
ABSTAINED = {
    "prompt": QUESTION_ADA, "model_output": "I don't know.", "is_abstained": True, "ratings_openai": [],
    "rated_output_openai": "",
}  # fmt: skip
PAIR = {"prompt": QUESTION_ADA, "chosen": TAGGED, "rejected": WRONG}
ONLINE = {"entity": "Ada Lovelace", "evidence": "Ada wrote programs.", "base_prediction": "Ada wrote."}
OUTPUTS = {"entity": "Ada Lovelace", "prompt": QUESTION_ADA, "model_outputs": [f"{TAGGED} And more.", "Ada wrote."]}


def test_demonstrations_of_the_authors(tmp_path):
    first, second = read_any(jsonl(tmp_path / "a.jsonl", DEMONSTRATION, ABSTAINED))
    assert (first.id, first.question, first.answer) == ("ada-lovelace", QUESTION_ADA, "Ada wrote. She swam.")
    assert [(s.text, s.factuality, s.confidence) for s in first.sentences] == [
        ("Ada wrote.", 0.9, None), ("She swam.", 0.0, None),
    ]  # fmt: skip
    assert second.id == "ada-lovelace-2" and second.sentences == () and second.answer == "I don't know."
    assert [r.meta["abstained"] for r in (first, second)] == [False, True]


def test_pairs_of_the_authors(tmp_path):
    (record,) = read_any(jsonl(tmp_path / "a.jsonl", PAIR))
    assert record.labelled and record.rejected == (2, 10)
    assert [to_rating(s.factuality) for s in record.sentences] == [9, 0]


def test_prompts_and_outputs_of_the_authors(tmp_path):
    path = tmp_path / "a.json"
    path.write_text(json.dumps([ONLINE, OUTPUTS]))  # a list, as well as lines
    online, tagged, bare = read_any(path)
    assert online.question == QUESTION_ADA and online.evidence == ("Ada wrote programs.",)
    assert online.answer == "Ada wrote." and online.sentences == ()
    assert tagged.id == "ada-lovelace-2/sample-1" and bare.id == "ada-lovelace-2/sample-2"
    assert [(s.text, s.score, s.confidence) for s in tagged.sentences] == [
        ("Ada wrote.", 9, 0.9), ("She swam.", 0, 0.0), ("And more.", None, None),
    ]  # fmt: skip
    assert (bare.answer, bare.sentences) == ("Ada wrote.", ())
    write_records(tmp_path / "copy.jsonl", [online, tagged, bare])
    assert list(read_records(tmp_path / "copy.jsonl")) == [online, tagged, bare]


@pytest.mark.parametrize(
    ("row", "said"),
    [
        (
            {"entity": "Ada", "evidence": "Ada wrote."},
            "no known layout has the keys entity, evidence; the nearest, .* GRPO, also needs 'base_prediction'",
        ),
        (DEMONSTRATION | {"ratings_openai": [9]}, r"ratings_openai is \[9\], but the tags"),
        (DEMONSTRATION | {"rated_output_openai": ""}, "not tagged throughout: no tag at all"),
        (DEMONSTRATION | {"rated_output_openai": "Ada wrote."}, "not tagged throughout: the answer ends"),
        (
            DEMONSTRATION | {"rated_output_openai": f"{TAGGED} More."},
            "not tagged throughout: the answer ends",
        ),
        (DEMONSTRATION | {"ratings_openai": 9}, "TypeError"),
        (DEMONSTRATION | {"ratings_openai": [9, 3]}, r"ratings_openai is \[9, 3\], but the tags"),
        (PAIR | {"chosen": "A. <confidence> 11 </confidence>"}, "score is '11', expected an integer"),
        (PAIR | {"rejected": "Ada swam. <confidence> 1 </confidence>"}, "different answers"),
    ],
)
def test_broken_lines_of_the_authors_are_named(tmp_path, row, said):
    with pytest.raises(LovecError, match=rf"a\.jsonl:2: .*{said}"):
        list(read_any(jsonl(tmp_path / "a.jsonl", DEMONSTRATION, row)))


def test_any_layout_is_known_by_its_keys(tmp_path):
    path = tmp_path / "x.jsonl"
    for rows, count in (([{"question": "Who?"}], 1), ([PAIR], 1), ([OUTPUTS], 2), ([ORIGINAL], 1)):
        assert len(list(read_any(jsonl(path, *rows)))) == count
    labels = {"input": "Question: Who?", "output": "A.", "topic": "A", "cat": ["rare", "x"], "annotations": None}
    assert next(read_any(jsonl(path, labels))).meta["abstained"]
    with pytest.raises(
        LovecError, match=r"x\.jsonl:1: no known layout has the keys ask; the nearest, lovec, also needs 'question'"
    ):
        list(read_any(jsonl(path, {"ask": "Who?"})))
    with pytest.raises(LovecError, match=r"cannot read nowhere\.jsonl"):
        list(read_any("nowhere.jsonl"))


def test_training_on_pairs_of_the_authors(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    model = str(build_tiny("llama", tmp_path / "model"))
    jsonl(tmp_path / "pairs.jsonl", *[PAIR] * 4)
    (tmp_path / "fresh.yaml").write_text("model: {init_args: {policy: {adapter: null}}}")
    words = ["--config", "dpo.yaml", "--config", "fresh.yaml", "--model.policy.model", model]
    words += ["--data", "Preferences", "--data.path", "pairs.jsonl", "--data.val_fraction", "0"]
    words += ["--data.batch_size", "2", "--trainer.max_steps", "2", "--trainer.limit_val_batches", "0"]
    assert main(["fit", *words]) == 0
    assert (tmp_path / "runs/dpo/adapter/adapter_model.safetensors").exists()
