"""How many lines of code there are in lovec and cli: python tests/helpers/code_lines.py."""

from __future__ import annotations

import ast
import io
import tokenize
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def code_lines(text: str) -> int:
    """Lines that hold code: no comments, docstrings, blank lines."""
    skip = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in skip:
            lines |= set(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            lines -= set(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return len(lines)


if __name__ == "__main__":
    counts = [sum(code_lines(path.read_text()) for path in (ROOT / room).rglob("*.py")) for room in ("lovec", "cli")]
    print(f"lovec: {counts[0]:,}, cli: {counts[1]:,}, together: {sum(counts):,}")
