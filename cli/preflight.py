"""What is wrong with a command line, as far as that can be seen before anything heavy is imported.

A mistyped recipe, option, class or path is found in a fraction of a second, and not after the seconds that torch and
Lightning take, or the minutes of a model. Parameters are read from the source code of the classes. The parsers have the
last word: whatever cannot be read here, such as a class of the user's own, is left to them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import Any

from lovec.core.devices import check_dtype_name
from lovec.core.files import check_adapter_folder
from lovec.core.hub import HubName, adapter_folder
from lovec.core.notices import nearest
from lovec.types import LovecError

from . import TRAINING
from .arguments import BASE, NO_OPTIONS, find_recipe, named_values, read_recipe, recipe_names, value_of, with_place
from .errors import UsageError, unknown
from .parser import with_underscores
from .resume import check_present, is_name
from .saved_recipe import check_checkpoint
from .sourcecode import (
    PACKAGES,
    Parameters,
    exported,
    full_name,
    is_dataclass,
    is_defined,
    is_readable,
    method_parameters,
    packages_of,
    parameters,
)

_TRAINER = (*TRAINING, "sweep")
_EXTRAS = {"bitsandbytes": "quant"}
_HELP = ("--help", "-h", "--print_config")
_FILES = ("data.path", "data.val_path", "data.test_path", "data.labels", "questions", "ask_file",
          "chat_template")  # fmt: skip
_TYPES = {".jsonl", ".json", ".csv", ".tsv", ".parquet", ".gz", ".txt", ".md", ".jinja"}
_TRAINER_CLASS = "lightning.pytorch.trainer.trainer.Trainer"
_DATA = PACKAGES["RecordsDataModule"]

_NUMBERS = frozenset(("int", "float"))  # names in annotations of options that take a number and nothing else
_SWEEP = ("vary", "grid", "seeds", "jobs", "out")
_OWN = {"config": (), "c": (), "seed_everything": (), "ckpt_despite": (), "trainer": (_TRAINER_CLASS,),
        "model": ("EvaluationModule",), "data": ("RecordsDataModule",)}  # fmt: skip


def check_words(command: str, words: Sequence[str]) -> None:
    """Refuse what is surely wrong with a command line.

    Args:
        command: the command.
        words: the command line after it.

    Raises:
        UsageError: there is no such recipe, option or class, or an option has no value.
        LovecError: there is no such adapter, model, checkpoint or file.
    """
    words = with_underscores(words)
    if any(word.partition("=")[0] in _HELP or word.partition("=")[0].endswith(".help") for word in words):
        return
    if command in _TRAINER:
        settings = Settings(command, words)
        settings.check_names()
        if command in TRAINING:
            _check_values(words)
        settings.check_inputs()
    elif (adapter := value_of(words, "--adapter")) and HubName.parse(adapter) is None:
        check_adapter_folder(adapter_folder(adapter))
    policy = ("--model.policy.model", "--model.init_args.policy.model") if command in _TRAINER else ("--model",)
    # The later stages of labelling run no model, and a model behind an API has any name.
    without = command == "label" and "answers" not in (value_of(words, "--stages") or "answers")
    without = without or value_of(words, "--engine") == "openai"
    if (model := value_of(words, *policy)) and model not in ("null", "~") and not without:
        from lovec.models import check_model  # here, because it reads the embedded world

        check_model(model)
    for name in _FILES:
        _check_file(value_of(words, f"--{name}"))


def _check_values(words: Sequence[str]) -> None:
    """Refuse an option without a value, for which the parser would blame the recipe that sets the class around it."""
    for word, after in pairwise([*words, "--"]):
        if word.startswith("--") and "=" not in word and after.startswith("--"):
            raise UsageError(f"{word} needs a value; of a switch, such as {word} true")


def check_data(words: Sequence[str]) -> None:
    """Refuse the name of a data set that lovec does not have; a class of the user's own has a point in its name.

    Raises:
        UsageError: there is no such data set.
    """
    name = value_of(words, "--data")
    if name and "." not in name and full_name(name, _DATA) is None:
        known = [other for package in _DATA for other in exported(package)]
        raise unknown("class for --data:", name, known, listed=True)


class Settings:
    """The settings of a command of the trainer, from base.yaml, the recipes and the flags; later ones win.

    Args:
        command: fit, validate, test, predict or sweep.
        words: the command line after it.

    Attributes:
        values: the settings that are valid in the end, by option; of a list that is built from several, each item.

    Raises:
        UsageError: a recipe is not there, or holds no settings.
    """

    def __init__(self, command: str, words: Sequence[str]) -> None:
        self.command, self.words = command, words
        self.recipes = [(path, read_recipe(path)) for path in map(find_recipe, recipe_names(words))]
        self.values: list[tuple[str, Any]] = []
        self._classes: dict[str, str | None] = {"trainer": _TRAINER_CLASS}
        flags = list(_flags(words))
        layers = [(path, list(_flattened(recipe))) for path, recipe in self.recipes]
        self._layers: list[tuple[Path | None, list[tuple[str, Any]]]] = [
            (None, list(_flattened(read_recipe(BASE)))), *layers, (None, flags)
        ]  # fmt: skip
        named = [str(value) for _, layer in self._layers for option, value in layer if option == "model"]
        self._classes["model"] = self._class("model", ("EvaluationModule",), named[0]) if named else None
        method = method_parameters(_TRAINER_CLASS, "fit" if command == "sweep" else command)
        others = [*(method.keys() - NO_OPTIONS), *(_SWEEP if command == "sweep" else ())]
        self._root: Parameters = {**_OWN, **dict.fromkeys(others, ())}

    @property
    def checkpoint(self) -> str | None:
        """What ``--ckpt_path`` is, on the command line or in a recipe."""
        given = [str(value) for option, value in self.values if option == "ckpt_path" and value not in (None, "null")]
        return given[-1] if given else None

    @property
    def _run_folder(self) -> Path:
        """The folder of the run."""
        return Path(self._last("trainer.default_root_dir") or ".")

    def check_names(self) -> None:
        """Refuse options and classes that there are not; an option belongs to the class that is named so far.

        A recipe's option of a class which a later layer replaces is dropped by the parser if the other class lacks it;
        a flag's has to be one of the class that is used.

        Raises:
            UsageError: there is no such option or class, a number is none, or nothing names an objective.
            LovecError: a class is of a package that is not installed.
        """
        saved = any(option == "ckpt_path" and value not in (None, "null") for _, layer in self._layers[1:]
                    for option, value in layer)  # fmt: skip
        for number, (path, layer) in enumerate(self._layers):
            flags = number == len(self._layers) - 1
            try:
                if flags:  # an option may stand before the class that it belongs to
                    for option, value in layer:
                        self._name_class(option, value)
                for option, value in layer:
                    self._check_option(option)
                    self._check_number(option, value)
                    self._name_class(option, value)
                    self._keep(option, value)
                if path is not None:
                    self._check_places(self.recipes[number - 1][1])
            except UsageError as error:
                raise error if path is None else with_place(error, [path]) from None
            if number == 0 and saved:  # a checkpoint names what the command line does not
                self._classes |= {"model": None, "data": None}
        if not (saved or self.recipes or any(option == "model" for option, _ in self._layers[-1][1])):
            raise UsageError("--model must be given; a recipe does, such as --config sft.yaml")

    def check_inputs(self) -> None:
        """Refuse an adapter, a checkpoint or a file that is to be read and is not there, and a dtype that is none.

        Raises:
            LovecError: so it is.
        """
        dtype = self._last("model.policy.dtype")
        if isinstance(dtype, str):
            check_dtype_name(dtype)
        if (checkpoint := self.checkpoint) is not None:
            if is_name(checkpoint):
                check_present(checkpoint, self._run_folder, self.command)
            elif checkpoint:
                check_checkpoint(Path(checkpoint))
            return
        training = self.command in ("fit", "sweep")
        for adapter in [self._last("model.policy.adapter")] if training else self._tested():
            if adapter not in (None, "", "null", "~") and HubName.parse(str(adapter)) is None:
                check_adapter_folder(adapter_folder(str(adapter)))
        if not training and self._measures_own():
            check_adapter_folder(str(self._run_folder / "adapter"))
        for option in _FILES[:2] if training else ():
            _check_file(self._last(option))

    def _tested(self) -> Iterator[Any]:
        """Yield the adapters that are measured."""
        yield self._last("model.evaluation.adapter")
        if self.command == "test":
            of_methods = ("model.adapters.", "model.baselines.adapter")
            last = {option: value for option, value in self.values if option.startswith(of_methods[0])}
            yield from last.values()
            yield from (value for option, value in self.values if option == of_methods[1])

    def _measures_own(self) -> bool:
        """Return whether the adapter is measured that the run has written, surely; Comparison takes others."""
        known = self._classes.get("model") or ""
        return known.startswith("lovec.modules.") and self._last("model.evaluation.adapter") in (None, "null")

    def _last(self, option: str) -> Any:
        return next((value for name, value in reversed(self.values) if name == option), None)

    def _keep(self, option: str, value: Any) -> None:
        written = isinstance(value, str) and value[:1] in ("[", "{")
        if isinstance(value, list) or value in (None, "null") or written:  # all of it: a recipe's items come behind it
            self.values = [kept for kept in self.values if not kept[0].startswith(f"{option}.")]
        self.values.append((option.removesuffix("+"), value))

    def _check_option(self, option: str) -> None:
        """Refuse an option that the class which it belongs to does not have."""
        parts = option.removesuffix("+").split(".")
        if "dict_kwargs" in parts:
            return
        if parts[0] not in self._root:
            rest = "".join(f".{part}" for part in parts[1:])
            raise unknown("option", f"--{parts[0]}{rest}", [f"--{other}{rest}" for other in self._root])
        known: Parameters | None = self._root
        prefix = of = ""
        for part in parts:
            if known is None:
                return
            if part not in known:
                if others := self._others_with(prefix.removesuffix("."), part):
                    names = f"{', '.join(others)} {'has' if len(others) == 1 else 'have'} one"
                    raise UsageError(f"there is no --{prefix}{part}{of}; with --{prefix[:-1]}, {names}")
                raise unknown("option", f"--{prefix}{part}{of}", [f"--{prefix}{other}" for other in known])
            group = prefix + part
            if group in self._classes:
                path = self._classes[group]
                known, name = (None, "") if path is None else (parameters(path), path.rpartition(".")[2])
                of = "" if group == "trainer" else f" of {name}"
            else:
                path = next((name for name in known[part] if is_dataclass(name)), None)
                known, of = None if path is None else parameters(path), ""
            prefix = f"{group}."

    def _check_places(self, settings: Mapping[str, Any], group: str = "") -> None:
        """Refuse ``init_args`` without a class of an option that has options itself."""
        for name, value in settings.items():
            if not isinstance(value, Mapping):
                continue
            is_inside = name == "init_args" and "class_path" not in settings
            if is_inside and group not in self._classes and any(map(is_dataclass, self._takes(group))):
                for inner in value:
                    raise unknown("option", f"--{group}.{name}.{inner}", [f"--{group}.{inner}"])
            self._check_places(value, group if name == "init_args" else f"{group}.{name}".removeprefix("."))

    def _others_with(self, group: str, name: str) -> list[str]:
        """Return the classes that could be named in place of the one of a group, and have an option of this name."""
        packages = dict.fromkeys(place for word in self._takes(group) for place in packages_of(word))
        paths = [f"{package}.{other}" for package in packages for other in exported(package)]
        return sorted(path.rpartition(".")[2] for path in paths if name in (parameters(path) or ()))

    def _check_number(self, option: str, value: Any) -> None:
        """Refuse a word where the option takes a number and nothing else."""
        names = {*self._takes(option)} - {"Optional", "Union"}
        if not names or not names <= _NUMBERS or not isinstance(value, str) or value in ("null", "~"):
            return
        try:
            float(value)
        except ValueError:
            expected = "a number" if "float" in names else "an integer"
            raise UsageError(f"--{option} is {value}, expected {expected}") from None

    def _takes(self, option: str) -> tuple[str, ...]:
        """Return the names in the annotation of an option; none where they are not known."""
        known: Parameters | None = self._root
        names: tuple[str, ...] = ()
        for number, part in enumerate(parts := option.split("."), start=1):
            if known is None or part not in known:
                return ()
            names, group = known[part], ".".join(parts[:number])
            path = self._classes.get(group) or next((name for name in names if is_dataclass(name)), None)
            known = None if path is None else parameters(path)
        return names

    def _name_class(self, option: str, value: Any) -> None:
        """Note the class that an option names, if it takes one."""
        option = option.removesuffix("+")
        if option == "trainer" or not (names := self._takes(option)):
            return
        if any(name.rpartition(".")[2] in PACKAGES for name in names) and not isinstance(value, list):
            self._classes[option] = self._class(option, names, value)

    def _class(self, option: str, names: Sequence[str], value: Any) -> str | None:
        """Return the import path of a class; None for one that is not known here.

        Raises:
            UsageError: there is no such class.
            LovecError: it is of a package that is not installed.
        """
        name = value if isinstance(value, str) else ""
        module, dot, last = name.rpartition(".")
        if not all(part.isidentifier() for part in name.split(".")) or name in ("null", "true", "false"):
            return None
        if dot:
            top = name.partition(".")[0]
            if top in _EXTRAS and find_spec(top) is None:
                raise LovecError(f"{name} is of {top}, which is not installed: pip install 'lovec[{_EXTRAS[top]}]'")
            if is_readable(module) and not is_defined(name) and (hint := nearest(last, exported(module))):
                raise UsageError(f"there is no {last} in {module}{hint}")
            return name
        packages = tuple(dict.fromkeys(place for word in names for place in packages_of(word)))
        if (found := full_name(name, packages)) is not None or self._has_own_classes():
            return found
        known = [other for package in packages for other in exported(package)]
        if nearest(name, known):
            raise unknown(f"class for --{option}:", name, known)
        return None

    def _has_own_classes(self) -> bool:
        """Return whether some class is the user's own: from then on its short name is known, too."""
        paths = [value for _, layer in self._layers for _, value in layer if isinstance(value, str)]
        return any("." in path and not is_readable(path.rpartition(".")[0]) and all(
            part.isidentifier() for part in path.split(".")) for path in paths)  # fmt: skip


