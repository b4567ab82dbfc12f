"""docs/invariants.md names tests that exist and planted bugs that these tests are to catch."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs/invariants.md"
SECTIONS = re.split(r"^## ", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]
BUGS = {bug["name"]: bug for bug in yaml.safe_load((ROOT / "tests/planted/bugs.yaml").read_text(encoding="utf-8"))}


def test_there_are_twenty():
    assert [section.partition(".")[0] for section in SECTIONS] == [str(number) for number in range(1, 21)]


@pytest.mark.parametrize("section", SECTIONS, ids=lambda section: section.partition(".")[0])
def test_an_invariant_has_tests_that_exist_and_bugs_that_they_catch(section):
    tests = re.findall(r"^- \[`([\w.]+)::(\w+)`\]\(\.\./(tests/[\w/.]+)\)$", section, re.MULTILINE)
    assert tests and len(tests) == section.count("\n- ")
    for file, name, path in tests:
        assert Path(path).name == file
        assert re.search(rf"^def {name}\(", (ROOT / path).read_text(encoding="utf-8"), re.MULTILINE), name
    planted = re.findall(r"`([\w-]+)`", section.partition("\nPlanted: ")[2].partition("\nLearned")[0])
    assert planted
    for name in planted:
        files = {test.partition("::")[0] for test in BUGS[name]["tests"]}
        assert files & {path for _, _, path in tests}, f"no test of this section is to catch {name}"
