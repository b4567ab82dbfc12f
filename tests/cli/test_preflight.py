"""Mistakes are found before anything heavy is imported, and what is right is let through."""

from __future__ import annotations

import inspect
import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from commandline import error_of

from lovec.cli.preflight import check_words, parameters
from lovec.types import LovecError

ROOT = Path(__file__).resolve().parents[2]
MISTAKES = [
    ("fit --config sft.yml", 2, "did you mean sft.yaml?"),
    ("fit --config dpo.yaml --model.bta 1", 2, "unknown option --model.bta of DPO; did you mean --model.beta?"),
    ("fit --config dpo.yaml --model.init_args.bta=1", 2, "did you mean --model.beta?"),
    ("fit --config dpo.yaml --model.policy.lora_rr 1", 2, "did you mean --model.policy.lora_r?"),
    ("fit --config sft.yaml --model DPO --model.bta 1", 2, "of DPO; did you mean --model.beta?"),
    ("fit --config sft.yaml --data.variants x", 2, "of World; did you mean --data.variant?"),
    ("fit --config sft.yaml --data Preferences --data.pth x", 2, "did you mean --data.path?"),
    ("test --config sft.yaml --trainer.max_step 1", 2, "did you mean --trainer.max_steps?"),
    ("fit --config sft.yaml --modle.grad_norm 1", 2, "did you mean --model.grad_norm?"),
    ("fit --config dpo.yaml", 1, "there is no adapter in runs/sft/adapter; make it with: lovec fit --config sft.yaml"),
    ("fit --config sft.yaml --model.policy.adapter nope", 1, "there is no adapter in nope; give a PEFT"),
    ("tag page.txt --adapter runs/nope", 1, "there is no adapter in runs/nope"),
    ("serve --adapter=nope", 1, "there is no adapter in nope"),
    ("fit --config sft.yaml --data Demonstrations --data.path a.jsonl", 1, "cannot read a.jsonl (No such file"),
    ("tag page.txt --model world-smal", 1, "there is no model world-smal, expected world, "),
    ("tag page.txt --model world-smal", 1, "org/name; did you mean world-small?"),
    ("serve --model=wrold", 1, "did you mean world?"),
    ("label --data World --model tiny-lama --out x", 1, "did you mean tiny-llama?"),
    ("fit --config sft.yaml --model.policy.model /no/such/model", 1, "there is no model /no/such/model, expected"),
]


@pytest.mark.parametrize(("line", "code", "message"), MISTAKES, ids=[line for line, *_ in MISTAKES])
def test_a_mistake_is_one_line(line, code, message, here, capsys) -> None:
    found, error = error_of(capsys, *line.split())
    assert found == code and message in error


