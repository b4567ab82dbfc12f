"""Draws the layers of the code: docs/layers.svg, and the same as text on standard output.

The layers come from LAYERS in tests/test_layers.py, which also checks that imports go down only.
Run it with ``make layers``.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Mapping
from html import escape
from pathlib import Path
from textwrap import wrap

ROOT = Path(__file__).resolve().parents[1]

WIDTH, LEFT, TOP, LINE, GAP = 1000, 210, 44, 22, 14
LETTERS = 86  # of the names in one line
FONT = "font-family='system-ui, -apple-system, Segoe UI, Helvetica, Arial, sans-serif'"
CODE = "font-family='ui-monospace, Menlo, Consolas, monospace'"


def svg(layers: Mapping[str, str]) -> str:
    """Return the drawing, the lowest layer at the bottom."""
    parts: list[str] = []
    y = TOP
    for name, members in reversed(layers.items()):
        lines = wrap("  ".join(map(_path, members.split())), LETTERS, drop_whitespace=True, break_on_hyphens=False)
        height = LINE * len(lines) + GAP
        parts.append(
            f"<rect x='{LEFT}' y='{y}' width='{WIDTH - LEFT - 12}' height='{height}' rx='4' fill='#eef3f8' "
            "stroke='#8aa0b5'/>"
        )
        parts.append(_words(LEFT - 12, y + height / 2 + 5, name, "text-anchor='end' font-weight='600'"))
        for number, line in enumerate(lines):
            parts.append(_words(LEFT + 12, y + GAP / 2 + LINE * number + 16, line, f"{CODE} xml:space='preserve'"))
        y += height + 6
    title = "Layers of lovec: a module imports from layers below its own only"
    head = [
        f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {WIDTH} {y + 6}' role='img' {FONT}>",
        f"<title>{title}</title>",
        f"<rect width='{WIDTH}' height='{y + 6}' fill='#ffffff'/>",
        _words(LEFT, 28, title, "font-weight='600'"),
    ]
    return "\n".join([*head, *parts, "</svg>"]) + "\n"


def text(layers: Mapping[str, str]) -> str:
    """Return the same as text, with what the docstring of each part says first, the highest layer first."""
    lines = []
    for name, members in reversed(layers.items()):
        lines.append(name)
        lines += [f"    {_path(part):<18} {_docstring(part)}" for part in members.split()]
    return "\n".join(lines)


def _words(x: float, y: float, words: str, style: str) -> str:
    return f"<text x='{x:g}' y='{y:g}' font-size='14' fill='#22303c' {style}>{escape(words)}</text>"


def _home(part: str) -> Path:
    """Folder or file of a part; commands and recipes lie beside the package."""
    folder = next((base / part for base in (ROOT / "lovec", ROOT) if (base / part).is_dir()), None)
    return folder or ROOT / f"lovec/{part}.py"


def _path(part: str) -> str:
    """How a part is written: a folder ends in a slash."""
    return f"{part}/" if _home(part).is_dir() else part


def _docstring(part: str) -> str:
    """The first line of the docstring of a part; "" without one."""
    file = _home(part) / "__init__.py" if _home(part).is_dir() else _home(part)
    words = (ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) or "") if file.exists() else ""
    return words.partition("\n")[0]


def main() -> None:
    """Write the drawing and print the text."""
    sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tests/helpers")]
    from test_layers import LAYERS

    (ROOT / "docs/layers.svg").write_text(svg(LAYERS), encoding="utf-8")
    print(text(LAYERS))


if __name__ == "__main__":
    main()
