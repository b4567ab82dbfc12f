"""The recipe inside a checkpoint, which a stranger may have written: how it is read, and what is taken from it.

What is taken follows from how the parameters of classes are declared (``lovec.core.settings``): numbers; switches,
where the type is bool; words that the type lists (``Literal``); and texts whose type says that nothing opens them
(``PlainWord``, ``PromptText``). Everything else is left out, a mere ``str`` among it, which may be a path. Classes
are taken where they are lovec's and open no file and no connection, or torch's optimisers and schedules. So a
checkpoint cannot run code, name a file, a folder or a host, or have a key sent anywhere. The error or notice about
what was left out names the flag that takes it.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, TypeAlias

import yaml

from lovec.core.moved import new_name
from lovec.core.settings import Option, class_at, declared
from lovec.types import LovecError

from .errors import one_line

Recipe: TypeAlias = dict[str, Any]

RECIPE_KEY = "lovec_recipe"
"""Key of a checkpoint that holds the recipe, as YAML text."""

_LONGEST = 1 << 17  # characters of a recipe; those of lovec have about 5000
_DEEPEST = 32  # levels of a recipe; those of lovec have about 8
_LONGEST_TEXT = 1 << 14  # characters of an instruction
_SHOWN = 200  # characters of a value that a message shows

# Written by hand: a package whose classes recipes name is trusted only once somebody has looked at all of them.
_ROOMS = ("modules", "datamodules", "rewards", "baselines", "teachers", "callbacks", "models.embedding")
_CLASSES = (
    "lovec.evaluation.Comparison",
    "lovec.evaluation.ShardedStrategy",
    "lovec.oracles.LabelFile",
    "lovec.oracles.SelfJudge",
    "lovec.oracles.TriviaQAOracle",
    "lovec.oracles.WorldOracle",
    "lovec.engines.TransformersEngine",
    "lovec.engines.VllmEngine",
    "lightning.pytorch.callbacks.EarlyStopping",
    "lightning.pytorch.callbacks.ModelCheckpoint",
    "lightning.pytorch.loggers.CSVLogger",
)
"""Classes that are taken, beside those of ``_ROOMS`` and torch's optimisers and schedules. What asks a server, such as
OpenAIOracle and RemoteVllm, is not among them: it sends texts away, may cost money, and comes with the user's key."""

_DEFAULTS = {"model": "lovec.modules.PolicyModule", "data": "lovec.datamodules.World"}
"""Classes of a recipe that names none."""

_OF_LIGHTNING = frozenset("accelerator devices gradient_clip_algorithm mode name prefix strategy".split())
"""Parameters of Lightning's trainer, checkpoints and logger that are declared as any text, and taken if they are plain
words; those of lovec's classes are declared as ``PlainWord``."""

_WORD = re.compile(r"[A-Za-z0-9][A-Za-z0-9 ()+,._-]{0,79}")

_METRIC = r"[A-Za-z0-9_][A-Za-z0-9/_-]{0,79}"
_TIME = re.compile(r"\d{1,4}(:\d{1,2}){3}")
_FORMS = {
    "max_time": _TIME,
    "val_check_interval": _TIME,
    "train_time_interval": re.compile(r"(\d{1,4} days?, )?\d{1,2}(:\d{1,2}){2}"),
    "monitor": re.compile(rf"{_METRIC}(\.{_METRIC})*"),
    "filename": re.compile(rf"(?!\.)([A-Za-z0-9=+,._-]|{{{_METRIC}(:\d{{0,2}}(\.\d)?[defg]?)?}}){{1,80}}"),
}
"""Options of Lightning's trainer and callbacks that hold more than a plain word, and how they are written: times, the
name of a metric, and that of a file without a folder, with metrics in braces."""