def _check_file(path: Any) -> None:
    if isinstance(path, str) and Path(path).suffix in _TYPES and "*" not in path and not Path(path).exists():
        raise LovecError(f"cannot read {path} (No such file or directory)")


def _flags(words: Sequence[str]) -> Iterator[tuple[str, Any]]:
    """Yield options and values of a command line; of an option to vary its name alone."""
    for name, value in named_values(words):
        if not name.startswith("--"):
            continue
        option = _plain(name[2:])
        if option == "vary":
            yield _plain((value or "").partition("=")[0].removeprefix("--")), None
        elif option != "config":
            yield option, value or ""


def _plain(option: str) -> str:
    return ".".join(part for part in option.split(".") if part not in ("init_args", "class_path"))


def _flattened(settings: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the settings of a recipe as options and values; a class is the value of the option that takes it."""
    for name in sorted(settings, key=lambda name: name != "class_path"):  # the class first
        value = settings[name]
        option = prefix if name in ("class_path", "init_args") else f"{prefix}.{name}".removeprefix(".")
        if isinstance(value, Mapping) and value:
            yield from _flattened(value, option)
            continue
        if name == "init_args":
            continue
        yield option, value
        for item in value if isinstance(value, list) else ():
            if isinstance(item, Mapping):
                yield from _flattened(item, option)
