"""The comparison as Markdown: what holds, all rows, and how long everything takes."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from common import CALIBRATION, seeds_of, select
from page_parts import HEADINGS, interval_text, mean_text, side, world_text

from lovec.core.notices import counted
from lovec.metrics.table import METRICS

MODES = {"iterative": "Iterative tagging and baselines: the text is given", "free-form": "Free-form: text and scores"}
PHASES = ("writing", "sampling", "judging", "scoring")
WRITER = "DPO"
"""The method whose free-form answers running times are compared with."""

Entry = Mapping[str, Any]


CALIBRATED = ("p(true)-ft", "Self-Cons", "LUQ", "Sem-Entropy", "Likelihood", "CCP", "Probe")
"""Baselines of the short table, each with and without a map."""


IN_SHORT = (
    "Baselines of the untrained model gain from a map. CCP and ten sampled answers (Self-Cons, LUQ) rank sentences "
    "best, with a judge that compares facts exactly; ten samples cost ten times the writing. What Distil states "
    "without a map is not shown to be better than the likelihood of a sentence with one, or than p(true) after "
    "fine-tuning."
)
"""What the short table shows; to be read again whenever the benchmark is run again."""


def page(results: Mapping[str, Any]) -> str:
    """Return the page of the results in Markdown."""
    seeds = seeds_of(results["rows"])
    part = "" if results["part"] == 1 else f" Only {100 * results['part']:g} % of the test records: a trial."
    lines = [
        "# Baselines and methods on the embedded world",
        "",
        "Written by `benchmarks/comparison.py`; the numbers are in `benchmarks/results/comparison.json`. Means over "
        f"{counted(len(seeds), 'seed')}.{part} {world_text(results)}. All rows of a seed come from one `lovec test "
        "--config comparison.yaml`, which took "
        f"{statistics.median(results['seconds'].values()) / 60:.1f} minutes (median), beside other work. "
        "The judge of Self-Cons, LUQ, Sem-Entropy and CCP is the exact comparison of facts, "
        "better than any judge there is for real text. The maps "
        "of rows with + isotonic are fitted on the validation things; Probe is fitted on the "
        "training labels.",
        "",
        "## In short",
        "",
        IN_SHORT,
        "",
        baseline_table(results),
        *_claims(results["intervals"]),
        *_times(results["times"]),
    ]
    for domain in dict.fromkeys(row.domain for row in results["rows"]):
        for mode, description in MODES.items():
            lines += _table(results, domain, mode, description)
    return "\n".join(lines) + "\n"


def baseline_table(results: Mapping[str, Any]) -> str:
    """Return the short table of baselines, as they are and after an isotonic map."""
    lines = ["| BS / ECE-M / SC | as it is | + isotonic |", "|---|---|---|"]
    for method in CALIBRATED:
        cells = []
        for name in (method, f"{method} + isotonic"):
            rows = select(results["rows"], method=name, mode="iterative")
            cells.append(" / ".join(mean_text(rows, metric) for metric in CALIBRATION))
        lines.append(f"| {method} | {' | '.join(cells)} |")
    seeds = len(seeds_of(results["rows"]))
    note = (
        f"Percent; means over {counted(seeds, 'seed')}, text given. p(true)-ft is trained on the labels. CCP gives 0 "
        f"to a sentence that states no fact which the judge can read. {world_text(results)}."
    )
    return "\n".join([*lines, "", note])


def _claims(entries: Sequence[Entry]) -> list[str]:
    """Return the section on what holds and what does not: differences with intervals, by domain."""
    lines = [
        "",
        "## What holds and what does not",
        "",
        "Sentence level, stated score, percent: the first method minus the second, with 95 % intervals over questions "
        "and training seeds (drawn 2000 times, the same ones for both). *holds*: the first is better by all three "
        "metrics, beyond the interval; otherwise the metrics by which it is better or worse are named.",
    ]
    for domain in dict.fromkeys(entry["domain"] for entry in entries):
        lines += ["", f"### {domain}", "", f"| Better than | Mode | {HEADINGS} | |", "|---|---|---|---|---|---|"]
        for entry in entries:
            if entry["against"] is not None and entry["domain"] == domain:
                cells = [interval_text(entry[name], signed=True) for name in CALIBRATION]
                name = f"{entry['method']}, than {entry['against']}"
                lines.append(f"| {' | '.join([name, entry['mode'], *cells, verdict(entry)])} |")
    return lines


def verdict(entry: Entry) -> str:
    """Return "holds" if the first method is better by all metrics, or the metrics by which it is better or worse."""
    sides = {name: side(entry[name]) * (-1 if METRICS[name].better == "lower" else 1) for name in CALIBRATION}
    if all(better == 1 for better in sides.values()):
        return "holds"
    parts = [
        f"{word}: {', '.join(METRICS[name].heading for name, better in sides.items() if better == sign)}"
        for word, sign in (("better", 1), ("worse", -1))
        if sign in sides.values()
    ]
    return "; ".join(parts) or "not shown"


def _times(times: Sequence[Entry]) -> list[str]:
    """Return the section on running times: seconds by phase, and LUQ's time as a multiple of free-form tagging's."""
    lines = ["", "## Running time", ""]
    if ratio := luq_ratio(times):
        lines += [
            f"LUQ takes {ratio['total']:.1f} times as long as {WRITER} takes to write answers and scores: its samples "
            f"{ratio['sampling']:.1f} times, its judge {ratio['judging']:.2f} times, and the answer itself, which must "
            f"be there first, {ratio['answer']:.1f} times. (Medians over seeds of the ratios, same process, same "
            "questions, same engine. The judge here compares facts; a model that judges costs more.)",
            "",
        ]
    lines += [
        "Seconds for all test questions, median over seeds, one thread. *writing*: text, with scores where the method "
        "writes them; *scoring*: scores of given text, or, in free-form, the distributions beside the written scores.",
        "",
        f"| Method | Mode | {' | '.join(PHASES)} | sentences per second |",
        "|---|---|--:|--:|--:|--:|--:|",
    ]
    for method, mode in dict.fromkeys((entry["method"], entry["mode"]) for entry in times):
        entries = [entry for entry in times if (entry["method"], entry["mode"]) == (method, mode)]
        cells = [_median_seconds(entries, phase) for phase in PHASES]
        speed = statistics.median(entry["sentences"] / sum(entry["seconds"].values()) for entry in entries)
        lines.append(f"| {' | '.join([method, mode, *cells, f'{speed:.0f}'])} |")
    return lines


def luq_ratio(times: Sequence[Entry]) -> dict[str, float]:
    """Return how many times as long as writing a tagged answer LUQ takes, by part; medians over seeds.

    Returns:
        Ratios of the parts "answer", "sampling" and "judging", and of "total"; {} if a seed lacks a time.
    """
    ratios: dict[str, list[float]] = {"total": [], "answer": [], "sampling": [], "judging": []}
    for seed in dict.fromkeys(entry["seed"] for entry in times):
        seconds = {(entry["method"], entry["mode"]): entry["seconds"] for entry in times if entry["seed"] == seed}
        places = (("LUQ", "iterative"), ("Answers", "free-form"), (WRITER, "free-form"))
        if not all(place in seconds for place in places):
            return {}
        luq, answers, written = (seconds[place] for place in places)
        parts = {"answer": answers["writing"], "sampling": luq["sampling"], "judging": luq["judging"]}
        for name, spent in {**parts, "total": sum(parts.values())}.items():
            ratios[name].append(spent / written["writing"])
    return {name: statistics.median(values) for name, values in ratios.items() if values}


def _table(results: Mapping[str, Any], domain: str, mode: str, description: str) -> list[str]:
    """Return the section with all rows of a domain and a mode."""
    rows = select(results["rows"], domain=domain, mode=mode)
    if not rows:
        return []
    place = (domain, mode, None)
    entries = {e["method"]: e for e in results["intervals"] if (e["domain"], e["mode"], e["against"]) == place}
    lines = ["", f"## {domain}: {description}", ""]
    lines += [f"| Method | {HEADINGS} | bad tags | c | f |", "|---|---|---|---|--:|--:|--:|"]
    for method in dict.fromkeys(row.method for row in rows):
        of_method = [row for row in rows if row.method == method]
        ends = entries.get(method, {})
        cells = [interval_text(ends.get(name), signed=False) or mean_text(of_method, name) for name in CALIBRATION]
        others = ("malformed", "mean_confidence", "mean_factuality")
        lines.append(f"| {' | '.join([method, *cells, *(mean_text(of_method, name) for name in others)])} |")
    return lines


def _median_seconds(entries: Sequence[Entry], phase: str) -> str:
    values = [entry["seconds"][phase] for entry in entries if phase in entry["seconds"]]
    return f"{statistics.median(values):.1f}" if values else ""
