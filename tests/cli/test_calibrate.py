"""``lovec calibrate``, and what its map changes in tag, test, predict, export and serve."""

from __future__ import annotations

import json
import os
import random
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from commandline import CPU, error_of
from safetensors.torch import load_file, save_file
from tinyrun import WORDS, Rows, grounded_adapter, module, trainer

import lovec
from lovec.calibration import read_calibrations, weights_digest
from lovec.cli import main
from lovec.cli.unseen import seen
from lovec.core.hub import SHIPPED
from lovec.datamodules import FActScore
from lovec.datasets.jsonl import read_records, write_records
from lovec.metrics.functional import brier_score
from lovec.metrics.results import read_results
from lovec.modules import SFT, PolicyConfig
from lovec.taggers import IterativeTagger, open_session
from lovec.taggers.served_confidence import ServedConfidence, with_mean_readout
from lovec.types import LovecError, Record, Sentence

PARTS = '''
"""An engine that writes tagged answers, and an oracle: what a recipe of a user's own may name."""

import random
from collections.abc import Sequence

from transformers import AutoTokenizer

from lovec.engines import TransformersEngine
from lovec.types import Completion, OnToken, Record, Sampling


class Writer(TransformersEngine):
    """Answers with two to four tagged sentences; random models write no tags. It scores like any other."""

    def __init__(self, model: str):
        super().__init__(max_rows=8)
        self.tokenizer = AutoTokenizer.from_pretrained(model)

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        sampling: Sampling,
        stop_ids: Sequence[int],
        keys: Sequence[str] | None = None,
        on_token: OnToken | None = None,
    ) -> list[list[Completion]]:
        answers = []
        for row, key in enumerate(keys):
            draw = random.Random(key)
            words = ("ada ran", "she wrote a long note on engines", "it was noon", "london is a town in the rain")
            texts = [f"{draw.choice(words)}. <confidence> {draw.randint(0, 10)} </confidence>" for _ in range(3)]
            ids = [*self.tokenizer(" ".join(texts), add_special_tokens=False)["input_ids"], stop_ids[0]]
            going = [on_token is None or on_token(row, 0, token) for token in ids]
            answers.append([Completion(tuple(ids), tuple(-1.0 for _ in going), True)])
        return answers


class Silent:
    """Knows nothing."""

    def rate(self, records: Sequence[Record]) -> list[list[float | None]]:
        return [[None] * len(record.sentences) for record in records]


class Short:
    """Short sentences are true."""

    def rate(self, records: Sequence[Record]) -> list[list[float | None]]:
        return [[float(len(sentence.text) < 15) for sentence in record.sentences] for record in records]


class Reads:
    """Sentences are true if they have a word of the evidence, or are short where there is none."""

    reads_evidence = True

    def rate(self, records: Sequence[Record]) -> list[list[float | None]]:
        return [[self.rating(record, sentence.text) for sentence in record.sentences] for record in records]

    def rating(self, record: Record, text: str) -> float:
        words = {*" ".join(record.evidence).lower().split()}
        return float(not words.isdisjoint(text.split()) if words else len(text) < 15)
'''


def labelled(n: int, seed: int = 0) -> list[Record]:
    """Answers of one to four sentences, true or false at random."""
    rng = random.Random(seed)
    rows = []
    for i in range(n):
        texts = [" ".join(rng.choices(WORDS, k=rng.randint(2, 6))) + "." for _ in range(rng.randint(1, 4))]
        sentences = tuple(Sentence(text, factuality=float(rng.random() < 0.7)) for text in texts)
        rows.append(Record(f"a{i}", f"Who is {rng.choice(WORDS)}?", answer=" ".join(texts), sentences=sentences))
    return rows


def both_kinds() -> list[Record]:
    """Answers with evidence and without."""
    return [*labelled(30), *(replace(r, id=f"{r.id}/s", evidence=("Ada ran.",)) for r in labelled(20, seed=1))]


@pytest.fixture
def run(here: Path, model: str, adapter: str) -> Path:
    """The folder of a run with an adapter, in a working directory that also has labelled answers."""
    shutil.copytree(adapter, here / "run" / "adapter")
    (here / "run" / "adapter" / "calibration.json").unlink(missing_ok=True)
    write_records(here / "labels.jsonl", labelled(40))
    (here / "page.txt").write_text("Ada ran. She wrote the first note on engines.\n\nIt was noon in London.")
    return here / "run"


def calibrated(*more: str) -> int:
    """Calibrate the run on the labelled answers; return the exit code."""
    return main(["calibrate", "run", "--data", "labels.jsonl", "--device", "cpu", *more])


