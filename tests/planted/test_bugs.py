"""The list of planted bugs fits the code as it is; ``make planted`` applies them."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parents[1]


def load():
    """The script, which is not a module of a package."""
    spec = importlib.util.spec_from_file_location("planted_run", HERE / "run.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look themselves up here
    spec.loader.exec_module(module)
    return module


RUN = load()
BUGS = RUN.read_bugs()


def test_there_are_many_bugs_with_names_of_their_own():
    assert len(BUGS) >= 60
    assert len({bug.name for bug in BUGS}) == len(BUGS)


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_a_bug_is_one_line_of_the_code_and_its_tests_exist(bug):
    text = (ROOT / bug.file).read_text()
    assert text.count(bug.old) == 1, f"{bug.old!r} occurs {text.count(bug.old)} times in {bug.file}"
    assert "\n" not in bug.old and "\n" not in bug.new and bug.old != bug.new
    compile(text.replace(bug.old, bug.new), bug.file, "exec")
    assert bug.tests
    for test in bug.tests:
        path, _, name = test.partition("::")
        assert not name or re.search(rf"^def {name}\(", (ROOT / path).read_text(), re.MULTILINE), test


def test_a_bug_is_put_into_a_copy(tmp_path):
    bug = BUGS[0]
    path = tmp_path / bug.file
    path.parent.mkdir(parents=True)
    path.write_text((ROOT / bug.file).read_text())
    bug.apply(tmp_path)
    assert bug.old not in path.read_text() and bug.new in path.read_text()
    with pytest.raises(ValueError, match="occurs 0 times"):
        bug.apply(tmp_path)
