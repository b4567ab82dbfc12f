"""What a model would say where it says its score: the most probable next tokens, for a true and a false sentence."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lovec.reports.style import BLUE, FAINT, INK, short, tiles, write_figure
from lovec.types import N_SCORES, LovecError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

CASES = ("correct", "incorrect")
"""What a panel's sentence is, by its label."""

MOST = 15
"""Tokens of a panel."""

_WIDTH, _HEIGHT, _BELOW = 4.3, 1.45, 0.52  # inches of a panel, and of the tokens under it
_CUT = 6  # characters of a token


def score_tokens(
    found: Sequence[Mapping[str, Any]],
    path: str | os.PathLike[str],
    title: str = "The most probable tokens where the score is said",
) -> Path:
    """Write a figure with a row of two panels a method, a correct and an incorrect sentence; same input, same bytes.

    A bar is the probability of a token. Tokens that can begin a score stand in their order on the left, what else is
    among the 15 most probable on the right, in grey: a model that understands its scores as degrees has one hill.
    ``ordinality`` says so of the eleven whole scores: 1 is one hill, 0.5 is chance.

    Args:
        found: what ``lovec test`` writes into tokens.json: mappings with the keys ``method``, ``case`` ("correct" or
            "incorrect"), ``tokens`` (mappings with ``text`` and ``p``) and ``ordinality`` (or None).
        path: the file to write, .svg or .png.
        title: a line above the panels.

    Returns:
        The path written to.

    Raises:
        LovecError: there is nothing to draw, or the file has another ending.
    """
    return write_figure(lambda: draw(found, title), path, title)


def in_order(tokens: Sequence[Mapping[str, Any]]) -> tuple[list[tuple[str, float]], int]:
    """The most probable tokens as a panel shows them.

    Returns:
        Texts and probabilities: the scores by size, then the others by probability; and how many scores there are.
    """
    pairs = sorted(((str(t["text"]), float(t["p"])) for t in tokens), key=lambda pair: -pair[1])[:MOST]
    scores = sorted((pair for pair in pairs if _is_score(pair[0])), key=lambda pair: int(pair[0]))
    return scores + [pair for pair in pairs if not _is_score(pair[0])], len(scores)


def draw(found: Sequence[Mapping[str, Any]], title: str) -> Figure:
    """The figure, a row a method.

    Raises:
        LovecError: there is nothing to draw.
    """
    methods = list(dict.fromkeys(str(one["method"]) for one in found))
    if not methods:
        raise LovecError("there are no tokens to draw; give the list that `lovec test` wrote into tokens.json")
    figure, axes = tiles(
        2 * len(methods), (_HEIGHT,), title, "next token (blue: begins a score; grey: does not)", _WIDTH, 2, _BELOW
    )
    for place, (ax,) in enumerate(axes):
        method, case = methods[place // 2], CASES[place % 2]
        one = next((one for one in found if str(one["method"]) == method and one["case"] == case), None)
        ax.set_title(f"{short(method)}, {case} sentence{_ordinality(one)}", fontsize=10, color=INK)
        if place % 2 == 0:
            ax.set_ylabel("probability", color=INK)
        _panel(ax, one["tokens"] if one else ())
    return figure


def _panel(ax: Any, tokens: Sequence[Mapping[str, Any]]) -> None:
    shown, scores = in_order(tokens)
    colours = [BLUE] * scores + [FAINT] * (len(shown) - scores)
    ax.bar(range(len(shown)), [p for _, p in shown], width=0.75, color=colours)
    for place, (_, p) in enumerate(shown):
        if p >= 0.005:
            ax.text(place, p + 0.02, f"{p:.2f}"[1:] if p < 0.995 else "1", fontsize=8, color=INK, ha="center")
    ax.set(xlim=(-0.6, MOST - 0.4), ylim=(0, 1.12), xticks=range(len(shown)), yticks=[0, 0.5, 1])
    ax.set_yticklabels(["0", "0.5", "1"])
    ax.set_xticklabels([_name(text) for text, _ in shown], fontsize=8, rotation=0 if scores == len(shown) else 40)
    if not shown:
        ax.text(MOST / 2 - 0.5, 0.5, "there is no such sentence", fontsize=9, color=INK, ha="center", va="center")


def _ordinality(one: Mapping[str, Any] | None) -> str:
    value = one and one.get("ordinality")
    return "" if value is None else f"\nordinality {value:.2f}"


def _is_score(text: str) -> bool:
    text = text.strip()
    return text.isascii() and text.isdigit() and len(text) <= 2 and int(text) < N_SCORES


def _name(text: str) -> str:
    """A token that can be read: what is white is drawn."""
    drawn = text.strip() if _is_score(text) else text.replace(" ", "␣").replace("\n", "↵").replace("\t", "⇥")
    return short(drawn, _CUT)
