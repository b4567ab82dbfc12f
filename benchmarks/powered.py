"""How much narrower do a judge's labels make intervals from few labels of people, and do these intervals hold?

    python benchmarks/powered.py FOLDER     # the folder of HaluEval 2.0: human-DOMAIN.json and model-DOMAIN.json

The claims of ChatGPT's answers have verdicts of people, and of ChatGPT itself as the judge. What people say of all
claims is taken as the truth. A draw takes as many answers as there are, with replacement, with the judge's verdict of
every claim, and people's of the claims of the first answers, until there are n. Intervals of mean factuality, and of
the Brier score and ECE-M of fixed confidences (Words, cross-fitted), are then compared with their values on all claims.

Writes benchmarks/results/powered.json and the table in docs/metrics.md.
"""

from __future__ import annotations

import argparse
import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from common import results_and_page
from page_parts import page_options, percent, run_for_page, versions_text

from lovec.baselines.words import Words
from lovec.datasets.layouts import read_any
from lovec.metrics.functional import brier_score, ece_m
from lovec.metrics.powered import LEVEL, Judged, Measured, measure_judged
from lovec.metrics.table import METRICS
from lovec.types import Record

RESULTS, PAGE = results_and_page("powered", "docs/metrics.md")
BEGIN, END = "<!-- powered: written by benchmarks/powered.py -->", "<!-- /powered -->"
DOMAINS = ("Bio-Medical", "Education", "Finance", "Open-Domain", "Science")
LABELS = (100, 200, 400)
SOURCES = ("people", "judge", "powered")
_BOOTSTRAP = 300  # draws behind an interval of ECE-M

Entry = Mapping[str, Any]


def read(folder: Path) -> list[tuple[Record, Record]]:
    """Return the answers with a verdict of people, each with people's labels and with the judge's."""
    pairs = []
    for domain in DOMAINS:
        people, judge = (read_any(folder / f"{source}-{domain}.json") for source in ("human", "model"))
        for ours, theirs in zip(people, judge, strict=True):
            named = replace(ours, id=f"{domain}/{ours.id}", question=f"{domain}: {ours.question}")
            pairs += [(named, theirs)] if ours.labelled else []
    return pairs


def population(pairs: Sequence[tuple[Record, Record]]) -> Judged:
    """Return all claims with a verdict of people, and their confidences by Words, fitted without their question."""
    values = Words(least=20).held_out([people for people, _ in pairs])
    rows = [
        (ours.factuality, math.nan if theirs.factuality is None else theirs.factuality, number, confidence)
        for number, ((people, judge), confidences) in enumerate(zip(pairs, values, strict=True))
        for ours, theirs, confidence in zip(people.sentences, judge.sentences, confidences, strict=True)
        if ours.factuality is not None
    ]
    people, judge, group, confidence = torch.tensor(rows, dtype=torch.float64).unbind(1)
    return Judged(people, judge, group.long(), confidence.clamp(0.0, 1.0))


def drawn(every: Judged, labels: int, draws: int, seed: int) -> Iterator[Judged]:
    """Yield draws of as many answers as there are; people have labelled the first, until there are so many labels."""
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.bincount(every.group)
    starts = lengths.cumsum(0) - lengths
    for _ in range(draws):
        chosen = torch.randint(len(lengths), (len(lengths),), generator=generator)
        size = lengths[chosen]
        group = torch.arange(len(chosen)).repeat_interleave(size)
        place = starts[chosen][group] + torch.arange(len(group)) - (size.cumsum(0) - size)[group]
        labelled = ((size.cumsum(0) - size) < labels)[group]
        assert every.confidence is not None
        people = every.people[place].where(labelled, math.nan)
        yield Judged(people, every.judge[place], group, every.confidence[place])


