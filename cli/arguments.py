"""From the words of a command line to the words that the trainer's parser reads.

Recipes are found by name. ``base.yaml``, which all recipes share, comes first, then the recipe inside a checkpoint,
then the recipes of the command line, then its flags, wherever they stood, because later words win. And the working
directory becomes importable, so that ``--model my_file.MyObjective`` finds ``my_file.py`` (a console script does not
see it otherwise).
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any

import yaml

from lovec.core.notices import nearest
from lovec.core.plain import nested
from lovec.core.settings import class_at, declared

from . import with_home
from .console import is_first_process, remark
from .errors import UsageError, one_line
from .parser import with_underscores
from .resume import find_checkpoint, is_name
from .saved_recipe import LeftOut, Recipe, RecipeFilter, read_saved_recipe, recipe_text, run_folder
from .sourcecode import full_name, packages_of

RECIPES = Path(__file__).resolve().parents[1] / "configs"
"""The packaged recipes, in a checkout and in an installed package alike."""

BASE = RECIPES / "base.yaml"
"""What all recipes share; always the packaged file."""

NO_OPTIONS = frozenset(("model", "datamodule", "dataloaders", "train_dataloaders", "val_dataloaders", "verbose"))
"""Parameters of the trainer's methods that are no options of the command line."""

_CONFIG = ("--config", "-c")
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


def overlay_of(model: str) -> str | None:
    """Return the name of the packaged recipe for a model, by the last part of its name; None where there is none.

    Such a recipe names a model, but neither an objective nor data.
    """
    for path in sorted(RECIPES.glob("*.yaml")):
        recipe = read_recipe(path)
        named = nested(recipe, "model", "init_args", "policy", "model")
        is_overlay = not any(nested(recipe, part, "class_path") for part in ("model", "data"))
        if named and is_overlay and path != BASE and Path(named).name.casefold() == Path(model).name.casefold():
            return path.name
    return None


def recipe_names(words: Sequence[str]) -> Iterator[str]:
    """Yield the recipes that a command line names, by ``--config`` or ``-c``.

    Raises:
        UsageError: one of them has no name.
    """
    for name, value in named_values(words):
        if name in _CONFIG:
            if not value:
                raise UsageError(f"{name} needs the name of a recipe, such as sft.yaml")
            yield value


def named_values(words: Sequence[str]) -> Iterator[tuple[str, str | None]]:
    """Yield every word as the name of an option, with its value: what follows ``=`` in it, or else the next word."""
    for word, after in zip_longest(words, words[1:]):
        name, equals, value = word.partition("=")
        yield name, value if equals else after


def without(words: Sequence[str], *names: str) -> list[str]:
    """Return the words without some options and their values."""
    kept, rest = [], iter(words)
    for word in rest:
        name, equals, _ = with_underscores([word])[0].partition("=")
        if name not in names:
            kept.append(word)
        elif not equals:
            next(rest, None)
    return kept


def with_place(error: UsageError, paths: Sequence[Path], flags: Sequence[str] = ()) -> UsageError:
    """Return an error with file and line of the recipe that sets the option which it names.

    Args:
        error: its first option is looked for, as ``--model.beta``.
        paths: recipes; the last one that sets the option counts.
        flags: flags of the command line; where one of them sets the option, no recipe is named.
    """
    named = re.search(r"--([A-Za-z_][\w.]*)", str(error))
    option = "" if named is None else named[1].rstrip(".")
    given = {re.sub(r"\.(init_args|class_path)\b|\+$", "", word.partition("=")[0]) for word in flags}
    if option and f"--{option}" not in given:
        for path in reversed(paths):
            if (line := _line_of(path, option)) is not None:
                return UsageError(f"{path.name}, line {line}: {error}")
    return error


def _line_of(path: Path, option: str) -> int | None:
    """Return the line of a recipe that sets an option, from 1; None where none does."""
    parts = [part for part in option.split(".") if part != "init_args"]

    def find(node: Any, depth: int) -> int | None:
        if isinstance(node, yaml.SequenceNode):
            return next(filter(None, (find(item, depth) for item in node.value)), None)
        for key, value in node.value if isinstance(node, yaml.MappingNode) else ():
            here: int = key.start_mark.line + 1
            if key.value == "init_args" or (key.value == "class_path" and depth == len(parts)):
                if (line := here if key.value == "class_path" else find(value, depth)) is not None:
                    return line
            elif depth < len(parts) and key.value == parts[depth]:
                inner = find(value, depth + 1)
                return here if inner is None and depth + 1 == len(parts) else inner
        return None

    return find(yaml.compose(path.read_text(encoding="utf-8")), 0)


