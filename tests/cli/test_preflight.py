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

from lovec.cli import main
from lovec.cli.preflight import check_words
from lovec.cli.sourcecode import parameters
from lovec.cli.training_help import OPTIONS
from lovec.types import LovecError

ROOT = Path(__file__).resolve().parents[2]
HOME = "/home/ada"
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
    ("fit --config sft.yaml --model.policy.adapter nope", 1, "there is no adapter nope, expected atlas, "),
    ("tag page.txt --adapter runs/nope", 1, "there is no adapter runs/nope, expected "),
    ("test --ckpt_path x.ckpt", 1, "there is no checkpoint x.ckpt; give the path of a .ckpt file"),
    ("test --config sft.yaml --ckpt_path last", 1, "--ckpt_path last: there is no checkpoint in runs/sft"),
    ("test --config sft.yaml", 1, "there is no adapter in runs/sft/adapter; make it with: lovec fit --config sft.yaml"),
    ("predict --config sft.yaml --trainer.default_root_dir r", 1, "there is no adapter in r/adapter; train it first"),
    ("test --config comparison.yaml", 1, "there is no adapter in runs/sft/adapter; make it with"),
    ("test --config comparison.yaml --model.adapters.SFT x", 1, "there is no adapter x, expected atlas, "),
    ("fit --config sft.yaml --seed_everythin 2", 2, "unknown option --seed_everythin; did you mean --seed_everything?"),
    ("fit --config sft.yaml --ckpt_pat x", 2, "unknown option --ckpt_pat; did you mean --ckpt_path?"),
    ("fit --config sft.yaml --model DPOO", 2, "unknown class for --model: DPOO; did you mean DPO?"),
    ("fit --config sft.yaml --data Worl", 2, "unknown class for --data: Worl; did you mean World?"),
    (
        "fit --config grpo.yaml --model.reward LogRewrd",
        2,
        "class for --model.reward: LogRewrd; did you mean LogReward?",
    ),
    ("fit --config grpo.yaml --model.reward lovec.rewards.LogRewrd", 2, "there is no LogRewrd in lovec.rewards; did"),
    ("fit --config grpo.yaml --model.reward.scal 2", 2, "--model.reward.scal of LogReward; did you mean --model.rew"),
    ("fit --config sft.yaml --model.oracle SelfJuge", 2, "class for --model.oracle: SelfJuge; did you mean SelfJudge?"),
    ("fit --config sft.yaml --model.optimizer.lrr 2", 2, "of AdamW; did you mean --model.optimizer.lr?"),
    ("fit --config sft.yaml --model.optimizer AdamWW", 2, "class for --model.optimizer: AdamWW; did you mean AdamW?"),
    ("fit --config sft.yaml --model.lr_scheduler.warmupp 2", 2, "of WarmupCosine; did you mean --model.lr_scheduler.w"),
    ("test --config sft.yaml --model.baselines+=LUQQ", 2, "class for --model.baselines: LUQQ; did you mean LUQ?"),
    (
        "test --config sft.yaml --model.baselines+=LUQ --model.baselines.sample 5",
        2,
        "did you mean --model.baselines.sa",
    ),
    ("fit --config distil.yaml --model.teacher Blnd", 2, "class for --model.teacher: Blnd; did you mean Blend?"),
    ("fit --config sft.yaml --trainer.callbacks+=ModelCheckpont", 2, "did you mean ModelCheckpoint?"),
    ("sweep --config sft.yaml --vary model.grad_nrm=1,2", 2, "did you mean --model.grad_norm?"),
    ("tag page.txt --adapter Atlas", 1, "there is no adapter Atlas, expected atlas, atlas-grounded, world, the "),
    ("tag page.txt --adapter atlas-ground", 1, "or a hub id such as org/name; did you mean atlas-grounded?"),
    ("tag page.txt --adapter Atlas", 1, "; did you mean atlas?"),
    ("tag page.txt --adapter runs/dpo", 1, "no adapter in runs/dpo; make it with: lovec fit --config dpo.yaml"),
    ("tag page.txt --adapter empty", 1, "there is no adapter in empty; give the folder of an adapter "),
    ("calibrate runs/dpo", 1, "there is no adapter in runs/dpo; make it with: lovec fit --config dpo.yaml"),
    ("calibrate rn", 1, "or of the run that wrote it; did you mean run?"),
    ("serve --adapter=nope", 1, "there is no adapter nope, expected "),
    ("fit --config sft.yaml --data Demonstrations --data.path a.jsonl", 1, "cannot read a.jsonl (No such file"),
    ("fit --confg sft.yaml", 2, "unknown option --confg; did you mean --config?"),
    ("sweep --config sft.yaml --vary model.seed=1,2 --sedes 1", 2, "unknown option --sedes; did you mean --seeds?"),
    ("sweep --config nope.yaml --vary a=1", 2, "there is no recipe nope.yaml here"),
    ("sweep --config sft.yaml --vary a=1 --data Wrold", 2, "unknown class for --data: Wrold; did you mean World?"),
    ("tag page.txt --adaptr x", 2, "unknown option --adaptr; did you mean --adapter?"),
    ("tag nope.txt --model tiny-llama", 1, "cannot read nope.txt (No such file or directory)"),
    ("tag --ask_file nope.jsonl --model tiny-llama", 1, "cannot read nope.jsonl (No such file or directory)"),
    ("tag page.txt --chat_template nope.jinja", 1, "cannot read nope.jinja (No such file or directory)"),
    ("tag page.txt --format pdf", 2, "--format is pdf, expected 'text' or 'jsonl' or 'html'"),
    ("tag page.txt --out out.pdf", 2, "--out is out.pdf, expected a name that ends in"),
    ("tag page.txt --doubt 5", 1, "5 of 10 is 0.5"),
    ("tag page.txt --min_confidence high", 2, "--min_confidence is high, expected a number"),
    ("tag page.txt --max_new_tokens 0", 1, "--max_new_tokens is 0, expected at least 1"),
    ("tag page.txt --adaptor run", 2, "unknown option --adaptor; did you mean --adapter?"),
    ("tag page.txt", 1, "no model is given; offline, `--adapter atlas` (extra real) and `--adapter world`"),
    ("tag page.txt --model tiny-llama --engine vlm", 1, "the engine is 'vlm', expected one of transformers, vllm, or"),
    ("tag page.txt --model tiny-llama --device gpu", 1, "device is 'gpu', expected one of cpu, cuda, "),
    ("tag page.txt --model tiny-llama --device cuda:x", 1, "device is 'cuda:x', expected one of cpu, cuda, "),
    ("tag page.txt --model tiny-llama --dtype float8", 1, "policy.dtype is 'float8', expected float32 or bfloat16"),
    ("serve --model tiny-llama --engine x", 1, "the engine is 'x', expected one of transformers, vllm, or"),
    ("serve --model tiny-llama --device cda", 1, "device is 'cda', expected one of"),
    ("serve --port 1", 1, "no model is given"),
    ("fit --config sft.yaml --model.policy.dtype float8", 1, "policy.dtype is 'float8', expected float32 or bfloat16"),
    ("fit --config sft.yaml --model.policy.grounded", 2, "such as --model.policy.grounded true"),
    ("test --config sft.yaml --data.eval_batch_size --data.seed 1", 2, "--data.eval_batch_size needs a value"),
    ("fit --config", 2, "--config needs the name of a recipe, such as sft.yaml"),
    ("tag page.txt --print_shtab bash", 2, "unknown option --print_shtab"),
    ("serve --prot 1", 2, "unknown option --prot; did you mean --port?"),
    ("serve --port x", 2, "--port is x, expected an integer"),
    ("label --qestions q.jsonl", 2, "unknown option --qestions; did you mean --questions?"),
    ("label --questions nope.jsonl --model tiny-llama", 1, "cannot read nope.jsonl (No such file or directory)"),
    ("label --answers page.txt --oracle OpnAIOracle", 2, "did you mean OpenAIOracle?"),
    ("label --answers page.txt --oracle LabelFile --oracle.path nope.jsonl", 1, "cannot read nope.jsonl"),
    ("label --answers page.txt --oracle WorldOracle --evidence nope.db", 1, "cannot read nope.db"),
    ("label --data Wrold", 2, "unknown class for --data: Wrold; did you mean World?"),
    ("calibrate nope", 1, "there is no adapter nope, expected "),
    ("calibrate nope --dat x", 2, "unknown option --dat; did you mean --data?"),
    ("calibrate run --data nope.jsonl", 1, "cannot read nope.jsonl (No such file or directory)"),
    ("calibrate run --config nope.yaml", 2, "there is no recipe nope.yaml here"),
    ("score nope.csv", 1, "cannot read nope.csv (No such file or directory)"),
    ("score page.txt --confidance x", 2, "unknown option --confidance; did you mean --confidence?"),
    ("score page.txt --layout uqml", 2, "--layout is uqml, expected veriscore or lovec or "),
    ("export nope out", 1, "there is no adapter nope, expected "),
    ("export run out --mergd", 2, "unknown option --mergd; did you mean --merged?"),
    ("export run out --results nope.json", 1, "there are no results at nope.json"),
    ("export run out --force", 2, "--force is now --redo"),
    ("join nope.jsonl", 1, "there are no shards of nope.jsonl"),
    ("join nope.jsonl --rdo", 2, "unknown option --rdo; did you mean --redo?"),
    ("report nope", 1, "there is no folder nope; give the folder of a run"),
    ("report nope --titel x", 2, "unknown option --titel; did you mean --title?"),
    ("agreement nope.jsonl b.jsonl", 1, "cannot read nope.jsonl (No such file or directory)"),
    ("agreement page.txt b --jsn", 2, "unknown option --jsn; did you mean --json?"),
    ("curves nope", 1, "there is no folder nope; give the folder of a run"),
    ("curves nope --otu x", 2, "unknown option --otu"),
    (
        "tag page.txt --model world-smal",
        1,
        ", smollm2, tiny-llama, a folder, a GGUF file, or a hub id such as org/name; ",
    ),
    ("tag page.txt --model world-smal", 1, "org/name; did you mean world-small?"),
    ("serve --model=wrold", 1, "did you mean world?"),
    ("label --data World --model tiny-lama --out x", 1, "did you mean tiny-llama?"),
    ("fit", 2, "--model must be given; a recipe does, such as --config sft.yaml"),
    ("test --trainer.logger false", 2, "--model must be given; a recipe does, such as --config sft.yaml"),
    ("fit --config sft.yaml --trainer.max_steps ten", 2, "--trainer.max_steps is ten, expected an integer"),
    ("fit --config sft.yaml --trainer.limit_val_batches all", 2, "limit_val_batches is all, expected a number"),
    ("fit --config sft.yaml --data.path x.jsonl", 2, "there is no --data.path of World; with --data, Bios, Demonstr"),
    ("tag page.txt --out -", 2, "--out is -, expected the name of a file or folder; without --out, `lovec tag` prints"),
    ("score page.txt --out=-", 2, "--out is -, expected the name of a file or folder"),
    ("score page.txt --out=~/page.html", 2, "--out /home/ada/page.html is named like a file"),
    ("tag ~/nope.txt --model tiny-llama", 1, "cannot read /home/ada/nope.txt"),
    ("tag page.txt --question ~/page.txt --adapter=~/run", 1, "there is no adapter /home/ada/run, expected"),
    ("fit --config files.yaml", 1, "cannot read /home/ada/rows.jsonl"),
    ("test --config home.yaml", 1, "there is no adapter in /home/ada/runs/x/adapter"),
    (
        "test --config home.yaml --ckpt_path last",
        1,
        "there is no checkpoint in /home/ada/runs/x; leave it out to take ",
    ),
    ("fit --config home.yaml --ckpt_path last", 1, "/home/ada/runs/x; leave it out to train from step 0, or name the "),
    (
        "fit --config dpo.yaml --config place.yaml",
        2,
        "place.yaml, line 4: unknown option --model.policy.init_args.model; did you mean --model.policy.model?",
    ),
    ("calibrate", 2, "RUN must be given"),
    ("calibrate --data page.txt", 2, "RUN must be given"),
    ("completion tcsh", 2, "shell is tcsh, expected bash or zsh or fish"),
    ("tag page.txt -o x", 2, "unknown option -o; options start with --"),
    ("tag page.txt --scale low", 2, "--scale is low, expected a list such as [a,b]"),
    ("tag page.txt --tag_words [<c>]", 2, "--tag_words is ['<c>'], expected a list such as [a,b]"),
    ("tag page.txt --parameters {bad", 2, '--parameters: expected a JSON object such as {"a": 1}'),
    ("fit --config sft.yaml --model.policy.model /no/such/model", 1, "there is no model /no/such/model, expected"),
]


