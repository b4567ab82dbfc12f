"""From the words of a command line to the words that the trainer's parser reads.

Recipes are found by name. ``base.yaml``, which all recipes share, comes first, then the recipe inside a checkpoint,
then the recipes of the command line, then its flags, wherever they stood, because later words win. And the working
directory becomes importable, so that ``--model my_file.MyObjective`` finds ``my_file.py`` (a console script does not
see it otherwise).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any, TypeAlias

import yaml

from lovec.types import LovecError

from .errors import UsageError, nearest, one_line
from .parser import with_underscores

Recipe: TypeAlias = dict[str, Any]

RECIPES = Path(__file__).resolve().parents[1] / "configs"
"""The packaged recipes, in a checkout and in an installed package alike."""

BASE = RECIPES / "base.yaml"
"""What all recipes share; always the packaged file."""

RECIPE_KEY = "lovec_recipe"
"""Key of a checkpoint that holds the recipe, as YAML text."""

_MACHINE = ("accelerator", "devices", "num_nodes", "strategy", "plugins", "sync_batchnorm")
"""Trainer options that describe the machine a checkpoint was trained on, not what was trained."""


def find_recipe(name: str) -> Path:
    """Return the file of a recipe: one in the working directory, or else a packaged one.

    Raises:
        UsageError: there is no such file; the error names the packaged recipes.
    """
    for path in (Path(name), RECIPES / name):
        if path.is_file():
            return path.resolve()
    packaged = sorted(path.name for path in RECIPES.glob("*.yaml") if path != BASE)
    raise UsageError(
        f"there is no recipe {name} here or among the packaged ones ({', '.join(packaged)}){nearest(name, packaged)}"
    )


def value_of(flags: Sequence[str], *names: str) -> str | None:
    """Return the last value given to a flag by any of its names, as ``--name value`` or ``--name=value``."""
    last = None
    for word, after in zip_longest(flags, flags[1:]):
        name, equals, value = word.partition("=")
        if name in names:
            last = value if equals else after
    return last


def arrange(command: str, words: Sequence[str]) -> list[str]:
    """Return the words for the parser: base.yaml, the checkpoint's recipe, the recipes given, then all other flags.

    Args:
        command: fit, validate, test or predict.
        words: the command line after the command.

    Raises:
        UsageError: a recipe is not found or is not YAML.
        LovecError: the checkpoint cannot be read.
    """
    add_working_directory()
    paths: list[Path] = []
    flags: list[str] = []
    rest = iter(with_underscores(words))
    for word in rest:
        name, equals, value = word.partition("=")
        if name not in ("--config", "-c"):
            flags.append(word)
            continue
        file = value if equals else next(rest, None)
        if not file:
            raise UsageError(f"{name} needs the name of a recipe, such as sft.yaml")
        paths.append(find_recipe(file))
    recipes = [_read(path) for path in paths]
    sources = [str(path) for path in paths]
    checkpoint = value_of(flags, "--ckpt_path")
    if checkpoint and checkpoint not in ("best", "last", "hpc", "registry", "null"):
        if (saved := saved_recipe(Path(checkpoint), command)) is not None:
            recipes.insert(0, saved)
            sources.insert(0, yaml.safe_dump(saved, sort_keys=False))
    base = yaml.safe_dump(base_recipe(recipes, flags), sort_keys=False)
    return [word for source in [base, *sources] for word in ("--config", source)] + flags


def add_working_directory() -> None:
    """Make files of the working directory importable."""
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())  # at the end: a stray openai.py in it must not hide the real one


def base_recipe(recipes: Sequence[Mapping[str, Any]], flags: Sequence[str]) -> Recipe:
    """Return the settings of ``base.yaml``, for the first class of model that a recipe or a flag names.

    ``base.yaml`` has settings of the model but no class, and a parser reads these only behind a class. Where nothing
    names a class they are left out, so that the parser asks for one.

    Raises:
        UsageError: recipes have settings of the model, but no class.
    """
    base = _read(BASE)
    models = [*(recipe.get("model") for recipe in recipes), value_of(flags, "--model", "--model.class_path")]
    classes = [model.get("class_path") if isinstance(model, Mapping) else model for model in models]
    settings = base.pop("model")
    if (name := next(filter(None, classes), None)) is not None:
        base["model"] = {"class_path": name, **settings}
    elif any(models):
        raise UsageError(
            "no recipe names an objective; give one that does, such as --config sft.yaml, or --model CLASS"
        )
    return base


def saved_recipe(checkpoint: Path, command: str) -> Recipe | None:
    """Return the recipe that a checkpoint holds, or None if it was written without one.

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
    recipe: Recipe = yaml.safe_load(text)
    if command != "fit":
        recipe["trainer"] = {k: v for k, v in recipe["trainer"].items() if k not in _MACHINE}
    return recipe


def _read(path: Path) -> Recipe:
    try:
        recipe = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UsageError(f"recipe {path.name} is not valid YAML: {one_line(error)}") from error
    if not isinstance(recipe, dict):
        raise UsageError(f"recipe {path.name} holds no settings, expected keys such as trainer, model and data")
    return recipe
