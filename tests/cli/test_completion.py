"""The shells complete what the parsers take: the scripts are read by real shells."""

from __future__ import annotations

import shlex
import shutil
import subprocess

import pytest

from lovec.cli import COMMANDS, main
from lovec.cli.arguments import RECIPES
from lovec.cli.completion import command_tree

IN_BASH = 'source "$0"; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _shtab_lovec; printf "%s\\n" "${COMPREPLY[@]}"'


@pytest.fixture(scope="module")
def scripts(tmp_path_factory):
    """The folder of the scripts, by which each shell names it."""
    folder = tmp_path_factory.mktemp("scripts")
    for shell in ("bash", "fish"):
        with pytest.MonkeyPatch.context() as patch, open(folder / shell, "w") as file:
            patch.setattr("sys.stdout", file)
            assert main(["completion", shell]) == 0
    return folder


def completed(scripts, line, folder):
    """What bash offers for the last word of a command line."""
    words = [*shlex.split(line), *([""] if line.endswith(" ") else [])]
    command = ["bash", "--norc", "-c", IN_BASH, str(scripts / "bash"), *words]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True)
    assert done.stderr == ""
    return done.stdout.split()


def test_bash_completes_commands(scripts, tmp_path):
    assert completed(scripts, "lovec ta", tmp_path) == ["tag"]
    assert set(COMMANDS) <= set(completed(scripts, "lovec ", tmp_path))


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("lovec score --lay", {"--layout"}),
        ("lovec score --layout u", {"uqlm"}),
        ("lovec tag --min", {"--min_confidence"}),  # from the signature of a class
        ("lovec tag --format j", {"jsonl"}),
        ("lovec label --oracle Self", {"SelfJudge"}),
        ("lovec fit --model.policy.mod", {"--model.policy.model"}),
        ("lovec fit --trainer.acc", {"--trainer.accelerator", "--trainer.accumulate_grad_batches"}),
        ("lovec fit --model Dist", {"Distil"}),
        ("lovec sweep --va", {"--vary"}),
        ("lovec sweep --data Pref", {"Preferences"}),
        ("lovec curves --qui", {"--quiet"}),
        ("lovec completion z", {"zsh"}),
    ],
)
def test_bash_completes_options_and_their_values(line, expected, scripts, tmp_path):
    assert set(completed(scripts, line, tmp_path)) == expected


def test_bash_completes_recipes_and_names_of_files(scripts, tmp_path):
    (tmp_path / "results.csv").touch()
    (tmp_path / "sft-mine.yaml").touch()
    assert completed(scripts, "lovec score res", tmp_path) == ["results.csv"]
    packaged = {path.name for path in RECIPES.glob("sft*.yaml")}
    assert set(completed(scripts, "lovec fit --config sft", tmp_path)) == packaged | {"sft-mine.yaml"}


@pytest.mark.skipif(shutil.which("fish") is None, reason="fish is not installed")
def test_fish_completes_likewise(scripts, tmp_path):
    def offered(line):
        code = f"source {scripts / 'fish'}; complete -C {shlex.quote(line)}"
        done = subprocess.run(["fish", "--no-config", "-c", code], cwd=tmp_path, capture_output=True, text=True)
        return {entry.partition("\t")[0] for entry in done.stdout.splitlines()}

    assert offered("lovec ta") == {"tag"}
    assert offered("lovec score --layout u") == {"uqlm"}
    assert "sft.yaml" in offered("lovec fit --config s")


def test_every_command_has_its_own_options():
    branches = command_tree({})._subparsers._group_actions[0].choices
    assert set(branches) == set(COMMANDS)
    assert all(len(branch._actions) > 2 for branch in branches.values())  # more than --help and --quiet


def test_a_line_says_where_the_script_belongs(capsys):
    assert main(["completion", "zsh"]) == 0
    printed = capsys.readouterr()
    assert printed.out.startswith("#compdef lovec\n")
    assert printed.err.startswith('next: lovec completion zsh > "${fpath[1]}/_lovec"')
    assert main(["completion", "csh"]) == 2
