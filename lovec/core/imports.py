"""Functions and classes of users, by the names under which they are imported; and large packages, quick and quiet."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from types import ModuleType
from typing import Any

from lovec.core.errors import LovecError


@contextmanager
def quick_transformers() -> Iterator[None]:
    """Import parts of transformers without the collector, and without SciPy's optimisers.

    transformers imports these with every language model, for losses of object detection.
    """
    with gc_paused(), imported_when_called("scipy.optimize", "linear_sum_assignment"):
        yield


@contextmanager
def imported_when_called(module: str, function: str) -> Iterator[None]:
    """Let ``from module import function`` give a function that imports the module when it is called.

    Every other attribute of the module imports it at once. A module that is already imported stays as it is.

    Args:
        module: import path of the module.
        function: name of the function, or of a class that is only called.
    """
    if module in sys.modules:
        yield
        return
    stand_in = ModuleType(module)

    def real() -> ModuleType:
        if sys.modules.get(module) is stand_in:
            del sys.modules[module]
        return import_module(module)

    def call(*args: Any, **kwargs: Any) -> Any:
        return getattr(real(), function)(*args, **kwargs)

    def other(name: str) -> Any:
        if name.startswith("__"):  # asked of every module, as by inspect
            raise AttributeError(name)
        return getattr(real(), name)

    vars(stand_in).update({function: call, "__getattr__": other})
    sys.modules[module] = stand_in
    try:
        yield
    finally:
        if sys.modules.get(module) is stand_in:
            del sys.modules[module]


@contextmanager
def gc_paused() -> Iterator[None]:
    """Import large packages without Python's cyclic garbage collector.

    Modules, classes and functions are no garbage. The collector would look at hundreds of thousands of them again and
    again (see the start-up times in docs/install.md).
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


@contextmanager
def without_progress_bars() -> Iterator[None]:
    """Let transformers show no progress bars of its own, such as that of loading weights; the user's setting stays."""
    from transformers.utils.logging import set_tqdm_hook

    previous = set_tqdm_hook(lambda make, args, kwargs: make(*args, **{**kwargs, "disable": True}))
    try:
        yield
    finally:
        set_tqdm_hook(previous)


def import_object(path: str) -> Any:
    """Return what an import path names, such as ``lovec.text.sentences.split_sentences`` or ``my_file.MyClass``.

    Raises:
        LovecError: it cannot be imported.
    """
    module, _, name = path.rpartition(".")
    try:
        return getattr(import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise LovecError(
            f"cannot import {path} ({error}); give module.name of a package or of a file in the working directory"
        ) from None


def import_function(path: str, what: str) -> Callable[[str], Any]:
    """Return the function with an import path; of a class that takes no arguments, an instance that can be called.

    Args:
        path: import path of the function or the class.
        what: what it is, for the error, such as "a function from a text to its sentences".

    Raises:
        LovecError: it cannot be imported, or cannot be called.
    """
    value = import_object(path)
    try:
        function = value() if isinstance(value, type) else value
    except TypeError as error:
        raise LovecError(f"{path} cannot be made without arguments ({error}); expected {what}") from None
    if not callable(function):
        raise LovecError(f"{path} is {type(function).__name__}, expected {what}")
    return function  # type: ignore[no-any-return]
