"""Labelling: every stage from file to file, killed at any moment, writes the same bytes."""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import os
import random
import re
import signal
import sqlite3
import subprocess
import sys
from dataclasses import replace
from http.server import ThreadingHTTPServer
from io import StringIO
from pathlib import Path

import pytest
from faultserver import FaultServer, completion
from forks import in_child, kill_at_call
from jsonhandler import JsonHandler
from tinyrun import records, sft_adapter, tiny

from lovec.cli import main
from lovec.datasets.jsonl import read_records, write_records
from lovec.datasets.world import EmbeddedWorld
from lovec.datasets.world.text import FORMS, draw_sentence, set_form
from lovec.labelling import Answer, AnswerStep, LabelStep, Outcome, Stage, run_stage, stage_file
from lovec.labelling.data_sets import _identity, data_sets, open_data_set
from lovec.labelling.sources import input_digest
from lovec.metrics.results import read_results
from lovec.oracles import LabelFile, OpenAIOracle
from lovec.oracles.cache import ReplyCache
from lovec.oracles.chat import ChatReply
from lovec.types import LovecError, Record, Sampling, Sentence, to_rating

ROOT = Path(__file__).resolve().parents[2]
WIKIBIO = ROOT.parent / "shared" / "data" / "wikibio_gpt3_human" / "dataset-generated.json"
SPLIT = ["--splitter", "lovec.datasets.world.grading.split_sentences"]
EXACT = ["--oracle", "WorldOracle", "--oracle.world", "world-small"]

needs_wikibio = pytest.mark.skipif(not WIKIBIO.exists(), reason="the labelled WikiBio passages are not there")


def answers(count: int) -> list[Record]:
    """Answers about the small world: two true sentences each, every third with one about somebody else."""
    world, forms = EmbeddedWorld("world-small"), FORMS["person"]["life"]
    people = [entity for entity in world.entities if entity.kind == "person"]
    records = []
    for i in range(count):
        person, other = people[i % len(people)], people[(i + 1) % len(people)]
        texts = [draw_sentence(person, form, world.spec, random.Random(i)) for form in forms[:2]]
        texts += [set_form(other, forms[0])] if i % 3 == 0 else []
        question = f"Who is {person.name}, number {i}?"
        records.append(Record(f"a{i}", question, answer=" ".join(texts), meta={"entity": person.name}))
    return records


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setenv("LOVEC_LABEL_TEST", "1")
    return tmp_path


def contents(folder: Path) -> dict[str, bytes]:
    return {
        path.name: path.read_bytes() for path in sorted(folder.iterdir()) if path.name not in (".lock", "recipe.yaml")
    }


def label(*words) -> int:
    return main(["label", *map(str, words)])


def error_line(capsys, *words) -> str:
    capsys.readouterr()
    assert label(*words) in (1, 2)
    return next(line for line in capsys.readouterr().err.splitlines() if line.startswith("lovec: error: "))


def killing_itself(words, owner, name: str, at: int, after: bool):
    """A run that kills itself at the ``at``-th call of a function, before it or after."""

    def work() -> int:
        kill_at_call(owner, name, at, after)
        return label(*words)

    return work


# A kill


