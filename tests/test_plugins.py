"""Packages of others: what docs/extending.md prints is built, installed by pip and used by its names."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from forks import Fork

from lovec.cli import main
from lovec.datasets.jsonl import read_records, write_records
from lovec.types import Record, Sentence

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "extending.md"
FILES = ("pyproject.toml", "lovec_myoracle/__init__.py", "lovec_myoracle/models.py")


def install(folder: Path, site: Path, files: dict[str, str]) -> None:
    """Write the files of a package, and have pip build and install it, without an index."""
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-build-isolation", "--no-deps"]
    done = subprocess.run([*command, "--target", str(site), str(folder)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def project(name: str, **groups: str) -> str:
    """The pyproject.toml of a package of one module."""
    module = name.replace("-", "_")
    entries = "".join(f'[project.entry-points."lovec.{group}"]\n{entry}\n' for group, entry in groups.items())
    return (
        '[build-system]\nrequires = ["setuptools>=77"]\nbuild-backend = "setuptools.build_meta"\n'
        f'[project]\nname = "{name}"\nversion = "2.1"\ndescription = "a small test"\n'
        f'[tool.setuptools]\npy-modules = ["{module}"]\n{entries}'
    )


def forget() -> None:
    """Empty the caches of lovec: this process may have looked for packages before."""
    for module in [module for name, module in sys.modules.items() if name.partition(".")[0] == "lovec"]:
        for value in vars(module).values():
            if callable(clear := getattr(value, "cache_clear", None)):
                clear()


def runner(site: Path, cwd: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run lovec in a process that sees the packages of a folder: a copy of this one, or with ``anew`` a new Python.

    What goes through Python's warnings is seen of a new one only: the tests catch those of their own process.
    """

    def run(*words: str, anew: bool = False) -> subprocess.CompletedProcess[str]:
        if anew:
            path = os.pathsep.join([str(site), *filter(None, [os.environ.get("PYTHONPATH")])])
            env = {**os.environ, "PYTHONPATH": path, "LOVEC_DEBUG": ""}
            command = [sys.executable, "-m", "lovec", *words]
            return subprocess.run(command, capture_output=True, text=True, cwd=cwd, env=env)

        def work() -> int:
            os.chdir(cwd)
            sys.path.insert(0, str(site))
            forget()
            return main(list(words))

        with tempfile.TemporaryFile("w+", encoding="utf-8") as errors:
            with Fork(work, {"LOVEC_DEBUG": ""}, stderr=errors) as fork:
                printed = fork.stdout.read()
            errors.seek(0)
            return subprocess.CompletedProcess(words, fork.returncode, printed, errors.read())

    return run


@pytest.fixture(scope="module")
def printed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the package that the page prints, installed."""
    text = PAGE.read_text(encoding="utf-8")
    files = {name: re.findall(rf"`{re.escape(name)}`[^`]*:\n\n```\w+\n(.*?)^```$", text, re.M | re.S) for name in FILES}
    site = tmp_path_factory.mktemp("site")
    install(tmp_path_factory.mktemp("package"), site, {name: found for name, (found,) in files.items()})
    return site


@pytest.fixture
def lovec(printed: Path, tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    return runner(printed, tmp_path)


def test_a_command_of_a_package_is_listed_and_runs(lovec, tmp_path):
    rows = [{"post": "Who?", "claims": [{"text": "Ada.", "votes": 1, "sure": 0.9}]}]
    (tmp_path / "posts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    listed = lovec("--help").stdout
    assert "  longest    tells by the length of a sentence whether it is true (lovec-myoracle 1.0)\n" in listed
    done = lovec("longest", "posts.jsonl", anew=True)
    assert (done.returncode, done.stdout) == (0, "Ada.\n"), done.stderr
    assert "1 rows read as forum posts: 1 records" in done.stderr
    done = lovec("longest", "--fast")
    assert done.returncode == 2 and done.stderr.endswith("error: the following arguments are required: file\n")
    done = lovec("lonest")
    assert done.stderr == "lovec: error: unknown command lonest; did you mean longest?\n"


def test_a_layout_of_a_package_is_recognised_and_scored(lovec, tmp_path):
    claims = [{"text": f"Claim {n}.", "votes": n % 2, "sure": n / 10} for n in range(10)]
    (tmp_path / "posts.jsonl").write_text(json.dumps({"post": "Who?", "claims": claims}))
    for words in ([], ["--layout", "forum", "--redo"]):
        done = lovec("score", "posts.jsonl", "--draws", "5", *words)
        assert done.returncode == 0, done.stderr
        (row, *_) = json.loads((tmp_path / "posts.score/results.json").read_text())["rows"]
        expected = sum((claim["votes"] - claim["sure"]) ** 2 for claim in claims) / 10
        assert row["metrics"]["brier"] == pytest.approx(expected)
    done = lovec("score", "posts.jsonl", "--layout", "forun")
    assert done.returncode == 2 and "or forum" in done.stderr


def test_an_oracle_of_a_package_labels(lovec, tmp_path):
    write_records(tmp_path / "a.jsonl", [Record("a", "Who?", answer="Ada. She wrote many long notes.")])
    words = ["label", "--answers", "a.jsonl", "--stages", "sentences,label", "--out", "out"]
    done = lovec(*words, "--oracle", "Brief", "--oracle.words", "2")
    assert done.returncode == 0, done.stderr
    (record,) = read_records(tmp_path / "out/labelled.jsonl")
    assert [s.factuality for s in record.sentences] == [1, 0]
    done = lovec(*words, "--oracle", "Breif")
    assert done.stderr == "lovec: error: unknown class for --oracle: Breif; did you mean Brief?\n"


def test_an_engine_of_a_package_tags(lovec, model, tmp_path):
    (tmp_path / "page.txt").write_text("Ada wrote notes. She used an engine.")
    words = ["tag", "page.txt", "--model", model, "--format", "jsonl"]
    own, brought = (lovec(*words, *engine) for engine in ([], ["--engine", "Checked"]))
    assert brought.returncode == 0, brought.stderr
    assert brought.stdout == own.stdout
    done = lovec(*words, "--engine", "Checked", "--engine.max_rows", "0")
    assert done.returncode == 1 and "max_rows is 0" in done.stderr


def test_a_baseline_of_a_package_is_measured(lovec, model, adapter, tmp_path):
    sentences = (Sentence("Ada wrote notes.", 1.0), Sentence("It rained.", 0.0))
    write_records(
        tmp_path / "t.jsonl", [Record("a", "Who?", answer="Ada wrote notes. It rained.", sentences=sentences)]
    )
    words = [
        "--data",
        "Demonstrations",
        "--data.path",
        "t.jsonl",
        "--data.test_path",
        "t.jsonl",
        "--model.policy.model",
        model,
    ]
    words += ["--model.evaluation.adapter", adapter, "--model.evaluation.modes", "[iterative]"]
    words += ["--model.baselines+=Steady", "--model.baselines.level", "0.7", "--trainer.accelerator", "cpu"]
    done = lovec("test", "--config", "sft.yaml", *words)
    assert done.returncode == 0, done.stderr
    assert re.search(r"Steady .*29\.0", done.stdout), done.stdout  # mean of 0.3^2 and 0.7^2


@pytest.fixture(scope="module")
def broken(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a package that cannot be imported, and one that claims names which are taken."""
    site = tmp_path_factory.mktemp("site")
    entries = {
        kind: 'torn = "lovec_torn:torn"\nboth = "lovec_torn:both"' for kind in ("commands", "layouts", "engines")
    }
    oracles = 'Torn = "lovec_torn:Torn"\nBoth = "lovec_torn:Both"'
    files = {"pyproject.toml": project("lovec-torn", **entries, oracles=oracles), "lovec_torn.py": "import not_there\n"}
    install(tmp_path_factory.mktemp("torn"), site, files)
    entries = {kind: 'both = "lovec_other:both"' for kind in ("layouts", "engines")}
    oracles = 'Both = "lovec_other:both"\nLabelFile = "lovec_other:both"'
    commands = 'both = "lovec_other:both"\njoin = "lovec_other:both"\nword = "lovec_other:word"'
    files = {
        "pyproject.toml": project("lovec-other", **entries, oracles=oracles, commands=commands),
        "lovec_other.py": "word = 'a word'\n\ndef both(words):\n    print('of another package')\n",
    }
    install(tmp_path_factory.mktemp("other"), site, files)
    return site