def tried(every: Judged, labels: int, draws: int, seed: int) -> list[dict[str, Any]]:
    """Return one row per metric: how often the intervals of each source hold the value of all claims, and how wide."""
    truth = true_values(every)
    found: list[Measured] = []
    counts = []
    for number, rows in enumerate(drawn(every, labels, draws, seed)):
        found.append(measure_judged(rows, _BOOTSTRAP, number))
        counts.append(int(rows.labelled.sum()))
    result = []
    for name, value in truth.items():
        row: dict[str, Any] = {"labels": labels, "mean_labels": statistics.mean(counts), "metric": name}
        for source in SOURCES:
            intervals = [getattr(one, source)[name] for one in found]
            row[source] = {
                "coverage": statistics.mean(one.low <= value <= one.high for one in intervals),
                "width": statistics.mean(one.high - one.low for one in intervals),
                "off": statistics.mean(one.value - value for one in intervals),
            }
        row["worth"] = statistics.median(one.effective[name] for one in found) if name in found[0].effective else None
        result.append(row)
    return result


def true_values(every: Judged) -> dict[str, float]:
    """Return the metrics of all claims by people's labels."""
    assert every.confidence is not None
    pair = every.confidence, every.people
    return {
        "mean_factuality": float(every.people.mean()),
        "brier": float(brier_score(*pair)),
        "ece_m": float(ece_m(*pair)),
    }


def verdicts(every: Judged) -> dict[str, Any]:
    """Return how often each verdict of the judge is given, and the share of these claims that people found true."""
    kinds = {"true": every.judge == 1, "false": every.judge == 0, "unknown": every.judge.isnan()}
    return {name: {"claims": int(rows.sum()), "true": float(every.people[rows].mean())} for name, rows in kinds.items()}


def run(flags: argparse.Namespace) -> dict[str, Any]:
    """Return what was measured."""
    every = population(read(flags.data))
    return {
        "draws": flags.draws,
        "claims": len(every.people),
        "answers": int(every.group.max()) + 1,
        "truth": true_values(every),
        "verdicts": verdicts(every),
        "rows": [row for labels in LABELS for row in tried(every, labels, flags.draws, flags.seed)],
    }


def table(results: Entry) -> str:
    """Return the table of the page: coverage and width by people alone and with the judge."""
    lines = [
        "| Labels | Metric | covered, people alone | width | covered, with the judge | width | narrower | worth |",
        "|--:|---|--:|--:|--:|--:|--:|--:|",
    ]
    for row in results["rows"]:
        people, powered = row["people"], row["powered"]
        cells = [
            str(row["labels"]),
            METRICS[row["metric"]].heading,
            *(percent(one[key]) for one in (people, powered) for key in ("coverage", "width")),
            f"{100 * (1 - powered['width'] / people['width']):.0f} %",
            "-" if row["worth"] is None else f"{row['worth']:.0f}",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    truth, found = results["truth"], results["verdicts"]
    kinds = ", ".join(f"{kind} {one['claims']} ({percent(one['true'])} % true)" for kind, one in found.items())
    alone = "; ".join(
        f"{METRICS[name].heading} {percent(value)}, off by "
        f"{percent(next(r for r in results['rows'] if r['metric'] == name)['judge']['off'])}"
        for name, value in truth.items()
    )
    band = 196 * math.sqrt(LEVEL * (1 - LEVEL) / results["draws"])
    lines += [
        "",
        f"Percent, or points; intervals of {100 * LEVEL:.4g} % on {results['draws']} draws (binomial band: {band:.1f} "
        f"points) from {results['claims']} claims of {results['answers']} answers. *Worth*: the number of labels of "
        "people alone that give the same variance (median). The judge's verdicts, and people's of the same claims: "
        f"{kinds}. By people on all claims, and how far the judge alone is from it: {alone}. Written by "
        f"`benchmarks/powered.py`; {versions_text(results)}.",
    ]
    return "\n".join(lines)


def main() -> None:
    """Run the benchmark as the command line says."""
    parser = page_options(str(__doc__), "the folder of HaluEval 2.0")
    parser.add_argument("--draws", type=int, default=1000)
    run_for_page(parser, run, table, RESULTS, PAGE, (BEGIN, END))


if __name__ == "__main__":
    main()
