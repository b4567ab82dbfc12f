"""lovec: train language models to state a confidence for every sentence, and measure how well it is calibrated.

Importing this package does not import torch: its parts are imported when they are first used, as in
``lovec.modules.DPO`` and ``lovec.tag``.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from lovec.core import moved

moved.install()

_PARTS = frozenset(
    "baselines calibration callbacks datamodules datasets encoding engines evaluation export losses metrics models "
    "modules oracles policy reports rewards taggers tagging tags teachers text types".split()
)

_FUNCTIONS = {"tag": "tagging", "load_calibration": "calibration"}
"""Functions that stand beside the parts, and the part that each is from."""


def __getattr__(name: str) -> Any:
    """Import and return the part or the function of that name (PEP 562), or look up the version."""
    if name in _FUNCTIONS:
        return getattr(import_module(f"{__name__}.{_FUNCTIONS[name]}"), name)
    if name in _PARTS or moved.new_name(f"{__name__}.{name}"):
        return import_module(f"{__name__}.{name}")
    if name == "__version__":  # no command that does its work needs it, and looking it up takes a tenth of a second
        from importlib.metadata import PackageNotFoundError, version

        try:
            return version("lovec")
        except PackageNotFoundError:  # a checkout on the path, not installed
            return "0+uninstalled"
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_PARTS, *_FUNCTIONS, "__version__"})
