"""Recipes: what base.yaml gives all of them, which of several settings wins, and recipes inside checkpoints."""

from __future__ import annotations

import itertools
import json
import re
import shlex
import sys
from copy import deepcopy
from pathlib import Path

import pytest
import torch
import yaml
from commandline import CPU, build, error_of, write_checkpoint
from lightning.pytorch.strategies import DDPStrategy, Strategy
from recipes import OBJECTIVES, OVERLAYS, QUANTIZED, WHOLE, class_of, command_of
from tinyrun import records, tiny

from lovec.cli import main
from lovec.cli.arguments import BASE, RECIPES, arrange, find_recipe, value_of
from lovec.cli.saved_recipe import RECIPE_KEY
from lovec.core.settings import class_at
from lovec.datasets.jsonl import write_records
from lovec.evaluation import ShardedStrategy

STRATEGIES = {"ddp.yaml": DDPStrategy, "fsdp2.yaml": ShardedStrategy}
"""What trains on several GPUs; written by hand, since a recipe may name a strategy by a word of Lightning's."""

IPO = """
from torch import Tensor
from lovec.modules import PreferenceModule

class IPO(PreferenceModule):
    def __init__(self, tau: float = 0.3, **kwargs) -> None:
        super().__init__(**kwargs)
        self.tau = tau

    def preference_loss(self, chosen: Tensor, rejected: Tensor, ref_chosen: Tensor, ref_rejected: Tensor) -> Tensor:
        return (chosen - rejected - (ref_chosen - ref_rejected) - 1 / (2 * self.tau)) ** 2
"""


def paths(settings, prefix=()):
    """Path and value of every setting; a list is one value."""
    for key, value in settings.items():
        if isinstance(value, dict) and value:
            yield from paths(value, (*prefix, key))
        else:
            yield (*prefix, key), value


def value_at(settings, path):
    """The value of a setting."""
    for key in path:
        settings = settings[key]
    return settings


# ---------------------------------------------------------------- packaged recipes


def every_combination():
    """Recipes and overlays; those beyond each by itself and on one recipe are slow."""
    for recipe, overlay in itertools.product(OBJECTIVES, (None, *OVERLAYS)):
        rare = overlay is not None and recipe != "dpo.yaml"
        marks = [pytest.mark.quant] if overlay in QUANTIZED else [pytest.mark.slow] if rare else []
        yield pytest.param(recipe, overlay, marks=marks)


@pytest.mark.parametrize(("recipe", "overlay"), list(every_combination()))
def test_every_packaged_recipe_builds(here, recipe, overlay):
    if overlay in QUANTIZED:
        pytest.importorskip("bitsandbytes", reason="the extra quant is not installed")
    cli = build(command_of(recipe), "--config", recipe, *(["--config", overlay] if overlay else []), *CPU)
    given = WHOLE[overlay or recipe].get("model", {}).get("init_args", {})
    if "engine" in given:
        assert given["engine"]["class_path"].endswith(f".{type(cli.model.engine).__name__}")
    for key, value in given.get("policy", {}).items():  # nothing of it was lost on the way
        assert getattr(cli.model.policy_config, key) == value
    assert isinstance(cli.trainer.strategy, STRATEGIES.get(overlay, Strategy))
    assert type(cli.model) is class_at(class_of(recipe))


def test_there_are_recipes_and_overlays():
    assert len(OBJECTIVES) > 9 and len(OVERLAYS) > 9 and STRATEGIES.keys() <= {*OVERLAYS}


def test_every_value_of_a_recipe_says_where_it_comes_from():
    chosen = ("lr:", "betas:", "weight_decay:", "warmup:", "lora_", "max_epochs:", "batch_size:", "beta:", "grad_norm:")
    for name in (*WHOLE, BASE.name):
        text = (RECIPES / name).read_text()
        for line in [] if "# All values are ours." in text else text.splitlines():
            if line.strip().startswith(chosen):
                assert any(source in line for source in ("paper", "template", "sibling", "ours")), f"{name}: {line}"


@pytest.mark.parametrize("recipe", OBJECTIVES)
def test_no_recipe_repeats_a_value_of_base_yaml(recipe):
    base = dict(paths(yaml.safe_load(BASE.read_text())))
    repeated = [".".join(path) for path, value in paths(WHOLE[recipe]) if path in base and base[path] == value]
    assert repeated == []


def test_the_checks_of_recipes_would_notice():
    assert dict(paths({"a": {"b": [1], "c": {}}, "d": None})) == {("a", "b"): [1], ("a", "c"): {}, ("d",): None}


