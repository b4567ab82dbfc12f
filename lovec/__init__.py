"""lovec: train language models to say, sentence by sentence, how sure they are, and measure how true that is.

Importing this package imports no torch; its parts come in on first use, as in ``lovec.modules.DPO`` and ``lovec.tag``.
"""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import Any

_PARTS = frozenset(
    "baselines datamodules datasets encoding engines losses metrics modules oracles policy reports rewards sentences "
    "taggers tagging tags tiny types".split()
)

try:
    __version__ = version("lovec")
except PackageNotFoundError:  # a checkout on the path, not installed
    __version__ = "0+uninstalled"


def __getattr__(name: str) -> Any:
    """The part of that name, or the function ``tag``, imported now (PEP 562)."""
    if name == "tag":
        return import_module(f"{__name__}.tagging").tag
    if name in _PARTS:
        return import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_PARTS, "tag"})
