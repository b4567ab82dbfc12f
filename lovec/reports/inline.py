"""Figures inside a page: an SVG of matplotlib that takes the page's colours and disturbs nothing around it."""

from __future__ import annotations

import re
from html import escape

from lovec.reports.style import AMBER, BLUE, FAINT, GREEN, GROUND, INK, ORANGE, PURPLE, SKY

COLOURS = {
    INK: "ink",
    "#000000": "ink",
    FAINT: "faint",
    GROUND: "ground",
    BLUE: "blue",
    ORANGE: "orange",
    GREEN: "green",
    PURPLE: "purple",
    SKY: "sky",
    AMBER: "amber",
}
"""Colours of figures, and the names of the page's colours (``--fig-NAME``) that take their place."""

_VARIABLES = {colour.lower(): f"var(--fig-{name})" for colour, name in COLOURS.items()}
_DIGITS = re.compile(r"(\d\.\d\d)\d+")  # of a coordinate; a hundredth of a point is not seen
_SIZE = re.compile(r'width="([\d.]+)pt" height="([\d.]+)pt" viewBox="[^"]*"')
_POINT = 4 / 3  # pixels
_HEADLINE = 22  # points that a headline takes, which a page says itself


def inline_svg(svg: str, prefix: str, label: str, themed: bool = True) -> tuple[str, int]:
    """An SVG to stand in an HTML page.

    Args:
        svg: what ``write_figure`` wrote.
        prefix: letters and digits that no other figure of the page has: ids in a page are unique.
        label: what the figure shows, for those who cannot see it.
        themed: whether colours are the page's. A figure whose colours are a scale keeps its own on its white ground.

    Returns:
        The element, and its natural width in pixels.
    """
    body = svg[svg.index("<svg") :]
    body = re.sub(
        r"<!--.*?-->|<metadata>.*?</metadata>|<title>.*?</title>|<style.*?</style>", "", body, flags=re.DOTALL
    )
    body = re.sub(r'\b(id=")', rf"\1{prefix}-", body)
    body = re.sub(r'(href="#|url\(#)', rf"\1{prefix}-", body)
    body = re.sub(r"<[^>]*>", lambda found: _DIGITS.sub(r"\1", found[0]), body)
    if themed:
        body = re.sub(r'\bfill="(#\w{6})"', r'style="fill: \1"', body)  # variables work in styles alone
        body = re.sub(r'style="[^"]*"', lambda found: _themed(found[0]), body)
    width, height = (float(side) for side in _SIZE.findall(body)[0])
    top = _HEADLINE if 'id="title"' in svg else 0
    box = f'role="img" aria-label="{escape(label)}" viewBox="0 {top} {width:g} {height - top:g}"'
    return _SIZE.sub(lambda _: box, body, count=1), round(width * _POINT)


def _themed(style: str) -> str:
    return re.sub(r"#[0-9a-f]{6}\b", lambda found: _VARIABLES.get(found[0], found[0]), style)
