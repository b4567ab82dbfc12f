"""From questions to a tagged text with an endpoint: labels, splits by entity, a recipe, training; no world anywhere."""

from __future__ import annotations

import json
import os
import shlex
import signal
import sys
import threading
import time
from dataclasses import replace
from http.server import ThreadingHTTPServer
from pathlib import Path

import pytest
import yaml
from faultserver import completion
from jsonhandler import JsonHandler
from tinyrun import tiny

from lovec.cli import main
from lovec.datasets.jsonl import read_records, write_records
from lovec.labelling import SPLITS, Splitting, TooFewEntities, split_file
from lovec.metrics.results import read_results
from lovec.types import LovecError, Record, Sentence

CITIES = [f"City {number}" for number in range(12)]
BRIEF = ["--trainer.max_steps", "2", "--trainer.limit_val_batches", "0", "--data.batch_size", "2"]


class Endpoint(JsonHandler):
    """Answers questions, and rates sentences by their last digit; remembers what it was asked."""

    bodies: list[dict]
    fault = ""
    delay = 0.0

    def do_POST(self) -> None:
        body = self.received()
        type(self).bodies.append(body)
        time.sleep(self.delay)
        text = body["messages"][0]["content"]
        if "without repeating the sentences" in text:
            asked = text.rpartition("without repeating the sentences.:\n\n")[2].splitlines()
            reply = "\n\n".join(f"**Analysis:** x\n**Rating:** ${len(line) % 11}$" for line in asked)
        else:
            reply = f"<think>so</think>\n{text} is old {body.get('seed', 0)}. It lies in the north." * (not self.fault)
        finish = "length" if self.fault == "length" else "stop"
        reply = reply or {"length": "It begins. And then it\ufffd", "empty": " ", "draft": "<think>hm"}[self.fault]
        self.send(200, completion(reply, (1000, 100), finish))


@pytest.fixture
def endpoint():
    """The address of an endpoint on loopback, and its class."""
    kind = type("Own", (Endpoint,), {"bodies": []})
    server = ThreadingHTTPServer(("127.0.0.1", 0), kind)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/v1", kind
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture
def here(tmp_path, monkeypatch, no_key):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setenv("LOVEC_CACHE", str(tmp_path / "cache"))
    return tmp_path


def asked(url: str, *more: str, cache: str = "replies.sqlite") -> list[str]:
    """The words that have questions answered and rated by an endpoint."""
    words = ["label", "--questions", "q.jsonl", "--out", "runs/labels", "--yes"]
    for name, kind in (("writer", "OpenAIWriter"), ("oracle", "OpenAIOracle")):
        words += [f"--{name}", kind, f"--{name}.model", name, f"--{name}.base_url", url, f"--{name}.cache", cache]
        words += [f"--{name}.price_in", "1", f"--{name}.price_out", "10"]
    return [*words, *more]


def questions() -> list[Record]:
    return [Record(f"q{n}", f"Where is {city}?", meta={"entity": city}) for n, city in enumerate(CITIES)]


def error_line(capsys, words) -> str:
    capsys.readouterr()
    assert main(words) in (1, 2)
    return next(line for line in capsys.readouterr().err.splitlines() if line.startswith("lovec: error: "))


