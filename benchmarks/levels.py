"""Promises whose level adapts to the answer, so that a wanted share of it is kept: part of kinds.py.

As in arXiv 2406.09714, from standard parts. A logistic regression learns how probable it is that the more certain half
of an answer's claims keeps the promise; rounded down to a tenth, that is the level of the answer. The threshold of an
answer is the score that half of its claims lie above, plus what all answers of its level have in common: the conformal
quantile of other labelled answers of that level. So what is claimed holds among the answers of each level, as a promise
by kind does (a Mondrian category).
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence

import numpy as np
from scipy.special import expit

from lovec.calibration.conformal import Passage, conformal_scores, conformal_threshold
from lovec.calibration.logistic import Array, fit_logistic, softened

WANTED = 0.5
"""Share of an answer's claims that is to be kept."""
SHARE = 0.8
"""Share of the kept claims that is true, where the promise is kept."""
RIDGE = 0.01
"""Of standardised inputs, as weak as the strengths that ``lovec calibrate`` chooses from."""


def adaptive(passages: Sequence[Passage], kinds: Sequence[str] | None, splits: int, seed: int) -> dict[str, float]:
    """Return how promises with levels that adapt do beside one threshold for all answers that keeps as much.

    One quarter of the answers fits the regression, one gives the quantiles, and the other half tries them. The level of
    the threshold for all is the highest, in hundredths, at which as many claims are kept.

    Args:
        passages: labelled answers of at least two claims, all with scores.
        kinds: what the regression knows of each besides its scores; None is nothing.
        splits: number of random divisions.
        seed: seed of the divisions.

    Returns:
        Means over the divisions, of both: what is claimed, how often it held, the share of claims that is kept and the
        share of answers of which half or more is. Of the levels also the share of answers with one below one half, and
        by how much what held lies below what is claimed at the worst level.
    """
    rng, counts = np.random.default_rng(seed), np.array([len(passage.scores) for passage in passages])
    scores = np.full((len(passages), counts.max()), -np.inf)
    for row, passage in zip(scores, passages, strict=True):
        row[: len(passage.scores)] = passage.scores
    middle = np.array([sorted(passage.scores)[len(passage.scores) // 2 - 1] for passage in passages])
    reached = np.array(conformal_scores(passages, SHARE))
    inputs = [[statistics.mean(passage.scores) for passage in passages], middle]
    inputs += [[float(kind == name) for kind in kinds] for name in sorted(set(kinds))] if kinds is not None else []

    def kept(at: Array, thresholds: Array) -> Array:
        return np.asarray((scores[at] > thresholds[..., None]).sum(-1) / counts[at])

    found: dict[str, list[float]] = defaultdict(list)
    by_level: dict[float, list[bool]] = defaultdict(list)
    for _ in range(splits):
        first, second, new = np.split(rng.permutation(len(passages)), [len(passages) // 4, len(passages) // 2])
        levels = _levels(np.array(inputs), reached <= middle, first)
        same = {level: (reached - middle)[second[levels[second] == level]].tolist() for level in set(levels.tolist())}
        more = {level: conformal_threshold(those, 1 - level) for level, those in same.items()}
        thresholds = middle[new] + np.array([more[level] for level in levels[new].tolist()])
        for level, held in zip(levels[new].tolist(), (reached[new] <= thresholds).tolist(), strict=True):
            by_level[level].append(held)
        old = reached[[*first, *second]].tolist()
        of_all = [np.full(len(new), conformal_threshold(old, 1 - level / 100)) for level in range(1, 100)]
        least = kept(new, thresholds).mean()
        at = max(at for at, one in enumerate(of_all) if not at or kept(new, one).mean() >= least)
        fixed = np.full(len(new), (at + 1) / 100)
        for name, claimed, used in (("", levels[new], thresholds), ("fixed ", fixed, of_all[at])):
            shares = kept(new, used)
            values = {"claimed": claimed, "held": reached[new] <= used, "kept": shares, "enough": shares >= WANTED}
            for key, value in values.items():
                found[f"{name}{key}"].append(float(value.mean()))
        found["low"].append(float((levels[new] < 0.5).mean()))
    means = {name: statistics.mean(values) for name, values in found.items()}
    return means | {"worst": max(level - statistics.mean(held) for level, held in by_level.items())}


def levels_lines(results: Mapping[str, Mapping[str, float]]) -> list[str]:
    """Return the table of the page, from what ``adaptive`` has returned by what the regression knows."""
    lines = [
        "**Levels that adapt** to the answer, so that a wanted share of it is kept and the probability that is claimed "
        "varies (the same paper), were tried on the biographies, with half of an answer's claims wanted:",
        "",
        "| Level | claimed | held | claims kept | answers with half or more kept | answers with a level below 50 |",
        "|---|--:|--:|--:|--:|--:|",
    ]
    for known, found in results.items():
        for name, title in (("", f"by {known}"), ("fixed ", "one for all that keeps as many claims")):
            values = [found[f"{name}{key}"] for key in ("claimed", "held", "kept", "enough")]
            values.append(float(found["fixed claimed"] < 0.5) if name else found["low"])
            lines.append(f"| {title} | {' | '.join(f'{100 * value:.1f}' for value in values)} |")
    worst = max(found["worst"] for found in results.values())
    held = (
        "at least as often as claimed" if worst <= 0 else f"{100 * worst:.1f} points less often than claimed at worst"
    )
    about = f"Percent. *Held*: {100 * SHARE:.0f} % of the kept claims are true. Among the answers of each level it held"
    return [*lines, "", f"{about} {held}. Written by `benchmarks/kinds.py`, with the method in `benchmarks/levels.py`."]


def _levels(inputs: Array, target: Array, fitted: Array) -> Array:
    """Return the level of every answer: its probability by a regression, rounded down to a tenth, [answers]."""
    x = inputs - inputs[:, fitted].mean(1, keepdims=True)
    x = np.concatenate([np.ones((1, x.shape[1])), x / inputs[:, fitted].std(1, keepdims=True).clip(1e-9)])
    ridge = np.array([0.0, *[RIDGE] * len(inputs)])
    weights, _ = fit_logistic(x[:, fitted], softened(target[fitted].astype(np.float64)), ridge)
    return np.asarray(np.floor(10 * expit(weights @ x)).clip(1, 9) / 10)
