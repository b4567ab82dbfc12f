"""With --quiet a command prints its result, warnings and errors, and neither progress nor notes."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml
from tinyrun import records, tiny

from lovec.cli import COMMANDS, main, without_quiet
from lovec.core.progress import LINES, QUIET, Heartbeat, doing, note, quiet
from lovec.datasets.jsonl import write_records

ROWS = "confidence,label\n0.9,1\n0.2,0\n0.7,1\n"


def run(capfd, *words):
    """Exit code, standard output and standard error of a command."""
    capfd.readouterr()
    code = main([*words])
    return code, *capfd.readouterr()


@pytest.mark.parametrize(
    ("given", "words", "silent"),
    [
        (["tag", "a", "--quiet"], ["tag", "a"], True),
        (["--quiet", "tag", "a"], ["tag", "a"], True),
        (["tag", "--quiet", "true", "a"], ["tag", "a"], True),
        (["tag", "--quiet", "False", "a"], ["tag", "a"], False),
        (["tag", "--quiet=false", "a"], ["tag", "a"], False),
        (["tag", "--quiet=perhaps"], ["tag", "--quiet=perhaps"], False),
        (["tag", "a"], ["tag", "a"], False),
    ],
)
def test_the_option_may_stand_anywhere(given, words, silent):
    assert without_quiet(given) == (words, silent)


def test_a_training_and_what_follows_say_nothing_and_print_the_same(here, tmp_path_factory):
    def lovec(*words):
        """As a process of its own: the log goes to a standard error that pytest has not replaced."""
        done = subprocess.run([sys.executable, "-m", "lovec", *words], capture_output=True, text=True)
        return done.returncode, done.stdout, done.stderr

    write_records("rows.jsonl", records(12))
    Path("own.yaml").write_text(yaml.safe_dump({
        "trainer": {"accelerator": "cpu", "default_root_dir": "runs/own", "limit_val_batches": 0,
                    "limit_train_batches": 1, "log_every_n_steps": 1},
        "model": {"init_args": {"policy": {"model": tiny(tmp_path_factory.getbasetemp())},
                                "evaluation": {"modes": ["iterative"]}}},
        "data": {"class_path": "Demonstrations",
                 "init_args": {**dict.fromkeys(("path", "val_path", "test_path"), "rows.jsonl"), "batch_size": 4}},
    }))  # fmt: skip
    recipes = ["--config", "sft.yaml", "--config", "own.yaml"]
    assert lovec("fit", *recipes, "--quiet") == (0, "", "")
    code, table, said = lovec("test", *recipes, "--quiet")
    assert code == 0 and "SFT" in table
    assert [line for line in said.splitlines() if "warning" not in line.lower()] == []
    tag = ["tag", "--adapter", "runs/own", "--about", "Ada", "page.txt"]
    Path("page.txt").write_text("She was born in London.\n")
    code, text, said = lovec(*tag)
    assert code == 0 and "1 sentence, mean confidence" in said
    assert lovec(*tag, "--quiet") == (0, text, "")


def test_results_warnings_and_errors_stay(here, capfd):
    Path("rows.csv").write_text(ROWS)
    code, table, said = run(capfd, "score", "rows.csv", "--draws", "10")
    assert code == 0 and "columns guessed" in said and "next: " in said
    assert run(capfd, "score", "rows.csv", "--draws", "10", "--redo", "--quiet") == (0, table, "")
    code, out, said = run(capfd, "--quiet", "score", "none.csv")
    assert (code, out) == (1, "") and said.startswith("lovec: error: cannot read none.csv")
    code, _, said = run(capfd, "serve", "--quiet=perhaps")
    assert code == 2 and "--quiet" in said
    assert QUIET not in os.environ


def test_a_warning_is_no_note(capsys):
    from lovec.cli.console import remark, say, say_next, warn

    with quiet():
        for print_note in (note, remark, say):
            print_note("not printed")
        say_next(("lovec tag", "not printed"))
        LINES.write("not printed")
        warn("two\n lines")
    assert capsys.readouterr().err == "lovec: warning: two lines\n"
    note("printed")
    assert capsys.readouterr().err == "printed\n"


def test_a_heartbeat_is_silent(capsys):
    with Heartbeat(0.01), doing("work"):
        time.sleep(0.5)
    assert "lovec: work, 0:0" in capsys.readouterr().err
    with quiet(), Heartbeat(0.01), doing("work"):
        time.sleep(0.5)
    assert capsys.readouterr().err == ""


def test_processes_that_are_started_are_quiet():
    code = "from lovec.core.progress import note; note('not printed')"
    with quiet():
        run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stderr == ""


@pytest.mark.parametrize("command", sorted(set(COMMANDS) - {"label", "serve", "calibrate", "tag"}))
def test_every_help_names_it(command, capsys):
    assert main([command, "--help"]) == 0
    assert "With --quiet, no progress" in capsys.readouterr().out


def test_what_the_log_warns_of_looks_like_every_warning(here):
    # A process of its own: pytest has a log, and what is logged is then left to that.
    Path("page.txt").write_text("Kirela is a town in Oban, and it has a port.\n")
    words = ["tag", "page.txt", "--model", "world", "--adapter", "world", "--unit", "clause", "--quiet"]
    done = subprocess.run([sys.executable, "-m", "lovec", *words], capture_output=True, text=True)
    lines = done.stderr.splitlines()
    assert done.returncode == 0 and sum("was trained on sentences" in line for line in lines) == 1
    assert [line for line in lines if not line.startswith("lovec: warning: ")] == []