@pytest.mark.parametrize("recipe", OBJECTIVES)
def test_every_recipe_has_the_values_of_base_yaml_that_it_does_not_change(here, recipe):
    cli = build(command_of(recipe), "--config", recipe, *CPU)
    config = yaml.safe_load(cli.parser.dump(cli.config))
    changed = dict(paths(WHOLE[recipe]))
    for path, value in paths(yaml.safe_load(BASE.read_text())):
        if path in changed or path[:2] in (("trainer", "logger"), ("trainer", "callbacks")):  # see the tests below
            continue
        if value is None:  # left out of the dump, as every option without a value
            assert path[-1] not in value_at(config, path[:-1]), path
            continue
        assert value_at(config, path) == value, path


def test_base_yaml_is_the_packaged_one_and_needs_no_recipe(here):
    Path("base.yaml").write_text("trainer: {max_epochs: 7}\n")
    cli = build("fit", "--model", "ORPO", "--data.batch_size", "3", *CPU)
    assert cli.trainer.max_epochs == 1
    assert (type(cli.model).__name__, cli.datamodule.samples, cli.datamodule.batch_size) == ("ORPO", 4, 3)
    assert cli.model.policy_config.dtype == "float32"


def test_other_classes_drop_what_they_do_not_have(here):
    words = ["--data", "Preferences", "--data.path", "p.jsonl", "--model.optimizer", "SGD", "--model.optimizer.lr", "1"]
    words += ["--model.policy.model", "world"]
    config = build("fit", "--config", "dpo.yaml", *words, *CPU).config
    assert config.data.init_args.batch_size == 8
    assert "samples" not in config.data.init_args
    assert config.model.init_args.optimizer.init_args.weight_decay == 0.0
    assert "betas" not in config.model.init_args.optimizer.init_args


TWICE = """
import torch, torchmetrics
from lightning.pytorch.callbacks import Callback
class SGD(torch.optim.SGD): pass
class MyRate(torch.optim.lr_scheduler.LinearLR): pass
class LinearLR(MyRate): pass
class MeanSquaredError(torchmetrics.MeanSquaredError): pass
class Same(Callback): pass
"""


def test_a_short_name_is_that_of_the_library_whatever_else_is_imported(here):
    """So a recipe is read alike with and without extras, such as bitsandbytes with its own SGD and AdamW."""
    Path("my_twice.py").write_text(TWICE)
    recipe = {"optimizer": {"class_path": "SGD", "init_args": {"momentum": 0.5}}, "lr_scheduler": "ReduceLROnPlateau"}
    Path("r.yaml").write_text(yaml.safe_dump({"model": {"class_path": "SFT", "init_args": recipe}}))

    def classes(*words):
        own = ("--trainer.callbacks+", "my_twice.Same")  # from here on its classes are known
        settings = build("fit", "--config", "sft.yaml", *own, *words, *CPU).config.model.init_args
        metrics = [metric.class_path for metric in settings.evaluation.metrics or []]
        return settings.optimizer.class_path, settings.lr_scheduler.class_path, metrics

    schedules = "torch.optim.lr_scheduler."
    assert classes("--config", "r.yaml") == ("torch.optim.SGD", f"{schedules}ReduceLROnPlateau", [])
    words = [
        "--model.optimizer",
        "SGD",
        "--model.lr_scheduler",
        "LinearLR",
        "--model.evaluation.metrics+",
        "MeanSquaredError",
    ]
    assert classes(*words) == ("torch.optim.SGD", f"{schedules}LinearLR", ["torchmetrics.MeanSquaredError"])
    words = ["--model.optimizer", "my_twice.SGD", "--model.lr_scheduler", "MyRate"]
    assert classes(*words) == ("my_twice.SGD", "my_twice.MyRate", [])


def test_a_short_name_of_several_classes_is_refused_with_their_full_names(here, capsys):
    """Neither is from the library of the option; a name in full is taken."""
    Path("my_twice.py").write_text(TWICE)
    Path("my_other.py").write_text(TWICE)
    words = ["--trainer.callbacks+", "my_twice.Same", "--trainer.callbacks+", "my_other.Same"]
    _, error = error_of(capsys, "fit", "--config", "sft.yaml", *words, "--trainer.callbacks+", "Same", *CPU)
    assert "--trainer.callbacks is Same, which is the name of several classes; give one in full: " in error
    assert "my_twice.Same" in error and "my_other.Same" in error
    _, error = error_of(capsys, "fit", "--config", "sft.yaml", *words, "--model.lr_scheduler", "MyRate", *CPU)
    assert "--model.lr_scheduler is MyRate, which is the name of several classes" in error


