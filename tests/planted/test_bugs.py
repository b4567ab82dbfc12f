"""The list of planted bugs fits the code as it is; ``make planted`` applies them."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest
from scripts import load_file

HERE = Path(__file__).parent
ROOT = HERE.parents[1]


MUTATION = load_file(HERE / "mutation.py", "mutation")
RUN = load_file(HERE / "run.py", "planted_run")
BUGS = RUN.read_bugs()


def test_there_are_many_bugs_with_names_of_their_own():
    assert len(BUGS) >= 200
    assert len({bug.name for bug in BUGS}) == len(BUGS)


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_a_bug_changes_its_object_and_its_tests_exist(bug):
    source = MUTATION.file_of(bug.where, ROOT).read_text()
    compile(MUTATION.mutated(source, bug.where, bug.change), bug.where, "exec")
    assert bug.tests
    for test in bug.tests:
        path, _, name = test.partition("::")
        assert not name or re.search(rf"^def {name}\(", (ROOT / path).read_text(), re.MULTILINE), test


@cache
def rearranged(source):
    """A module without comments, with the line breaks and quotes of ``ast.unparse``, and the last definition first."""
    return ast.unparse(ast.Module(ast.parse(source).body[::-1], []))


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_a_bug_survives_another_formatting_and_order_of_its_module(bug):
    source = MUTATION.file_of(bug.where, ROOT).read_text()
    other, expected = (MUTATION.mutated(text, bug.where, bug.change) for text in (rearranged(source), source))
    assert ast.dump(other) == ast.dump(ast.Module(expected.body[::-1], []))


def test_a_bug_is_put_into_a_copy(tmp_path):
    bug = next(bug for bug in BUGS if bug.name == "dpo-sign")
    path = tmp_path / "lovec/losses.py"
    path.parent.mkdir()
    path.write_text((ROOT / "lovec/losses.py").read_text())
    bug.apply(tmp_path)
    assert "-F.logsigmoid(-beta * margin)" in path.read_text()
    with pytest.raises(MUTATION.MutationError, match=r"^lovec.losses:dpo_loss has `beta \* margin` 0 times"):
        bug.apply(tmp_path)


# ---------------------------------------------------------------- changes of a syntax tree

SOURCE = '''
LIMIT: int = 3

class Line:
    """A line."""

    size = 1

    @property
    def end(self):
        return self.start + self.size  # not in the tree

    @end.setter
    def end(self, value):
        self.start = value - self.size

    def cut(self, rest=()):
        def at(place):
            return place
        first = at(0)
        if (
            not rest  # nothing is left
            and first == LIMIT
        ):
            self.clear()
            self.note(
                "cut",
                strict=True, where=first,
            )
        return first, at(LIMIT)
'''


def changed(where, **change):
    """The lines that a change removes and adds, without the spaces before them."""
    before = ast.unparse(ast.parse(SOURCE)).splitlines()
    after = ast.unparse(MUTATION.mutated(SOURCE, f"lovec.lines:{where}", change)).splitlines()
    return (
        "; ".join(line.strip() for line in before if line not in after),
        "; ".join(line.strip() for line in after if line not in before),
    )


@pytest.mark.parametrize(
    ("where", "change", "removed", "added"),
    [
        ("LIMIT", {"replace": "3", "by": "4"}, "LIMIT: int = 3", "LIMIT: int = 4"),
        ("Line.size", {"replace": "size = 1", "by": "size = 2"}, "size = 1", "size = 2"),
        ("Line.end", {"replace": "value", "by": "0"}, "self.start = value - self.size", "self.start = 0 - self.size"),
        ("Line.cut.at", {"replace": "place", "by": "place + 1"}, "return place", "return place + 1"),
        (
            "Line.cut",
            {"replace": "self.clear()\nself.note('cut', strict=True, where=first)", "by": "first = 1"},
            "self.clear(); self.note('cut', strict=True, where=first)",
            "first = 1",
        ),
        ("Line.cut", {"delete": "self.clear( )"}, "self.clear()", "pass"),
        ("Line.cut", {"negate": "not rest"}, "if not rest and first == LIMIT:", "if rest and first == LIMIT:"),
        ("Line", {"negate": "first == LIMIT"}, "if not rest and first == LIMIT:", "if not rest and first != LIMIT:"),
        (
            "Line.cut",
            {"negate": "not rest and first == LIMIT"},
            "if not rest and first == LIMIT:",
            "if not (not rest and first == LIMIT):",
        ),
        ("Line.end", {"swap": "value - self.size"}, "self.start = value - self.size", "self.start = self.size - value"),
        ("Line", {"swap": "first, at(LIMIT)"}, "return (first, at(LIMIT))", "return (at(LIMIT), first)"),
        (
            "Line.cut",
            {"argument": "strict=False"},
            "self.note('cut', strict=True, where=first)",
            "self.note('cut', strict=False, where=first)",
        ),
        (
            "Line.cut",
            {"drop_argument": "strict"},
            "self.note('cut', strict=True, where=first)",
            "self.note('cut', where=first)",
        ),
        ("", {"replace": "3", "by": "4"}, "LIMIT: int = 3", "LIMIT: int = 4"),
    ],
)
def test_a_change_is_that_of_its_object_alone(where, change, removed, added):
    assert changed(where, **change) == (removed, added)


@pytest.mark.parametrize(
    ("where", "change", "message"),
    [
        ("Line.cut", {"replace": "LIMIT", "by": "1"}, r"has `LIMIT` 2 times, expected once; give more of what stands"),
        ("Line.cut", {"replace": "LIMITS", "by": "1"}, r"has `LIMITS` 0 times, expected once; the nearest is `LIMIT`"),
        ("Line.cut", {"delete": "self.clean()"}, r"has `self.clean\(\)` 0 times.* nearest is `self.clear\(\)`"),
        ("Line.end", {"replace": "self.size", "by": "1"}, r"has `self.size` 2 times"),  # the getter and the setter
        ("Line.cut", {"argument": "strong=False"}, r"has `strong=False` 0 times.* nearest is `strict=True`"),
        ("Line.cut.at", {"replace": "first", "by": "1"}, r"has `first` 0 times"),
        ("Word", {"replace": "3", "by": "1"}, "there is no such object"),
        ("Line.cut", {"replace": "first"}, "a change has replace, expected one of replace and by, delete, negate"),
        ("Line.cut", {}, "a change has no keys"),
        ("Line.cut", {"negate": "x = 1"}, "'x = 1' is a statement, expected an expression"),
        ("Line.cut", {"negate": "first =="}, "'first ==' is no Python"),
        ("Line.cut", {"swap": "first"}, "`first` is no operation and no tuple of two"),
        ("Line.cut", {"argument": "strict=True"}, "has `strict=True` already; a change has to make a difference"),
        ("Line.cut", {"argument": "strict"}, "'strict' is no keyword argument, expected NAME=VALUE"),
    ],
)
def test_a_change_that_does_not_fit_says_what_was_found(where, change, message):
    with pytest.raises(MUTATION.MutationError, match=message):
        changed(where, **change)


def test_the_file_of_an_object():
    assert MUTATION.file_of("lovec.cli.arguments:arrange", ROOT) == ROOT / "cli/arguments.py"
    assert MUTATION.file_of("lovec.cli:main", ROOT) == ROOT / "cli/__init__.py"
    assert MUTATION.file_of("lovec.policy", ROOT) == ROOT / "lovec/policy/__init__.py"
    with pytest.raises(MUTATION.MutationError, match=r"^there is no module lovec.cliff"):
        MUTATION.file_of("lovec.cliff:main", ROOT)