def test_the_printed_commands_run_from_questions_to_a_tagged_text_without_a_world(here, endpoint, capsys, caplog):
    url, server = endpoint
    write_records("q.jsonl", questions())
    model = tiny(here / "models")
    words = asked(url, "--samples", "2", "--temperature", "0.7", "--model", model, "--max_new_tokens", "40")
    assert main(words) == 0
    said = capsys.readouterr()
    (line,) = [line for line in caplog.messages if "no evidence" in line]
    assert line.startswith("24 records have no evidence: q0/sample-1")
    assert "answers: 24 records: 0 answered by the cache, 24 calls" in said.err
    written = [body for body in server.bodies if body["model"] == "writer"]
    assert len(written) == len({body["seed"] for body in written}) == 24
    assert {(body["temperature"], body["max_tokens"]) for body in written} == {(0.7, 40)}
    splits = {name: list(read_records(f"runs/labels/{name}.jsonl")) for name in ("train", "dev", "test")}
    entities = {name: {record.meta["entity"] for record in rows} for name, rows in splits.items()}
    assert {name: len(rows) for name, rows in splits.items()} == {"train": 20, "dev": 2, "test": 2}
    assert sum(map(len, entities.values())) == 12 and set.union(*entities.values()) == set(CITIES)
    assert "train 20, dev 2, test 2 records about 12 entities" in said.out

    recipe = yaml.safe_load(Path("runs/labels/recipe.yaml").read_text())
    assert recipe["data"]["init_args"]["test_path"] == "runs/labels/test.jsonl" and "World" not in str(recipe)
    assert recipe["model"]["init_args"]["policy"] == {"model": model}
    assert recipe["model"]["init_args"]["evaluation"]["max_new_tokens"] >= 512  # not that of the world's answers
    commands = [line.strip() for line in said.out.splitlines() if line.startswith("  lovec ")]
    assert [shlex.split(line)[1] for line in commands] == ["fit", "fit", "test", "calibrate", "tag"]
    Path("FILE").write_text("City 3 is old. It lies in the north.")
    brief = {"fit": BRIEF, "test": ["--model.evaluation.modes", "[iterative]"]}
    for line in commands:
        _, command, *rest = shlex.split(line)
        if command == "calibrate":  # two records are too few for it, and training must not have seen the answers
            unseen = [replace(record, question=f"{record.question} Really?") for record in splits["train"]]
            write_records(rest[-1], unseen)
        assert main([command, *rest, *brief.get(command, [])]) == 0, line
    assert not Path("cache").exists()  # neither a world nor its model was built

    (results,) = Path("runs/labels/dpo/test").glob("*/results.json")
    assert results.parent.name == "labels"
    assert {row.domain for row in read_results(results).rows} == {"labels"}
    said = capsys.readouterr()
    assert "in-domain" not in said.out + said.err and "City 3 is old." in said.out


@pytest.mark.parametrize(
    ("model", "overlay"),
    [
        ("Meta-Llama-3-8B-Instruct", " --config llama3-8b.yaml"),
        ("models/gemma-2-9b-it", " --config gemma2-9b.yaml"),
        pytest.param("smollm2", "", marks=pytest.mark.real),  # its package is an extra
        ("gemma-2-2b-it", ""),
    ],
)
def test_the_printed_commands_have_the_overlay_of_the_model(here, capsys, model, overlay):
    Path(model).mkdir(parents=True)
    write_records("l.jsonl", labelled(4))
    assert main(["label", "--labelled", "l.jsonl", "--out", "o", "--model", model]) == 0
    commands = [line for line in capsys.readouterr().out.splitlines() if line.startswith("  lovec ")]
    for line, objective in zip(commands, ("sft", "dpo", "dpo"), strict=False):
        assert f"--config {objective}.yaml{overlay} --config o/recipe.yaml" in line
    assert f"lovec fit --config sft.yaml{overlay} --config o/recipe.yaml" in Path("o/recipe.yaml").read_text()


def test_a_killed_run_pays_for_no_answer_twice(here, endpoint):
    url, server = endpoint
    server.delay = 0.05
    write_records("q.jsonl", [Record(f"q{n}", f"Where is place {n}?") for n in range(40)])
    words = asked(url, "--chunk", "8", "--stages", "answers", "--writer.concurrency", "2")
    paid = []
    for _ in range(3):  # a real kill, at whatever it is doing
        before, child = len(server.bodies), os.fork()
        if child == 0:
            os._exit(main(words))
        while len(server.bodies) < before + 7 and os.waitpid(child, os.WNOHANG)[0] == 0:
            time.sleep(0.01)
        os.kill(child, signal.SIGKILL)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
        paid.append(len(server.bodies))
    assert main(words) == 0
    asked_again = len(server.bodies) - len({body["messages"][0]["content"] for body in server.bodies})
    assert asked_again <= 2 * len(paid)  # those on their way when the run was killed
    assert [r.id for r in read_records("runs/labels/answers.jsonl")] == [f"q{n}" for n in range(40)]
    calls = len(server.bodies)
    assert main([*words, "--redo"]) == 0 and len(server.bodies) == calls


