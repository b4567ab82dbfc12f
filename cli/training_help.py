"""What ``lovec fit --help`` and the help of its siblings show: the options that matter, at once.

The parser of the trainer has ten times as many, and takes seconds to import; ``--help all`` asks it.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

import yaml

from . import TRAINING
from .arguments import BASE, RECIPES
from .examples import examples_of
from .parser import QUIET_HELP

_ALL = tuple(TRAINING)
_FIT, _MEASURED = ("fit",), tuple(command for command in TRAINING if command != "fit")

OPTIONS: tuple[tuple[str, str, str, Sequence[str]], ...] = (
    (
        "config",
        "RECIPE",
        "a packaged recipe or a file of yours; the last one wins, and flags win over all",
        _ALL,
    ),
    ("model", "CLASS", "the objective, such as DPO, or a class of yours, as my_file.MyObjective", _ALL),
    ("model.policy.model", "NAME", "base model: world, a name on the hub, or a folder", _ALL),
    ("model.policy.adapter", "FOLDER", "adapter to start from; null starts a fresh one", _FIT),
    ("model.evaluation.adapter", "FOLDER", "adapter to measure; by default that of the run", _MEASURED),
    (
        "model.policy.instruction",
        "TEXT",
        "prompt that asks for tags; by default the adapter's, or the data's",
        _ALL,
    ),
    ("model.optimizer.lr", "X", "learning rate", _FIT),
    ("model.oracle", "CLASS", "what rates sentences, such as SelfJudge; by default that of the data", _ALL),
    (
        "model.baselines",
        "CLASS",
        "other methods to measure, such as LUQ; --model.baselines+=CLASS adds one",
        ("test",),
    ),
    ("model.evaluation.modes", "LIST", "[iterative], [free-form] or both, [iterative, free-form]", _ALL[:3]),
    ("data", "CLASS", "the data set: World, Demonstrations, Preferences, Prompts, Bios, ...", _ALL),
    ("data.path", "FILE", "file of a data set of your own", _ALL),
    ("data.batch_size", "N", "answers, pairs or questions per step", _FIT),
    ("trainer.default_root_dir", "FOLDER", "folder of the run, where everything is written", _ALL),
    ("trainer.max_epochs", "N", "number of passes over the data", _FIT),
    ("trainer.max_steps", "N", "stop after this many steps", _FIT),
    ("trainer.val_check_interval", "X", "validate after this share of an epoch", _FIT),
    ("trainer.accelerator", "NAME", "cpu, gpu, mps, or auto for what is there", _ALL),
    ("trainer.devices", "N", "number of GPUs, or auto", _ALL),
    ("trainer.precision", "NAME", "32-true or bf16-mixed", _ALL),
    ("trainer.limit_test_batches", "N", "measure this many batches only", ("test",)),
    ("ckpt_path", "PATH", "checkpoint to go on from: auto, last, best or a file, which holds its recipe", _FIT),
    ("ckpt_path", "PATH", "checkpoint to measure: last, best or a file, which holds its recipe", _MEASURED),
    ("seed_everything", "N", "seed of everything random", _ALL),
    ("print_config", "", "print every setting and its value, and end", _ALL),
)
"""Options that matter: name, its value, what it is, and the commands that it is shown for."""

_WIDTH = 100


def asks_for_short_help(words: Sequence[str]) -> bool:
    """Return whether a command line asks for the help, and not for that of every option."""
    return any(word in ("-h", "--help") and words[at + 1 : at + 2] != ["all"] for at, word in enumerate(words))


def short_help(command: str) -> str:
    """Return the options that matter, the packaged recipes and examples.

    Args:
        command: fit, validate, test or predict.
    """
    options = [(f"--{name} {value}".rstrip(), text) for name, value, text, shown in OPTIONS if command in shown]
    width = max(len(option) for option, _ in options)
    lines = [f"  {option:<{width}}  {text}" for option, text in options]
    objectives, overlays = _recipes()
    purpose = TRAINING[command]
    return f"""usage: lovec {command} --config RECIPE [--config OVERLAY ...] [options]

{purpose[0].upper()}{purpose[1:]}.

{_listed("recipes:", objectives)}
{_listed("overlays:", overlays)}

options:
{chr(10).join(lines)}

{examples_of(command).strip()}

more:
  lovec {command} --model.help DPO           the options of an objective
  lovec {command} --data.help Preferences    the options of a data set
  lovec {command} --help all                 every option, those of Lightning's trainer among them

{QUIET_HELP}
"""


def _recipes() -> tuple[list[str], list[str]]:
    """Return the packaged recipes that name an objective, and those that go behind one."""
    found: tuple[list[str], list[str]] = ([], [])
    for path in sorted(RECIPES.glob("*.yaml")):
        model = yaml.safe_load(path.read_text(encoding="utf-8")).get("model", {})
        if path != BASE:
            found["class_path" not in model].append(path.name)
    return found


def _listed(title: str, names: Sequence[str]) -> str:
    return textwrap.fill(f"{title:<10}{', '.join(names)}", _WIDTH, subsequent_indent=" " * 10, break_on_hyphens=False)
