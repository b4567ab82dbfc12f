"""How often do the alarms of a server that is told the truth ring for nothing, and how soon after a change?

    python benchmarks/watching.py

Streams of rated answers are simulated, so that it is known whether a promise holds and whether a confidence is right.
Every answer has five sentences. The logit of a confidence is the sum of a normal effect of the answer and one of the
sentence; a sentence is true with the probability that its confidence names, and errors of an answer come together (a
normal copula with a correlation of 0.5). A change makes all sentences less often true behind the same confidences, or
confidences too extreme.

Writes benchmarks/results/watching.json and the table in docs/serve.md.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from common import ROOT, page_options, run_for_page, versions_text
from scipy.special import expit, logit, ndtri

from lovec.calibration.conformal import conformal_threshold
from lovec.calibration.drift import LEVEL
from lovec.calibration.watching import FRACTIONS, TOLERANCE, ZONES, e_values, grown, map_gaps

RESULTS = ROOT / "benchmarks" / "results" / "watching.json"
PAGE = ROOT / "docs" / "serve.md"
BEGIN, END = "<!-- watching: written by benchmarks/watching.py -->", "<!-- /watching -->"
ALPHA = 0.1
SENTENCES = 5
LABELLED = 120
"""Answers that a threshold is computed from, where it is not computed from very many."""

Array = np.ndarray[Any, np.dtype[np.float64]]
Truth = Callable[[Array], Array]
"""From confidences to the probabilities that sentences are true."""


def less(shift: float) -> Truth:
    """Sentences are true less often than their confidences say, by a shift, as far as that is possible."""
    return lambda c: np.maximum(c - shift, 0.0)


def flatter(slope: float) -> Truth:
    """Confidences are too extreme: the logit of the truth is theirs times a slope."""
    return lambda c: np.asarray(expit(slope * logit(c)))


NONE, TOLERATED = "none", f"all are true {TOLERANCE:g} less often"
CHANGES: Mapping[str, Truth] = {
    NONE: less(0.0),
    TOLERATED: less(TOLERANCE),
    "all are true 0.1 less often": less(0.1),
    "all are true 0.2 less often": less(0.2),
    "all are true 0.3 less often": less(0.3),
    "confidences are too extreme": flatter(0.4),
}
STARTS = (0, 200, 1000)
"""Answers before a change."""


def answers(streams: int, truth: Truth, rng: np.random.Generator) -> tuple[Array, Array]:
    """Return confidences and factuality of one answer per stream, both [streams, SENTENCES]."""
    c = np.asarray(expit(0.8 + 1.2 * rng.normal(size=(streams, 1)) + 1.2 * rng.normal(size=(streams, SENTENCES))))
    common, own = rng.normal(size=(streams, 1)), rng.normal(size=(streams, SENTENCES))
    chance = math.sqrt(0.5) * common + math.sqrt(0.5) * own
    return c, (chance < ndtri(truth(c))).astype(np.float64)


def worst(c: Array, f: Array) -> Array:
    """Return the highest confidence of a false sentence of each answer, minus infinity without any: [streams].

    It is the score r of ``lovec.calibration.conformal.conformal_scores`` where all kept sentences have to be true.
    """
    return np.asarray(np.where(f == 0, c, -math.inf).max(-1))


def threshold(number: int, rng: np.random.Generator) -> float:
    """Return the threshold by which all kept sentences are true, from a number of labelled answers."""
    return conformal_threshold(worst(*answers(number, CHANGES[NONE], rng)).tolist(), ALPHA)


def watched(limit: float, bets: int, streams: int, most: int, values: Callable[[int], Array]) -> Array:
    """Return after how many answers the alarm of each stream was raised, infinity where it was not.

    Args:
        limit: of all bets.
        bets: number of bets.
        streams: number of streams.
        most: number of answers of a stream.
        values: returns what is bet on at an answer, [streams, bets].
    """
    wealth = np.zeros((streams, bets, len(FRACTIONS)))
    raised = np.full(streams, math.inf)
    for seen in range(most):
        wealth = grown(wealth, seen, values(seen), limit)
        reached = e_values(wealth, seen + 1).mean(-1) >= 1.0 / LEVEL
        raised[reached & np.isinf(raised)] = seen + 1
        if np.isfinite(raised).all():
            break
    return raised


def promise_watched(thresholds: Array, start: int, most: int, change: str, rng: np.random.Generator) -> Array:
    """Watch the promise that all kept sentences are true, see `watched`.

    Args:
        thresholds: of each stream.
        start: number of answers before the change.
        most: number of all answers.
        change: one of CHANGES.
        rng: draws the answers.
    """

    def losses(seen: int) -> Array:
        highest = worst(*answers(len(thresholds), CHANGES[change if seen >= start else NONE], rng))
        return (highest > thresholds).astype(np.float64)[:, None]

    return watched(ALPHA, 1, len(thresholds), most, losses)


def map_watched(streams: int, start: int, most: int, change: str, rng: np.random.Generator) -> Array:
    """Watch whether confidences are right; arguments as of `promise_watched`."""

    def gaps(seen: int) -> Array:
        return map_gaps(*answers(streams, CHANGES[change if seen >= start else NONE], rng))

    return watched((1.0 + TOLERANCE) / 2.0, 2 * len(ZONES), streams, most, gaps)


def false_alarms(streams: int, most: int, seed: int) -> list[dict[str, Any]]:
    """Return how often alarms are raised on answers like the labelled ones, by what the streams are."""
    rng = np.random.default_rng(seed)
    exact = np.full(streams, threshold(200_000, rng))
    own = np.array([threshold(LABELLED, rng) for _ in range(streams)])
    known = np.sort(worst(*answers(200_000, CHANGES[NONE], rng)))
    rates = 1.0 - np.searchsorted(known, own, side="right") / len(known)
    raised = promise_watched(own, 0, most, NONE, rng)
    parts = [
        ("promise, kept exactly", promise_watched(exact, 0, most, NONE, rng)),
        (f"promise, threshold of {LABELLED} answers that keeps it", raised[rates <= ALPHA]),
        (f"promise, threshold of {LABELLED} answers that does not", raised[rates > ALPHA]),
        ("map, right confidences", map_watched(streams, 0, most, NONE, rng)),
        (f"map, all too high by {TOLERANCE:g}", map_watched(streams, 0, most, TOLERATED, rng)),
    ]
    return [{"watched": name, "streams": len(when), "raised": float(np.isfinite(when).mean())} for name, when in parts]


def delays(streams: int, after: int, seed: int) -> list[dict[str, Any]]:
    """Return how many answers after a change alarms are raised, by what is watched, the change and when it comes."""
    rows = []
    exact = np.full(streams, threshold(200_000, np.random.default_rng(seed)))
    for change in list(CHANGES)[2:]:
        for start in STARTS:
            rng = np.random.default_rng((seed, start))
            for name, raised in (
                ("promise", promise_watched(exact, start, start + after, change, rng)),
                ("map", map_watched(streams, start, start + after, change, rng)),
            ):
                late = raised[raised > start] - start
                low, median, high = (float(np.quantile(late, q, method="lower")) for q in (0.1, 0.5, 0.9))
                rows.append(
                    {
                        "watched": name,
                        "change": change,
                        "start": start,
                        "before": float((raised <= start).mean()),
                        "found": float(np.isfinite(late).mean()),
                        "delay": [None if math.isinf(value) else value for value in (low, median, high)],
                    }
                )
                print(rows[-1], flush=True)
    return rows


def all_hold(results: Mapping[str, Any]) -> bool:
    """Return whether no alarm is raised more often than it may, within the 95 % binomial band."""
    quiet = [(row["raised"], row["streams"]) for row in results["quiet"] if not row["watched"].endswith("not")]
    quiet += [(row["before"], results["streams"]) for row in results["changes"]]
    return all(rate <= LEVEL + 1.96 * math.sqrt(LEVEL * (1 - LEVEL) / number) for rate, number in quiet)


def table(results: Mapping[str, Any]) -> str:
    """Return the part of the page."""
    lines = ["| Watched | Change | 0 answers before it | 200 | 1,000 |", "|---|---|---|---|---|"]
    for name in ("promise", "map"):
        for change in list(CHANGES)[2:]:
            rows = {r["start"]: r for r in results["changes"] if (r["watched"], r["change"]) == (name, change)}
            cells = " | ".join(_delay(rows[start], results["after"]) for start in STARTS)
            lines.append(f"| {name} | {change} | {cells} |")
    quiet = [f"{row['watched']}: {100 * row['raised']:.1f} % of {row['streams']:,}" for row in results["quiet"]]
    held = "All but those of the promises that are not kept are" if all_hold(results) else "**Not all are**"
    lines += [
        "",
        f"Answers from the change to the alarm: median, and the middle 80 % of {results['streams']:,} streams of "
        f"simulated answers ({SENTENCES} sentences, which err together). The promise: all kept sentences are true in "
        f"at least {100 * (1 - ALPHA):.0f} % of the answers. Alarms on {results['most']:,} answers without a change: "
        f"{'; '.join(quiet)}. {held} within the binomial band of the level of {100 * LEVEL:g} %. "
        f"Written by `benchmarks/watching.py`; {versions_text(results)}.",
    ]
    return "\n".join(lines)


def _delay(row: Mapping[str, Any], after: int) -> str:
    low, median, high = (f"over {after:,}" if value is None else f"{value:,.0f}" for value in row["delay"])
    return f"{median} ({low} to {high})"


def run(flags: argparse.Namespace) -> dict[str, Any]:
    """Return what was measured."""
    found = {"streams": flags.streams, "most": flags.most, "after": flags.after, "level": LEVEL}
    found["quiet"] = false_alarms(flags.streams, flags.most, flags.seed)
    return found | {"changes": delays(flags.streams, flags.after, flags.seed)}


def main() -> None:
    """Run the benchmark as the command line says."""
    parser = page_options(str(__doc__))
    parser.add_argument("--streams", type=int, default=1000)
    parser.add_argument("--most", type=int, default=2000, help="answers of a stream without a change")
    parser.add_argument("--after", type=int, default=2000, help="answers behind a change")
    run_for_page(parser, run, table, RESULTS, PAGE, (BEGIN, END))


if __name__ == "__main__":
    main()
