"""The command line: one-line errors, recipes by name, and flags over files over checkpoints."""

from __future__ import annotations

import importlib.util
import itertools
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import yaml
from tinyrun import records, tiny

from lovec.cli import COMMANDS, main
from lovec.cli.arguments import RECIPE_KEY, RECIPES, arrange, find_recipe, value_of
from lovec.cli.errors import UsageError
from lovec.datasets.jsonl import write_records
from lovec.types import LovecError

ROOT = Path(__file__).resolve().parents[2]
OBJECTIVES = {
    "sft.yaml": "SFT", "sft2.yaml": "SFT", "sft-regression.yaml": "SFTRegression", "orpo.yaml": "ORPO",
    "dpo.yaml": "DPO", "grpo.yaml": "GRPO", "expected.yaml": "ExpectedReward", "p-true.yaml": "PTrueTuned",
    "comparison.yaml": "Comparison",
}  # fmt: skip
OVERLAYS = ("world-small.yaml", "llama3-8b.yaml", "gemma2-9b.yaml", "factscore.yaml", "vllm.yaml", "vllm-server.yaml")
CPU = ["--trainer.accelerator", "cpu"]

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


@pytest.fixture
def here(tmp_path, monkeypatch):
    """An empty working directory, and the import path as it was afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    return tmp_path


def build(command, *words):
    """The command's objects, without running the trainer."""
    from lovec.cli.training import TrainingCLI

    return TrainingCLI(command, words)


def complaint(capsys, *words):
    """Exit code and the one line on standard error."""
    capsys.readouterr()
    code = main(list(words))
    lines = [line for line in capsys.readouterr().err.splitlines() if not line.startswith("Seed set")]
    assert len(lines) == 1, lines
    assert lines[0].startswith("lovec: error: ")
    return code, lines[0].removeprefix("lovec: error: ")


def checkpoint(path, recipe):
    torch.save({RECIPE_KEY: yaml.safe_dump(recipe), "state_dict": {}}, path)
    return str(path)


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ("fti", "unknown command fti; did you mean fit?"),
        ("--versoin", "unknown option --versoin; did you mean --version?"),
        ("demo --quik", "unknown option --quik; did you mean --quick?"),
        ("demo --seed x", "argument --seed: invalid int value: 'x'"),
        ("demo --methods sft,dpp", "unknown method dpp; did you mean dpo?"),
        ("world now", "unexpected word now; options start with --"),
        ("fit --config", "--config needs the name of a recipe, such as sft.yaml"),
        ("fit", "--data and --model must be given; give them, or a recipe such as --config sft.yaml"),
        ("fit -c dpo.yaml --trainer.max_epoch 3",
         "unknown option --trainer.max_epoch; did you mean --trainer.max_epochs?"),
        ("fit -c dpo.yaml --trainer.max_epochs x", "--trainer.max_epochs is x, expected int"),
        ("fit -c dpo.yaml --model.betta 3", "unknown option --model.betta of DPO; did you mean --model.beta?"),
        ("fit -c dpo.yaml --model.policy.lora_q 3",
         "unknown option --model.policy.lora_q; did you mean --model.policy.lora_r?"),
        ("fit -c dpo.yaml --model.policy.lora_r x", "--model.policy.lora_r is x, expected int"),
        ("fit -c dpo.yaml --model.optimizer.lr x", "--model.optimizer.lr is x, expected float"),
        ("fit -c dpo.yaml --model.optimizer Adm", "unknown class for --model.optimizer: Adm; did you mean Adam?"),
        ("fit -c dpo.yaml --model DPPO", "unknown class for --model: DPPO; did you mean DPO?"),
        ("fit -c dpo.yaml --model nofile.IPO",
         "cannot import nofile.IPO: No module named 'nofile'; a file of your own must be in the working directory"),
        ("fit -c dpo.yaml --model lovec.modules.DP0", "there is no DP0 in lovec.modules; did you mean DPO?"),
        ("fit -c dpo.yaml --data Preferences", "--data.path must be given for Preferences"),
        ("fit -c dpo.yaml extra", "unexpected word extra; options start with --"),
        ("fit -c grpo.yaml --model.reward LogRewrd",
         "unknown class for --model.reward: LogRewrd; did you mean LogReward?"),
        ("fit -c grpo.yaml --model.reward LogReward --model.reward.clp 1",
         "unknown option --model.reward.clp of LogReward; did you mean --model.reward.clip?"),
        ("fit -c grpo.yaml --model.reward fractions.Fraction",
         "--model.reward is fractions.Fraction, which is no Reward: expected methods with these names and types: "
         "__call__(score: int | None, rating: int) -> float"),
    ],
)  # fmt: skip
def test_a_wrong_word_is_one_line_with_the_nearest_right_one(here, capsys, words, line):
    assert complaint(capsys, *words.split()) == (2, line)


