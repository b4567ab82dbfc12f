"""Reward surfaces: what each score is worth for each rating, and which score a reward teaches a policy to state."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lovec.reports.style import BLUE, FAINT, HALVES, INK, SIDE, FilePath, write_plot
from lovec.rewards import Reward, argmax_with_ties, best_score, reward_table
from lovec.types import DEFAULT_SCALE, LovecError, Scale

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_STEPS = 1000  # intervals between the probabilities of truth that are tried
_COLOURS = ["#b04a00", "#ffffff", "#005a8f"]  # negative rewards, 0, positive rewards
_SHADES = 41  # odd, so that one of them is white


def reward_surface(
    rewards: Mapping[str, Reward], path: FilePath, title: str = "What a score is worth", scale: Scale = DEFAULT_SCALE
) -> Path:
    """Write a plot with one column per reward; the same rewards give the same bytes.

    The upper panel shows the reward of every score (horizontal) for every rating (vertical). The colour shows its sign,
    white is 0, and a dot marks the best score of a rating. Every column has its own colour scale, since rewards have
    units of their own. The lower panel shows which score (horizontal) pays best on average for every probability
    (vertical) that a sentence is true rather than false: a bar spans the probabilities for which its score is best.
    Under a proper rule every bar crosses the dashed diagonal; a score without a bar never pays best.

    Args:
        rewards: rewards by name.
        path: file to write, .svg or .png.
        title: title of the plot.
        scale: confidence scale of scores and ratings, to which the rewards are adapted.

    Returns:
        The path written to.

    Raises:
        LovecError: there is no reward, a reward is not a finite number, or the name of the file does not end in .svg or
            .png.
    """
    return write_plot(lambda: draw(rewards, title, scale), path, title)


def best_spans(reward: Reward, scale: Scale = DEFAULT_SCALE) -> Iterator[tuple[int, float, float]]:
    """Yield every score that pays best for some probability of truth, with the lowest and highest such probability."""
    best = ((best_score(reward, step / _STEPS, scale), step / _STEPS) for step in range(_STEPS + 1))
    for score, pairs in groupby(best, key=lambda pair: pair[0]):
        truths = [truth for _, truth in pairs]
        yield score, truths[0], truths[-1]


def draw(rewards: Mapping[str, Reward], title: str, scale: Scale = DEFAULT_SCALE) -> Figure:
    """Draw the surfaces of rewards, columns from left to right.

    Args:
        rewards: rewards by name.
        title: title of the plot.
        scale: confidence scale of scores and ratings.

    Raises:
        LovecError: there is no reward, or a reward is not a finite number.
    """
    from matplotlib.figure import Figure

    if not rewards:
        raise LovecError("there is no reward to draw; give at least one")
    figure = Figure(figsize=(SIDE * len(rewards) + 0.7, 2 * SIDE + 1.3), layout="constrained")
    bars, maps, spans = figure.subplots(3, len(rewards), squeeze=False, gridspec_kw={"height_ratios": [0.045, 1, 1]})
    for bar, upper, lower, (name, reward) in zip(bars, maps, spans, rewards.items(), strict=True):
        bar.set_title(name)
        _draw_map(upper, bar, reward_table(reward, scale))
        _draw_spans(lower, list(best_spans(reward, scale)), scale.top)
        for ax in (upper, lower):
            ax.set(xlim=(-0.5, scale.top + 0.5), xticks=_ticks(scale.top))
    maps[0].set_ylabel("rating")
    spans[0].set_ylabel("probability of truth")
    figure.suptitle(title)
    return figure


def _draw_map(ax: Any, bar: Any, table: Sequence[Sequence[float]]) -> None:
    """Draw the rewards ``[score][rating]`` as colours, a colour bar above, a dot on the best score of every rating."""
    from matplotlib.colors import LinearSegmentedColormap

    by_rating = list(zip(*table, strict=True))
    values = [value for row in table for value in row]
    low, high = min(0.0, *values), max(0.0, *values) if any(values) else 1.0
    most = max(-low, high)
    colours = LinearSegmentedColormap.from_list("lovec", _COLOURS, N=_SHADES)
    top = len(table) - 1
    edges = [score - 0.5 for score in range(top + 2)]
    mesh = ax.pcolormesh(
        edges, edges, by_rating, cmap=colours, vmin=-most, vmax=most, edgecolors="white", linewidth=0.3
    )
    best = [(score, rating) for rating, row in enumerate(by_rating) for score in argmax_with_ties(row)]
    ax.scatter(*zip(*best, strict=True), s=11, color="white", edgecolors=INK, linewidths=0.5, zorder=3)
    ax.set(ylim=(-0.5, top + 0.5), aspect="equal", yticks=_ticks(top), xlabel="score (dots: the best)")
    ticks = [0.0, *(end for end in (low, high) if abs(end) > most / 5)]  # the label of an end near 0 would overlap it
    scale = ax.figure.colorbar(mesh, cax=bar, orientation="horizontal", ticks=ticks, format="%.3g")
    scale.outline.set_visible(False)
    bar.set_xlim(low, high)
    bar.tick_params(labelsize=8, length=2)


def _draw_spans(ax: Any, spans: Sequence[tuple[int, float, float]], top: int) -> None:
    """Draw a bar for every score that pays best somewhere, over the probabilities of truth where it does."""
    scores, low, high = zip(*spans, strict=True)
    ax.plot([0, top], [0, 1], color=FAINT, linewidth=1, linestyle=(0, (4, 3)), zorder=1)
    ax.vlines(scores, low, high, color=BLUE, linewidth=5, zorder=2)
    ax.set(ylim=(-0.05, 1.05), box_aspect=1, xlabel="score that pays best", **HALVES)


def _ticks(top: int) -> list[int]:
    """Return the scores that are written at the axes: the lowest, the highest, and the middle one if there is one."""
    return [0, top] if top % 2 else [0, top // 2, top]
