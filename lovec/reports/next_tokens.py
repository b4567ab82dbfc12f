"""The most probable next tokens after the opening tag, for a correct and an incorrect sentence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lovec.reports.panels import PanelLayout, write_panels
from lovec.reports.style import BLUE, FAINT, HALVES, FilePath, short
from lovec.types import DEFAULT_SCALE, LovecError

CASES = ("correct", "incorrect")
"""Sentences that a method has panels for, by their label."""

MOST = 15
"""Most tokens in a panel."""

_LAYOUT = PanelLayout(
    "next token (blue: begins a score; grey: does not)", ("probability",), (1.45,), width=4.3, columns=2, below=0.52
)
_LONGEST = 6  # characters of a token

Entry = Mapping[str, Any]


def score_tokens(
    entries: Sequence[Entry], path: FilePath, title: str = "The most probable tokens where the score is stated"
) -> Path:
    """Write a plot with two panels per method, a correct and an incorrect sentence; the same input, the same bytes.

    A bar is the probability of a token. Tokens that can begin a score stand on the left, in the order of the scores;
    others among the 15 most probable stand on the right, in grey. A model that understands its scores as degrees has
    one hill. The ordinality of the distribution over whole scores measures that: 1 is one hill, 0.5 is chance.

    Args:
        entries: content of the tokens.json that ``lovec test`` writes: mappings with the keys ``method``, ``case``
            ("correct" or "incorrect"), ``tokens`` (mappings with ``text`` and ``p``), ``ordinality`` (or None) and,
            where it is not 0 to 10, ``scale`` (the words of the scale, lowest first).
        path: file to write, .svg or .png.
        title: title of the plot.

    Returns:
        The path written to.

    Raises:
        LovecError: there is nothing to draw, or the name of the file does not end in .svg or .png.
    """
    if not entries:
        raise LovecError("there are no tokens to draw; give the list that `lovec test` wrote into tokens.json")
    by_place = {(str(entry["method"]), entry["case"]): entry for entry in reversed(entries)}
    methods = dict.fromkeys(str(entry["method"]) for entry in entries)
    panels = [
        (f"{short(method)}, {case} sentence", by_place.get((method, case))) for method in methods for case in CASES
    ]
    return write_panels(panels, _draw, _LAYOUT, path, title)


def in_order(
    tokens: Sequence[Mapping[str, Any]], words: Sequence[str] = DEFAULT_SCALE.words
) -> tuple[list[tuple[str, float]], int]:
    """Sort the most probable tokens as a panel shows them.

    Args:
        tokens: mappings with ``text`` and probability ``p``.
        words: words of the scale, lowest first.

    Returns:
        Texts and probabilities, first the tokens that can begin a score, in the order of the scores, then the others,
        most probable first; and the number of tokens that can begin a score.
    """
    pairs = sorted(((str(t["text"]), float(t["p"])) for t in tokens), key=lambda pair: -pair[1])[:MOST]
    scores = [_first_score(text, words) for text, _ in pairs]
    ordered = sorted(zip(scores, pairs, strict=True), key=lambda item: item[0])
    return [pair for _, pair in ordered], sum(score < len(words) for score in scores)


def _draw(axes: Sequence[Any], entry: Entry | None) -> str:
    (ax,) = axes
    words = entry.get("scale", DEFAULT_SCALE.words) if entry else ()
    tokens, scores = in_order(entry["tokens"] if entry else (), words)
    colours = [BLUE] * scores + [FAINT] * (len(tokens) - scores)
    ax.bar(range(len(tokens)), [p for _, p in tokens], width=0.75, color=colours)
    for place, (_, p) in enumerate(tokens):
        if p >= 0.005:
            ax.text(place, p + 0.02, f"{p:.2f}"[1:] if p < 0.995 else "1", fontsize=8, ha="center")
    ax.set(xlim=(-0.6, MOST - 0.4), ylim=(0, 1.12), xticks=range(len(tokens)), **HALVES)
    labels = [_label(text, place < scores) for place, (text, _) in enumerate(tokens)]
    ax.set_xticklabels(labels, fontsize=8, rotation=0 if scores == len(tokens) else 40)
    if not tokens:
        ax.text(MOST / 2 - 0.5, 0.5, "there is no such sentence", fontsize=9, ha="center", va="center")
    ordinality = entry and entry.get("ordinality")
    return "" if ordinality is None else f"ordinality {ordinality:.2f}"


def _first_score(text: str, words: Sequence[str]) -> int:
    """Return the lowest score whose word begins with a token; the number of words if there is none."""
    text = text.strip()
    return next((score for score, word in enumerate(words) if text and word.startswith(text)), len(words))


def _label(text: str, score: bool) -> str:
    """Return a readable label of a token; white space is drawn as symbols, except around a score."""
    visible = text.strip() if score else text.replace(" ", "␣").replace("\n", "↵").replace("\t", "⇥")
    return short(visible, _LONGEST)