def tagged(capsys: Any, *words: str) -> tuple[list[dict[str, Any]], str]:
    """The sentences that ``lovec tag`` gives for the page, and what it prints on standard error."""
    capsys.readouterr()
    assert main(["tag", "page.txt", "--adapter", "run", "--device", "cpu", "--format", "jsonl", *words]) == 0
    printed = capsys.readouterr()
    return json.loads(printed.out)["sentences"], printed.err


def test_a_map_is_fitted_reported_and_applied(run: Path, capsys: Any) -> None:
    raw, err = tagged(capsys)
    assert "Confidence: mean of the score distribution, not calibrated." in err
    assert calibrated("--keep_factual", "[0.5, 0.3]") == 0
    printed = capsys.readouterr()
    for words in (
        "given texts (iterative tagging)",
        "before",
        "cross-fitted",
        "BS",
        "ECE-M",
        "SC",
        "--keep_factual 0.5",
    ):
        assert words in printed.out
    assert "labelled sentences" in printed.err  # a warning that they are few
    assert "there is no oracle" in printed.err
    (made,) = read_calibrations(run / "adapter").values()
    assert (
        made.mode == "iterative"
        and made.fitted.data == ("labels.jsonl",)
        and made.adapter == weights_digest(run / "adapter")
    )
    after, err = tagged(capsys)
    assert f"Confidence: mean of the score distribution, calibrated ({made.map.name}" in err
    for before, now in zip(raw, after, strict=True):
        given = Sentence(before["text"], score=before["score"], distribution=tuple(before["distribution"]))
        assert now["confidence"] == pytest.approx(made.confidence(given), abs=1e-12)
        assert {**before, "confidence": now["confidence"]} == now  # score, distribution and text stay
    assert tagged(capsys, "--raw")[0] == raw == tagged(capsys, "--readout", "mean")[0]
    assert tagged(capsys, "--readout", "stated")[0] == [{**s, "confidence": s["score"] / 10} for s in raw]
    record = lovec.tag(Path("page.txt").read_text(), adapter="run", device="cpu")
    assert record["sentences"] == after and "calibrated" in record._repr_html_()


@pytest.mark.parametrize(
    "words", [["--keep_factual", "0.5", "--keep-factual", "0.3"], ["--keep_factual=[0.5]", "--keep_factual=0.3"]]
)
def test_a_guarantee_is_asked_for_several_times_as_with_a_file(run: Path, words: list[str], capsys: Any) -> None:
    assert calibrated(*words) == 0
    (made,) = read_calibrations(run / "adapter").values()
    assert [found.keep_factual for found in made.guarantees] == [0.5, 0.3]
    code, line = error_of(capsys, "calibrate", "run", "--keep_factual", "0.5", "--keep_factual", "often")
    assert code == 2 and "keep_factual" in line


def test_sentences_below_the_threshold_of_a_guarantee_are_left_out(run: Path, capsys: Any) -> None:
    write_records("labels.jsonl", [replace_all(r, 1.0 if i % 8 else 0.0) for i, r in enumerate(labelled(40))])
    assert calibrated("--keep_factual", "[0.9, 0.8]") == 0
    (made,) = read_calibrations(run / "adapter").values()
    loose = made.threshold(0.8)
    whole = tagged(capsys)[0]
    kept, err = tagged(capsys, "--keep-factual", "0.8")  # both spellings of the option
    given = [Sentence(s["text"], score=s["score"], distribution=tuple(s["distribution"])) for s in whole]
    assert kept == [s for s, sentence in zip(whole, given, strict=True) if made.keeps(sentence, loose)]
    assert f"{len(whole) - len(kept)} sentences below the threshold of --keep_factual 0.8 left out" in err
    assert main(["tag", "page.txt", "--adapter", "run", "--device", "cpu", "--keep_factual", "0.8"]) == 0
    assert capsys.readouterr().out.count("</confidence>") == len(kept)
    code, line = last_error(capsys, "tag", "page.txt", "--adapter", "run", "--keep_factual", "0.7")
    assert code == 1 and "no threshold for --keep_factual 0.7, only for 0.9, 0.8" in line
    code, line = last_error(capsys, "tag", "--ask", "Who?", "--adapter", "run", "--keep_factual", "0.8")
    assert code == 1 and "no threshold for free-form tagging" in line
    code, line = last_error(capsys, "tag", "page.txt", "--adapter", "run", "--keep_factual", "1")
    assert code == 1 and "keep_factual is 1.0, expected above 0 and below 1" in line


def last_error(capsys: Any, *words: str) -> tuple[int, str]:
    """The exit code and the last line on standard error of a command that fails."""
    capsys.readouterr()
    code = main([*words, "--device", "cpu"])
    return code, capsys.readouterr().err.splitlines()[-1]


