"""The command line: one-line errors, help, warnings and exit codes."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from dataclasses import fields
from inspect import signature
from pathlib import Path

import pytest
from commandline import CPU, error_of

from lovec.cli import COMMANDS, main
from lovec.cli.arguments import RECIPES
from lovec.cli.calibrate_run import CalibrateSettings
from lovec.cli.errors import UsageError
from lovec.cli.examples import EXAMPLES
from lovec.cli.label_options import LabelSettings
from lovec.cli.parser import OneLineParser, with_underscores
from lovec.cli.signatures import SignatureParser
from lovec.cli.tag_options import TagSettings
from lovec.taggers import open_session
from lovec.tagging import TextTagger
from lovec.types import LovecError

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def here(here):
    """A working directory with the adapter that stage 2 starts from, as far as it is looked for at first."""
    (here / "runs" / "sft" / "adapter").mkdir(parents=True)
    (here / "runs" / "sft" / "adapter" / "adapter_config.json").write_text("{}")
    return here


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ("fti", "unknown command fti; did you mean fit?"),
        ("--versoin", "unknown option --versoin; did you mean --version?"),
        ("demo --quik", "unknown option --quik; did you mean --quick?"),
        ("demo --seed x", "--seed is x, expected an integer"),
        ("demo --methods sft,dpp", "unknown method dpp; did you mean dpo?"),
        ("world now", "unexpected word now; options start with --"),
        ("fit --config", "--config needs the name of a recipe, such as sft.yaml"),
        ("fit", "--model must be given; a recipe does, such as --config sft.yaml"),
        ("fit -c llama3-8b.yaml",
         "no recipe names an objective; give one that does, such as --config sft.yaml, or --model CLASS"),
        ("fit --model DPPO", "unknown class for --model: DPPO; did you mean DPO?"),
        ("agreement a.jsonl", "B must be given"),
        ("tag x.txt --rwos 3", "unknown option --rwos; did you mean --rows?"),
        ("tag x.txt --readout median", "--readout is median, expected 'stated' or 'mean'"),
        ("serve --prot 80", "unknown option --prot; did you mean --port?"),
        ("serve --port high", "--port is high, expected an integer"),
        ("label --answers a.jsonl --chnk 3", "unknown option --chnk; did you mean --chunk?"),
        ("label --dta World", "unknown option --dta; did you mean --data?"),
        ("label --answers a.jsonl --labelled b.jsonl",
         "--answers and --labelled both say what to begin with; give one of them"),
        ("fit -c dpo.yaml --trainer.max_epoch 3",
         "unknown option --trainer.max_epoch; did you mean --trainer.max_epochs?"),
        ("fit -c dpo.yaml --trainer.max_epochs x", "--trainer.max_epochs is x, expected an integer"),
        ("fit -c dpo.yaml --model.betta 3", "unknown option --model.betta of DPO; did you mean --model.beta?"),
        ("fit -c dpo.yaml --model.policy.lora_q 3",
         "unknown option --model.policy.lora_q; did you mean --model.policy.lora_r?"),
        ("fit -c dpo.yaml --model.policy.lora_r x", "--model.policy.lora_r is x, expected an integer"),
        ("fit -c dpo.yaml --model.optimizer.lr x", "--model.optimizer.lr is x, expected a number"),
        ("fit -c dpo.yaml --model.optimizer Adm", "unknown class for --model.optimizer: Adm; did you mean Adam?"),
        ("fit -c dpo.yaml --model DPPO", "unknown class for --model: DPPO; did you mean DPO?"),
        ("fit -c dpo.yaml --model nofile.IPO",
         "cannot import nofile.IPO: No module named 'nofile'; a file of your own must be in the working directory"),
        ("fit -c dpo.yaml --model lovec.modules.DP0", "there is no DP0 in lovec.modules; did you mean DPO?"),
        ("fit -c dpo.yaml --data Preferences --model.policy.model world",
         "--data.path must be given for Preferences"),
        ("fit -c dpo.yaml extra", "unexpected word extra; options start with --"),
        ("fit -c grpo.yaml --model.reward LogRewrd",
         "unknown class for --model.reward: LogRewrd; did you mean LogReward?"),
        ("fit -c grpo.yaml --model.reward LogReward --model.reward.clp 1",
         "unknown option --model.reward.clp of LogReward; did you mean --model.reward.clip?"),
        ("fit -c grpo.yaml --model.reward fractions.Fraction",
         "--model.reward is fractions.Fraction, which is not a Reward: expected methods with these names and types: "
         "__call__(score: int | None, rating: int) -> float"),
    ],
)  # fmt: skip
def test_a_wrong_word_is_one_line_with_the_nearest_right_one(here, capsys, words, line):
    assert error_of(capsys, *words.split()) == (2, line)


@pytest.mark.parametrize(
    ("code", "line"),
    [
        ("import my_helper\n", "my_helper.py, line 2: NameError: name 'undefined' is not defined; correct this file"),
        ("class Mine\n    pass\n", "my_part.py, line 1: SyntaxError: expected ':'; correct this file"),
        ("\nimport no_package.part\n",
         "my_part.py, line 2: ModuleNotFoundError: No module named 'no_package'; install the package that has "
         "no_package, or put a file of your own into the working directory"),
        ("from lovec.modules import DPPO\n", "my_part.py, line 1: ImportError: cannot import name 'DPPO'"),
        ("import json\njson.loads('{')\n", "my_part.py, line 2: JSONDecodeError: Expecting property name"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("option", ["model", "model.baselines+", "data"])
def test_an_error_in_a_file_of_ones_own_names_file_line_and_exception(here, capsys, monkeypatch, option, code, line):
    Path("my_helper.py").write_text("# The first line.\nundefined\n")
    Path("my_part.py").write_text(code)
    for name in ("my_part", "my_helper"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    importlib.invalidate_caches()
    given, message = error_of(capsys, "fit", "-c", "sft.yaml", f"--{option}=my_part.Mine", *CPU)
    assert given == 2
    assert message.startswith(line)
    assert message.endswith("(LOVEC_DEBUG=1 shows the whole traceback)")


@pytest.mark.parametrize("error", ["ValueError", "RuntimeError"])
@pytest.mark.parametrize(
    ("words", "base"),
    [
        ("fit --model SFT --model.policy.model tiny-llama --data my_part.Mine", "lovec.datamodules.World"),
        ("label --data World --model tiny-llama --out labels --oracle my_part.Mine", "lovec.oracles.WorldOracle"),
    ],
)
def test_an_error_while_a_class_of_ones_own_is_made_is_one_line(here, capsys, monkeypatch, words, base, error):
    package, _, name = base.rpartition(".")
    code = f"from {package} import {name}\n\n\nclass Mine({name}):\n    def __init__(self) -> None:\n"
    Path("my_part.py").write_text(f"{code}        raise {error}('x')\n")
    monkeypatch.delitem(sys.modules, "my_part", raising=False)
    importlib.invalidate_caches()
    line = f"my_part.py, line 6: {error}: x; correct this file (LOVEC_DEBUG=1 shows the whole traceback)"
    assert error_of(capsys, *words.split(), *(CPU if words.startswith("fit") else ())) == (2, line)


@pytest.mark.parametrize(
    ("old", "new", "line"),
    [
        ("trainer:", "trainr:", "unknown option --trainr"),
        ("default_root_dir:", "default_root:",
         "unknown option --trainer.default_root; did you mean --trainer.default_root_dir?"),
        ("beta:", "btea:", "unknown option --model.btea of DPO; did you mean --model.beta?"),
        ("adapter:", "adaptor:", "unknown option --model.policy.adaptor; did you mean --model.policy.adapter?"),
        ("model:", "model: [", "recipe mine.yaml is not valid YAML"),
    ],
)  # fmt: skip
def test_a_typo_in_a_recipe_is_one_line(here, capsys, old, new, line):
    text = (RECIPES / "dpo.yaml").read_text()
    Path("mine.yaml").write_text(text.replace(old, new, 1))
    code, message = error_of(capsys, "fit", "--config", "mine.yaml")
    assert code == 2
    assert re.sub(r"^mine\.yaml, line \d+: ", "", message).startswith(line)


def test_a_class_that_cannot_be_trained_is_one_line(here, capsys):
    code, line = error_of(capsys, "fit", "-c", "comparison.yaml")
    assert code == 2
    assert re.match(r"comparison\.yaml, line \d+: --model is lovec\.evaluation\.Comparison, expected a Policy", line)
    assert "GRPO" in line
    assert line.count("Comparison") == 1
    code, line = error_of(capsys, "fit", "-c", "dpo.yaml", "--model", "Comparison")
    assert code == 2
    assert line.startswith("unknown class for --model: Comparison; known are ")


@pytest.mark.parametrize(
    ("logger", "package"), [("WandbLogger", "wandb"), ("TensorBoardLogger", "tensorboard"), ("MLFlowLogger", "mlflow")]
)
def test_a_missing_logger_names_its_package(here, capsys, logger, package):
    if importlib.util.find_spec(package):
        pytest.skip(f"{package} is installed")
    code, line = error_of(capsys, "fit", "-c", "dpo.yaml", "--trainer.logger", logger, *CPU)
    assert code == 1
    assert line.endswith(f"pip install {package}")


def test_settings_that_lightning_refuses_are_one_line(here, capsys):
    code, line = error_of(capsys, "fit", "-c", "dpo.yaml", "--trainer.accelerator", "gpx")
    assert code == 2
    assert line == "unknown value for --trainer.accelerator gpx; did you mean gpu?"


def test_an_error_of_a_module_is_one_line_or_a_traceback(here, capsys, monkeypatch):
    words = ["fit", "-c", "dpo.yaml", "--model.evaluation.modes=[loud]", *CPU]
    code, line = error_of(capsys, *words)
    assert code in (1, 2)
    assert "loud" in line
    monkeypatch.setenv("LOVEC_DEBUG", "1")
    with pytest.raises(LovecError, match="loud"):
        main(words)


def test_interrupts_are_quiet(monkeypatch, capsys):
    def interrupt(args, alone):
        raise KeyboardInterrupt

    def interrupted_trainer(args, alone):  # Lightning ends the process itself
        try:
            raise KeyboardInterrupt
        except KeyboardInterrupt:
            sys.exit(1)

    for run in (interrupt, interrupted_trainer):
        monkeypatch.setattr("lovec.cli.run", run)
        assert main(["fit"]) == 130
        assert capsys.readouterr().err == "lovec: interrupted\n"


def test_help_names_every_command(capsys):
    assert main(["--help"]) == 0
    printed = capsys.readouterr().out
    assert all(f"\n  {name} " in printed for name in COMMANDS)
    assert main([]) == 0
    assert capsys.readouterr().out == printed


@pytest.mark.parametrize("command", [name for name in COMMANDS if name not in ("fit", "validate", "test", "predict")])
def test_help_spells_names_with_underscores_and_none_as_null(capsys, command):
    assert main([command, "--help"]) == 0
    printed = capsys.readouterr().out
    assert not re.findall(r"--\w+-\w+", printed)
    assert "None" not in printed
    assert not re.search(r"\(default[^()]*\)\s+\(default", printed) and "(default: null)" not in printed


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_examples_at_the_end_of_its_help(command):
    assert 2 <= len(EXAMPLES[command]) <= 5
    assert all(line.startswith(f"lovec {command}") for line, _ in EXAMPLES[command])
    printed = OneLineParser(command, "What it does.").format_help()
    assert printed.endswith(f"  {EXAMPLES[command][-1][0]}\n      {EXAMPLES[command][-1][1]}\n")
    assert EXAMPLES.keys() == COMMANDS.keys()


def parser_of_both_kinds():
    plain, typed = OneLineParser("x", "X."), SignatureParser(prog="lovec x")
    for parser in (plain, typed):
        parser.add_argument("--redo", action="store_true", help="redo")
        parser.add_argument("files", nargs="*", default=[])
    typed.add(open_session)
    return plain, typed


@pytest.mark.parametrize(
    ("words", "redo", "files"),
    [
        ("", False, []),
        ("--redo", True, []),
        ("a --redo", True, ["a"]),
        ("--redo a b", True, ["a", "b"]),
        ("--redo true a", True, ["a"]),
        ("--redo False a", False, ["a"]),
        ("a --redo=false", False, ["a"]),
    ],
)
def test_what_is_true_or_false_may_stand_alone_in_every_parser(words, redo, files):
    for parser in parser_of_both_kinds():
        options = parser.parse_args(words.split())
        assert (options.redo, options.files) == (redo, files)
    typed = parser_of_both_kinds()[1]
    assert typed.parse_args(["--any-base", "a"]).any_base is True and typed.parse_args(["--raw", "false"]).raw is False


def test_help_shows_both_forms_of_what_is_true_or_false():
    for parser in parser_of_both_kinds():
        printed = " ".join(parser.format_help().split())
        assert "--redo {true,false} redo" in printed and "default: false)" in printed and "False" not in printed


def test_pages_spell_options_as_the_help_does():
    """An option of lovec is written with underscores; those of other programs have hyphens."""
    options = set(signature(open_session).parameters) | set(signature(TextTagger).parameters)
    options |= {
        field.name for settings in (TagSettings, LabelSettings, CalibrateSettings) for field in fields(settings)
    }
    for page in (ROOT / "README.md", *(ROOT / "docs").glob("*.md"), ROOT / ".ci" / "run"):
        for name in re.findall(r"--(\w+(?:-\w+)+)", page.read_text()):
            assert name.replace("-", "_") not in options or page.name == "commands.md", (page.name, name)


def test_make_alone_prints_the_targets_and_does_nothing_else(tmp_path):
    text = (ROOT / "Makefile").read_text()
    (tmp_path / "Makefile").write_text(text)
    alone = {name: value for name, value in os.environ.items() if name not in ("MAKEFLAGS", "MAKELEVEL", "MFLAGS")}
    printed = subprocess.run(["make"], cwd=tmp_path, env=alone, capture_output=True, text=True, check=True).stdout
    named = dict(re.findall(r"^make ([\w-]+) +(\S.*)$", printed, re.MULTILINE))
    [phony] = re.findall(r"^\.PHONY: (.*)$", text, re.MULTILINE)
    assert list(named) == phony.split() and len(printed.splitlines()) == len(named)
    assert [path.name for path in tmp_path.iterdir()] == ["Makefile"]


def test_python_m_lovec_is_the_command():
    def run(*words):
        done = subprocess.run([sys.executable, "-m", "lovec", *words], cwd=ROOT, capture_output=True, text=True)
        return done.returncode, done.stdout, done.stderr

    assert run("fti") == (2, "", "lovec: error: unknown command fti; did you mean fit?\n")
    code, text, said = run("score", "--help")
    assert (code, said) == (0, "") and text.startswith("usage: lovec score [-h]")
    code, text, said = run("score", "no-such-file.csv")
    assert (code, text) == (1, "") and said.startswith("lovec: error: cannot read no-such-file.csv ")


def test_options_of_tag_come_from_what_they_are_passed_to(capsys):
    from lovec.tagging import TextTagger

    main(["tag", "--help"])
    printed = " ".join(capsys.readouterr().out.split())
    assert str(signature(TextTagger).parameters["max_new_tokens"].default) in printed
    for name in signature(open_session).parameters:
        assert f"--{name} " in printed
    entry = re.search(r"^ +max_new_tokens: (.*?)$", TextTagger.__doc__, re.MULTILINE)
    assert entry and entry[1].rstrip(".").replace("None", "null") in printed


def test_names_of_options_are_written_with_underscores_or_hyphens():
    words = ["--max-new-tokens=8", "--model.grad-norm", "-1", "a-b", "--ask=a-b", "--model.adapters.my-run", "x-y"]
    expected = ["--max_new_tokens=8", "--model.grad_norm", "-1", "a-b", "--ask=a-b", "--model.adapters.my-run", "x-y"]
    assert with_underscores(words) == expected


@pytest.mark.slow
def test_help_of_fit_loads_no_engine():
    check = (
        "import sys; from lovec.cli import main; code = main(['fit', '--help', 'all']); "
        "found = {'vllm', 'bitsandbytes'} & set(sys.modules); assert not found, found; assert code == 0, code"
    )
    run = subprocess.run([sys.executable, "-c", check], cwd=ROOT, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    assert "--trainer.max_epochs" in run.stdout


def test_usage_errors_are_lovec_errors():
    assert issubclass(UsageError, LovecError)


def test_a_warning_of_ours_is_one_line_and_others_keep_their_place():
    import lovec
    from lovec.cli.training import _one_line_warning

    ours = str(Path(lovec.__file__).parent / "modules" / "monitors.py")
    assert _one_line_warning("tags are breaking", UserWarning, ours, 7) == "lovec: warning: tags are breaking\n"
    assert "other.py:7: UserWarning: odd" in _one_line_warning("odd", UserWarning, "/elsewhere/other.py", 7)