def test_a_run_killed_ten_times_writes_the_files_of_an_uninterrupted_one(here):
    write_records("mine.jsonl", answers(200))
    words = ["--answers", "mine.jsonl", *SPLIT, *EXACT, "--chunk", "8"]
    assert label(*words, "--out", "whole") == 0
    for number in range(10):
        call = "fsync" if number % 3 else "replace"
        run = killing_itself([*words, "--out", "killed"], os, call, at=2 + number // 2, after=number % 2 == 0)
        assert in_child(run) == -signal.SIGKILL
        for torn in Path("killed").glob("*.jsonl"):
            done = json.loads(Path(f"killed/{torn.stem}.manifest.json").read_text()) if torn.stem != "failed" else {}
            if not done.get("digest") and torn.stem != "failed":  # what the disk got of a line that was being written
                with open(torn, "ab") as file:
                    file.write(b'{"id": "half a li')
    assert label(*words, "--out", "killed") == 0
    assert contents(Path("killed")) == contents(Path("whole"))
    assert [r.id for r in read_records("killed/pairs.jsonl")] == [f"a{i}" for i in range(200)]


class Judge(JsonHandler):
    """Rates a sentence by the share of its longer words that the evidence has; writes down who asked what."""

    log: Path

    def do_POST(self) -> None:
        prompt = self.received()["messages"][0]["content"]
        asked = prompt.rpartition("without repeating the sentences.:")[2]
        evidence = prompt.partition("for your reference:")[2].partition("\n---\n")[0].lower()
        name = hashlib.sha256(prompt.encode()).hexdigest()[:12]
        with open(self.log, "a") as file:
            file.write(name + "\n")
        reply = [name]
        for sentence in re.findall(r"^### (.+)$", asked, re.MULTILINE):
            words = re.findall(r"\w{4,}", sentence.lower())
            rating = round(10 * sum(word in evidence for word in words) / max(1, len(words)))
            reply.append(f"**Analysis:** words\n**Rating:** ${rating}$")
        self.send(200, completion("\n\n".join(reply), (len(prompt) // 4, 10)))


def serve(log: Path, ready) -> None:
    Judge.log = log
    server = ThreadingHTTPServer(("127.0.0.1", 0), Judge)
    ready.send(server.server_address[1])
    server.serve_forever()


@pytest.fixture
def judge(tmp_path):
    """Address of a judge in a process of its own, and the file of what it was asked."""
    log = tmp_path / "asked.txt"
    log.touch()
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("fork").Process(target=serve, args=(log, theirs), daemon=True)
    process.start()
    yield f"http://127.0.0.1:{ours.recv()}/v1", log
    process.terminate()
    process.join()


def openai(url: str, cache: str) -> list[str]:
    oracle = ["--oracle", "OpenAIOracle", "--oracle.model", "judge", "--oracle.base_url", url, "--oracle.cache", cache]
    return [*oracle, "--oracle.price_in", "1", "--oracle.price_out", "1", "--oracle.concurrency", "4"]


def kept(cache: str) -> set[str]:
    """What the cache holds replies to."""
    if not Path(cache).exists():
        return set()
    with sqlite3.connect(cache) as database:
        return {text.split("\n")[0] for (text,) in database.execute("SELECT text FROM replies")}


def test_a_run_killed_ten_times_pays_for_no_reply_twice(here, judge):
    url, log = judge
    write_records("mine.jsonl", answers(60))
    words = ["--answers", "mine.jsonl", *SPLIT, "--chunk", "6", "--yes"]
    assert label(*words, *openai(url, "one.sqlite"), "--out", "whole") == 0
    assert len(log.read_text().split()) == 60
    for number in range(10):
        before, seen = kept("two.sqlite"), len(log.read_text().split())
        owner, call, at = (ReplyCache, "put", 2 + number // 2) if number % 2 else (os, "fsync", 3 if number else 12)
        run = killing_itself(
            [*words, *openai(url, "two.sqlite"), "--out", "killed"], owner, call, at, after=number % 3 == 0
        )
        assert in_child(run) == -signal.SIGKILL, number
        assert not before & set(log.read_text().split()[seen:])
    before, seen = kept("two.sqlite"), len(log.read_text().split())
    assert label(*words, *openai(url, "two.sqlite"), "--out", "killed") == 0
    last = log.read_text().split()[seen:]
    assert not before & set(last) and len(before) + len(last) == 60
    assert contents(Path("killed")) == contents(Path("whole"))


def test_the_cost_is_shown_first_and_its_limit_stops_cleanly(here, judge, capsys):
    url, log = judge
    write_records("mine.jsonl", answers(12))
    words = ["--answers", "mine.jsonl", *SPLIT, "--chunk", "4", "--out", "out", *openai(url, "c.sqlite")]
    assert "give --yes" in error_line(capsys, *words) and not log.read_text()
    assert label(*words, "--max-cost", "0.005", "--yes") == 1
    errors = capsys.readouterr().err
    assert "12 records: 0 answered by the cache, 12 calls" in errors and "max_cost $0.005" in errors
    bought = len(log.read_text().split())
    assert 0 < bought < 12
    assert label(*words, "--yes") == 0
    assert len(log.read_text().split()) == 12
    assert len(list(read_records("out/labelled.jsonl"))) == 12
    assert label(*words) == 0  # done: nothing to ask for


@pytest.mark.parametrize("chunk", [4, 16, 64])
@pytest.mark.parametrize("fault", ["500", "prose"])
def test_a_server_that_never_rates_stops_the_run(here, capsys, fault, chunk):
    write_records("mine.jsonl", answers(96))
    with FaultServer(always=fault) as server:
        words = ["--answers", "mine.jsonl", *SPLIT, "--chunk", chunk, "--yes", "--stages", "sentences,label"]
        words += [*openai(server.url, "c.sqlite"), "--oracle.retries", "0"]
        assert "20 records in a row failed" in error_line(capsys, *words)
        assert len(server.calls) <= 3 * (20 + 4 - 1)  # those in progress are finished


def test_no_calls_are_made_where_the_answer_is_the_end_of_the_input(here, judge, capsys, monkeypatch):
    """As with Ctrl-D at a terminal."""
    url, log = judge
    write_records("mine.jsonl", answers(3))
    typed = StringIO("")
    typed.isatty = lambda: True
    monkeypatch.setattr("sys.stdin", typed)
    words = ["--answers", "mine.jsonl", *SPLIT, "--out", "out", *openai(url, "c.sqlite")]
    assert error_line(capsys, *words) == "lovec: error: no calls were made; what was done so far stays"
    assert not log.read_text() and Path("out/sentences.jsonl").exists()


# Real labels


@needs_wikibio
def test_wikibio_end_to_end(here, judge, capsys):
    url, _ = judge
    people = ["--oracle", "LabelFile", "--oracle.path", WIKIBIO]
    assert label("--answers", WIKIBIO, "--out", "people", *people) == 0
    labelled = list(read_records("people/labelled.jsonl"))
    assert len(labelled) == 119 and all(record.evidence for record in labelled)
    values = [s.factuality for record in labelled for s in record.sentences]
    assert [values.count(f) for f in (1.0, 0.5, 0.0)] == [254, 327, 378]
    assert len(list(read_records("people/pairs.jsonl"))) == 119

    assert label("--data", "WikiBio", "--data.path", WIKIBIO, "--out", "judge", "--yes", *openai(url, "c.sqlite")) == 0
    capsys.readouterr()
    assert main(["agreement", "judge/labelled.jsonl", str(WIKIBIO), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["n"] == 959 and found["spearman"] > 0.2  # shared words say a little
    assert main(["agreement", "judge/labelled.jsonl", str(WIKIBIO)]) == 0
    print(capsys.readouterr().out)

    model = ["--model", tiny(here, "llama"), "--oracle", "SelfJudge", "--oracle.evidence_tokens", "64"]
    assert label("--answers", WIKIBIO, "--out", "self", *model) == 0
    assert main(["agreement", "self/labelled.jsonl", str(WIKIBIO), "--json"]) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["n"] == 959


def test_human_labels_serve_as_an_oracle(tmp_path):
    twice = (Sentence("He ran.", 0.2), Sentence("He sat.", None), Sentence("He ran.", 0.7))
    write_records(tmp_path / "gold.jsonl", [Record("a", "Who?", sentences=twice)])
    oracle = LabelFile(str(tmp_path / "gold.jsonl"))
    asked = Record("a", "Who?", sentences=tuple(map(Sentence, ("He  ran.", "He flew.", "He ran.", "He sat."))))
    assert oracle.rate([asked, replace(asked, id="b")]) == [[0.2, None, 0.7, None], [None] * 4]
    assert list(oracle.failures) == ["b"]
    write_records(tmp_path / "bare.jsonl", [replace(asked, sentences=())])
    with pytest.raises(LovecError, match="no labelled sentence"):
        LabelFile(str(tmp_path / "bare.jsonl"))


# Data sets

RIVERS = """\
from lovec.datamodules import QuestionSet
from lovec.encoding import QUESTION
from lovec.types import Record


class Rivers(QuestionSet):
    domain = "Rivers"

    def questions(self, split):
        for name in ("Danube", "Mekong", "Yukon"):
            yield Record(name, QUESTION.format(entity=f"the river {name}"))
"""


def test_a_data_set_of_the_user_is_tested_on_and_labelled(here):
    Path("my_rivers.py").write_text(RIVERS)
    model = tiny(here)
    sft_adapter(here / "runs/sft", model)
    words = ["--data", "my_rivers.Rivers", "--model", model, "--oracle", "SelfJudge", "--max-new-tokens", "8"]
    assert label(*words, "--stages", "answers,sentences,label", "--out", "labels") == 0
    labelled = list(read_records("labels/labelled.jsonl"))
    assert [record.id for record in labelled] == ["Danube", "Mekong", "Yukon"]
    assert labelled[0].question == "In a paragraph, could you tell me what you know about the river Danube?"

    words = ["test", "--config", "sft.yaml", "--model.policy.model", model, "--model.evaluation.max_new_tokens", "8"]
    words += ["--model.oracle", "lovec.oracles.SelfJudge", "--model.evaluation.modes", "[free-form]"]
    assert main([*words, "--data", "my_rivers.Rivers"]) == 0
    rows = read_results("runs/sft/test/rivers/results.json").rows
    assert {(row.method, row.domain) for row in rows} >= {("SFT", "Rivers")}


def test_every_data_set_of_lovec_can_be_labelled():
    names = ["Atlas", "Bios", "FActScore", "HaluEval", "PopQA", "TriviaQA", "WikiBio", "WildHallu", "World"]
    assert sorted(data_sets()) == names
    source = open_data_set("World", split="validation", variant="world-small")
    assert len(list(source.records(0))) == 40 and len(list(source.records(38))) == 2 and not source.answered
    assert source.identity == {
        "data": "World", "split": "validation", "options": {"variant": "world-small"}, "evidence": None,
    }  # fmt: skip
    assert open_data_set("World").identity["split"] == "train"


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("World", {"split": "dev"}, "the split of World is 'dev', expected one of train, validation, test"),
        ("World", {"path": "x"}, "cannot open the data set World .*'path'.*; its arguments are variant, samples"),
        ("FActScore", {}, "cannot open the data set FActScore .*'path'"),
        ("lovec.datamodules.Prompts", {}, "is not a data set, expected a subclass of QuestionSet that overrides"),
        ("no.such", {}, "cannot import no.such"),
    ],
)
def test_unusable_data_sets_are_refused(name, options, message):
    with pytest.raises(LovecError, match=message):
        open_data_set(name, **options)


def test_ids_of_a_data_set_must_be_unique(here, monkeypatch):
    monkeypatch.syspath_prepend(here)
    Path("my_twins.py").write_text(RIVERS.replace("yield Record(name,", "yield Record('river',"))
    with pytest.raises(LovecError, match=r"my_twins\.Rivers has two records with the id 'river'"):
        list(open_data_set("my_twins.Rivers").records(0))


def test_labelling_files_needs_no_lightning():
    code = "import sys, lovec.labelling; print(sorted({'lightning', 'lovec.datamodules'} & set(sys.modules)))"
    assert subprocess.check_output([sys.executable, "-c", code], text=True) == "[]\n"


# Much data


@pytest.mark.slow
def test_memory_does_not_grow_with_ten_thousand_records():
    command = [sys.executable, "benchmarks/label.py", "--records", "10000", "--print"]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": str(ROOT)})
    assert run.returncode == 0, run.stderr
    found = json.loads(run.stdout)
    assert found["records"] == found["pairs"] == 10_000
    assert found["growth_mib"] < 25  # ids of the user's file are remembered, a hundred bytes each
    print(found)


# On to training


def test_fit_trains_on_the_pairs(here):
    write_records("mine.jsonl", answers(24))
    assert label("--answers", "mine.jsonl", *SPLIT, *EXACT, "--out", "out") == 0
    brief = ["--trainer.max_steps", "2", "--trainer.limit_val_batches", "0", "--data.batch_size", "2"]
    brief += ["--model.policy.model", tiny(here, "llama")]
    rows = ["--data", "Demonstrations", "--data.path", "out/labelled.jsonl"]
    assert main(["fit", "--config", "sft.yaml", *rows, *brief]) == 0
    assert main(["fit", "--config", "dpo.yaml", "--data", "Preferences", "--data.path", "out/pairs.jsonl", *brief]) == 0
    assert (here / "runs/dpo/adapter/adapter_model.safetensors").exists()


def test_files_of_the_authors_are_labelled(here):
    tagged = "Ada wrote. <confidence> {} </confidence> Bath is old. <confidence> {} </confidence>"
    pair = {"prompt": "Who was Ada?", "chosen": tagged.format(9, 2), "rejected": tagged.format(1, 7)}
    Path("pairs.jsonl").write_text(json.dumps(pair) + "\n")
    assert label("--labelled", "pairs.jsonl", "--out", "pairs") == 0
    (made,) = read_records("pairs/pairs.jsonl")
    assert [s.factuality for s in made.sentences] == [0.9, 0.2] and made.rejected == (1, 7)
    online = {"entity": "Ada", "evidence": ["Ada wrote."], "base_prediction": "Ada wrote. She was born in London."}
    Path("online.jsonl").write_text(json.dumps(online) + "\n")
    model = ["--model", tiny(here, "llama"), "--oracle", "SelfJudge"]
    assert label("--answers", "online.jsonl", "--out", "online", *model) == 0
    (made,) = read_records("online/pairs.jsonl")
    assert [s.text for s in made.sentences] == ["Ada wrote.", "She was born in London."] and made.labelled


# Stages


def test_questions_become_pairs_and_each_stage_runs_alone(here, capsys):
    Path("mine.py").write_text(
        "class Half:\n    def rate(self, records):\n"
        "        return [[0.5 if i else None for i, _ in enumerate(r.sentences)] for r in records]\n"
    )
    questions = [Record(f"q{i}", f"Who is number {i}?") for i in range(5)]
    write_records("q.jsonl", [*questions, Record("long", "x" * 5000)])
    model = ["--model", tiny(here, "llama"), "--max-new-tokens", "12"]
    oracle = ["--oracle", "lovec.oracles.SelfJudge"]
    words = ["--questions", "q.jsonl", *model, *oracle, "--out", "out", "--samples", "2", "--temperature", "1"]
    said = error_line(capsys, *words)
    assert "1 of 11 records failed" in said and "--stages answers,sentences,label,pairs,splits --redo" in said
    ids = [r.id for r in read_records("out/labelled.jsonl")]
    assert ids == [f"q{i}/sample-{n}" for i in range(5) for n in (1, 2)] + ["long"]
    failed = [json.loads(line) for line in Path("out/failed.jsonl").read_text().splitlines()]
    assert "shorten the question" in {row["id"]: row["why"] for row in failed}["long"]
    before = contents(Path("out"))
    assert label("--out", "out", "--stages", "pairs") == 0
    assert contents(Path("out")) == before
    assert "seed was 0, is 1" in error_line(capsys, "--out", "out", "--stages", "pairs", "--seed", "1")
    assert label("--out", "out", "--stages", "pairs", "--seed", "1", "--redo") == 0
    assert contents(Path("out"))["pairs.jsonl"] != before["pairs.jsonl"]
    near = ["--out", "out", "--stages", "pairs", "--seed", "1", "--wrong_scores", "near"]
    assert "wrong_scores was none, is near" in error_line(capsys, *near)
    assert label(*near, "--redo") == 0
    for pair in read_records("out/pairs.jsonl"):
        true = [to_rating(s.factuality) for s in pair.sentences]
        assert all(0 < abs(wrong - score) <= 2 for wrong, score in zip(pair.rejected, true, strict=True))


@pytest.mark.parametrize(
    ("words", "out"),
    [
        (["--stages", "pairs"], "pairs"),
        (["--wrong_scores", "near", "--stages", "pairs"], "near"),
        (["--entity_key", "name", "--device", "cpu", "--dtype", "float32", "--stages", "pairs"], "name"),
        (["--device", "cpu", "--stages", "pairs"], "cpu"),
        (["--dtype", "bfloat16", "--stages", "pairs"], "bfloat16"),
        (["--scoring", "prefix", "--stages", "pairs"], "prefix"),
        (["--adapter", "world", "--stages", "pairs"], "world"),
        (["--model", "tiny-llama", "--stages", "pairs"], "tiny-llama"),
    ],
)
def test_a_folder_called_like_a_word_of_the_command_is_gone_on_with(here, words, out):
    write_records("in.jsonl", records(4))
    for _ in range(2):
        assert label("--labelled", "in.jsonl", *words, "--out", out) == 0


def test_a_folder_called_like_a_split_is_gone_on_with(here):
    words = ["--data", "World", "--data.variant", "world-small", "--split", "test", "--shard", "1/60"]
    words += ["--stages", "answers", "--model", "world-small", "--max_new_tokens", "2", "--out", "test"]
    assert [label(*words) for _ in range(2)] == [0, 0]


def test_every_kind_of_record_is_written_counted_or_named(here, capsys):
    rows = [
        Record("abstained", "Who is Ada?", answer="I'm sorry, but I couldn't find any information about Ada."),
        Record("empty", "Who is Bo?"),
        Record("whole", "Who is Cy?", answer="Cy is a cat. He sleeps."),
        Record("split", "Who is Di?", sentences=(Sentence("Di is a dog.", 0.3), Sentence("He barks."))),
        Record("cut", "Who is Ed?", answer="Ed is an eel. He swims in the", meta={"finished": False}),
    ]
    write_records("mine.jsonl", rows)
    gold = [replace(rows[2], sentences=(Sentence("Cy is a cat.", 1.0), Sentence("He  sleeps.", 0.5))), rows[3]]
    write_records("gold.jsonl", gold)
    words = ["--answers", "mine.jsonl", "--out", "out", "--oracle", "LabelFile", "--oracle.path", "gold.jsonl"]
    for _ in range(2):  # a finished run says so again
        assert "2 of 5 records failed, and all others are done; out/failed.jsonl names them" in error_line(
            capsys, *words
        )
    made = {record.id: record for record in read_records("out/labelled.jsonl")}
    assert list(made) == [record.id for record in rows]
    assert made["abstained"].meta["abstained"] and not made["abstained"].sentences
    assert [s.factuality for s in made["whole"].sentences] == [1.0, 0.5]
    assert [s.factuality for s in made["split"].sentences] == [0.3, None]
    assert [s.text for s in made["cut"].sentences] == ["Ed is an eel."]
    failed = {row["id"]: row["why"] for row in map(json.loads, Path("out/failed.jsonl").read_text().splitlines())}
    assert failed == {"empty": "the answer is empty", "cut": "gold.jsonl has no record of this id"}
    assert [record.id for record in read_records("out/pairs.jsonl")] == ["whole"]


def test_words_of_a_table_say_whether_an_answer_abstains_and_is_finished(here, capsys):
    Path("mine.csv").write_text(
        "question,answer,abstained,finished\nWho is Cy?,Cy is a cat. He sleeps.,False,True\n"
        "Who is Di?,Di is a dog. He barks at the,no,False\nWho is Ed?,Nobody knows Ed.,yes,\n"
    )
    assert label("--answers", "mine.csv", "--out", "out", "--stages", "sentences") == 0
    made = [[s.text for s in record.sentences] for record in read_records("out/sentences.jsonl")]
    assert made == [["Cy is a cat.", "He sleeps."], ["Di is a dog."], []]


def test_a_folder_of_data_that_has_changed_is_another_input(tmp_path):
    Path(tmp_path, "a.json").write_text("1")
    before = _identity(str(tmp_path))
    assert before == _identity(str(tmp_path))
    Path(tmp_path, "a.json").write_text("2")
    assert before != _identity(str(tmp_path))
    assert _identity("org/name") == "org/name"


def test_tags_in_given_answers_become_scores_and_no_oracle_sees_them(here):
    tagged = "Cy is a cat. <confidence> 9 </confidence>\n\nHe sleeps. <confidence> 2 </confidence>"
    rows = [Record("whole", "Who is Cy?", answer=tagged)]
    rows += [Record("split", "Who is Di?", sentences=(Sentence("Di barks. <confidence> 3 </confidence>"),))]
    write_records("mine.jsonl", rows)
    Path("my_oracle.py").write_text(
        "from collections.abc import Sequence\nfrom lovec.types import Record\n"
        "class Reader:\n"
        "    def rate(self, records: Sequence[Record]) -> list[list[float | None]]:\n"
        "        assert not any('confidence' in r.answer + s.text for r in records for s in r.sentences)\n"
        "        return [[0.5] * len(r.sentences) for r in records]\n"
    )
    assert label("--answers", "mine.jsonl", "--out", "out", "--oracle", "my_oracle.Reader") == 0
    made = {record.id: record for record in read_records("out/labelled.jsonl")}
    assert [(s.text, s.score, s.factuality) for s in made["whole"].sentences] == [
        ("Cy is a cat.", 9, 0.5),
        ("He sleeps.", 2, 0.5),
    ]
    assert made["whole"].answer == "Cy is a cat.\n\nHe sleeps."
    assert made["split"].sentences == (Sentence("Di barks.", 0.5, 0.3, 3),)


def test_what_other_code_of_the_users_own_made_is_not_gone_on_with(here, capsys):
    write_records("mine.jsonl", [Record("a", "Who is Cy?", answer="Cy is a cat.")])
    Path("own_level.py").write_text("LEVEL = 0.5\n")
    Path("own_rater.py").write_text(
        "from collections.abc import Sequence\nfrom lovec.types import Record\nfrom own_level import LEVEL\n"
        "class Rater:\n"
        "    def rate(self, records: Sequence[Record]) -> list[list[float | None]]:\n"
        "        return [[LEVEL] * len(r.sentences) for r in records]\n"
    )
    words = ["--answers", "mine.jsonl", "--out", "out", "--oracle", "own_rater.Rater"]
    assert label(*words) == label(*words) == 0
    manifest = Path("out/labelled.manifest.json")
    made = json.loads(manifest.read_text())
    code = made["identity"]["settings"]["code"]
    assert list(code) == ["own_level", "own_rater"]
    Path("own_level.py").write_text("LEVEL = 0.75\n")
    for name in code:
        sys.modules.pop(name)
    assert "made with other settings: the code of own_level was" in (line := error_line(capsys, *words)), line
    assert label(*words, "--redo") == 0
    (record,) = read_records("out/labelled.jsonl")
    assert record.sentences[0].factuality == 0.75

    made["digest"] = input_digest(Path("out/labelled.jsonl"))  # that of an earlier version, which did not know the code
    del made["identity"]["settings"]["code"]
    manifest.write_text(json.dumps(made))
    assert label(*words) == 0


def test_a_question_loses_what_it_brings_of_an_earlier_answer():
    class Twice:
        def write(self, records, sampling):
            return [[Answer("One."), Answer("Two. Thr", finished=False)] for _ in records]

    old = {"abstained": True, "finished": False, "problem": "the answer is empty"}
    brought = Record("q", "Who?", answer="Sorry.", sentences=(Sentence("Sorry.", 0.5),), meta={"entity": "Ada", **old})
    (outcome,) = AnswerStep(Twice(), Sampling(9, 1.0, 2, 0))([brought])
    assert outcome.records == [
        Record("q/sample-1", "Who?", answer="One.", meta={"entity": "Ada"}),
        Record("q/sample-2", "Who?", answer="Two. Thr", meta={"entity": "Ada", "finished": False}),
    ]
    assert brought.meta == {"entity": "Ada", **old}
    asked = Record("q", "Who?", meta={"problem": "2 + 2"})  # without an answer, it is about something else
    (outcome,) = AnswerStep(Twice(), Sampling(9, 1.0, 2, 0))([asked])
    assert [record.meta["problem"] for record in outcome.records] == ["2 + 2"] * 2


def test_ratings_go_to_records_by_their_place_and_not_by_their_id():
    class Lengths:
        def rate(self, records):
            return [[len(sentence.text) / 10 for sentence in record.sentences] for record in records]

    texts = [("A.", "Bcd."), (), ("Ef.",), ("Ghijk.", "L.", "Mn.")]
    records = [Record("same", "Who?", sentences=tuple(map(Sentence, some))) for some in texts]
    made = [record for outcome in LabelStep(Lengths())(records) for record in outcome.records]
    assert [[s.factuality for s in record.sentences] for record in made] == [[0.2, 0.4], [], [0.3], [0.6, 0.2, 0.3]]


def test_another_rule_may_tell_abstentions(here, capsys):
    write_records("mine.jsonl", [Record("a", "Who is Cy?", answer="Cy is a cat."), Record("b", "Q?", answer="Pass!")])
    Path("my_rule.py").write_text(
        "class Judge:\n    def __call__(self, answer):\n        return answer == 'Pass!'\nnothing = 3\n"
    )
    words = ["--answers", "mine.jsonl", "--stages", "sentences"]
    assert label(*words, "--out", "out", "--abstentions", "my_rule.Judge") == 0
    made = {record.id: record for record in read_records("out/sentences.jsonl")}
    assert made["b"].meta["abstained"] and [s.text for s in made["a"].sentences] == ["Cy is a cat."]
    line = error_line(capsys, *words, "--out", "other", "--abstentions", "my_rule.nothing")
    assert line == "lovec: error: my_rule.nothing is int, expected a function that tells whether an answer declines"


def test_a_stage_refuses_files_that_it_did_not_write(tmp_path):
    write_records(tmp_path / "in.jsonl", answers(3))
    source = stage_file(tmp_path / "in.jsonl")
    copy = Stage("copy", lambda records: [Outcome([record]) for record in records], {"a": 1}, chunk=2)
    assert run_stage(copy, source, tmp_path / "out")["written"] == 3
    output = tmp_path / "out/copy.jsonl"
    output.write_bytes(output.read_bytes().replace(b"Who", b"How"))
    with pytest.raises(LovecError, match="changed since it was written"):
        run_stage(copy, source, tmp_path / "out")
    assert run_stage(copy, source, tmp_path / "out", redo=True)["written"] == 3
    (tmp_path / "out/copy.manifest.json").unlink()
    with pytest.raises(LovecError, match="that says how it was made"):
        run_stage(copy, source, tmp_path / "out")


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (['{"id": "a", "question": "Who?", "answer": "Ada is."}'] * 2, "id 'a' is already that of line 1"),
        (['{"question": "Who?", "answer": "Ada is."}'], "give the file another name, or another --out, so that"),
        (['{"id": "a", "prompt": "Who?", "response": "Ada is."}'], "give the file another name, or another --out"),
    ],
)
def test_a_file_of_the_user_among_those_of_the_stages_is_read_if_a_stage_could_have_written_it(
    here, capsys, rows, message
):
    words = ["--answers", "out/answers.jsonl", "--out", "out", "--stages", "sentences"]
    Path("out").mkdir()
    Path("out/answers.jsonl").write_text("\n".join(rows) + "\n")
    line = error_line(capsys, *words)
    assert message in line and "out/answers.jsonl" in line and not Path("out/sentences.jsonl").exists()
    write_records("out/answers.jsonl", [Record("a", "Who?", answer="Ada is."), Record("b", "Who?", answer="Bo is.")])
    for _ in range(2):
        assert label(*words) == 0 and len(list(read_records("out/sentences.jsonl"))) == 2


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--out", "o"], "give --questions, --answers, --labelled or --data"),
        (["--questions", "q.jsonl"], "--model must be given"),
        (["--answers", "q.jsonl"], "--oracle must be given"),
        (["--data", "WikiBoi"], "unknown class for --data: WikiBoi; did you mean WikiBio?"),
        (["--answers", "none.jsonl", *EXACT], "cannot read none.jsonl"),
        (["--answers", "q.jsonl", "--oracle", "WorldOrcale"], "did you mean WorldOracle?"),
        (["--answers", "q.jsonl", *EXACT, "--oracle.wrold", "x"], "did you mean --oracle.world?"),
        (["--answers", "q.jsonl", *EXACT, "--chnk", "3"], "did you mean --chunk?"),
        (["--answers", "q.jsonl", "--oracle", "OpenAIOracle"], "--oracle.model must be given"),
        (["--answers", "q.jsonl", *EXACT, "--stages", "labels"], "unknown stage labels; did you mean label?"),
        (["--stages", "label", *EXACT, "--out", "o"], "there is no o/sentences.jsonl"),
        (["--answers", "q.jsonl", *EXACT, "--splitter", "no.such"], "cannot import no.such"),
    ],
)
def test_errors_are_one_line(here, capsys, words, message):
    Path("q.jsonl").write_text('{"question": "Who?"}\n')
    assert message in error_line(capsys, *words)


def test_settings_may_change_while_nothing_is_rated(here, capsys, no_key):
    write_records("mine.jsonl", answers(3))
    paid = ["--answers", "mine.jsonl", *SPLIT, "--oracle", "OpenAIOracle", "--oracle.model"]
    assert "give --yes" in error_line(capsys, *paid, "a", "--out", "out", "--oracle.base_url", "http://127.0.0.1:9/v1")
    assert "give --yes" in error_line(capsys, *paid, "b", "--out", "out", "--oracle.base_url", "http://127.0.0.1:9/v1")
    assert label("--answers", "mine.jsonl", *SPLIT, *EXACT, "--out", "out") == 0
    assert "other settings" in error_line(capsys, *paid, "a", "--out", "out")


def test_a_judge_without_its_key_is_refused_before_answers_are_written(here, capsys, no_key):
    Path("q.jsonl").write_text('{"question": "Who?"}\n')
    paid = ["--oracle", "OpenAIOracle", "--oracle.model", "gpt", "--oracle.cache", "replies"]
    words = ["--questions", "q.jsonl", "--model", "world-small", *paid, "--out", "out"]
    assert "$OPENAI_API_KEY is not set" in error_line(capsys, *words, "--yes")
    assert not [*Path("out").glob("*.json*")]
    # Where the labels are there already, nobody is asked.
    write_records("mine.jsonl", answers(3))
    assert label("--answers", "mine.jsonl", *SPLIT, *EXACT, "--stages", "sentences,label", "--out", "out") == 0
    assert "other settings" in error_line(capsys, *paid, "--stages", "label,pairs", "--out", "out", "--yes")
    # Nor before the costs are known and somebody has said yes to them.
    words = ["--answers", "mine.jsonl", *SPLIT, *paid, "--out", "other"]
    assert "give --yes" in error_line(capsys, *words) and Path("other/sentences.jsonl").exists()


def test_replies_of_the_cache_need_no_key_with_yes(here, capsys, no_key):
    write_records("mine.jsonl", answers(3))
    paid = ["--oracle", "OpenAIOracle", "--oracle.model", "gpt", "--oracle.cache", "replies"]
    words = ["--answers", "mine.jsonl", *SPLIT, *paid, "--yes", "--out"]
    assert "$OPENAI_API_KEY is not set" in error_line(capsys, *words, "out")
    oracle = OpenAIOracle("gpt", cache="replies")
    with ReplyCache(oracle.cache) as cache:
        for record in read_records("out/sentences.jsonl"):
            text = "\n\n".join("**Analysis:** So.\n**Rating:** $7$" for _ in record.sentences)
            cache.put(oracle.key(oracle._prompt(record), 0), ChatReply(text, "stop"))
    for folder in ("out", "new"):
        assert label(*words, folder) == 0
        assert {s.factuality for record in read_records(f"{folder}/labelled.jsonl") for s in record.sentences} == {0.7}
    # One more answer is not in the cache; the same answer in a new folder is.
    write_records("mine.jsonl", answers(4))
    assert "$OPENAI_API_KEY is not set" in error_line(capsys, *words, "more")


def test_an_oracle_without_its_key_is_refused_before_a_writer_is_paid(here, capsys, no_key):
    Path("q.jsonl").write_text('{"question": "Who?"}\n')
    oracle = ["--oracle", "OpenAIOracle", "--oracle.model", "gpt"]
    with FaultServer() as server:
        writer = ["--writer", "OpenAIWriter", "--writer.model", "gpt", "--writer.base_url", server.url]
        words = ["--questions", "q.jsonl", *writer, "--writer.cache", "replies", *oracle, "--out", "out", "--yes"]
        assert "$OPENAI_API_KEY is not set" in error_line(capsys, *words)
        assert server.calls == []


def test_a_run_that_did_nothing_shows_no_table(here, capsys):
    assert label("--answers", "nofile.jsonl", *EXACT) == 1
    assert capsys.readouterr().out == ""
