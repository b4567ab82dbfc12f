"""Plots of two or three methods laid over each other, as wide as a column of a paper.

They have no title: a page has headings and a paper has captions. What their colours mean is written above the axes,
together with the numbers that belong to the plot.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from lovec.reports.histogram import Histogram
from lovec.reports.reliability import BINS, Reliability
from lovec.reports.risk_coverage import RiskCurve
from lovec.reports.style import BLUE, COLUMN, FAINT, GREEN, GROUND, ORANGE, FilePath, fitting, text_inches, write_plot
from lovec.types import LovecError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MOST = 3
"""Most methods that are laid over each other."""

T = TypeVar("T")
Style: TypeAlias = tuple[str, str, Any]

_STYLES: tuple[Style, ...] = (  # colour, marker, line: baselines come first in the order of methods
    (ORANGE, "s", (0, (5, 2))),
    (BLUE, "o", "-"),
    (GREEN, "^", (0, (1, 1.2))),
)
_LEFT, _RIGHT, _TOP, _BOTTOM = 0.48, 0.1, 0.1, 0.42  # inches around the axes
_LINE = 0.16  # inches of a line of the legend
_MARK = 0.363  # inches of a line of the legend before its name
_FEW_RISKS = 20  # a risk-coverage curve with more thresholds is drawn without dots
_MOST_POINTS = 150  # of a risk-coverage curve; a plot of this width shows no more
_RANGE = (-0.03, 1.03)
_FONT = 8.0


def reliability_overlay(
    diagrams: Mapping[str, Reliability | None], path: FilePath, readout: str = "stated score"
) -> Path:
    """Write the reliability diagrams of up to three methods in one plot; the same input gives the same bytes.

    A mark is a bin: its mean factuality over its mean confidence, with a 95 % bootstrap interval over the questions; a
    hollow mark has none. The line is the CORP curve where there is one (the isotonic regression of factuality on
    confidence), and else connects the bins. On the grey diagonal a method is calibrated. The bars below are the share
    of each method's sentences in each bin.

    Args:
        diagrams: see ``lovec.reports.reliability.reliability``, by the name of the method; None draws none, but
            keeps its colour for it.
        path: file to write, .svg, .pdf or .png.
        readout: what the confidences are, in words.

    Returns:
        The path written to.

    Raises:
        LovecError: there is no method, there are more than three, or the name of the file has another ending.
    """
    side = COLUMN - _LEFT - _RIGHT
    drawn = _styled(diagrams)

    def draw(figure: Figure, ends: tuple[float, float]) -> None:
        upper, lower = _stacked(figure, ends, (0.86 * side, 0.4))
        upper.plot([0, 1], [0, 1], color=FAINT, linewidth=1, zorder=1)
        for (colour, marker, line), _, diagram in drawn:
            xs, ys = [bin_.confidence for bin_ in diagram.bins], [bin_.factuality for bin_ in diagram.bins]
            curve = diagram.curve
            lines = (xs, ys) if curve is None else _corners(curve.x.tolist(), curve.recalibrated.tolist())
            upper.plot(*lines, color=colour, linestyle=line, linewidth=1.3, zorder=2)
            for bin_ in diagram.bins:
                fill = GROUND if bin_.low is None else colour
                if bin_.low is not None:
                    upper.vlines(bin_.confidence, bin_.low, bin_.high, color=colour, linewidth=0.8, zorder=2)
                place = [bin_.confidence], [bin_.factuality]
                upper.scatter(*place, s=20, marker=marker, color=fill, edgecolors=colour, zorder=3, clip_on=False)
        upper.set(xlim=_RANGE, ylim=_RANGE, xticks=[0, 0.5, 1], yticks=[0, 0.5, 1], yticklabels=["0", "0.5", "1"])
        upper.tick_params(labelbottom=False)
        upper.set_ylabel("mean factuality")
        shares = [(style, _bin_shares(diagram)) for style, _, diagram in drawn]
        _bars(lower, [place / BINS for place in range(BINS)], shares, 1 / BINS)
        lower.set(xlim=_RANGE, xticks=[0, 0.5, 1], xticklabels=["0", "0.5", "1"], xlabel=f"mean confidence ({readout})")

    legend = [
        (style, name, f"BS {100 * diagram.brier:.1f}, ECE-M {100 * diagram.ece_m:.1f}")
        for style, name, diagram in drawn
    ]
    return _write(draw, legend, 0.86 * side + 0.12 + 0.4, path, "Reliability")


def risk_overlay(curves: Mapping[str, RiskCurve | None], path: FilePath, readout: str = "stated score") -> Path:
    """Write the risk-coverage curves of up to three methods in one plot; the same input gives the same bytes.

    The most confident sentences are kept first. A mark is what a threshold on the confidence keeps; between marks,
    sentences of equal confidence are in random order, and the curve is the exact expectation. The curve of a method
    that knows nothing is flat.

    Args:
        curves: see ``lovec.reports.risk_coverage.risk_curve``, by the name of the method; None draws none, but
            keeps its colour for it.
        path: as for `reliability_overlay`, also for what is returned and raised.
        readout: likewise.
    """
    drawn = _styled(curves)

    def draw(figure: Figure, ends: tuple[float, float]) -> None:
        (ax,) = _stacked(figure, ends, (1.75,))
        for (colour, marker, line), _, curve in drawn:
            points = [*zip(*curve.points(), strict=True)]
            xs, ys = zip(*points[:: -(-len(points) // _MOST_POINTS)], points[-1], strict=True)
            ax.plot([100 * x for x in xs], [100 * y for y in ys], color=colour, linestyle=line, linewidth=1.4, zorder=2)
            if len(curve.risk) <= _FEW_RISKS:
                dots = [100 * share for share in curve.coverage], [100 * risk for risk in curve.risk]
                ax.plot(*dots, marker, color=colour, markersize=4, clip_on=False, zorder=3)
        highest = max(max(curve.points()[1]) for _, _, curve in drawn) or 1.0
        ax.set(xlim=(0, 102), ylim=(0, 108 * highest), xticks=[0, 25, 50, 75, 100])
        ax.set(xlabel=f"sentences kept by {readout}, %", ylabel="risk, %")

    legend = [(style, name, f"AURC {100 * curve.aurc:.1f}") for style, name, curve in drawn]
    return _write(draw, legend, 1.75, path, "Risk and coverage")


def histogram_overlay(histograms: Mapping[str, Histogram | None], path: FilePath) -> Path:
    """Write which scores up to three methods state, side by side; the same input gives the same bytes.

    Args:
        histograms: see ``lovec.reports.histogram.histogram``, by the name of the method, on one scale; None draws
            none, but keeps its colour for it.
        path: as for `reliability_overlay`, also for what is returned and raised.
    """
    drawn = _styled(histograms)
    levels = max(len(histogram.shares) for _, _, histogram in drawn)

    def draw(figure: Figure, ends: tuple[float, float]) -> None:
        (ax,) = _stacked(figure, ends, (1.75,))
        shares = [(style, [100 * share for share in histogram.shares]) for style, _, histogram in drawn]
        _bars(ax, [place - 0.5 for place in range(levels)], shares, 1.0)
        ticks = range(0, levels, max(1, -(-(levels - 1) // 10)))
        ax.set(xlim=(-0.6, levels - 0.4), xticks=ticks, xlabel="stated score", ylabel="share, %")

    legend = []
    for style, name, given in drawn:
        true = "" if given.factuality is None else f" (true: {100 * given.factuality:.0f} %)"
        legend.append((style, name, f"mean {100 * given.confidence:.0f} %{true}"))
    return _write(draw, legend, 1.75, path, "Which scores are given")


def _styled(given: Mapping[str, T | None]) -> list[tuple[Style, str, T]]:
    """Return what is drawn, each with its style and its name.

    Raises:
        LovecError: there is no method, or there are too many.
    """
    drawn = [
        (style, name, data) for style, (name, data) in zip(_STYLES, given.items(), strict=False) if data is not None
    ]
    if not drawn or len(given) > MOST:
        raise LovecError(f"got {len(drawn)} of {len(given)} methods to lay over each other, expected 1 to {MOST}")
    return drawn


def _write(
    draw: Callable[[Figure, tuple[float, float]], None],
    legend: Sequence[tuple[Style, str, str]],
    height: float,
    path: FilePath,
    title: str,
) -> Path:
    """Write a plot of axes that are ``height`` inches high, with the legend above them: styles, names and numbers.

    Names that are too long for the plot are cut, numbers are not.

    Raises:
        LovecError: the name of the file has another ending.
    """
    above = _TOP + _LINE * len(legend)

    def drawn() -> Figure:
        from matplotlib import rcParams
        from matplotlib.figure import Figure
        from matplotlib.lines import Line2D

        rcParams.update(dict.fromkeys(("axes.labelsize", "xtick.labelsize", "ytick.labelsize"), _FONT))
        whole = above + height + _BOTTOM
        figure = Figure(figsize=(COLUMN, whole))
        draw(figure, (above / whole, _BOTTOM / whole))
        x = _LEFT / COLUMN
        for place, ((colour, marker, line), name, numbers) in enumerate(legend):
            y = 1 - (_TOP / 2 + _LINE * (place + 0.5)) / whole
            room = COLUMN - _LEFT - _MARK - _RIGHT / 2 - text_inches(f": {numbers}", _FONT)
            figure.add_artist(
                Line2D([x, x + 0.08], [y, y], color=colour, linestyle=line, linewidth=1.4, marker=marker, markevery=[1])
            )
            text = f"{fitting(name, room, _FONT)}: {numbers}"
            figure.text(x + _MARK / COLUMN, y, text, fontsize=_FONT, va="center_baseline")
        return figure

    return write_plot(drawn, path, title)


def _stacked(figure: Figure, ends: tuple[float, float], heights: Sequence[float]) -> list[Any]:
    """Return axes from top to bottom, in inches of height, between the legend and the label below."""
    whole = figure.get_figheight()
    top, axes = whole * (1 - ends[0]), []
    for inches in heights:
        box = (_LEFT / COLUMN, (top - inches) / whole, (COLUMN - _LEFT - _RIGHT) / COLUMN, inches / whole)
        ax = figure.add_axes(box)
        ax.grid(axis="y")
        ax.set_axisbelow(True)
        axes.append(ax)
        top -= inches + 0.12
    return axes


def _bars(ax: Any, starts: Sequence[float], shares: Sequence[tuple[Style, Sequence[float]]], width: float) -> None:
    """Draw the shares of every method, in percent, side by side in places of this width."""
    one = 0.86 * width / len(shares)
    for number, ((colour, _, _), of_method) in enumerate(shares):
        centres = [start + 0.07 * width + one * (number + 0.5) for start in starts]
        ax.bar(centres[: len(of_method)], of_method, width=one, color=colour)
    highest = max(max(of_method) for _, of_method in shares)
    top = next(top for top in (20, 40, 60, 80, 100) if highest <= top + 1e-6)
    ax.set(ylim=(0, top), yticks=[0, top // 2, top])
    ax.set_ylabel("share, %")


def _corners(xs: Sequence[float], ys: Sequence[float]) -> tuple[list[float], list[float]]:
    """Return the points of a curve without those inside a level stretch."""
    last = len(xs) - 1
    kept = [at for at in range(last + 1) if at in (0, last) or not ys[at - 1] == ys[at] == ys[at + 1]]
    return [xs[at] for at in kept], [ys[at] for at in kept]


def _bin_shares(diagram: Reliability) -> list[float]:
    """Return the share of the sentences in each of the equal bins of the confidence, in percent."""
    shares = [0.0] * BINS
    for bin_ in diagram.bins:
        shares[min(int(BINS * bin_.confidence + 1e-6), BINS - 1)] += 100 * bin_.count / diagram.n
    return shares