@pytest.mark.quant
def test_optimisers_of_bitsandbytes_have_their_full_names(here):
    pytest.importorskip("bitsandbytes.optim", reason="needs the extra quant")
    for given in ("AdamW", "SGD", "bitsandbytes.optim.AdamW", "bitsandbytes.optim.PagedAdamW8bit"):
        config = build("fit", "--config", "sft.yaml", "--model.optimizer", given, *CPU).config
        assert config.model.init_args.optimizer.class_path == (given if "." in given else f"torch.optim.{given}")


def test_the_printed_configuration_is_complete(here, capsys):
    assert main(["fit", "--config", "dpo.yaml", "--print_config"]) == 0
    printed = yaml.safe_load(capsys.readouterr().out)
    for path, value in [*paths(WHOLE["dpo.yaml"]), *paths(yaml.safe_load(BASE.read_text()))]:
        if path != ("trainer", "callbacks"):
            assert value_at(printed, path) == value
    assert printed["trainer"]["callbacks"][0]["init_args"]["every_n_train_steps"] == 40
    assert printed["model"]["init_args"]["policy"]["gradient_checkpointing"] is False  # a default of the class


# ---------------------------------------------------------------- null


@pytest.mark.parametrize("recipe", ["dpo.yaml", "grpo.yaml", "distil.yaml", "p-true.yaml", "comparison.yaml"])
def test_null_on_the_command_line_is_null_at_every_depth(here, recipe):
    """Every setting that is null by itself, given as a flag, and a text that is not null before."""
    command = command_of(recipe)
    plain = yaml.safe_load((cli := build(command, "--config", recipe, *CPU)).parser.dump(cli.config, skip_unset=False))
    empty = [path for path, value in paths(plain) if value is None and path[0] in ("model", "data")]
    options = ["--" + re.sub(r"\.(init_args|class_path)\b", "", ".".join(path)) for path in empty]
    assert {"--model.policy.instruction", "--model.policy.max_length", "--model.policy.chat_template"} <= {*options}
    assert len(options) > 8
    again = build(command, "--config", recipe, *CPU, *(word for option in options for word in (option, "null")))
    assert yaml.safe_load(again.parser.dump(again.config, skip_unset=False)) == plain


def test_null_takes_back_what_a_recipe_says(here):
    policy = {"instruction": "Rate.", "adapter": "runs/sft/adapter", "max_length": 99, "scale": ["no", "yes"]}
    judge = {"class_path": "NLIJudge", "init_args": {"model": "m", "device": "cpu", "max_length": 9}}
    baseline = {"class_path": "LUQ", "init_args": {"judge": judge, "name": "x"}}
    Path("r.yaml").write_text(yaml.safe_dump({"model": {"init_args": {"policy": policy, "baselines": [baseline]}}}))
    words = [word for name in policy for word in (f"--model.policy.{name}", "null")]
    words += ["--model.baselines.name", "null", "--model.baselines.judge.device", "null"]
    words += ["--model.lr_scheduler", "null", "--model.evaluation.metrics=null", "--model.oracle", "null"]
    for command in ("fit", "test"):
        model = build(command, "--config", "sft.yaml", "--config", "r.yaml", *words, *CPU).config.model.init_args
        assert [model.policy[name] for name in policy] == [None] * len(policy)
        assert model.baselines[0].init_args.name is model.baselines[0].init_args.judge.init_args.device is None
        assert model.baselines[0].init_args.judge.init_args.max_length == 9
        assert model.lr_scheduler is model.evaluation.metrics is model.oracle is None


def test_a_list_on_the_command_line_keeps_its_texts(here):
    given = ["<\n", 'it\'s "so"', "null"]
    words = ["--model.policy.target_modules", json.dumps(given), "--model.evaluation.modes", "[iterative]"]
    model = build("fit", "--config", "sft.yaml", *words, *CPU).config.model.init_args
    assert (model.policy.target_modules, model.evaluation.modes) == (given, ["iterative"])


# ---------------------------------------------------------------- which wins


def test_a_recipe_of_the_working_directory_comes_first(here):
    assert find_recipe("sft.yaml") == RECIPES / "sft.yaml"
    Path("sft.yaml").write_text("trainer: {max_epochs: 7}\n")
    assert find_recipe("sft.yaml") == here / "sft.yaml"