@pytest.mark.parametrize(
    ("fault", "problem"),
    [("empty", "an empty reply"), ("draft", "cut off before the answer began"), ("length", None)],
)
def test_replies_without_an_answer_are_asked_for_again_and_then_named(here, endpoint, capsys, fault, problem):
    url, server = endpoint
    server.fault = fault
    write_records("q.jsonl", questions()[:2])
    words = asked(url, "--stages", "answers,sentences,label")
    said = error_line(capsys, words)
    assert "2 of 2 records failed, and all others are done; runs/labels/failed.jsonl names them" in said
    again = "label --redo" if problem is None else "answers,sentences,label --redo --writer.ask_again true"
    assert f"--stages {again}" in said
    assert ("--writer.ask_again true" in said) == (problem is not None)
    records = list(read_records("runs/labels/labelled.jsonl"))
    if problem is None:
        assert [[s.text for s in r.sentences] for r in records] == [["It begins."]] * 2
        assert [r.answer for r in records] == ["It begins. And then it"] * 2  # without half a character
        return
    assert len(server.bodies) == 6 and [r.sentences for r in records] == [(), ()]
    failed = [json.loads(line)["why"] for line in Path("runs/labels/failed.jsonl").read_text().splitlines()]
    assert len(failed) == 2 and all(problem in why for why in failed)
    server.fault = ""  # the server answers now, and the advice asks it again
    calls = len(server.bodies)
    assert main([*words, "--redo"]) == 1 and len(server.bodies) == calls
    assert main([*words, "--redo", "--writer.ask_again", "true"]) == 0 and len(server.bodies) > calls


def test_a_folder_may_be_called_like_the_judge(here, endpoint):
    url, _ = endpoint
    write_records("a.jsonl", [Record("a", "Where is it?", answer="It lies in the north.")])
    words = ["label", "--answers", "a.jsonl", "--out", "judge", "--stages", "sentences,label", "--yes", "true"]
    words += ["--oracle", "OpenAIOracle", "--oracle.model", "judge", "--oracle.base_url", url]
    assert main(words) == 0 == main(words)


def test_one_limit_is_for_answers_and_labels_together(here, endpoint, capsys):
    url, server = endpoint
    write_records("q.jsonl", questions())
    words = asked(url, "--max_new_tokens", "100", "--writer.concurrency", "1", "--oracle.concurrency", "1")
    assert "the next call would go beyond max_cost $0.01" in error_line(capsys, [*words, "--max_cost", "0.01"])
    bought = len(server.bodies)  # a call takes 1000 tokens in and 100 out: $0.002
    assert 0 < bought <= 5
    assert "max_cost" in error_line(capsys, [*words, "--max_cost", "0.027"])  # the rest of the answers, and two labels
    assert main([*words, "--max_cost", "0.1"]) == 0 and len(server.bodies) == 24
    assert "max_cost is -1" in error_line(capsys, [*words, "--max_cost", "-1"])


def test_parameters_and_prices_are_the_users(here, endpoint, capsys):
    url, server = endpoint
    write_records("q.jsonl", questions()[:1])
    own = ["--writer.parameters", '{"max_completion_tokens": 50, "seed": null, "top_p": 0.9}', "--temperature", "1"]
    assert main(asked(url, "--stages", "answers", *own)) == 0
    (body,) = server.bodies
    assert {**body, "messages": 0} == {
        "model": "writer", "messages": 0, "temperature": 1.0, "max_completion_tokens": 50, "top_p": 0.9,
    }  # fmt: skip
    assert "model is empty" in error_line(capsys, asked(url, "--stages", "answers", *own, "--writer.model", ""))
    words = ["label", "--questions", "q.jsonl", "--writer", "OpenAIWriter", "--out", "o", "--stages", "answers"]
    assert "--writer.model must be given" in error_line(capsys, words)
    assert "give --yes" in error_line(capsys, [*words, "--writer.model", "m", "--writer.base_url", url])
    assert "--writer OpenAIWriter" in error_line(capsys, ["label", "--questions", "q.jsonl", "--stages", "answers"])


# Splits


def labelled(count: int, samples: int = 1) -> list[Record]:
    return [
        Record(f"r{n}-{s}", f"Who is number {n}?", sentences=(Sentence("A.", factuality=0.5),))
        for s in range(samples)
        for n in range(count)
    ]


