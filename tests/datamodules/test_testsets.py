"""The public test sets: labelled answers from disk, questions for an oracle, and metrics of short answers."""

from __future__ import annotations

import json
import os
import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import datasets
import pytest
from jsonargparse import ArgumentParser
from tinyrun import Lengths, module, sft_adapter, tiny, trainer

from lovec.cli import main
from lovec.datamodules import Bios, Demonstrations, PopQA, RecordsDataModule, TriviaQA, WikiBio, WildHallu
from lovec.datasets.jsonl import read_records, write_records
from lovec.datasets.popqa import HUB as POPQA
from lovec.metrics.results import read_results
from lovec.modules import DPO, SFT, EvaluationConfig
from lovec.oracles import TriviaQAOracle
from lovec.types import LovecError, Record, Scale, Sentence, to_rating

SHARED = Path(os.environ.get("LOVEC_SHARED_DATA") or Path(__file__).parents[3] / "shared" / "data")
HUMAN = SHARED / "factscore_labeled" / "ChatGPT.jsonl"


@pytest.fixture(autouse=True)
def offline(tmp_path, monkeypatch):
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    monkeypatch.setattr("datasets.config.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)


def answer(name, *labels, **meta):
    sentences = tuple(Sentence(f"Sentence {i} of {name}.", f) for i, f in enumerate(labels))
    return Record(name, f"Who is {name}?", answer=" ".join(s.text for s in sentences), sentences=sentences, meta=meta)


@pytest.fixture
def labels(tmp_path):
    path = tmp_path / "bios.jsonl"
    write_records(path, [answer("ada", 1.0, 0.3), answer("bob", 0.0, None, domain="rare"), answer("cy", domain=None)])
    return path


@pytest.fixture
def names(tmp_path):
    path = tmp_path / "prompt_entities.txt"
    path.write_text("Ada Lovelace\nCharles Babbage\n")
    return path


@pytest.fixture
def trivia(tmp_path):
    path = tmp_path / "trivia.jsonl"
    rows = [
        {"question": f"Which town is number {i}?", "question_id": f"q{i}", "answer": [f"town {i}", "Bath"]}
        for i in range(4)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture
def wild(tmp_path):
    pages = [{"status_code": 200, "text": "A page.", "url": "u"}]
    rows = [{"entity": f"E{i}", "info": pages, "category": "x", "perplexity": 1.0} for i in range(20)]
    path = tmp_path / "wild.parquet"
    datasets.Dataset.from_list(rows).to_parquet(path)
    return path


# ---------------------------------------------------------------- records


def test_labelled_answers_are_tested_on(labels, tmp_path):
    data = Bios(labels=str(labels))
    data.setup("test")
    rows = data.loaded("test")
    assert [r.id for r in rows] == ["ada", "bob", "cy"]
    assert data.domains == ("Bios", "rare")  # the domain of a record stays
    assert data.load("validation") == [] and data.oracle is None
    write_records(tmp_path / "dev.jsonl", [answer("eve", 0.5)])
    assert [r.id for r in Bios(str(labels), val_labels=str(tmp_path / "dev.jsonl")).load("validation")] == ["eve"]


def test_labelled_answers_are_read_like_those_to_train_on(tmp_path):
    """A heading states nothing, and a tag is no part of a sentence."""
    path = tmp_path / "labelled.jsonl"
    heading = Sentence("Life", kind="heading")
    tagged = replace(answer("ada", 1.0), sentences=(heading, Sentence("She wrote. <confidence> 9 </confidence>", 1.0)))
    write_records(path, [tagged, replace(tagged, id="b", meta={"split": "train"})])
    reference = Demonstrations(str(path), test_path=str(path))
    reference.setup("test")
    (expected,) = {record.sentences for record in reference.loaded("test")}
    assert [sentence.text for sentence in expected] == ["She wrote."]
    for cls in (Bios, PopQA, TriviaQA, WildHallu, WikiBio):
        data = cls(labels=str(path), val_labels=str(path))
        data.setup("test")
        assert {record.sentences for record in data.loaded("test")} == {expected}, cls
    data = WildHallu(labels=str(path))
    data.setup("fit")
    assert [record.sentences for record in data.loaded("train")] == [expected]


def test_questions_get_evidence_from_a_file(names, tmp_path, caplog):
    pages = tmp_path / "pages.jsonl"
    pages.write_text('{"title": "Ada Lovelace", "text": "Ada wrote programs."}\n')
    ada, charles = Bios(path=str(names), evidence=str(pages)).load("test")
    assert ada.question == "In a paragraph, could you tell me what you know about Ada Lovelace?"
    assert ada.evidence == ("Ada wrote programs.",) and charles.evidence == ()
    assert "record charles-babbage gets no evidence: there is no page 'Charles Babbage'" in caplog.text
    assert [r.evidence for r in Bios(path=str(names)).load("test")] == [(), ()]


def test_labelled_answers_get_evidence_from_a_file(tmp_path):
    path, pages = tmp_path / "labelled.jsonl", tmp_path / "pages.jsonl"
    records = [answer("ada", 1.0, entity="Ada Lovelace"), replace(answer("bob", 0.0), evidence=("Own.",))]
    write_records(path, [*records, answer("cy", 1.0, entity="Ada Lovelace", split="train")])
    pages.write_text('{"title": "Ada Lovelace", "text": "Ada wrote."}\n{"id": "bob", "text": "Bob."}\n')
    for cls in (Bios, PopQA, WildHallu, WikiBio):
        data = cls(labels=str(path), evidence=str(pages), val_labels=str(path))
        assert [r.evidence for r in data.load("test")][:2] == [("Ada wrote.",), ("Own.",)], cls
        assert data.load("validation")[0].evidence == ("Ada wrote.",), cls
    assert [r.evidence for r in WildHallu(str(path), evidence=str(pages)).load("train")] == [("Ada wrote.",)]
    assert Bios(labels=str(path)).load("test")[0].evidence == ()
    with pytest.raises(LovecError, match=r"cannot read nowhere\.db"):
        Bios(labels=str(path), evidence="nowhere.db").load("test")


def test_popqa_and_triviaqa_have_questions(tmp_path, trivia):
    path = tmp_path / "popqa.tsv"
    path.write_text("\t".join(POPQA.columns) + "\n1\tOn the Town\tOn the Town (film)\t5\n")
    (record,) = PopQA(path=str(path)).load("test")
    assert record.meta["domain"] == "PopQA" and "(film)" in record.question
    data = TriviaQA(path=str(trivia))
    data.setup("test")
    assert len(data.loaded("test")) == 4 and data.domains == ("TriviaQA",)
    assert isinstance(data.oracle, TriviaQAOracle)


def test_wildhallu_has_all_three_splits(wild, tmp_path):
    data = WildHallu(path=str(wild))
    parts = {split: data.load(split) for split in ("train", "validation", "test")}
    assert [len(rows) for rows in parts.values()] == [16, 2, 2]
    assert all(r.evidence == ("A page.",) and not r.sentences for rows in parts.values() for r in rows)
    # One labelled file of everything goes back to the splits it came from.
    path = tmp_path / "labelled.jsonl"
    everything = [r for rows in parts.values() for r in rows]
    labelled = [replace(r, sentences=(Sentence("A.", None if i == 0 else 0.7),)) for i, r in enumerate(everything)]
    write_records(path, [*labelled, answer("mine", 0.2)])
    data = WildHallu(labels=str(path), seed=3)
    loaded = {split: data.load(split) for split in parts}
    assert {r.id for r in loaded["train"]} == {r.id for r in parts["train"][1:]}
    assert all(r.rejected and r.rejected[0] != to_rating(0.7) for r in loaded["train"])
    assert data.summary["train"]["a sentence without a label, or no sentence"] == 1
    assert [r.id for r in loaded["validation"]] == [r.id for r in parts["validation"]]
    assert [r.id for r in loaded["test"]] == [*(r.id for r in parts["test"]), "mine"]
    other = WildHallu(labels=str(path), val_labels=str(path))
    assert len(other.load("validation")) == 21
    questions = WildHallu(path=str(wild)).questions("all")  # what `lovec label` begins with
    assert {r.id for r in questions} == {r.id for r in everything}


def test_wikibio_is_tested_on_its_human_labels(tmp_path):
    row = {
        "gpt3_text": "Ada is a poet. She was born in 1815.", "gpt3_text_samples": ["Ada was."],
        "gpt3_sentences": ["Ada is a poet.", "She was born in 1815."], "annotation": ["major_inaccurate", "accurate"],
        "wiki_bio_text": "Ada wrote programs.", "wiki_bio_test_idx": 7,
    }  # fmt: skip
    path = tmp_path / "wikibio.jsonl"
    path.write_text(json.dumps(row) + "\n")
    data = WikiBio(path=str(path))
    data.setup("test")
    (record,) = data.loaded("test")
    assert [s.factuality for s in record.sentences] == [0.0, 1.0] and record.evidence == ("Ada wrote programs.",)
    assert data.domains == ("WikiBio",) and data.answered


def test_triviaqa_asks_for_the_scale_of_the_module(trivia):
    data = TriviaQA(path=str(trivia))
    data.trainer = SimpleNamespace(lightning_module=SimpleNamespace(scale=Scale(("no", "yes"))))
    assert "as one of no, yes, from no" in data.load("test")[0].question


def test_clear_errors(labels, names, tmp_path):
    for data in (Bios(str(labels)), PopQA(str(labels)), TriviaQA(str(labels))):
        with pytest.raises(LovecError, match=f"{type(data).__name__} is for testing only; train on labelled answers"):
            data.load("train")
    with pytest.raises(LovecError, match=r"give FActScore's prompt_entities\.txt"):
        Bios().setup("test")
    with pytest.raises(LovecError, match="akariasai/PopQA is neither in the cache"):
        PopQA().setup("test")
    bare = tmp_path / "bare.jsonl"
    write_records(bare, [answer("cy", None)])
    with pytest.raises(LovecError, match=r"bare\.jsonl has no labelled sentence; label it with `lovec label`"):
        Bios(str(bare)).setup("test")
    with pytest.raises(LovecError, match=r"cannot read nowhere\.db"):
        Bios(path=str(names), evidence="nowhere.db").load("test")


@pytest.mark.parametrize("name", ["Bios", "PopQA", "TriviaQA", "WikiBio", "WildHallu"])
def test_command_line_knows_every_option(name):
    parser = ArgumentParser(exit_on_error=False)
    parser.add_subclass_arguments(RecordsDataModule, "data")
    words = [f"--data={name}", "--data.labels=a.jsonl", "--data.path=b", "--data.val_labels=c", "--data.seed=5"]
    settings = parser.parse_args([*words, *([] if name == "TriviaQA" else ["--data.evidence=d"])]).data
    assert settings.class_path == f"lovec.datamodules.{name}"
    assert (settings.init_args.labels, settings.init_args.seed) == ("a.jsonl", 5)


# ---------------------------------------------------------------- the oracle of short answers


def test_short_answers_are_right_or_wrong():
    oracle = TriviaQAOracle()
    aliases = {"aliases": ["town 1", "bath"]}
    records = [
        Record("a", "q", sentences=(Sentence("Bath"),), meta=aliases),
        Record("b", "q", sentences=(Sentence("London."), Sentence("Bath")), meta=aliases),
        Record("c", "q", meta=aliases),
    ]
    assert oracle.rate(records) == [[1.0], [0.0, None], []]
    with pytest.raises(LovecError, match=r"record 'd' has no meta\.aliases"):
        oracle.rate([Record("d", "q", sentences=(Sentence("x"),))])


# ---------------------------------------------------------------- whole tests


def test_lovec_test_on_labelled_bios(labels, tmp_path, monkeypatch, capsys, caplog):
    monkeypatch.chdir(tmp_path)
    model = tiny(tmp_path)
    sft_adapter(tmp_path / "runs/dpo", model)
    words = ["test", "--config", "dpo.yaml", "--model.policy.model", model, "--data", "Bios"]
    assert main([*words, "--data.labels", "bios.jsonl"]) == 0
    rows = read_results(tmp_path / "runs/dpo/test/bios/results.json").rows
    assert {(r.method, r.domain, r.mode) for r in rows} == {
        (method, domain, "iterative") for method in ("DPO", "Vanilla") for domain in ("Bios", "rare")
    }
    counts = {r.domain: r.n for r in rows if (r.method, r.level, r.readout) == ("DPO", "sentence", "mean")}
    assert counts == {"Bios": 2, "rare": 1}
    assert re.search("DPO +Bios", capsys.readouterr().out)
    assert "free-form tagging is left out" in caplog.text
    assert "the row 'Best constant' is left out" in caplog.text
    tagged = list(read_records(tmp_path / "runs/dpo/test/bios/dpo.iterative.jsonl"))
    assert [[s.factuality for s in r.sentences] for r in tagged] == [[1.0, 0.3], [0.0, None]]


@pytest.mark.skipif(not HUMAN.exists(), reason=f"needs FActScore's labelled ChatGPT.jsonl in {HUMAN.parent}")
def test_bios_accept_the_labelled_files_of_factscore():
    data = Bios(labels=str(HUMAN))
    data.setup("test")
    assert len(data.loaded("test")) == 183 and data.domains == ("Bios",)
    assert sum(s.factuality is not None for r in data.loaded("test") for s in r.sentences) == 1209


def test_the_best_constant_is_chosen_on_val_labels(labels, tmp_path):
    model = tiny(tmp_path)
    sft_adapter(tmp_path, model)
    write_records(tmp_path / "dev.jsonl", [answer("eve", 0.4, 0.4)])
    run = trainer(tmp_path)
    made = module(DPO, model, evaluation=EvaluationConfig(modes=["iterative"], vanilla=False))
    run.test(made, Bios(str(labels), val_labels=str(tmp_path / "dev.jsonl")), verbose=False)
    constant = next(r for r in made.results if r.method == "Best constant" and r.domain == "Bios")
    assert constant.metrics["mean_confidence"] == 0.4
    assert constant.metrics["auroc"] == 0.5 and constant.metrics["graded"] > 0


class Writer:
    """An engine that writes given answers; scoring is not asked for."""

    prefill_tokens, max_rows, context_length = 0, 8, None

    def __init__(self, encoder, answers):
        self.encoder, self.answers = encoder, answers

    def sync(self, policy):
        pass

    def generate(self, prompts, sampling, stop_ids, keys=None, on_token=None):
        from lovec.types import Completion

        return [[Completion((*self.encoder.pieces(self.answers[key]), self.encoder.end_id), (), True)] for key in keys]

    def score(self, contexts, choices):
        return [[-1.0] * len(choices) for _ in contexts]


def test_short_answers_have_ece_and_auroc(trivia, tmp_path):
    """Four tagged answers: the metrics are those of scikit-learn and of a sum by hand."""
    from sklearn.metrics import roc_auc_score

    model = tiny(tmp_path)
    sft_adapter(tmp_path, model)
    made = module(SFT, model, evaluation=EvaluationConfig(modes=["free-form"], vanilla=False))
    stated = {"q0": ("Town 0", 9), "q1": ("bath.", 6), "q2": ("London", 6), "q3": ("Paris", 1)}
    answers = {name: f"{text} <confidence> {score} </confidence>" for name, (text, score) in stated.items()}
    run, data = trainer(tmp_path), TriviaQA(path=str(trivia))

    class Written(type(made)):
        def configure_model(self):
            super().configure_model()
            self.evaluator.taggers["free-form"].engine = Writer(self.encoder, answers)

    made.__class__ = Written
    run.test(made, data, verbose=False)
    row = next(r for r in made.results if (r.level, r.readout) == ("sentence", "stated"))
    right, confidence = [1, 1, 0, 0], [0.9, 0.6, 0.6, 0.1]
    assert row.n == 4 and row.metrics["malformed"] == 0 and row.metrics["mean_factuality"] == 0.5
    assert row.metrics["auroc"] == pytest.approx(roc_auc_score(right, confidence), abs=1e-9) == 3.5 / 4
    assert row.metrics["ece_m"] == pytest.approx(0.25 * 0.1 + 0.5 * abs(0.5 - 0.6) + 0.25 * 0.1)
    tagged = list(read_records(tmp_path / "test" / "triviaqa" / "written.free-form.jsonl"))
    assert [s.factuality for r in tagged for s in r.sentences] == [1.0, 1.0, 0.0, 0.0]


def test_questions_alone_need_an_oracle(names, tmp_path):
    model = tiny(tmp_path)
    sft_adapter(tmp_path, model)
    config = EvaluationConfig(modes=["free-form"], max_new_tokens=8, vanilla=False)
    with pytest.raises(LovecError, match=r"free-form answers need an oracle.*give model\.oracle"):
        trainer(tmp_path).test(module(SFT, model, evaluation=config), Bios(path=str(names)), verbose=False)
    made = module(SFT, model, evaluation=config, oracle=Lengths())
    trainer(tmp_path).test(made, Bios(path=str(names)), verbose=False)
    assert {(r.domain, r.mode) for r in made.results} == {("Bios", "free-form")}


@pytest.mark.parametrize(
    ("modes", "oracle", "reason"),
    [
        (["iterative", "free-form"], None, "free-form answers have no oracle"),
        (["iterative"], Lengths(), r"free-form answers are not in evaluation\.modes"),
    ],
)
def test_records_without_answers_are_refused_before_the_model_is_loaded(names, tmp_path, modes, oracle, reason):
    config = EvaluationConfig(modes=modes, vanilla=False)
    made = module(SFT, str(tmp_path / "no model"), evaluation=config, oracle=oracle)
    expected = rf"none of 2 test records of Bios has an answer, and {reason}; .*--data\.labels.*--model\.oracle"
    with pytest.raises(LovecError, match=expected):
        trainer(tmp_path).test(made, Bios(path=str(names)), verbose=False)
    assert not [*tmp_path.rglob("results.json")]
