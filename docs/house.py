"""Draws the house: docs/house.svg, and the same as text on standard output.

The floors come from LAYERS in tests/test_house.py, which also checks that the code keeps to them.
Run it with ``make house``.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from html import escape
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]

WIDTH, HEIGHT, LEFT, RIGHT = 1160, 62, 190, 1130
ROOF, TOP = 120, 12
WALLS = ("#e8e4da", "#f3ede0", "#f7f2e8", "#f3ede0", "#f7f2e8", "#f3ede0")
FONT = "font-family='system-ui, -apple-system, Segoe UI, Helvetica, Arial, sans-serif'"


def svg(layers: Sequence[Any]) -> str:
    """The drawing, floors from the bottom up."""
    *floors, chimney, roof = layers
    eaves = TOP + ROOF
    bottom = eaves + HEIGHT * len(floors)
    parts = [
        f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {WIDTH} {bottom + 16}' role='img' {FONT}>",
        "<title>The house of lovec: floors from the cellar to the roof; imports go down only</title>",
        f"<rect width='{WIDTH}' height='{bottom + 16}' rx='8' fill='#ffffff'/>",
        *_chimney(chimney),
        *_roof(roof, eaves),
    ]
    for number, floor in enumerate(floors):
        parts += _floor(floor, bottom - HEIGHT * (number + 1), WALLS[number % len(WALLS)])
    parts.append(f"<line x1='20' y1='{bottom}' x2='{WIDTH - 12}' y2='{bottom}' stroke='#5b5346' stroke-width='3'/>")
    return "\n".join([*parts, "</svg>"]) + "\n"


def text(layers: Sequence[Any]) -> str:
    """The same in characters, floors from the top down."""
    lines = []
    for floor in reversed(layers):
        lines.append(f"{floor.name} ({floor.phrase})")
        lines += [f"    {_path(room):<20} {phrase}" for room, phrase in floor.rooms.items()]
    return "\n".join(lines)


def _floor(floor: Any, y: int, wall: str) -> Iterator[str]:
    yield f"<rect x='{LEFT}' y='{y}' width='{RIGHT - LEFT}' height='{HEIGHT}' fill='{wall}' stroke='#5b5346'/>"
    yield _words(LEFT - 12, y + 28, floor.name, size=14, anchor="end", weight=600)
    yield _words(LEFT - 12, y + 45, floor.phrase, size=10, anchor="end", color="#6f675a", fit=170)
    width = (RIGHT - LEFT) / len(floor.rooms)
    for number, (room, phrase) in enumerate(floor.rooms.items()):
        x = LEFT + width * number
        if number:
            yield f"<line x1='{x:g}' y1='{y}' x2='{x:g}' y2='{y + HEIGHT}' stroke='#5b5346' stroke-dasharray='4 3'/>"
        yield _words(x + width / 2, y + 28, _path(room), size=14, weight=600, mono=True)
        yield _words(x + width / 2, y + 46, phrase, size=11.5, color="#4a443a", fit=width - 12)


def _roof(roof: Any, eaves: int) -> Iterator[str]:
    middle = (LEFT + RIGHT) / 2
    points = f"{LEFT - 14},{eaves} {middle},{TOP} {RIGHT + 14},{eaves}"
    yield f"<polygon points='{points}' fill='#b5533c' stroke='#5b5346' stroke-linejoin='round'/>"
    for number, (room, phrase) in enumerate(roof.rooms.items()):
        x = middle + (number - (len(roof.rooms) - 1) / 2) * 150
        yield _words(x, eaves - 34, _path(room), size=14, weight=600, mono=True, color="#ffffff")
        yield _words(x, eaves - 16, phrase, size=11.5, color="#fbe9e2")
    yield _words(LEFT - 12, eaves - 52, roof.name, size=14, anchor="end", weight=600)
    yield _words(LEFT - 12, eaves - 35, roof.phrase, size=10, anchor="end", color="#6f675a", fit=170)


def _chimney(chimney: Any) -> Iterator[str]:
    ((room, phrase),) = chimney.rooms.items()
    x, width = RIGHT - 170, 40
    yield f"<rect x='{x}' y='{TOP + 8}' width='{width}' height='{ROOF - 20}' fill='#8c4433' stroke='#5b5346'/>"
    yield f"<rect x='{x - 5}' y='{TOP}' width='{width + 10}' height='10' fill='#6e3527' stroke='#5b5346'/>"
    beside = x + width + 12
    yield _words(beside, TOP + 18, _path(room), size=14, weight=600, mono=True, anchor="start")
    yield _words(beside, TOP + 34, f"{chimney.name}: {phrase}", size=11.5, color="#4a443a", anchor="start", fit=146)


def _words(
    x: float,
    y: float,
    words: str,
    size: float,
    anchor: str = "middle",
    weight: int = 400,
    color: str = "#2b2721",
    mono: bool = False,
    fit: float = 0.0,
) -> str:
    """One line of text; where it would be wider than ``fit`` it is drawn smaller."""
    if fit and (wide := len(words) * size * 0.56) > fit:
        size *= fit / wide
    family = " font-family='ui-monospace, Menlo, Consolas, monospace'" if mono else ""
    style = f"font-size='{size:.3g}' font-weight='{weight}' text-anchor='{anchor}' fill='{color}'{family}"
    return f"<text x='{x:g}' y='{y:g}' {style}>{escape(words)}</text>"


def _path(room: str) -> str:
    """How the room is written: a folder ends in a slash."""
    return f"{room}/" if any((home / room).is_dir() for home in (ROOT, ROOT / "lovec")) else f"{room}.py"


def main() -> None:
    """Writes the drawing and prints the text."""
    sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tests/helpers")]
    from test_house import LAYERS

    (ROOT / "docs/house.svg").write_text(svg(LAYERS), encoding="utf-8")
    print(text(LAYERS))


if __name__ == "__main__":
    main()