def replace_all(record: Record, factuality: float) -> Record:
    return record.with_factuality([factuality] * len(record.sentences))


def test_test_measures_what_is_deployed_and_predict_gives_it(run: Path, model: str, capsys: Any) -> None:
    assert calibrated() == 0
    (made,) = read_calibrations(run / "adapter").values()
    data = ["--data", "lovec.datamodules.Demonstrations", "--data.path", "labels.jsonl"]
    words = ["--model", "lovec.modules.SFT", "--model.policy.model", model, *data, "--data.test_path", "labels.jsonl"]
    words += ["--model.policy.instruction", "Rate each sentence."]
    words += ["--trainer.default_root_dir", "run", "--model.evaluation.vanilla", "false", *CPU]
    write_records("pairs.jsonl", labelled(40)[:15])
    trained(run, path="pairs.jsonl", val_path="absent.jsonl")
    capsys.readouterr()
    assert main(["test", *words]) == 0
    assert capsys.readouterr().err.count("run was trained on 15 of these 40 answers (pairs.jsonl), on which a mo") == 1
    rows = [row for row in read_results("run/test/labels/results.json").rows if row.method == "SFT"]
    assert {row.readout for row in rows} == {"stated", "mean", "deployed"}
    (deployed,) = (row for row in rows if row.readout == "deployed" and row.level == "sentence")
    assert deployed.file == "sft.iterative.deployed.jsonl"
    plain = with_mean_readout(list(read_records("run/test/labels/sft.iterative.jsonl")))
    pairs = [(made.confidence(s), s.factuality) for record in plain for s in record.sentences]
    confidence, factuality = (list(values) for values in zip(*pairs, strict=True))
    assert deployed.metrics["brier"] == pytest.approx(float(brier_score(confidence, factuality)), abs=1e-12)
    assert main(["predict", *words]) == 0
    predicted = list(read_records("run/predictions/labels.jsonl"))
    assert [s.confidence for r in predicted for s in r.sentences] == pytest.approx(confidence, abs=1e-6)
    assert [s.score for r in predicted for s in r.sentences] == [s.score for r in plain for s in r.sentences]
    with open("labels.jsonl", "rb") as file:
        assert file.read(1) == b"{"
    weights = run / "adapter" / "adapter_model.safetensors"
    save_file({name: 2 * value for name, value in load_file(weights).items()}, weights)
    capsys.readouterr()
    code, line = main(["test", *words]), capsys.readouterr().err.splitlines()[-1]
    assert code == 1 and "calibration.json was fitted to other weights" in line and "--raw" in line


def write_parts(here: Path, oracle: str) -> None:
    """Write a recipe whose oracle labels what the model answers, and the engine that answers."""
    (here / "my_parts.py").write_text(PARTS)
    recipe = {
        "model": {"class_path": "lovec.modules.SFT", "init_args": {"oracle": {"class_path": f"my_parts.{oracle}"}}},
        "data": {
            "class_path": "lovec.datamodules.Demonstrations",
            "init_args": {"path": "labels.jsonl", "val_path": "labels.jsonl"},
        },
    }
    (here / "recipe.yaml").write_text(json.dumps(recipe))


def test_given_texts_get_a_map_though_the_models_answers_have_no_labels(
    here: Path, run: Path, model: str, capsys: Any
) -> None:
    write_parts(here, "Silent")
    engine = ["--engine", "my_parts.Writer", "--engine.model", model, "--device", "cpu"]
    assert main(["calibrate", "run", "--config", "recipe.yaml", *engine]) == 0
    assert "answers that the model writes itself get the map of given texts: " in capsys.readouterr().err
    (made,) = read_calibrations(run / "adapter").values()
    assert made.mode == "iterative" and made.fitted.data == ("validation records of labels",)


def test_a_judge_without_its_key_is_refused_before_anything_is_tagged(
    here: Path, run: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch, no_key: None
) -> None:
    write_parts(here, "Short")
    recipe = json.loads(Path("recipe.yaml").read_text())
    judge = {"class_path": "lovec.oracles.OpenAIOracle", "init_args": {"model": "gpt"}}
    recipe["model"]["init_args"]["oracle"] = judge
    Path("recipe.yaml").write_text(json.dumps(recipe))
    monkeypatch.setattr("lovec.policy.Policy", None)  # no model is loaded
    assert main(["calibrate", "run", "--config", "recipe.yaml", "--device", "cpu"]) == 1
    said = capsys.readouterr().err
    assert "$OPENAI_API_KEY is not set" in said and "tagged" not in said
    assert not (run / "adapter" / "calibration.json").exists()