def test_no_entity_is_in_two_splits_and_seeds_draw_others(tmp_path):
    rows = [*labelled(50, samples=3), Record("none", "Who is number 3?")]
    rows += [Record(f"x{i}", q, sentences=(Sentence("A.", factuality=1.0),)) for i, q in enumerate(
        ["In a paragraph, could you tell me what you know about Ada  Lovelace?", "Who is she?", "Who is SHE?"]
    )]  # fmt: skip
    rows[-2] = Record("x1", "Who is she?", sentences=rows[-2].sentences, meta={"entity": "ADA lovelace"})
    write_records(tmp_path / "labelled.jsonl", rows)
    drawn = {}
    for seed in (0, 1):
        counts = split_file(tmp_path / "labelled.jsonl", Splitting(dev=0.2, test=0.1, seed=seed), redo=bool(seed))
        parts = {name: list(read_records(tmp_path / f"{name}.jsonl")) for name in ("train", "dev", "test")}
        of = {name: {Splitting().entity(record) for record in part} for name, part in parts.items()}
        assert sum(map(len, of.values())) == len(set.union(*of.values())) == 52 == counts["entities"]
        assert (len(of["dev"]), len(of["test"]), counts["left out"]) == (10, 5, 1)
        assert sum(map(len, parts.values())) == 153
        ids = [r.id for part in parts.values() for r in part if r.id in ("x0", "x1")]
        (home,) = [name for name, part in parts.items() if {r.id for r in part} & set(ids)]
        assert home in parts
        drawn[seed] = of["test"]
    assert drawn[0] != drawn[1]
    said = json.loads((tmp_path / "splits.json").read_text())
    assert said["entities"] == {"train": 37, "dev": 10, "test": 5} and said["identity"]["settings"]["seed"] == 1


def test_records_stay_in_the_split_that_they_name(here, capsys):
    names = {"train": range(8), "validation": (8, 9), "test": (10, 11)}
    rows = [replace(labelled(12, samples=2)[n], meta={"split": s}) for s, numbers in names.items() for n in numbers]
    rows += [replace(labelled(12, samples=2)[12 + n], meta={"split": s}) for s, ns in names.items() for n in ns]
    rows.append(Record("x", "Who is number 11?", sentences=rows[0].sentences, meta={"split": "train"}))
    write_records("l.jsonl", rows)
    assert main(["label", "--labelled", "l.jsonl", "--out", "o"]) == 0
    said = "train 16, dev 4, test 5 records about 12 entities, each in one of the three only, as meta.split says"
    assert said in capsys.readouterr().out
    for part, split in (("train", "train"), ("dev", "validation"), ("test", "test")):
        found = {record.question for record in read_records(f"o/{part}.jsonl")}
        assert found == {f"Who is number {n}?" for n in names[split]}
    assert "meta.split of its records names" in json.loads(Path("o/splits.json").read_text())["rule"]
    assert main(["label", "--labelled", "l.jsonl", "--out", "o"]) == 0 and said in capsys.readouterr().out


@pytest.mark.parametrize("splits", [["train"], ["train", "test"], ["train", "dev", "test", "later"], [None, *SPLITS]])
def test_records_without_a_whole_split_of_their_own_are_drawn(tmp_path, splits):
    path = tmp_path / "labelled.jsonl"
    write_records(path, labelled(20))
    drawn, files = split_file(path, Splitting()), [tmp_path / f"{split}.jsonl" for split in SPLITS]
    ids = [[record.id for record in read_records(file)] for file in files]
    write_records(path, [replace(r, meta={"split": splits[n % len(splits)]}) for n, r in enumerate(labelled(20))])
    assert split_file(path, Splitting(), redo=True) == drawn
    assert ids == [[record.id for record in read_records(file)] for file in files]


def test_unicode_forms_of_a_name_are_one_entity():
    composed, decomposed = "S\u00e3o Paulo", "Sa\u0303o Paulo"
    records = [Record(name, "Q?", meta={"entity": name}) for name in (composed, decomposed)]
    assert len({Splitting().entity(record) for record in records}) == 1


