"""Reward surfaces: what every score is worth for every rating, and what a rule pays a policy to say."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lovec.reports.style import BLUE, FAINT, INK, SIDE, finish, write_figure
from lovec.rewards import Reward, best_score, reward_table, worth_most
from lovec.types import N_SCORES, LovecError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_STEPS = 1000  # truth probabilities that are tried, but one
_COLOURS = ["#b04a00", "#ffffff", "#005a8f"]  # losses, 0, gains
_SHADES = 41  # odd, so that one of them is white
_TICKS = [0, 5, 10]
_RANGE = (-0.5, N_SCORES - 0.5)


def reward_surface(
    rewards: Mapping[str, Reward],
    path: str | os.PathLike[str],
    title: str = "What a score is worth",
) -> Path:
    """Write a figure with one column a reward; the same rewards give the same bytes.

    Above, the reward of every score (across) for every rating (up); the sign is the colour, white is 0, and a dot
    marks the best score of a rating. Colours are each column's own, since rewards have units of their own. Below, the
    best score (across) under a yes/no truth, for every probability (up) that the sentence is true: a bar spans the
    probabilities for which its score pays best. Under a proper rule every bar crosses the dashed diagonal; a score
    without a bar never pays.

    Args:
        rewards: by name.
        path: the file to write, .svg or .png.
        title: a line above the columns.

    Returns:
        The path written to.

    Raises:
        LovecError: there is no reward, or one is not a finite number, or the file has another ending.
    """
    return write_figure(lambda: draw(rewards, title), path, title)


def best_spans(reward: Reward) -> Iterator[tuple[int, float, float]]:
    """Every score that pays best somewhere, with the lowest and highest probability of truth, from 0 up."""
    found = ((best_score(reward, step / _STEPS), step / _STEPS) for step in range(_STEPS + 1))
    for score, run in groupby(found, key=lambda pair: pair[0]):
        truths = [truth for _, truth in run]
        yield score, truths[0], truths[-1]


def draw(rewards: Mapping[str, Reward], title: str) -> Figure:
    """The figure, columns from left to right.

    Raises:
        LovecError: there is no reward.
    """
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    if not rewards:
        raise LovecError("there is no reward to draw; give at least one")
    figure = Figure(
        figsize=(SIDE * len(rewards) + 0.7, 2 * SIDE + 1.3), layout=ConstrainedLayoutEngine(wspace=0.06, hspace=0.04)
    )
    bars, maps, spans = figure.subplots(3, len(rewards), squeeze=False, gridspec_kw={"height_ratios": [0.045, 1, 1]})
    for bar, upper, lower, (name, reward) in zip(bars, maps, spans, rewards.items(), strict=True):
        bar.set_title(name, fontsize=10, color=INK)
        _map(upper, bar, reward_table(reward))
        _spans(lower, reward)
    maps[0].set_ylabel("rating", color=INK)
    spans[0].set_ylabel("probability of truth", color=INK)
    figure.suptitle(title, fontsize=11, color=INK)
    return figure


def _map(ax: Any, bar: Any, table: list[list[float]]) -> None:
    """The rewards [score][rating] as colours, with a scale above and a dot on the best score of every rating."""
    from matplotlib.colors import LinearSegmentedColormap

    by_rating = list(zip(*table, strict=True))
    values = [value for row in table for value in row]
    low, high = min(0.0, *values), max(0.0, *values) if any(values) else 1.0
    most = max(-low, high)
    colours = LinearSegmentedColormap.from_list("lovec", _COLOURS, N=_SHADES)
    edges = [score - 0.5 for score in range(N_SCORES + 1)]
    mesh = ax.pcolormesh(
        edges, edges, by_rating, cmap=colours, vmin=-most, vmax=most, edgecolors="white", linewidth=0.3
    )
    best = [(score, rating) for rating, row in enumerate(by_rating) for score in worth_most(row)]
    ax.scatter(*zip(*best, strict=True), s=11, color="white", edgecolors=INK, linewidths=0.5, zorder=3)
    ax.set(xlim=_RANGE, ylim=_RANGE, aspect="equal", xticks=_TICKS, yticks=_TICKS)
    ax.set_xlabel("score (dots: the best)", color=INK)
    finish(ax)
    ticks = [0.0, *(end for end in (low, high) if abs(end) > most / 5)]  # an end beside 0 would be printed over it
    scale = ax.figure.colorbar(mesh, cax=bar, orientation="horizontal", ticks=ticks, format="%.3g")
    scale.outline.set_visible(False)
    bar.set_xlim(low, high)
    bar.tick_params(labelsize=8, colors=INK, length=2)


def _spans(ax: Any, reward: Reward) -> None:
    """A bar for every score that pays best somewhere, over the probabilities of truth where it does."""
    score, low, high = zip(*best_spans(reward), strict=True)
    ax.plot([0, N_SCORES - 1], [0, 1], color=FAINT, linewidth=1, linestyle=(0, (4, 3)), zorder=1)
    ax.vlines(score, low, high, color=BLUE, linewidth=5, zorder=2)
    ax.set(xlim=_RANGE, ylim=(-0.05, 1.05), box_aspect=1, xticks=_TICKS, yticks=[0, 0.5, 1])
    ax.set_xlabel("score that pays best", color=INK)
    ax.set_yticklabels(["0", "0.5", "1"])
    finish(ax)