TORN = (
    r"lovec: error: '[Tt]orn' in the entry points lovec\.\w+ of lovec-torn 2\.1 cannot be used \(ModuleNotFoundError: "
    r"No module named 'not_there'\); update it with pip install --upgrade lovec-torn, or remove it with pip uninstall "
    r"lovec-torn"
)
BOTH = (
    r"lovec: error: '[Bb]oth' in the entry points lovec\.\w+ is of lovec-other 2\.1 and lovec-torn 2\.1; remove all "
    r"but one with pip uninstall"
)


@pytest.mark.parametrize(
    "words",
    [
        "{0}",
        "score rows.jsonl --layout {0}",
        "tag page.txt --model tiny-llama --engine {0}",
        "label --answers rows.jsonl --oracle {1}",
        "fit --config sft.yaml --model.oracle {1}",
    ],
)
def test_a_broken_package_and_a_name_of_two_are_named_with_the_fix(broken, tmp_path, words):
    lovec = runner(broken, tmp_path)
    (tmp_path / "rows.jsonl").write_text(json.dumps({"prompt": "Who?", "response": "Ada.", "label": 1}))
    (tmp_path / "page.txt").write_text("Ada.")
    for number, message in enumerate((TORN, BOTH)):
        done = lovec(*words.format(*(("torn", "Torn"), ("both", "Both"))[number]).split())
        assert done.returncode == 1 and re.fullmatch(message, done.stderr.splitlines()[-1]), done.stderr


def test_other_commands_work_beside_a_broken_package(broken, tmp_path):
    lovec = runner(broken, tmp_path)
    assert "  torn       a small test (lovec-torn 2.1)\n" in lovec("--help").stdout
    (tmp_path / "rows.jsonl").write_text(json.dumps({"prompt": "Who?", "response": "Ada.", "label": 1}))
    done = lovec("label", "--answers", "rows.jsonl", "--stages", "sentences", anew=True)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("cannot be used") == 1 and "is of lovec-" in done.stderr
    done = lovec("word")
    assert done.returncode == 1 and "(TypeError: lovec_other:word is of type str, expected function)" in done.stderr


def test_names_of_lovec_cannot_be_taken(broken, tmp_path):
    lovec = runner(broken, tmp_path)
    assert lovec("join", "--help").stdout.startswith("usage: lovec join")
    assert "lovec-other" not in re.findall("  join .*", lovec("--help").stdout)[0]
    write_records(tmp_path / "a.jsonl", [Record("a", "Who?", sentences=(Sentence("Ada.", 0.5),))])
    words = ["--answers", "a.jsonl", "--stages", "sentences,label", "--oracle", "LabelFile", "--oracle.path", "a.jsonl"]
    assert lovec("label", *words).returncode == 0