def test_a_number_may_name_the_entity(tmp_path):
    rows = [replace(record, meta={"topic": n % 8}) for n, record in enumerate(labelled(48))]
    write_records(tmp_path / "labelled.jsonl", rows)
    counts = split_file(tmp_path / "labelled.jsonl", Splitting(key="topic"))
    assert (counts["entities"], counts["train"], counts["dev"], counts["test"]) == (8, 36, 6, 6)
    parts = [list(read_records(tmp_path / f"{name}.jsonl")) for name in ("train", "dev", "test")]
    topics = [{record.meta["topic"] for record in part} for part in parts]
    assert sum(map(len, topics)) == 8 and set.union(*topics) == set(range(8))


def test_a_key_that_no_labelled_record_has_is_refused(tmp_path):
    path = tmp_path / "labelled.jsonl"
    write_records(path, [*labelled(10), Record("none", "Who?", meta={"topic": "Ada"})])
    for key in ("topic", "entitty"):
        with pytest.raises(LovecError, match=rf"names its entity in meta\.{key}, as --entity_key says"):
            split_file(path, Splitting(key=key))
    assert not (tmp_path / "splits.json").exists() and not (tmp_path / "train.jsonl").exists()
    assert split_file(path, Splitting())["entities"] == 10
    write_records(path, [*labelled(9), replace(labelled(10)[9], meta={"topic": "Ada"})])
    assert split_file(path, Splitting(key="topic"), redo=True)["entities"] == 10


def test_files_that_are_there_are_kept_refused_or_made_anew(tmp_path):
    path = tmp_path / "labelled.jsonl"
    write_records(path, labelled(10))
    first = split_file(path, Splitting())
    before = {name: os.stat(tmp_path / f"{name}.jsonl").st_mtime_ns for name in ("train", "dev", "test")}
    assert split_file(path, Splitting()) == first
    assert before == {name: os.stat(tmp_path / f"{name}.jsonl").st_mtime_ns for name in before}
    with pytest.raises(LovecError, match="other settings: seed was 0, is 1; make them anew with --redo"):
        split_file(path, Splitting(seed=1))
    (tmp_path / "dev.jsonl").write_text("mine\n")
    with pytest.raises(LovecError, match=r"dev\.jsonl was changed or removed"):
        split_file(path, Splitting())
    assert split_file(path, Splitting(), redo=True) == first
    state = json.loads((tmp_path / "splits.json").read_text())
    (tmp_path / "splits.json").write_text(json.dumps({**state, "digests": {}}))  # killed before the end
    assert split_file(path, Splitting()) == first
    (tmp_path / "splits.json").write_text("[]")
    with pytest.raises(LovecError, match="does not say how"):
        split_file(path, Splitting())
    (tmp_path / "splits.json").unlink()
    with pytest.raises(LovecError, match=r"train\.jsonl exists and is not empty"):
        split_file(path, Splitting())


@pytest.mark.parametrize("count", [3, 4, 5])
def test_every_split_has_an_entity_whatever_the_shares(count):
    for dev, test in ((0.01, 0.01), (0.9, 0.05), (0.05, 0.9), (0.45, 0.45)):
        assigned = Splitting(dev, test).assign(map(str, range(count)))
        assert set(assigned.values()) == {"train", "dev", "test"} and len(assigned) == count


def test_too_few_entities_and_wrong_shares_are_one_line(here, capsys):
    with pytest.raises(TooFewEntities, match="2 entities, expected at least 3"):
        Splitting().assign(["a", "b", "b"])
    with pytest.raises(LovecError, match="leave nothing to train on"):
        Splitting(0.5, 0.5)
    write_records("l.jsonl", labelled(2))
    assert main(["label", "--labelled", "l.jsonl", "--out", "o"]) == 0
    assert "no files to train, develop and test on are made" in capsys.readouterr().err
    assert not Path("o/train.jsonl").exists() and not Path("o/recipe.yaml").exists()
    assert "2 entities" in error_line(capsys, ["label", "--stages", "splits", "--out", "o"])
    assert "dev_share is 0" in error_line(capsys, ["label", "--labelled", "l.jsonl", "--out", "o", "--dev_share", "0"])
    assert "there is no none/labelled.jsonl" in error_line(capsys, ["label", "--stages", "splits", "--out", "none"])
    write_records("o2/train.jsonl", labelled(9))
    words = ["label", "--labelled", "o2/train.jsonl", "--out", "o2"]
    assert "is also the input" in error_line(capsys, words)
