"""Prepare a plot for the inside of an HTML page: it takes the page's colours and changes nothing around it."""

from __future__ import annotations

import re
from html import escape

from lovec.reports.style import AMBER, BLUE, FAINT, GREEN, GROUND, INK, ORANGE, PURPLE, SKY

COLOURS = {INK: "ink", "#000000": "ink", FAINT: "faint", GROUND: "ground", BLUE: "blue", ORANGE: "orange"}
COLOURS |= {GREEN: "green", PURPLE: "purple", SKY: "sky", AMBER: "amber"}
"""Colours of plots, and the names of the page's colours (CSS variables ``--plot-NAME``) that replace them."""

_VARIABLES = {colour.lower(): f"var(--plot-{name})" for colour, name in COLOURS.items()}
_DIGITS = re.compile(r"(\d\.\d\d)\d+")  # of a coordinate; a hundredth of a point cannot be seen
_SIZE = re.compile(r'width="([\d.]+)pt" height="([\d.]+)pt" viewBox="[^"]*"')
_POINT = 4 / 3  # pixels
_TITLE_HEIGHT = 22  # points that a title takes in the plot; the page shows it as a heading instead


def inline_svg(svg: str, prefix: str, label: str, themed: bool = True) -> tuple[str, int]:
    """Return an SVG element for an HTML page.

    Args:
        svg: what ``lovec.reports.style.write_plot`` wrote.
        prefix: letters and digits that no other plot of the page has, since ids must be unique in a page.
        label: what the plot shows, for readers who cannot see it.
        themed: whether it takes the page's colours. A plot whose colours are a scale keeps them, on white.

    Returns:
        The element, and its natural width in pixels.
    """
    body = svg[svg.index("<svg") :]
    body = re.sub(
        r"<!--.*?-->|<metadata>.*?</metadata>|<title>.*?</title>|<style.*?</style>", "", body, flags=re.DOTALL
    )
    body = re.sub(r'\b(id=")', rf"\1{prefix}-", body)
    body = re.sub(r'(href="#|url\(#)', rf"\1{prefix}-", body)
    body = re.sub(r"<[^>]*>", lambda element: _DIGITS.sub(r"\1", element[0]), body)
    if themed:
        body = re.sub(r'\bfill="(#\w{6})"', r'style="fill: \1"', body)  # CSS variables work in styles only
        body = re.sub(r'style="[^"]*"', lambda style: _themed(style[0]), body)
    width, height = (float(side) for side in _SIZE.findall(body)[0])
    top = _TITLE_HEIGHT if 'id="title"' in svg else 0
    box = f'role="img" aria-label="{escape(label)}" viewBox="0 {top} {width:g} {height - top:g}"'
    return _SIZE.sub(lambda _: box, body, count=1), round(width * _POINT)


def _themed(style: str) -> str:
    return re.sub(r"#[0-9a-f]{6}\b", lambda colour: _VARIABLES.get(colour[0], colour[0]), style)