def value_of(flags: Sequence[str], *names: str) -> str | None:
    """Return the last value given to a flag by any of its names, as ``--name value`` or ``--name=value``."""
    return next((value for name, value in reversed([*named_values(flags)]) if name in names), None)


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
    words = with_underscores(words)
    paths = [find_recipe(name) for name in recipe_names(words)]
    flags = without(words, *_CONFIG)
    recipes = [read_recipe(path) for path in paths]
    # A path where it can be, since errors name it.
    sources = [
        recipe_text(recipe) if _has_home(path) else str(path) for path, recipe in zip(paths, recipes, strict=True)
    ]
    if (given := value_of(flags, "--ckpt_path")) == "":
        raise UsageError("--ckpt_path is empty; give auto, last, best or the path of a .ckpt file")
    checkpoint = given or _last(recipe.get("ckpt_path") for recipe in recipes)
    if checkpoint and is_name(checkpoint):
        folders = (nested(recipe, "trainer", "default_root_dir") for recipe in recipes)
        folder = value_of(flags, "--trainer.default_root_dir") or _last(folders) or "."
        if checkpoint == "auto" and command != "fit":
            raise UsageError(f"--ckpt_path auto is for fit; {command} needs last, best or the path of a .ckpt file")
        found = find_checkpoint(checkpoint, Path(folder), command)
        checkpoint = "null" if found is None else str(found)
        flags += ["--ckpt_path", checkpoint]
    if checkpoint and checkpoint != "null":
        if (saved := saved_recipe(Path(checkpoint), command, recipes, flags)) is not None:
            fitting = _for_data_of(saved, recipes)
            for number, (whole, fits) in enumerate(zip(recipes, fitting, strict=True)):
                if fits != whole:  # others stay paths, which errors name
                    sources[number] = recipe_text(fits)
            recipes, sources = [saved, *fitting], [recipe_text(saved), *sources]
    if command == "fit" and not any(flag.startswith("--print_config") for flag in flags):
        _refuse_worlds_model(recipes, flags)
    base = yaml.safe_dump(base_recipe(recipes, flags), sort_keys=False)
    return [word for source in [base, *sources] for word in ("--config", source)] + flags


def _for_data_of(saved: Recipe, recipes: Sequence[Recipe]) -> list[Recipe]:
    """Return recipes without the options of data that the data of a checkpoint do not have.

    Before the first recipe that names the data, these are options of the class of ``base.yaml``. Without a checkpoint
    the parser drops those that a class named later lacks; the recipe of a checkpoint has named it already.
    """
    base, found = (class_at(_class_name(source.get("data"))) for source in (read_recipe(BASE), saved))
    lacking = set() if base is None or found is None else declared(base).keys() - declared(found).keys()

    def kept(settings: Any) -> Any:
        if not isinstance(settings, Mapping):
            return settings
        return {name: kept(value) if name == "init_args" else value for name, value in settings.items()
                if name not in lacking}  # fmt: skip

    fitting = list(recipes)
    for number, recipe in enumerate(recipes):
        if _class_name(recipe.get("data")):
            break
        if "data" in recipe:
            fitting[number] = {**recipe, "data": kept(recipe["data"])}
    return fitting


def _last(values: Iterable[Any]) -> str | None:
    """Return the last of several values that is given."""
    return next((str(value) for value in reversed([*values]) if value), None)


def _class_name(spec: Any) -> Any:
    """Return the class that a setting names: by its name alone, or beside its settings."""
    return spec.get("class_path") if isinstance(spec, Mapping) else spec


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
    base = read_recipe(BASE)
    models = [*(recipe.get("model") for recipe in recipes), value_of(flags, "--model", "--model.class_path")]
    settings = base.pop("model")
    if (name := next(filter(None, map(_class_name, models)), None)) is not None:
        base["model"] = {"class_path": name, **settings}
    elif any(models):
        raise UsageError(
            "no recipe names an objective; give one that does, such as --config sft.yaml, or --model CLASS"
        )
    return base


def _refuse_worlds_model(recipes: Sequence[Mapping[str, Any]], flags: Sequence[str]) -> None:
    """Refuse other data than the world's where nothing names a model, since that of ``base.yaml`` is the world's.

    Raises:
        UsageError: so it is.
    """
    named = [nested(recipe, "model", "init_args", "policy", "model") for recipe in recipes]
    named += [nested(recipe, "model", "policy", "model") for recipe in recipes]
    if any(named) or value_of(flags, "--model.policy.model", "--model.init_args.policy.model", "--model.policy"):
        return
    data = [*(recipe.get("data") for recipe in recipes), value_of(flags, "--data", "--data.class_path")]
    chosen = _last(map(_class_name, data))
    if chosen is None:
        return
    packages = packages_of("RecordsDataModule")
    found, world = (class_at(full_name(name, packages) or name) for name in (chosen, "World"))
    if found is not None and world is not None and not issubclass(found, world):  # an unknown class is the parser's
        raise UsageError(
            f"nothing names the model for the data {chosen}, and the one of base.yaml knows an invented world only; "
            "give --model.policy.model NAME (world, if your files are about it), or a --config that names it"
        )