def test_a_class_that_is_no_engine_is_refused(here: Path, run: Path, capsys: Any) -> None:
    write_parts(here, "Short")
    code, line = error_of(capsys, "calibrate", "run", "--config", "recipe.yaml", "--engine", "my_parts.Short")
    assert code == 2 and line.startswith("--engine is my_parts.Short, which is not an Engine: expected methods"), line


def test_answers_of_the_model_get_a_map_of_their_own(here: Path, run: Path, model: str, capsys: Any) -> None:
    write_parts(here, "Short")
    engine = ["--engine", "my_parts.Writer", "--engine.model", model, "--device", "cpu"]
    assert main(["calibrate", "run", "--config", "recipe.yaml", *engine, "--keep_factual", "0.5"]) == 0
    assert "answers of the model (free-form tagging)" in capsys.readouterr().out
    made = read_calibrations(run / "adapter")
    assert list(made) == ["iterative", "free-form"] and made["free-form"].fitted.passages == 40
    words = ["tag", "--ask", "Who was Ada?", "--adapter", "run", *engine, "--format", "jsonl"]
    assert main([*words, "--raw"]) == main(words) == 0
    raw, mapped = (json.loads(line)["sentences"] for line in capsys.readouterr().out.splitlines())
    assert len(raw) == 3
    for before, now in zip(raw, mapped, strict=True):
        given = Sentence(before["text"], score=before["score"], distribution=tuple(before["distribution"]))
        assert now["confidence"] == pytest.approx(made["free-form"].confidence(given), abs=1e-12)
    # A second calibration, of given texts only, leaves the map of answers as it is.
    assert calibrated() == 0
    assert read_calibrations(run / "adapter")["free-form"] == made["free-form"]


@pytest.mark.parametrize("oracle", ["Reads", "Short"])
def test_answers_with_evidence_get_a_map_of_their_own_by_source(
    here: Path, model: str, tmp_path_factory: pytest.TempPathFactory, capsys: Any, oracle: str
) -> None:
    adapter = grounded_adapter(tmp_path_factory.mktemp("grounded"), model)
    write_records("labels.jsonl", both_kinds())
    write_parts(here, oracle)
    engine = ["--engine", "my_parts.Writer", "--engine.model", model, "--model", model, "--device", "cpu"]
    assert main(["calibrate", adapter, "--config", "recipe.yaml", *engine]) == 0
    printed = capsys.readouterr()
    given = ["iterative", "free-form", "by source"]
    made = read_calibrations(adapter)
    ask = ["tag", "--ask", "Who was Ada?", "--adapter", adapter, *engine, "--evidence", "source.txt"]
    Path("source.txt").write_text("Ada ran.")
    assert main([*ask, "--format", "jsonl", "--raw"]) == 0
    raw = json.loads(capsys.readouterr().out)["sentences"]
    assert main([*ask, "--format", "jsonl"]) == 0
    answer = capsys.readouterr()
    if oracle == "Short":  # it does not say what evidence supports
        assert list(made) == given
        said = "by source, answers that the model writes with evidence get the map of given texts with evidence: Short"
        assert said in printed.err and ", fitted to given texts." in answer.err
        used = made["by source"]
    else:
        assert list(made) == [*given, "free-form by source"]
        assert "answers of the model with evidence (by source)" in printed.out
        used = made["free-form by source"]
        assert used.fitted.passages == 20 != made["free-form"].fitted.passages
        assert used.map != made["by source"].map and "fitted to given texts" not in answer.err
    for now, before in zip(json.loads(answer.out)["sentences"], raw, strict=True):
        assert now["by_source"] == pytest.approx(float(used.map([before["by_source"]])[0]), abs=1e-6)
        assert now["confidence"] == pytest.approx(float(made["iterative"].map([before["confidence"]])[0]), abs=1e-6)
    # Given texts alone leave the map of answers as it is, which is said.
    assert main(["calibrate", adapter, "--data", "labels.jsonl", "--model", model, "--device", "cpu"]) == 0
    again = read_calibrations(adapter)
    assert again.get("free-form by source") == made.get("free-form by source")
    kept = "keep their earlier map" if oracle == "Reads" else "get the map of given texts with evidence"
    assert (
        f"by source, answers that the model writes with evidence {kept}: there is no oracle" in capsys.readouterr().err
    )


