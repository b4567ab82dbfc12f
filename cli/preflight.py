"""What is wrong with a command line, as far as that can be seen before anything heavy is imported.

A mistyped recipe, option or path is found in a fraction of a second, and not after the seconds that torch and Lightning
take, or the minutes of a model. Parameters are read from the source code of the classes. The parsers have the last
word: whatever cannot be read here, such as a class of the user's own, is left to them.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeAlias

import lovec
from lovec.files import check_adapter_folder
from lovec.hub import HubName, adapter_folder
from lovec.models import check_model
from lovec.types import LovecError

from .arguments import find_recipe, read_recipe, value_of
from .errors import unknown
from .parser import with_underscores

_TRAINER = ["fit", "validate", "test", "predict", "sweep"]
_EXTRAS = {"bitsandbytes": "quant"}
_HELP = ("--help", "-h", "--print_config")
_CLASSES = {"model": ("lovec.modules", "lovec.evaluation"), "data": ("lovec.datamodules",)}
_FILES = ("--data.path", "--data.val_path", "--data.test_path", "--data.labels", "--questions", "--ask_file")
_TYPES = {".jsonl", ".json", ".csv", ".tsv", ".parquet", ".gz", ".txt", ".md"}

Parameters: TypeAlias = dict[
    str, str | None
]  # name to the class it is annotated with; None where that is no plain name


def check_words(command: str, words: Sequence[str]) -> None:
    """Refuse what is surely wrong with a command line.

    Args:
        command: the command.
        words: the command line after it.

    Raises:
        UsageError: there is no such recipe or option.
        LovecError: there is no such adapter, model or file.
    """
    words = with_underscores(words)
    if any(word.partition("=")[0] in _HELP or word.partition("=")[0].endswith(".help") for word in words):
        return
    if command in _TRAINER:
        recipes = [read_recipe(find_recipe(name)) for name in _values(words, "--config", "-c")]
        saved = value_of(words, "--ckpt_path") is not None  # a checkpoint names what the command line does not
        _check_extras(recipes, words)
        classes = {group: _class_of(group, recipes, words, saved) for group in _CLASSES}
        for option in (*(word for word in words if word.startswith("--")), *_settings(recipes, classes)):
            _check_option(option, classes)
        if command in ("fit", "sweep") and not saved:
            _check_start(recipes, words)
    elif (adapter := value_of(words, "--adapter")) and HubName.parse(adapter) is None:
        check_adapter_folder(adapter_folder(adapter))
    policy = ("--model.policy.model", "--model.init_args.policy.model") if command in _TRAINER else ("--model",)
    if model := value_of(words, *policy):
        check_model(model)
    for name in _FILES:
        path = value_of(words, name)
        if path and Path(path).suffix in _TYPES and "*" not in path and not Path(path).exists():
            raise LovecError(f"cannot read {path} (No such file or directory)")


def _check_extras(recipes: Sequence[Mapping[str, Any]], words: Sequence[str]) -> None:
    """Refuse a class of a package that is not installed, and name the extra that brings it."""
    for path in (*_class_paths(recipes), *(word.rpartition("=")[2] for word in words)):
        package, dot, _ = path.partition(".")
        if dot and package in _EXTRAS and find_spec(package) is None:
            extra = _EXTRAS[package]
            raise LovecError(f"{path} is of {package}, which is not installed: pip install 'lovec[{extra}]'")


def _class_paths(settings: Any) -> Iterator[str]:
    """Yield every class path in nested settings."""
    for name, value in settings.items() if isinstance(settings, Mapping) else ():
        if name == "class_path" and isinstance(value, str):
            yield value
        yield from _class_paths(value)
    for value in settings if isinstance(settings, list) else ():
        yield from _class_paths(value)


def _values(words: Sequence[str], *names: str) -> Iterator[str]:
    """Yield every value given to a flag."""
    for number, word in enumerate(words):
        name, equals, value = word.partition("=")
        if name in names and (found := value if equals else "".join(words[number + 1 : number + 2])):
            yield found


def _settings(recipes: Sequence[Mapping[str, Any]], classes: Mapping[str, str | None]) -> Iterator[str]:
    """Yield the settings of recipes as options, without those of a class that is not used in the end."""
    for recipe in recipes:
        for group in ("trainer", *classes):
            settings = recipe.get(group)
            if isinstance(settings, Mapping):
                named = settings.get("class_path")
                if named is None or _full_name(group, str(named)) == classes.get(group):
                    yield from _dotted(settings, f"--{group}")


def _dotted(settings: Mapping[str, Any], prefix: str) -> Iterator[str]:
    for name, value in settings.items():
        if name in ("init_args", "class_path"):
            yield from _dotted(value, prefix) if isinstance(value, Mapping) else ()
            continue
        yield f"{prefix}.{name}"
        if isinstance(value, Mapping) and "class_path" not in value:
            yield from _dotted(value, f"{prefix}.{name}")


def _check_start(recipes: Sequence[Mapping[str, Any]], words: Sequence[str]) -> None:
    """Refuse an adapter to start from that is not there."""
    found: Any = None
    for recipe in recipes:
        settings: Any = recipe
        for key in ("model", "init_args", "policy"):
            settings = settings.get(key) if isinstance(settings, Mapping) else None
        if isinstance(settings, Mapping) and "adapter" in settings:
            found = settings["adapter"]
    given = value_of(words, "--model.policy.adapter", "--model.init_args.policy.adapter")
    found = given if given is not None else found
    if isinstance(found, str) and found not in ("", "null", "~") and HubName.parse(found) is None:
        check_adapter_folder(found)


def _class_of(group: str, recipes: Sequence[Mapping[str, Any]], words: Sequence[str], saved: bool) -> str | None:
    """Return the class that the command line or a recipe names for the model or the data; None for no known one."""
    named = [recipe.get(group) for recipe in recipes]
    named = [spec.get("class_path") if isinstance(spec, Mapping) else spec for spec in named]
    name = value_of(words, f"--{group}", f"--{group}.class_path") or next(filter(None, reversed(named)), None)
    if not isinstance(name, str):
        return "lovec.datamodules.World" if group == "data" and not saved else None  # that of base.yaml
    return _full_name(group, name)


def _full_name(group: str, name: str) -> str | None:
    """Return the import path of a class that may be given by its short name; None for no known one."""
    if "." in name:
        return name
    places = (f"{module}.{name}" for module in _CLASSES.get(group, ()))
    return next((place for place in places if _defined(*place.rsplit(".", 1)) is not None), None)


def _check_option(word: str, classes: Mapping[str, str | None]) -> None:
    """Refuse an option that neither the trainer nor the class of the model or the data has."""
    name = word.partition("=")[0].removeprefix("--").removesuffix("+")
    parts = [part for part in name.split(".") if part not in ("init_args", "class_path")]
    group = parts[0]
    if len(parts) < 2 or "dict_kwargs" in parts:
        return
    if group == "trainer":
        known, path, of = _trainer_options(), "lightning.pytorch.Trainer", ""
    elif group in classes:
        path = classes[group] or ""
        known = parameters(path)
        of = f" of {path.rpartition('.')[2]}"
    else:
        raise unknown("option", f"--{name}", [f"--{other}.{'.'.join(parts[1:])}" for other in ("trainer", *classes)])
    prefix = group
    for part in parts[1:]:
        if known is None:
            return
        if part not in known:
            raise unknown("option", f"--{prefix}.{part}{of}", [f"--{prefix}.{other}" for other in known])
        prefix, of = f"{prefix}.{part}", ""
        known = _group(known[part])


def _group(path: str | None) -> Parameters | None:
    """Return the parameters of a dataclass, whose options have the name of the parameter before them."""
    if path is None or (found := _defined(*path.rsplit(".", 1))) is None:
        return None
    return parameters(path) if _is_dataclass(found[1]) else None


@cache
def parameters(path: str) -> Parameters | None:
    """Return the parameters of a class of lovec from its source code; None where that does not tell all of them.

    Args:
        path: import path of the class.
    """
    module, _, name = path.rpartition(".")
    return None if (found := _defined(module, name)) is None else _parameters(*found)


def _parameters(module: str, node: ast.ClassDef) -> Parameters | None:
    own: Parameters = {}
    init = next((part for part in node.body if isinstance(part, ast.FunctionDef) and part.name == "__init__"), None)
    if init is not None:
        for argument in (*init.args.posonlyargs, *init.args.args[1:], *init.args.kwonlyargs):
            own[argument.arg] = _annotation(module, argument.annotation)
        if init.args.kwarg is None:
            return own
    elif _is_dataclass(node):
        for part in node.body:
            if isinstance(part, ast.AnnAssign) and isinstance(part.target, ast.Name):
                own[part.target.id] = _annotation(module, part.annotation)
    for base in node.bases:
        plain = base.value if isinstance(base, ast.Subscript) else base
        found = _defined(module, plain.id) if isinstance(plain, ast.Name) else None
        inherited = None if found is None else _parameters(*found)
        if inherited is None:
            return None
        own = inherited | own
    return own if init is not None or _is_dataclass(node) or node.bases else None


def _annotation(module: str, node: ast.expr | None) -> str | None:
    if not isinstance(node, ast.Name) or (found := _defined(module, node.id)) is None:
        return None
    return f"{found[0]}.{found[1].name}"


def _is_dataclass(node: ast.ClassDef) -> bool:
    called = (mark.func if isinstance(mark, ast.Call) else mark for mark in node.decorator_list)
    return any(isinstance(mark, ast.Name) and mark.id == "dataclass" for mark in called)


def _defined(module: str, name: str) -> tuple[str, ast.ClassDef] | None:
    """Return the module that defines a class which a module has under a name, and the class; None outside of lovec."""
    for node in _tree(module).body:
        if isinstance(node, ast.ClassDef) and node.name == name:
            return module, node
        if isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                if (alias.asname or alias.name) == name:
                    return _defined(node.module, alias.name)
    return None


@cache
def _tree(module: str) -> ast.Module:
    """Return the code of a module of lovec; empty for others."""
    parts = module.split(".")
    place = Path(lovec.__file__).parent.joinpath(*parts[1:])
    for path in (place / "__init__.py", place.with_suffix(".py")):
        if parts[0] == "lovec" and path.is_file():
            return ast.parse(path.read_text(encoding="utf-8"))
    return ast.Module([], [])


def _trainer_options() -> Parameters | None:
    """Return the parameters of Lightning's trainer, from its source code; None where it is not found."""
    spec = find_spec("lightning")
    for folder in (spec.submodule_search_locations or []) if spec else []:
        path = Path(folder, "pytorch", "trainer", "trainer.py")
        text = path.read_text(encoding="utf-8") if path.is_file() else ""
        if match := re.search(r"\n    def __init__\(\n        self,\n(.*?)\n    \) -> None:", text, re.DOTALL):
            return {name: None for name in re.findall(r"^ {8}(\w+):", match[1], re.MULTILINE)}
    return None