@pytest.mark.parametrize(
    ("old", "new", "line"),
    [
        ("trainer:", "trainr:", "unknown option --trainr"),
        ("max_epochs:", "max_epoch:", "unknown option --trainer.max_epoch; did you mean --trainer.max_epochs?"),
        ("beta:", "btea:", "unknown option --model.btea of DPO; did you mean --model.beta?"),
        ("lora_r:", "lora_rr:", "unknown option --model.policy.lora_rr; did you mean --model.policy.lora_r?"),
        ("model:", "model: [", "recipe mine.yaml is not valid YAML"),
    ],
)
def test_a_typo_in_a_recipe_is_one_line(here, capsys, old, new, line):
    text = (RECIPES / "dpo.yaml").read_text()
    Path("mine.yaml").write_text(text.replace(old, new, 1))
    code, said = complaint(capsys, "fit", "--config", "mine.yaml")
    assert code == 2
    assert said.startswith(line)


def test_an_unknown_recipe_lists_the_packaged_ones(here, capsys):
    code, line = complaint(capsys, "fit", "--config", "dop.yaml")
    assert code == 2
    assert "dop.yaml" in line
    assert "dpo.yaml, expected.yaml, factscore.yaml" in line


def test_a_recipe_of_the_working_directory_comes_first(here):
    assert find_recipe("sft.yaml") == RECIPES / "sft.yaml"
    Path("sft.yaml").write_text("trainer: {max_epochs: 7}\n")
    assert find_recipe("sft.yaml") == here / "sft.yaml"


@pytest.mark.parametrize(("recipe", "overlay"), list(itertools.product(OBJECTIVES, (None, *OVERLAYS))))
def test_every_packaged_recipe_builds(here, recipe, overlay):
    cli = build("fit", "--config", recipe, *(["--config", overlay] if overlay else []), *CPU)
    given = yaml.safe_load((RECIPES / (overlay or recipe)).read_text())["model"]["init_args"]
    if "engine" in given:
        assert given["engine"]["class_path"].endswith(f".{type(cli.model.engine).__name__}")
    for key, value in given.get("policy", {}).items():  # nothing of it was lost on the way
        assert getattr(cli.model.policy_config, key) == value
    assert type(cli.model).__name__ == OBJECTIVES[recipe]


def test_every_packaged_recipe_is_known_here():
    assert {path.name for path in RECIPES.glob("*.yaml")} == {*OBJECTIVES, *OVERLAYS}


def test_every_value_of_a_recipe_says_whose_it_is():
    chosen = ("lr:", "betas:", "weight_decay:", "warmup:", "lora_", "max_epochs:", "batch_size:", "beta:", "grad_norm:")
    for name in (*OBJECTIVES, "llama3-8b.yaml", "gemma2-9b.yaml"):
        for line in (RECIPES / name).read_text().splitlines():
            if line.strip().startswith(chosen):
                assert any(source in line for source in ("paper", "template", "sibling", "ours")), f"{name}: {line}"


def test_words_are_arranged_so_that_flags_win(here):
    saved = checkpoint(here / "x.ckpt", {"trainer": {"devices": 8, "precision": "bf16-mixed"}, "model": 1})
    words = ["--model.beta=1", "--config=dpo.yaml", "-c", "world-small.yaml", "--ckpt_path", saved]
    first, recipe, *rest = arrange("test", words)
    assert first == "--config"
    assert yaml.safe_load(recipe) == {"trainer": {"precision": "bf16-mixed"}, "model": 1}  # not the other machine
    assert rest[:4] == ["--config", str(RECIPES / "dpo.yaml"), "--config", str(RECIPES / "world-small.yaml")]
    assert rest[4:] == ["--model.beta=1", "--ckpt_path", saved]
    assert yaml.safe_load(arrange("fit", words)[1])["trainer"]["devices"] == 8


def test_value_of_takes_the_last():
    assert value_of(["--a", "1", "--b=2", "--a=3=4"], "--a") == "3=4"
    assert value_of(["--a"], "--a") is None
    assert value_of([], "--a") is None


