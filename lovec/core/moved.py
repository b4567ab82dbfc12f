"""Old names of modules and classes: they still work, with a warning that says the new name."""

from __future__ import annotations

import sys
import warnings
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_loader
from types import ModuleType
from typing import Any

_INTO = {
    "core": "calls devices errors files hub imports moved notices plain plugins progress provenance randomness "
    "settings signals stopwatch templates",
    "encoding": "chats choices grounding prompts reply_scoring written",
    "export": "exporting uploading",
    "metrics": "results",
    "models": "embedding gguf tiny",
    "text": "abstentions clauses documents sentences untag",
}
"""Modules that have moved from the package into a part of it under the same name, by that part."""

MODULES = {f"lovec.{name}": f"lovec.{part}.{name}" for part, names in _INTO.items() for name in names.split()} | {
    "lovec.answers": "lovec.text.untag",
    "lovec.datasets.cutting": "lovec.text.cutting",
    "lovec.evaluation.places": "lovec.evaluation.run_folders",
    "lovec.passages": "lovec.display",
    "lovec.questions": "lovec.encoding.reply_scoring",
    "lovec.reports.places": "lovec.reports.breakdown",
    "lovec.taggers.deployment": "lovec.taggers.served_confidence",
    "lovec.thoughts": "lovec.tags",
}
"""Modules and packages that have moved, by their old names."""


def new_name(old: str) -> str | None:
    """Return the new name of a module that has moved, itself or with its package; None for any other."""
    for before, after in MODULES.items():
        if old == before or old.startswith(before + "."):
            return after + old.removeprefix(before)
    return None


class _Finder(MetaPathFinder, Loader):
    """Imports the module of the new name where the old one is asked for."""

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        """Return how a module is loaded that has moved; None for any other."""
        return spec_from_loader(fullname, self) if new_name(fullname) else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """Return the module of the new name."""
        new = new_name(spec.name)
        assert new is not None
        warn(spec.name, new)
        module = import_module(new)
        spec.loader_state = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Leave the module as it is: it has run under its new name."""
        if module.__spec__ is not None:
            module.__spec__ = module.__spec__.loader_state  # importing it has set the spec of the old name


def install() -> None:
    """Let imports find modules by their old names; the second call does nothing."""
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())  # before the one that would find a part of a package by its new path


def warn(old: str, new: str) -> None:
    """Warn, in the name of the line that uses it, that a name has changed and goes with the next version."""
    message = f"{old} is now {new}; the old name goes with the next version"
    warnings.warn(message, FutureWarning, stacklevel=3)  # frames of importlib do not count