def saved_recipe(checkpoint: Path, command: str, recipes: Sequence[Recipe], flags: Sequence[str]) -> Recipe | None:
    """Return what is taken of the recipe that a checkpoint holds, or None if it was written without one.

    To continue training all of it counts; to measure, the machine it was trained on does not. What was taken and what
    was left out is printed.

    Args:
        checkpoint: file that ``--ckpt_path`` names.
        command: fit, validate, test or predict.
        recipes: recipes of the command line.
        flags: its flags.

    Raises:
        LovecError: there is no such file, it is not a checkpoint, or its recipe is broken.
        UsageError: settings that say what is trained or measured are not taken from a checkpoint, and the command line
            does not set them.
    """
    saved = read_saved_recipe(checkpoint)
    if saved is None:
        return None
    trainer = saved.get("trainer", {})
    if command != "fit":
        saved["trainer"] = {name: value for name, value in trainer.items() if name not in _MACHINE}
    given = {word.partition("=")[0].removeprefix("--") for word in flags if word.startswith("--")}
    given |= {option for recipe in recipes for option in _options(recipe)}
    given = {re.sub(r"\.(init_args|class_path)\b|\+$", "", option) for option in given}
    classes: dict[str, str] = {}
    for section, kind in (("model", "EvaluationModule"), ("data", "RecordsDataModule")):
        named = [
            *(recipe.get(section) for recipe in recipes),
            value_of(flags, f"--{section}", f"--{section}.class_path"),
        ]
        names = (name for name in map(_class_name, named) if isinstance(name, str))
        classes.update((section, full_name(name, packages_of(kind)) or name) for name in names)
    part = RecipeFilter(classes)
    recipe = part.taken(saved, run_folder(checkpoint, trainer.get("default_root_dir")))
    left_out = [left for left in part.left_out if not _is_given(left.option, given)]
    if needed := [left for left in left_out if left.needed]:
        raise UsageError(
            f"the recipe inside {checkpoint} has settings that are not taken from a checkpoint, because a stranger may "
            f"have written it; if you know them, add {' '.join(left.flag for left in needed)}, "
            "or a --config of your own"
        )
    if is_first_process():
        remark(_summary(checkpoint, recipe, left_out))
    return recipe


def _options(settings: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    """Yield the names of all settings of a recipe, as on a command line."""
    for name, value in settings.items():
        yield f"{prefix}{name}"
        if isinstance(value, Mapping):
            yield from _options(value, f"{prefix}{name}.")


def _is_given(option: str, given: Collection[str]) -> bool:
    """Return whether an option, or a group that it belongs to, is among those given."""
    parts = option.rstrip("+").split(".")
    return any(".".join(parts[:n]) in given for n in range(min(2, len(parts)), len(parts) + 1))


def _summary(checkpoint: Path, recipe: Recipe, left_out: Sequence[LeftOut]) -> str:
    """Return in one line what was taken from a checkpoint's recipe, and what was not."""
    model, data = (recipe.get(name, {}) for name in ("model", "data"))
    base = model.get("init_args", {}).get("policy", {}).get("model")
    parts = {"objective": model.get("class_path"), "model": base, "data": data.get("class_path")}
    named = ", ".join(f"{name} {value}" for name, value in parts.items() if value)
    left = "; ".join(f"{left.flag.removeprefix('--')} ({left.reason})" for left in left_out)
    taken = f"taken from the recipe inside {checkpoint}: {named or 'no class'}, and its numbers and plain words"
    return taken + (f"; left out: {left}" if left else "")


def read_recipe(path: Path) -> Recipe:
    """Read the file of a recipe.

    Raises:
        UsageError: it is not YAML, or holds something else than settings.
    """
    try:
        recipe = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UsageError(f"recipe {path.name} is not valid YAML: {one_line(error)}") from error
    if not isinstance(recipe, dict):
        raise UsageError(f"recipe {path.name} holds no settings, expected keys such as trainer, model and data")
    if others := list(_other_keys(recipe)):
        raise UsageError(f"recipe {path.name} has the key {others[0]!r}, expected a name such as trainer")
    return dict(_at_home("", recipe))


def _has_home(path: Path) -> bool:
    """Return whether a recipe may name something in the home folder."""
    return "~/" in path.read_text(encoding="utf-8")


def _at_home(option: str, setting: Any) -> Any:
    """Return the setting of an option with the home folder for a ``~/`` in it, as on the command line."""
    if isinstance(setting, dict):
        return {name: _at_home(name, inner) for name, inner in setting.items()}
    if isinstance(setting, list):
        return [_at_home(option, inner) for inner in setting]
    return with_home(option, setting) if isinstance(setting, str) else setting


def _other_keys(settings: Any) -> Iterator[Any]:
    """Yield the keys of nested settings that are not text."""
    if isinstance(settings, dict):
        yield from (key for key in settings if not isinstance(key, str))
    for inner in settings.values() if isinstance(settings, dict) else settings if isinstance(settings, list) else ():
        yield from _other_keys(inner)
