"""A module that is imported when a function of it is called, and transformers without SciPy's optimisers."""

from __future__ import annotations

import inspect
import subprocess
import sys
from pathlib import Path

import pytest

from lovec.core.imports import imported_when_called

NAME = "seldom_called"


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A module that is not imported yet."""
    path = tmp_path / f"{NAME}.py"
    path.write_text("OTHER = 3\n\n\ndef twice(x, by=2):\n    return x * by\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, NAME, raising=False)
    return path


def test_a_function_imports_its_module_when_it_is_called(module: Path) -> None:
    with imported_when_called(NAME, "twice"):
        from seldom_called import twice

        inspect.getmodule(twice)  # asks every module for its file
    assert NAME not in sys.modules
    assert twice(4) == 8 and twice(4, by=3) == 12
    assert sys.modules.pop(NAME).__file__ == str(module)


def test_another_attribute_imports_the_module_at_once(module: Path) -> None:
    with imported_when_called(NAME, "twice"):
        from seldom_called import OTHER, twice

        assert OTHER == 3 and sys.modules[NAME].__file__ == str(module)
    assert sys.modules.pop(NAME).twice is not twice and twice(1) == 2
    sys.modules.pop(NAME, None)


def test_a_module_that_is_there_stays(module: Path) -> None:
    import seldom_called

    with imported_when_called(NAME, "twice"):
        from seldom_called import twice

        assert twice is seldom_called.twice
    assert sys.modules.pop(NAME) is seldom_called


def test_a_model_is_imported_without_optimisers_of_scipy_and_its_other_losses_find_them() -> None:
    code = """
import sys
from lovec.core.imports import quick_transformers
with quick_transformers():
    from transformers import LlamaForCausalLM
assert "scipy.optimize" not in sys.modules and "scipy.linalg" not in sys.modules
from transformers.loss.loss_for_object_detection import linear_sum_assignment
assert [list(found) for found in linear_sum_assignment([[1.0, 0.0], [0.0, 1.0]])] == [[0, 1], [1, 0]]
import scipy.optimize
assert scipy.optimize.minimize
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
