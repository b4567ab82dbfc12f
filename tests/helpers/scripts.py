"""Scripts, as modules."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parents[2] / "benchmarks"


def load_script(name: str) -> Any:
    """Import a script of benchmarks/ as a module, with its folder on the path as when it runs."""
    if str(FOLDER) not in sys.path:
        sys.path.insert(0, str(FOLDER))
    return load_file(FOLDER / f"{name}.py", f"script_{name}")


def load_file(path: Path, name: str) -> Any:
    """Import a file that belongs to no package, as a module of a name."""
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)  # where its dataclasses look for it
    spec.loader.exec_module(module)
    return module
