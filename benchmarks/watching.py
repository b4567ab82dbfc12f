"""How often do the alarms of a server that is told the truth ring for nothing, and how soon after a change?

    python benchmarks/watching.py

Streams of rated answers are simulated, so that it is known whether a promise holds and whether a confidence is right.
Every answer has five sentences. The logit of a confidence is the sum of a normal effect of the answer and one of the
sentence; a sentence is true with the probability that its confidence names, and errors of an answer come together (a
normal copula with a correlation of 0.5). A change makes all sentences less often true behind the same confidences, or
confidences too extreme.

Real confidences are watched as well: those of the embedded world's adapter, with the calibration and a threshold that
come with the package, text given. A stream draws its answers, with replacement, from those about the test things; then
it draws from answers about other things or to other questions. So there, too, it is known what holds: the share of the
answers that break the promise, and by how much the labels differ from the confidences on average.

Writes benchmarks/results/watching.json and the table in docs/serve.md.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Self

import numpy as np
from common import results_and_page
from kinds import THIRDS, popularity
from page_parts import page_options, run_for_page, versions_text
from scipy.special import expit, logit, ndtri

from lovec.calibration import Calibration
from lovec.calibration.conformal import conformal_threshold, passages_of
from lovec.calibration.drift import LEVEL
from lovec.calibration.watching import FRACTIONS, TOLERANCE, ZONES, e_values, grown, map_gaps, promise_loss
from lovec.datamodules.world import World
from lovec.taggers import IterativeTagger, open_session
from lovec.types import ITERATIVE, Record

RESULTS, PAGE = results_and_page("watching", "docs/serve.md")
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

    return watched(LIMITS["map"], 2 * len(ZONES), streams, most, gaps)


class Pool(NamedTuple):
    """Answers that streams are drawn from, as what is bet on.

    Attributes:
        promise: how far each breaks the promise, [answers, 1].
        map: how far its labels differ from its confidences, see ``map_gaps``, [answers, bets].
    """

    promise: Array
    map: Array

    @classmethod
    def of(cls, records: Sequence[Record], calibration: Calibration) -> Self:
        """Return the pool of tagged and labelled records with calibrated confidences."""
        promised = calibration.threshold(1 - ALPHA)
        passages, _ = passages_of(records, calibration.rank, promised.true_from)
        pairs = [[(s.confidence, s.factuality) for s in record.sentences] for record in records]
        gaps = [map_gaps([c for c, _ in own], [f for _, f in own]) for own in pairs]
        return cls(np.array([[promise_loss(promised, passage)] for passage in passages]), np.array(gaps))

    def excess(self, watched: str) -> float:
        """Return by how much the mean of what is bet on lies above its limit; of several bets, of the farthest one.

        It is above 0 where the promise is broken, or confidences differ by more than the tolerance.
        """
        return float((getattr(self, watched).mean(0) - LIMITS[watched]).max())

    @property
    def too_high(self) -> float:
        """Mean over answers of how much higher confidences are than labels."""
        return float(2.0 * self.map[:, 1].mean() - 1.0)  # the lower side of the first zone, which is all confidences


LIMITS = {"promise": ALPHA, "map": (1.0 + TOLERANCE) / 2.0}
"""What the means of what is bet on are at most where nothing is wrong."""


def world_pools() -> dict[str, Pool]:
    """Return the answers about the embedded world, by what they are about."""
    sets = ("test", "companies", "private", "one-fact")
    with open_session(adapter="world") as session:
        calibration = session.deployment.calibration(ITERATIVE)
        assert calibration is not None
        tagger = IterativeTagger(session.engine, session.encoder, "mean", calibration=calibration)
        tagged = {name: tagger.tag(World(test_sets=[name]).load("test")) for name in sets}
    answered = {name: [record for record in records if record.sentences] for name, records in tagged.items()}
    known = popularity(answered["test"])
    parts = {
        NONE: answered["test"],
        "only the least known third": [
            record for record, third in zip(answered["test"], known, strict=True) if third == THIRDS[-1]
        ],
        "companies instead": answered["companies"],
        "people's private lives": answered["private"],
        "single facts": answered["one-fact"],
    }
    return {name: Pool.of(records, calibration) for name, records in parts.items()}


def pool_watched(
    pools: Mapping[str, Pool], name: str, change: str, start: int, most: int, streams: int, rng: np.random.Generator
) -> Array:
    """Watch streams of answers that are drawn from pools, see `watched`.

    Args:
        pools: the answers, by change; those of NONE come before it.
        name: what is watched: "promise" or "map".
        change: name of the pool that answers come from behind the change.
        start: number of answers before the change.
        most: number of all answers.
        streams: number of streams.
        rng: draws the answers.
    """

    def values(seen: int) -> Array:
        table: Array = getattr(pools[change if seen >= start else NONE], name)
        return table[rng.integers(len(table), size=streams)]

    return watched(LIMITS[name], getattr(pools[NONE], name).shape[1], streams, most, values)


def of_pools(pools: Mapping[str, Pool], streams: int, most: int, after: int, seed: int) -> list[dict[str, Any]]:
    """Return how often alarms are raised, and how many answers after a change, on answers drawn from pools.

    Args:
        pools: the answers, by change.
        streams: number of streams.
        most: number of answers of a stream without a change.
        after: number of answers behind a change.
        seed: seed of the draws.
    """
    rows = []
    for change in pools:
        for name in LIMITS:
            for start in STARTS if change != NONE else (most,):
                rng = np.random.default_rng((seed, start))
                end = start + (after if change != NONE else 0)
                raised = pool_watched(pools, name, change, start, end, streams, rng)
                pool = pools[change]
                known = {"watched": name, "change": change, "answers": len(pool.promise)}
                known |= {"broken": float(pool.promise.mean()), "too_high": pool.too_high, "excess": pool.excess(name)}
                rows.append(known | when(raised, start))
                print(rows[-1], flush=True)
    return rows


def when(raised: Array, start: int) -> dict[str, Any]:
    """Return how often alarms are raised before a change, and how soon after it those that are not."""
    late = raised[raised > start] - start
    low, median, high = (float(np.quantile(late, q, method="lower")) for q in (0.1, 0.5, 0.9))
    return {
        "start": start,
        "before": float((raised <= start).mean()),
        "found": float(np.isfinite(late).mean()),
        "delay": [None if math.isinf(value) else value for value in (low, median, high)],
    }


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
                rows.append({"watched": name, "change": change} | when(raised, start))
                print(rows[-1], flush=True)
    return rows


def all_hold(results: Mapping[str, Any]) -> bool:
    """Return whether no alarm is raised more often than it may, within the 95 % binomial band."""
    quiet = [(row["raised"], row["streams"]) for row in results["quiet"] if not row["watched"].endswith("not")]
    quiet += [(row["before"], results["streams"]) for row in results["changes"]]
    kept = {row["watched"] for row in results["world"] if row["change"] == NONE and row["excess"] <= 0}
    quiet += [(row["before"], results["streams"]) for row in results["world"] if row["watched"] in kept]
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
        f"{'; '.join(quiet)}. {held} within the binomial band of the level of {100 * LEVEL:g} %, and so are those of "
        "the next table.",
        "",
        *_world_lines(results),
        "",
        f"Written by `benchmarks/watching.py`; {versions_text(results)}.",
    ]
    return "\n".join(lines)


def _world_lines(results: Mapping[str, Any]) -> list[str]:
    """Return the table of real confidences, and what it shows."""
    lines = [
        "| Watched | The answers become | broken | *c* - *f* | 0 answers before it | 200 | 1,000 |",
        "|---|---|--:|--:|---|---|---|",
    ]
    quiet = [row for row in results["world"] if row["change"] == NONE]
    for name in LIMITS:
        for change in dict.fromkeys(row["change"] for row in results["world"] if row["change"] != NONE):
            rows = {r["start"]: r for r in results["world"] if (r["watched"], r["change"]) == (name, change)}
            one = rows[STARTS[0]]
            true = [f"{100 * one['broken']:.1f}", f"{100 * one['too_high']:+.1f}"]
            cells = [_delay(rows[start], results["after"]) for start in STARTS]
            lines.append(f"| {' | '.join([name, change, *true, *cells])} |")
    counts = {row["change"]: row["answers"] for row in results["world"]}
    said = [
        f"{row['watched']}: {100 * row['before']:.1f} %" + ("" if row["excess"] <= 0 else " (rightly, see *broken*)")
        for row in quiet
    ]
    return [
        *lines,
        "",
        "The same of real confidences: those of the embedded world's adapter with the calibration and threshold that "
        f"come with the package, text given. Streams draw from the {counts.pop(NONE)} answers about the test things, "
        f"and after the change from {_and([f'{number} ({change})' for change, number in counts.items()])}. *Broken*: "
        f"answers with a kept false sentence, percent ({100 * quiet[0]['broken']:.1f} before the change); *c* - *f*: "
        f"mean of confidence less label, in points ({100 * quiet[0]['too_high']:+.1f} before). Alarms on "
        f"{results['most']:,} answers without a change: {'; '.join(said)}.",
    ]


def _and(words: Sequence[str]) -> str:
    return f"{', '.join(words[:-1])} and {words[-1]}"


def _delay(row: Mapping[str, Any], after: int) -> str:
    low, median, high = (f"over {after:,}" if value is None else f"{value:,.0f}" for value in row["delay"])
    return f"{median} ({low} to {high})"


def run(flags: argparse.Namespace) -> dict[str, Any]:
    """Return what was measured."""
    found = {"streams": flags.streams, "most": flags.most, "after": flags.after, "level": LEVEL}
    found["quiet"] = false_alarms(flags.streams, flags.most, flags.seed)
    found["changes"] = delays(flags.streams, flags.after, flags.seed)
    return found | {"world": of_pools(world_pools(), flags.streams, flags.most, flags.after, flags.seed)}


def main() -> None:
    """Run the benchmark as the command line says."""
    parser = page_options(str(__doc__))
    parser.add_argument("--streams", type=int, default=1000)
    parser.add_argument("--most", type=int, default=2000, help="answers of a stream without a change")
    parser.add_argument("--after", type=int, default=2000, help="answers behind a change")
    run_for_page(parser, run, table, RESULTS, PAGE, (BEGIN, END))


if __name__ == "__main__":
    main()