def test_several_features_are_mapped_together(run: Path, capsys: Any) -> None:
    assert calibrated("--features", "[mean, entropy, logp_mean, logp_min]") == 0
    (made,) = read_calibrations(run / "adapter").values()
    assert made.readout == ("mean", "entropy", "logp_mean", "logp_min")
    after = tagged(capsys)[0]
    with open_session(adapter="run", device="cpu") as session:
        given = Record("page", lovec.tagging.DEFAULT_QUESTION, sentences=tuple(Sentence(s["text"]) for s in after))
        [record] = IterativeTagger(session.engine, session.encoder, "mean", likelihoods=True).tag([given])
    assert [s["confidence"] for s in after] == pytest.approx([made.confidence(s) for s in record.sentences], abs=1e-5)


@pytest.mark.parametrize(("merged", "by_layer"), [(False, False), (False, True), (True, False)])
def test_exports_carry_the_map(run: Path, capsys: Any, merged: bool, by_layer: bool) -> None:
    if by_layer:
        changed_file(run / "adapter" / "adapter_config.json", '"alpha_pattern": {}', '"alpha_pattern": {"v_proj": 64}')
    assert calibrated("--keep_factual", "0.3") == 0
    expected = tagged(capsys)[0]
    assert main(["export", "run", "out", *(["--merged"] if merged else [])]) == 0
    (made,) = read_calibrations("out").values()
    (fitted,) = read_calibrations(run / "adapter").values()
    # A merged model is a base model of its own, and layers with scalings of their own are given one.
    provenance = made.provenance if merged or by_layer else fitted.provenance
    assert made == replace(fitted, adapter=weights_digest("out"), provenance=provenance)
    card = Path("out/README.md").read_text()
    assert made.describe() in card and "--keep_factual 0.3" in card
    source = ["--model", "out"] if merged else ["--adapter", "out"]
    capsys.readouterr()
    assert main(["tag", "page.txt", *source, "--device", "cpu", "--format", "jsonl"]) == 0
    found = json.loads(capsys.readouterr().out)["sentences"]
    assert [s["confidence"] for s in found] == pytest.approx([s["confidence"] for s in expected], abs=1e-4)


def test_a_finished_file_of_tags_knows_its_calibration(run: Path, capsys: Any) -> None:
    words = ["tag", "page.txt", "--adapter", "run", "--device", "cpu", "--out", "tags.jsonl"]
    assert main(words) == 0
    assert calibrated() == 0
    code, line = error_of(capsys, *words, "--about", "A")
    assert code == 1 and "calibration" in line


def test_the_runs_own_recipe_says_where_its_data_are(here: Path, run: Path, capsys: Any) -> None:
    logs = run / "logs" / "version_0"
    logs.mkdir(parents=True)
    settings = {"class_path": "lovec.datamodules.Demonstrations", "init_args": {"path": "labels.jsonl"}}
    (logs / "config.yaml").write_text(json.dumps({"data": settings, "model": {}, "trainer": {}}))
    code, line = error_of(capsys, "calibrate", "run")
    assert code == 1 and "data.path" in line and "--config run/logs/version_0/config.yaml" in line
    (here / "my_evil.py").write_text("open('canary', 'w')\nclass Data: ...\n")
    (logs / "config.yaml").write_text(json.dumps({"data": {"class_path": "my_evil.Data"}}))
    code, line = error_of(capsys, "calibrate", "run")
    assert code == 1 and "sets data" in line and not Path("canary").exists()
    (logs / "config.yaml").write_text("{")
    assert error_of(capsys, "calibrate", "run")[0] == 1
    (logs / "config.yaml").write_text(json.dumps({"data": settings}))
    (run / "adapter" / "adapter_model.safetensors").touch()
    failed = run / "logs" / "version_1" / "config.yaml"
    failed.parent.mkdir()
    failed.write_text("{")
    os.utime(failed, (2**32, 2**32))  # later than the adapter, which it has not written
    assert "--config run/logs/version_0/config.yaml" in error_of(capsys, "calibrate", "run")[1]


@pytest.mark.parametrize(
    ("rows", "words", "message"),
    [
        ([], [], "labels.jsonl is empty"),
        (None, [], "no sentence has a label"),
        (1.0, [], "the factuality 1 (one class)"),
        ("one", [], "all of one passage"),
        ("ok", ["--keep_factual", "1.5"], "--keep_factual is 1.5, expected above 0 and below 1"),
        ("ok", ["--features", "[mean, colour]"], "colour"),
        ("ok", ["--share", "0.5"], "--share is 0.5, which only --promise share takes"),
        ("ok", ["--true_from", "0"], "--true_from is 0.0, expected above 0"),
    ],
)
def test_what_cannot_be_fitted_is_one_line(run: Path, capsys: Any, rows: Any, words: list[str], message: str) -> None:
    records = labelled(12)
    if rows is None or isinstance(rows, float):
        records = [record.with_factuality([rows] * len(record.sentences)) for record in records]
    write_records("labels.jsonl", {"ok": records, "one": records[:1]}.get(rows, records) if rows != [] else [])
    capsys.readouterr()
    code = main(["calibrate", "run", "--data", "labels.jsonl", "--device", "cpu", *words])
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("lovec: error: ")]
    assert code in (1, 2) and len(lines) == 1 and message in lines[0]
    assert not (run / "adapter" / "calibration.json").exists()