def test_flags_beat_files_and_files_beat_the_checkpoint(here):
    recipe = yaml.safe_load((RECIPES / "dpo.yaml").read_text())
    recipe["model"]["init_args"].update(beta=0.7, sft_weight=0.7, grad_norm=0.7)
    saved = checkpoint(here / "x.ckpt", recipe)
    Path("mine.yaml").write_text("model: {init_args: {beta: 0.8, sft_weight: 0.8}}\n")
    cli = build("test", "--model.beta", "0.9", "--config", "mine.yaml", "--ckpt_path", saved, *CPU)
    assert (cli.model.beta, cli.model.sft_weight, cli.model.grad_norm) == (0.9, 0.8, 0.7)
    assert type(cli.model).__name__ == "DPO"


@pytest.mark.parametrize("words", [[], ["-c", "sft.yaml"]])
def test_a_checkpoint_that_cannot_be_read_is_one_line(here, capsys, words):
    code, line = complaint(capsys, "test", "--ckpt_path", "none.ckpt", *words)
    assert (code, "none.ckpt" in line) == (1, True)
    Path("broken.ckpt").write_bytes(b"no zip")
    code, line = complaint(capsys, "test", "--ckpt_path", "broken.ckpt", *words)
    assert (code, "cannot read broken.ckpt" in line) == (1, True)


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
    cli = build("fit", "-c", "dpo.yaml", "--data.batch_size=5", "--data", "Preferences", "--data.path", "p.jsonl", *CPU)
    assert (cli.datamodule.path, cli.datamodule.batch_size) == ("p.jsonl", 5)


def test_one_seed_reaches_everything(here):
    cli = build("fit", "-c", "dpo.yaml", "--seed_everything", "5", *CPU)
    assert (cli.model.seed, cli.datamodule.seed) == (5, 5)


def test_logs_go_to_the_folder_of_the_run(here):
    cli = build("fit", "-c", "dpo.yaml", "--trainer.default_root_dir", "mine", *CPU)
    assert Path(cli.trainer.log_dir) == Path("mine/logs/version_0")


@pytest.mark.parametrize(("logger", "package"), [("WandbLogger", "wandb"), ("TensorBoardLogger", "tensorboard")])
def test_a_missing_logger_names_its_package(here, capsys, logger, package):
    if importlib.util.find_spec(package):
        pytest.skip(f"{package} is installed")
    code, line = complaint(capsys, "fit", "-c", "dpo.yaml", "--trainer.logger", logger, *CPU)
    assert code == 1
    assert line.endswith(f"pip install {package}")


def test_settings_that_lightning_refuses_are_one_line(here, capsys):
    code, line = complaint(capsys, "fit", "-c", "dpo.yaml", "--trainer.accelerator", "gpx")
    assert code == 1
    assert "gpx" in line


def test_an_error_of_a_module_is_one_line_or_a_traceback(here, capsys, monkeypatch):
    words = ["fit", "-c", "dpo.yaml", "--model.evaluation.modes=[loud]", *CPU]
    code, line = complaint(capsys, *words)
    assert code in (1, 2)
    assert "loud" in line
    monkeypatch.setenv("LOVEC_DEBUG", "1")
    with pytest.raises(LovecError, match="loud"):
        main(words)


def test_interrupts_are_quiet(monkeypatch, capsys):
    def interrupt(args):
        raise KeyboardInterrupt

    def interrupted_trainer(args):  # Lightning ends the process itself
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
    said = capsys.readouterr().out
    assert all(f"\n  {name} " in said for name in COMMANDS)
    assert main([]) == 0
    assert capsys.readouterr().out == said


