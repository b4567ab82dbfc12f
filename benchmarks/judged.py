"""Do thresholds and maps from few labels of people and many of a judge hold what they promise, and what do they gain?

    python benchmarks/judged.py FOLDER     # the folder of HaluEval 2.0: human-DOMAIN.json and model-DOMAIN.json

Answers are drawn as in benchmarks/powered.py: ChatGPT's claims, with verdicts of people for the first answers of a
draw and of a judge for all. The judge is ChatGPT itself, one that guesses, or one that is always right. The scores are
those of Words, cross-fitted. A threshold is right if its promise is kept on all answers, by people's verdicts.

Writes benchmarks/results/judged.json and the table in docs/calibrate.md.
"""

from __future__ import annotations

import argparse
import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from common import results_and_page
from page_parts import page_options, run_for_page, versions_text
from powered import drawn, population, read

from lovec.calibration.conformal import TRUE_FROM, Passage, losses
from lovec.calibration.judged import CERTAINTY, lowest_safe
from lovec.calibration.scores import Column, calibrate_columns
from lovec.metrics.functional import brier_score, ece_m
from lovec.metrics.powered import Judged
from lovec.types import Promise

RESULTS, PAGE = results_and_page("judged", "docs/calibrate.md")
BEGIN, END = "<!-- judged: written by benchmarks/judged.py -->", "<!-- /judged -->"
PROMISES: Sequence[tuple[Promise, float, float, str]] = (
    ("errors", 1.0, 0.1, "errors: at most 10 % of all claims"),
    ("errors", 1.0, 0.2, "errors: at most 20 % of all claims"),
    ("share", 0.8, 0.2, "80 % of the kept are true in 80 % of the answers"),
)
LABELS = (100, 200, 400)
WAYS = ("judged", "people", "average", "alone")
"""From both; from people's labels alone, in the same way, and on average; from the judge's alone."""

_GRID = 80  # thresholds that are tried

Array = np.ndarray[Any, np.dtype[np.float64]]


def judges(every: Judged, seed: int) -> dict[str, torch.Tensor]:
    """Return the verdicts of each judge on all claims, [N]."""
    guesses = torch.randint(2, every.people.shape, generator=torch.Generator().manual_seed(seed))
    return {"ChatGPT": every.judge, "guesses": guesses.double(), "always right": every.people}


def passages(every: Judged, labels: torch.Tensor) -> list[Passage]:
    """Return the answers with labels [N]."""
    assert every.confidence is not None
    sizes = torch.bincount(every.group).tolist()
    rows = zip(every.confidence.split(sizes), labels.split(sizes), strict=True)
    return [Passage(c.tolist(), (own >= TRUE_FROM).tolist()) for c, own in rows]


def draws_of(every: Judged, labels: int, draws: int, seed: int) -> Iterator[tuple[Array, Array]]:
    """Yield the numbers of the answers of each draw, and whether people have labelled them, as `drawn` does."""
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.bincount(every.group)
    for _ in range(draws):
        chosen = torch.randint(len(lengths), (len(lengths),), generator=generator)
        size = lengths[chosen]
        yield chosen.numpy(), ((size.cumsum(0) - size) < labels).numpy()


def tried(every: Judged, judge: torch.Tensor, labels: int, draws: int, seed: int) -> list[dict[str, Any]]:
    """Return one row per promise: how often thresholds keep it on all answers, and how much they keep, by the way."""
    assert every.confidence is not None
    scores = every.confidence.numpy()
    grid = np.append(-np.inf, np.unique(np.quantile(scores, np.linspace(0, 1, _GRID), method="inverted_cdf")))
    above = np.append((scores[:, None] > grid).mean(0), 0.0)
    rows = []
    for kind, share, alpha, name in PROMISES:
        truth = losses(passages(every, every.people), kind, share, grid)
        # what the judge cannot tell is true or false to it, as people's labels of such claims are on average in a draw
        untold = [losses(passages(every, judge.nan_to_num(value)), kind, share, grid) for value in (0.0, 1.0)]
        risk = np.append(truth.mean(0), 0.0)
        found: dict[str, list[int]] = {way: [] for way in WAYS}
        for chosen, known in draws_of(every, labels, draws, seed):
            rows_of = np.isin(every.group.numpy(), chosen[known]) & judge.isnan().numpy()
            is_true = bool(rows_of.any()) and float(every.people.numpy()[rows_of].mean()) >= TRUE_FROM
            by_people, by_judge = truth[chosen], untold[is_true][chosen]
            theirs = by_people[known]
            by_people[~known] = np.nan
            average = np.flatnonzero((theirs.sum(0) + 1) / (len(theirs) + 1) > alpha)
            for way, threshold in (
                ("judged", lowest_safe(grid, by_people, by_judge, alpha)),
                ("people", lowest_safe(grid, theirs, theirs, alpha)),
                ("average", np.append(grid, np.inf)[average[-1] + 1 if average.size else 0]),
                ("alone", lowest_safe(grid, by_judge, by_judge, alpha)),
            ):
                found[way].append(int(np.searchsorted(grid, threshold)))
        row: dict[str, Any] = {"labels": labels, "answers": int(known.sum()), "promise": name}
        for way, places in found.items():
            row[way] = {
                "right": float((risk[places] <= alpha).mean()),
                "loss": float(risk[places].mean()),
                "kept": float(above[places].mean()),
            }
        rows.append(row)
    return rows