def test_nothing_heavy_is_imported_for_it(tmp_path) -> None:
    lines = json.dumps([line.split() for line, *_ in MISTAKES])
    code = (
        "import json, sys; from lovec.cli import main\nfor words in json.loads(sys.argv[1]): assert main(words) > 0\n"
    )
    code += "print(json.dumps(sorted({'torch', 'lightning', 'transformers', 'jsonargparse'} & sys.modules.keys())))"
    done = subprocess.run([sys.executable, "-c", code, lines], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == []


def documented() -> list[list[str]]:
    """The words of every command of the trainer, of tag and of serve in README and docs."""
    found = []
    for page in (ROOT / "README.md", *sorted((ROOT / "docs").glob("**/*.md"))):
        for block in re.findall(r"^```(?:bash|sh)\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL):
            for line in block.replace("\\\n", " ").splitlines():
                words = shlex.split(line, comments=True)
                if len(words) > 2 and words[0] == "lovec":
                    found.append(words[1:])
    return found


def test_commands_of_the_pages_are_let_through_but_for_files_that_are_not_there(here, monkeypatch) -> None:
    monkeypatch.setattr("lovec.cli.preflight._EXTRAS", {})  # whatever is installed
    commands = documented()
    assert len(commands) > 40
    for command, *words in commands:
        try:
            check_words(command, words)
        except LovecError as error:
            assert str(error).startswith(
                (
                    "there is no adapter in ",
                    "cannot read ",
                    "there is no recipe runs/labels/",
                    "the model ",
                    "there is no model ",
                )
            ), words


@pytest.mark.parametrize("line", [
    "fit --model my_file.Own --model.anything 1 --data other.Data --data.thing 2",
    "fit --config grpo.yaml --model.policy.adapter null --model.reward.scale 2 --trainer.callbacks+=Probe",
    "fit --config sft.yaml --model.dict_kwargs.x 1 --model.lr_scheduler null",
    "fit --config dpo.yaml --ckpt_path runs/dpo/last.ckpt",
    "fit --config dpo.yaml --model.policy.adapter null",
    "fit --config dpo.yaml --help",
    "fit --config sft.yaml --data Demonstrations --data.path hub/name",
])  # fmt: skip
def test_what_cannot_be_judged_is_left_to_the_parser(line, here) -> None:
    check_words("fit", line.split()[1:])


@pytest.mark.parametrize(("old", "new", "line"), [
    ("default_root_dir:", "default_root:", "--trainer.default_root; did you mean --trainer.default_root_dir?"),
    ("beta:", "btea:", "--model.btea of DPO; did you mean --model.beta?"),
    ("adapter:", "adaptor:", "--model.policy.adaptor; did you mean --model.policy.adapter?"),
])  # fmt: skip
def test_a_typo_in_a_recipe_is_found(old, new, line, here) -> None:
    text = (ROOT / "configs" / "dpo.yaml").read_text()
    Path("mine.yaml").write_text(text.replace(old, new, 1))
    with pytest.raises(LovecError, match=re.escape(f"unknown option {line}")):
        check_words("fit", ["--config", "mine.yaml"])
    if new == "btea:":  # of a class that is not used in the end
        check_words("fit", ["--config", "mine.yaml", "--model", "SFT", "--model.policy.adapter", "null"])


def test_all_recipes_are_let_through(here, monkeypatch) -> None:
    monkeypatch.setattr("lovec.cli.preflight._EXTRAS", {})  # whatever is installed
    for recipe in sorted((ROOT / "configs").glob("*.yaml")):
        for command in ("validate", "test"):
            check_words(command, ["--config", "sft.yaml", "--config", recipe.name])


def test_an_adapter_may_be_named_by_its_run(here) -> None:
    Path("runs/dpo/adapter").mkdir(parents=True)
    Path("runs/dpo/adapter/adapter_config.json").write_text("{}")
    check_words("tag", ["page.txt", "--adapter", "runs/dpo"])
    check_words("fit", ["--config", "dpo.yaml", "--model.policy.adapter", "runs/dpo/adapter"])


def test_parameters_read_from_source_code_are_those_of_the_classes() -> None:
    import lovec.datamodules
    import lovec.evaluation
    import lovec.modules

    read = 0
    for package in (lovec.modules, lovec.datamodules, lovec.evaluation):
        for name in package.__all__:
            cls = getattr(package, name)
            found = parameters(f"{package.__name__}.{name}")
            if found is None or not inspect.isclass(cls):
                continue
            read += 1
            wanted: set[str] = set()
            for kind in cls.__mro__:
                if "__init__" in vars(kind):
                    taken = inspect.signature(kind.__init__).parameters
                    wanted |= {n for n, p in taken.items() if p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)}
                    if not any(p.kind is p.VAR_KEYWORD for p in taken.values()):
                        break
            assert found.keys() == wanted - {"self"}, name
    assert read > 20
    assert parameters("torch.optim.AdamW") is parameters("lovec.modules.Nothing") is None


def test_a_folder_that_is_nearly_named_is_meant(here, capsys) -> None:
    (here / "models" / "final").mkdir(parents=True)
    code, error = error_of(capsys, "tag", "page.txt", "--model", "models/finl")
    assert code == 1 and "there is no model models/finl" in error and "did you mean models/final?" in error