def test_help_of_fit_loads_no_engine():
    check = (
        "import sys; from lovec.cli import main; code = main(['fit', '--help']); "
        "found = {'vllm', 'bitsandbytes'} & set(sys.modules); assert not found, found; assert code == 0, code"
    )
    run = subprocess.run([sys.executable, "-c", check], cwd=ROOT, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    assert "--trainer.max_epochs" in run.stdout


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
    held = yaml.safe_load(torch.load(saved, weights_only=True)[RECIPE_KEY])
    assert held["model"]["init_args"]["beta"] == 0.3
    assert held["data"]["class_path"].endswith("Preferences")

    capsys.readouterr()
    assert main(["test", "--ckpt_path", str(saved), *CPU]) == 0
    said = capsys.readouterr().out
    assert "Test of DPO" in said
    rows = json.loads(Path("out/test/results.json").read_text())
    assert {row["method"] for row in rows} == {"DPO", "Vanilla", "Best constant"}
    assert "ModelCheckpoint" not in said


@pytest.fixture
def demo_calls(here, monkeypatch):
    """What the demo would run: the command and words of every call; a test gives rows, also of what it is not for."""
    import lovec.datasets.world
    from lovec.cli import training

    calls = []

    def execute(command, words):
        calls.append((command, *words))
        own = {"sft2.yaml": "SFT-2"}.get(words[1], OBJECTIVES[words[1]])
        row = dict(domain="in-domain", mode="iterative", level="sentence", readout="stated", seed=3, brier=0.1,
                   ece_m=0.2, spearman=None, malformed=0.0, mean_confidence=0.5, mean_factuality=0.5, n=7)  # fmt: skip
        methods = [own, "Best constant"] + (
            ["Vanilla"] if value_of(words, "--model.evaluation.vanilla") == "true" else []
        )
        methods += ["SFT + isotonic"] if own == "SFT" else []
        results = [{**row, "method": method} for method in methods] if command == "test" else []
        return type("CLI", (), {"model": type("Model", (), {"results": results})})

    monkeypatch.setattr(training, "execute", execute)
    monkeypatch.setattr(lovec.datasets.world, "ensure_world", lambda variant: calls.append(("world", variant)))
    return calls


def test_the_demo_runs_the_recipes_in_order(demo_calls, capsys):
    assert main(["demo", "--quick", "--seed", "3", "--out", "d", "--methods", "dpo,sft2"]) == 0
    assert demo_calls[0] == ("world", "world-small")
    runs = [(call[0], value_of(call, "--config"), value_of(call[:3], "--config")) for call in demo_calls[1:]]
    recipes = ["sft.yaml", "sft2.yaml", "dpo.yaml"]
    assert runs == [(command, "world-small.yaml", name) for name in recipes for command in ("fit", "test")]
    for call in demo_calls[1:]:
        build(call[0], *call[1:], *CPU)  # the flags are ones the parser takes
        assert value_of(call, "--seed_everything") == "3"
        start = os.path.join("d", "sft", "adapter") if call[0] == "fit" and call[2] != "sft.yaml" else None
        assert value_of(call, "--model.policy.adapter") == start
        assert value_of(call, "--trainer.default_root_dir") == os.path.join("d", call[2].removesuffix(".yaml"))
    vanilla = [value_of(call, "--model.evaluation.vanilla") for call in demo_calls if call[0] == "test"]
    assert vanilla == ["true", "false", "false"]  # the untrained model is the same for all
    rows = json.loads(Path("d/results.json").read_text())
    assert [row["method"] for row in rows] == ["Vanilla", "Best constant", "SFT", "SFT + isotonic", "SFT-2", "DPO"]
    said = capsys.readouterr()
    assert "lovec demo: world-small, seed 3" in said.out
    assert [line[:3] for line in said.err.splitlines() if line] == ["1/4", "2/4", "3/4", "4/4"]


@pytest.mark.parametrize(("flags", "runs"), [
    ([], ["sft", "sft2", "orpo", "dpo", "expected"]),
    (["--full"], ["sft", "sft2", "orpo", "dpo", "grpo", "expected"]),
    (["--methods", "grpo"], ["sft", "grpo"]),
])  # fmt: skip
def test_the_demo_runs_all_but_the_long_ones_or_what_is_named(demo_calls, flags, runs):
    assert main(["demo", *flags]) == 0
    assert [call[2] for call in demo_calls[1::2]] == [f"{name}.yaml" for name in runs]


def test_every_row_of_the_demo_is_of_a_recipe():
    from lovec.cli.demo import METHODS, ORDER

    others = {"sft-regression.yaml", "p-true.yaml", "comparison.yaml"}
    assert {f"{method.name}.yaml" for method in METHODS} | others == set(OBJECTIVES)
    assert len(set(ORDER)) == len(ORDER)


def test_usage_errors_are_lovec_errors():
    assert issubclass(UsageError, LovecError)


def test_a_warning_of_ours_is_one_line_and_others_keep_their_place():
    import lovec
    from lovec.cli.training import _one_line_warning

    ours = str(Path(lovec.__file__).parent / "modules" / "monitors.py")
    assert _one_line_warning("tags are breaking", UserWarning, ours, 7) == "lovec: warning: tags are breaking\n"
    assert "other.py:7: UserWarning: odd" in _one_line_warning("odd", UserWarning, "/elsewhere/other.py", 7)
