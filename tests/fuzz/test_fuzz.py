"""What reads foreign text, on a few inputs of every kind; ``make fuzz`` tries many more."""

from __future__ import annotations

from pathlib import Path

import pytest
from scripts import load_file

HERE = Path(__file__).parent


TARGETS = load_file(HERE / "targets.py", "targets").TARGETS
RUN = load_file(HERE / "run.py", "run")
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