@pytest.mark.parametrize("text", ["", "[]", "{", '{"calibrations": [{}]}', '{"calibrations": 5}', "\x00", "[" * 9000])
def test_a_broken_file_is_one_line(run: Path, capsys: Any, text: str) -> None:
    (run / "adapter" / "calibration.json").write_text(text)
    code, line = error_of(capsys, "tag", "page.txt", "--adapter", "run", "--about", "A")
    assert code == 1 and "calibration.json" in line and "--raw" in line
    assert main(["tag", "page.txt", "--adapter", "run", "--about", "A", "--device", "cpu", "--raw"]) == 0


def test_there_is_no_run(here: Path, capsys: Any) -> None:
    code, line = error_of(capsys, "calibrate", "nothing", "--data", "labels.jsonl")
    assert code == 1 and "nothing" in line


@pytest.mark.parametrize("name", list(SHIPPED))
def test_an_adapter_of_the_package_stays_as_it_is(run: Path, capsys: Any, name: str) -> None:
    before = {path: path.read_bytes() for path in SHIPPED[name].iterdir() if path.is_file()}
    for words in (["--data", "labels.jsonl"], ["--feedback", "labels.jsonl"]):
        code, line = error_of(capsys, "calibrate", name, *words)
        assert code == 1 and f"{name} comes with the package" in line and f"lovec export {name} FOLDER" in line
    assert before == {path: path.read_bytes() for path in SHIPPED[name].iterdir() if path.is_file()}


def test_an_adapter_of_the_package_becomes_a_folder_that_can_be_calibrated(here: Path) -> None:
    assert main(["export", "world", "mine"]) == 0
    assert all((here / "mine" / path.name).is_file() for path in SHIPPED["world"].iterdir())


def trained(folder: Path, **data: Any) -> None:
    """Write the recipe that a training run logs."""
    adapter, name = data.pop("adapter", None), data.pop("name", "Preferences")
    logs = folder / "logs" / "version_0"
    logs.mkdir(parents=True)
    settings = {"class_path": f"lovec.datamodules.{name}", "init_args": data}
    model = {"class_path": "lovec.modules.DPO", "init_args": {"policy": {"adapter": adapter}}}
    (logs / "config.yaml").write_text(json.dumps({"seed_everything": 0, "model": model, "data": settings}))


@pytest.mark.parametrize("where", ["the same file", "a copy in another order", "an earlier stage", "validation"])
def test_answers_that_training_has_seen_promise_nothing(here: Path, run: Path, capsys: Any, where: str) -> None:
    write_records("copy.jsonl", [replace(record, id=f"x-{record.id}") for record in reversed(labelled(40))])
    words = ["--data", "copy.jsonl" if where == "a copy in another order" else "labels.jsonl"]
    if where == "an earlier stage":
        trained(here / "sft", path="labels.jsonl", val_path="other.jsonl")
        trained(run, path="absent.jsonl", val_path="other.jsonl", adapter="sft/adapter")
    else:
        trained(run, path="labels.jsonl", val_path="labels.jsonl")
    if where == "validation":
        words = ["--config", "run/logs/version_0/config.yaml"]
    code, line = error_of(capsys, "calibrate", "run", *words, "--keep_factual", "0.5", "--device", "cpu")
    assert code == 1 and "was trained on 40 of these 40 answers (labels.jsonl)" in line and "--data FILE" in line
    assert not (run / "adapter" / "calibration.json").exists()


def test_what_training_has_seen_is_left_out_and_what_it_held_out_is_not(run: Path, capsys: Any) -> None:
    write_records("pairs.jsonl", labelled(40)[:15])
    trained(run, path="pairs.jsonl", val_path="other.jsonl")
    assert calibrated() == 0
    assert "trained on 15 of these 40 answers (pairs.jsonl); they are left out" in capsys.readouterr().err
    (made,) = read_calibrations(run / "adapter").values()
    assert made.fitted.passages == 25
    shutil.rmtree(run / "logs")
    trained(run, path="labels.jsonl", val_fraction=0.5)
    assert main(["calibrate", "run", "--config", "run/logs/version_0/config.yaml", "--device", "cpu"]) == 0
    assert "left out" not in capsys.readouterr().err
    (held_out,) = read_calibrations(run / "adapter").values()
    assert 10 < held_out.fitted.passages < 30
    assert calibrated() == 0  # of the whole file, just those that were held out are taken
    (again,) = read_calibrations(run / "adapter").values()
    assert again.fitted.passages == held_out.fitted.passages