_UNREAD = "not needed, since the checkpoint holds the adapter"
"""Why a setting is not taken that nothing reads where a checkpoint holds the adapter."""


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A setting that was not taken from a checkpoint.

    Attributes:
        option: its name on the command line, such as ``data.path``; with a ``+`` at its end for an item of a list.
        value: what the checkpoint sets it to.
        reason: why it was not taken.
    """

    option: str
    value: Any
    reason: str

    @property
    def flag(self) -> str:
        """The flag that sets it; of a long value its class or length, since a part of it would be another."""
        text = self.value if isinstance(self.value, str) else json.dumps(self.value, default=str)
        append = "=" if self.option.endswith("+") else " "
        if len(text) > _SHOWN:
            path = self.value.get("class_path") if isinstance(self.value, dict) else None
            if isinstance(path, str) and len(path) <= _SHOWN:
                return f"--{self.option}{append}{shlex.quote(path)} (with its settings)"
            return f"--{self.option} (its value has {len(text)} characters)"
        return f"--{self.option}{append}{shlex.quote(text)}"

    @property
    def needed(self) -> bool:
        """Whether what is trained or measured would be something else without it."""
        return self.option.split(".")[0].rstrip("+") in ("model", "data") and self.reason != _UNREAD


def read_saved_recipe(checkpoint: Path) -> Recipe | None:
    """Return the recipe that a checkpoint holds, as it is, or None if it was written without one.

    Raises:
        LovecError: there is no such file, it is not a checkpoint, or what it holds is not a recipe.
    """
    check_checkpoint(checkpoint)
    import torch

    try:
        saved = torch.load(checkpoint, map_location="cpu", weights_only=True, mmap=True)
    except Exception as error:  # torch.load raises whatever the broken file makes it stumble over
        raise LovecError(f"cannot read {checkpoint} as a checkpoint: {one_line(error)[:200]}") from error
    if not isinstance(saved, dict):
        raise LovecError(f"cannot read {checkpoint} as a checkpoint: it holds a {type(saved).__name__}")
    text = saved.get(RECIPE_KEY)
    return None if text is None else parse_recipe(text, str(checkpoint))


def check_checkpoint(path: Path) -> None:
    """Raise a ``LovecError`` where there is no file of a checkpoint."""
    if not path.is_file():
        raise LovecError(f"there is no checkpoint {path}; give the path of a .ckpt file that `lovec fit` wrote")


def parse_recipe(text: object, place: str) -> Recipe:
    """Return YAML text that a stranger may have written as a recipe.

    Args:
        text: the text.
        place: the file that it is from, for the message.

    Raises:
        LovecError: it is not a recipe.
    """
    try:
        return _parsed(text)
    except (ValueError, yaml.YAMLError, RecursionError) as error:
        raise LovecError(
            f"the recipe inside {place} is broken ({one_line(error)[:120]}); lovec did not write it so"
        ) from None


def recipe_text(recipe: Recipe) -> str:
    """Return a recipe as YAML, without anchors and aliases, which are not read back."""
    return yaml.dump(recipe, Dumper=_PlainDumper, sort_keys=False)


class _PlainDumper(yaml.SafeDumper):
    def ignore_aliases(self, data: Any) -> bool:
        return True


def _parsed(text: object) -> Recipe:
    """Return YAML text as a recipe; aliases are refused, because a short text can stand for gigabytes with them."""
    if not isinstance(text, str):
        raise ValueError(f"it is a {type(text).__name__}, expected YAML text")
    if len(text) > _LONGEST:
        raise ValueError(f"it has {len(text)} characters, expected at most {_LONGEST}")
    depth = 0
    for event in yaml.parse(text, Loader=yaml.SafeLoader):
        if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None) is not None:
            raise ValueError("it has YAML anchors or aliases")
        if (tag := getattr(event, "tag", None)) is not None:
            raise ValueError(f"it has the YAML tag {tag[:40]}")
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > _DEEPEST:
            raise ValueError(f"it has more than {_DEEPEST} levels")
    recipe = yaml.safe_load(text)
    if not isinstance(recipe, dict):
        raise ValueError(f"it is a {type(recipe).__name__}, expected settings such as trainer, model and data")
    for name in ("trainer", "model", "data"):
        if not isinstance(recipe.get(name, {}), dict):
            raise ValueError(f"its {name} is a {type(recipe[name]).__name__}, expected settings")
    return recipe


def run_folder(checkpoint: Path, root: Any = None) -> str:
    """Return the folder of the run that a checkpoint lies in: what a test writes goes there, not where a recipe says.

    Checkpoints of a run lie in its folder, in ``checkpoints``, or in ``checkpoints`` of a logger's name and version; a
    slash in the name of a metric makes a folder in ``checkpoints``.

    Args:
        checkpoint: its file.
        root: ``trainer.default_root_dir`` of the recipe that it holds. Of the folders that may be that of the run, it
            is the one of the same name; without one, only ``version_N`` tells a logger's folder.
    """
    own = checkpoint.parent
    folder = next((place for place in checkpoint.parents if place.name == "checkpoints"), None)
    if folder is None:
        return str(own)
    of_logger = folder.parent.parent.parent
    name = Path(root).name if isinstance(root, str) else ""
    named = [place for place in (own, folder, folder.parent, of_logger) if name and place.absolute().name == name]
    if named:
        return str(named[0])
    if re.fullmatch(r"version_\d+", folder.parent.name):
        return str(of_logger)
    return str(folder.parent if own == folder else own)


@dataclass
class RecipeFilter:
    """Separates what is taken from a checkpoint's recipe from what is left out.

    Args:
        classes: import paths of the classes that the command line names for ``model`` and ``data``, by section; they
            are taken.

    Attributes:
        left_out: what was left out so far.
    """

    classes: Mapping[str, str] = field(default_factory=dict)
    left_out: list[LeftOut] = field(default_factory=list)

    def taken(self, recipe: Recipe, folder: str) -> Recipe:
        """Return what is taken of a recipe.

        Args:
            recipe: as a checkpoint holds it.
            folder: folder of the run that the checkpoint belongs to.
        """
        trainer = dict(recipe.get("trainer", {}))
        kept: Recipe = {}
        for name, value in recipe.items():
            if name == "trainer":
                root = trainer.pop("default_root_dir", None)
                logger = {"logger": _of_run(trainer["logger"], root)} if "logger" in trainer else {}
                kept[name] = self._settings({**trainer, **logger}, name, _trainer())
                if root is not None and str(root) != folder:
                    self._leave(f"{name}.default_root_dir", root, f"results are written to {folder}, beside it")
                kept[name]["default_root_dir"] = folder
            elif name in ("model", "data"):
                kept |= self._section(name, value)
            elif name == "seed_everything" and type(value) is int:
                kept[name] = value
            else:
                self._leave(str(name), value, "no section of a recipe")
        return kept

    def _section(self, name: str, spec: dict[str, Any]) -> Recipe:
        """Return what is taken of ``model`` or ``data``.

        A class of the user's own is taken if the command line names it again. Where it names another class, what that
        one shares with the checkpoint's is taken, and nothing is said about the rest.
        """
        path, named = spec.get("class_path"), self.classes.get(name)
        known = path is None or _class_named(path) is not None
        if not known and named is None:
            self._leave(name, path, "a class that is not lovec's")
        same = path is None or named is None or str(path).rpartition(".")[2] == named.rpartition(".")[2]
        if not known and not (same and named):
            return {}
        section: Recipe = {} if path is None else {"class_path": path if known else named}
        if (settings := spec.get("init_args")) is not None:
            of = _class_named(path or _DEFAULTS[name]) if known else class_at(named)
            section["init_args"] = (self if same else RecipeFilter())._settings(settings, name, of)
        return {name: section}

    def _settings(self, settings: Any, prefix: str, of: type | None) -> dict[str, Any]:
        """Return the settings that are taken of the parameters of a class; None for a class that is not known."""
        if not isinstance(settings, dict):
            self._leave(prefix, settings, "no settings")
            return {}
        kept: dict[str, Any] = {}
        options = {} if of is None else declared(of)
        for name, value in settings.items():
            place, option = f"{prefix}.{name}", options.get(name) or Option(str(name))
            if not isinstance(name, str) or not name.isidentifier():
                self._leave(place, value, "no name of a setting")
            elif isinstance(value, dict) and value.keys() & {"class_path", "init_args"}:
                if (spec := self._class(value, place, place)) is not None:
                    kept[name] = spec
            elif isinstance(value, dict) and option.group is not None:
                kept[name] = self._settings(value, place, option.group)
            elif isinstance(value, list) and any(isinstance(item, dict) for item in value):
                specs = [self._class(item, f"{place}+", place) for item in value]
                kept[name] = [spec for spec in specs if spec is not None]
            elif (reason := _why_not(value, option)) is None:
                kept[name] = value
            else:
                self._leave(place, value, reason)
        return kept

    def _class(self, spec: Any, item: str, prefix: str) -> Recipe | None:
        """Return a class with what is taken of its settings; None where it is not taken."""
        path = spec.get("class_path") if isinstance(spec, dict) else None
        is_known = _class_named(path) is not None
        known = isinstance(spec, dict) and ((path is None and item == prefix) or is_known)
        if not known or spec.keys() - {"class_path", "init_args"}:
            self._leave(item, spec, "a class that is not lovec's, or one that asks a server")
            return None
        if item == prefix:
            return {**spec, "init_args": self._settings(spec.get("init_args") or {}, prefix, _class_named(path))}
        part = RecipeFilter()  # a class in a list is taken whole or not at all, since no flag sets a part of it
        settings = part._settings(spec.get("init_args") or {}, prefix, _class_named(path))
        if part.left_out:
            self._leave(item, spec, "; ".join(left.reason for left in part.left_out))
            return None
        return {"class_path": path, "init_args": settings}

    def _leave(self, option: str, value: Any, reason: str) -> None:
        self.left_out.append(LeftOut(option, value, reason))


@cache
def known_classes() -> dict[str, type]:
    """Return the classes that are taken from a checkpoint, by all their names: short ones and those with a module."""
    from torch import optim

    found = {path: getattr(import_module(path.rpartition(".")[0]), path.rpartition(".")[2]) for path in _CLASSES}
    rooms: list[tuple[str, type]] = [(f"lovec.{room}", object) for room in _ROOMS]
    rooms += [("torch.optim", optim.Optimizer), ("torch.optim.lr_scheduler", optim.lr_scheduler.LRScheduler)]
    for room, base in rooms:
        top = room.partition(".")[0]
        for name, value in vars(import_module(room)).items():
            if isinstance(value, type) and issubclass(value, base) and value.__module__.startswith(f"{top}."):
                found |= {f"{room}.{name}": value, f"{value.__module__}.{name}": value}
    return {path.rpartition(".")[2]: kind for path, kind in found.items()} | found


def _class_named(path: Any) -> type | None:
    """Return the class of a name that is taken from a checkpoint, also where it has moved since; None for others."""
    return known_classes().get(new_name(path) or path) if isinstance(path, str) else None


def _trainer() -> type:
    from lightning.pytorch import Trainer

    return Trainer


def _of_run(logger: Any, root: Any) -> Any:
    """Return a logger with ``.`` as its folder where it writes to the folder of the run."""
    settings = logger.get("init_args") if isinstance(logger, dict) else None
    if isinstance(settings, dict) and settings.get("save_dir") == root:
        return {**logger, "init_args": {**settings, "save_dir": "."}}
    return logger


def _why_not(value: Any, option: Option) -> str | None:
    """Return why a value is not taken for a setting; None if it is."""
    if value and (option.taken == "never" or option.name == "trust_remote_code"):  # also of classes that say nothing
        return "a switch that only you may set"
    if option.taken == "model" and isinstance(value, str):  # the empty name would be the working directory
        return None if _is_model(value) else "a folder or an address"
    if value is None or value is False or type(value) in (int, float) or value in ("", [], {}):
        return None
    if option.taken == "unread":
        return _UNREAD
    if value is True:
        return None if bool in option.types or value in option.choices else "a switch that only you may set"
    if isinstance(value, list):
        return next((reason for item in value if (reason := _why_not(item, option))), None)
    if not isinstance(value, str):
        return f"a {type(value).__name__}"
    if option.name == "save_dir" and value == ".":  # the folder of the run, wherever that is
        return None
    if value in option.choices or (option.taken == "text" and len(value) <= _LONGEST_TEXT):
        return None
    if option.name in _FORMS and _FORMS[option.name].fullmatch(value):
        return None
    plain = option.taken == "word" or (str in option.types and option.name in _OF_LIGHTNING)
    return None if plain and _WORD.fullmatch(value) else "a path or an address, or no plain word"


def _is_model(name: str) -> bool:
    """Return whether a model's name is a hub id, with which no code is loaded, or that of a model built offline."""
    from lovec.datasets.world import VARIANTS
    from lovec.policy import is_hub_id

    return name in VARIANTS or is_hub_id(name.removeprefix("random:"))