@pytest.fixture
def here(here: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with a page and an adapter, as far as mistakes are looked for in them."""
    made(here)
    monkeypatch.setenv("HOME", HOME)
    return here


def made(folder: Path) -> None:
    (folder / "page.txt").write_text("Ada wrote notes.")
    (folder / "home.yaml").write_text("model: SFT\ntrainer: {default_root_dir: ~/runs/x}")
    (folder / "files.yaml").write_text("model: SFT\ndata: {class_path: Preferences, init_args: {path: ~/rows.jsonl}}")
    (folder / "place.yaml").write_text(
        "data: Preferences\nmodel:\n  init_args:\n    policy: {init_args: {model: world}}"
    )
    (folder / "empty").mkdir()
    (folder / "run" / "adapter").mkdir(parents=True)
    (folder / "run" / "adapter" / "adapter_config.json").write_text("{}")


@pytest.mark.parametrize(("line", "code", "message"), MISTAKES, ids=[line for line, *_ in MISTAKES])
def test_a_mistake_is_one_line(line, code, message, here, capsys) -> None:
    found, error = error_of(capsys, *line.split())
    assert found == code and message in error


def test_nothing_heavy_is_imported_for_it(tmp_path) -> None:
    made(tmp_path)
    lines = json.dumps([line.split() for line, *_ in MISTAKES])
    code = (
        "import json, sys; from lovec.cli import main\nfor words in json.loads(sys.argv[1]):\n"
        "    assert main(words) > 0\n"
        "    assert not {'torch', 'lightning', 'transformers', 'scipy'} & sys.modules.keys(), words\n"
    )
    code += "print(json.dumps([]))"
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
                    "there is no adapter ",
                    "there is no checkpoint ",
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
    if new == "btea:":  # likewise of a class that is not used in the end: the parser reads it before
        with pytest.raises(LovecError, match=r"mine\.yaml, line 18: unknown option --model\.btea of DPO"):
            check_words("fit", ["--config", "mine.yaml", "--model", "SFT"])


@pytest.mark.parametrize(("text", "message"), [
    ("# mine\ntrainr: {max_steps: 1}\n", "mine.yaml, line 2: unknown option --trainr.max_steps; did you mean --train"),
    ("model:\n  init_args:\n    grad_norm: abc\n", "mine.yaml, line 3: --model.grad_norm is abc, expected a number"),
    ("model:\n  class_path: DPOO\n", "mine.yaml, line 2: unknown class for --model: DPOO; did you mean DPO?"),
    ("data:\n  init_args:\n    smaples: 2\n", "mine.yaml, line 3: unknown option --data.smaples of World; did you"),
    ("trainer:\n  accelerator: gpuu\n", "mine.yaml, line 2: unknown value for --trainer.accelerator gpuu; did you"),
])  # fmt: skip
def test_a_mistake_in_a_recipe_is_named_with_its_line(text, message, here, capsys) -> None:
    Path("mine.yaml").write_text(text)
    code, line = error_of(capsys, "fit", "--config", "sft.yaml", "--config", "mine.yaml")
    assert code == 2 and line.startswith(message)


def test_an_accelerator_that_is_not_there_is_named_with_what_is(here, capsys) -> None:
    import torch

    if torch.cuda.is_available() or torch.backends.mps.is_available():
        pytest.skip("there is a GPU")
    code, line = error_of(capsys, "fit", "--config", "sft.yaml", "--trainer.accelerator", "gpu")
    assert code == 2 and line.startswith(
        "--trainer.accelerator is gpu, which torch does not find here; give --trainer."
    )
    code, line = error_of(
        capsys, "test", "--config", "llama3-8b.yaml", "--model", "SFT", "--model.evaluation.adapter", "a/b"
    )
    assert code == 2 and re.match(r"llama3-8b\.yaml, line \d+: --trainer.accelerator is gpu, which torch", line)


@pytest.mark.parametrize("command", ["fit", "validate", "test", "predict"])
def test_the_short_help_names_options_that_there_are(command, here, capsys) -> None:
    assert main([command, "--config", "sft.yaml", "--help"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) < 60 and all(len(line) <= 120 for line in lines)
    assert any(line.startswith(f"  lovec {command} --help all ") for line in lines)
    shown = [option for option, _, _, commands in OPTIONS if command in commands]
    assert all(any(line.startswith(f"  --{option} ") for line in lines) for option in shown)
    flags = [word for option in shown if option not in ("config", "print_config") for word in (f"--{option}", "null")]
    check_words(command, ["--model", "SFT", "--data", "Preferences", *flags, "--model.evaluation.adapter", "a/b"])


def test_all_of_the_help_is_there_on_request(capsys) -> None:
    assert main(["fit", "--help", "all"]) == 0
    assert "--trainer.barebones" in (whole := capsys.readouterr().out) and len(whole.splitlines()) > 300
    assert main(["fit", "--model.help", "DPO"]) == 0
    assert "--model.beta" in capsys.readouterr().out


def test_all_recipes_are_let_through(here, monkeypatch) -> None:
    monkeypatch.setattr("lovec.cli.preflight._EXTRAS", {})  # whatever is installed
    for recipe in sorted((ROOT / "configs").glob("*.yaml")):
        for command in ("validate", "test"):
            try:
                check_words(command, ["--config", "sft.yaml", "--config", recipe.name])
            except LovecError as error:
                assert str(error).startswith("there is no adapter in runs/"), error


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
    assert "betas" in (parameters("torch.optim.AdamW") or ()) and parameters("lovec.modules.Nothing") is None


def test_a_folder_that_is_nearly_named_is_meant(here, capsys) -> None:
    (here / "models" / "final").mkdir(parents=True)
    code, error = error_of(capsys, "tag", "page.txt", "--model", "models/finl")
    assert code == 1 and "there is no model models/finl" in error and "did you mean models/final?" in error
