"""What the parameters of a class are and which classes a package has, read from source code without importing it.

Importing torch and Lightning takes seconds, reading their files hundredths of one.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import TypeAlias

import lovec
from lovec.core.plugins import Plugin, plugins

Parameters: TypeAlias = Mapping[str, tuple[str, ...]]
"""Parameters of a class, and the names in the annotation of each; a class of these packages has its import path."""

_BARE = ("ABC", "Generic", "Protocol")  # bases without parameters
_READ = ("lovec", "lightning", "torch")  # packages whose code is read

PACKAGES: Mapping[str, tuple[str, ...]] = {
    "AnswerReward": ("lovec.rewards",),
    "Baseline": ("lovec.baselines",),
    "Callback": ("lightning.pytorch.callbacks", "lovec.callbacks"),
    "Embedder": ("lovec.models.embedding",),
    "Engine": ("lovec.engines",),
    "EvaluationModule": ("lovec.modules", "lovec.evaluation"),
    "Judge": ("lovec.baselines",),
    "LRSchedulerCallable": ("torch.optim.lr_scheduler", "lovec.modules"),
    "Logger": ("lightning.pytorch.loggers",),
    "OptimizerCallable": ("torch.optim",),
    "Oracle": ("lovec.oracles",),
    "RecordsDataModule": ("lovec.datamodules",),
    "Reward": ("lovec.rewards",),
    "Teacher": ("lovec.teachers",),
}
"""Where the classes are that a parameter takes by their short names, by a name in its annotation.

Other packages bring more of them: the packages of lovec are groups of entry points, see ``lovec.core.plugins``.
"""


def packages_of(name: str) -> tuple[str, ...]:
    """Return where the classes are that a parameter takes by their short names.

    Args:
        name: a name in its annotation, with or without its module.
    """
    return PACKAGES.get(name.rpartition(".")[2], ())


@cache
def parameters(path: str) -> Parameters | None:
    """Return the parameters of a class; None where its source code does not tell all of them.

    Args:
        path: import path of the class.
    """
    return None if (found := _defined(*_split(path))) is None else _parameters(*found)


@cache
def method_parameters(path: str, method: str) -> Parameters:
    """Return the parameters of a method of a class; none where the class has no such method.

    Args:
        path: import path of the class.
        method: name of the method.
    """
    found = _defined(*_split(path))
    node = None if found is None else _method(found[1], method)
    return {} if found is None or node is None else _arguments(found[0], node)


def full_name(name: str, packages: tuple[str, ...]) -> str | None:
    """Return the import path of the class that one of several packages exports under a name; None for none.

    Args:
        name: the name, such as ``DPO``.
        packages: import paths of packages, such as ``lovec.modules``. What is brought to them comes after their own.

    Raises:
        PluginError: several packages bring a class of this name.
    """
    own = next((f"{package}.{name}" for package in packages if _defined(package, name) is not None), None)
    if own is None and (plugin := brought(name, packages)) is not None:
        return plugin.path
    return own


def brought(name: str, packages: tuple[str, ...]) -> Plugin | None:
    """Return what another package brings under a name that several packages of lovec have not; None for nothing."""
    if any(_defined(package, name) is not None for package in packages):
        return None
    return next((plugins(package)[name] for package in packages if name in plugins(package)), None)


def is_defined(path: str) -> bool:
    """Return whether there is a class with an import path."""
    return _defined(*_split(path)) is not None


def is_dataclass(path: str) -> bool:
    """Return whether the class with an import path is a dataclass."""
    return (found := _defined(*_split(path))) is not None and _is_dataclass(found[1])


def is_readable(module: str) -> bool:
    """Return whether the source code of a module is read here."""
    return _source(module) is not None


def exported(package: str) -> list[str]:
    """Return the names of classes that a package defines or imports from its modules, or that are brought to it."""
    names = []
    for node in _tree(package).body:
        if isinstance(node, ast.ClassDef):
            names.append(node.name)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith(package):
            names += [alias.asname or alias.name for alias in node.names]
    return [*(name for name in names if name[:1].isupper()), *plugins(package)]


def _split(path: str) -> tuple[str, str]:
    module, _, name = path.rpartition(".")
    return module, name


def _parameters(module: str, node: ast.ClassDef) -> Parameters | None:
    own: dict[str, tuple[str, ...]] = {}
    if (init := _method(node, "__init__")) is not None:
        own |= _arguments(module, init)
        if init.args.kwarg is None:
            return own
    elif _is_dataclass(node):
        for part in node.body:
            if isinstance(part, ast.AnnAssign) and isinstance(part.target, ast.Name):
                own[part.target.id] = _names(module, part.annotation)
    for base in node.bases:
        plain = base.value if isinstance(base, ast.Subscript) else base
        if isinstance(plain, ast.Name) and plain.id in _BARE:
            continue
        found = _defined(module, plain.id) if isinstance(plain, ast.Name) else None
        inherited = None if found is None else _parameters(*found)
        if inherited is None:
            return None
        own = {**inherited, **own}
    return own if init is not None or _is_dataclass(node) or node.bases else None


def _method(node: ast.ClassDef, name: str) -> ast.FunctionDef | None:
    return next((part for part in node.body if isinstance(part, ast.FunctionDef) and part.name == name), None)


def _arguments(module: str, node: ast.FunctionDef) -> dict[str, tuple[str, ...]]:
    given = (*node.args.posonlyargs, *node.args.args[1:], *node.args.kwonlyargs)
    return {argument.arg: _names(module, argument.annotation) for argument in given}


def _names(module: str, annotation: ast.expr | None) -> tuple[str, ...]:
    """Return the names in an annotation, those of classes with their module."""
    found = [] if annotation is None else [part.id for part in ast.walk(annotation) if isinstance(part, ast.Name)]
    places = ((name, _defined(module, name)) for name in found)
    return tuple(name if place is None else f"{place[0]}.{place[1].name}" for name, place in places)


def _is_dataclass(node: ast.ClassDef) -> bool:
    called = (mark.func if isinstance(mark, ast.Call) else mark for mark in node.decorator_list)
    return any(isinstance(mark, ast.Name) and mark.id == "dataclass" for mark in called)


def _defined(module: str, name: str) -> tuple[str, ast.ClassDef] | None:
    """Return the module that defines a class which a module has under a name, and the class."""
    for node in _tree(module).body:
        if isinstance(node, ast.ClassDef) and node.name == name:
            return module, node
        if isinstance(node, ast.ImportFrom) and node.module and node.module != module:
            for alias in node.names:
                if (alias.asname or alias.name) == name:
                    return _defined(node.module, alias.name)
    return None


@cache
def _tree(module: str) -> ast.Module:
    """Return the code of a module; empty for those that are not read."""
    path = _source(module)
    return ast.Module([], []) if path is None else ast.parse(path.read_text(encoding="utf-8"))


def _source(module: str) -> Path | None:
    """Return the file of a module; None for those that are not read."""
    top, *parts = module.split(".")
    for home in _homes(top):
        place = home.joinpath(*parts)
        for path in (place / "__init__.py", place.with_suffix(".py")):
            if path.is_file():
                return path
    return None


def _homes(package: str) -> Iterator[Path]:
    if package == "lovec":
        yield Path(lovec.__file__).parent
    elif package in _READ and (spec := find_spec(package)) is not None:
        yield from map(Path, spec.submodule_search_locations or ())