def test_an_unknown_recipe_lists_the_packaged_ones(here, capsys):
    code, line = error_of(capsys, "fit", "--config", "dop.yaml")
    assert code == 2
    assert "dop.yaml" in line
    assert "distil.yaml, dpo.yaml, expected.yaml, factscore.yaml" in line
    assert "base.yaml" not in line


def test_words_are_arranged_so_that_flags_win(here):
    model = {"class_path": "SFT"}
    saved = write_checkpoint(here / "x.ckpt", {"trainer": {"devices": 8, "precision": "bf16-mixed"}, "model": model})
    words = ["--model.beta=1", "--config=dpo.yaml", "-c", "world-small.yaml", "--ckpt-path", saved]
    arranged = arrange("test", words)
    assert arranged[:8:2] == ["--config"] * 4
    base, recipe, *rest = arranged[1:8:2]
    assert yaml.safe_load(base)["model"]["class_path"] == "SFT"  # the first class that is named
    assert yaml.safe_load(base)["trainer"]["max_epochs"] == 1
    trainer = {"precision": "bf16-mixed", "default_root_dir": str(here)}  # not the other machine
    assert yaml.safe_load(recipe) == {"trainer": trainer, "model": model}
    assert rest == [str(RECIPES / "dpo.yaml"), str(RECIPES / "world-small.yaml")]
    assert arranged[8:] == ["--model.beta=1", "--ckpt_path", saved]
    assert yaml.safe_load(arrange("fit", words)[3])["trainer"]["devices"] == 8


def test_value_of_takes_the_last():
    assert value_of(["--a", "1", "--b=2", "--a=3=4"], "--a") == "3=4"
    assert value_of(["--a"], "--a") is None
    assert value_of([], "--a") is None


def test_flags_beat_files_and_files_beat_the_checkpoint_and_all_beat_base_yaml(here):
    recipe = deepcopy(WHOLE["dpo.yaml"])
    recipe["model"]["init_args"].update(beta=0.7, sft_weight=0.7, grad_norm=0.7)
    saved = write_checkpoint(here / "x.ckpt", recipe)
    Path("mine.yaml").write_text("model: {init_args: {beta: 0.8, sft_weight: 0.8}}\n")
    cli = build("test", "--model.beta", "0.9", "--config", "mine.yaml", "--ckpt_path", saved, *CPU)
    assert (cli.model.beta, cli.model.sft_weight, cli.model.grad_norm) == (0.9, 0.8, 0.7)
    assert cli.datamodule.samples == 4
    assert type(cli.model).__name__ == "DPO"


@pytest.mark.parametrize("words", [("--model", "my_ipo.IPO", "--config", "dpo.yaml"),
                                   ("--config", "dpo.yaml", "--model=my_ipo.IPO")])  # fmt: skip
def test_an_objective_of_the_users_own_keeps_what_it_shares(here, monkeypatch, words):
    monkeypatch.delitem(sys.modules, "my_ipo", raising=False)
    Path("my_ipo.py").write_text(IPO)
    cli = build("fit", *words, "--model.grad_norm", "0.25", "--model.tau=0.4", *CPU)
    assert type(cli.model).__name__ == "IPO"
    assert (cli.model.tau, cli.model.grad_norm) == (0.4, 0.25)
    assert cli.model.policy_config.adapter == "runs/sft/adapter"  # from dpo.yaml; its beta was dropped


def test_other_data_keeps_what_it_shares(here):
    words = ["-c", "dpo.yaml", "--data.batch_size=5", "--data", "Preferences", "--data.path", "p.jsonl", *CPU]
    cli = build("fit", *words, "--model.policy.model", "world")
    assert (cli.datamodule.path, cli.datamodule.batch_size) == ("p.jsonl", 5)


OWN_DATA = """
from lovec.datamodules import RecordsDataModule, World


class Own(RecordsDataModule): ...


class Larger(World): ...
"""


