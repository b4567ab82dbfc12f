"""From the words of a command line to the words that the parser reads.

Three things happen here. Recipes are found by name. What a checkpoint says of itself is put first, then recipes, then
flags, wherever they stood, because later words win: flags beat recipes, recipes beat checkpoints. And the working
directory becomes importable, so that ``--model my_file.MyObjective`` finds ``my_file.py`` (a console script does not
see it otherwise).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any

import yaml

from lovec.types import LovecError

from .errors import UsageError, nearest, one_line

RECIPES = Path(__file__).resolve().parents[1] / "configs"
"""The packaged recipes, in a checkout and in an installed package alike."""

RECIPE_KEY = "lovec_recipe"
"""Key of a checkpoint that holds the recipe, as YAML text."""

_MACHINE = ("accelerator", "devices", "num_nodes", "strategy", "plugins", "sync_batchnorm")
"""Trainer options that describe the machine a checkpoint was trained on, not what was trained."""


def find_recipe(name: str) -> Path:
    """The file of a recipe: first in the working directory, then among the packaged ones.

    Raises:
        UsageError: there is no such file; the packaged recipes are named.
    """
    for path in (Path(name), RECIPES / name):
        if path.is_file():
            return path.resolve()
    packaged = sorted(path.name for path in RECIPES.glob("*.yaml"))
    raise UsageError(
        f"there is no recipe {name} here or among the packaged ones ({', '.join(packaged)}){nearest(name, packaged)}"
    )


def value_of(flags: Sequence[str], *names: str) -> str | None:
    """The last value given to a flag by any of its names, as ``--name value`` or ``--name=value``."""
    found = None
    for word, after in zip_longest(flags, flags[1:]):
        name, equals, value = word.partition("=")
        if name in names:
            found = value if equals else after
    return found


def arrange(command: str, words: Sequence[str]) -> list[str]:
    """Words for the parser: the checkpoint's recipe, the recipes given, then all other flags in their order.

    Args:
        command: fit, validate, test or predict.
        words: the command line after the command.

    Raises:
        UsageError: a recipe is not found or is not YAML.
        LovecError: the checkpoint cannot be read.
    """
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())  # at the end: a stray openai.py in it must not hide the real one
    recipes: list[str] = []
    flags: list[str] = []
    rest = iter(words)
    for word in rest:
        name, equals, value = word.partition("=")
        if name not in ("--config", "-c"):
            flags.append(word)
            continue
        given = value if equals else next(rest, None)
        if not given:
            raise UsageError(f"{name} needs the name of a recipe, such as sft.yaml")
        recipes += ["--config", str(_readable(find_recipe(given)))]
    checkpoint = value_of(flags, "--ckpt_path")
    if checkpoint and checkpoint not in ("best", "last", "hpc", "registry", "null"):
        text = saved_recipe(Path(checkpoint), command)
        recipes = (["--config", text] if text else []) + recipes
    return recipes + flags


def saved_recipe(checkpoint: Path, command: str) -> str | None:
    """The recipe that a checkpoint holds, or None if it was written without one.

    To continue training all of it counts; to measure, the machine it was trained on does not.

    Raises:
        LovecError: there is no such file, or it is no checkpoint.
    """
    if not checkpoint.is_file():
        raise LovecError(f"there is no checkpoint {checkpoint}; give the path of a .ckpt file that `lovec fit` wrote")
    import torch

    try:
        text = torch.load(checkpoint, map_location="cpu", weights_only=True, mmap=True).get(RECIPE_KEY)
    except Exception as error:  # torch.load raises whatever the broken file makes it stumble over
        raise LovecError(f"cannot read {checkpoint} as a checkpoint: {one_line(error)[:200]}") from error
    if text is None:
        return None
    recipe: dict[str, Any] = yaml.safe_load(text)
    if command != "fit":
        recipe["trainer"] = {k: v for k, v in recipe["trainer"].items() if k not in _MACHINE}
    return yaml.safe_dump(recipe, sort_keys=False)


def _readable(path: Path) -> Path:
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UsageError(f"recipe {path.name} is not valid YAML: {one_line(error)}") from error
    if not isinstance(content, dict):
        raise UsageError(f"recipe {path.name} holds no settings, expected keys such as trainer, model and data")
    return path
