"""docs/loop.md quotes the code as it is, in the files that it names."""

from __future__ import annotations

import re
from textwrap import dedent, indent

import pytest
from pages import DOCS, ROOT

PAGE = DOCS / "loop.md"
FILE = re.compile(r"\]\(\.\./(lovec/[\w/]+\.py)\)")


def quotes(text):
    """The quoted pieces of a page, each with the files that its paragraphs name last before it."""
    for match in re.finditer(r"^```py\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
        named = FILE.findall(text[: match.start()])
        yield named[-1] if named else None, match[1]


def stands_in(code, source):
    """Whether lines stand in a source together, however far they are indented there."""
    return any(f"\n{indent(dedent(code), ' ' * width)}" in f"\n{source}" for width in range(0, 32, 4))


@pytest.mark.parametrize(("file", "code"), [*quotes(PAGE.read_text(encoding="utf-8"))])
def test_the_quoted_code_is_in_the_file_that_is_named(file, code):
    assert stands_in(code, (ROOT / file).read_text(encoding="utf-8")), f"{file} has other lines now"


def test_a_quote_of_other_code_would_be_noticed():
    source = "def f():\n    a = 1\n    b = 2\n"
    assert stands_in("a = 1\nb = 2\n", source)
    for other in ("a = 2\n", "a = 1\n    b = 2\n", "b = 2\na = 1\n", "= 1\n"):
        assert not stands_in(other, source)


def test_the_page_quotes_every_stage():
    named = [file for file, _ in quotes(PAGE.read_text(encoding="utf-8"))]
    stages = ("datamodules/base", "encoding/encoder", "modules/batching", "policy/policy", "losses", "modules/base",
              "evaluation/module")  # fmt: skip
    assert {f"lovec/{stage}.py" for stage in stages} <= set(named)