def test_files_of_ones_own_are_not_trained_on_with_the_worlds_model_by_default(here, capsys):
    Path("p.jsonl").touch()
    words = ["fit", "--config", "sft.yaml", "--data", "Demonstrations", "--data.path", "p.jsonl"]
    code, line = error_of(capsys, *words)
    assert code == 2 and "nothing names the model for the data Demonstrations" in line and not Path("runs").exists()
    Path("own.yaml").write_text("data: {class_path: lovec.datamodules.Preferences, init_args: {path: p.jsonl}}\n")
    code, line = error_of(capsys, "fit", "--config", "sft.yaml", "--config", "own.yaml")
    assert code == 2 and "lovec.datamodules.Preferences" in line
    Path("my_data.py").write_text(OWN_DATA)
    for name in ("WildHallu", "FActScore", "HaluEval", "Atlas", "my_data.Own"):
        code, line = error_of(capsys, "fit", "--config", "sft.yaml", "--data", name)
        assert code == 2 and f"nothing names the model for the data {name}" in line
    assert type(build("fit", "--config", "sft.yaml", "--data", "my_data.Larger", *CPU).datamodule).__name__ == "Larger"
    Path("mine.yaml").write_text("model: {init_args: {policy: {model: world}}}\n")
    assert build("fit", *words[1:], "--config", "mine.yaml", *CPU).datamodule.path == "p.jsonl"


def test_names_that_users_give_keep_their_hyphens(here):
    words = ["--config", "comparison.yaml", "--model.adapters.my-run", "runs/mine", "--model.policy.lora-r", "4"]
    cli = build("test", *words, *CPU)
    assert cli.model.adapters["my-run"] == "runs/mine"
    assert cli.model.policy_config.lora_r == 4


def test_one_seed_reaches_everything(here):
    cli = build("fit", "-c", "dpo.yaml", "--seed_everything", "5", *CPU)
    assert (cli.model.seed, cli.datamodule.seed) == (5, 5)


def test_logs_go_to_the_folder_of_the_run(here):
    cli = build("fit", "-c", "dpo.yaml", "--trainer.default_root_dir", "mine", *CPU)
    assert Path(cli.trainer.log_dir) == Path("mine/logs/version_0")


# ---------------------------------------------------------------- checkpoints


@pytest.mark.parametrize("words", [[], ["-c", "sft.yaml"]])
def test_a_checkpoint_that_cannot_be_read_is_one_line(here, capsys, words):
    code, line = error_of(capsys, "test", "--ckpt_path", "none.ckpt", *words)
    assert (code, "none.ckpt" in line) == (1, True)
    Path("broken.ckpt").write_bytes(b"no zip")
    code, line = error_of(capsys, "test", "--ckpt_path", "broken.ckpt", *words)
    assert (code, "cannot read broken.ckpt" in line) == (1, True)


def test_fit_then_test_from_the_checkpoint_alone(here, capsys, tmp_path_factory):
    write_records(here / "pairs.jsonl", records(12))
    write_records(here / "test.jsonl", records(4, seed=1))
    model = tiny(tmp_path_factory.getbasetemp(), "llama")
    Path("tiny.yaml").write_text(yaml.safe_dump({
        "trainer": {"enable_progress_bar": False, "enable_model_summary": False, "max_steps": 2},
        "model": {"init_args": {"policy": {"model": model, "adapter": None, "lora_r": 4}, "beta": 0.3,
                                "evaluation": {"modes": ["iterative"]}}},
        "data": {"class_path": "Preferences",
                 "init_args": {"path": "pairs.jsonl", "test_path": "test.jsonl", "batch_size": 4}},
    }))  # fmt: skip
    assert (
        main(["fit", "--config", "dpo.yaml", "--config", "tiny.yaml", "--trainer.default_root_dir", "out", *CPU]) == 0
    )
    saved = next(Path("out").rglob("last.ckpt"))
    recipe = yaml.safe_load(torch.load(saved, weights_only=True)[RECIPE_KEY])
    assert recipe["model"]["init_args"]["beta"] == 0.3
    assert recipe["model"]["init_args"]["grad_norm"] == 1.0  # base.yaml is part of it
    assert recipe["data"]["class_path"].endswith("Preferences")

    code, line = error_of(capsys, "test", "--ckpt_path", str(saved), *CPU)
    flags = re.search(r"add (.*), or a --config of your own$", line)[1]  # files and folders are named again
    assert (code, flags) == (
        2, f"--model.policy.model {model} --data.path pairs.jsonl --data.test_path test.jsonl"
    )  # fmt: skip
    assert main(["test", "--ckpt_path", str(saved), *shlex.split(flags), *CPU]) == 0
    out = capsys.readouterr().out
    assert "Test of DPO" in out
    rows = json.loads(Path("out/test/test/results.json").read_text())["rows"]
    assert {row["method"] for row in rows} == {"DPO", "Vanilla", "Best constant"}
    assert "ModelCheckpoint" not in out