def biography(record: Record) -> dict[str, Any]:
    """Return a record as a row of FActScore's labelled data."""
    annotations = [
        {"text": s.text, "human-atomic-facts": [{"text": s.text, "label": "S" if s.factuality else "NS"}]}
        for s in record.sentences
    ]
    cells = {"input": f"Question: {record.question} ({record.id})", "output": record.answer, "topic": record.id}
    return {**cells, "cat": ["rare", "Asia"], "annotations": annotations}


@pytest.mark.parametrize("unit", ["sentence", "clause"])
def test_annotated_answers_are_known_by_their_split(run: Path, capsys: Any, unit: str) -> None:
    rows = "".join(json.dumps(biography(record)) + "\n" for record in labelled(150))
    Path("bios.jsonl").write_text(rows)
    trained(run, name="FActScore", path="bios.jsonl", unit=unit)
    assert main(["calibrate", "run", "--data", "bios.jsonl", "--device", "cpu"]) == 0
    seen = len(FActScore("bios.jsonl", unit).load("train"))
    assert seen == 120 or (unit == "clause" and 80 < seen < 120)  # the others have a clause without a label
    assert f"run was trained on {seen} of these 150 answers (bios.jsonl)" in capsys.readouterr().err
    assert main(["calibrate", "run", "--config", "run/logs/version_0/config.yaml", "--device", "cpu"]) == 0
    assert "left out" not in capsys.readouterr().err
    (made,) = read_calibrations(run / "adapter").values()
    assert made.fitted.passages == 15


def test_labelled_answers_of_a_test_set_are_known_by_their_split(run: Path, capsys: Any) -> None:
    splits = ["train"] * 15 + ["validation"] * 25
    records = [replace(r, meta={"split": split}) for r, split in zip(labelled(40), splits, strict=True)]
    write_records("wild.jsonl", records)
    trained(run, name="WildHallu", labels="wild.jsonl", path=None)
    assert calibrated() == 0
    assert "run was trained on 15 of these 40 answers (wild.jsonl)" in capsys.readouterr().err


def test_training_files_of_other_classes_are_compared_as_files(run: Path, capsys: Any) -> None:
    write_records("pairs.jsonl", labelled(40)[:15])
    trained(run, name="testsets.my_evil.Data", path="pairs.jsonl", val_path="other.jsonl", more=1)
    assert calibrated() == 0
    assert "run was trained on 15 of these 40 answers (pairs.jsonl)" in capsys.readouterr().err


def test_test_questions_that_training_has_seen_are_counted(here: Path) -> None:
    records = [replace(record, question=f"Who is {record.id}?") for record in labelled(9)]
    asked = [Record(f"q{at}", record.question.upper()) for at, record in enumerate(records)]
    write_records("pairs.jsonl", records[:4])
    trained(here / "run", path="pairs.jsonl", val_path="other.jsonl")
    assert seen(asked, Path("run")) == [
        "run was trained on 4 of these 9 questions (pairs.jsonl), on which a model is too sure; test it on others"
    ]
    assert seen(asked[4:], Path("run")) == seen([*records[4:], *labelled(1)], Path("run")) == []
    Path("pairs.jsonl").unlink()
    assert seen(asked, Path("run")) == seen(asked, Path("absent")) == []


def changed_file(path: Path, *pair: str) -> None:
    text = path.read_text()
    assert pair[0] in text
    path.write_text(text.replace(*pair))


