"""Code that is the user's own: neither of lovec nor of Python nor of an installed package."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from importlib.util import find_spec, resolve_name
from pathlib import Path
from sysconfig import get_path
from typing import Any

import lovec
from lovec.core.provenance import file_digest


def own_code(settings: Any) -> dict[str, str]:
    """Return digests of the user's own code that settings name, and of what this code imports, by module.

    Args:
        settings: plain values; among them import paths of classes and functions, which have been imported.
    """
    return {name: file_digest(path) for name, path in own_modules(named_modules(settings)).items()}


def named_modules(settings: Any) -> set[str]:
    """Return the imported modules of the import paths in plain values."""
    if isinstance(settings, str):
        parts = settings.split(".")
        if not all(part.isidentifier() or part == "<locals>" for part in parts):
            return set()
        return {".".join(parts[:number]) for number in range(1, len(parts))} & sys.modules.keys()
    if isinstance(settings, Mapping):
        settings = list(settings.values())
    return set().union(*map(named_modules, settings if isinstance(settings, list | tuple) else ()))


def own_modules(modules: Iterable[str]) -> dict[str, Path]:
    """Return the files of modules that are the user's own, and of those among the modules that they import, by module.

    Args:
        modules: names of modules, imported or not; ``__main__`` is the program that runs.
    """
    found: dict[str, Path | None] = {}
    waiting = [*modules]
    while waiting:
        parts = waiting.pop().split(".")
        if not any(map(is_own_file, _places(parts[0]))):
            continue
        for name in (".".join(parts[:number]) for number in range(1, len(parts) + 1)):
            if name in found:
                continue
            found[name] = path = _file(name)
            if path is not None and path.suffix == ".py":
                waiting += _imported(path, name if path.stem == "__init__" else name.rpartition(".")[0])
    return {name: path for name, path in sorted(found.items()) if path is not None}


def is_own_file(name: str) -> bool:
    """Return whether a file or folder is there and is neither of lovec nor of Python nor of an installed package."""
    path = Path(name)
    installed = {"site-packages", "dist-packages"} & {*path.parts}
    return path.exists() and not installed and not any(path.is_relative_to(home) for home in _homes())


@cache
def _homes() -> tuple[Path, ...]:
    """Return the folders of Python's own library and of lovec, whose commands a checkout has beside it."""
    commands = (Path(place).parent for place in _places("lovec.cli"))
    return (Path(get_path("stdlib")), *map(Path, lovec.__path__), *commands)


def _file(module: str) -> Path | None:
    """Return the file of a module; None where it has none, as a folder without ``__init__.py``."""
    return next((path for path in map(Path, _places(module)) if path.is_file()), None)


def _places(module: str) -> list[str]:
    """Return the file of a module, or the folders of a package without a file; none where there is no such module."""
    if module == "__main__":  # which has no spec
        file = getattr(sys.modules[module], "__file__", None)
        return [] if file is None else [file]
    try:
        spec = find_spec(module)
    except Exception:  # it is no module, or whatever the package that it would lie in raises
        return []
    if spec is None:
        return []
    return [spec.origin] if spec.has_location and spec.origin else [*(spec.submodule_search_locations or ())]


def _imported(file: Path, package: str) -> Iterator[str]:
    """Yield the names of modules that a file imports, and of what it imports from them, which may be modules."""
    try:
        tree = ast.parse(file.read_bytes())
    except (SyntaxError, ValueError):  # whoever imports it will say so
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level <= package.count(".") + bool(package):
            module = resolve_name("." * node.level + (node.module or ""), package or None)
            yield from (f"{module}.{alias.name}" for alias in node.names)