def mapped(every: Judged, labels: int, draws: int, seed: int) -> dict[str, Any]:
    """Return how good maps from both and from people's labels alone are on all claims."""
    found: dict[str, list[tuple[float, float]]] = {"judged": [], "people": []}
    chosen = 0
    assert every.confidence is not None
    for rows in drawn(every, labels, draws, seed):
        assert rows.confidence is not None
        truth, groups, scores = rows.people.numpy(), rows.group.tolist(), rows.confidence.numpy()
        known = ~np.isnan(truth)
        own = [group for group, is_known in zip(groups, known, strict=True) if is_known]
        column = [Column("words")]
        both = calibrate_columns(column, [scores], truth, groups, judge=("judge", rows.judge.numpy()), draws=1)
        alone = calibrate_columns(column, [scores[known]], truth[known], own, draws=1)
        chosen += both[1].name.endswith("judge")
        for name, (made, _) in (("judged", both), ("people", alone)):
            after = torch.from_numpy(made.confidences(every.confidence.numpy()[:, None]))
            found[name].append((float(brier_score(after, every.people)), float(ece_m(after, every.people))))
    means = {name: [statistics.mean(values) for values in zip(*pairs, strict=True)] for name, pairs in found.items()}
    return {"labels": labels, "draws": draws, "chosen": chosen / draws, **means}


def run(flags: argparse.Namespace) -> dict[str, Any]:
    """Return what was measured."""
    every = population(read(flags.data))
    found = judges(every, flags.seed)
    rows = []
    for labels in LABELS:
        for name, judge in found.items() if labels == LABELS[1] else [("ChatGPT", every.judge)]:
            rows += [{"judge": name, **row} for row in tried(every, judge, labels, flags.draws, flags.seed)]
            print(rows[-len(PROMISES) :], flush=True)
    assert every.confidence is not None
    before = [float(metric(every.confidence, every.people)) for metric in (brier_score, ece_m)]
    return {
        "draws": flags.draws,
        "claims": len(every.people),
        "answers": int(every.group.max()) + 1,
        "rows": rows,
        "before": before,
        "maps": [mapped(every, labels, flags.maps, flags.seed) for labels in LABELS],
    }


def band(results: Mapping[str, Any]) -> float:
    """Return half of the 95 % binomial band around the certainty."""
    return 1.96 * math.sqrt(CERTAINTY * (1 - CERTAINTY) / results["draws"])


def table(results: Mapping[str, Any]) -> str:
    """Return the tables of the page."""
    lines = [
        "| Promise | Labels | Judge | with the judge: right | kept | people alone: right | kept | on average: right "
        "| kept | judge alone: right |",
        "|---|--:|---|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for *_, promise in PROMISES:
        for row in (row for row in results["rows"] if row["promise"] == promise):
            cells = [row[way][key] for way in WAYS for key in ("right", "kept")][:-1]
            shown = [f"{100 * cell:.1f}" for cell in cells]
            if row["judged"]["right"] < CERTAINTY - band(results):
                shown[0] = f"**{shown[0]}**"
            lines.append(f"| {' | '.join([promise, str(row['labels']), row['judge'], *shown])} |")
    maps = "; ".join(
        f"{row['labels']} labels: {100 * row['judged'][0]:.1f} and {100 * row['judged'][1]:.1f} with the judge (whose "
        f"maps are chosen in {100 * row['chosen']:.0f} % of the draws), {100 * row['people'][0]:.1f} and "
        f"{100 * row['people'][1]:.1f} without"
        for row in results["maps"]
    )
    lines += [
        "",
        f"Percent. *Right*: share of {results['draws']:,} thresholds that keep the promise on all "
        f"{results['claims']:,} claims of {results['answers']} answers by people's verdicts; {100 * CERTAINTY:.0f} are "
        f"promised by the first two (**bold**: below the 95 % binomial band of {100 * band(results):.1f} points), and "
        "none by *on average*, the [conformal threshold](#the-guarantee) from people's labels. *Kept*: mean share of "
        f"claims. **Maps**, Brier score and ECE-M on all claims ({100 * results['before'][0]:.1f} and "
        f"{100 * results['before'][1]:.1f} without a map), means of {results['maps'][0]['draws']} draws: {maps}. "
        f"Written by `benchmarks/judged.py`; {versions_text(results)}.",
    ]
    return "\n".join(lines)


def main() -> None:
    """Run the benchmark as the command line says."""
    parser = page_options(str(__doc__), "the folder of HaluEval 2.0")
    parser.add_argument("--draws", type=int, default=1000)
    parser.add_argument("--maps", type=int, default=50, help="draws that maps are fitted to")
    run_for_page(parser, run, table, RESULTS, PAGE, (BEGIN, END))


if __name__ == "__main__":
    main()
