"""What reads foreign text, on a few inputs of every kind; ``make fuzz`` tries many more."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent


def load(name):
    """A file of this folder, which is not a package."""
    spec = importlib.util.spec_from_file_location(name, HERE / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


TARGETS = load("targets").TARGETS
RUN = load("run")
CORPUS = sorted(path for path in (HERE / "corpus").glob("*/*") if path.is_file())


def test_every_target_has_inputs_and_every_input_a_target():
    assert {path.parent.name for path in CORPUS} == set(TARGETS)


@pytest.mark.parametrize("path", CORPUS, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_inputs_of_the_corpus(path):
    TARGETS[path.parent.name].check(path.read_bytes())


@pytest.mark.parametrize("name", TARGETS)
def test_a_few_inputs(name):
    tried, data, error = RUN.failure(TARGETS[name], TARGETS[name].short, 0)
    assert error is None, f"{name} fails on {data!r}: {error!r}"
    assert tried >= TARGETS[name].short // 2


def test_a_failure_is_found_and_made_small():
    def check(data):
        assert b"<confidence>" not in data

    broken = RUN.Target(check, TARGETS["tags"].examples)
    _, data, error = RUN.failure(broken, 200, 0)
    assert data == b"<confidence>" and isinstance(error, AssertionError)