@pytest.mark.parametrize(
    ("change", "words", "said"),
    [
        (("adapter_config.json", '"lora_alpha": 8', '"lora_alpha": 64'), [], "lora_alpha was 8, is 64"),
        (("adapter_config.json", '"use_rslora": false', '"use_rslora": true'), [], "use_rslora was none, is true"),
        (("lovec.json", "Rate each", "Never rate a"), [], 'instruction was "Rate each sentence.", is "Never rate a'),
        (None, ["--instruction", "Rate."], 'instruction was "Rate each sentence.", is Rate.'),
        (None, ["--tag_words", "[<b>, </b>]"], 'tag_words was ["<confidence>", "</confidence>"], is ["<b>", "</b>"]'),
        (None, ["--scale", "[a, b, c, d, e, f, g, h, i, j, k]"], 'scale was ["0", "1", "2", "3", "4"'),
        (None, ["--scoring", "exact"], "scoring was prefix, is exact"),
        (None, ["--chat_template", "other.jinja"], "chat_template was "),
        (None, ["--quantization", "nf4"], "quantization was none, is nf4"),
        (None, ["--model", "other", "--any_base", "true"], "model was llama, is other"),
    ],
)
def test_a_map_is_not_applied_to_the_scores_of_another_model(
    here: Path, run: Path, model: str, capsys: Any, change: Any, words: list[str], said: str
) -> None:
    assert calibrated() == 0
    template = (Path(model) / "chat_template.jinja").read_text()
    (here / "other.jinja").write_text(template + "{# #}")
    shutil.copytree(model, here / "other")
    weights = load_file(here / "other" / "model.safetensors")
    save_file({name: 2 * value for name, value in weights.items()}, here / "other" / "model.safetensors")
    if change is not None:
        changed_file(run / "adapter" / change[0], *change[1:])
    tag = ["tag", "page.txt", "--about", "Ada", "--adapter", "run", "--device", "cpu", *words]
    code, line = error_of(capsys, *tag)
    assert code == 1 and "calibration.json was fitted to other scores (" in line and said in line
    assert "calibrate again, or leave confidences as they are: without that file, or by --raw" in line
    if "nf4" not in words:  # which needs an extra
        assert main([*tag, "--raw"]) == 0
    with pytest.raises(LovecError, match="fitted to other scores"):
        options = {word.removeprefix("--"): value for word, value in zip(words[::2], words[1::2], strict=True)}
        options = {name: value[1:-1].split(", ") if value[0] == "[" else value for name, value in options.items()}
        lovec.tag("Ada ran.", adapter="run", **options)


def test_a_map_of_a_changed_adapter_is_not_exported(run: Path, capsys: Any) -> None:
    assert calibrated() == 0
    changed_file(run / "adapter" / "adapter_config.json", '"lora_alpha": 8', '"lora_alpha": 64')
    for merged in ([], ["--merged"]):
        code, line = main(["export", "run", "out", *merged]), capsys.readouterr().err.splitlines()[-1]
        assert code == 1 and "lora_alpha was 8, is 64" in line and not Path("out").exists()


def test_a_map_of_an_earlier_version_is_applied_with_one_warning(run: Path, capsys: Any, caplog: Any) -> None:
    assert calibrated() == 0
    expected = tagged(capsys)[0]
    path = run / "adapter" / "calibration.json"
    data = json.loads(path.read_text())
    for made in data["calibrations"]:
        del made["provenance"]
        made["version"] = 1
    path.write_text(json.dumps(data))
    found, _ = tagged(capsys)
    assert found == expected
    (warning,) = (line for line in caplog.messages if "could not be checked" in line)
    assert "base model, prompt, options of the adapter" in warning and "calibrate again" in warning


def test_a_grounded_adapter_gets_a_map_for_each_kind_of_confidence(
    model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    policy = PolicyConfig(model=model, lora_r=4, lora_alpha=8, grounded=True)
    trainer(tmp_path / "run", max_steps=1).fit(module(SFT, model, policy=policy), Rows())
    adapter = str(tmp_path / "run" / "adapter")
    write_records("both.jsonl", both_kinds())
    assert main(["calibrate", adapter, "--data", "both.jsonl", "--model", model, "--device", "cpu"]) == 0
    assert "given texts with evidence (by source)" in capsys.readouterr().out
    found = read_calibrations(adapter)
    assert {mode: made.fitted.passages for mode, made in found.items()} == {"iterative": 30, "by source": 20}
    # Each map is applied to its own confidence.
    asked = {"text": "Ada ran. It was noon.", "question": "Q?", "evidence": "It was noon in London."}
    deployed = lovec.tag(**asked, session=open_session(model, adapter))["sentences"]
    raw = lovec.tag(**asked, session=open_session(model, adapter, raw=True))["sentences"]
    for sentence, before in zip(deployed, raw, strict=True):
        for mode, name in (("iterative", "confidence"), ("by source", "by_source")):
            assert sentence[name] == pytest.approx(float(found[mode].map([before[name]])[0]), abs=1e-6)
    assert ServedConfidence({"iterative": found["iterative"]}).calibration("by source") is None  # it is of other scores
    # What has no labels stays as it is, and a line says so.
    write_records("sourced.jsonl", [record for record in both_kinds() if record.evidence])
    Path(adapter, "calibration.json").unlink()
    assert main(["calibrate", adapter, "--data", "sourced.jsonl", "--model", model, "--device", "cpu"]) == 0
    assert list(read_calibrations(adapter)) == ["by source"]
    assert "confidences by knowledge stay as they are" in capsys.readouterr().err
