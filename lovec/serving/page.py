"""The page to try a model: one document that loads nothing, with a policy that allows its own script and style only."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path

from lovec.core.templates import load_template
from lovec.display import DISAGREEMENT, TENTHS, legend_html, style, visible

PAGE_HEADERS: Mapping[str, str] = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-cache",
}
"""Headers of the page, beside its policy."""

_HERE = Path(__file__).parent


@lru_cache(maxsize=4)
def render_page(name: str, guarded: bool, problems: Sequence[str] = (), grounded: bool = False) -> tuple[str, str]:
    """Return the page and its Content-Security-Policy.

    The policy allows the script and the style of the page by their hashes, requests to this server, and nothing else.

    Args:
        name: name of the model.
        guarded: whether requests need a key; the page asks for it then.
        problems: what is wrong with confidences, as people's verdicts show; a tuple.
        grounded: whether requests may bring evidence; the page has a field for it then.
    """
    css = f"{(_HERE / 'page.css').read_text(encoding='utf-8')}{style()}"
    script = (_HERE / "page.js").read_text(encoding="utf-8")
    template = load_template(_HERE / "page.html.j2", autoescape=True, filters={"visible": visible})
    page = template.render(
        name=name,
        guarded=guarded,
        problems="; ".join(problems),
        css=css,
        script=script,
        grounded=grounded,
        tenths=TENTHS,
        disagreement=DISAGREEMENT,
        legend=legend_html(grounded),
    )
    policy = {
        "default-src": "'none'",
        "script-src": _hash(script),
        "style-src": _hash(css),
        "connect-src": "'self'",
        "img-src": "data:",
        "base-uri": "'none'",
        "form-action": "'none'",
        "frame-ancestors": "'none'",
        "require-trusted-types-for": "'script'",
    }
    return page, "; ".join(map(" ".join, policy.items()))


def _hash(text: str) -> str:
    """Return a text of the page as a policy names it."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
